"""How a measuring process is talked to: ids in every message, deaths reported beside the answers, never among them.

A worker is a server, which imports TVM once, and one child at a time, which it forks. Two kinds of sockets, one JSON
object a line each way:

The control socket, between parent and server, lives as long as the server. A child closes it before anything else.

    parent -> server    {"fork": token}             with the child's end of a new channel; a child that is still there
                                                    gets a moment to end, and is killed then
                        {"kill": token}             kill that child
    server -> parent    {"died": token, "code": c}  that child has ended: exit code, or minus the signal

A channel, between parent and child, lives as long as the child, so that nothing of one child can reach the next. Its
requests and answers are those of :mod:`tencost.workers.worker`; of them this is common to all:

    child -> parent     {"id": token, "ready": pid}             before the first request
    parent -> child     {"id": id, ...}                         a request; ids are random
    child -> parent     {"id": id, "phase": "begun"}            it is read: until here its program cannot be blamed
                        {"id": id, ..., "last": true | absent}  the answer; "last": this process wants to be replaced

Programs run inside the child. Its end of the channel is a file descriptor with a high number, it has no other, and
its standard input is empty; descriptors that a program leaves changed cost the child. A copy that a program makes of
its process by fork() ends where it would answer. Whatever else a program starts is killed before its answer, or with
its process (:mod:`tencost.workers.strays`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import selectors
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from tencost.workers.strays import adopt_orphans, end_strays

CHANNEL_DESCRIPTOR = 512
"""Least number of the descriptor through which a child answers, where the system allows as many."""
LEAVE_S = 5.0
"""How long a child may take to end by itself, once its channel is closed."""


class Channel:
    """The child's end of its channel.

    Args:
        end: the socket; its descriptor is moved to a high number.
        token: the child's name, which its first answer carries.
    """

    def __init__(self, end: socket.socket, token: str) -> None:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        least = CHANNEL_DESCRIPTOR
        if most != resource.RLIM_INFINITY:
            least = min(least, most // 2)
        self.descriptor = fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, least)
        end.close()
        self._pid = os.getpid()
        self._id = token
        self._reader = open(self.descriptor, "rb", closefd=False)  # noqa: SIM115 - until the end
        self._watched = (0, 1, 2, self.descriptor)
        self._files_before = self._files()

    def requests(self) -> dict[str, Any] | None:
        """Wait for the next request and say that it has begun; None at the end."""
        request = self.receive()
        if request is not None:
            self._id = request["id"]
            self.answer({"phase": "begun"})
        return request

    def receive(self) -> dict[str, Any] | None:
        """Return the next message; None at the end, also where it breaks off."""
        self._end_copy()
        try:
            line = self._reader.readline()
        except ConnectionResetError:
            return None
        if not line.endswith(b"\n"):
            return None
        message: dict[str, Any] = json.loads(line)
        return message

    def answer(self, message: dict[str, Any]) -> None:
        """Send a message under the id of the request; ends the process if its channel is not what it was."""
        self._end_copy()
        if self._files()[-1] != self._files_before[-1]:
            os._exit(1)
        line = json.dumps({"id": self._id, **message}).encode() + b"\n"
        while line:
            line = line[os.write(self.descriptor, line) :]

    def is_intact(self) -> bool:
        """Say whether standard input, output and error and the channel are the files that they were."""
        return self._files() == self._files_before

    def _end_copy(self) -> None:
        if os.getpid() != self._pid:
            os._exit(0)

    def _files(self) -> list[tuple[int, int] | None]:
        files: list[tuple[int, int] | None] = []
        for descriptor in self._watched:
            try:
                status = os.fstat(descriptor)
            except OSError:
                files.append(None)
            else:
                files.append((status.st_dev, status.st_ino))
        return files


class ForkServer:
    """Forks children on demand and says how each ended; returns when the parent is gone.

    Starts no thread: a fork would lose it.

    Args:
        control: the server's end of the control socket.
        serve: what a child does with its channel; the process ends after it.
    """

    def __init__(self, control: socket.socket, serve: Callable[[Channel], None]) -> None:
        self._control = control
        self._serve = serve
        self._child: tuple[str, int] | None = None
        self._wakes, self._woken = socket.socketpair()
        for end in (self._wakes, self._woken):
            end.setblocking(False)

    def run(self) -> None:
        """Serve until the parent closes the control socket; the child, and what it started, ends with it."""
        adopt_orphans()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        pending, ends = b"", []
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._control, selectors.EVENT_READ)
                selector.register(self._woken, selectors.EVENT_READ)
                while True:
                    ready = [key.fileobj for key, _ in selector.select()]
                    if self._woken in ready:
                        with contextlib.suppress(BlockingIOError):
                            self._woken.recv(4096)
                    self._reap()
                    if self._control not in ready:
                        continue
                    received, new, _, _ = socket.recv_fds(self._control, 4096, 4)
                    if not received:
                        return
                    ends += new
                    *lines, pending = (pending + received).split(b"\n")
                    for line in lines:
                        command = json.loads(line)
                        if "fork" in command:
                            self._end_child(LEAVE_S)
                            self._fork(command["fork"], socket.socket(fileno=ends.pop(0)))
                        elif self._child is not None and self._child[0] == command["kill"]:
                            self._end_child(0.0)
        except (BrokenPipeError, ConnectionResetError):
            return
        finally:
            end_strays()  # the child is one of them

    def _fork(self, token: str, end: socket.socket) -> None:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for server_end in (self._control, self._wakes, self._woken):
                    server_end.close()
                adopt_orphans()
                channel = Channel(end, token)
                channel.answer({"ready": os.getpid()})
                self._serve(channel)
                code = 0
            finally:
                os._exit(code)
        end.close()
        self._child = (token, pid)

    def _end_child(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        while self._child is not None and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.001)
        if self._child is not None:
            os.kill(self._child[1], signal.SIGKILL)
            self._reap(wait=True)

    def _reap(self, *, wait: bool = False) -> None:
        if self._child is None:
            return
        token, pid = self._child
        ended_pid, status = os.waitpid(pid, 0 if wait else os.WNOHANG)
        if ended_pid:
            self._child = None
            end_strays()
            report = {"died": token, "code": os.waitstatus_to_exitcode(status)}
            self._control.sendall(json.dumps(report).encode() + b"\n")
