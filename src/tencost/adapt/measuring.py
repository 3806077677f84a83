"""Chosen programs timed on the new hardware: a small collection of their own, measured as `tencost measure run` does.

The folder is ``measured/adapt-<hardware>/`` unless measure.name says another. What is measured there stays: a run that
was interrupted goes on, a later one with more labels adds to it, and `tencost measure pack` makes a dataset of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tencost.config import Config, MeasureConfig
from tencost.errors import MeasureError
from tencost.measure import stage as measuring
from tencost.measure.collection import CollectedTask, Collection, ProgramOrigin
from tencost.records.formats.metaschedule import LoggedProgram
from tencost.store.ids import program_id
from tencost.store.status import timing_from_log
from tencost.writing import whole_file

_DEFAULT_NAME = MeasureConfig().name


class Labeller:
    """Measures programs of a dataset on cfg.hardware.

    Args:
        cfg: names the dataset, the hardware (as it is, not `local`) and how programs are timed.
        root: the project's root.

    Raises:
        MeasureError: the raw dataset, which has the programs, is not there.
    """

    def __init__(self, cfg: Config, root: Path) -> None:
        name = cfg.measure.name
        if name == _DEFAULT_NAME:
            name = f"adapt-{cfg.hardware.name}"
        settings = replace(cfg.measure, name=name, min_mflop=0.0, pack=False)
        self._cfg = replace(cfg, measure=settings)
        self._root = root
        self.collection = measuring.collection_of(self._cfg, root)
        raw = root / cfg.paths.raw / cfg.dataset.name
        folders = [raw, *sorted(raw.iterdir())] if raw.is_dir() else []
        self._sources = [
            Collection(path) for path in folders if (path / "to_measure_programs").is_dir()
        ]
        if not self._sources:
            raise MeasureError(
                f"expected programs in {raw}/to_measure_programs, found none: only measured programs of MetaSchedule "
                f"can be timed again. Fetch the dataset: tencost fetch dataset={cfg.dataset.name}"
            )
        self._places = self._index()

    def measure(self, program_ids: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return the median seconds of programs, float64 [n]; NaN for one that failed.

        What has been measured in the collection is not measured again.

        Raises:
            MeasureError: a program is not in the raw dataset; or as `tencost measure run`.
            HardwareError: they would crash on this host, or the devices cannot be reached.
        """
        absent = [identity for identity in program_ids if identity not in self._places]
        if absent:
            raise MeasureError(
                f"expected {len(program_ids)} programs in data/raw/{self._cfg.dataset.name}, found all but "
                f"{len(absent)}, such as {absent[0]}: the records are of another state of it. Build them again: "
                f"tencost records dataset={self._cfg.dataset.name}"
            )
        self._write(program_ids)
        measuring.run(self._cfg, self._root)
        times = self._times()
        return np.array([times.get(identity, np.nan) for identity in program_ids], np.float64)

    def _index(self) -> dict[str, tuple[Collection, CollectedTask, int]]:
        """Return where each program stands: its collection, task, and place among the task's programs."""
        places: dict[str, tuple[Collection, CollectedTask, int]] = {}
        for source in self._sources:
            for task in source.tasks(0.0):
                for place, program in enumerate(source.programs(task)):
                    places.setdefault(_identity(program), (source, task, place))
        return places

    def _write(self, program_ids: Sequence[str]) -> None:
        """Add programs to those of the collection that are to be measured."""
        by_task: dict[tuple[Path, str], dict[str, int]] = {}
        for identity in program_ids:
            source, task, place = self._places[identity]
            by_task.setdefault((source.path, task.workload_id), {})[identity] = place
        for (_, workload), places in by_task.items():
            source, task, _ = self._places[next(iter(places))]
            self._networks(source, task)
            target = next(
                task for task in self.collection.tasks(0.0) if task.workload_id == workload
            )
            present = {_identity(program) for program in self.collection.programs(target)}
            fresh = [place for identity, place in places.items() if identity not in present]
            if not fresh:
                continue
            programs, lines = source.programs(task), source.program_lines(task)
            # A line that is no program stands in the file, too: places count programs.
            texts = [lines[programs[place].line - 1] for place in fresh]
            before = self.collection.origin(target) or ProgramOrigin(
                self._cfg.measure.seed, False, ()
            )
            origins = (*before.origins, *[f"chosen of {source.name}"] * len(fresh))
            self.collection.write_programs(
                target,
                programs[fresh[0]].workload.shash,
                [*self.collection.program_lines(target), *texts],
                ProgramOrigin(before.seed, False, origins),
            )
        self.collection.write_index()

    def _networks(self, source: Collection, task: CollectedTask) -> None:
        """Copy what is known of the task's networks, which name its workload and weight."""
        folder = self.collection.path / "network_info"
        for network in task.networks:
            for suffix in ("relax", "json"):
                path = source.path / "network_info" / f"{network}.{suffix}"
                if path.is_file() and not (folder / path.name).is_file():
                    with whole_file(folder / path.name) as copy:
                        shutil.copyfile(path, copy)

    def _times(self) -> dict[str, float]:
        seconds = {}
        for task in self.collection.tasks(0.0):
            for program in self.collection.measured(self._cfg.hardware.name, task):
                times = timing_from_log(program.run_secs).run_secs
                seconds[_identity(program)] = float(np.median(times)) if times else np.nan
        return seconds


def _identity(program: LoggedProgram) -> str:
    return program_id(program.workload.workload_id, str(program.target["kind"]), program.trace)
