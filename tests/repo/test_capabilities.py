"""The page of capabilities is that of its rows; each row names a test, a page and a command that there are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from capabilities.rows import PAGE, SYSTEMS, Capability, all_rows, page
from capabilities.runner import NEEDS
from tencost.cli.main import TENCOST

ROOT = Path(__file__).resolve().parents[2]
ROWS = list(all_rows())


def leaves(command: click.Command, path: tuple[str, ...] = ("tencost",)) -> Iterator[str]:
    """Yield each command that does something by itself: the leaves, and stages that have commands below them."""
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield " ".join(path)
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from leaves(inner, (*path, name))


def test_the_page_is_written_from_the_rows() -> None:
    assert PAGE.read_text() == page(), "write it anew: PYTHONPATH=tests python -m capabilities page"


def test_every_command_has_a_row() -> None:
    examples = " ".join(" ".join(row.run.split()) for row in ROWS)
    commands = set(leaves(TENCOST)) - {"tencost"}
    assert commands
    missing = [name for name in commands if not re.search(rf"{re.escape(name)}(?![\w-])", examples)]
    assert missing == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_names_what_there_is(row: Capability) -> None:
    assert row.system in SYSTEMS
    assert not row.needs or row.needs in NEEDS
    file, *names = row.test.split("::")
    node: ast.AST = ast.parse((ROOT / file).read_text())
    for name in names:
        node = next(n for n in ast.iter_child_nodes(node) if getattr(n, "name", "") == name)
    assert names[-1].startswith("test_")
    assert (ROOT / row.doc).is_file()
    assert used(row) in " ".join(row.run.split()), "the example does not use what the row names"


def used(row: Capability) -> str:
    """Return what the example must contain: the command's words, or the last name of a class."""
    return row.use if row.use.startswith("tencost ") else row.use.rpartition(".")[2]


def test_names_are_distinct() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names))


def test_the_page_is_in_the_navigation() -> None:
    assert "reference/capabilities.md" in (ROOT / "mkdocs.yml").read_text()
