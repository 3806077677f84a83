"""Rows of docs/reference/capabilities.md: read from the YAML files beside this module, written as the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
PAGE = ROOT / "docs" / "reference" / "capabilities.md"
SYSTEMS = {
    "TenSet": "TenSet",
    "Lorien": "Lorien",
    "tvm_oraa": "tvm_oraa",
    "CG": "the CG benchmark",
    "RFC 4304": "RFC 4304",
    "tencost": "tencost's own",
}
"""Name in a row -> words of the page's heading, in the order of the page."""

HEAD = """# What you can do

One row for each thing that a user of tencost can do: what the five source systems offered, and what tencost adds. Each
row names the command or class, a test that fails without it, and the page that documents it.

`make capabilities` runs a short example of every row and prints which work. The rows and their examples stand in
`tests/capabilities/`; `python -m capabilities page`, with `tests` on `PYTHONPATH`, writes this page from them.
"""


@dataclass(frozen=True)
class Capability:
    """One thing that a user can do.

    Attributes:
        name: what it is, a phrase that begins with a verb.
        system: the source system that offered it first, a key of SYSTEMS.
        use: the command (``tencost ...``) or the class or function, as the page shows it.
        run: shell commands of the example; they run in the lane's folder.
        test: the test that fails without it, ``<file>::<function>``.
        doc: the page that documents it, relative to the repository.
        needs: what a machine may lack: nothing, or a key of ``runner.NEEDS``.
        lane: the file that the row stands in.
    """

    name: str
    system: str
    use: str
    run: str
    test: str
    doc: str
    needs: str = ""
    lane: str = ""


@dataclass(frozen=True)
class Lane:
    """Rows that run one after another in one folder: later ones use what earlier ones wrote.

    Attributes:
        name: the YAML file's name without its suffix.
        setup: shell commands that write what the examples read.
        folder: where the examples run, made by the setup; relative to the lane's own folder.
        rows: the rows in order.
    """

    name: str
    setup: str
    folder: str
    rows: tuple[Capability, ...]


def read_lanes(folder: Path = FOLDER) -> list[Lane]:
    """Return the lanes, longest first as their files are numbered."""
    return [_lane(path) for path in sorted(folder.glob("*.yaml"))]


def _lane(path: Path) -> Lane:
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    name = path.stem
    rows = tuple(Capability(lane=name, **row) for row in content["rows"])
    return Lane(name, content["setup"], content.get("folder", "."), rows)


def all_rows() -> Iterator[Capability]:
    for lane in read_lanes():
        yield from lane.rows


def page() -> str:
    """Return the text of docs/reference/capabilities.md."""
    parts = [HEAD]
    for system, title in SYSTEMS.items():
        rows = [row for row in all_rows() if row.system == system]
        parts.append(f"\n## From {title}\n" if system != "tencost" else "\n## Only in tencost\n")
        parts.append("\n| what | command or class | test | documented in |\n|---|---|---|---|\n")
        parts += [_line(row) for row in rows]
    return "".join(parts)


def _line(row: Capability) -> str:
    file, _, function = row.test.partition("::")
    test = f"`{file.removeprefix('tests/')}` `{function}`"
    doc = row.doc.partition("#")[0]
    link = f"[{Path(doc).stem}](../{row.doc.removeprefix('docs/')})"
    if not doc.startswith("docs/"):
        link = f"[{doc}](../../{row.doc})"
    needs = f" (needs {row.needs})" if row.needs else ""
    return f"| {row.name}{needs} | `{row.use}` | {test} | {link} |\n"
