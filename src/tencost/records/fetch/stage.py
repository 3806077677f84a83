"""Stage fetch: a dataset from a folder, an archive or a URL to data/raw/<dataset>.

One of whole networks goes to graphs/data/raw/<dataset> where the project has that pipeline.

A dataset of several archives (``parts``) has a folder for each: data/raw/<dataset>/<part>. Archives are only ever added
to it, never packed anew, so that what was fetched, learnt and reported stays what it was.
"""

from __future__ import annotations

import shutil
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import replace
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from tencost.config import Config, DatasetConfig
from tencost.config.graph_outputs import graph_paths
from tencost.errors import DatasetError
from tencost.records.fetch.pack import sha256_of
from tencost.records.fetch.unpack import SUFFIXES, is_archive, unpack
from tencost.writing import put_folder, scratch_beside

_CHUNK_BYTES = 2**20
_TIMEOUT_S = 60


def run(cfg: Config, root: Path) -> Path:
    """Bring the dataset to data/raw/<name>/ (graphs/data/raw/<name>/), whole or not at all; return that folder.

    Raises:
        DatasetError: the source is missing, has another checksum, is damaged or hostile, or is no
        dataset.
    """
    paths = graph_paths(cfg.paths, root) if cfg.dataset.graphs else cfg.paths
    folder = root / paths.raw / cfg.dataset.name
    console = Console(stderr=True)
    with scratch_beside(folder) as scratch:
        content = scratch / "content"
        content.mkdir()
        if cfg.dataset.parts:
            whole = scratch / "whole"
            whole.mkdir()
            for part in _parts(cfg.dataset):
                (content / part.name).mkdir()
                _bring(part, root, content / part.name, scratch, console)
                dataset_top(content / part.name).rename(whole / part.name)
            put_folder(whole, folder, scratch)
        else:
            _bring(cfg.dataset, root, content, scratch, console)
            other = (
                cfg.dataset.graphs or cfg.dataset.hardware is not None or bool(cfg.dataset.devices)
            )
            put_folder(dataset_top(content, logs=other), folder, scratch)
    files = sum(1 for path in folder.rglob("*") if path.is_file())
    console.print(f"fetched {cfg.dataset.name}: {files} files in {folder}")
    return folder


def _parts(dataset: DatasetConfig) -> list[DatasetConfig]:
    """Return the archives that a dataset is made of, as datasets of their own."""
    return [
        replace(
            dataset, name=name, source=f"{dataset.source}/{name}.tar.zst", sha256=sha256, parts={}
        )
        for name, sha256 in dataset.parts.items()
    ]


def dataset_top(folder: Path, *, logs: bool = False) -> Path:
    """Return the folder that holds measure_records/: `folder`, or the only folder in it.

    Args:
        folder: what was fetched.
        logs: it may hold logs or networks in any other layout; the stage that reads them looks for them.

    Raises:
        DatasetError: there is no measure_records/ with a hardware and a whole database pair in it.
    """
    top = folder
    entries = list(folder.iterdir())
    if not (folder / "measure_records").is_dir() and len(entries) == 1 and entries[0].is_dir():
        top = entries[0]
    if logs and entries:
        return top
    records = sorted((top / "measure_records").glob("*/**/database_tuning_record.json"))
    if not records:
        listing = ", ".join(sorted(path.name for path in top.iterdir())[:8]) or "nothing"
        raise DatasetError(
            "expected measure_records/<hardware>/<task>/database_tuning_record.json in the "
            "dataset, found "
            f"{listing}. The layout is described in docs/how-to/your-own-data.md."
        )
    for path in records:
        if not path.with_name("database_workload.json").is_file():
            raise DatasetError(
                f"expected database_workload.json beside {path.relative_to(top)}, found none. "
                "Both files of a MetaSchedule database are needed."
            )
    return top


def _bring(
    dataset: DatasetConfig, root: Path, content: Path, scratch: Path, console: Console
) -> None:
    if "://" in dataset.source:
        archive = _download(dataset, scratch, console)
    else:
        source = Path(dataset.source).expanduser()
        source = source if source.is_absolute() else root / source
        if source.is_dir():
            _copy(dataset, source, content)
            return
        if not source.is_file():
            raise DatasetError(
                f"expected dataset {dataset.name} at {source} (a folder or an archive), found "
                "nothing. "
                f"Correct `source` in conf/dataset/{dataset.name}.yaml."
            )
        archive = source
    _verify(dataset, archive)
    unpack(archive, content)


def _verify(dataset: DatasetConfig, archive: Path) -> None:
    if dataset.sha256 is None:
        return
    digest = sha256_of(archive)
    if digest != dataset.sha256.lower():
        raise DatasetError(
            f"expected sha256 {dataset.sha256} of {dataset.source}, found {digest}. The "
            "archive is damaged or "
            f"another one; get it again, or correct conf/dataset/{dataset.name}.yaml if you "
            "trust it."
        )


def _copy(dataset: DatasetConfig, source: Path, content: Path) -> None:
    if dataset.sha256 is not None:
        raise DatasetError(
            f"expected no sha256 for the folder {source}: checksums are of archives. "
            f"Remove it from conf/dataset/{dataset.name}.yaml, or pack the folder."
        )
    for path in sorted(source.rglob("*")):
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise DatasetError(
                f"expected plain files in {source}, found {path}, a link or device. Copy what "
                "it stands for."
            )
    shutil.copytree(source, content, dirs_exist_ok=True)


def _download(dataset: DatasetConfig, scratch: Path, console: Console) -> Path:
    parts = urllib.parse.urlsplit(dataset.source)
    if parts.scheme != "https":
        raise DatasetError(
            "expected an https:// URL, a folder or an archive as dataset.source, found "
            f"{dataset.source}"
        )
    name = Path(urllib.parse.unquote(parts.path)).name
    if not is_archive(name):
        raise DatasetError(
            f"expected a URL of an archive ending in {', '.join(SUFFIXES)}, found {dataset.source}"
        )
    archive = scratch / name
    try:
        with urllib.request.urlopen(dataset.source, timeout=_TIMEOUT_S) as reply:
            _receive(reply, archive, console)
    except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
        raise DatasetError(
            f"expected to download {dataset.source}: {error}. Check the network and the "
            "address, then run "
            f"`tencost fetch dataset={dataset.name}` again."
        ) from error
    return archive


def _receive(response: HTTPResponse, archive: Path, console: Console) -> None:
    length = response.headers.get("Content-Length")
    total = int(length) if length and length.isdigit() else None
    received = 0
    with archive.open("wb") as file, Progress(console=console, transient=True) as progress:
        bar = progress.add_task(f"downloading {archive.name}", total=total)
        while chunk := response.read(_CHUNK_BYTES):
            file.write(chunk)
            received += len(chunk)
            progress.update(bar, completed=received)
    if total is not None and received != total:
        raise DatasetError(
            f"expected {total} bytes, found {received}: the connection broke. Run the command "
            "again."
        )
