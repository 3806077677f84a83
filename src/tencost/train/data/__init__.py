"""What is known of a dataset: records, split, tasks and features. Each is read once and handed on.

Training, evaluation and registration make one :class:`Data` from their configuration and pass it to what they call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import polars as pl

from tencost.config import Config, HardwareConfig
from tencost.errors import ConfigError, FeatureError, SplitError
from tencost.features.device import attributes, device_names, device_of_each, with_device
from tencost.features.rows.kind import Floats
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.features.table import FILE, FeatureTable, load_features
from tencost.models.programs.ranker import Samples
from tencost.splits.table import load_split
from tencost.store.reading import of_preferred_generator
from tencost.store.tables import load_records, load_rule_times, load_tasks
from tencost.tracking.provenance import content_hash
from tencost.train.data.samples import join_samples, sample_spec

EVERY = "all"
"""In hardware.members: every hardware of the dataset that has the target's kind."""
COLUMNS = ("record_id", "program_id", "workload_id", "hardware", "generator", "status")


class Data:
    """A dataset as `cfg` names it; a table is read when it is first asked for."""

    def __init__(self, cfg: Config, root: Path) -> None:
        self.cfg = cfg
        self.root = root
        self._features: dict[str, FeatureTable] = {}

    @property
    def records_folder(self) -> Path:
        return self.root / self.cfg.paths.records / self.cfg.dataset.name

    @cached_property
    def records(self) -> pl.DataFrame:
        """All records, of every code generator: COLUMNS, `latency_s` and `spread`.

        The former is the median in seconds, null for a failure; the latter the standard deviation of the logarithm of
        the record's own times, null where there are fewer than two.
        """
        read = load_records(self.records_folder, columns=(*COLUMNS, "run_secs"))
        logs = pl.col("run_secs").list.eval(pl.element().log())
        return read.with_columns(spread=logs.list.std()).drop("run_secs")

    @cached_property
    def judged_records(self) -> pl.DataFrame:
        """The records that models are judged by: of each workload on a hardware those of one code generator.

        Of two generators the preferred one's (store/generator.py): a tuner's candidates are of one generator, too.
        """
        return of_preferred_generator(self.records)

    @cached_property
    def tasks(self) -> pl.DataFrame:
        """All tasks of every network."""
        return load_tasks(self.records_folder)

    @cached_property
    def rule_times(self) -> pl.DataFrame:
        """Seconds of tasks by rule: hardware, workload_id, latency_s."""
        return load_rule_times(self.records_folder)

    @cached_property
    def split(self) -> pl.DataFrame:
        """The side of each record.

        Raises:
            SplitError: there is none, or it is of other records.
        """
        cfg = self.cfg
        split = load_split(self.root / cfg.paths.splits / cfg.dataset.name / cfg.split_name)
        strange = split.filter(~pl.col("record_id").is_in(self.records["record_id"].implode()))
        if not strange.is_empty():
            raise SplitError(
                f"expected the split {cfg.split_name} to be of the records in {self.records_folder}, found "
                f"{strange.height} of its {split.height} record ids that are not there (ids tell the code generator "
                f"since schema version 4). Build it again: tencost splits "
                f"dataset={cfg.dataset.name} split={cfg.split_name}"
            )
        return split

    @cached_property
    def split_hash(self) -> str:
        """The content hash of the split, as bundles trained on it carry it."""
        return content_hash(self.split.select("record_id", "part"))

    def features(self, name: str, kind: str = "") -> FeatureTable:
        """Return a feature set of the dataset.

        Args:
            name: of the set.
            kind: of its rows; where the set has no table of its own (device columns are stored nowhere), the rows of
                the set that is named as its kind are its rows.

        Raises:
            FeatureError: it is not built, or not of this tencost.
        """
        if name not in self._features:
            folder = self.root / self.cfg.paths.features / self.cfg.dataset.name
            stored = name if (folder / name / FILE).is_file() or not kind else kind
            table = load_features(folder / stored)
            self._features[name] = replace(table, spec=replace(table.spec, name=name))
        return self._features[name]

    def hardware(self) -> tuple[str, ...]:
        """Return the hardware that the model is for: cfg.hardware, or all that it stands for.

        Raises:
            ConfigError: the dataset has no records of a hardware, or conf/hardware/ no description of it.
        """
        chosen = self.cfg.hardware
        if not chosen.members:
            return (chosen.name,)
        measured = sorted(self.records["hardware"].unique().to_list())
        absent = sorted(set(chosen.members) - set(measured) - {EVERY})
        if absent:
            raise ConfigError(
                f"hardware.members must name hardware of the dataset {self.cfg.dataset.name} ({', '.join(measured)}) "
                f"or be [{EVERY}], found {', '.join(absent)}"
            )
        if EVERY not in chosen.members:
            return tuple(sorted(chosen.members))
        kind = chosen.target.get("kind")
        members = [name for name in measured if self.described(name).target.get("kind") == kind]
        if not members:
            raise ConfigError(
                f"hardware={chosen.name}: expected hardware of target kind {kind} in the dataset "
                f"{self.cfg.dataset.name}, found none among {', '.join(measured)}"
            )
        return tuple(members)

    def described(self, hardware: str) -> HardwareConfig:
        """Return the description of a hardware: the chosen one, or from conf/hardware/.

        Raises:
            ConfigError: there is none.
        """
        return describe(self.root, self.cfg, hardware)

    def dataset_hash(self, hardware: Sequence[str]) -> str:
        """Return the content hash of the records of some hardware."""
        used = self.records.filter(pl.col("hardware").is_in(list(hardware)))
        return content_hash(used.select("record_id", "status", "latency_s"))

    def samples(self, hardware: Sequence[str], part: str) -> Samples:
        """Return one part of the split for some hardware, with the features that `cfg` names.

        Groups are (workload, hardware, generator): neither hardware nor code generators share a label's scale.

        Raises:
            TrainError: the part has no record of these hardware that can be labelled.
        """
        features = self.cfg.features
        names = device_names(features)
        devices = {name: attributes(self.described(name)) for name in hardware} if names else None
        table = self.features(features.name, features.kind)
        return join_samples(self.records, self.split, table, hardware, part, devices, names)

    def rows(
        self,
        spec: FeatureSpec,
        program_id: Sequence[str],
        device: Mapping[str, float | Floats],
        model: str = "model",
    ) -> Ragged:
        """Return programs as a model of a feature set reads them, device columns included.

        Args:
            spec: of the features that the model was trained on.
            program_id: the N programs.
            device: what its device columns are made of, one value for all programs or float64 [N].
            model: what messages call it.

        Raises:
            FeatureError: the features at hand are others.
        """
        table = self.features(spec.name, spec.kind)
        if sample_spec(table.spec, spec.device_columns).digest != spec.digest:
            raise FeatureError(
                f"the features {spec.name} of {self.cfg.dataset.name} are not those that the {model} was trained on "
                "(other columns or options). Train it again: dvc repro, or tencost train"
            )
        return with_device(table.select(program_id), spec, device)

    def devices(self, record_id: Sequence[str]) -> dict[str, Floats]:
        """Return the attributes of the hardware of each record: float64 [N] each.

        Raises:
            ConfigError: conf/hardware/ does not describe a hardware.
        """
        ids = pl.DataFrame({"record_id": pl.Series(record_id, dtype=pl.String)})
        rows = ids.join(self.records, on="record_id", how="left", maintain_order="left")
        hardware = rows["hardware"].to_list()
        return device_of_each(
            hardware,
            {name: attributes(self.described(name)) for name in sorted(set(hardware))},
        )


def describe(root: Path, cfg: Config, hardware: str) -> HardwareConfig:
    """Return the description of the chosen hardware, or of any other from conf/hardware/.

    Raises:
        ConfigError: conf/hardware/ does not describe it.
    """
    if hardware == cfg.hardware.name:
        return cfg.hardware
    from omegaconf import OmegaConf

    path = root / "conf" / "hardware" / f"{hardware}.yaml"
    if not path.is_file():
        raise ConfigError(
            f"columns of a device need a description of hardware {hardware!r}: expected "
            f"{path}, found none. "
            "See docs/how-to/adding-hardware.md."
        )
    described = OmegaConf.to_object(
        OmegaConf.merge(OmegaConf.structured(HardwareConfig), OmegaConf.load(path))
    )
    assert isinstance(described, HardwareConfig)
    return described
