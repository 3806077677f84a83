"""The tool behind `make mutants`: what it makes of a module, and that it finds what it names."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "benchmarks" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mutants", module)
    spec.loader.exec_module(module)
    return module


def test_the_mutants_of_a_module(tool: Any, tmp_path: Path) -> None:
    path = tmp_path / "small.py"
    path.write_text(
        "LIMIT = 1.5\n"
        "def judge(a: int, b: int) -> bool:\n"
        "    if a > LIMIT and not b:\n"
        "        a += 2\n"
        "    return a - b\n"
    )
    found = {(one.where, one.before, one.after) for one in tool.mutants(path)}
    assert found == {
        ("small", "1.5", "15.0"),
        ("small", "1.5", "0.15"),
        ("judge", "if a > LIMIT and (not b):", "if not (a > LIMIT and (not b)):"),
        ("judge", "a > LIMIT and (not b)", "a > LIMIT or not b"),
        ("judge", "a > LIMIT", "a >= LIMIT"),
        ("judge", "a > LIMIT", "a <= LIMIT"),
        ("judge", "not b", "b"),
        ("judge", "a += 2", "a -= 2"),
        ("judge", "a += 2", "pass"),
        ("judge", "2", "3"),
        ("judge", "2", "20"),
        ("judge", "return a - b", "return None"),
        ("judge", "a - b", "a + b"),
    }
    results = set()
    for one in tool.mutants(path):
        names: dict[str, Any] = {}
        exec(one.code(path), names)
        results.add((names["LIMIT"], names["judge"](1, 5), names["judge"](4, 0)))
    assert len(results) > 8, "the code is changed, not only what is told of it"
    assert (1.5, -4, 6) in results, "where a boundary is not met, nothing is seen"


def test_modules_tests_and_judgements_are_there(tool: Any) -> None:
    page = tool.PAGE.read_text(encoding="utf-8")
    for module, words in tool.TESTS.items():
        made = {f"- {one}" for one in tool.mutants(tool.SOURCES / module)}
        assert made
        assert (ROOT / words[0]).is_file()
        _, heading, rest = page.partition(f"\n### {module}\n")
        judged = rest.partition("\n### ")[0].splitlines() if heading else []
        gone = [line for line in judged if line.startswith("- ") and line not in made]
        assert not gone, "these mutants are judged and no longer made: take them out"
