"""Reads how long tasks take as the rules schedule them, which `tencost measure run` times beside a task's programs.

    by_rule.json   beside a database pair: {"workload_id": "...", "rules": "0123456789ab", "timestamp": 1795269619.6,
                   "run_secs": [...]} or, where it cannot be timed, {..., "run_secs": null, "error": "..."}
        rules: which rules, see tencost.programs.codegen.rules.version; run_secs in seconds, in the order taken

The program by rule is no record: it is made by code, not by a trace, and no search proposes it. What a model chooses is
compared with it (`pick_rule` in :mod:`tencost.evaluate.scoring`).
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tencost.store.rejects import Reject
from tencost.store.status import Status, timing_from_log

RULE_FILE = "by_rule.json"


@dataclass(frozen=True)
class RuleTime:
    """A task's median time by rule on a hardware, in seconds, and by which rules."""

    hardware: str
    workload_id: str
    rules: str
    latency_s: float


def parse_rule_times(dataset: Path) -> tuple[list[RuleTime], list[Reject]]:
    """Return the times of a raw dataset, a task and hardware once (the last file counts), and the files that are none.

    Tasks that could not be timed by rule are left out.
    """
    times: dict[tuple[str, str], RuleTime] = {}
    rejects = []
    for path in sorted((dataset / "measure_records").glob(f"*/**/{RULE_FILE}")):
        hardware = path.relative_to(dataset / "measure_records").parts[0]
        try:
            value = json.loads(path.read_bytes())
            workload, rules = str(value["workload_id"]), str(value["rules"])
            timing = timing_from_log(value["run_secs"])
        except (ValueError, TypeError, KeyError) as error:
            reason = f"expected a task's times by rule: {type(error).__name__}: {error}"
            rejects.append(Reject(path.relative_to(dataset).as_posix(), 1, reason))
            continue
        if timing.status is Status.ok:
            median = statistics.median(timing.run_secs)
            times[hardware, workload] = RuleTime(hardware, workload, rules, median)
    return list(times.values()), rejects


def join_rule_times(parts: Iterable[Iterable[RuleTime]]) -> list[RuleTime]:
    """Return the times of the parts of a dataset, a task and hardware once: the last part counts."""
    return list(
        {(time.hardware, time.workload_id): time for part in parts for time in part}.values()
    )
