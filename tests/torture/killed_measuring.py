"""Kills of measuring, tuning and of the pipeline."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from torture.kills import TESTS, Kills, Scenario, difference, shown, tree


class MeasureRun(Scenario):
    """`tencost measure run` of two matmuls."""

    name = "measure run"
    limit_s = 300.0

    def configured(self) -> Any:
        from tencost.config.composition import compose

        words = [
            "name=small",
            "min_mflop=0",
            "programs=6",
            "evolved_share=0",
            "min_repeat_ms=0",
            "repeat=2",
        ]
        words += ["max_repeat=2", "pack=false", "overlap=false", "population=16", "generations=1"]
        return compose([*(f"measure.{word}" for word in words), "hardware=local"])[0]

    def prepare(self, root: Path) -> None:
        from small_collection import make_small_collection

        make_small_collection(root)

    def command(self, root: Path) -> None:
        from tencost.measure import stage

        stage.run(self.configured(), root)

    def state(self, root: Path) -> Any:
        from tencost.records.databases import import_dataset
        from tencost.store.record_store import RecordStore

        folder = root / "measured" / "small"
        there = any(folder.glob("measure_records/**/database_tuning_record.json"))
        imported = import_dataset(folder, "small") if there else None
        store = RecordStore(str(root / "data" / "store"))
        stored = (
            store.read(None, ["record_id"], quarantined=True)["record_id"].to_list()
            if store.exists()
            else []
        )
        return {
            "measured": sorted(one.record_id for one in imported.records) if imported else [],
            "rejects": len(imported.rejects) if imported else 0,
            "stored": sorted(stored),
            "lines": sorted(
                line
                for path in (root / "measured" / "small").glob(
                    "measure_records/*/*/measurements.jsonl"
                )
                for line in path.read_text().splitlines(keepends=True)
                if line.endswith("\n")
            ),
        }

    def between(self, root: Path) -> Any:
        from tencost.measure.collection import Collection
        from tencost.measure.journal import mend_journal

        collection = Collection(root / "measured" / "small")
        for task in collection.tasks(0.0):
            mend_journal(collection.records_folder("local", task, (0, 1)))
        return self.state(root)

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        wrong = [
            f"{name}: {difference(clean[name], after[name])}"
            for name in ("measured", "rejects", "stored")
            if clean[name] != after[name]
        ]
        if between is not None:
            again = set(between["lines"]) - set(after["lines"])
            if again:
                wrong.append(
                    f"{len(again)} measurements that were there are gone or were made again"
                )
            if not set(between["stored"]) <= set(clean["stored"]):
                wrong.append("in between there are rows that nobody measured")
        return wrong


class MeasurePrograms(MeasureRun):
    """`tencost measure programs`: more of them for tasks that have some."""

    name = "measure programs"

    def command(self, root: Path) -> None:
        from tencost.measure import stage

        config = self.configured()
        config.measure.programs = 9
        stage.programs(config, root)

    def state(self, root: Path) -> Any:
        from tencost.measure.collection import Collection

        collection = Collection(root / "measured" / "small")
        found = {}
        for task in collection.tasks(0.0):
            origin = collection.origin(task)
            programs = [json.dumps(program.trace) for program in collection.programs(task)]
            found[task.task_name] = [programs, len(origin.origins) if origin else 0]
        return found

    between = state

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        wrong = []
        for name, (programs, origins) in after.items():
            if (
                len(programs) != len(set(programs))
                or len(programs) != len(clean[name][0])
                or origins != len(programs)
            ):
                wrong.append(
                    f"{name}: {len(programs)} programs, {len(set(programs))} of them distinct, {origins} origins"
                )
            kept = between[name][0] if between else []
            if programs[: len(kept)] != kept:
                wrong.append(f"{name}: programs that were there are others now")
        return wrong


class MeasurePack(MeasureRun):
    """`tencost measure pack` of what was measured."""

    name = "measure pack"

    def prepare(self, root: Path) -> None:
        super().prepare(root)
        super().command(root)
        shutil.copytree(TESTS.parent / "conf" / "split", root / "conf" / "split")

    def command(self, root: Path) -> None:
        from tencost.measure import stage

        stage.pack(self.configured(), root)

    def state(self, root: Path) -> Any:
        return shown({**tree(root / "datasets"), **tree(root / "conf")})

    def between(self, root: Path) -> Any:
        """A description that is there is that of the archive."""
        import yaml

        described = root / "conf" / "dataset" / "small.yaml"
        if described.exists():
            archive = (root / "datasets" / "small.tar.zst").read_bytes()
            told = yaml.safe_load(described.read_text())["sha256"]
            assert told == hashlib.sha256(archive).hexdigest()
        return None

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        return Scenario.compare(self, clean, None, after)


class Measure(Kills):
    """The part `kill-measure`."""

    name = "kill-measure"
    modules = (
        "tvm",
        "tencost.measure.stage",
        "tencost.measure.run",
        "deltalake",
        "polars",
        "tencost.records.databases",
    )
    scenarios = (MeasureRun, MeasurePrograms, MeasurePack)


class TuneMatmul(Scenario):
    """Tuning a matmul of which a store knows programs, as tests/tune/killed_tuning.py does it."""

    name = "tune"

    def prepare(self, root: Path) -> None:
        from killed_tuning import HARDWARE, TARGET
        from known_programs import records_of

        from matmuls import make_matmul
        from tencost.store.record_store import RecordStore

        RecordStore(str(root / "store")).write(records_of(make_matmul(32), TARGET, HARDWARE.name))

    def command(self, root: Path) -> None:
        from killed_tuning import tune

        tune(root / "run", 0, self.log(root))

    def state(self, root: Path) -> Any:
        from killed_tuning import measured, state

        return {**state(root / "run"), "measured": measured(self.log(root))}

    def log(self, root: Path) -> Path:
        """Return where it is told what was measured: not below the folder whose writes are killed."""
        return root.with_name(f"{root.name}.measured")

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        from killed_tuning import TRIALS

        wrong = []
        programs, adopted = after["programs"], after["adopted"]
        known = sum(clean["adopted"])
        if not len(programs) == len(set(programs)) == TRIALS + known:
            wrong.append(
                f"{len(programs)} programs, {len(set(programs))} distinct, of {TRIALS + known}"
            )
        if sum(adopted) != known:
            wrong.append(f"{sum(adopted)} adopted of {known}")
        if after["curve"] != sorted(set(after["curve"])):
            wrong.append(f"the curve: {after['curve']}")
        if between is not None:
            kept = len(between["programs"])
            if programs[:kept] != between["programs"] or adopted[:kept] != between["adopted"]:
                wrong.append("what was there is not there now")
            there = kept - sum(between["adopted"])
            more = len(after["measured"]) - len(between["measured"])
            if more != TRIALS - there:
                wrong.append(f"{more} measured again, {TRIALS - there} were left")
        return wrong


class Tune(Kills):
    """The part `kill-tune`."""

    name = "kill-tune"
    modules = ("tvm", "deltalake", "polars", "xgboost", "killed_tuning")
    scenarios = (TuneMatmul,)

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(TESTS / "tune"))
        from tencost.programs.trace.intrinsics import register_cpu_intrinsics

        register_cpu_intrinsics()
        super().__init__(folder)


class DvcPipeline(Scenario):
    """`tencost pipeline splits`: fetch, records and splits by DVC, in a project of its own."""

    name = "pipeline"
    limit_s = 300.0
    killed = (-9, 0, 255)  # DVC goes on when a stage is killed, and says so

    def prepare(self, root: Path) -> None:
        import yaml

        sys.path.insert(0, str(TESTS / "pipeline"))
        from test_pipeline import HARDWARE, ROOT, edit, slice_sample

        from tencost.records.fetch.pack import pack_folder

        (root / "raw").mkdir()
        slice_sample(root / "raw")
        (root / "datasets").mkdir()
        digest = pack_folder(root / "raw", root / "datasets" / "slice.tar.zst")
        shutil.rmtree(root / "raw")
        shutil.copytree(ROOT / "conf", root / "conf")
        shutil.copy(ROOT / "dvc.yaml", root)
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / "src", root / "src", ignore=ignore)
        dataset = {
            "name": "slice",
            "source": "datasets/slice.tar.zst",
            "sha256": digest,
            "description": "a slice",
        }
        (root / "conf" / "dataset" / "slice.yaml").write_text(yaml.safe_dump(dataset))
        edit(root / "conf" / "split" / "by_network.yaml", "valid_fraction", 0.3)
        params = {
            "dataset": "slice", "split": "by_network", "hardware": [HARDWARE], "features": ["trace"],
            "models": {"trace": ["random"]}, "seeds": "0",
        }  # fmt: skip
        (root / "params.yaml").write_text(yaml.safe_dump(params))
        self._start(root, sys.executable, "-m", "tencost.cli", "params")
        self._start(root, sys.executable, "-m", "dvc", "init", "--no-scm")

    def command(self, root: Path) -> None:
        self._start(root, sys.executable, "-m", "tencost.cli", "pipeline", "splits")

    @staticmethod
    def _start(root: Path, *words: str) -> None:
        quiet = {
            "DVC_NO_ANALYTICS": "1",
            "XDG_CACHE_HOME": str(Path.home() / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            words, cwd=root, env={**os.environ, **quiet, "PATH": path}, check=False
        )
        if done.returncode < 0:
            os.kill(os.getpid(), -done.returncode)
        raise_for = done.returncode
        if raise_for:
            raise SystemExit(raise_for)

    def state(self, root: Path) -> Any:
        import yaml

        lock = root / "dvc.lock"
        stages = yaml.safe_load(lock.read_text())["stages"] if lock.exists() else {}
        found = {
            f"{name} {out['path']}": out["md5"]
            for name, stage in stages.items()
            for out in stage["outs"]
        }
        return {
            **found,
            "files": shown(tree(root / "data" / "splits"))
            if (root / "data" / "splits").exists()
            else {},
        }

    def between(self, root: Path) -> Any:
        return None  # a dvc.lock cut off is `tencost pipeline`'s to mend

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        def of(state: dict[str, Any]) -> dict[str, Any]:
            return {name: one for name, one in state.items() if "records" not in name}

        return Scenario.compare(self, of(clean), None, of(after))


class Pipeline(Kills):
    """The part `kill-pipeline`."""

    name = "kill-pipeline"
    scenarios = (DvcPipeline,)
