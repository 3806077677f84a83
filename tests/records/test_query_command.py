"""`tencost records query` on the command line: what it prints, and what it says to words it does not understand."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tencost import cli
from tencost.store.record_store import RecordStore
from tencost.store.schema import NetworkWeight, Provenance, Record, Source
from tencost.store.status import Status

LLVM = {"kind": "llvm", "mcpu": "core-avx2"}
CUDA = {"kind": "cuda", "arch": "sm_70"}
DENSE, CONV = "d" * 32, "c" * 32


def measured(
    number: int, seconds: float | None, hardware: str, workload: str, target: dict[str, str]
) -> Record:
    return Record(
        record_id=f"{hardware}-{number}",
        program_id=f"{number:032}",
        workload_id=workload,
        task_name="dense[1]" if workload == DENSE else "conv",
        networks=(NetworkWeight("net", 2),),
        hardware=hardware,
        target=dict(target),
        program_format="metaschedule_trace",
        program="[[],[]]",
        run_secs=() if seconds is None else (seconds,),
        status=Status.ok if seconds is not None else Status.run_error,
        error="" if seconds is not None else "crashed",
        source=Source("set", "file", number),
        provenance=Provenance(timestamp=1e9 + number),
    )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose live store has a CPU and a GPU, and a dataset with one record."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("defaults: []\n")
    monkeypatch.chdir(tmp_path)
    RecordStore(str(tmp_path / "data" / "store")).write(
        [
            measured(1, 2e-3, "cpu", DENSE, LLVM),
            measured(2, 1.5e-3, "cpu", DENSE, LLVM),
            measured(3, None, "cpu", DENSE, LLVM),
            measured(4, 4e-6, "cpu", CONV, LLVM),
            measured(5, 1e-4, "gpu", DENSE, CUDA),
            measured(6, 1e-7, "gpu", DENSE, {**CUDA, "arch": "sm_80"}),
        ]
    )
    folder = tmp_path / "data" / "records" / "mine"
    folder.mkdir(parents=True)
    RecordStore(str(folder / "store")).write([measured(1, 1.0, "other", CONV, LLVM)])
    return tmp_path


@pytest.fixture
def ask(project: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def ask(*words: str) -> str:
        cli.main(["records", "query", *words])
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return ask


@pytest.fixture
def refused(project: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What is said to a question that cannot be answered."""

    def refused(*words: str) -> str:
        with pytest.raises(SystemExit) as stop:
            cli.main(["records", "query", *words])
        captured = capsys.readouterr()
        assert (stop.value.code, captured.out) == (2, "")
        return captured.err

    return refused


def test_best_as_a_table(ask: Callable[..., str]) -> None:
    told = ask("best", "--hardware=cpu", "--n=2")
    assert "dense[1]" in told
    assert "1.5 ms" in told
    assert "4 µs" in told
    assert told.index("1.5 ms") < told.index("2 ms")
    assert "100 µs" not in told
    assert DENSE not in told
    assert DENSE[:12] in told


def test_best_as_json_and_csv(ask: Callable[..., str]) -> None:
    rows = json.loads(ask("best", "--hardware=cpu", "--workload=dense[1]", "--json"))
    assert [(row["workload_id"], row["latency_s"]) for row in rows] == [(DENSE, 1.5e-3)]
    text = ask("best", "--csv", "--hardware=cpu", "--workload=ddd", "--n=2", "--limit=1")
    (row,) = csv.DictReader(io.StringIO(text))
    assert (row["rank"], row["latency_s"], row["record_id"]) == ("1", "0.0015", "cpu-2")


def test_a_target_may_be_left_out_where_there_is_one(
    ask: Callable[..., str], refused: Callable[..., str]
) -> None:
    assert re.search(
        r"gpu has records for 2 targets.*sm_70.*sm_80", refused("best", "--hardware=gpu")
    )
    for target in ("cuda -arch=sm_70", '{"arch": "sm_70", "kind": "cuda"}'):
        rows = json.loads(ask("best", "--hardware=gpu", f"--target={target}", "--json"))
        assert [row["latency_s"] for row in rows] == [1e-4]


def test_history(ask: Callable[..., str], refused: Callable[..., str]) -> None:
    rows = json.loads(ask("history", "--hardware=cpu", "--workload=dense[1]", "--json"))
    assert [row["best_s"] for row in rows] == [2e-3, 1.5e-3, 1.5e-3]
    assert "run_error" in ask("history", "--hardware=cpu", "--workload=dense[1]")
    assert "expected one of --workload and --program" in refused("history", "--hardware=cpu")


def test_new_says_how_to_go_on(ask: Callable[..., str], project: Path) -> None:
    told = ask("new", "--store=data/store")
    assert "2001-09-09 01:46:4" in told
    command = told.strip().splitlines()[-1].split("tencost records query ")[1].split()
    assert command[0] == "new"
    assert json.loads(ask(*command, "--json")) == []
    RecordStore(str(project / "data" / "store")).write([measured(7, 1.0, "cpu", CONV, LLVM)])
    assert [row["record_id"] for row in json.loads(ask(*command, "--json"))] == ["cpu-7"]
    assert len(json.loads(ask("new", "--json", "--hardware=gpu"))) == 2


def test_compare(ask: Callable[..., str], refused: Callable[..., str]) -> None:
    words = (
        "compare",
        "--hardware=cpu",
        "--other=gpu",
        "--other-target=cuda -arch=sm_70",
        "--json",
    )
    conv, dense = json.loads(ask(*words))
    assert dense["ratio"] == pytest.approx(15.0)
    assert (conv["best_b_s"], conv["ratio"]) == (None, None)
    assert "expected --other NAME (the other device)" in refused("compare", "--hardware=cpu")


def test_stats(ask: Callable[..., str]) -> None:
    rows = json.loads(ask("stats", "--by=hardware, status", "--json"))
    assert [(row["hardware"], row["status"], row["records"]) for row in rows] == [
        ("cpu", "ok", 3),
        ("cpu", "run_error", 1),
        ("gpu", "ok", 2),
    ]
    (row,) = json.loads(
        ask("stats", "--by=workload", "--hardware=cpu", "--workload=conv", "--json")
    )
    assert row["best_s"] == 4e-6
    assert "metaschedule_trace" in ask("stats")


def test_sql(ask: Callable[..., str], refused: Callable[..., str]) -> None:
    text = "SELECT hardware, count(*) AS n, sum(2) AS s FROM records WHERE status='ok' GROUP BY ALL ORDER BY 1"
    assert json.loads(ask("sql", text, "--json")) == [
        {"hardware": "cpu", "n": 3, "s": 6},
        {"hardware": "gpu", "n": 2, "s": 4},
    ]
    assert "gpu" in ask("sql", text)
    nested = ask("sql", "--csv", "SELECT run_secs, networks FROM records WHERE record_id='gpu-5'")
    (row,) = csv.DictReader(io.StringIO(nested))
    assert json.loads(row["run_secs"]) == [1e-4]
    assert json.loads(row["networks"]) == [{"network": "net", "weight": 2}]
    told = refused("sql")
    assert "expected TEXT..., found none" in told
    assert "Usage: tencost records query sql" in told


def test_values_that_json_does_not_know(ask: Callable[..., str]) -> None:
    text = (
        "SELECT 1.25::DECIMAL(5, 2) AS a, 'NaN'::DOUBLE AS b, 170141183460469231731687303715::HUGEINT AS c, "
        "DATE '2020-02-01' AS d, NULL AS e"
    )
    (row,) = json.loads(ask("sql", text, "--json"))
    assert (row["a"], row["b"], row["d"], row["e"]) == (1.25, None, "2020-02-01", None)
    assert float(row["c"]) == pytest.approx(1.7014118346e29)


def test_a_time_stamp_of_no_calendar_is_shown_as_the_number_that_it_is(
    ask: Callable[..., str],
) -> None:
    """A log of milliseconds: as seconds they would be the year 52,671."""
    told = ask("sql", "SELECT 1.6e12::double AS timestamp UNION ALL SELECT 1.6e9::double")
    assert "1.6e+12" in told
    assert "2020-09-13 12:26:40" in told


def test_a_table_shows_twenty_rows(ask: Callable[..., str]) -> None:
    text = "SELECT unnest(range(30)) AS number, 'row' AS word"
    assert ask("sql", text).count("row") == 20 + 1
    assert "20 of 30 rows" in ask("sql", text)
    assert ask("sql", text, "--limit", "0").count("row") == 30
    assert len(json.loads(ask("sql", text, "--json"))) == 30


def test_a_dataset_and_a_version(ask: Callable[..., str], refused: Callable[..., str]) -> None:
    assert '"other"' in ask("stats", "--build=mine", "--json")
    (row,) = json.loads(ask("new", "--store=data/store", "--version=1", "--json", "--limit", "1"))
    assert row["hardware"] in ("cpu", "gpu")
    assert "version 99" in refused("stats", "--version=99")
    assert re.search(r"dataset 'none' .* There are: mine", refused("stats", "--build=none"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], r"one of best, history, new, compare, stats, sql, found nothing"),
        (["fastest"], "found 'fastest'"),
        (["best"], r"expected --hardware NAME \(the device, as the store names it\), found none"),
        (["best", "--hardware="], "--hardware NAME: expected NAME, found nothing"),
        (["best", "cpu", "--hardware=cpu"], r"expected no more words, found 'cpu'"),
        (["best", "colour=red"], "expected options of .*--hardware.* found 'colour=red'"),
        (["best", "--hardware=cpu", "--hardware", "gpu"], "expected --hardware once"),
        (
            ["best", "--hardware=cpu", "--n=x"],
            "--n N: expected a whole number of at least 1, found 'x'",
        ),
        (["best", "--hardware=cpu", "--n=-1"], "expected a whole number of at least 1, found '-1'"),
        (
            ["best", "--hardware=cpu", "--n", "-1"],
            "expected a whole number of at least 1, found '-1'",
        ),
        (["best", "--hardware=cpu", "--n=0"], "of at least 1, found '0'"),
        (["best", "--hardware=disk"], "expected records of disk in .* found only cpu, gpu"),
        (["best", "--hardware=cpu", "--target=cuda"], "found only those for .*core-avx2"),
        (["best", "--hardware=cpu", "--workload=x"], "There are: c+ .conv., d+"),
        (["stats", "--limit"], "expected a value after --limit, found none"),
        (["stats", "--yaml"], "expected an option of .*--json, --csv, --limit.*, found '--yaml'"),
        (["stats", "--json", "--csv"], "one of --json and --csv"),
        (["stats", "--store=x", "--build=y"], "one of --store and --build"),
        (["stats", "--store=nothing/there"], "expected a record store at nothing/there"),
        (["new", "--since=99"], "found since=99"),
    ],
)
def test_words_not_understood(refused: Callable[..., str], words: list[str], message: str) -> None:
    assert re.search(message, refused(*words))


@pytest.mark.parametrize("words", [["--dataset", "mine"], ["--dataset=mine"], ["dataset=mine"]])
def test_the_former_name_of_an_option_is_understood_and_said_so(
    words: list[str], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--dataset` is what records were imported as, in all of `records`; a build is `--build`."""
    cli.main(["records", "query", "stats", *words, "--json"])
    answer = capsys.readouterr()
    assert '"other"' in answer.out
    assert answer.err.startswith("tencost: old spelling: ")
    assert answer.err.count("\n") == 1
    assert "; write --build" in answer.err


def test_without_a_live_store_the_builds_are_named(
    project: Path, refused: Callable[..., str]
) -> None:
    shutil.rmtree(project / "data" / "store")
    assert "Or read what a build made: --build mine, or --store URI" in refused("stats")


def test_the_old_spelling_is_understood_and_said_so(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["records", "query", "best", "hardware=cpu", "--json", "workload=dense[1]", "n=2"])
    old = capsys.readouterr()
    words = ["--hardware", "cpu", "--json", "--workload", "dense[1]", "--n", "2"]
    cli.main(["records", "query", "best", *words])
    new = capsys.readouterr()
    assert (old.out, new.err) == (new.out, "")
    assert old.err == (
        "tencost: old spelling: hardware=cpu workload=dense[1] n=2; "
        "write --hardware cpu --workload 'dense[1]' --n 2\n"
    )
    cli.main(
        [
            "records",
            "query",
            "compare",
            "hardware=cpu",
            "other=gpu",
            "other_target=cuda -arch=sm_70",
        ]
    )
    assert "--other-target 'cuda -arch=sm_70'" in capsys.readouterr().err


def test_history_of_a_program_shows_all_its_measurements(
    project: Path, ask: Callable[..., str], refused: Callable[..., str]
) -> None:
    """What failed first and ran later is ok; each measurement is told, the answer's time is over all."""
    again = measured(3, 5e-3, "cpu", DENSE, LLVM)
    later = replace(again, provenance=Provenance(timestamp=2e9), run_secs=(3e-3, 4e-3))
    RecordStore(str(project / "data" / "store")).write([again, later])
    asked = ("history", "--hardware=cpu", "--program", "cpu-3")
    rows = json.loads(ask(*asked, "--json"))
    assert [(row["measurement"], row["status"], row["latency_s"]) for row in rows] == [
        (1, "run_error", None),
        (2, "ok", 5e-3),
        (3, "ok", 3.5e-3),
    ]
    assert "crashed" in ask(*asked)
    best = json.loads(ask("best", "--hardware=cpu", "--workload=ddd", "--n=3", "--json"))
    assert [row["latency_s"] for row in best] == [1.5e-3, 2e-3, 4e-3]
    trials = json.loads(ask("history", "--hardware=cpu", "--workload=ddd", "--json"))
    assert len(trials) == 3
    said = refused("history", "--hardware=cpu")
    assert "expected one of --workload and --program, found neither" in said
    assert "of 0: none" in refused("history", "--hardware=cpu", "--program", "xyz")
    assert "one program" in refused("history", "--hardware=cpu", "--program", "0")
