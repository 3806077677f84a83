"""What failed beside other tests is run once more, alone, where it is little; what fails then, too, is a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from alone import AT_MOST, main

BESIDE = """
from pathlib import Path
import pytest

def test_late():
    found = Path("found").exists()
    Path("found").touch()
    assert found

def test_right():
    assert not Path("found").exists() or Path("more").exists(), "only what failed is run again"

@pytest.mark.parametrize("at", range({broken}))
def test_broken(at):
    assert False
"""


@pytest.mark.parametrize(("broken", "code"), [(0, 0), (1, 1), (AT_MOST, 1)])
def test_few_failures_are_run_again(
    broken: int, code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "test_beside.py").write_text(BESIDE.format(broken=broken))
    words = [sys.executable, "-m", "pytest", "--deselect", "test_beside.py::test_right"]
    first = subprocess.run(words, cwd=tmp_path, check=False)
    assert first.returncode == 1
    capfd.readouterr()
    assert main(tmp_path, []) == code
    printed = capfd.readouterr().out
    assert ("1 passed" in printed) is (broken + 1 <= AT_MOST)
    assert ("passed alone, to be mended: test_beside.py::test_late" in printed) is (broken == 0)
    assert ("Alone, once more" in printed) is (broken + 1 <= AT_MOST)


def test_without_failures_there_is_nothing_to_run(tmp_path: Path) -> None:
    assert main(tmp_path, []) == 1, "whatever ended the run, it was no test"
