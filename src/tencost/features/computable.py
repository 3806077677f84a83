"""Which feature kinds can be computed from records: asked of some of their programs, not of their format's name.

Old logs carry programs without modules, or modules that this TVM cannot load; kinds that need one have no rows there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tencost.config import FeaturesConfig
from tencost.config.parts import FEATURE_KINDS
from tencost.features.extractor import spec_for
from tencost.features.parallel import featurize, featurize_chunk
from tencost.features.rows.kind import FeatureKind
from tencost.features.stage import make_chunks
from tencost.store.tables import load_records, load_workloads

WORKLOADS, PROGRAMS = 32, 2
"""Workloads that are looked at, at most, and programs of each."""
ENOUGH = 0.8
"""A kind is as good as the one that reads most programs if it reads this share of theirs."""
COLUMNS = ("program_id", "workload_id", "program", "program_format", "target")


@dataclass(frozen=True)
class Readable:
    """What became of the programs that were looked at.

    Attributes:
        looked_at: number of programs.
        rows: feature kind -> how many of them it gives rows for.
        reasons: feature kind -> why the first program has none; kinds without such a program are not in it.
    """

    looked_at: int
    rows: Mapping[str, int]
    reasons: Mapping[str, str]

    def allows(self, kind: str) -> bool:
        """Say whether a kind reads about as many programs as the one that reads most."""
        return self.rows[kind] > 0 and self.rows[kind] >= ENOUGH * max(self.rows.values())

    def best(self) -> str | None:
        """Return the kind that a new project should take: of those that read about the most, the preferred one."""
        kinds = [name for name in self.rows if self.allows(name)]
        return max(kinds, key=lambda name: (_kind(name).preference, name), default=None)


def readable(
    records: pl.DataFrame, workloads: pl.DataFrame, kinds: tuple[str, ...] | None = None
) -> Readable:
    """Try feature kinds on some programs, spread over the workloads.

    Args:
        records: COLUMNS.
        workloads: workload_id, mod_json.
        kinds: which; None: all.
    """
    programs = _some(records)
    rows: dict[str, int] = {}
    reasons: dict[str, str] = {}
    requested = kinds or FEATURE_KINDS.names()
    for name in dict.fromkeys(
        part for kind in requested for part in (_kind(kind).parts or (kind,))
    ):
        rows[name], reason = _try(name, programs, workloads)
        if reason:
            reasons[name] = reason
    for name in requested:
        if parts := _kind(name).parts:
            rows[name] = min(rows[part] for part in parts)
            if reason := next((reasons[part] for part in parts if part in reasons), ""):
                reasons[name] = reason
    return Readable(len(programs), {name: rows[name] for name in requested}, reasons)


def readable_stored(folder: Path, kinds: tuple[str, ...]) -> Readable:
    """Try feature kinds on some programs of a dataset's records that have a time, as :func:`readable`.

    Args:
        folder: data/records/<dataset>.
        kinds: which.

    Raises:
        RecordError: no records or no workloads there.
    """
    records = load_records(folder, columns=COLUMNS).filter(pl.col("latency_s").is_not_null())
    return readable(records, load_workloads(folder), kinds)


def _try(name: str, programs: pl.DataFrame, workloads: pl.DataFrame) -> tuple[int, str]:
    """Return for how many programs a kind has rows, and why not for the first one that it has none for."""
    kind = _kind(name)
    mine = programs.filter(pl.col("program_format").is_in(kind.program_formats))
    if not len(mine):
        formats = ", ".join(sorted(programs["program_format"].unique().to_list())) or "none"
        return (
            0,
            f"it reads programs of format {' or '.join(kind.program_formats)}, found {formats}",
        )
    spec = spec_for(FeaturesConfig(name=name, kind=name))
    chunks = make_chunks(mine, workloads)
    # TVM may crash on a program: a process of its own. What only reads text is done here.
    outcomes = (
        featurize(spec, chunks, 1)
        if kind.lowers
        else (featurize_chunk(spec, chunk) for chunk in chunks)
    )
    featurized = [program for some in outcomes for program in some]
    reasons = [program.reason for program in featurized if program.rows is None]
    return len(featurized) - len(reasons), next(iter(reasons), "")


def _kind(name: str) -> FeatureKind:
    kind: FeatureKind = FEATURE_KINDS.load(name)
    return kind


def _some(records: pl.DataFrame) -> pl.DataFrame:
    """Return PROGRAMS programs each of WORKLOADS workloads, evenly spread over those of each format."""
    distinct = records.unique("program_id", keep="first").sort("workload_id", "program_id")
    few = distinct.group_by("workload_id", maintain_order=True).head(PROGRAMS)
    parts = []
    for _, group in few.group_by("program_format", maintain_order=True):
        ids = group["workload_id"].unique(maintain_order=True)
        spread = ids.gather_every(max(1, -(-len(ids) // WORKLOADS)))
        parts.append(group.filter(pl.col("workload_id").is_in(spread.implode())))
    return pl.concat(parts) if parts else few
