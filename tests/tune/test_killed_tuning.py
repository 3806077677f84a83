"""Wherever a tuning run is killed, the next one measures the rest of the budget, and nothing that is there twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tvm

SCRIPT = Path(__file__).with_name("killed_tuning.py")
TRIALS, KNOWN = 6, 3


def test_killed_at_every_write(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # what was killed removes nothing
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    places = {run["where"] for run in runs if run["killed"]}
    assert {
        "adopted.jsonl", "before a record", "after a record", "session.json", "tuning_curve.csv",
        "batches.jsonl",
    } <= places  # fmt: skip
    assert not runs[-1]["killed"]
    for run in runs:
        before, after = run["before"], run["after"]
        programs, adopted = after["programs"], after["adopted"]
        assert len(programs) == len(set(programs)) == TRIALS + KNOWN, run
        assert sum(adopted) == KNOWN, run
        kept = len(before["programs"])
        assert programs[:kept] == before["programs"], run
        assert adopted[:kept] == before["adopted"], run
        # What is there is not measured again; the rest of the batch that was under way is.
        there = kept - sum(before["adopted"])
        assert len(run["measured"]) - run["num_before"] == TRIALS - there, run
        assert after["curve"] == sorted(set(after["curve"])), run
        assert after["curve"][-1] == TRIALS or there == TRIALS, run
        assert after["batches"] == sorted(set(after["batches"])), run
        assert after["batches"][: len(before["batches"])] == before["batches"], run
        assert after["batches"][-1] == TRIALS or there == TRIALS, run
