"""The stage `features`: every program of the records, once, turned into rows of named columns."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tencost.config import Config
from tencost.errors import FeatureError
from tencost.features.extractor import spec_for
from tencost.features.parallel import CHUNK, Featurized, featurize, with_names
from tencost.features.rows.joined import append_parts
from tencost.features.rows.kind import Chunk, kind_of
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.features.table import FILE, load_features, save_features
from tencost.store.tables import load_records, load_workloads

_IDS = ("program_id", "workload_id")


def run(cfg: Config, root: Path) -> Path:
    """Write data/features/<dataset>/<feature set>/ and return the folder.

    Rows are sorted by workload and program, so that the same records give the same bytes. Device columns are not
    stored: they are appended where samples are loaded.

    Raises:
        FeatureError: not one program could be featurized.
    """
    console = Console(stderr=True)
    spec = spec_for(cfg.features)
    source = root / cfg.paths.records / cfg.dataset.name
    records = load_records(source, columns=["program_id", "workload_id", "program", "target"])
    chunks = make_chunks(records, load_workloads(source))
    total = sum(len(chunk.program_ids) for chunk in chunks)
    finished, waiting = _joined_with_stored(cfg, root, spec, chunks)
    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"features {spec.name}", total=total)
        progress.advance(task, len(finished))
        jobs = cfg.jobs if kind_of(spec).lowers else 1
        for results in featurize(spec, waiting, jobs, execution=cfg.execution):
            finished += results
            progress.advance(task, len(results))
    finished.sort(key=lambda program: (program.workload_id, program.program_id))
    good = [program for program in finished if program.rows is not None]
    failures = [
        {name: getattr(program, name) for name in (*_IDS, "reason")}
        for program in finished
        if program.rows is None
    ]
    if not good:
        reason = failures[0]["reason"] if failures else "there are no records"
        raise FeatureError(
            f"expected programs that can be featurized in {source}, found none of {total}; the first reason: {reason}"
        )
    blocks = [program.rows for program in good if program.rows is not None]
    rows = Ragged.from_blocks(blocks, len(spec.columns))
    folder = root / cfg.paths.features / cfg.dataset.name / spec.name
    ids, workload_ids = ([getattr(program, name) for program in good] for name in _IDS)
    save_features(folder, spec, ids, workload_ids, rows, failures)
    console.print(
        f"features {spec.name}: {len(good)} programs, {len(rows.values)} rows of {len(spec.columns)} columns"
        + (f"; {len(failures)} failed, see {folder / 'failures.jsonl'}" if failures else "")
    )
    return folder


def _joined_with_stored(
    cfg: Config, root: Path, spec: FeatureSpec, chunks: list[Chunk]
) -> tuple[list[Featurized], list[Chunk]]:
    """For a joined kind, take the rows of its first part from the feature set of that name: lowering is what costs.

    Returns:
        The programs that are done, and the chunks of those that are not.
    """
    parts = list(kind_of(spec).parts)
    folder = root / cfg.paths.features / cfg.dataset.name / parts[0] if parts else None
    if folder is None or not (folder / FILE).is_file():
        return [], chunks
    base = load_features(folder)
    finished: list[Featurized] = []
    waiting = []
    for chunk in chunks:
        rows = base.select(chunk.program_ids)
        if (rows.lengths == 0).any():
            waiting.append(chunk)
        else:
            blocks = [rows[index] for index in range(len(rows))]
            finished += with_names(chunk, append_parts(spec, chunk, blocks))
    return finished, waiting


def make_chunks(records: pl.DataFrame, workloads: pl.DataFrame) -> list[Chunk]:
    """Group the distinct programs of the records by workload, at most CHUNK a piece, in a fixed order."""
    modules = dict(zip(workloads["workload_id"], workloads["mod_json"], strict=True))
    programs = records.sort("workload_id", "program_id", "target").unique(
        "program_id", keep="first", maintain_order=True
    )
    chunks = []
    for (workload_id,), group in programs.group_by("workload_id", maintain_order=True):
        for piece in group.iter_slices(CHUNK):
            ids, texts = tuple(piece["program_id"]), tuple(piece["program"])
            module, target = modules[workload_id], piece["target"][0]
            chunks.append(Chunk(str(workload_id), module, target, ids, texts))
    return chunks
