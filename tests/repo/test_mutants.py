"""The tool behind `make mutants`: what it makes of a module, and that it finds what it names."""

from __future__ import annotations

import importlib.util
import os
import subprocess
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
        files = [word for word in words if word.startswith("tests/")]
        assert files
        assert all((ROOT / file).is_file() for file in files)
        _, heading, rest = page.partition(f"\n### {module}\n")
        judged = rest.partition("\n### ")[0].splitlines() if heading else []
        gone = [line for line in judged if line.startswith("- ") and line not in made]
        assert not gone, "these mutants are judged and no longer made: take them out"


def test_what_users_meet_first_is_listed(tool: Any) -> None:
    folders = ("codegen", "serve", "networks/sources", "graphs/stages")
    files = [path for folder in folders for path in (tool.SOURCES / folder).glob("*.py")]
    files += [*tool.SOURCES.glob("*/*stage.py"), *tool.SOURCES.glob("compat/*/*stage.py")]
    names = {path.relative_to(tool.SOURCES).as_posix() for path in files if path.stem != "__init__"}
    assert names - tool.TESTS.keys() == set()


def test_started_processes_find_the_mutant(tool: Any, tmp_path: Path) -> None:
    """Those of `tencost serve` and the warm workers, which import everything anew."""
    path = tool.SOURCES / "store" / "status.py"
    code = compile(path.read_text() + "\nMUTATED = True\n", path, "exec")
    environment = {
        **os.environ,
        "PYTHONPATH": tool.pass_on("store/status.py", code, tmp_path / "started"),
    }
    words = [sys.executable, "-c", "from tencost.store import status; print(status.MUTATED)"]
    assert subprocess.check_output(words, env=environment, text=True) == "True\n"
