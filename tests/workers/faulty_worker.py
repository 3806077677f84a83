"""A worker whose programs are instant, and end or disturb their process where they are told to.

Server, channel and child are the real ones; only building and running are left out. A program's "target" says what
happens: {"seconds": its time, "at": point, "do": deed, "once": file that is made when it was done; "": each time}.

    python faulty_worker.py <file: while it is there, children die before they are ready, and remove it> '<settings>'
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from tencost.workers import protocol
from tencost.workers.evaluator import Best
from tencost.workers.worker import Child


class FaultyChannel(protocol.Channel):
    def __init__(self, end: socket.socket, token: str) -> None:
        if Path(sys.argv[1]).exists():
            Path(sys.argv[1]).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        super().__init__(end, token)
        self.target: dict[str, Any] = {}
        self.last_id = ""

    def requests(self) -> dict[str, Any] | None:
        with socket.socket(fileno=os.dup(self.descriptor)) as peeked:
            line = peeked.recv(1 << 16, socket.MSG_PEEK)
            self.target = json.loads(line)["target"] if line else {}
            if self.target.get("at") == "reading" and not Path(self.target["once"]).exists():
                peeked.recv(len(line) // 2)
        self.point("reading")
        return super().requests()

    def answer(self, message: dict[str, Any]) -> None:
        if message.get("phase") == "begun":
            self.point("read")
        if "run_secs" in message and self.target.get("at") == "answering":
            line = json.dumps({"id": self._id, **message})
            os.write(self.descriptor, line[: len(line) // 2].encode())
            self.point("answering")
        super().answer(message)
        if "run_secs" in message:
            self.point("answered")
            self.last_id = self._id

    def point(self, here: str) -> None:
        """Do what the program wants done here; once."""
        if self.target.get("at") != here:
            return
        if self.target["once"]:
            try:
                Path(self.target["once"]).touch(exist_ok=False)
            except FileExistsError:
                return
        self.do(self.target["do"])

    def do(self, deed: str) -> None:
        lie = json.dumps({"id": "0" * 16, "run_secs": [1e-9]}).encode() + b"\n"
        if deed == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif deed.startswith("exit"):
            os._exit(int(deed.removeprefix("exit")))
        elif deed == "lie":
            os.write(self.descriptor, lie)
        elif deed == "lie late":
            if os.fork() == 0:
                time.sleep(0.02)
                os.write(self.descriptor, lie)
                os._exit(0)
        elif deed == "repeat":
            answer = {"id": self.last_id, "run_secs": [1e-9]}
            os.write(self.descriptor, json.dumps(answer).encode() + b"\n")
        elif deed == "claim death":
            os.write(self.descriptor, b'{"died": "0", "code": 77}\n{"exit": 77}\n{"ready": 1}\n')
        elif deed == "babble":
            os.write(self.descriptor, b"\xff\x00[[[\n")
        elif deed == "flood":
            while True:
                os.write(self.descriptor, b"x" * 65536)
        elif deed == "close input":
            os.close(0)
        elif deed == "close all":
            os.closerange(0, 4096)
        elif deed == "cover":
            os.dup2(2, self.descriptor)
        elif deed == "fork":
            os.fork()
        elif deed.startswith("start "):
            command, *then = deed.removeprefix("start ").splitlines()
            subprocess.run(["sh", "-c", command], check=True)
            for one in then:
                self.do(one)
        elif deed.startswith("await "):
            wanted = ["sleep", deed.removeprefix("await ")]
            while not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == wanted]:
                time.sleep(0.001)
        elif deed == "hang":
            time.sleep(600)
        else:
            raise ValueError(deed)


class FaultyChild(Child):
    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(self._channel, FaultyChannel)
        self._channel.point("building")
        self.wait_for_go()
        self._channel.point("running")
        return {"run_secs": [request["target"]["seconds"]] * 2}

    def wait_for_go(self) -> Best:
        assert isinstance(self._channel, FaultyChannel)
        self._channel.answer({"phase": "run"})
        self._channel.point("built")
        go = self._channel.receive()
        if go is None:
            os._exit(0)
        return Best(*(go["best"] or ()))


if __name__ == "__main__":
    control = socket.socket(fileno=json.loads(sys.argv[2])["control"])
    protocol.Channel = FaultyChannel  # type: ignore[misc]
    protocol.ForkServer(control, lambda channel: FaultyChild(channel, 1 << 40).serve()).run()
