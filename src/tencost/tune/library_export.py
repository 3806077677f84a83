"""`tencost tune --to model.so`: the best network so far as a library, at the end and wherever Ctrl-C ends a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from tencost import signals
from tencost.config import HardwareConfig
from tencost.networks.network import Network
from tencost.tune.compiled import Origin, write_library


class LibraryExport:
    """Where the network goes, if anywhere.

    Args:
        to: the library; None: nowhere.
        console: where it is said.

    Attributes:
        is_kept: whether this run has written it.
        given_up: whether a second Ctrl-C kept it from being written.
    """

    def __init__(self, to: Path | None, console: Console) -> None:
        self.to = to
        self.is_kept = self.given_up = False
        self._console = console

    def keep(self, network: Network, hardware: HardwareConfig, built: Any, origin: Origin) -> None:
        """Write a compiled network, whose output agreed, with its runners; raises TuneError as `write_library`."""
        if self.to is None:
            return
        write_library(self.to, network, hardware, built, origin)
        self.is_kept = True
        self._say(f"{self.to}: {origin.tuned} of {origin.tasks} tasks tuned; run it: ", ".py")

    def say_why_not(self, why: str) -> None:
        """Say why nothing was written, where something should have been."""
        if self.to is not None and not self.is_kept:
            self._say(f"{self.to} is not written: {why}")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the first Ctrl-C back until the library is written; the second gives it up. Without one, hold nothing.

        Raises:
            KeyboardInterrupt: at the block's end for the first, at once for the second.
        """
        if self.to is None:
            yield
            return
        pressed: list[bool] = []

        def handle() -> None:
            if pressed:
                self.given_up = True
                raise KeyboardInterrupt
            pressed.append(True)
            self._say(f"writing {self.to} first; {signals.name()} again gives it up")

        with signals.handled(handle):
            yield
        if pressed:
            raise KeyboardInterrupt

    def _say(self, text: str, runner: str = "") -> None:
        more = f"python {self.to.with_suffix(runner)}" if self.to is not None and runner else ""
        self._console.print(f"{text}{more}", markup=False, highlight=False, soft_wrap=True)
