"""The card of a collected dataset: what it holds, how it was measured, how noisy it was; Markdown from its records."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from tencost.programs.codegen.spaces import is_register_tile
from tencost.records.databases import Import
from tencost.store.generator import age
from tencost.store.schema import Record
from tencost.store.status import Status
from tencost.workers.evaluator import coefficient_of_variation

_MADE = (
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
    total = sum(origins.values())
    made = ", ".join(f"{count / total:.0%} {word}" for word, count in origins.most_common())
    tiled = _register_tiles(records)
    parts = [
        f"# {name}",
        f"{len(records)} records of {programs} programs and {len(workloads)} workloads, collected with `tencost "
        f"measure`. Programs: {made}; {tiled / max(programs, 1):.0%} are register tiles, the others of TVM's space.",
        _MADE,
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
    rows = sorted(counts.items(), key=lambda item: (item[0][0], age(item[0][1])))
    return [
        ["hardware", "code generator", "records"],
        *([hardware, text, str(number)] for (hardware, text), number in rows),
    ]


def _register_tiles(records: Sequence[Record]) -> int:
    """Return how many distinct programs are of the space of register tiles."""
    texts = {
        record.program_id: record.program
        for record in records
        if record.program_format == "metaschedule_trace"
    }
    return sum(is_register_tile(json.loads(text)[0]) for text in texts.values())


def _networks(imported: Import) -> list[list[str]]:
    rows = [
        ["network", "tasks", "measured", "share of its FLOP", "programs", "records", "failures"]
    ]
    by_network: dict[str, list[Record]] = {}
    for record in imported.records:
        for item in record.networks:
            by_network.setdefault(item.network, []).append(record)
    for network in sorted({task.network for task in imported.tasks}):
        tasks = [task for task in imported.tasks if task.network == network]
        found = by_network.get(network, [])
        work = sum(task.flop * task.weight for task in tasks)
        share = sum(task.flop * task.weight for task in tasks if task.measured) / max(work, 1.0)
        rows.append(
            [
                network,
                str(len(tasks)),
                str(sum(task.measured for task in tasks)),
                f"{share:.1%}",
                str(len({record.program_id for record in found})),
                str(len(found)),
                _failures(found),
            ]
        )
    return rows


def _hardware(records: Sequence[Record]) -> list[list[str]]:
    rows = [["hardware", "records", "failures", "spread, median", "spread, 90 %", "noise, median"]]
    for hardware in sorted({record.hardware for record in records}):
        found = [record for record in records if record.hardware == hardware]
        spreads = sorted(
            coefficient_of_variation(record.run_secs)
            for record in found
            if len(record.run_secs) > 1
        )
        noise = [
            record.extra["noise"] for record in found if record.extra and "noise" in record.extra
        ]
        rows.append(
            [
                hardware,
                str(len(found)),
                _failures(found),
                f"{statistics.median(spreads):.1%}" if spreads else "",
                f"{spreads[int(0.9 * (len(spreads) - 1))]:.1%}" if spreads else "",
                f"{statistics.median(noise):.3f}" if noise else "",
            ]
        )
    return rows


def _sessions(records: Iterable[Record]) -> list[list[str]]:
    """One row for each way in which records were measured: host, versions, evaluator settings."""
    rows = [["hardware", "host", "TVM", "evaluator", "flags"]]
    seen: dict[tuple[str, ...], None] = {}
    for record in records:
        about = record.provenance
        row = (
            record.hardware,
            f"{about.hw_model or ''}; {about.env_name or ''}",
            about.engine_version or "",
            _settings(about.execution_config or {}),
            "; ".join((about.additional_info or {}).get("flags") or []),
        )
        seen.setdefault(row)
    return [rows[0], *sorted([list(row) for row in seen])]


def _settings(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {json.dumps(value)}" for key, value in values.items())


def _failures(records: Sequence[Record]) -> str:
    count = Counter(record.status.value for record in records if record.status is not Status.ok)
    return ", ".join(f"{number} {status}" for status, number in sorted(count.items())) or "none"


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
