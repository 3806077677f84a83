"""A round's time, with TVM: real candidates from a small dataset, and why there may be none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl
import pytest

from tencost.config import FeaturesConfig
from tencost.evaluate.truth import Truth, TruthTask
from tencost.features.extractor import spec_for
from tencost.models.programs.bundle import Bundle, load_bundle
from tencost.programs.trace.instructions import trace_values
from tencost.register.round_time import CANDIDATES, round_times
from tencost.store.record_store import RecordStore
from tencost.store.schema import NetworkWeight, Record, Source
from tencost.store.status import Status

pytestmark = pytest.mark.tvm
NUM = 12


@pytest.fixture
def dataset(tmp_path: Path, matmul: Any, candidates: list[Any], target: dict[str, Any]) -> Path:
    """A project's root with records and the module of one workload."""
    from tvm.ir import save_json

    folder = tmp_path / "root" / "data" / "records" / "toy"
    folder.mkdir(parents=True)
    records = [
        Record(
            record_id=f"r{index:02d}",
            program_id=f"p{index:02d}",
            workload_id="w",
            task_name="matmul",
            networks=(NetworkWeight("net", 1),),
            hardware="toy-1c",
            target=target,
            program_format="metaschedule_trace",
            program=orjson.dumps(trace_values(candidate.sch.trace)).decode(),
            run_secs=(1e-3,),
            status=Status.ok,
            error="",
            source=Source("toy", "toy.json", index + 1),
        )
        for index, candidate in enumerate(candidates[:NUM])
    ]
    RecordStore(str(folder / "store")).write(records)
    pl.DataFrame({"workload_id": ["w"], "mod_json": [str(save_json(matmul))]}).write_parquet(
        folder / "workloads.parquet"
    )
    return tmp_path / "root"


@pytest.fixture
def truth() -> Truth:
    names = [f"{index:02d}" for index in range(NUM)]
    latency = np.full(NUM, 1e-3)
    latency[0] = np.nan  # a program that failed is not in the sample
    return Truth(
        np.array([f"r{name}" for name in names]),
        np.array([f"p{name}" for name in names]),
        latency,
        (TruthTask("net", "w", 1.0, np.arange(NUM)),),
        {},
    )


@pytest.fixture
def bundle_of(make_bundle: Callable[..., Path]) -> Callable[[str], Bundle]:
    def make(kind: str) -> Bundle:
        spec = spec_for(FeaturesConfig(name=kind, kind=kind))
        return load_bundle(make_bundle(f"bundle-{kind}", feature_spec=spec))

    return make


def test_real_candidates_are_timed(
    dataset: Path, truth: Truth, toy_config: Any, bundle_of: Callable[[str], Bundle]
) -> None:
    stores, tiles = bundle_of("per_store"), bundle_of("tiles")
    times, why = round_times(toy_config, dataset, truth, [stores, tiles, stores])
    assert why == ""
    assert times is not None
    assert [one.sampled for one in times] == [NUM - 1] * 3
    assert all(one.seconds > one.score_s > 0 for one in times)
    assert (
        times[0].extract_s > times[1].extract_s
    )  # tiles are read off the trace, nothing is lowered
    assert times[0].extract_s == times[2].extract_s  # the same features take the same time
    assert CANDIDATES == 2560


def test_why_it_cannot_be_measured(
    dataset: Path, truth: Truth, toy_config: Any, bundle_of: Callable[[str], Bundle],
    make_bundle: Callable[..., Path],
) -> None:  # fmt: skip
    tiles = bundle_of("tiles")
    workloads = dataset / "data" / "records" / "toy" / "workloads.parquet"
    frame = pl.read_parquet(workloads)
    frame.with_columns(mod_json=pl.lit("{}")).write_parquet(workloads)
    assert "cannot read a workload" in round_times(toy_config, dataset, truth, [tiles])[1]
    frame.with_columns(mod_json=pl.lit(None, pl.String)).write_parquet(workloads)
    assert "expected modules" in round_times(toy_config, dataset, truth, [tiles])[1]
    workloads.unlink()
    times, why = round_times(toy_config, dataset, truth, [tiles])
    assert times is None
    assert "expected" in why
    assert "workloads.parquet" in why
