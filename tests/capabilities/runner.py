"""Runs the example of every row, lanes side by side, and prints which work."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from capabilities.rows import FOLDER, ROOT, Capability, Lane

LIMIT_S = 180.0
"""Seconds that one example may take."""
SHOWN_LINES = 12
"""Last lines of a failed example's output that are printed."""
NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "a GPU": (lambda: shutil.which("nvidia-smi") is not None, "nvidia-smi is not on PATH"),
    "a C++ compiler": (lambda: shutil.which("g++") is not None, "g++ is not on PATH"),
    "PyG": (
        lambda: importlib.util.find_spec("torch_geometric") is not None,
        "tencost[graphs] is not installed",
    ),
    "Ray": (
        lambda: importlib.util.find_spec("ray") is not None,
        "tencost[scale] is not installed",
    ),
}
"""What a machine may lack: whether it is here, and the reason that is printed where it is not."""


@dataclass(frozen=True)
class Outcome:
    """How the example of a row ended: status ok, failed or skipped, seconds, and a reason or output."""

    row: Capability
    status: str
    seconds: float = 0.0
    detail: str = ""


def run_all(lanes: Sequence[Lane], jobs: int, folder: Path | None = None) -> int:
    """Run all rows, print a table, and return the exit code: 1 if a row failed."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="capabilities-") as temporary:
        work = folder or Path(temporary)
        with ThreadPoolExecutor(jobs) as pool:
            done = list(pool.map(lambda lane: _run_lane(lane, work, console), lanes))
    outcomes = [outcome for lane in done for outcome in lane]
    console.print(_table(outcomes))
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    for outcome in failed:
        console.print(f"\n[bold red]{escape(outcome.row.name)}[/] ({outcome.row.lane})")
        console.print(escape(outcome.detail), highlight=False)
    counts = {status: sum(o.status == status for o in outcomes) for status in ("ok", "skipped")}
    console.print(
        f"\n{counts['ok']} of {len(outcomes)} work, {len(failed)} failed, {counts['skipped']} skipped, "
        f"{time.monotonic() - start:.0f} s"
    )
    return 1 if failed else 0


def _run_lane(lane: Lane, work: Path, console: Console) -> list[Outcome]:
    folder = work / lane.name
    folder.mkdir(parents=True)
    code, output, _ = _shell(lane.setup, folder)
    if code != 0:
        detail = f"the lane's setup failed:\n{_tail(output)}"
        return [Outcome(row, "failed", detail=detail) for row in lane.rows]
    outcomes = []
    for row in lane.rows:
        outcomes.append(outcome := _run_row(row, folder / lane.folder))
        colour = {"ok": "green", "failed": "red", "skipped": "yellow"}[outcome.status]
        words = f"{outcome.seconds:5.1f} s  {lane.name}: {escape(row.name)}"
        console.print(f"[{colour}]{outcome.status:7}[/] {words}", highlight=False)
    return outcomes


def _run_row(row: Capability, folder: Path) -> Outcome:
    if row.needs:
        present, reason = NEEDS[row.needs]
        if not present():
            return Outcome(row, "skipped", detail=reason)
    code, output, seconds = _shell(row.run, folder)
    if code == 0:
        return Outcome(row, "ok", seconds)
    return Outcome(row, "failed", seconds, f"exit code {code}\n{_tail(output)}")


def _shell(script: str, folder: Path) -> tuple[int, str, float]:
    """Run a script and end what it leaves behind; return its exit code, output and seconds."""
    start = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            code = 124
        finally:
            _end_session(process)
        output.seek(0)
        return code, output.read(), time.monotonic() - start


def _end_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environment(folder: Path) -> dict[str, str]:
    """The user's environment without settings that lead to another project, and with this checkout's tencost."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "TENCOST_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {
        **variables,
        "PATH": path,
        "PYTHONPATH": str(ROOT / "src"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "DVC_NO_ANALYTICS": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "COLUMNS": "160",
        "ROOT": str(ROOT),
        "EXAMPLES": str(FOLDER / "examples.py"),
    }


def _tail(output: str) -> str:
    return "\n".join(output.rstrip().splitlines()[-SHOWN_LINES:])


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(title="capabilities")
    for name in ("system", "what", "command or class"):
        table.add_column(name, overflow="fold")
    table.add_column("works")
    table.add_column("seconds", justify="right")
    for outcome in outcomes:
        row, status = outcome.row, outcome.status
        status += f": {outcome.detail}" if status == "skipped" else ""
        table.add_row(row.system, row.name, escape(row.use), status, f"{outcome.seconds:.1f}")
    return table
