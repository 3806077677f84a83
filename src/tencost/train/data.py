"""What is known of a dataset: records, split, tasks and features. Each is read once and handed on.

Training, evaluation and registration make one :class:`Data` from their configuration and pass it to what they call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import polars as pl

from tencost.config import Config, HardwareConfig
from tencost.errors import ConfigError
from tencost.features.table import FeatureTable, load_features
from tencost.splits.table import load_split
from tencost.store.tables import load_records, load_tasks
from tencost.train.provenance import content_hash
from tencost.train.ranker import Samples
from tencost.train.samples import join_samples

COLUMNS = ("record_id", "program_id", "workload_id", "hardware", "status")


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
        """All records: COLUMNS, `latency_s` and `spread`.

        The former is the median in seconds, null for a failure; the latter the standard deviation of the logarithm of
        the record's own times, null where there are fewer than two.
        """
        read = load_records(self.records_folder, columns=(*COLUMNS, "run_secs"))
        logs = pl.col("run_secs").list.eval(pl.element().log())
        return read.with_columns(spread=logs.list.std()).drop("run_secs")

    @cached_property
    def tasks(self) -> pl.DataFrame:
        """All tasks of every network."""
        return load_tasks(self.records_folder)

    @cached_property
    def split(self) -> pl.DataFrame:
        """The side of each record."""
        cfg = self.cfg
        return load_split(self.root / cfg.paths.splits / cfg.dataset.name / cfg.split_name)

    @cached_property
    def split_hash(self) -> str:
        """The content hash of the split, as bundles trained on it carry it."""
        return content_hash(self.split.select("record_id", "part"))

    def features(self, name: str) -> FeatureTable:
        """Return a feature set of the dataset.

        Raises:
            FeatureError: it is not built, or not of this tencost.
        """
        if name not in self._features:
            folder = self.root / self.cfg.paths.features / self.cfg.dataset.name / name
            self._features[name] = load_features(folder)
        return self._features[name]

    def dataset_hash(self, hardware: Sequence[str]) -> str:
        """Return the content hash of the records of some hardware."""
        used = self.records.filter(pl.col("hardware").is_in(list(hardware)))
        return content_hash(used.select("record_id", "status", "latency_s"))

    def samples(self, hardware: Sequence[str], part: str) -> Samples:
        """Return one part of the split for some hardware, with the features that `cfg` names.

        Groups are (workload, hardware), so several hardware never share a label's scale.

        Raises:
            TrainError: the part has no record of these hardware that can be labelled.
        """
        cfg = self.cfg
        devices = None
        if cfg.features.device_columns:
            devices = {name: device_columns(self.root, cfg, name) for name in hardware}
        table = self.features(cfg.features.name)
        return join_samples(self.records, self.split, table, hardware, part, devices)


def device_columns(root: Path, cfg: Config, hardware: str) -> dict[str, float]:
    """Return the device columns of the chosen hardware, or of any other from conf/hardware/.

    Raises:
        ConfigError: conf/hardware/ does not describe it.
    """
    if hardware == cfg.hardware.name:
        return cfg.hardware.device_columns()
    from omegaconf import OmegaConf

    path = root / "conf" / "hardware" / f"{hardware}.yaml"
    if not path.is_file():
        raise ConfigError(
            f"features.device_columns needs a description of hardware {hardware!r}: expected "
            f"{path}, found none. "
            "See docs/how-to/adding-hardware.md."
        )
    described = OmegaConf.to_object(
        OmegaConf.merge(OmegaConf.structured(HardwareConfig), OmegaConf.load(path))
    )
    assert isinstance(described, HardwareConfig)
    return described.device_columns()
