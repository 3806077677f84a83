"""Console output of an import of logs, counters or networks: progress, a summary, notes and rejects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tencost.errors import printable
from tencost.store.rejects import Reject
from tencost.writing import whole_file

SHOWN = 5
"""Rejects that are printed; all are in the file that is named."""


@dataclass
class Rejects:
    """Rejects of an import: their number and the first ones; all of them go into a file as they come."""

    path: Path
    file: IO[str] | None = None
    count: int = 0
    first: list[Reject] = field(default_factory=list)

    def add(self, reject: Reject) -> None:
        """Add a reject; its line in the file is {"file", "line", "reason"}."""
        self.count += 1
        if len(self.first) < SHOWN:
            self.first.append(reject)
        if self.file is not None:
            members = {"file": storable(reject.file), "line": reject.line}
            self.file.write(json.dumps(members | {"reason": storable(reject.reason)}) + "\n")


@contextmanager
def reject_file(path: Path) -> Iterator[Rejects]:
    """Yield a collector of rejects; at the end a file at `path` holds all of them."""
    with whole_file(path) as partial, partial.open("w", encoding="utf-8") as file:
        yield Rejects(path, file)


def write_rejects(items: Sequence[Reject], path: Path) -> Rejects:
    """Write all rejects of an import; where there are none, nothing is made, and an earlier import's file goes."""
    if not items:
        path.unlink(missing_ok=True)
        return Rejects(path)
    with reject_file(path) as rejects:
        for reject in items:
            rejects.add(reject)
    return rejects


@contextmanager
def progress_bar(noun: str, console: Console) -> Iterator[Callable[[int, int, str], None]]:
    """Show a bar; yield the function that moves it: files that were read, all files, what they held."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    state = TextColumn("{task.fields[state]}", markup=False)
    with Progress(*columns, TimeElapsedColumn(), state, console=console, transient=True) as bar:
        task = bar.add_task(noun, total=None, state="")

        def move(completed: int, total: int, state: str) -> None:
            bar.update(task, completed=completed, total=total, state=state)

        yield move


def report(
    rows: Mapping[str, object], notes: Sequence[str], rejects: Rejects, console: Console
) -> None:
    """Print a table of what was imported, then each note once, then the first rejects.

    Args:
        rows: title -> cell; cells that hold nothing are left out.
        notes: a sentence each.
        rejects: their number is the table's last row.
        console: where it is printed.
    """
    table = Table(title="imported", show_header=False)
    number = f"{rejects.count:,}" + (f" ({rejects.path})" if rejects.count else "")
    for title, cell in {**rows, "rejects": number}.items():
        if cell:
            table.add_row(title, escape(printable(str(cell))))
    console.print(table)
    for note in dict.fromkeys(notes):
        console.print(printable(note), markup=False, highlight=False, soft_wrap=True)
    show_rejects(rejects.first, console)


def show_rejects(rejects: Sequence[Reject], console: Console) -> None:
    """Print the first rejects: file, line, reason."""
    for reject in rejects[:SHOWN]:
        line = printable(in_words(reject))
        console.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)


def in_words(reject: Reject) -> str:
    """Return a reject as one line of text."""
    return f"{reject.file}:{reject.line}: {reject.reason}"


def storable(text: str) -> str:
    r"""Return a text as UTF-8 can write it: half a character, of a file's name or of damage, becomes \udcff."""
    return text.encode("utf-8", "backslashreplace").decode()
