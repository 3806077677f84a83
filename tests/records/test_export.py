"""A store's best schedules as a MetaSchedule database: what stock TVM finds in it, and never finds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tencost.errors import RecordError
from tencost.records.export import Export, export_metaschedule, run
from tencost.records.formats.metaschedule import (
    RECORD_FILE,
    WORKLOAD_FILE,
    LoggedProgram,
    read_programs,
    read_workloads,
)
from tencost.records.ids import canonical_target, program_id, record_id, workload_id
from tencost.records.modules import write_modules
from tencost.records.schema import NetworkWeight, Record, Source
from tencost.records.status import Status
from tencost.records.store import RecordStore

LLVM = {"kind": "llvm", "mcpu": "core-avx2"}
CUDA = {"kind": "cuda"}
TRACE: list[Any] = [[["EnterPostproc", [], [], []]], []]


def measured(
    identity: str,
    trace: Sequence[Any],
    run_secs: Sequence[float],
    *,
    hardware: str = "cpu",
    target: dict[str, Any] = LLVM,
    args: list[Any] | None = None,
    program_format: str = "metaschedule_trace",
) -> Record:
    program = program_id(identity, target["kind"], [*trace])
    return Record(
        record_id=record_id(program, target, hardware),
        program_id=program,
        workload_id=identity,
        task_name="matmul",
        networks=(NetworkWeight("net", 1),),
        hardware=hardware,
        target=target,
        program_format=program_format,
        program=json.dumps(trace),
        run_secs=tuple(run_secs),
        status=Status.ok if run_secs else Status.run_error,
        error="" if run_secs else "crashed",
        source=Source("made-up", "file", 1),
        workload_args=args,
    )


def modules(*rows: tuple[str, str, str | None]) -> pl.DataFrame:
    return pl.DataFrame(
        rows,
        schema={"workload_id": pl.String, "mod_json": pl.String, "shash": pl.String},
        orient="row",
    )


def written(folder: Path) -> list[LoggedProgram]:
    found, rejects = read_workloads(folder / WORKLOAD_FILE)
    programs = list(read_programs(folder / RECORD_FILE, found))
    assert not rejects
    assert all(isinstance(item, LoggedProgram) for item in programs)
    return [item for item in programs if isinstance(item, LoggedProgram)]


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    return RecordStore(str(tmp_path / "store"))


@pytest.fixture
def mod_json(matmul: Any) -> str:
    import tvm

    return str(tvm.ir.save_json(matmul))


def decided(number: int) -> list[Any]:
    """A trace that differs from others in its decision; no TVM is to replay it."""
    return [[["SamplePerfectTile", [], [2, 64], ["l0", "l1"]]], [[0, [number, 1]]]]


@pytest.mark.tvm
def test_the_fastest_of_the_hardware_and_target(
    store: RecordStore, tmp_path: Path, mod_json: str
) -> None:
    identity = workload_id(mod_json)
    store.write(
        [
            measured(identity, decided(1), (3e-3,)),
            measured(identity, decided(2), (1e-3, 2e-3, 9e-3)),
            measured(identity, decided(3), ()),
            measured(identity, decided(4), (1e-9,), hardware="other"),
            measured(identity, decided(5), (1e-9,), target=CUDA),
            measured(identity, decided(6), (4e-3,), target={**LLVM, "tag": ""}),
        ]
    )
    table = modules((identity, mod_json, None), ("f" * 32, "{}", "1"))
    folder = tmp_path / "best"
    done = export_metaschedule(store, folder, table, hardware="cpu", target=LLVM)
    assert done == Export(folder, 1, 1, ())
    (program,) = written(folder)
    assert program.trace == decided(2)
    assert program.run_secs == [1e-3, 2e-3, 9e-3]
    assert canonical_target(program.target) == canonical_target(LLVM)
    assert program.workload.mod_json == mod_json

    many = export_metaschedule(store, tmp_path / "all", table, hardware="cpu", target=LLVM, n=9)
    assert (many.workloads, many.records) == (1, 3)
    assert [item.trace for item in written(tmp_path / "all")] == [
        decided(number) for number in (2, 1, 6)
    ]
    assert sorted(path.name for path in folder.iterdir()) == [RECORD_FILE, WORKLOAD_FILE]


@pytest.mark.tvm
def test_what_is_left_out_is_said(store: RecordStore, tmp_path: Path, mod_json: str) -> None:
    identity = workload_id(mod_json)
    store.write(
        [
            measured(identity, TRACE, (1e-3,)),
            measured("a" * 32, TRACE, (1e-3,)),
            measured("b" * 32, TRACE, ()),
            measured("c" * 32, [], (1e-3,), program_format="ansor_steps"),
            measured("d" * 32, TRACE, (), hardware="other"),
        ]
    )
    table = modules((identity, mod_json, None))
    done = export_metaschedule(store, tmp_path / "best", table, hardware="cpu", target=LLVM)
    assert (done.workloads, done.records) == (1, 1)
    reasons = {item.workload_id[0]: item.reason for item in done.left_out}
    assert reasons.keys() == {"a", "b", "c"}
    assert "its module is neither" in reasons["a"]
    assert "none of its programs was measured" in reasons["b"]
    assert "ansor_steps" in reasons["c"]


def test_nothing_to_export(store: RecordStore, tmp_path: Path) -> None:
    store.write([measured("a" * 32, TRACE, (1e-3,)), measured("b" * 32, TRACE, ())])
    folder = tmp_path / "best"
    with pytest.raises(RecordError, match=r"none that can be exported. matmul: its module"):
        export_metaschedule(store, folder, modules(), hardware="cpu", target=LLVM)
    with pytest.raises(RecordError, match="expected records of tpu"):
        export_metaschedule(store, folder, modules(), hardware="tpu", target=LLVM)
    with pytest.raises(RecordError, match="expected records of cpu for the target"):
        export_metaschedule(store, folder, modules(), hardware="cpu", target=CUDA)
    assert not folder.exists()


@pytest.mark.tvm
def test_a_database_is_never_added_to(store: RecordStore, tmp_path: Path, mod_json: str) -> None:
    identity = workload_id(mod_json)
    table = modules((identity, mod_json, None))
    store.write([measured(identity, decided(1), (2e-3,))])
    export_metaschedule(store, tmp_path, table, hardware="cpu", target=LLVM)
    store.write([measured(identity, decided(2), (1e-3,))])
    with pytest.raises(RecordError, match=r"without a MetaSchedule database.*--overwrite"):
        export_metaschedule(store, tmp_path, table, hardware="cpu", target=LLVM)
    assert [item.trace for item in written(tmp_path)] == [decided(1)]
    export_metaschedule(store, tmp_path, table, hardware="cpu", target=LLVM, overwrite=True)
    assert [item.trace for item in written(tmp_path)] == [decided(2)]


def relax_matmul(matmul: Any) -> Any:
    """Return a Relax module that calls the matmul once."""
    from tvm import relax

    builder = relax.BlockBuilder()
    function = matmul["main"].without_attr("global_symbol")
    shape = relax.TensorStructInfo if hasattr(relax, "TensorStructInfo") else relax.TensorType
    a = relax.Var("a", shape((64, 64), "float32"))
    b = relax.Var("b", shape((64, 64), "float32"))
    with builder.function("main", [a, b]):
        callee = builder.add_func(function, "matmul")
        output = builder.emit(relax.call_tir(callee, [a, b], shape((64, 64), "float32")))
        builder.emit_func_output(output)
    return builder.get()


@pytest.fixture(scope="session")
def lines(matmul: Any, context: Any, candidates: list[Any]) -> list[str]:
    """Database lines of four programs of the matmul, written by TVM."""
    from tencost.measure.programs import Sampler  # noqa: F401

    raise NotImplementedError


@pytest.mark.tvm
def test_stock_tvm_compiles_the_fastest(
    store: RecordStore,
    tmp_path: Path,
    matmul: Any,
    mod_json: str,
    target: dict[str, Any],
    candidates: list[Any],
    database_lines: Callable[[Sequence[Any]], list[Any]],
) -> None:
    raise NotImplementedError
