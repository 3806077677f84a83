"""A worker whose programs are timed at once, by their text, and whose process ends or babbles with most of them.

    python dying_worker.py <file that counts the programs> '<settings>'

Server, channel and child are the real ones; only building and running are left out.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import zlib
from pathlib import Path
from typing import Any

from tencost.workers import protocol
from tencost.workers.worker import Child

DEEDS = (
    "", "kill", "exit 77", "", "kill late", "unknown status", "no times", "", "text for times", "babble", "no answer",
    "ok without times", "",
)  # fmt: skip
"""What happens to each program in turn."""


def seconds_of(module: bytes) -> float:
    return 1e-6 + zlib.crc32(module) * 1e-15


class DyingChild(Child):
    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        with Path(sys.argv[1]).open("a") as file:
            file.write(".")
            number = file.tell()
        deed = DEEDS[number % len(DEEDS)]
        self.end(deed, "kill", "exit 77")
        self.wait_for_go()
        self.end(deed, "kill late", "exit 78")
        if deed == "babble":
            os.write(self._channel.descriptor, b'{"id": 0, "status": "ok"}\n[[[\n')
        if deed == "no answer":
            return {}
        if deed == "unknown status":
            return {"status": "a status of another version", "error": "?"}
        if deed == "ok without times":
            return {"status": "ok"}
        if deed == "no times":
            return {"run_secs": []}
        if deed == "text for times":
            return {"run_secs": ["1e-9"]}
        return {"run_secs": [seconds_of(Path(request["module"]).read_bytes())] * 2}

    def end(self, deed: str, *deadly: str) -> None:
        if deed not in deadly:
            return
        if deed.startswith("exit"):
            os._exit(int(deed.split()[1]))
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    control = socket.socket(fileno=json.loads(sys.argv[2])["control"])
    protocol.ForkServer(control, lambda channel: DyingChild(channel, 1 << 40).serve()).run()
