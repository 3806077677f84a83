"""A candidate that TVM cannot lower, one without a buffer store, and numbers that are not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tencost.config import FeaturesConfig
from tencost.features.extractor import make_extractor, spec_for
from tencost.features.kinds import per_store

pytestmark = pytest.mark.tvm


def scheduled(tile: int = 8) -> Any:
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule

    a = te.placeholder((64,), name="A", dtype="float32")
    b = te.compute((64,), lambda i: a[i] + 1.0, name="T_add")
    schedule = Schedule(tvm.IRModule({"main": te.create_prim_func([a, b])}), debug_mask=0)
    (loop,) = schedule.get_loops(schedule.get_sblock("T_add"))
    schedule.split(loop, [64 // tile, tile])
    return schedule


def candidate_of(schedule: Any) -> Any:
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

    return MeasureCandidate(schedule, [])


def from_script(source: str) -> Any:
    import tvm
    from tvm.s_tir import Schedule

    return Schedule(tvm.IRModule({"main": tvm.script.from_source(source)}), debug_mask=0)


@pytest.fixture(scope="module")
def unlowerable() -> Any:
    """A thread tag that TVM does not know: PerStoreFeature raises for the whole batch."""
    return from_script("""
# from tvm.script import tirx as T
@T.prim_func(s_tir=True)
def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for i in T.thread_binding(64, thread="strange.x"):
        with T.sblock("T_add"):
            v = T.axis.spatial(64, i)
            B[v] = A[v] + T.float32(1)
""")


@pytest.fixture(scope="module")
def storeless() -> Any:
    """Only constants are stored, which TVM does not count as a store: an array of no rows."""
    return from_script("""
# from tvm.script import tirx as T
@T.prim_func(s_tir=True)
def main(B: T.Buffer((64,), "float32")):
    for i in range(64):
        with T.sblock("T_full"):
            v = T.axis.spatial(64, i)
            B[v] = T.float32(1)
""")


def context_of(schedule: Any) -> Any:
    from tvm.s_tir.meta_schedule import TuneContext
    from tvm.target import Target

    from tencost.programs.trace.intrinsics import register_cpu_intrinsics

    register_cpu_intrinsics()  # before the first TuneContext, which would take 17 s or more
    return TuneContext(schedule.mod, target=Target({"kind": "llvm", "num-cores": 1}), num_threads=1)


def test_broken_candidates_have_no_rows_and_stop_nothing(unlowerable: Any, storeless: Any) -> None:
    good = [candidate_of(scheduled(tile)) for tile in (4, 8, 16)]
    context = context_of(scheduled())
    alone = per_store.extract(context, good)
    mixed = [good[0], candidate_of(unlowerable), good[1], candidate_of(storeless), good[2]]
    found = per_store.extract(context, mixed)
    assert [rows is None for rows in found] == [False, True, False, True, False]
    for one, other in zip(found[::2], alone, strict=True):
        np.testing.assert_array_equal(one, other)

    extractor = make_extractor(spec_for(FeaturesConfig(name="per_store", kind="per_store")))
    assert (extractor.extract(context, mixed).lengths > 0).tolist() == [
        True,
        False,
        True,
        False,
        True,
    ]
    assert extractor.extract(context, [mixed[1]]).values.shape == (0, 172)
    assert len(extractor.extract(context, [])) == 0


def test_numbers_that_are_not_finite_are_no_features(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.ones((2, 172))
    rows[1, 150] = np.inf

    class Stub:
        def extract_from(self, context: Any, candidates: list[Any]) -> list[Any]:
            return [type("Array", (), {"numpy": staticmethod(lambda: rows)}) for _ in candidates]

    monkeypatch.setattr(per_store, "_extractor", Stub)
    assert per_store.extract(None, ["candidate"]) == [None]
