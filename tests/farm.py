"""A real RPC tracker on loopback with devices behind it: servers, each the leader of a process group."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil

from tencost.errors import HardwareError
from tencost.workers.remote import RemoteAddress
from tencost.workers.tracker import TrackerConnection

KEY = "board"


class Farm:
    """A tracker and servers, each the leader of a process group."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.address = RemoteAddress("127.0.0.1", self.port, KEY)
        self.servers: list[subprocess.Popen[bytes]] = []
        self._log = (folder / "farm.log").open("ab")
        self._all: list[subprocess.Popen[bytes]] = []
        self._start("-m", "tvm.exec.rpc_tracker", "--host=127.0.0.1", *self._ports(self.port))
        self._wait(self.answers)  # a server that finds no tracker tries again after 5 s

    def add(self) -> None:
        tracker = f"--tracker=127.0.0.1:{self.port}"
        self.servers.append(
            self._start(
                "-m",
                "tencost.workers.server",
                "--host=127.0.0.1",
                *self._ports(free_port()),
                tracker,
                f"--key={KEY}",
            )
        )

    def add_small(self, folder: Path) -> None:
        """TVM's own server, as on a small board: no compiler, no random numbers."""
        code = folder / "small.py"
        code.write_text(SMALL)
        bare = {**os.environ, "PATH": str(folder), "CXX": "", "CC": ""}
        self._start(str(code), str(free_port()), str(self.port), environment=bare)

    def wait_for(self, count: int, key: str = KEY) -> None:
        self._wait(lambda: self.count(key) >= count)

    def answers(self) -> bool:
        with suppress(HardwareError), closing(TrackerConnection(self.address)):
            return True
        return False

    def count(self, key: str = KEY) -> int:
        with closing(TrackerConnection(self.address)) as tracker:
            return tracker.keys()[key]

    @staticmethod
    def _wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, "tracker or servers do not start"
            time.sleep(0.05)

    def busy_server(self) -> subprocess.Popen[bytes]:
        """The server that has a session: a process of its own beside the one that listens."""
        busy = [one for one in self.servers if len(processes_of(one)) > 2]
        assert len(busy) == 1
        return busy[0]

    def kill(self, server: subprocess.Popen[bytes]) -> None:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        self.servers.remove(server)

    def close(self) -> list[psutil.Process]:
        """End everything; return what is still running, which should be nothing."""
        known = [
            one for process in self._all if process.poll() is None for one in processes_of(process)
        ]
        for process in self._all:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._log.close()
        return psutil.wait_procs(known, timeout=10)[1]

    def _start(
        self, *arguments: str, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=self._log,
            stderr=self._log,
            env=environment,
            start_new_session=True,
        )
        self._all.append(process)
        return process

    @staticmethod
    def _ports(first: int) -> tuple[str, str]:
        return f"--port={first}", f"--port-end={first + 1}"


SMALL = """
import sys
from tvm import rpc

def forget():
    from tvm_ffi.registry import remove_global_func
    remove_global_func("tvm.contrib.random.random_fill_for_measure")

if __name__ == "__main__":
    port, tracker = int(sys.argv[1]), ("127.0.0.1", int(sys.argv[2]))
    server = rpc.Server(
        "127.0.0.1", port, port + 1, key="small", tracker_addr=tracker, server_init_callback=forget
    )
    server.proc.join()
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def processes_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    parent = psutil.Process(process.pid)
    return [parent, *parent.children(recursive=True)]


@contextmanager
def farm_of(folder: Path, *, servers: int, small: bool = False) -> Iterator[Farm]:
    """A tracker with so many servers that are ready, and a small one if so; nothing is left running."""
    made = Farm(folder)
    for _ in range(servers):
        made.add()
    if small:
        made.add_small(folder)
    try:
        made.wait_for(servers)
        made.wait_for(int(small), "small")
        yield made
    finally:
        left = made.close()
    assert not left, f"still running: {left}"
