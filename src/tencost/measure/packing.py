"""A collection as datasets/<name>.tar.zst with conf/dataset/<name>.yaml and its card: what the stage fetch takes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
from omegaconf import OmegaConf
from rich.console import Console

from tencost.config import SplitConfig
from tencost.config.checking import instantiate
from tencost.config.composition import load_yaml
from tencost.config.pipeline import read_params
from tencost.errors import ConfigError, MeasureError, SplitError
from tencost.measure.card import dataset_card
from tencost.measure.collection import Collection, write_whole
from tencost.measure.journal import mend_journal
from tencost.records.databases import Import, import_dataset
from tencost.records.fetch.pack import pack_folder
from tencost.records.formats.metaschedule import RECORD_FILE
from tencost.splits.policies import assign, can_be_learnt, filling_share
from tencost.store.status import Status

PARTS = ("network_info", "to_measure_programs", "measure_records", "tasks.json")
"""What goes into the archive, beside the card as README.md."""
NOTES_FILE = "NOTES.md"
"""What a person has to say about a collection: becomes part of its card."""
SPLITS = ("by_network", "by_task", "within_task")
"""Splits from the strictest to the one that always works."""
LARGE_MIB = 25
"""Above this an archive is better kept outside git."""


def pack_collection(collection: Collection, root: Path, console: Console) -> Path:
    """Pack what was measured; return the archive. The same collection gives the same bytes.

    Raises:
        MeasureError: nothing was measured, another process measures at this moment, or the disk is full.
    """
    name = collection.name
    if not collection.hardware():
        raise MeasureError(
            f"expected measurements in {collection.path}/measure_records, found none. Measure first: tencost measure "
            f"run measure.name={name} hardware=local"
        )
    archive = root / "datasets" / f"{name}.tar.zst"
    with ExitStack() as locks:
        for hardware in collection.hardware():
            locks.enter_context(collection.locked(hardware))
        for path in sorted((collection.path / "measure_records").glob(f"**/{RECORD_FILE}")):
            mend_journal(path.parent)
        collection.write_index()
        imported = import_dataset(collection.path, name)
        card = dataset_card(name, imported, _origins(collection), _notes(collection))
        write_whole(root / "datasets" / f"{name}.md", card)
        with console.status(f"packing {name}"), tempfile.TemporaryDirectory() as scratch:
            staged = Path(scratch) / name
            staged.mkdir()
            for part in PARTS:
                _link_all(collection.path / part, staged / part)
            (staged / "README.md").write_text(card, encoding="utf-8")
            sha256 = pack_folder(staged, archive)
    described = _describe(root, name, sha256, len(imported.records), card)
    size = archive.stat().st_size / 2**20
    console.print(
        f"packed {len(imported.records)} records into datasets/{name}.tar.zst ({size:.1f} MiB), described in "
        f"{described.relative_to(root)} and datasets/{name}.md. "
        f"{next_step(root, name, collection.hardware(), imported)}",
        markup=False,
        soft_wrap=True,
    )
    if size > LARGE_MIB:
        console.print(
            f"{size:.0f} MiB is much for git: keep it elsewhere and name the place as `source` in "
            f"{described.relative_to(root)}",
            style="yellow",
        )
    return archive


def next_step(root: Path, name: str, hardware: Sequence[str], imported: Import) -> str:
    """Return what to do to train on it: the lines of params.yaml that are to be changed, if any."""
    split, reason, share = fitting_split(root, imported)
    also = "" if share is None else f", `valid_fraction: {share}` into conf/split/{split}.yaml,"
    changes = {
        "dataset": name,
        "hardware": f"[{', '.join(hardware)}]",
        "split": f"{split}{f'  # {reason}' if reason else ''}",
    }
    present: dict[str, Any] = {}
    with suppress(ConfigError):
        present = read_params(root)
    instead = ""
    if present.get("dataset") == name and set(hardware) <= set(present["hardware"]):
        if split == present.get("split"):
            put = f"put{also[1:]} and " if also else ""
            return f"To train on it, {put}run `tencost pipeline`."
        changes = {"split": changes["split"]}
        instead = f" in place of `split: {present.get('split')}`"
    lines = "\n".join(f"  {key}: {setting}" for key, setting in changes.items())
    return f"To train on it, put this into params.yaml{instead}{also} and run `tencost pipeline`:\n{lines}"


def _notes(collection: Collection) -> str:
    path = collection.path / NOTES_FILE
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def fitting_split(root: Path, imported: Import) -> tuple[str, str, float | None]:
    """Return the strictest split that a collection fills, as :func:`strictest_split`, of what has a time if any has."""
    timed = [record for record in imported.records if record.status is Status.ok]
    columns = ("record_id", "program_id", "workload_id", "task_name", "hardware")
    records = pl.DataFrame(
        [
            {column: getattr(record, column) for column in columns}
            | {"timestamp": record.provenance.timestamp}
            for record in timed or imported.records
        ]
    )
    tasks = pl.DataFrame([asdict(task) for task in imported.tasks])
    return strictest_split(root / "conf", records, tasks)


def strictest_split(
    conf: Path, records: pl.DataFrame, tasks: pl.DataFrame, names: Sequence[str] = SPLITS
) -> tuple[str, str, float | None]:
    """Return the strictest split of conf/split that the dataset fills, and why the stricter ones do not fit.

    A few networks are too few to hold some out, a few tasks too few to divide; programs of a task can always be,
    but where there are few of them the share that is kept for validation has to be larger.

    Args:
        conf: the project's folder of choices.
        records: those that have a time, as `splits.policies.assign` takes them.
        tasks: as it takes them.
        names: splits from the strictest on.

    Returns:
        Name of the split, why not those before it, and the `valid_fraction` that it needs, None: its own.
    """
    reasons = []
    for name in names:
        path = conf / "split" / f"{name}.yaml"
        if not path.is_file():
            continue
        config = instantiate(SplitConfig, load_yaml(path), "split.")
        try:
            split = assign(records, tasks, config)
        except SplitError as error:
            reasons.append(f"not {name}: {str(error).partition(':')[0]}")
            continue
        if can_be_learnt(split):
            return name, "; ".join(reasons), None
        reasons.append(f"not {name}: no workload has two programs in its valid or test part")
        share = filling_share(records, tasks, config)
        if name == names[-1] and share is not None:
            return name, "; ".join(reasons[:-1]), share
    return names[-1], "; ".join([*reasons, "measure more programs first"]), None


def _origins(collection: Collection) -> Counter[str]:
    count: Counter[str] = Counter()
    for task in collection.tasks(0.0):
        origin = collection.origin(task)
        count.update(text.partition(":")[0] for text in (origin.origins if origin else ()))
    return count


def _describe(root: Path, name: str, sha256: str, records: int, card: str) -> Path:
    """Write conf/dataset/<name>.yaml; what a person changed in an older one stays, the checksum is new."""
    path = root / "conf" / "dataset" / f"{name}.yaml"
    fields = {"name": name, "source": f"datasets/{name}.tar.zst"}
    if path.is_file():
        fields = load_yaml(path)
    description = card.splitlines()[2].partition(", collected")[0]
    fields |= {"sha256": sha256, "description": description}
    head = f"# Collected with `tencost measure`: {records} records. Its card: datasets/{name}.md\n"
    write_whole(path, head + OmegaConf.to_yaml(OmegaConf.create(fields)))
    return path


def _link_all(source: Path, target: Path) -> None:
    """Make the same files at another place, hidden ones apart."""
    if source.is_file():
        _link(source, target)
    elif source.is_dir():
        hidden = shutil.ignore_patterns(".*")
        shutil.copytree(source, target, copy_function=_link, ignore=hidden)


def _link(source: str | Path, target: str | Path) -> None:
    """Copy a file, without its content where the file system allows it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
