"""A store's best schedules as a MetaSchedule database: what stock TVM finds in it, and never finds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tencost import cli
from tencost.errors import RecordError
from tencost.records.best_schedules import Export, export_metaschedule, run
from tencost.records.formats.metaschedule import (
    RECORD_FILE,
    WORKLOAD_FILE,
    LoggedProgram,
    read_programs,
    read_workloads,
)
from tencost.records.query_command import Place
from tencost.store.ids import canonical_target, program_id, record_id, workload_id
from tencost.store.modules import write_modules
from tencost.store.record_store import RecordStore
from tencost.store.schema import NetworkWeight, Record, Source
from tencost.store.status import Status

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


OLD_MODULE = json.dumps({"root": 1, "nodes": [{"type_key": ""}, {"type_key": "Map"}]})
"""A graph as TVM up to 0.21 wrote it."""
UNKNOWN_TYPE = json.dumps({"root_index": 0, "nodes": [{"type": "ir.Nonsense", "data": {}}]})
"""A graph of today's form with a node that no TVM of today has."""


@pytest.mark.tvm
def test_workloads_of_another_tvm_are_named_and_the_others_exported(
    store: RecordStore,
    tmp_path: Path,
    mod_json: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("defaults: []\n")
    monkeypatch.chdir(tmp_path)
    identity = workload_id(mod_json)
    strange = [("a" * 32, OLD_MODULE, "old", "7"), ("b" * 32, UNKNOWN_TYPE, "new", "8")]
    store.write([measured(name, TRACE, (1e-3,), hardware="gpu") for name, *_ in strange])
    write_modules(store.uri, strange)
    words = ["records", "export", "metaschedule", "best", "--store", store.uri, "--hardware", "gpu"]
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert "none that can be exported" in capsys.readouterr().err
    assert not (tmp_path / "best").exists()

    store.write([measured(identity, TRACE, (1e-3,), hardware="gpu")])
    write_modules(store.uri, [(identity, mod_json, "matmul", "1")])
    cli.main([*words, "--n", "3"])
    told = capsys.readouterr().out
    assert "best: 1 schedules of 1 workloads on gpu" in told
    assert "left out aaaaaaaaaaaa matmul: its module is of another TVM" in told
    assert "left out bbbbbbbbbbbb matmul: its module is of another TVM" in told
    assert [item.workload.mod_json for item in written(tmp_path / "best")] == [mod_json]


@pytest.mark.tvm
def test_what_could_run_code_of_others_is_left_out(
    store: RecordStore, tmp_path: Path, mod_json: str
) -> None:
    """Who applies the database would compile it."""
    graph = json.loads(mod_json)
    graph["nodes"].append({"type": "ir.Op", "data": "tirx.call_extern"})
    calling = json.dumps(graph)
    linking = [[["Annotate", ["l1", '"; ModuleID"'], ["pragma_import_llvm"], []]], []]
    identity = workload_id(mod_json)
    store.write(
        [
            measured(identity, linking, (1e-3,)),
            measured(identity, TRACE, (2e-3,)),
            measured("a" * 32, TRACE, (1e-3,)),
        ]
    )
    table = modules((identity, mod_json, None), ("a" * 32, calling, "7"))
    done = export_metaschedule(store, tmp_path / "best", table, hardware="cpu", target=LLVM, n=2)
    assert (done.workloads, done.records) == (1, 1)
    assert [item.trace for item in written(tmp_path / "best")] == [TRACE]
    reasons = {item.workload_id: item.reason for item in done.left_out}
    assert "the annotation 'pragma_import_llvm'" in reasons[identity]
    assert "the operator 'tirx.call_extern'" in reasons["a" * 32]


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


@pytest.fixture(scope="session")
def logged(
    matmul: Any,
    context: Any,
    candidates: list[Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> list[LoggedProgram]:
    """Four programs of the matmul as TVM writes them."""
    from tvm.s_tir import meta_schedule as ms

    folder = tmp_path_factory.mktemp("logged")
    database = ms.database.JSONDatabase(work_dir=str(folder))
    workload = database.commit_workload(matmul)
    for candidate in candidates[:4]:
        info = ms.arg_info.ArgInfo.from_entry_func(candidate.sch.mod, remove_preproc=True)
        database.commit_tuning_record(
            ms.database.TuningRecord(candidate.sch.trace, workload, None, context.target, info)
        )
    return written(folder)


def relax_matmul(matmul: Any) -> Any:
    """Return a Relax module that calls the matmul once."""
    from tvm import relax

    builder = relax.BlockBuilder()
    kind = relax.TensorType((64, 64), "float32")
    a, b = relax.Var("a", kind), relax.Var("b", kind)
    with builder.function("main", [a, b]):
        callee = builder.add_func(matmul["main"].without_attr("global_symbol"), "matmul")
        output = builder.emit(relax.call_tir(callee, [a, b], kind))
        builder.emit_func_output(output)
    return builder.get()


@pytest.mark.tvm
def test_stock_tvm_compiles_the_fastest(
    store: RecordStore,
    tmp_path: Path,
    matmul: Any,
    target: dict[str, Any],
    logged: list[LoggedProgram],
) -> None:
    """Made-up times: the third program is the fastest here, others elsewhere are faster by far."""
    import numpy as np
    import tvm
    from tvm import relax
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.schedule import Trace
    from tvm_ffi import structural_equal

    identity = logged[0].workload.workload_id
    elsewhere = {**target, "mcpu": "x86-64"}
    places: list[tuple[float, str, dict[str, Any]]] = [
        (4e-3, "here", target),
        (3e-3, "here", target),
        (2e-3, "here", target),
        (9e-3, "here", target),
        (1e-6, "there", target),
        (1e-6, "here", elsewhere),
    ]
    store.write(
        measured(
            identity,
            item.trace,
            (seconds, seconds),
            hardware=hardware,
            target=compiled_for,
            args=item.args_info,
        )
        for (seconds, hardware, compiled_for), item in zip(places, [*logged, *logged], strict=False)
    )
    table = modules((identity, logged[0].workload.mod_json, None))
    for n, folder in ((1, tmp_path / "one"), (9, tmp_path / "all")):
        export_metaschedule(store, folder, table, hardware="here", target=target, n=n)
        database = ms.database.JSONDatabase(work_dir=str(folder), allow_missing=False)
        tvm_target = tvm.target.Target(target)
        found = database.query_tuning_record(matmul, tvm_target, "main")
        assert [float(value) for value in found.run_secs] == [2e-3, 2e-3]
        times = {float(item.run_secs[0]) for item in database.get_all_tuning_records()}
        assert times == ({2e-3} if n == 1 else {2e-3, 3e-3, 4e-3, 9e-3})

        with tvm_target:
            mod = relax.transform.MetaScheduleApplyDatabase(str(folder))(relax_matmul(matmul))
        expected = tvm.s_tir.Schedule(matmul)
        Trace.apply_json_to_schedule(logged[2].trace, expected)
        scheduled = mod["matmul"]
        assert "tirx.is_scheduled" in scheduled.attrs
        assert structural_equal(bare(scheduled), bare(expected.mod["main"]))

        machine = relax.VirtualMachine(tvm.compile(mod, target=tvm_target), tvm.cpu())
        a, b = np.random.default_rng(0).random((2, 64, 64), np.float32)
        output = machine["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b))
        np.testing.assert_allclose(output.numpy(), a @ b, rtol=1e-4)


def bare(function: Any) -> Any:
    """Return a function without what only names it or says that it is scheduled."""
    for name in ("global_symbol", "tirx.is_scheduled"):
        function = function.without_attr(name)
    return function


@pytest.mark.tvm
def test_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mod_json: str,
) -> None:
    """Modules come from the table beside the store, and from the project's datasets."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("defaults: []\n")
    monkeypatch.chdir(tmp_path)
    identity = workload_id(mod_json)
    live = tmp_path / "data" / "store"
    RecordStore(str(live)).write(
        [measured(identity, TRACE, (1e-3,)), measured("a" * 32, TRACE, ())]
    )
    with pytest.raises(RecordError, match="its module is neither beside the store"):
        run(Path("best"), Place(), hardware="cpu")
    write_modules(str(live), [(identity, mod_json, "matmul", "1")])
    run(Path("best"), Place(), hardware="cpu")
    told = capsys.readouterr().out
    assert "best: 1 schedules of 1 workloads on cpu" in told
    assert "left out aaaaaaaaaaaa matmul: none of its programs" in told
    assert len(written(tmp_path / "best")) == 1
    with pytest.raises(RecordError, match="--overwrite"):
        run(Path("best"), Place(), hardware="cpu", target="llvm -mcpu=core-avx2")
    run(Path("best"), Place(), hardware="cpu", workload=identity[:6], n=2, overwrite=True)

    folder = tmp_path / "data" / "records" / "mine"
    RecordStore(str(folder / "store")).write([measured(identity, decided(7), (1e-3,))])
    table = modules((identity, mod_json, "1"))
    table.write_parquet(folder / "workloads.parquet")
    words = ["records", "export", "metaschedule", "mine", "--dataset", "mine", "--hardware", "cpu"]
    cli.main(words)
    assert [item.trace for item in written(tmp_path / "mine")] == [decided(7)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected FOLDER, found none"),
        (["out", "more", "--hardware", "cpu"], "found 'more'"),
        (["out", "colour=red"], "found 'colour=red'"),
        (["out"], "expected --hardware NAME"),
        (["out", "--hardware", "cpu", "--n", "0"], "a whole number of at least 1, found '0'"),
    ],
)
def test_words_that_export_does_not_understand(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["records", "export", "metaschedule", *words])
    assert stop.value.code == 2
    told = capsys.readouterr().err
    assert message in told
    assert "Usage: tencost records export metaschedule" in told
