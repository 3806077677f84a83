"""What a command may do with a damaged file, and what is a finding."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torture.forked import CANARY, LIMIT_S, Outcome, run

MOST_GROWN = 2**30
"""Bytes that a case may take beyond what the process had: files of some kilobytes."""
MOST_LINES = 12
"""Lines of a refusal."""
MOST_TEXT = 4000
"""Characters of a refusal."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")


@dataclass(frozen=True)
class Case:
    """A damaged thing, and the command that meets it.

    Attributes:
        what: the damage, in a line.
        command: called in a child; ends as `tencost` does.
        check: called after it in the same child, with its exit status; returns what is wrong.
        ends: exit statuses that are allowed.
        events: beginnings of what the command may do although reading does not.
    """

    what: str
    command: Callable[[], Any]
    check: Callable[[int], list[str]] = lambda _: []
    ends: Collection[int] = (0, 2)
    events: tuple[str, ...] = ()
    limit_s: float = LIMIT_S


@dataclass
class Result:
    """A case's end."""

    status: int
    findings: list[str] = field(default_factory=list)
    errors: str = ""


def judge(case: Case, folder: Path) -> Result:
    """Run a case in its folder; return what is wrong with what it did."""

    def both() -> Any:
        from torture.forked import _as_command

        status, _ = _as_command(case.command)
        return {"status": status, "wrong": case.check(status) if status in case.ends else []}

    outcome = run(both, folder, limit_s=case.limit_s)
    told = outcome.told or {}
    status = int(told.get("status", outcome.status))
    return Result(
        status, faults(case, outcome, status, folder) + told.get("wrong", []), outcome.errors
    )


def faults(case: Case, outcome: Outcome, status: int, folder: Path) -> list[str]:
    """Return what no command may do."""
    found = []
    if outcome.hung:
        found.append(f"took more than {case.limit_s:.0f} s")
    elif status < 0:
        found.append(f"ended by signal {-status}")
    elif status not in case.ends:
        found.append(f"ended with {status}")
    if "Traceback (most recent call last)" in outcome.errors + outcome.output:
        last = [line for line in outcome.errors.splitlines() if line.strip()]
        found.append(f"traceback: {last[-1][:200] if last else ''}")
    if outcome.grown_bytes > MOST_GROWN:
        found.append(f"took {outcome.grown_bytes / 2**20:.0f} MB")
    if (folder / CANARY).exists():
        found.append("foreign code ran")
    found += [
        f"did: {event}" for event in outcome.events if not event.startswith(case.events or ("\0",))
    ]
    if _CONTROL.search(outcome.errors + outcome.output):
        found.append("control characters in what was printed")
    if status == 2:
        found += _refusal(outcome.errors)
    return found


def _refusal(errors: str) -> list[str]:
    lines = errors.rstrip("\n").splitlines()
    message = [number for number, line in enumerate(lines) if line.startswith("tencost: ")]
    if len(message) != 1:
        return [f"refused with {len(message)} messages"]
    told = lines[message[0] :]
    if len(told) > MOST_LINES or sum(map(len, told)) > MOST_TEXT:
        return [f"refused with {len(told)} lines, {sum(map(len, told))} characters"]
    return []
