"""A few cases of the campaign with a fixed seed: it works, and what it tries is withstood."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
TESTS = Path(__file__).resolve().parents[1]


def campaign(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torture", "--minutes", "9", "--folder", str(folder), *words],
        env={**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"},
        cwd=TESTS.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("part", "cases"), [("logs", 40), ("bundles", 20), ("kill-import", 10)])
def test_a_few_cases(part: str, cases: int, tmp_path: Path) -> None:
    if part.startswith("kill-") and shutil.which("cc") is None:
        pytest.skip("no C compiler (cc), which the kills need")
    done = campaign(tmp_path, part, "--seed", "1", "--most", str(cases), "--inside")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["cases"] == cases
    assert told["found"] == []


def test_the_verdict_sees(tmp_path: Path) -> None:
    """What a case may not do is a finding: else the campaign proves nothing."""
    code = (
        "import os, subprocess, sys\n"
        "from pathlib import Path\n"
        "from torture.forked import CANARY\n"
        "from torture.verdict import Case, judge\n"
        "def told(): sys.stderr.write('tencost: \\x1b[31mred'); raise SystemExit(2)\n"
        "def silent(): raise SystemExit(2)\n"
        "acts = [lambda: 1 / 0, told, silent, lambda: os.kill(os.getpid(), 11), lambda: Path(CANARY).touch(),\n"
        "        lambda: subprocess.run(['true']), lambda: Path(sys.argv[1], 'x').touch(), lambda: None]\n"
        "for number, act in enumerate(acts):\n"
        "    folder = Path(sys.argv[1], str(number)); folder.mkdir()\n"
        "    print('|'.join(judge(Case('', act), folder).findings))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = [
        "ended with 1|traceback: ZeroDivisionError: division by zero", "control characters in what was printed",
        "refused with 0 messages", "ended by signal 11", "foreign code ran", "did: subprocess.Popen",
        "did: write outside", "",
    ]  # fmt: skip
    for line, beginning in zip(done.stdout.splitlines(), expected, strict=True):
        assert line.startswith(beginning), (line, beginning)
        assert bool(line) == bool(beginning)
