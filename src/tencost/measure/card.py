"""The card of a collected dataset: what it holds, how it was measured, how noisy it was; Markdown from its records."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from tencost.programs.codegen.spaces import is_register_tile
from tencost.records.databases import Import
from tencost.store.generator import age
from tencost.store.schema import Record
from tencost.store.status import Status
from tencost.workers.evaluator import coefficient_of_variation

_ORIGINS = (
    "A program is *random* (a sample of the task's design spaces), *evolved* (picked by a search that a model steers) "
    "or *near* good ones: a tile of registers known to be good, a fast program re-fitted to the task, or a mutation of "
    "either."
)


def dataset_card(name: str, imported: Import, origins: Counter[str], notes: str = "") -> str:
    """Return the card.

    Args:
        name: the dataset's name.
        imported: all that it holds.
        origins: programs by how they were made.
        notes: what a person has to say about it, Markdown.
    """
    records = imported.records
    programs = len({record.program_id for record in records})
    workloads = {record.workload_id for record in records}
    shares = ", ".join(
        f"{count / origins.total():.0%} {origin}" for origin, count in origins.most_common()
    )
    tiled = _register_tiles(records) / max(programs, 1)
    parts = [
        f"# {name}",
        f"{len(records)} records of {programs} programs and {len(workloads)} workloads, collected with `tencost "
        f"measure`. Programs: {shares}; {tiled:.0%} are register tiles, the others of TVM's space.",
        _ORIGINS,
        "## Networks\n\n" + _table(_networks(imported)),
        "## Hardware\n\n" + _table(_hardware(records)),
        "## Code generators\n\n" + _table(generator_rows(records)),
        "## How it was measured\n\n" + _table(_sessions(records)),
        "Noise is the time of a fixed reference kernel over its best time in the session; spread is the standard "
        "deviation of a record's times over their mean, for records with more than one time. Programs slower than "
        "`slow_ms` were timed once. Failures are statuses, never times.",
    ]
    return "\n\n".join([*parts, *([notes] if notes else [])]) + "\n"


def generator_rows(records: Iterable[Record]) -> list[list[str]]:
    """Return the rows of a table of records by hardware and code generator, a head first."""
    counts = Counter((record.hardware, record.generator) for record in records)
    rows = sorted(counts, key=lambda pair: (pair[0], age(pair[1])))
    head = ["hardware", "code generator", "records"]
    return [head, *([hardware, text, str(counts[hardware, text])] for hardware, text in rows)]


def _register_tiles(records: Sequence[Record]) -> int:
    """Return how many distinct programs are of the space of register tiles."""
    texts = {
        record.program_id: record.program
        for record in records
        if record.program_format == "metaschedule_trace"
    }
    return sum(is_register_tile(json.loads(text)[0]) for text in texts.values())


def _networks(imported: Import) -> list[list[Any]]:
    head = ["network", "tasks", "measured", "share of its FLOP", "programs", "records", "failures"]
    rows: list[list[Any]] = [head]
    by_network: defaultdict[str, list[Record]] = defaultdict(list)
    for record in imported.records:
        for use in record.networks:
            by_network[use.network].append(record)
    for network in sorted({task.network for task in imported.tasks}):
        tasks = [task for task in imported.tasks if task.network == network]
        measured = [task for task in tasks if task.measured]
        work, share = (sum(task.flop * task.weight for task in part) for part in (tasks, measured))
        records = by_network[network]
        programs = {record.program_id for record in records}
        amounts = [len(tasks), len(measured), f"{share / max(work, 1.0):.1%}", len(programs)]
        rows.append([network, *amounts, len(records), _failures(records)])
    return rows


def _hardware(records: Sequence[Record]) -> list[list[Any]]:
    rows: list[list[Any]] = [
        ["hardware", "records", "failures", "spread, median", "spread, 90 %", "noise, median"]
    ]
    for hardware in sorted({record.hardware for record in records}):
        here = [record for record in records if record.hardware == hardware]
        repeated = [record.run_secs for record in here if len(record.run_secs) > 1]
        spreads = sorted(map(coefficient_of_variation, repeated))
        extras = [record.extra or {} for record in here]
        noise = [extra["noise"] for extra in extras if "noise" in extra]
        median = f"{statistics.median(spreads):.1%}" if spreads else ""
        most = f"{spreads[int(0.9 * (len(spreads) - 1))]:.1%}" if spreads else ""
        noisy = f"{statistics.median(noise):.3f}" if noise else ""
        rows.append([hardware, len(here), _failures(here), median, most, noisy])
    return rows


def _sessions(records: Iterable[Record]) -> list[list[Any]]:
    """One row for each way in which records were measured: host, versions, evaluator settings."""
    rows = set()
    for record in records:
        about = record.provenance
        settings = (about.execution_config or {}).items()
        row = (
            record.hardware,
            f"{about.hw_model or ''}; {about.env_name or ''}",
            about.engine_version or "",
            ", ".join(f"{key} {json.dumps(setting)}" for key, setting in settings),
            "; ".join((about.additional_info or {}).get("flags") or []),
        )
        rows.add(row)
    return [["hardware", "host", "TVM", "evaluator", "flags"], *map(list, sorted(rows))]


def _failures(records: Sequence[Record]) -> str:
    count = Counter(record.status.value for record in records if record.status is not Status.ok)
    return ", ".join(f"{number} {status}" for status, number in sorted(count.items())) or "none"


def _table(rows: Sequence[Sequence[Any]]) -> str:
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
