"""Archives of logs, and files that would not end: opened member by member, or one clear reject."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tencost import cli
from tencost.records.logs import Logs, Progress, find_logs, import_logs
from tencost.store.record_store import RecordStore

CONF = Path(__file__).resolve().parents[2] / "conf"
KEY = '["matmul_layer", 64, 64, 64]'


def ansor_line(number: int) -> str:
    task = [KEY, "cuda -keys=cuda,gpu", [80, 16, 64, 49152, 2147483647, 1024, 8, 32], "", 0, []]
    state = [[], [["SP", 2, 0, 64, [number + 1], 1], ["AN", 2, 0, 5]]]
    return json.dumps({"i": [task, state], "r": [[1e-3], 0, 1.5, 1637575039], "v": "v0.6"}) + "\n"


def log(first: int, count: int) -> bytes:
    return "".join(map(ansor_line, range(first, first + count))).encode()


MEMBERS = {
    "logs/a.json": log(0, 15),
    "logs/deep/b.json": log(15, 15),
    "logs/c.gz": gzip.compress(log(30, 10)),
}


def tar(members: dict[str, bytes], extra: tuple[tarfile.TarInfo, ...] = ()) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as file:
        for item in extra:
            file.addfile(item)
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return sink.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return sink.getvalue()


PACKERS: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "x.tar": tar,
    "x.tar.gz": lambda members: gzip.compress(tar(members)),
    "x.tar.zst": lambda members: zstandard.compress(tar(members)),
    "x.zip": zipped,
    "named-otherwise": lambda members: gzip.compress(tar(members)),
}


def imported(path: Path, store: Path) -> tuple[Logs, Progress]:
    logs = find_logs([path], "set", "board")
    return logs, import_logs(logs, RecordStore(str(store)), jobs=1)


@pytest.mark.parametrize("name", PACKERS)
@pytest.mark.parametrize("in_folder", [False, True])
def test_each_member_of_an_archive_is_a_log(name: str, in_folder: bool, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(PACKERS[name](MEMBERS))
    path = tmp_path / "in" if in_folder else tmp_path / "in" / name
    logs, progress = imported(path, tmp_path / "store")
    assert [item.about.file for item in logs.files] == sorted(f"{name}/{file}" for file in MEMBERS)
    assert (progress.written, progress.rejects) == (40, [])
    places = [item.path for item in logs.files]
    del logs
    assert not any(place.exists() for place in places), "nothing is left behind"


@pytest.mark.parametrize("name", ["x.tar.gz", "x.zip"])
def test_members_that_may_not_be_unpacked_cost_only_themselves(name: str, tmp_path: Path) -> None:
    members = {
        "../evil.json": log(0, 1),
        "/abs.json": log(1, 1),
        "in.zip": zipped(MEMBERS),
        "ok.json": log(2, 3),
    }
    (tmp_path / name).write_bytes(PACKERS[name](members))
    _, progress = imported(tmp_path / name, tmp_path / "store")
    assert progress.written == 3
    told = {item.file: item.reason for item in progress.rejects}
    assert set(told) == {f"{name}/../evil.json", f"{name}//abs.json", f"{name}/in.zip"}
    assert "leaves the folder" in told[f"{name}/../evil.json"]
    assert "in an archive" in told[f"{name}/in.zip"]
    assert not list(tmp_path.rglob("evil.json"))


def test_links_and_long_names_are_refused(tmp_path: Path) -> None:
    link = tarfile.TarInfo("link.json")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    data = gzip.compress(tar({"n" * 300: log(0, 1), "ok.json": log(2, 3)}, (link,)))
    (tmp_path / "x.tgz").write_bytes(data)
    _, progress = imported(tmp_path / "x.tgz", tmp_path / "store")
    assert progress.written == 3
    reasons = sorted(item.reason for item in progress.rejects)
    assert reasons == ["not unpacked: a link", "not unpacked: a name that is too long"]


def test_a_cut_archive_keeps_what_is_there(tmp_path: Path) -> None:
    data = gzip.compress(tar({"a.json": log(0, 40), "b.json": log(40, 8000)}))
    (tmp_path / "x.tar.gz").write_bytes(data[: len(data) // 2])
    _, progress = imported(tmp_path / "x.tar.gz", tmp_path / "store")
    assert 40 < progress.written < 8040
    assert any("ends early" in item.reason for item in progress.rejects)


def test_a_cut_zip_is_not_taken_for_the_one_in_it(tmp_path: Path) -> None:
    """Python looks for a directory from the end, and finds that of the last member."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as file:  # members as they are
        file.writestr("a.json", log(0, 9))
        file.writestr("in.zip", zipped({"b.json": log(20, 3)}))
    (tmp_path / "x.zip").write_bytes(sink.getvalue()[:-30])
    _, progress = imported(tmp_path / "x.zip", tmp_path / "store")
    assert not progress.written
    (reject,) = progress.rejects
    assert "ends early or is damaged: members that its directory lacks" in reject.reason


def test_other_compressions_are_refused_by_name(tmp_path: Path) -> None:
    import bz2
    import lzma

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.tar.xz").write_bytes(lzma.compress(tar(MEMBERS)))
    (tmp_path / "in" / "b.bz2").write_bytes(bz2.compress(log(0, 3)))
    (tmp_path / "in" / "c.json").write_bytes(log(0, 3))
    _, progress = imported(tmp_path / "in", tmp_path / "store")
    assert progress.written == 3
    assert [(item.file, item.reason.split()[0]) for item in progress.rejects] == [
        ("a.tar.xz", "xz"),
        ("b.bz2", "bzip2"),
    ]


def blank_gzip(path: Path, mebibytes: int, first: bytes = b"") -> None:
    """Write blank lines without end, as small as gzip makes them."""
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(first)
        for _ in range(mebibytes):
            file.write(b"\n" * (1 << 20))


def test_blank_lines_without_end_are_one_reject(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    blank_gzip(tmp_path / "in" / "blank.gz", 100)
    blank_gzip(tmp_path / "in" / "after.gz", 100, log(0, 5))
    blank_gzip(tmp_path / "in" / "before.gz", 0, b"\n" * 500_000 + log(5, 5))
    _, progress = imported(tmp_path / "in", tmp_path / "store")
    assert progress.written == 10
    assert [item.file for item in progress.rejects] == ["blank.gz", "after.gz"]
    assert all("blank lines" in item.reason for item in progress.rejects)


def test_a_bomb_ends_at_a_limit_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with gzip.open(tmp_path / "in" / "bomb.json.gz", "wb", compresslevel=9) as file:
        file.write(log(0, 5))
        for _ in range(80):
            file.write(b'{"i": [' + b" " * (1 << 20) + b"\n")
    blob = gzip.compress(tar({"a.json": log(5, 5), "b.json": b"x" * (80 << 20)}))
    (tmp_path / "in" / "bomb.tar.gz").write_bytes(blob)
    _, progress = imported(tmp_path / "in", tmp_path / "store")
    assert progress.written == 10
    told = {item.file: item.reason for item in progress.rejects}
    assert "times the compressed file" in told["bomb.json.gz"]
    assert "bytes unpacked; not read on" in told["bomb.tar.gz/b.json"]


@pytest.mark.parametrize("size", [10, 600_000, 5_000_000])
@pytest.mark.parametrize("bad", [b"x", b'{"a": ['])
def test_a_bad_first_line_of_any_length_hides_nothing(
    size: int, bad: bytes, tmp_path: Path
) -> None:
    (tmp_path / "x.json").write_bytes(bad * (size // len(bad)) + b"\n" + log(0, 400))
    _, progress = imported(tmp_path / "x.json", tmp_path / "store")
    assert progress.written == 400
    assert [item.line for item in progress.rejects] == [1]


def run_cli(*words: str) -> int:
    try:
        cli.main(["records", *words])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import shutil

    shutil.copytree(CONF, tmp_path / "project" / "conf")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def test_rejects_of_an_earlier_import_are_gone_after_a_clean_one(project: Path) -> None:
    place = project / "x.json"
    place.write_bytes(log(0, 3) + b"{\n")
    assert run_cli("import", "x.json", "--hardware", "board") == 0
    rejects = project / "data" / "rejects" / "x.jsonl"
    assert rejects.is_file()
    place.write_bytes(log(0, 4))
    assert run_cli("import", "x.json", "--hardware", "board") == 0
    assert not rejects.exists()


@pytest.mark.parametrize("place", ["file/store", "file", "/proc/nowhere/store"])
def test_a_store_that_cannot_be_written_is_one_clear_error(
    place: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "x.json").write_bytes(log(0, 3))
    (project / "file").write_text("no folder\n")
    assert run_cli("import", "x.json", "--hardware", "board", "--store", place) == 2
    told = capsys.readouterr().err
    assert told.count("tencost:") == 1
    assert "record store" in told
    assert place in told


def test_only_blank_lines_are_told_as_such(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blank_gzip(project / "blank.gz", 64)
    assert run_cli("import", "blank.gz", "--hardware", "board") == 2
    assert "blank.gz: more than 1048576 bytes of blank lines" in capsys.readouterr().err
