"""The fetch stage: every kind of source, every way it can be wrong, and never half a dataset."""

from __future__ import annotations

import io
import shutil
import urllib.error
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import yaml

from tencost.config import Config, DatasetConfig
from tencost.errors import ConfigError, DatasetError
from tencost.records.fetch import stage
from tencost.records.fetch.pack import pack_folder, sha256_of

PAIR = ("database_workload.json", "database_tuning_record.json")


def make_dataset(folder: Path, text: str = "1") -> Path:
    task = folder / "measure_records" / "cpu" / "task"
    task.mkdir(parents=True)
    for name in PAIR:
        (task / name).write_text(text)
    return folder


def config(source: str, sha256: str | None = None) -> Config:
    return Config(dataset=DatasetConfig(name="set", source=source, sha256=sha256))


def files_of(root: Path) -> list[str]:
    """Return what is under data/raw, hidden leftovers included."""
    raw = root / "data" / "raw"
    return sorted(path.relative_to(raw).as_posix() for path in raw.rglob("*") if path.is_file())


WHOLE = sorted(f"set/measure_records/cpu/task/{name}" for name in PAIR)


def test_folder(tmp_path: Path) -> None:
    make_dataset(tmp_path / "source")
    assert stage.run(config("source"), tmp_path) == tmp_path / "data" / "raw" / "set"
    assert files_of(tmp_path) == WHOLE
    assert stage.run(config(str(tmp_path / "source")), tmp_path).is_dir()
    assert files_of(tmp_path) == WHOLE


def test_archive_replaces_what_was_there(tmp_path: Path) -> None:
    sha256 = pack_folder(make_dataset(tmp_path / "source", "2"), tmp_path / "x.tar.zst")
    stale = tmp_path / "data" / "raw" / "set" / "stale"
    stale.parent.mkdir(parents=True)
    stale.touch()
    stage.run(config("x.tar.zst", sha256.upper()), tmp_path)
    assert files_of(tmp_path) == WHOLE


def test_an_archive_of_one_folder(tmp_path: Path) -> None:
    make_dataset(tmp_path / "source" / "tencost-set")
    pack_folder(tmp_path / "source", tmp_path / "x.tar.zst")
    stage.run(config("x.tar.zst"), tmp_path)
    assert files_of(tmp_path) == WHOLE


def test_a_dataset_of_several_archives_has_a_folder_for_each(tmp_path: Path) -> None:
    (tmp_path / "datasets").mkdir()
    parts = {
        name: pack_folder(
            make_dataset(tmp_path / name, name), tmp_path / "datasets" / f"{name}.tar.zst"
        )
        for name in ("first", "second")
    }
    dataset = DatasetConfig(name="set", source="datasets", parts=parts)
    stage.run(Config(dataset=dataset), tmp_path)
    task = "measure_records/cpu/task"
    assert files_of(tmp_path) == sorted(
        f"set/{part}/{task}/{name}" for part in parts for name in PAIR
    )
    folder = tmp_path / "data" / "raw" / "set"
    assert (folder / "second" / task / PAIR[0]).read_text() == "second"
    (tmp_path / "datasets" / "second.tar.zst").write_bytes(b"another one")
    with pytest.raises(DatasetError, match=r"expected sha256 .* of datasets/second\.tar\.zst"):
        stage.run(Config(dataset=dataset), tmp_path)
    assert (folder / "second" / task / PAIR[0]).read_text() == "second"


def test_parts_have_the_checksums() -> None:
    with pytest.raises(ConfigError, match=r"dataset\.parts\.a must be 64 hex digits"):
        DatasetConfig(name="set", source="datasets", parts={"a": "12"})
    with pytest.raises(ConfigError, match=r"dataset\.parts must be letters"):
        DatasetConfig(name="set", source="datasets", parts={"../a": "0" * 64})
    with pytest.raises(ConfigError, match="found both"):
        DatasetConfig(name="set", source="datasets", sha256="0" * 64, parts={"a": "0" * 64})


@pytest.fixture
def fetched(tmp_path: Path) -> Path:
    """A project that has the dataset already."""
    make_dataset(tmp_path / "old")
    stage.run(config("old"), tmp_path)
    shutil.rmtree(tmp_path / "old")
    return tmp_path


def refuses(root: Path, cfg: Config, match: str) -> None:
    with pytest.raises(DatasetError, match=match):
        stage.run(cfg, root)
    assert files_of(root) == WHOLE


def test_wrong_sources_leave_the_old_dataset(fetched: Path) -> None:
    refuses(
        fetched, config("none.tar.zst"), r"found nothing\. Correct `source` in conf/dataset/set"
    )
    (fetched / "x.rar").touch()
    refuses(fetched, config("x.rar"), "expected an archive ending in")
    (fetched / "x.tar.zst").write_bytes(b"no archive at all")
    refuses(fetched, config("x.tar.zst"), "expected a whole archive")
    refuses(fetched, config("x.tar.zst", "0" * 64), f"expected sha256 {'0' * 64} .* found ")


def test_wrong_folders_leave_the_old_dataset(fetched: Path) -> None:
    source = make_dataset(fetched / "source")
    refuses(fetched, config("source", "0" * 64), "expected no sha256 for the folder")
    (source / "link").symlink_to("/etc")
    refuses(fetched, config("source"), "expected plain files")
    (source / "link").unlink()
    (source / "measure_records" / "cpu" / "task" / PAIR[0]).unlink()
    refuses(fetched, config("source"), f"expected {PAIR[0]} beside")
    shutil.rmtree(source / "measure_records" / "cpu")
    refuses(fetched, config("source"), "expected measure_records/.* found measure_records")
    shutil.rmtree(source)
    source.mkdir()
    refuses(fetched, config("source"), "found nothing")


def test_interrupted_unpacking_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_folder(make_dataset(tmp_path / "source"), tmp_path / "x.tar.zst")

    def interrupted(archive: Path, folder: Path) -> int:
        make_dataset(folder)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stage, "unpack", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stage.run(config("x.tar.zst"), tmp_path)
    assert files_of(tmp_path) == []
    stage.run(config("x.tar.zst"), tmp_path)
    assert files_of(tmp_path) == WHOLE


def test_what_a_killed_run_left_is_swept(tmp_path: Path) -> None:
    """kill -9 leaves a hidden folder that nothing reads; the next run removes it."""
    make_dataset(tmp_path / "source")
    left = tmp_path / "data" / "raw" / ".set.999999999.partial" / "content"
    left.mkdir(parents=True)
    (left / "x").touch()
    stage.run(config("source"), tmp_path)
    assert files_of(tmp_path) == WHOLE


class Reply(io.BytesIO):
    """What urlopen returns, as far as the stage uses it."""

    def __init__(self, data: bytes, length: int | None) -> None:
        super().__init__(data)
        self.headers = Message()
        if length is not None:
            self.headers["Content-Length"] = str(length)


@pytest.mark.parametrize("announced", [True, False])
def test_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, announced: bool) -> None:
    pack_folder(make_dataset(tmp_path / "source"), tmp_path / "x.tar.zst")
    data = (tmp_path / "x.tar.zst").read_bytes()
    sha256 = sha256_of(tmp_path / "x.tar.zst")
    asked = []

    def urlopen(url: str, timeout: float) -> Reply:
        asked.append(url)
        return Reply(data, len(data) if announced else None)

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    stage.run(config("https://host/sets/x.tar.zst?version=3", sha256), tmp_path)
    assert asked == ["https://host/sets/x.tar.zst?version=3"]
    assert files_of(tmp_path) == WHOLE


def test_broken_downloads(fetched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses(fetched, config("http://host/x.zip"), "expected an https:// URL")
    refuses(fetched, config("https://host/page.html"), "expected a URL of an archive")

    def unreachable(*_: Any, **__: Any) -> Any:
        raise urllib.error.URLError("no route")

    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    refuses(fetched, config("https://host/x.zip"), r"no route.*tencost fetch dataset=set")
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: Reply(b"abc", 10))
    refuses(fetched, config("https://host/x.zip"), "expected 10 bytes, found 3")


def test_the_committed_parts_are_those_of_their_own_datasets() -> None:
    """Archives that were committed are never packed anew: whoever learnt from them can make the same records again."""
    root = Path(__file__).resolve().parents[2]
    datasets = [yaml.safe_load(p.read_text()) for p in (root / "conf" / "dataset").glob("*.yaml")]
    alone = {one["source"]: one["sha256"] for one in datasets if "sha256" in one}
    parts = {part: sha for one in datasets for part, sha in one.get("parts", {}).items()}
    assert "tencost-epyc-variants" in parts
    for part, sha256 in parts.items():
        archive = f"datasets/{part}.tar.zst"
        assert sha256_of(root / archive) == sha256 == alone[archive]
