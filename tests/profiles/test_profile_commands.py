"""`tencost profiles import` and `show`, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import exports
import numpy as np
import pytest

from tencost.cli.main import main
from tencost.errors import ProfileError
from tencost.records.counters import import_command
from tencost.records.counters.stored import load_profiles, save_profiles
from tencost.records.counters.table import Profiles
from tencost.store.record import Record, Source
from tencost.store.record_store import RecordStore
from tencost.store.status import Status


def run(*words: object) -> int:
    try:
        main(["profiles", *map(str, words)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_counters_go_into_a_table_and_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = exports.plain(3, Kernel_Name="fused").replace('"12700.0"', '"1x"', 1)
    (tmp_path / "raw.csv").write_text(text)
    assert run("import", tmp_path / "raw.csv", "--to", tmp_path / "to", "--hardware", "v100") == 0
    told = capsys.readouterr().err
    for words in (
        "launches",
        "2",
        "programs",
        "1 (0 joined",
        "rejects",
        "raw.csv:3: expected a number",
    ):
        assert words in told
    rejects = [
        json.loads(line) for line in (tmp_path / "to" / "rejects.jsonl").read_text().splitlines()
    ]
    assert [(Path(item["file"]).name, item["line"]) for item in rejects] == [("raw.csv", 3)]
    stored = load_profiles(tmp_path / "to")
    assert stored.profiles.time_ns.tolist() == [12_700.0]
    assert stored.units["dram__bytes_read.sum"] == "byte"
    assert run("show", tmp_path / "to", "--metric", exports.TIME) == 0
    shown = capsys.readouterr().out
    assert exports.TIME in shown
    assert "12,700" in shown
    assert "smsp__inst_executed.sum" not in shown
    assert run("show", tmp_path / "to" / "profiles.parquet") == 0
    assert "smsp__inst_executed.sum" in capsys.readouterr().out


def test_the_projects_own_stores_are_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = "0123456789abcdef" * 2
    record = Record(
        record_id=known, program_id="p", workload_id="w", task_name="dense", networks=(), hardware="gpu",
        target={"kind": "cuda"}, program_format="metaschedule_trace", program="[]", run_secs=(1e-3,),
        status=Status.ok, error="", source=Source("made-up", "a", 1),
    )  # fmt: skip
    RecordStore(str(tmp_path / "data" / "store")).write([record])
    (tmp_path / f"{known}.csv").write_text(exports.plain())
    import_command.run([tmp_path / f"{known}.csv"], tmp_path, to=tmp_path / "to")
    assert "1 (1 joined with records)" in capsys.readouterr().err
    assert load_profiles(tmp_path / "to").profiles.workload.tolist() == ["w"]


def test_mistakes_end_with_2_and_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "raw.csv").write_text(exports.plain())
    assert run("import", tmp_path / "raw.csv", "--to", tmp_path / "to") == 0
    capsys.readouterr()
    for words, told in (
        (("import", tmp_path / "nothing.csv", "--to", tmp_path / "other"), "found nothing"),
        (("import", tmp_path / "raw.csv", "--to", tmp_path / "raw.csv"), "expected to write"),
        (
            (
                "import",
                tmp_path / "raw.csv",
                "--programs",
                tmp_path / "m.csv",
                "--to",
                tmp_path / "other",
            ),
            "manifest",
        ),
        (("show", tmp_path / "nowhere"), "tencost profiles import"),
        (("show", tmp_path / "to", "--metric", "dram__bytes_reads.sum"), "dram__bytes_read.sum"),
    ):
        assert run(*words) == 2, words
        message = capsys.readouterr().err
        assert told in message
        assert "Traceback" not in message
    assert not (tmp_path / "other" / "profiles.parquet").exists()


def test_a_table_comes_back_as_it_was(tmp_path: Path) -> None:
    values = np.array([[1.0, np.nan], [0.1 + 0.2, -0.0]])
    ids = np.array(["a", "ü"])
    profiles = Profiles(ids, ids, ids, ("x__y.sum", "time.ns"), values, np.array([5.0, np.nan]))
    save_profiles(tmp_path / "a.parquet", profiles, {"x__y.sum": "inst"})
    again = load_profiles(tmp_path / "a.parquet")
    assert again.profiles.metrics == profiles.metrics
    assert again.units == {"x__y.sum": "inst", "time.ns": ""}
    np.testing.assert_array_equal(again.profiles.values, values)
    np.testing.assert_array_equal(again.profiles.time_ns, profiles.time_ns)
    assert again.profiles.program_id.tolist() == ["a", "ü"]
    taken = again.profiles.take(np.array([1]))
    assert taken.program_id.tolist() == ["ü"]
    with pytest.raises(ProfileError, match=r"expected the metric z, found 2 others: x__y\.sum"):
        taken.column("z")


def test_a_damaged_table_is_one_sentence(tmp_path: Path) -> None:
    ids = np.array(["a"])
    save_profiles(
        tmp_path / "a.parquet", Profiles(ids, ids, ids, ("m",), np.ones((1, 1)), np.ones(1)), {}
    )
    whole = (tmp_path / "a.parquet").read_bytes()
    for size in range(0, len(whole), 97):
        (tmp_path / "b.parquet").write_bytes(whole[:size])
        with pytest.raises(ProfileError):
            load_profiles(tmp_path / "b.parquet")
