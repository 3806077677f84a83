"""Programs that may be labelled on new hardware: what the model says of each, and times where records have them.

Workloads of the split's test part are never among them: what is held out stays a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from tencost.config import HardwareConfig
from tencost.errors import FeatureError, TrainError
from tencost.features.device import attributes
from tencost.features.rows.ragged import IntArray, Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.models.programs.bundle import Bundle
from tencost.models.programs.families.corrected import spread_within
from tencost.models.programs.ranker import Samples, Scores
from tencost.models.programs.ranker.labels import dense_groups, speed_labels
from tencost.train.data import Data


@dataclass(frozen=True)
class LabelPool:
    """N programs that may be labelled, each with features.

    Attributes:
        program_id, workload_id: of each.
        group: int64 [N], its task.
        features: its rows, as the model reads them on the new hardware.
        score: float64 [N], the model's raw score, higher is predicted faster.
        latency_s: float64 [N], seconds; NaN where it failed, or is not known.
        spread: of the scores within tasks.
    """

    program_id: npt.NDArray[np.str_]
    workload_id: npt.NDArray[np.str_]
    group: IntArray
    features: Ragged
    score: Scores
    latency_s: npt.NDArray[np.float64]
    spread: float

    def __len__(self) -> int:
        return len(self.group)

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return int(self.group.max()) + 1 if len(self) else 0

    def labelled(
        self, chosen: IntArray, latency_s: npt.NDArray[np.float64] | None = None
    ) -> Samples:
        """Return chosen programs with labels; tasks whose chosen programs all failed are left out.

        Args:
            chosen: int64 [n], positions in the pool.
            latency_s: float64 [n], seconds, NaN for a failure; None takes the pool's.
        """
        seconds = self.latency_s[chosen] if latency_s is None else latency_s
        _, group = np.unique(self.group[chosen], return_inverse=True)
        label, keep = speed_labels(seconds, group.astype(np.int64))
        used = np.flatnonzero(keep)
        _, dense = np.unique(group[used], return_inverse=True)
        return Samples(
            self.features.take(chosen[used]),
            label[used],
            dense.astype(np.int64),
            seconds[used],
            self.program_id[chosen[used]],
        )


def read_pool(
    data: Data,
    bundle: Bundle,
    hardware: HardwareConfig,
    *,
    recorded: bool,
) -> LabelPool:
    """Join what a dataset has with what a model says.

    Args:
        data: the dataset.
        bundle: the model that is adapted.
        hardware: the new hardware.
        recorded: only programs that the dataset has records of on that hardware, with their times.

    Raises:
        FeatureError: the model's features are not built for the dataset, or are others.
        TrainError: nothing may be labelled.
    """
    split, records = data.split, data.judged_records
    test = records.join(split.filter(part="test").select("record_id"), on="record_id", how="semi")
    open_ = records.join(test.select("workload_id").unique(), on="workload_id", how="anti")
    if recorded:
        open_ = open_.filter(pl.col("hardware") == hardware.name)
    open_ = open_.sort("workload_id", "program_id", "hardware").unique(
        "program_id", keep="first", maintain_order=True
    )
    rows = program_features(data, bundle, hardware, open_["program_id"].to_list())
    used = np.flatnonzero(rows.lengths)
    if not len(used):
        of = f" measured on {hardware.name}" if recorded else ""
        raise TrainError(
            f"expected programs{of} with features {bundle.info.feature_spec.name} in {data.cfg.dataset.name}, outside "
            f"the test part of split {data.cfg.split_name}, found none. Name another dataset=..., or split=..."
        )
    chosen, rows = open_[used], rows.take(used)
    workloads = chosen["workload_id"].to_numpy()
    group = dense_groups(workloads)
    score = bundle.ranker.predict(rows)
    measured = pl.when((pl.col("status") == "ok") & (pl.col("hardware") == hardware.name))
    latency = chosen.select(measured.then(pl.col("latency_s")).fill_null(float("nan"))).to_series()
    return LabelPool(
        np.asarray(chosen["program_id"].to_list(), dtype=np.str_),
        np.asarray(workloads, dtype=np.str_),
        group,
        rows,
        score,
        latency.to_numpy(),
        spread_within(score, group),
    )


def program_features(
    data: Data, bundle: Bundle, hardware: HardwareConfig, program_ids: Sequence[str]
) -> Ragged:
    """Return programs as a bundle reads them on a hardware: the dataset's rows, device columns appended.

    Raises:
        FeatureError: they are not built, or others than the bundle was trained on.
    """
    info, cfg = bundle.info, data.cfg
    spec = info.feature_spec
    try:
        data.features(spec.name, spec.kind)
    except FeatureError as error:
        raise FeatureError(
            f"the model reads features {spec.name}, which are not built for dataset {cfg.dataset.name}: {error} "
            f"dataset={cfg.dataset.name} features={spec.kind if spec.device_columns else spec.name}"
        ) from error
    return data.rows(spec, program_ids, device_values(spec, hardware), f"{info.family} model")


def device_values(spec: FeatureSpec, hardware: HardwareConfig) -> dict[str, float]:
    """Return what the spec's device columns are made of on a hardware; empty where it has none."""
    if not spec.device_columns:
        return {}
    numbers = attributes(hardware)
    constant = all(name in numbers for name in spec.device_columns)
    return {name: numbers[name] for name in spec.device_columns} if constant else numbers
