"""Variables are called after what they hold, so that readers find the field's nouns."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

# A participle or a pronoun says nothing of what a variable holds, and nobody searches for it. Write the thing itself:
# candidate, record, workload, block, path; and where a state matters, cached, selected, remaining, requested, existing.
WORDS = "found one told made known kept own left wanted given said held taken asked done gone shown named meant apart"
VAGUE = frozenset(WORDS.split())
LIMIT = 0.003
"""Share of all bindings: room for a pair of operands, `left` and `right`, and for names of stored values."""
PACKAGE = Path(__file__).parents[2] / "src" / "tencost"


def bindings(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each variable and argument that Python code binds."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def is_vague(name: str) -> bool:
    return name.strip("_") in VAGUE


def test_bindings_are_variables_and_arguments_of_every_kind() -> None:
    source = "for one in rows:\n    a, known = one\ndef f(given, *left, _own=1):\n    return [made for made in given]\n"
    vague = [name for _, name in bindings(source) if is_vague(name)]
    assert sorted(vague) == ["_own", "given", "known", "left", "made", "one"]


def test_few_variables_have_a_vague_name() -> None:
    total, vague = 0, []
    for path in sorted(PACKAGE.rglob("*.py")):
        for line, name in bindings(path.read_text(encoding="utf-8")):
            total += 1
            if is_vague(name):
                vague.append(f"{path.relative_to(PACKAGE)}:{line} {name}")
    assert total > 10_000
    share = len(vague) / total
    assert share <= LIMIT, f"{100 * share:.2f} % of {total} bindings: " + "\n".join(vague)
