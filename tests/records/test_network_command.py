"""`tencost records compare` and `regress`, on small real stores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network_times import DAY_S, FIRST_DAY, latencies, timing

from tencost import cli
from tencost.errors import RecordError
from tencost.records.network_times.compare import compare
from tencost.records.network_times.regress import Change, Verdict, changes, parse_since
from tencost.records.network_times.runs import read_runs
from tencost.records.network_times.timing import NetworkTiming, write_timings
from tencost.store.record_store import RecordStore
from tencost.store.schema import Provenance, Record, Source, to_arrow
from tencost.store.status import Status

DAYS = 8
CUT = "2026-11-16"
"""Two of the eight days are since."""


def nights(slow: float = 1.0, **fields: Any) -> list[NetworkTiming]:
    """Return a run a night, those since CUT `slow` times as long."""
    return [timing(day, 1e-3 * (slow if day >= DAYS - 2 else 1.0), **fields) for day in range(DAYS)]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def found_in(uri: str, since: str = CUT, **keywords: Any) -> list[Change]:
    runs = read_runs(uri)
    return changes(runs, parse_since(since, runs), **keywords)


def run(*words: str) -> int:
    try:
        cli.main(["records", *words])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[dict[str, Any]]]:
    code = run(*words, "--json")
    return code, json.loads(capsys.readouterr().out)


def write_engines(uri: str) -> None:
    """Write three engines, of one of which there are two versions."""
    for engine, version, middle_s, days in (
        ("pytorch", "2.13", 2e-3, range(4)),
        ("onnxruntime", "1.22", 1.5e-3, range(4)),
        ("tencost", "0.2.0", 1.8e-3, range(2)),
        ("tencost", "0.3.0", 1.2e-3, range(2, 4)),
    ):
        made = [timing(day, middle_s, engine=engine, engine_version=version) for day in days]
        write_timings(uri, made)


def test_engines_and_versions_side_by_side(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_engines(uri)
    code, rows = asked(capsys, "compare", "--store", uri)
    assert code == 0
    names = [(row["engine"], row["version"]) for row in rows]
    assert names == [
        ("tencost", "0.3.0"), ("onnxruntime", "1.22"), ("tencost", "0.2.0"), ("pytorch", "2.13"),
    ]  # fmt: skip
    fastest, slowest = rows[0], rows[-1]
    assert fastest["q1_s"] < fastest["median_s"] < fastest["q3_s"]
    assert fastest["median_s"] == pytest.approx(1.2e-3, rel=0.03)
    assert fastest["ratio"] == pytest.approx(0.6, abs=0.03)
    assert fastest["ratio_low"] < fastest["ratio"] < fastest["ratio_high"]
    assert (fastest["runs"], fastest["n"], fastest["failed"]) == (2, 40, 0)
    assert (slowest["ratio"], slowest["ratio_low"]) == (1.0, None)


@pytest.mark.parametrize(
    ("by", "baseline", "ones"),
    [
        ("engine", None, ["pytorch"]),
        ("engine", "onnxruntime", ["onnxruntime"]),
        ("engine,version", "0.2.0", ["tencost/0.2.0"]),
        ("engine,version", "tencost", ["tencost/0.3.0"]),  # of two the one timed last
        ("engine,version", "tencost/0.2.0", ["tencost/0.2.0"]),
        ("version", None, ["2.13", "1.22", "0.2.0"]),  # a group an engine: the first of each
    ],
)
def test_what_others_are_compared_with(
    uri: str, by: str, baseline: str | None, ones: Sequence[str]
) -> None:
    write_engines(uri)
    rows = compare(read_runs(uri), by.split(","), baseline).to_dicts()
    found = ["/".join(row[name] for name in by.split(",")) for row in rows if row["ratio"] == 1]
    assert sorted(found) == sorted(ones)


def test_what_is_not_compared_by_is_not_mixed(uri: str) -> None:
    write_timings(uri, nights())
    write_timings(uri, nights(host="other"))
    write_timings(uri, nights(cores=2))
    write_timings(uri, nights(hardware="xeon"))
    runs = read_runs(uri)
    assert compare(runs, ["engine"]).height == 4
    hosts = compare(runs, ["host"], "ci")
    assert hosts.filter(hardware="epyc", cores=1).height == 2
    assert hosts.filter(host="other")["ratio"].is_not_null().all()
    assert compare(runs, ["cores"]).filter(host="ci", hardware="epyc")["cores"].to_list() == [1, 2]
    days = compare(runs, ["day"]).filter(host="other")
    assert days["day"].to_list() == sorted(days["day"])
    assert len(days) == DAYS
    assert days["ratio"][0] == 1.0


def test_runs_that_failed_are_counted_and_not_averaged(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_timings(uri, [timing(0), timing(1, error="no"), timing(0, engine="tvm", error="no")])
    _, rows = asked(capsys, "compare", "--store", uri)
    assert [(row["engine"], row["runs"], row["failed"]) for row in rows] == [
        ("tencost", 1, 1), ("tvm", 0, 1),
    ]  # fmt: skip
    assert rows[1]["median_s"] is rows[1]["ratio"] is None
    assert run("compare", "--store", uri) == 0
    told = capsys.readouterr().out
    assert "failed" in told
    assert "does not hold the noise between runs" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--by", "engine,flavour"], "host, day, hardware, cores to compare by, found flavour"),
        (["--by", ","], "found none"),
        (["--baseline", "mxnet"], "pytorch/2.13, tencost/0.2.0, tencost/0.3.0, found 'mxnet'"),
        (["--network", "vgg"], "found only those with bert_tiny-s128"),
        (["--hardware", "v100"], "found only those with epyc"),
        (["--json", "--csv"], "expected one of --json and --csv"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_said(
    uri: str, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_engines(uri)
    assert run("compare", *words, "--store", uri) == 2
    assert told in capsys.readouterr().err


def test_what_became_slower_is_found_and_nothing_else(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_timings(uri, nights(1.2))
    write_timings(uri, nights(engine="onnxruntime"))
    write_timings(uri, nights(0.8, network="resnet_18"))
    plot = tmp_path / "over-time.png"
    code, rows = asked(capsys, "regress", "--since", CUT, "--store", uri, "--plot", str(plot))
    assert code == 1
    assert [(row["network"], row["engine"], row["verdict"]) for row in rows] == [
        ("bert_tiny-s128", "tencost", "slower"),
        ("bert_tiny-s128", "onnxruntime", "same"),
        ("resnet_18-s128", "tencost", "faster"),
    ]
    worst = rows[0]
    assert worst["ratio"] == pytest.approx(1.2, abs=0.03)
    assert 1.05 < worst["ratio_low"] < worst["ratio"] < worst["ratio_high"]
    assert (worst["before_runs"], worst["since_runs"]) == (6, 2)
    assert worst["since_q1_s"] < worst["since_s"] < worst["since_q3_s"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert run("regress", "--since", CUT, "--store", uri) == 1
    told = capsys.readouterr().out
    assert "slower: bert_tiny-s128 with tencost on epyc (ci): 1." in told
    assert "1 of 3 became slower by more than 5 % and their noise, or fail." in told
    words = ["--since", CUT, "--store", uri]
    assert run("regress", *words, "--engine", "onnxruntime") == 0
    assert run("regress", *words, "--margin", "25") == 0


def test_a_network_that_cannot_be_timed_any_more_is_a_regression(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_timings(uri, [*nights()[:-1], timing(DAYS - 1, error="TVM cannot compile it: erf")])
    plot = tmp_path / "over-time.png"
    assert run("regress", "--since", CUT, "--store", uri, "--plot", str(plot)) == 1
    told = capsys.readouterr().out
    assert "fails: bert_tiny-s128 with tencost on epyc (ci): TVM cannot compile it: erf" in told
    assert plot.is_file()
    write_timings(uri, [timing(DAYS)])  # mended
    assert run("regress", "--since", CUT, "--store", uri) == 0
    write_timings(uri, [replace(one, engine="tvm") for one in nights()[:6]])
    write_timings(uri, [timing(day, engine="tvm", error="no") for day in (6, 7)])
    (change, _) = found_in(uri)
    assert (change.verdict, change.ratio) == (Verdict.failed, None)


def test_what_failed_before_and_works_now_is_not_compared(uri: str) -> None:
    write_timings(uri, nights(engine="tvm"))
    write_timings(uri, [timing(0, error="no"), timing(DAYS - 1)])
    assert [change.since[0].engine for change in found_in(uri)] == ["tvm"]


def test_the_noise_between_runs_decides(uri: str) -> None:
    for host, between in (("quiet", 0.005), ("noisy", 0.15)):
        made = [
            timing(day, host=host, seconds=latencies((1.12e-3 if day >= 6 else 1e-3), day, between=between))
            for day in range(DAYS)
        ]  # fmt: skip
        write_timings(uri, made)
    verdicts = {change.since[0].host: change.verdict for change in found_in(uri)}
    assert verdicts == {"quiet": Verdict.slower, "noisy": Verdict.unclear}


def test_one_run_on_either_side_has_twice_the_margin(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, slow in (("seven", 1.07), ("twenty", 1.2)):
        for day, middle_s in ((0, 1e-3), (7, 1e-3 * slow)):
            seconds = latencies(middle_s, day, between=0)
            write_timings(uri, [timing(day, network=name, seconds=seconds)])
    verdicts = {change.since[0].name: change.verdict for change in found_in(uri)}
    assert verdicts["twenty"] is Verdict.slower
    assert verdicts["seven"] is not Verdict.slower
    assert run("regress", "--since", CUT, "--store", uri) == 1
    assert "with one run on either side, by more than 10 %" in capsys.readouterr().out


def test_a_version_divides_by_when_it_was_first_seen(uri: str) -> None:
    old = [timing(day, 1e-3, engine_version="0.2.0") for day in (0, 1, 2, 6)]  # 6: timed again
    new = [timing(day, 1.3e-3, engine_version="0.3.0") for day in (4, 5)]
    newer = [timing(7, 1.3e-3, engine_version="0.3.1")]
    write_timings(uri, [*old, *new, *newer])
    (change,) = found_in(uri, "0.3.0")
    assert change.verdict is Verdict.slower
    assert {run.version for run in change.before} == {"0.2.0"}
    assert len(change.before) == 4
    assert {run.version for run in change.since} == {"0.3.0", "0.3.1"}
    assert change.changed == "tencost 0.2.0 -> 0.3.1"


def test_a_version_of_what_the_engine_stands_on_divides_too(uri: str) -> None:
    old, new = ({"versions": {"tencost": "9", "tvm": tvm}} for tvm in ("0.26", "0.27"))
    write_timings(uri, [timing(day, info=old) for day in range(3)])
    write_timings(uri, [timing(day, 1.3e-3, info=new) for day in range(3, 6)])
    (change,) = found_in(uri, "0.27")
    assert (change.verdict, len(change.before)) == (Verdict.slower, 3)
    assert change.changed == "tvm 0.26 -> 0.27"


def test_only_the_last_runs_before_count(uri: str) -> None:
    """What was fast long ago and slow since then did not become slower last night."""
    made = [timing(day, 1e-3 if day < 3 else 1.5e-3) for day in range(DAYS)]
    write_timings(uri, made)
    assert found_in(uri, last=3)[0].verdict is not Verdict.slower
    assert len(found_in(uri, last=3)[0].before) == 3


def test_hosts_count_as_one_where_that_is_said(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_timings(uri, [replace(one, host=f"runner-{at}") for at, one in enumerate(nights(1.3))])
    assert run("regress", "--since", CUT, "--store", uri) == 2
    told = capsys.readouterr().err
    assert "expected a host that was timed before it and since" in told
    assert "TENCOST_HOST" in told
    assert run("regress", "--since", CUT, "--store", uri, "--any-host") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--since", "yesterday"], "expected a day (2026-11-22, UTC) or a version of 0.2.0, "),
        (["--since", "2026-13-01"], "expected a day of the calendar, found 2026-13-01"),
        (["--since", "2027-01-01"], "expected runs since it, found none: the 2 runs are from 2026-11-10 to 2026-11-15"),
        (["--since", "2026-11-01"], "expected runs before it, found none"),
        (["--since", "0.2.0"], "expected runs before it, found none"),
        (["--since", "2026-11-12"], "a hardware that was timed before it and since, found before epyc, since xeon"),
        (["--since", "2026-11-12", "--hardware", "v100"], "found only those with epyc, xeon"),
        (["--since", "2026-11-12", "--granularity", "task"], "expected networks timed task in"),
        ([], "expected --since DAY|VERSION"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_said(
    uri: str, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_timings(uri, [timing(0), timing(5, hardware="xeon", engine_version="0.3.0")])
    assert run("regress", *words, "--store", uri) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_a_store_without_networks_is_bad_input(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("regress", "--since", CUT, "--store", uri) == 2
    assert "expected times of whole networks in" in capsys.readouterr().err
    assert run("compare", "--store", uri) == 2


def test_networks_without_anything_in_common_are_said_so(uri: str) -> None:
    """Each word for itself is on both sides, but no two runs agree in all."""
    write_timings(uri, [timing(0, network="a", engine="x"), timing(0, network="b", engine="y")])
    write_timings(uri, [timing(9, network="a", engine="y"), timing(9, network="b", engine="x")])
    with pytest.raises(RecordError, match="compare --by engine,version,day"):
        found_in(uri)


def test_a_plot_that_cannot_be_written_is_bad_input(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_timings(uri, nights())
    (tmp_path / "file").touch()
    plot = str(tmp_path / "file" / "plot.png")
    assert run("regress", "--since", CUT, "--store", uri, "--plot", plot) == 2
    assert "--plot: expected a file that can be written" in capsys.readouterr().err


def measured(number: int, day: float, middle_s: float) -> Record:
    return Record(
        record_id=f"r{number}",
        program_id=f"p{number}",
        workload_id="w",
        task_name="matmul",
        networks=(),
        hardware="epyc",
        target={"kind": "llvm"},
        program_format="metaschedule_trace",
        program="[[],[]]",
        run_secs=latencies(middle_s, int(100 * day) + number, n=5),
        status=Status.ok,
        error="",
        source=Source("tune", "f", number),
        provenance=Provenance(timestamp=FIRST_DAY + day * DAY_S),
    )


def test_programs_that_were_measured_again_are_compared_too(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = RecordStore(uri)
    for day in (0, 1, 2, 7):
        slow = 1.4 if day == 7 else 1.0
        made = [measured(1, day, slow * 1e-3), measured(2, day, 1e-3)]
        store.write_table(to_arrow(made))
    store.write_table(to_arrow([measured(3, 0, 1e-3)]))  # once: nothing to compare
    code, rows = asked(capsys, "regress", "--since", CUT, "--programs", "--store", uri)
    assert code == 1
    assert [row["network"] for row in rows] == ["matmul/r1", "matmul/r2"]
    assert rows[0]["verdict"] == "slower" != rows[1]["verdict"]
    assert (rows[0]["before_runs"], rows[0]["since_runs"]) == (3, 1)
    words = ["regress", "--since", CUT, "--programs"]
    assert run(*words, "--store", uri, "--engine", "pytorch") == 2
    assert "measured more than once, found none that is asked for" in capsys.readouterr().err


def test_runs_are_read_in_order_of_time(uri: str) -> None:
    write_timings(uri, list(reversed(nights())))
    stamps = [run.timestamp for run in read_runs(uri)]
    assert stamps == sorted(np.asarray(stamps))
