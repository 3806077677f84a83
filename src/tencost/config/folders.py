"""Where the stages about whole networks read and write."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tencost.config import Config
from tencost.config.graph_outputs import graph_paths, report_old_outputs
from tencost.config.schema import PathsConfig


@dataclass(frozen=True)
class Folders:
    """The folders of a configuration."""

    cfg: Config
    root: Path

    @cached_property
    def _paths(self) -> PathsConfig:
        report_old_outputs(self.root)
        return graph_paths(self.cfg.paths, self.root)

    @property
    def raw(self) -> Path:
        """The raw dataset, as `tencost fetch` leaves it."""
        folder = self.root / self._paths.raw / self.cfg.dataset.name
        fetched_before = self.root / self.cfg.paths.raw / self.cfg.dataset.name
        return fetched_before if fetched_before.is_dir() and not folder.is_dir() else folder

    @property
    def graphs(self) -> Path:
        """Graphs and latencies as tables."""
        return self.root / self._paths.graphs / self.cfg.dataset.name

    @property
    def split(self) -> Path:
        """Which graph is on which side."""
        name = f"{self.cfg.dataset.name}-splits"
        return self.root / self._paths.graphs / name / self.cfg.graph_split_name

    @property
    def models(self) -> Path:
        """All models of the dataset, a folder each."""
        return self.root / self._paths.models / self.cfg.dataset.name / self.cfg.graph_split_name

    @property
    def model(self) -> Path:
        """The chosen model's bundles, one a seed."""
        return self.models / self.cfg.graph_model_name

    @property
    def search(self) -> Path:
        """The search for settings of the chosen model."""
        searches = self.root / self._paths.searches / self.cfg.dataset.name
        return searches / self.cfg.graph_split_name / self.cfg.graph_model_name

    @property
    def reports(self) -> Path:
        """What was evaluated."""
        name = f"{self.cfg.dataset.name}-{self.cfg.graph_split_name}"
        return self.root / self._paths.reports / name

    @property
    def metrics(self) -> Path:
        """The metrics of all devices, for `dvc metrics`."""
        return self.reports / "metrics.json"

    def report(self, hardware: str) -> Path:
        """Leaderboard, predictions and plots of a device."""
        return self.reports / "devices" / hardware
