"""Commands killed at their writes, run again, and compared with a run that nobody killed.

killer.c counts the writes of a process and of what it starts. A first run lists them; then each case kills at one of
them, every kind of write first, some in the middle of a write, some with all processes. What is there in between must
be readable and true; afterwards everything is there, once.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from torture.forked import LIMIT_S, Outcome, run
from torture.verdict import Case, Result, faults

TESTS = Path(__file__).resolve().parents[1]
LOADED = "TORTURE_KILLER"
_CONTROL = struct.Struct("5q512s")


def load_killer() -> None:
    """Start this process again with killer.c loaded, unless it is."""
    if LOADED in os.environ:
        return
    source = Path(__file__).with_name("killer.c")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    built = source.parent / "__pycache__" / f"killer-{digest}.so"
    if not built.exists():
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise SystemExit("kills need a C compiler (cc), found none; the other parts do without")
        built.parent.mkdir(exist_ok=True)
        partial = built.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-o", partial, source, "-ldl"], check=True
        )
        partial.rename(built)
    environment = {**os.environ, "LD_PRELOAD": str(built), LOADED: str(built)}
    os.execve(sys.executable, [sys.executable, "-m", "torture", *sys.argv[1:]], environment)


class Scenario:
    """A command, and what must be there when it has ended."""

    name = ""
    ends: tuple[int, ...] = (0,)
    limit_s = LIMIT_S
    killed: tuple[int, ...] = (-9, 0)
    """How the run that is killed may end; 0 where the kill meets a child, or comes too late."""

    def prepare(self, root: Path) -> None:
        """Write what the command is run on."""

    def command(self, root: Path) -> None:
        """Run the command."""
        raise NotImplementedError

    def state(self, root: Path) -> Any:
        """Return what the command has made, as far as it is the same each time, as JSON."""
        raise NotImplementedError

    def between(self, root: Path) -> Any:
        """Return what is there after a kill."""
        return self.state(root)

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        """Say what is wrong."""
        return [] if after == clean else [f"another end: {difference(clean, after)}"]


def difference(expected: Any, found: Any) -> str:
    if isinstance(expected, dict) and isinstance(found, dict):
        names = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
        told = [f"{name}: {difference(expected.get(name), found.get(name))}" for name in names]
        return "; ".join(told)[:600]
    return f"expected {str(expected)[:200]}, found {str(found)[:200]}"


class Kills:
    """A part: scenarios in turn."""

    scenarios: tuple[type[Scenario], ...] = ()
    modules: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        for name in self.modules:
            __import__(name)
        self._folder = folder
        self._scenarios = [kind() for kind in self.scenarios]
        self._clean: dict[str, Any] = {}
        self._points: dict[str, list[tuple[int, str]]] = {}
        self.said = ""
        told = []
        for scenario in self._scenarios:
            template = folder / scenario.name / "template"
            template.mkdir(parents=True)
            self._need(
                run(
                    partial(scenario.prepare, template),
                    template,
                    home=folder / "home",
                    limit_s=600,
                )
            )
            root = folder / scenario.name / "clean"
            shutil.copytree(template, root, symlinks=True)
            control = folder / scenario.name / "control"
            outcome = self._run(scenario, root, folder / "home", control, at=0, listing=True)
            self._need(outcome)
            listed = control.with_name("control.list").read_text(errors="replace").splitlines()
            self._points[scenario.name] = list(enumerate(listed, start=1))
            found = run(
                partial(scenario.state, root),
                root,
                home=folder / "home",
            )
            self._need(found)
            self._clean[scenario.name] = found.told
            told.append(f"{scenario.name} {len(listed)} writes")
        self._order: dict[str, list[tuple[int, str]]] = {}
        self._told = told
        self._done: Counter[str] = Counter()

    @staticmethod
    def _need(outcome: Outcome) -> None:
        if outcome.status != 0:
            raise SystemExit(
                f"the run that nobody kills ended with {outcome.status}: {outcome.errors[-2000:]}"
            )

    def _run(
        self, scenario: Scenario, root: Path, home: Path, control: Path, *, at: int, listing: bool = False,
        torn: bool = False, group: bool = False,
    ) -> Outcome:  # fmt: skip
        control.write_bytes(_CONTROL.pack(0, at, torn, group, listing, b""))
        below = str(root.resolve())

        def arm() -> None:
            os.environ.update(TORTURE_CONTROL=str(control), TORTURE_BELOW=below)
            ctypes.CDLL(None).torture_arm(str(control).encode(), below.encode())

        return run(
            lambda: scenario.command(root), root, ready=arm, home=home, limit_s=scenario.limit_s
        )

    def order(self, name: str, seed: str) -> list[tuple[int, str]]:
        """Return the writes to kill at: one of every kind first, then the others, both in random order."""
        if name not in self._order:
            rng = Random(seed)
            points = list(self._points[name])
            rng.shuffle(points)
            kinds: dict[str, tuple[int, str]] = {}
            for point in points:
                kinds.setdefault(_kind(point[1]), point)
            first = list(kinds.values())
            self._order[name] = first + [point for point in points if point not in set(first)]
        return self._order[name]

    def run(self, rng: Random, number: int, seed: int, folder: Path) -> tuple[str, Result] | None:
        """Kill at a write, run again and compare."""
        scenario = self._scenarios[number % len(self._scenarios)]
        turn = number // len(self._scenarios)
        order = self.order(scenario.name, f"{seed} {scenario.name}")
        if turn >= len(order):
            return (
                None
                if all(
                    number // len(self._scenarios) >= len(points)
                    for points in self._points.values()
                )
                else (f"{scenario.name}: every write was had", Result(0))
            )
        at, _ = order[turn]
        torn, group = rng.random() < 0.5, rng.random() < 0.5
        root, home, control = folder / "root", folder / "home", folder / "control"
        shutil.copytree(self._folder / scenario.name / "template", root, symlinks=True)
        killed = self._run(scenario, root, home, control, at=at, torn=torn, group=group)
        where = _CONTROL.unpack(control.read_bytes())[5].split(b"\0")[0].decode("utf-8", "replace")
        what = f"{scenario.name}: killed at write {at}{', half done' if torn else ''}: {where or 'not reached'}"
        wrong = []
        if killed.status not in scenario.killed:
            wrong.append(f"the killed run ended with {killed.status}: {_last(killed.errors)}")
        between = run(lambda: scenario.between(root), root, home=home)
        if between.status != 0:
            wrong.append(f"in between it cannot be read: {_last(between.errors)}")
        again = run(lambda: scenario.command(root), root, home=home, limit_s=scenario.limit_s)
        case = Case(what, lambda: None, ends=scenario.ends, events=("",), limit_s=scenario.limit_s)
        wrong += [f"run again: {one}" for one in faults(case, again, again.status, folder)]
        after = run(lambda: scenario.state(root), root, home=home)
        if after.status != 0:
            wrong.append(f"afterwards it cannot be read: {_last(after.errors)}")
        elif again.status in scenario.ends:
            wrong += scenario.compare(self._clean[scenario.name], between.told, after.told)
        self._done[scenario.name] += 1
        self.said = ", ".join(
            f"{name} {count} of {len(self._points[name])} writes"
            for name, count in self._done.items()
        )
        return what, Result(again.status, wrong, f"{killed.errors}\n--- again\n{again.errors}")


def _kind(told: str) -> str:
    """Return a write without what differs from run to run."""
    return re.sub(r"[0-9a-f]{6,}|\d+", "*", told)


def _last(errors: str) -> str:
    lines = [line for line in errors.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def tree(folder: Path) -> dict[str, str]:
    """Return the digest of each file below a folder."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def shown(files: dict[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in files.items() if ".partial" not in name}
