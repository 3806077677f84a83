"""What the documentation site is made of beyond the pages in docs/: hooks of MkDocs, one of griffe.

Pages that stand elsewhere in the repository (README, benchmarks, a dataset's card) become pages of the site. A link
between any two of them is written as it works in the repository, and is turned here into one that works on the site.
Notebooks become pages with the outputs that they were committed with; nothing is run.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "how-to/contributing.md",
    "CHANGELOG.md": "reference/changelog.md",
    "benchmarks/README.md": "explanation/benchmarks.md",
    "benchmarks/judged_mutants.md": "explanation/judged-mutants.md",
    "datasets/tencost-epyc.md": "reference/tencost-epyc.md",
    "datasets/tencost-zen5.md": "reference/tencost-zen5.md",
    "datasets/tencost-epyc-graphs.md": "reference/tencost-epyc-graphs.md",
}
"""Path in the repository -> path on the site."""
NOTEBOOKS = {"tutorial/records-to-scores.ipynb": "tutorial/records-to-scores.md"}
"""Notebook in docs/ -> its page on the site."""
LINK = re.compile(r"(?<=\]\()(?P<path>[^)\s#:]+)(?P<rest>#[^)\s]*)?(?=\))")
FENCED = re.compile(r"(?ms)^(```.*?^```)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that stand elsewhere, and the pictures beside them."""
    added = dict(ELSEWHERE)
    pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    for page in [*ELSEWHERE, *pages]:
        for link in LINK.finditer((ROOT / page).read_text()):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link["path"]))
            if path.endswith(".png") and not path.startswith("docs/"):
                added[path] = path
    for path, place in added.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    for path, place in NOTEBOOKS.items():
        text = notebook_page(ROOT / "docs" / path)
        files.append(File.generated(config, place, content=text))
    return files


def notebook_page(path: Path) -> str:
    """Return a notebook as Markdown: text, code, and outputs as they stand in the file."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            held = output.get("data", {"text/plain": output.get("text", "")})
            plain = "".join(held["text/plain"]).rstrip()
            parts.append(f"```text\n{plain}\n```")
    first, *others = parts
    link = f"The notebook itself: [{path.name}]({path.name})."
    return "\n\n".join([first, link, *others])


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Turn a page's links into links of the site, and indents into those that Python-Markdown asks for."""
    here = page.file.src_uri
    source = {place: path for path, place in ELSEWHERE.items()}.get(here, f"docs/{here}")

    def moved(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link["path"]))
        place = ELSEWHERE.get(path, path.removeprefix("docs/"))
        if here not in NOTEBOOKS.values():
            place = NOTEBOOKS.get(place, place)
        return posixpath.relpath(place, posixpath.dirname(here)) + (link["rest"] or "")

    parts = FENCED.split(markdown)
    parts[::2] = [_for_python_markdown(LINK.sub(moved, part)) for part in parts[::2]]
    return "".join(parts)


def _for_python_markdown(text: str) -> str:
    """Indent by four what belongs to "1. ", as by three is enough elsewhere, and part it from the next item."""
    text = re.sub(r"(?m)^   (?=.)", "    ", text)
    return re.sub(r"(?m)^( {4}.*)\n(?=(\d+\.|-) )", r"\1\n\n", text)


class PlainRoles(griffe.Extension):
    """Docstrings say :func:`name` as Sphinx does; the site shows the name as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r":[a-z]+:(?=`)", "", obj.docstring.value)
