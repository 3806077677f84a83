"""Hostile and damaged archives: nothing is written outside, everything is refused by name."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tencost.errors import DatasetError
from tencost.records.fetch import unpack as unpack_module
from tencost.records.fetch.unpack import SUFFIXES, unpack

Member = tuple[str, bytes, bytes]
"""Name, kind (a tarfile type) and content or link target."""


def tar_bytes(members: list[Member]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            if kind == tarfile.REGTYPE:
                member.size = len(content)
            else:
                member.linkname = content.decode()
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def write_tar_zst(path: Path, members: list[Member]) -> Path:
    path = path.with_name(path.name + ".tar.zst")
    path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(tar_bytes(members)))
    return path


def write_tar_gz(path: Path, members: list[Member], suffix: str = ".tar.gz") -> Path:
    import gzip

    path = path.with_name(path.name + suffix)
    path.write_bytes(gzip.compress(tar_bytes(members)))
    return path


def write_tgz(path: Path, members: list[Member]) -> Path:
    return write_tar_gz(path, members, ".tgz")


MODES = {
    tarfile.REGTYPE: stat.S_IFREG,
    tarfile.SYMTYPE: stat.S_IFLNK,
    tarfile.DIRTYPE: stat.S_IFDIR,
    tarfile.CHRTYPE: stat.S_IFCHR,
    tarfile.FIFOTYPE: stat.S_IFIFO,
}


def write_zip(path: Path, members: list[Member]) -> Path:
    path = path.with_name(path.name + ".zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, kind, content in members:
            folder = kind == tarfile.DIRTYPE
            info = zipfile.ZipInfo(name + "/" if folder else name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (MODES[kind] | 0o644) << 16
            file.writestr(info, b"" if folder else content)
    return path


Write = Callable[[Path, list[Member]], Path]
FORMATS = [write_tar_zst, write_tar_gz, write_tgz, write_zip]
every_format = pytest.mark.parametrize("write", FORMATS)
REG = tarfile.REGTYPE


def test_every_suffix_is_tested(tmp_path: Path) -> None:
    found = {write(tmp_path / "x", []).name.removeprefix("x") for write in FORMATS}
    assert found == set(SUFFIXES)


@every_format
def test_honest(tmp_path: Path, write: Write) -> None:
    archive = write(
        tmp_path / "x", [("a", tarfile.DIRTYPE, b""), ("a/b", REG, b"one"), ("./c", REG, b"two")]
    )
    out = tmp_path / "out"
    out.mkdir()
    assert unpack(archive, out) == 2
    assert (out / "a" / "b").read_bytes() == b"one"
    assert (out / "c").read_bytes() == b"two"


@every_format
@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([("../x", REG, b"")], "leaves the folder"),
        ([("a/../../x", REG, b"")], "leaves the folder"),
        ([("/tmp/x", REG, b"")], "absolute path"),
        ([("C:/x", REG, b"")], "absolute path"),
        ([("a\\..\\x", REG, b"")], "not a plain name"),
        ([(".", REG, b"")], "not a plain name"),
        ([("..", tarfile.DIRTYPE, b"")], "leaves the folder"),
        ([("link", tarfile.SYMTYPE, b"/etc"), ("link/x", REG, b"")], "a link"),
        ([("pipe", tarfile.FIFOTYPE, b"")], "a device"),
        ([("device", tarfile.CHRTYPE, b"")], "a device"),
        ([("a", REG, b""), ("a/b", REG, b"")], "both file and folder"),
        ([("a/b", REG, b""), ("a", REG, b"")], "both file and folder"),
        ([("a", REG, b""), ("./a", REG, b"")], "occurs twice"),
    ],
)
def test_hostile(tmp_path: Path, write: Write, members: list[Member], why: str) -> None:
    archive = write(tmp_path / "x", [("fine", REG, b"fine"), *members])
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(DatasetError, match=f"expected plain files .* found .*{why}"):
        unpack(archive, out)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["out", archive.name])
    assert not any(path.is_symlink() for path in out.rglob("*"))


@pytest.mark.parametrize("write", FORMATS[:3])
def test_hard_links(tmp_path: Path, write: Write) -> None:
    archive = write(tmp_path / "x", [("a", REG, b""), ("b", tarfile.LNKTYPE, b"/etc/passwd")])
    (tmp_path / "out").mkdir()
    with pytest.raises(DatasetError, match="'b': a link"):
        unpack(archive, tmp_path / "out")


@every_format
def test_too_large(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack_module, "MIN_LIMIT_BYTES", 1000)
    monkeypatch.setattr(unpack_module, "MAX_RATIO", 2)
    (tmp_path / "out").mkdir()
    with pytest.raises(DatasetError, match="bytes unpacked"):
        unpack(write(tmp_path / "x", [("zeros", REG, bytes(100_000))]), tmp_path / "out")


@every_format
@given(cut=st.floats(0.0, 0.9))
@settings(max_examples=10, deadline=None)
def test_cut_short(tmp_path_factory: pytest.TempPathFactory, write: Write, cut: float) -> None:
    tmp_path = tmp_path_factory.mktemp("cut")
    archive = write(tmp_path / "x", [(f"f{n}", REG, bytes(range(256)) * n) for n in range(1, 9)])
    data = archive.read_bytes()
    archive.write_bytes(data[: int(len(data) * cut)])
    (tmp_path / "out").mkdir()
    with pytest.raises(DatasetError, match=r"expected a whole archive|expected files in"):
        unpack(archive, tmp_path / "out")


@every_format
def test_flipped_bits(tmp_path: Path, write: Write) -> None:
    archive = write(tmp_path / "x", [("f", REG, bytes(range(256)) * 9)])
    data = bytearray(archive.read_bytes())
    data[len(data) // 3] ^= 0xFF
    archive.write_bytes(data)
    (tmp_path / "out").mkdir()
    with pytest.raises(DatasetError, match="expected"):
        unpack(archive, tmp_path / "out")


@every_format
def test_empty(tmp_path: Path, write: Write) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(DatasetError, match="expected files in"):
        unpack(write(tmp_path / "x", []), tmp_path / "out")


def test_other_suffix(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"expected an archive ending in \.tar\.zst"):
        unpack(tmp_path / "x.rar", tmp_path)
