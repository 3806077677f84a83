"""Lorien's containers and queries: what is documented, and each upstream bug with what happens here instead."""

from __future__ import annotations

import gzip
import json
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tencost.compat.lorien.api import (
    AutoSchedulerRecords,
    AutoSchedulerTuneResult,
    AutoTVMRecords,
    AutoTVMTuneResult,
    Layout,
    MetaScheduleRecords,
    MetaScheduleTuneResult,
    Records,
    RecordView,
    TuneResult,
    alter_key,
    autotvm_workload_key,
    commit,
    infer_layout,
    query,
    target_key,
)
from tencost.errors import RecordError
from tencost.records.formats.metaschedule import RECORD_FILE, WORKLOAD_FILE, encode_module
from tencost.records.reading.protocol import About, Reject
from tencost.store.record_store import RecordStore
from tencost.store.schema import SCHEMA
from tencost.store.status import Status

LOGS = Path(__file__).resolve().parents[2] / "../shared/data"
LLVM = "llvm -keys=cpu -mcpu=core-avx2"
DENSE = [["TENSOR", [1, 64], "float32"], ["TENSOR", [8, 64], "float32"], None, "float32"]
CONV = [
    ["TENSOR", [1, 64, 56, 56], "float32"], ["TENSOR", [128, 64, 3, 3], "float32"], [1, 1], [1, 1, 1, 1], [1, 1],
    "NCHW", "NCHW", "float32",
]  # fmt: skip
MATMUL = '["matmul", 64, 64, 64]'
MODULE = '{"root_index": 1, "nodes": [{"type": "None"}, {"type": "int", "data": %d}]}'


def autotvm_line(
    number: int,
    cost: float,
    *,
    target: str = LLVM,
    task: str = "dense_nopack.x86",
    args: list[Any] = DENSE,
    error: int = 0,
    entity: list[Any] | None = None,
    timestamp: float = 1.6e9,
) -> str:
    knobs = [["tile_k", "sp", [-1, number + 1]]] if entity is None else entity
    line = {
        "input": [target, task, args, {}],
        "config": {"index": number, "code_hash": None, "entity": knobs},
        "result": [[1e9 if error else cost], error, 0.5, timestamp],
        "version": 0.2,
        "tvm_version": "0.8.dev0",
    }
    return json.dumps(line)


DENSE_KEY = autotvm_workload_key("dense_nopack.x86", DENSE)


def tiled(number: int, cost: float, tile_ic: int, tile_oc: int, **more: Any) -> str:
    entity = [
        ["tile_ic", "sp", [-1, tile_ic]],
        ["tile_oc", "sp", [-1, tile_oc]],
        ["tile_ow", "sp", [-1, number + 1]],
        ["unroll_kw", "ot", False],
    ]
    return autotvm_line(number, cost, task="conv2d_NCHWc.x86", args=CONV, entity=entity, **more)


def ansor_line(number: int, cost: float, *, target: str = LLVM, error: int = 0) -> str:
    task = [MATMUL, target, [4, 64, 64, 0, 0, 0, 0, 0], "", 1, []]
    steps = [["SP", 2, 0, 64, [number + 1], 1]]
    outcome = [[1e10 if error else cost], error, 1.25, 1600000000]
    return json.dumps({"i": [task, [[], steps]], "r": outcome, "v": "v0.6"})


def metaschedule_line(number: int, cost: float, *, target: str = LLVM, error: int = 0) -> str:
    kind, *options = target.split()
    pairs = [option.lstrip("-").split("=") for option in options]
    parsed = {"kind": kind} | {
        name: text.split(",") if name == "keys" else text for name, text in pairs
    }
    trace = [[["SampleCategorical", [], [[1, 2]], ["v0"]]], [[0, number]]]
    return json.dumps([0, [trace, [1e10] if error else [cost], parsed, []]])


def line_log(folder: Path, *text: str) -> Path:
    path = folder / "tune.log"
    path.write_text("".join(f"{line}\n" for line in text))
    return path


def metaschedule_log(folder: Path, *text: str) -> Path:
    workloads = [["123", encode_module(MODULE % size)] for size in (64, 128)]
    (folder / WORKLOAD_FILE).write_text("".join(json.dumps(item) + "\n" for item in workloads))
    (folder / RECORD_FILE).write_text("".join(f"{line}\n" for line in text))
    return folder


DIALECTS = {
    "autotvm": (AutoTVMTuneResult, autotvm_line, line_log),
    "auto_scheduler": (AutoSchedulerTuneResult, ansor_line, line_log),
    "metaschedule": (MetaScheduleTuneResult, metaschedule_line, metaschedule_log),
}


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> tuple[type[TuneResult], Any, Any]:
    return DIALECTS[request.param]


SAME_KEYS = autotvm_line(0, 1e-3), autotvm_line(0, 2e-3, args=[*DENSE[:2], "None", "float32"])
"""Two workloads whose keys are the same text."""


def costs(records: Records, nbest: int = -1) -> list[float | None]:
    return [record.mean_s for record in records.to_list(nbest)]


def view(number: int, cost: float, **more: Any) -> RecordView:
    return AutoTVMRecords.decode(autotvm_line(number, cost, **more))


def filled(*records: RecordView, **more: Any) -> AutoTVMRecords:
    container = AutoTVMRecords(LLVM, **more)
    for record in records:
        assert container.push(record)
    return container


def read(folder: Path, *text: str, nbest: int = -1, **more: Any) -> list[Records]:
    """Return the containers of a log of AutoTVM lines."""
    return AutoTVMTuneResult.create_records_by_workloads(line_log(folder, *text), nbest, **more)


class TestContainer:
    def test_the_best_come_first_and_the_best_stay(self) -> None:
        """Upstream: worst first, and nbest keeps the worst."""
        records = filled(*(view(at, cost) for at, cost in enumerate([3e-3, 1e-3, 4e-3, 2e-3])))
        assert costs(records) == [1e-3, 2e-3, 3e-3, 4e-3]
        assert costs(records, 2) == [1e-3, 2e-3]
        assert costs(records, 0) == []
        assert costs(records, 9) == costs(records) == [record.mean_s for record in records]
        assert len(records) == 4

    def test_auto_scheduler_is_ordered_alike(self) -> None:
        records = AutoSchedulerRecords(LLVM)
        for number, cost in enumerate([3e-3, 1e-3, 2e-3]):
            records.push(AutoSchedulerRecords.decode(ansor_line(number, cost)))
        assert costs(records, 2) == [1e-3, 2e-3]

    def test_peak_is_the_best_and_pop_takes_the_worst(self) -> None:
        """Upstream: peak gives the worst, and AutoTVM has no pop."""
        records = filled(*(view(at, cost) for at, cost in enumerate([2e-3, 1e-3, 3e-3])))
        assert records.peak().mean_s == 1e-3
        assert records.bottom().mean_s == 3e-3
        assert records.pop().mean_s == 3e-3
        assert records.pop().mean_s == 2e-3
        assert records.peak() == records.pop()
        assert len(records) == 0

    @pytest.mark.parametrize("ask", ["peak", "pop", "bottom", "gen_task_item"])
    def test_an_empty_container_has_none_to_show(self, ask: str) -> None:
        """Upstream: a bare assertion."""
        with pytest.raises(RecordError, match=r"expected a record in AutoTVMRecords.*found none"):
            getattr(AutoTVMRecords(LLVM, "dense"), ask)()

    def test_equal_records_are_never_compared(self) -> None:
        """Upstream: equal cost and time stamp compares the records, a TypeError. Here the first pushed stays first."""
        pushed = [view(number, 1e-3) for number in range(5)]
        records = filled(*pushed)
        assert records.to_list() == pushed
        assert records.pop() == pushed[-1]

    def test_of_equal_costs_the_latest_comes_first(self) -> None:
        old, new = view(1, 1e-3, timestamp=1e9), view(2, 1e-3, timestamp=2e9)
        silent = replace(view(3, 1e-3), timestamp=None)
        assert filled(silent, old, new).to_list() == [new, old, silent]

    def test_the_mean_counts(self) -> None:
        line = json.loads(autotvm_line(0, 1.0))
        line["result"][0] = [1e-3, 3e-3, 5e-3]
        record = AutoTVMRecords.decode(json.dumps(line))
        assert record.mean_s == pytest.approx(3e-3, rel=1e-15)
        assert AutoTVMRecords.gen_record_item(record) == {"latency": record.mean_s}

    def test_a_failure_has_no_cost_and_is_not_taken(self) -> None:
        failed = view(0, 0.0, error=4)
        assert failed.status is Status.run_error
        assert AutoTVMRecords.gen_record_item(failed) == {"latency": None}
        records = AutoTVMRecords(LLVM)
        assert not records.push(failed)
        assert len(records) == 0

    def test_a_program_is_there_once_with_its_best_measurement(self) -> None:
        """Upstream keeps every repetition, and nbest fills with one schedule."""
        records = filled(view(7, 2e-3))
        assert not records.push(view(7, 3e-3))
        assert records.push(view(7, 1e-3))
        assert costs(records) == [1e-3]

    @pytest.mark.parametrize(
        ("record", "message"),
        [
            (view(0, 1e-3, target="cuda"), r"a record of the target llvm.*found one of cuda"),
            (view(0, 1e-3, task="dense_pack.x86"), "a record of the workload dense_nopack"),
            (
                AutoSchedulerRecords.decode(ansor_line(0, 1e-3)),
                "a record whose program_format is autotvm",
            ),
        ],
    )
    def test_another_target_workload_or_dialect_is_refused(
        self, record: RecordView, message: str
    ) -> None:
        """Upstream: whatever is pushed counts for the target of the container."""
        records = AutoTVMRecords(LLVM, DENSE_KEY)
        with pytest.raises(RecordError, match=f"expected {message}"):
            records.push(record)
        assert records.push(view(0, 1e-3))
        assert AutoTVMRecords(LLVM).push(view(0, 1e-3, task="dense_pack.x86"))

    def test_nbest_below_minus_one_is_refused(self) -> None:
        with pytest.raises(RecordError, match=r"expected nbest as .* found -2"):
            AutoTVMRecords(LLVM).to_list(-2)

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(0, 2))))
    def test_any_order_of_pushes_gives_the_best_of_each_program(
        self, pushes: list[tuple[int, int, int]]
    ) -> None:
        records = AutoTVMRecords(LLVM)
        base = view(0, 1e-3)
        best: dict[str, tuple[float, float]] = {}
        for program, cost, stamp in pushes:
            record = replace(
                base, record_id=f"p{program}", mean_s=float(cost), timestamp=float(stamp)
            )
            records.push(record)
            rank = (float(cost), -float(stamp))
            best[record.record_id] = min(best.get(record.record_id, rank), rank)
            assert records.peak().mean_s == min(best.values())[0]
        ranks = {each.record_id: (each.mean_s, -(each.timestamp or 0)) for each in records}
        assert ranks == best
        assert list(ranks.values()) == sorted(best.values())


class TestKeys:
    @pytest.mark.parametrize(
        ("written", "key", "alternative"),
        [
            ("llvm", "llvm -keys=cpu", "llvm_cpu"),
            ("llvm -mcpu=x -libs=mkl,cblas", "llvm -keys=cpu -mcpu=x", "llvm_cpu"),
            (
                "cuda -thread_warp_size=32 -keys=cuda,gpu -max_num_threads=1024",
                "cuda -keys=cuda,gpu -max_num_threads=1024 -thread_warp_size=32",
                "cuda_cuda-gpu",
            ),
            ("llvm -mattr=+b,+a", "llvm -keys=cpu -mattr=+a,+b", "llvm_cpu"),
            ('{"kind": "cuda", "tag": "", "arch": "sm_70"}', "cuda -keys=cuda,gpu -arch=sm_70", "cuda_cuda-gpu"),
            (
                "opencl -device=intel_graphics",
                "opencl -keys=intel_graphics,opencl,gpu -device=intel_graphics",
                "opencl_intel_graphics-opencl-gpu",
            ),
        ],
    )  # fmt: skip
    def test_a_target_has_one_key(self, written: str, key: str, alternative: str) -> None:
        assert target_key(written) == key
        assert alter_key(written) == alternative
        records = AutoTVMRecords(written)
        assert (records.target_key, records.alter_key) == (key, alternative)

    def test_what_is_no_target_is_refused(self) -> None:
        with pytest.raises(RecordError, match="expected a target as TVM writes it"):
            AutoTVMRecords("-keys=cpu")

    def test_autotvm_workload_key(self) -> None:
        args = [["TENSOR", [1, 9216], "float32"], ["TENSOR", (4096, 9216), "float32"], None, "float32"]  # fmt: skip
        assert (
            autotvm_workload_key("dense_nopack.x86", args)
            == "dense_nopack.x86#_TENSOR__1_9216__float32_#_TENSOR__4096_9216__float32_#None#float32"
        )

    def test_each_dialect_has_its_key(self, tmp_path: Path) -> None:
        assert (
            AutoSchedulerRecords.key_of(AutoSchedulerRecords.decode(ansor_line(0, 1e-3))) == MATMUL
        )
        (records,) = MetaScheduleTuneResult.create_records_by_workloads(
            metaschedule_log(tmp_path, metaschedule_line(0, 1e-3)), 1
        )
        assert records.workload_key == records.peak().workload_id


TILES = [["tile_ic", "sp", [-1, 8]], ["tile_oc", "sp", [-1, 16]]]


class TestLayouts:
    @pytest.mark.parametrize(
        ("task", "args", "layout"),
        [
            ("conv2d_NCHWc.x86", CONV, Layout((1, 8, 56, 56, 8), "NCHW8c", (1, 8, 56, 56, 16), "NCHW16c")),
            (  # the channels are multiplied
                "depthwise_conv2d_NCHWc.x86",
                [["TENSOR", [1, 32, 9, 9], "float32"], ["TENSOR", [32, 2, 3, 3], "float32"], *CONV[2:]],
                Layout((1, 4, 9, 9, 8), "NCHW8c", (1, 4, 9, 9, 16), "NCHW16c"),
            ),
        ],
    )  # fmt: skip
    def test_layouts_of_convolutions(self, task: str, args: list[Any], layout: Layout) -> None:
        assert infer_layout(task, args, TILES, {"kind": "llvm"}) == layout

    @pytest.mark.parametrize(
        ("strides", "padding", "dilation", "size"),
        [
            ([2, 2], [1, 1, 1, 1], [1, 1], 28),
            ([1, 1], [0, 0, 0, 0], [1, 1], 54),
            ([1, 1], [2, 0, 0, 2], [1, 1], 56),
            ([1, 1], [1, 1], [1, 1], 56),
            ([1, 1], 0, [2, 2], 52),
            (2, "SAME", 1, 28),
            (3, "VALID", 1, 18),
        ],
    )
    def test_the_size_of_the_output(
        self, strides: Any, padding: Any, dilation: Any, size: int
    ) -> None:
        args = [*CONV[:2], strides, padding, dilation]
        layout = infer_layout("conv2d_NCHWc.x86", args, TILES, {"kind": "llvm"})
        assert layout is not None
        assert layout.out_shape == (1, 8, size, size, 16)

    @pytest.mark.parametrize(
        ("task", "args", "entities", "target"),
        [
            ("conv2d_nchw.cuda", CONV, None, {"kind": "cuda"}),
            ("dense_pack.x86", DENSE, None, {"kind": "llvm"}),
            ("conv2d_nhwc.x86", CONV, None, {"kind": "llvm"}),
            ("conv2d_NCHWc.x86", CONV, [["tile_co", "sp", [-1, 4]]], {"kind": "llvm"}),
            ("conv2d_NCHWc.x86", CONV, [["tile_ic", "ot", 8], ["tile_oc", "sp", [4]]], {"kind": "llvm"}),
            ("conv2d_NCHWc.x86", CONV, [["tile_ic", "sp", []], ["tile_oc", "sp", [0]]], {"kind": "llvm"}),
            ("conv2d_NCHWc.x86", [], None, {"kind": "llvm"}),
            ("conv2d_NCHWc.x86", [*CONV[:2], [0, 0], 1, 1], None, {"kind": "llvm"}),
            ("conv2d_NCHWc.x86", [*CONV[:2], [1, 1], "ODD", 1], None, {"kind": "llvm"}),
            ("conv2d_NCHWc.x86", [*CONV[:2], None, 1, 1], None, {"kind": "llvm"}),
        ],
    )  # fmt: skip
    def test_without_a_layout(
        self, task: str, args: list[Any], entities: list[Any] | None, target: dict[str, Any]
    ) -> None:
        """Upstream: a conv2d template without tile_ic is a KeyError."""
        assert infer_layout(task, args, TILES if entities is None else entities, target) is None

    def test_intel_graphics_has_layouts(self) -> None:
        target = {"kind": "opencl", "device": "intel_graphics"}
        assert infer_layout("conv2d_NCHWc.intel_graphics", CONV, TILES, target)
        assert infer_layout("conv2d_NCHWc.mali", CONV, TILES, {"kind": "opencl"}) is None

    def test_the_best_of_each_layout_stays(self) -> None:
        records = AutoTVMRecords(LLVM, group_by_layout=True)
        tiles = [(5e-3, 8, 16), (3e-3, 8, 16), (4e-3, 8, 16), (2e-3, 4, 4), (1e-3, 16, 16)]
        for number, tile in enumerate(tiles):
            records.push(AutoTVMRecords.decode(tiled(number, *tile)))
        assert costs(records) == [1e-3, 2e-3, 3e-3]
        sizes = {
            layout.in_layout: len(group) for layout, group in records.layouts().items() if layout
        }
        assert sizes == {"NCHW16c": 1, "NCHW4c": 1, "NCHW8c": 1}
        assert records.pop().mean_s == 3e-3
        assert records.push(AutoTVMRecords.decode(tiled(0, 5e-3, 8, 16)))

    @settings(max_examples=50, deadline=None)
    @given(
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), max_size=30),
        st.integers(0, 5),
    )
    def test_what_nbest_leaves_is_the_best_of_the_best_of_each_layout(
        self, pushes: list[tuple[int, int]], nbest: int
    ) -> None:
        plain = view(0, 1e-3, task="conv2d_NCHWc.x86", args=CONV)
        bases = [AutoTVMRecords.decode(tiled(0, 1e-3, tile, tile)) for tile in (4, 8, 16)]
        records = AutoTVMRecords(LLVM, group_by_layout=True)
        for number, (layout, cost) in enumerate(pushes):
            base = [*bases, plain][layout]
            records.push(replace(base, record_id=f"p{number}", mean_s=float(cost)))
            records.trim(nbest)
        times = [[float(cost) for at, cost in pushes if at == layout] for layout in range(4)]
        best = [min(found) for found in times[:3] if found] + times[3]
        assert costs(records) == sorted(best)[:nbest]

    def test_without_grouping_all_stay(self) -> None:
        records = filled(*(AutoTVMRecords.decode(tiled(at, 1e-3, 8, 16)) for at in range(3)))
        assert {layout: len(group) for layout, group in records.layouts().items()} == {None: 3}

    def test_two_workloads_of_one_layout_do_not_displace_each_other(self) -> None:
        line = json.loads(tiled(0, 2e-3, 8, 16))
        line["input"][2][7] = "float16"
        texts = (tiled(0, 1e-3, 8, 16), json.dumps(line))
        assert len(filled(*map(AutoTVMRecords.decode, texts), group_by_layout=True)) == 2


class TestItems:
    @pytest.mark.parametrize(
        ("task", "library"),
        [("dense_cblas.x86", {"RequiredLib": "cblas"}), ("dense_nopack.x86", {})],
    )
    def test_autotvm_task(self, task: str, library: dict[str, str]) -> None:
        """Only templates that call a library need one."""
        args = [*DENSE[:2], "None", True]
        item = filled(view(0, 1e-3, task=task, args=args)).gen_task_item()
        assert item == {"OpName": task, "TaskName": task, "Args": args, **library}

    def test_auto_scheduler_and_metaschedule_tasks(self, tmp_path: Path) -> None:
        assert AutoSchedulerRecords(LLVM).gen_task_item() == {}
        (records,) = MetaScheduleTuneResult.create_records_by_workloads(
            metaschedule_log(tmp_path, metaschedule_line(0, 1e-3)), 1
        )
        assert records.gen_task_item() == {"TaskName": records.peak().row["task_name"], "Args": []}


class TestCoding:
    @pytest.mark.parametrize("error", [0, 1, 4])
    @pytest.mark.parametrize(
        ("kind", "line"), [(AutoTVMRecords, autotvm_line), (AutoSchedulerRecords, ansor_line)]
    )
    def test_autotvm_and_auto_scheduler_lines_come_back(
        self, kind: type[Records], line: Callable[..., str], error: int
    ) -> None:
        text = line(3, 1.5e-5, error=error)
        record = kind.decode(text)
        assert json.loads(kind.encode(record)) == json.loads(text)
        assert kind.decode(kind.encode(record)) == record
        assert (record.mean_s is None) == bool(error)

    @pytest.mark.parametrize("error", [0, 1])
    def test_metaschedule_record_comes_back_with_its_module(self, error: int) -> None:
        workload = ["123", encode_module(MODULE % 64)]
        body = json.loads(metaschedule_line(3, 1.5e-5, error=error))[1]
        record = MetaScheduleRecords.decode(json.dumps([workload, body]), hardware="a100")
        assert record.hardware == "a100"
        assert json.loads(MetaScheduleRecords.encode(record)) == [workload, body]
        assert record.module is not None
        assert record.module.mod_json == MODULE % 64
        with pytest.raises(RecordError, match="expected a record with its module"):
            MetaScheduleRecords.encode(replace(record, module=None))

    def test_autotvm_lines_of_version_0_1_are_read(self) -> None:
        """Upstream: decoded to None, which push then trips over."""
        line = json.dumps(
            {
                "i": ["cuda", "topi_nn_dense", [1, 256, 10], {}, ["dense", 1, 256, 10],
                      {"i": 6, "t": "direct", "c": None, "e": [["tile_k", "sp", [-1, 64]]]}],
                "r": [[7e-06], 0, 0.9, 1598593289.4],
                "v": 0.1,
            }
        )  # fmt: skip
        records = AutoTVMRecords("cuda")
        record = AutoTVMRecords.decode(line)
        assert records.push(record)
        assert records.gen_task_item()["OpName"] == "dense"
        assert records.gen_task_item()["TaskName"] == "topi_nn_dense"
        assert json.loads(AutoTVMRecords.encode(record)) == json.loads(line)

    @pytest.mark.parametrize(
        ("kind", "line"),
        [
            (AutoTVMRecords, '{"input": ["llvm"'),
            (AutoTVMRecords, ""),
            (AutoTVMRecords, autotvm_line(0, 1e-3) + "\n" + autotvm_line(1, 1e-3)),
            (AutoSchedulerRecords, "[]"),
            (AutoSchedulerRecords, "# comment"),
            (MetaScheduleRecords, "{"),
            (MetaScheduleRecords, "7"),
            (MetaScheduleRecords, "[1, 2, 3]"),
            (MetaScheduleRecords, '[["123", "AAAA"], [[], [1], {}, []]]'),
        ],
    )
    def test_what_is_no_line_says_so(self, kind: type[Records], line: str) -> None:
        with pytest.raises(RecordError, match="expected"):
            kind.decode(line)


class TestLogs:
    def test_a_container_for_each_workload_and_target(self, tmp_path: Path, dialect: Any) -> None:
        """Upstream: records of two targets are merged under the first."""
        result, line, log = dialect
        other = "llvm -keys=cpu -mcpu=skylake-avx512"
        path = log(tmp_path, line(0, 3e-3), line(1, 1e-3, target=other), line(2, 2e-3))
        first, second = result.create_records_by_workloads(path, 10)
        assert (first.target_key, costs(first)) == (target_key(LLVM), [2e-3, 3e-3])
        assert (second.target_key, costs(second)) == (target_key(other), [1e-3])
        assert first.workload_key == second.workload_key

    def test_nbest_is_honoured(self, tmp_path: Path, dialect: Any) -> None:
        """Upstream: AutoTVM ignores it, and both that honour it return it worst first."""
        result, line, log = dialect
        path = log(tmp_path, *(line(number, 1e-3 * (9 - number)) for number in range(9)))
        for nbest, kept in ((3, 3), (0, 0), (-1, 9), (50, 9)):
            (records,) = result.create_records_by_workloads(path, nbest)
            assert costs(records) == pytest.approx([1e-3 * (n + 1) for n in range(kept)])

    def test_nbest_counts_over_all_layouts(self, tmp_path: Path) -> None:
        tiles = [(8, 16), (4, 4), (16, 16), (2, 2)]
        lines = [tiled(n, 1e-3 * (n + 1), *tiles[n % 4]) for n in reversed(range(12))]
        (records,) = read(tmp_path, *lines, nbest=3)
        assert costs(records) == pytest.approx([1e-3, 2e-3, 3e-3])
        assert len(records.layouts()) == 3
        (every,) = read(tmp_path, *lines)
        assert costs(every) == pytest.approx([1e-3, 2e-3, 3e-3, 4e-3])
        (flat,) = read(tmp_path, *lines, nbest=6, group_by_layout=False)
        assert len(flat) == 6

    @pytest.mark.parametrize(
        ("task", "args"), [("dense_nopack.x86", DENSE), ("conv2d_nchw.arm_cpu", CONV)]
    )
    def test_records_without_a_layout_do_not_displace_each_other(
        self, tmp_path: Path, task: str, args: list[Any]
    ) -> None:
        """Upstream: they share a bucket, and only the best survives; conv2d without tile_ic is a KeyError."""
        lines = [autotvm_line(n, 1e-3 + n, task=task, args=args) for n in range(5)]
        (records,) = read(tmp_path, *lines, nbest=4)
        assert list(records.layouts()) == [None]
        assert len(records) == 4

    def test_a_workload_of_failures_gives_an_empty_container(
        self, tmp_path: Path, dialect: Any
    ) -> None:
        """Upstream: auto_scheduler does so, AutoTVM leaves the workload out."""
        result, line, log = dialect
        (records,) = result.create_records_by_workloads(log(tmp_path, line(0, 0, error=1)), 5)
        assert len(records) == 0
        assert records.target_key == target_key(LLVM)
        assert records.workload_key

    def test_the_dialect_is_found_from_the_content(self, tmp_path: Path, dialect: Any) -> None:
        result, line, log = dialect
        path = log(tmp_path, line(0, 2e-3), line(1, 1e-3))
        (found,) = TuneResult.create_records_by_workloads(path, 1)
        assert isinstance(found, result.records)
        assert costs(found) == [1e-3]

    def test_a_log_of_no_dialect_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(RecordError, match="expected a log of AutoTVM, auto_scheduler or"):
            TuneResult.create_records_by_workloads(line_log(tmp_path, "hello"), 1)

    def test_an_empty_log_gives_no_container(self, tmp_path: Path, dialect: Any) -> None:
        result, _, log = dialect
        assert result.create_records_by_workloads(log(tmp_path), 5) == []

    @pytest.mark.parametrize(
        ("result", "text"),
        [
            (AutoTVMTuneResult, ["", autotvm_line(0, 1e-3), "", autotvm_line(1, 2e-3), ""]),
            (AutoSchedulerTuneResult, ["# by hand", ansor_line(0, 1e-3), "", ansor_line(1, 2e-3)]),
        ],
    )
    def test_blank_and_comment_lines_mean_nothing(
        self, tmp_path: Path, result: type[TuneResult], text: list[str]
    ) -> None:
        """Upstream: a blank line in an AutoTVM log is a JSON error."""
        rejects: list[Reject] = []
        path = line_log(tmp_path, *text)
        (records,) = result.create_records_by_workloads(path, 5, on_reject=rejects.append)
        assert costs(records) == [1e-3, 2e-3]
        assert rejects == []

    def test_a_malformed_line_is_reported_and_the_others_read(
        self, tmp_path: Path, dialect: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Upstream: it ends the reading."""
        result, line, log = dialect
        path = log(tmp_path, line(0, 1e-3), line(1, 2e-3)[:-9], line(2, 3e-3))
        rejects: list[Reject] = []
        (records,) = result.create_records_by_workloads(path, 5, on_reject=rejects.append)
        assert costs(records) == [1e-3, 3e-3]
        assert [reject.line for reject in rejects] == [2]
        assert not caplog.records
        with caplog.at_level(logging.WARNING):
            result.create_records_by_workloads(path, 5)
        assert "1 lines of" in caplog.text
        assert "line 2" in caplog.text

    def test_one_workload_can_be_asked_for(self, tmp_path: Path) -> None:
        class Workload:
            def get_workload_key(self) -> str:
                return autotvm_workload_key("dense_pack.x86", DENSE)

        lines = autotvm_line(0, 1e-3), autotvm_line(1, 2e-3, task="dense_pack.x86")
        identity = view(0, 1e-3, task="dense_pack.x86").workload_id
        for workload in (Workload(), Workload().get_workload_key(), identity):
            (records,) = read(tmp_path, *lines, workload=workload)
            assert records.workload_key == Workload().get_workload_key()
            assert costs(records) == [2e-3]
        assert read(tmp_path, *lines, workload="dense_pack.x86") == []

    def test_none_and_the_text_none_are_two_workloads(self, tmp_path: Path) -> None:
        """Upstream: a real "None" is taken for no value; their keys are the same text."""
        first, second = read(tmp_path, *SAME_KEYS)
        assert first.workload_key == second.workload_key
        assert first.gen_task_item()["Args"][2] is None
        assert second.gen_task_item()["Args"][2] == "None"

    def test_of_many_rows_the_best_stay(self, tmp_path: Path) -> None:
        rows = 1297
        lines = [ansor_line(at, 1e-6 * (at * 7919 % rows // 2 + 1)) for at in range(rows)]
        path = line_log(tmp_path, *lines)
        (records,) = AutoSchedulerTuneResult.create_records_by_workloads(path, 100)
        assert costs(records) == pytest.approx([1e-6 * (n // 2 + 1) for n in range(100)])

    def test_a_missing_log_says_where_it_was_looked_for(self, tmp_path: Path) -> None:
        with pytest.raises(RecordError, match=r"expected a log file at .*nowhere\.log"):
            AutoTVMTuneResult.create_records_by_workloads(tmp_path / "nowhere.log", 1)
        with pytest.raises(RecordError, match="expected a log file, or a folder with"):
            MetaScheduleTuneResult.create_records_by_workloads(tmp_path, 1)

    def test_compressed_logs_are_read(self, tmp_path: Path) -> None:
        path = tmp_path / "tune.log.gz"
        path.write_bytes(gzip.compress(ansor_line(0, 1e-3).encode()))
        (records,) = AutoSchedulerTuneResult.create_records_by_workloads(path, 1)
        assert costs(records) == [1e-3]


class TestStore:
    def test_the_best_come_back(self, tmp_path: Path, dialect: Any) -> None:
        result, line, log = dialect
        uri = str(tmp_path / "store")
        path = log(tmp_path, *(line(n, 1e-3 * (5 - n)) for n in range(5)), line(9, 0, error=2))
        (records,) = result.create_records_by_workloads(path, 4)
        assert commit(records, uri, 3, hardware="box") == 3
        assert commit(records, uri, 3, hardware="box") == 0
        found = query(uri, records.workload_key, target=LLVM, hardware="box")
        assert [item.mean_s for item in found] == costs(records, 3)
        assert [item.program for item in found] == [item.program for item in records.to_list(3)]
        assert query(uri, records.peak().workload_id, target=LLVM, hardware="box") == found
        assert query(uri, records.workload_key, target=LLVM, hardware="box", nbest=1) == found[:1]

    def test_ids_are_those_of_an_import(self, tmp_path: Path, dialect: Any) -> None:
        """A record committed by a container and the same one imported from its log are one row."""
        result, line, log = dialect
        uri = str(tmp_path / "store")
        path = log(tmp_path, line(0, 1e-3), line(1, 2e-3))
        commit(result.create_records_by_workloads(path, 5), uri, hardware="box")
        named = result.create_records_by_workloads(path, 5, hardware="box")
        assert commit(named, uri) == 0
        file = path / RECORD_FILE if path.is_dir() else path
        (batch,) = result.records.log_format.read(file, About("d", file.name, "box"))
        assert RecordStore(uri).write_table(batch.records) == 0

    def test_lines_come_back_as_they_were(self, tmp_path: Path) -> None:
        """Upstream: every number comes back a float, a boolean as text, None as "None"."""
        uri = str(tmp_path / "store")
        args = [*DENSE[:2], None, "None", True, 3, 2.5]
        knobs = [["u", "ot", False], ["a", "an", ["vec", "none"]]]
        line = autotvm_line(0, 1e-3, args=args, entity=knobs)
        (records,) = read(tmp_path, line)
        commit(records, uri, hardware="box")
        (record,) = query(uri, records.peak().workload_id, target=LLVM, hardware="box")
        assert AutoTVMRecords.encode(record) == line
        assert filled(record).gen_task_item()["Args"] == args

    def test_a_lookup_never_crosses_targets_hardware_or_keys(self, tmp_path: Path) -> None:
        """Upstream: begins_with on the key returns longer keys, too."""
        uri = str(tmp_path / "store")
        longer = [*DENSE, "float32"]
        assert autotvm_workload_key("dense_nopack.x86", longer).startswith(DENSE_KEY)
        lines = [
            autotvm_line(0, 1e-3),
            autotvm_line(1, 1e-4, args=longer),
            autotvm_line(2, 1e-5, target=f"{LLVM} -num-cores=8"),
        ]
        commit(read(tmp_path, *lines), uri, hardware="box")
        commit(read(tmp_path, autotvm_line(3, 1e-6)), uri, hardware="other-box")
        for workload, target, hardware, times in (
            (DENSE_KEY, LLVM, "box", [1e-3]),
            (DENSE_KEY, "llvm -mcpu=core-avx2 -keys=cpu", "box", [1e-3]),
            (DENSE_KEY, "llvm", "box", []),
            (DENSE_KEY, LLVM, "other-box", [1e-6]),
            (DENSE_KEY[:-1], LLVM, "box", []),
            ("0" * 32, LLVM, "box", []),
        ):
            records = query(uri, workload, target=target, hardware=hardware)
            assert [record.mean_s for record in records] == times
        with pytest.raises(RecordError, match="expected records of third-box"):
            query(uri, DENSE_KEY, target=LLVM, hardware="third-box")

    @pytest.mark.parametrize(
        "target", ["llvm -mcpu=core-avx2", f"{LLVM} -libs=mkl,cblas", f"{LLVM} -num-cores=8 -a=1"]
    )
    def test_a_container_is_found_again_by_its_own_keys(self, target: str, tmp_path: Path) -> None:
        """Its target_key has TVM's default keys and no -libs: another text than the stored target's."""
        uri = str(tmp_path / "store")
        (records,) = read(tmp_path, autotvm_line(0, 1e-3, target=target))
        commit(records, uri, hardware="box")
        assert records.workload_key is not None
        best = query(uri, records.workload_key, target=records.target_key, hardware="box")
        assert [record.mean_s for record in best] == [1e-3]
        assert query(uri, records.workload_key, target=target, hardware="box") == best

    @pytest.mark.parametrize(
        ("lines", "target", "message"),
        [
            (
                [autotvm_line(n, 1e-3, target=f"llvm -libs={lib}") for n, lib in enumerate(["mkl", "cblas"])],
                target_key("llvm"), r"which 2 targets .* Query by one",
            ),
            (SAME_KEYS, LLVM, r"expected one workload with the key .* found 2"),
        ],
        ids=["target_key", "workload_key"],
    )  # fmt: skip
    def test_a_key_that_two_have_is_refused(
        self, tmp_path: Path, lines: list[str], target: str, message: str
    ) -> None:
        uri = str(tmp_path / "store")
        commit(read(tmp_path, *lines), uri, hardware="box")
        with pytest.raises(RecordError, match=message):
            query(uri, DENSE_KEY, target=target, hardware="box")

    def test_nothing_valid_cannot_be_committed(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Upstream: an assertion in gen_task_item."""
        uri = str(tmp_path / "store")
        with pytest.raises(RecordError, match="expected a valid record to commit"):
            commit(AutoTVMRecords(LLVM), uri, hardware="box")
        lines = autotvm_line(0, 0, error=1), autotvm_line(0, 1e-3, task="dense_pack.x86")
        with caplog.at_level(logging.WARNING):
            assert commit(read(tmp_path, *lines), uri, hardware="box") == 1
        assert "nothing to commit" in caplog.text

    def test_the_store_requires_the_device(self, tmp_path: Path) -> None:
        uri = str(tmp_path / "store")

        def containers(target: str, **more: Any) -> list[Records]:
            return read(tmp_path, autotvm_line(0, 1e-3, target=target), **more)

        for target in ("cuda", "cuda -model=unknown"):
            with pytest.raises(RecordError, match=r"expected the device of .*hardware=<name>"):
                commit(containers(target), uri)
        assert commit(containers("cuda -model=v100"), uri) == 1
        assert commit(containers("cuda", hardware="k80"), uri) == 1
        assert RecordStore(uri).hardware() == ["k80", "v100"]
        with pytest.raises(RecordError, match=r"expected records measured on v100, found .* k80"):
            commit(containers("cuda", hardware="k80"), uri, hardware="v100")

    def test_failed_and_quarantined_records_are_never_served(self, tmp_path: Path) -> None:
        uri = str(tmp_path / "store")
        rows = []
        for number, (cost, error, reason) in enumerate(
            [(1e-3, 0, None), (1e-6, 0, "220 times faster"), (0.0, 4, None)]
        ):
            row = AutoTVMRecords.decode(autotvm_line(number, cost, error=error), "box").row
            rows.append({**row, "quarantine": reason})
        RecordStore(uri).write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
        best = query(uri, DENSE_KEY, target=LLVM, hardware="box")
        assert [record.mean_s for record in best] == [1e-3]


def real(folder: str) -> list[Path]:
    found = sorted(path for path in (LOGS / folder).rglob("*") if path.is_file())
    if not found:
        pytest.skip(f"no logs at {LOGS / folder}")
    return sorted(found, key=lambda path: path.stat().st_size)


def logged(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [
        json.loads(line) for line in text.splitlines() if line.strip() and not line.startswith(b"#")
    ]


@pytest.mark.parametrize("nbest", [1, 7, -1])
@pytest.mark.parametrize(
    ("folder", "result"),
    [
        ("ansor/roller_k80_cuda/matmul", AutoSchedulerTuneResult),
        ("ansor/tvm_ci_logs/tvm_v0.8_tenset", AutoSchedulerTuneResult),
        ("autotvm/roller_k80_cuda/depthwise", AutoTVMTuneResult),
        ("autotvm/nnfusion_oldformat_v0.1", AutoTVMTuneResult),
    ],
)
def test_the_fastest_of_real_logs(folder: str, result: type[TuneResult], nbest: int) -> None:
    """A plain loop over the same lines finds the same best times."""
    path = real(folder)[0]
    best: dict[str, dict[str, float]] = {}
    for line in logged(path):
        if result is AutoSchedulerTuneResult:
            (task, state), outcome = line["i"], line["r"]
            key, target, program = task[0], task[1], json.dumps(state)
        else:
            given_ = line.get("i") or line["input"]
            outcome = line.get("r") or line["result"]
            config = dict(line.get("config") or given_[5])
            config.pop("index", config.pop("i", None))
            key, target, program = json.dumps(given_[1:3]), given_[0], json.dumps(config)
        group = best.setdefault(f"{key} {target}", {})
        if outcome[1] == 0:
            mean = math.fsum(outcome[0]) / len(outcome[0])
            group[program] = min(group.get(program, math.inf), mean)
    expected = sorted(
        sorted(group.values())[: None if nbest == -1 else nbest] for group in best.values()
    )
    found = result.create_records_by_workloads(path, nbest)
    assert sorted(costs(records) for records in found) == expected
