"""What failed beside other tests is run once more, alone, where it is little; what fails then, too, is a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import alone

BESIDE = """
from pathlib import Path
import pytest

@pytest.mark.xdist_group("late")
@pytest.mark.parametrize("of", ["a@b"])
def test_late(of):
    found = Path("found").exists()
    Path("found").touch()
    assert found

def test_right():
    Path("right").write_text(Path("right").read_text() + "1" if Path("right").exists() else "1")

@pytest.mark.parametrize("at", range({broken}))
def test_broken(at):
    assert False
"""


@pytest.mark.parametrize(("broken", "code"), [(0, 0), (1, 1), (alone.AT_MOST, 1)])
def test_few_failures_are_run_again(
    broken: int, code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    folder = Path(alone.__file__).parent
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    )
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "conftest.py").write_text("from alone import pytest_terminal_summary\n")
    (tmp_path / "test_beside.py").write_text(BESIDE.format(broken=broken))
    first = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", "--dist", "loadgroup", "test_beside.py"],
        cwd=tmp_path,
        check=False,
    )
    assert first.returncode == 1
    capfd.readouterr()
    assert alone.main(tmp_path, ["-q", "test_beside.py"]) == code
    printed = capfd.readouterr().out
    few = broken + 1 <= alone.AT_MOST
    assert ("1 passed" in printed) is few
    assert ("Alone, once more" in printed) is few
    mended = "passed alone, to be mended: test_beside.py::test_late[a@b]"
    assert (mended in printed) is (broken == 0)
    assert (tmp_path / "right").read_text() == "1", "only what failed is run again"


def test_without_failures_there_is_nothing_to_run(tmp_path: Path) -> None:
    assert alone.main(tmp_path, []) == 1, "whatever ended the run, it was no test"
