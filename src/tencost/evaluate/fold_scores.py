"""What a model's folds say of it: `train`'s scores of the networks left out against what was measured of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from tencost.evaluate.choosing import METRICS
from tencost.evaluate.scoring import score_records
from tencost.evaluate.truth import Truth, build_truth, join_truths
from tencost.train.data import Data
from tencost.train.data.folds import FILE
from tencost.train.data.run_file import RunFile


class Folds:
    """What was measured of the networks left out; a fold is read once for all candidates."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._truths: dict[str, Truth] = {}

    def figures(self, folder: Path) -> dict[str, dict[str, float]]:
        """Return METRICS of a trained model by fold; empty where it was not tried.

        Args:
            folder: its bundles, one a seed, and what `train` wrote beside them.
        """
        if not (folder / FILE).is_file():
            return {}
        scores = pl.read_parquet(folder / FILE)
        figures = {}
        for fold, networks in enumerate(RunFile.read(folder).folds):
            of_fold = scores.filter(pl.col("fold") == fold)
            if of_fold.is_empty():
                continue
            truth = self.truth(networks, of_fold["record_id"].to_list())
            by_record = dict(of_fold.select("record_id", "raw").iter_rows())
            raw = np.array([by_record.get(key) for key in truth.record_id.tolist()], np.float64)
            overall = score_records(truth, raw, raw).overall
            figures[", ".join(networks)] = {name: float(getattr(overall, name)) for name in METRICS}
        return figures

    def truth(self, networks: Sequence[str], record_ids: Sequence[str]) -> Truth:
        """Return what was measured of a fold.

        Args:
            networks: the fold's.
            record_ids: of its programs on the model's hardware.
        """
        name = ", ".join(networks)
        if name not in self._truths:
            records = self._data.judged_records
            split = pl.DataFrame({"record_id": record_ids}).with_columns(part=pl.lit("test"))
            truths = {}
            for hardware in self._data.hardware():
                measured = records.filter(pl.col("hardware") == hardware)
                if measured.join(split, on="record_id", how="semi").is_empty():
                    continue  # the networks of this fold were not measured on it
                truths[hardware] = build_truth(
                    measured,
                    split,
                    self._data.tasks,
                    hardware,
                    "test",
                    networks,
                    self._data.rule_times,
                )
            several = bool(self._data.cfg.hardware.members)
            self._truths[name] = join_truths(truths) if several else next(iter(truths.values()))
        return self._truths[name]
