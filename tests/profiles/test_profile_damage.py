"""Files of hardware counters that would have cost a traceback, or lost rows without a word."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import exports
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock

from tencost.cli.main import main
from tencost.errors import ProfileError
from tencost.records.counters import import_command
from tencost.records.counters.launches import Reject
from tencost.records.counters.reading import ReadProfiles, read_files, read_places
from tencost.records.counters.stored import load_profiles, save_profiles
from tencost.records.counters.table import Profiles

SHEET = "xl/worksheets/sheet1.xml"


def run(*words: object) -> int:
    try:
        main(["profiles", *map(str, words)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def read(path: Path) -> tuple[ReadProfiles, list[Reject]]:
    rejects: list[Reject] = []
    return read_files([path], on_reject=rejects.append), rejects


def sheet(path: Path, edit: Callable[[bytes], bytes] = lambda text: text, count: int = 4) -> Path:
    """Write launches as a sheet, its XML edited."""
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for number, cells in enumerate(csv.reader(io.StringIO(exports.plain(count)))):
        book.active.append(
            [float(c) if number > 1 and (at >= 11 or at == 0) else c for at, c in enumerate(cells)]
        )
    book.save(whole := io.BytesIO())
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, edit(content) if name == SHEET else content)
    return path


@pytest.mark.parametrize("told", ["A1", "A1:U3", "A1:N6", "A1:XFD1048576"])
def test_a_sheet_that_says_another_size_is_read_whole(tmp_path: Path, told: str) -> None:
    def edit(text: bytes) -> bytes:
        return re.sub(rb'<dimension ref="[^"]*"', f'<dimension ref="{told}"'.encode(), text)

    found, rejects = read(sheet(tmp_path / "a.xlsx", edit))
    assert (found.launches, rejects) == (4, [])
    assert np.isfinite(found.profiles.values).all()


def test_a_row_far_behind_the_end_of_any_sheet_is_told(tmp_path: Path) -> None:
    found, rejects = read(
        sheet(
            tmp_path / "a.xlsx", lambda text: text.replace(b'<row r="6"', b'<row r="99999999999"')
        )
    )
    assert found.launches == 3
    assert "rows at most" in rejects[-1].reason


@pytest.mark.parametrize("number", [b"1e999", b"9" * 400])
@pytest.mark.parametrize("cell", [b"A3", b"L3"])
def test_a_number_in_a_sheet_that_no_computer_holds_costs_its_cell_or_row(
    tmp_path: Path, number: bytes, cell: bytes
) -> None:
    def edit(text: bytes) -> bytes:
        return re.sub(rb'(<c r="%s"[^>]*><v>)[^<]*' % cell, rb"\g<1>%s" % number, text)

    found, _ = read(sheet(tmp_path / "a.xlsx", edit))
    assert found.launches >= 3
    assert np.isfinite(found.profiles.values).all()


@pytest.mark.filterwarnings("error")
def test_a_value_that_no_counter_reaches_is_a_reject(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(exports.plain(4).replace("12700.0", "1e308", 2))
    found, rejects = read(tmp_path / "a.csv")
    assert found.launches == 2
    assert [item.line for item in rejects] == [3, 4]


def test_units_without_rows_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("".join(exports.plain().splitlines(keepends=True)[:2]))
    with pytest.raises(ProfileError, match="expected rows behind the header"):
        read(tmp_path / "a.csv")


def test_files_without_launches_are_rejects_that_say_why(tmp_path: Path) -> None:
    """A folder is read whole: what the profiler itself reports is a reject at its line."""
    failed = "==PROF== Connected to process 7\n==ERROR== Unknown error on device 0.\n"
    header = exports.rows_text([[*exports.IDENTITY, exports.TIME]])
    contents = {
        "a.csv": exports.plain(),
        "b.log": failed,
        "c.log": "==PROF== Connected to process 7\n",
        "d.csv": header + failed,
        "e.csv": "",
        "f.txt": "words\n",
        "g.csv": exports.plain() + failed,
        ".hidden": "words\n",
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    found, rejects = read(tmp_path)
    assert (found.launches, found.rejects) == (2, 6)
    reasons = [(Path(item.file).name, item.line, item.reason) for item in rejects]
    error = "expected launches of kernels, found none: ==ERROR== Unknown error on device 0."
    assert reasons[:4] == [
        ("b.log", 2, error),
        ("c.log", 0, "expected launches of kernels, found none"),
        ("d.csv", 0, "expected rows behind the header, found none"),
        ("d.csv", 3, error),
    ]
    assert [(name, reason.rsplit("found ", 1)[1]) for name, _, reason in reasons[4:]] == [
        ("e.csv", "an empty file"),
        ("f.txt", "none of these in its 6 bytes"),
    ]
    (note,) = (note for note in found.notes if "==ERROR==" in note)
    assert note.endswith(f"g.csv:{exports.plain().count(chr(10)) + 2}: {error.split(': ')[1]}")


def test_files_without_counters_change_no_id(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x.csv").write_text(exports.plain())
    before = read(tmp_path)[0].profiles.program_id.tolist()
    (tmp_path / "README").write_text("words\n")
    assert read(tmp_path)[0].profiles.program_id.tolist() == before == ["x/fused_dense_kernel"]


def test_an_archive_is_read_as_the_folder_that_it_holds(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.csv").write_text(exports.plain())
    (tmp_path / "in" / "words.txt").write_text("words\n")
    shutil.make_archive(str(tmp_path / "packed" / "runs"), "gztar", tmp_path / "in")
    found, rejects = read(tmp_path / "packed")
    assert found.launches == 1
    assert [Path(item.file).relative_to(tmp_path).as_posix() for item in rejects] == [
        "packed/runs.tar.gz/words.txt"
    ]


def test_a_file_that_is_there_is_not_called_missing(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("==PROF== Connected to process 7\n")
    with pytest.raises(ProfileError, match=r"a\.log:0: expected launches of kernels, found none$"):
        read(tmp_path / "a.log")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ProfileError, match=r"empty, found none\. There is no file in there$"):
        read(tmp_path / "empty")


def test_a_note_of_many_files_is_given_once_with_their_number(tmp_path: Path) -> None:
    units = dict.fromkeys(exports.PLAIN, "")
    values = {name: value for name, (_, value) in exports.PLAIN.items()}
    text = exports.wide([(exports.who(0), values)], units, with_units=False)
    for number in range(39):
        (tmp_path / f"{number:02}.csv").write_text(text)
    (note,) = (note for note in read(tmp_path)[0].notes if "row of units" in note)
    assert note.endswith(f"(39 files, the first is {tmp_path / '00.csv'})")
    (tmp_path / "00.csv").rename(tmp_path / "00.txt")
    (note,) = (note for note in read(tmp_path / "00.txt")[0].notes if "row of units" in note)
    assert note.startswith(f"{tmp_path / '00.txt'}: no row of units")


def results(**changed: Any) -> str:
    """KTT's results; `changed` replaces a text in them."""
    text = json.dumps(exports.ktt(3))
    for old, new in changed.items():
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("where", ["RTX", "Convolution", "TILE", "word", "a__x", "Ok", "conv"])
def test_half_a_character_in_a_name_is_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    (tmp_path / "a.json").write_text(results(**{where: f"{where}\\ud800"}))
    assert run("import", tmp_path / "a.json", "--to", tmp_path / "to") == 2
    assert "ud800" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["program_id", "workload"])
def test_a_tuning_parameter_may_be_called_as_a_column(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.json").write_text(results(TILE=name))
    parameters = read(tmp_path / "a.json")[0].parameters
    assert parameters[f"{name} (parameter)"].to_list() == [0, 1, 2]
    assert parameters["program_id"].n_unique() == 3
    assert parameters["workload"].to_list() == ["Convolution"] * 3


def test_a_files_name_may_be_no_text(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    path = Path(os.fsdecode(os.fsencode(tmp_path / "a") + b"/k\xff.csv"))
    try:
        path.write_text(exports.plain(2).replace('"12700.0"', '"x"', 1))
    except OSError:
        pytest.skip("this file system refuses such names")
    assert run("import", tmp_path / "a", "--to", tmp_path / "to") == 0
    (reject,) = (tmp_path / "to" / "rejects.jsonl").read_text().splitlines()
    assert json.loads(reject)["file"].endswith(r"k\udcff.csv")
    assert load_profiles(tmp_path / "to").profiles.program_id[0].startswith(r"k\udcff/")


def test_a_pipe_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert run("import", tmp_path / "pipe", "--to", tmp_path / "to") == 2
    assert "found neither a file nor a folder" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text(exports.plain())
    (tmp_path / "in" / "b.csv").write_text(exports.plain())
    (tmp_path / "in" / "b.csv").chmod(0)
    assert run("import", tmp_path / "in", "--to", tmp_path / "to") == 0
    assert "Permission denied" in capsys.readouterr().err
    (tmp_path / "in").chmod(0)
    try:
        assert run("import", tmp_path / "in" / "a.csv", "--to", tmp_path / "to") == 2
    finally:
        (tmp_path / "in").chmod(0o700)
    assert "expected files of hardware counters that can be read" in capsys.readouterr().err


def test_an_import_that_fails_changes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.json").write_text(results())
    assert run("import", tmp_path / "a.json", "--to", tmp_path / "to") == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "to").iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(import_command, "save_profiles", full)
    (tmp_path / "b.json").write_text(results().replace('"Duration": 11.0', '"Duration": 11.0.'))
    assert run("import", tmp_path / "b.json", "--to", tmp_path / "to") == 2
    assert {path.name: path.read_bytes() for path in (tmp_path / "to").iterdir()} == before


def test_two_imports_into_one_folder_are_one_too_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text(exports.plain())
    (tmp_path / "to").mkdir()
    with FileLock(tmp_path / "to" / ".lock"):
        assert run("import", tmp_path / "a.csv", "--to", tmp_path / "to") == 2
    assert "found another import at it" in capsys.readouterr().err
    assert run("import", tmp_path / "a.csv", "--to", tmp_path / "to") == 0


def test_a_manifest_in_another_encoding_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text(exports.plain())
    (tmp_path / "m.csv").write_text("kernel,record_id\nk,a\n", encoding="utf-16")
    words = (
        "import",
        tmp_path / "a.csv",
        "--programs",
        tmp_path / "m.csv",
        "--to",
        tmp_path / "to",
    )
    assert run(*words) == 2
    assert "Save it as UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    "told",
    [{"units": {}}, {"units": []}, {"units": {"m": 3}}, {"metrics": ["m", "m"]}, {"metrics": [1]}],
)
def test_a_table_with_other_metadata_is_one_sentence(tmp_path: Path, told: dict[str, Any]) -> None:
    ids = np.array(["a"])
    path = tmp_path / "a.parquet"
    save_profiles(path, Profiles(ids, ids, ids, ("m",), np.ones((1, 1)), np.ones(1)), {"m": "ns"})
    table = pq.read_table(path)
    about = {"version": 1, "metrics": ["m"], "units": {"m": "ns"}} | told
    pq.write_table(
        table.replace_schema_metadata({b"tencost.profiles": json.dumps(about).encode()}), path
    )
    with pytest.raises(ProfileError, match="Make it again"):
        load_profiles(path)


def test_damaged_parameters_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(results())
    assert run("import", tmp_path / "a.json", "--to", tmp_path / "to") == 0
    for place in (tmp_path / "to", tmp_path / "to" / "profiles.parquet"):
        profiles, parameters, _ = read_places([place])
        assert len(profiles) == 3
        assert parameters is not None
        assert parameters["TILE"].to_list() == [0, 1, 2]
    path = tmp_path / "to" / "parameters.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ProfileError, match="Make it again"):
        read_places([tmp_path / "to"])
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(ProfileError, match="expected program_id"):
        read_places([tmp_path / "to"])
