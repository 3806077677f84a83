from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
import zstandard

from tencost.errors import DatasetError
from tencost.records.fetch.pack import pack_folder, sha256_of
from tencost.records.fetch.unpack import unpack


def make(folder: Path, names: list[str]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"text of {name}\n" * 3)
    return folder


def test_the_archive_depends_on_content_only(tmp_path: Path) -> None:
    one = make(tmp_path / "one", ["b/x.json", "a.json", "b/a/y.json"])
    two = make(tmp_path / "two", ["b/a/y.json", "a.json", "b/x.json"])
    os.utime(two / "a.json", (1, 1))
    (two / "a.json").chmod(0o600)
    (two / "empty").mkdir()
    first = pack_folder(one, tmp_path / "one.tar.zst")
    assert first == pack_folder(two, tmp_path / "out" / "two.tar.zst")
    assert first == sha256_of(tmp_path / "one.tar.zst")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "one.tar.zst", "out", "two"]
    packed = io.BytesIO((tmp_path / "one.tar.zst").read_bytes())
    data = zstandard.ZstdDecompressor().stream_reader(packed).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == ["a.json", "b/a/y.json", "b/x.json"]
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in members} == {
        (0, 0, 0, "", "", 0o644)
    }


def test_round_trip(tmp_path: Path) -> None:
    names = ["b/x.json", "a.json", f"{'long' * 30}/{'name' * 20}.json"]
    source = make(tmp_path / "source", names)
    pack_folder(source, tmp_path / "x.tar.zst")
    (tmp_path / "out").mkdir()
    assert unpack(tmp_path / "x.tar.zst", tmp_path / "out") == 3
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()


def test_what_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="expected a folder with files to pack"):
        pack_folder(tmp_path, tmp_path / "x.tar.zst")
    source = make(tmp_path / "source", ["a"])
    (source / "link").symlink_to("a")
    with pytest.raises(DatasetError, match=r"expected regular files only to pack, found .*link"):
        pack_folder(source, tmp_path / "x.tar.zst")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
