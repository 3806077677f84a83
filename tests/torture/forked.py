"""Runs a function in a forked process that is watched, and says what came of it.

The process that forks has imported what the function needs and started no thread: polars, Delta Lake, XGBoost and
SQLite start theirs at their first use, which is in the child.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_S = 120.0
"""A case that takes longer hangs."""
MOST_MEMORY = 6 * 2**30
"""Bytes of address space beyond those at the start that a case gets; past it, Python raises MemoryError."""
CANARY = "CANARY"
"""The file in a case's folder that the code of a hostile file would make."""
_PR_SET_CHILD_SUBREAPER = 36
_STARTING = {
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "subprocess.Popen", "pty.spawn",
}  # fmt: skip
_LOADING = {"ctypes.dlopen", "pickle.find_class", "socket.connect"}


@dataclass(frozen=True)
class Outcome:
    """What came of a process: its exit status, negative for a signal, and what was seen of it."""

    status: int
    seconds: float
    grown_bytes: int
    """Peak memory beyond that at the start."""
    output: str
    errors: str
    events: tuple[str, ...]
    """What it started, linked, unpickled or wrote outside of its folder."""
    told: Any
    """What the function returned, over JSON; None if it did not return."""
    hung: bool = False


def run(
    function: Callable[[], Any],
    folder: Path,
    *,
    limit_s: float = LIMIT_S,
    ready: Callable[[], None] = lambda: None,
    home: Path | None = None,
) -> Outcome:
    """Run a function in a child whose current folder, home and temporary files are `folder`.

    Args:
        function: its result must fit into JSON. What it raises is printed as the command line would.
        folder: of the case.
        limit_s: then the child and all that it started are killed.
        ready: called in the child before the function, unwatched.
        home: where the streams and temporary files go, if not below `folder`.
    """
    home = home or folder / ".torture"
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    assert not _busy_threads(), "a process whose polars has started does not live through a fork"
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    started = time.monotonic()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _in_child(function, folder, home, ready)
    hung = False
    while True:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() - started > limit_s:
            hung = True
            _kill_group(child)
            _, status, usage = os.wait4(child, 0)
            break
        time.sleep(0.003)
    seconds = time.monotonic() - started
    _kill_group(child)  # what it started and left
    _reap_group(child)
    told = home / "told.json"
    before = int(_text(home / "before") or 0)
    return Outcome(
        os.waitstatus_to_exitcode(status),
        seconds,
        max(0, usage.ru_maxrss * 1024 - before),
        _text(home / "stdout"),
        _text(home / "stderr"),
        tuple(_text(home / "events").splitlines()),
        json.loads(told.read_text()) if told.exists() else None,
        hung,
    )


def _busy_threads() -> list[str]:
    """Return the threads that would hold locks in a child."""
    names = [_text(task / "comm").strip() for task in Path("/proc/self/task").iterdir()]
    return [name for name in names if name.startswith(("tokio", "async-executor", "polars-0"))]


def _kill_group(child: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


def _reap_group(child: int) -> None:
    """Wait until what was killed is gone: one that nobody waited for still has its number, as if it were alive."""
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-child, 0)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _in_child(
    function: Callable[[], Any], folder: Path, home: Path, ready: Callable[[], None]
) -> None:
    """Never returns."""
    status = 1
    try:
        os.setsid()
        for number, name in ((1, "stdout"), (2, "stderr")):
            opened = os.open(home / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(opened, number)
            os.close(opened)
        os.chdir(folder)
        os.environ.update(TMPDIR=str(home / "tmp"), HOME=str(home), COLUMNS="200")
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        tempfile.tempdir = str(home / "tmp")
        (home / "before").write_text(str(_resident()))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        most = _address_space() + MOST_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        seen = os.open(home / "events", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        told = home / "told.json"
        told.unlink(missing_ok=True)
        ready()
        _watch(seen, folder, home)
        status, result = _as_command(function)
        told.write_text(json.dumps(result))
    except BaseException:  # noqa: BLE001 - whatever it is, it is what the verdict is about
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(ValueError):
                stream.flush()
        os._exit(status)


def _as_command(function: Callable[[], Any]) -> tuple[int, Any]:
    """Call the function; a TencostError ends as the command line lets it end."""
    from tencost.cli.main import fail
    from tencost.errors import TencostError

    try:
        try:
            result = function()
        except TencostError as error:
            fail(str(error), error.exit_code)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None), None
    except BaseException:  # noqa: BLE001 - whatever it is, it is what the verdict is about
        traceback.print_exc()
        return 1, None
    return 0, result


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _watch(seen: int, folder: Path, home: Path) -> None:
    """Write down, unbuffered, what the process does that reading a file does not."""
    inside = (str(folder.resolve()), str(home.resolve()), "/dev/", "/proc/self/", "/tmp/pymp-")

    def note(text: str) -> None:
        os.write(seen, text.replace("\n", " ")[:300].encode("utf-8", "replace") + b"\n")

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in _STARTING:
            note(f"{event} {args[:2]}")
        elif event in _LOADING:
            note(f"{event} {args}")
        elif event == "open":
            path, _, flags = args
            if isinstance(path, (str, bytes)) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                _outside(os.fsdecode(path), "write")
        elif event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "os.link"):
            path = args[1] if event in ("os.rename", "os.symlink", "os.link") else args[0]
            if isinstance(path, (str, bytes, os.PathLike)):
                _outside(os.fsdecode(path), event)

    def _outside(path: str, what: str) -> None:
        whole = os.path.abspath(path)  # noqa: PTH100 - no Path inside of a hook: it opens nothing
        if not whole.startswith(inside) and "__pycache__" not in whole:
            note(f"{what} outside {whole}")

    sys.addaudithook(hook)
