"""The parent's end of :mod:`tencost.workers.protocol`: a server, its child, one request at a time.

A request gets the answer to it and no other, or an exception says why there is none. By then the child that failed is
ended, and so is a server that failed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tencost.workers.strays import end_descendants

MAX_ANSWER_BYTES = 1 << 20
"""An answer is some hundred bytes, with the compiler's message some thousand."""
MAX_STARTS = 20
"""Children in a row that end before they are ready, until that is an error."""
_SETTLE_S = 5.0
"""How long the server may take to report a death after the channel was closed, and to carry out a kill."""


class NoAnswerError(Exception):
    """There will be no answer to a request; the message says why, as a status' error."""


class ChildDiedError(NoAnswerError):
    """The child ended, or closed its channel."""


class ForeignAnswerError(NoAnswerError):
    """Something came through the channel that is no answer to the request."""

    def __init__(self) -> None:
        super().__init__("its process sent what is no answer")


class ServerEndedError(NoAnswerError):
    """The server ended."""

    def __init__(self) -> None:
        super().__init__("its process ended")


class WorkerProcess:
    """A server and its child; both are started when needed.

    Args:
        command: the server's command; a mapping with "control", the descriptor of the control socket, is appended.
        settings: further entries of that mapping.
        environment: of the server.
        log: file for what the processes write to standard output and error.

    Attributes:
        pid: the child's; None while there is none.
        num_served: requests that the child has been sent.
    """

    def __init__(
        self,
        command: Sequence[str],
        settings: Mapping[str, Any],
        environment: Mapping[str, str],
        log: Path | None = None,
    ) -> None:
        self.pid: int | None = None
        self.num_served = 0
        self._cpus: Sequence[int] | None = None
        self._command = command
        self._settings = settings
        self._environment = environment
        self._log = log
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._control_buffer = b""
        self._channel: socket.socket | None = None
        self._buffer = b""
        self._token = ""
        self._id = ""
        self._exit_code: int | None = None

    @property
    def server_pid(self) -> int | None:
        """Process id of the server; None while there is none."""
        server = self._server
        return server.pid if server is not None else None

    def move(self, cpus: Sequence[int] | None) -> None:
        """Have the processes, and those that replace them, run on these CPUs; None changes nothing."""
        if not cpus or not hasattr(os, "sched_setaffinity"):
            return
        self._cpus = cpus
        for process in (self.server_pid, self.pid):
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(process, cpus)

    def ready(self, timeout_s: float) -> bool:
        """Have a child that waits for a request, and has said so; return whether it is a new one.

        Raises:
            ServerEndedError: a server that was just started ended, or child after child did.
            TimeoutError: a new child was not ready in time.
        """
        if self._server is not None and self._server.poll() is not None:
            self.stop()
        if self._is_idle():
            return False
        for _ in range(MAX_STARTS):
            is_new = self._server is None
            try:
                with self._ending():
                    if is_new:
                        self._start()
                    self._fork(timeout_s)
            except ServerEndedError:
                if is_new:
                    raise
            except NoAnswerError:
                continue
            else:
                return True
        raise ServerEndedError

    def request(self, message: Mapping[str, Any], timeout_s: float) -> None:
        """Send a request and wait until the child has begun with it.

        Raises:
            TimeoutError, NoAnswerError: it has not.
        """
        self._id = secrets.token_hex(8)
        self.num_served += 1
        self.send(message, timeout_s)
        if self.read(timeout_s).get("phase") != "begun":
            with self._ending():
                raise ForeignAnswerError

    def send(self, message: Mapping[str, Any], timeout_s: float) -> None:
        """Send the request, or more of it, under its id; raises as :meth:`request`."""
        with self._ending():
            channel = self._channel
            if channel is None:
                raise ServerEndedError
            try:
                channel.settimeout(timeout_s)
                channel.sendall(json.dumps({**message, "id": self._id}).encode() + b"\n")
            except TimeoutError:
                raise
            except OSError as error:
                raise self._death() from error

    def read(self, timeout_s: float) -> dict[str, Any]:
        """Return the next answer to the request; raises as :meth:`request`.

        A child whose answer says that it is its last is let go.
        """
        with self._ending():
            answer = self._read(timeout_s)
        if answer.get("last"):
            self.retire()
        return answer

    def retire(self) -> None:
        """Let the child end by itself: it gives back what it holds."""
        channel, self._channel, self.pid = self._channel, None, None
        self._buffer, self._token, self._id, self._exit_code = b"", "", "", None
        self.num_served = 0
        if channel is not None:
            channel.close()

    def kill(self) -> None:
        """End the child now, whatever it does; a server that cannot is ended with it."""
        try:
            if self._token and self._exit_code is None and self._control is not None:
                self._command_server({"kill": self._token})
                self._settle()
                if self._exit_code is None:
                    self.stop()
        except ServerEndedError:
            self.stop()
        self.retire()

    def stop(self) -> None:
        """End server and child, and all that programs started."""
        server, self._server = self._server, None
        control, self._control, self._control_buffer = self._control, None, b""
        if server is not None:
            if server.poll() is None:
                end_descendants(server.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)  # the session that it leads: server and child
            server.wait()
        self.retire()
        if control is not None:
            control.close()

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """End what failed: the child, or the server."""
        try:
            yield
        except ServerEndedError:
            self.stop()
            raise
        except (TimeoutError, NoAnswerError):
            self.kill()
            raise

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        settings = json.dumps({**self._settings, "control": theirs.fileno()})
        with theirs, (self._log or Path(os.devnull)).open("ab") as log:
            self._server = subprocess.Popen(
                [*self._command, settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is the caller's business: it finishes the program
            )
        self._control = ours
        self.move(self._cpus)

    def _fork(self, timeout_s: float) -> None:
        """Have the server fork a child, and wait until it is ready."""
        self.retire()
        self._token = self._id = secrets.token_hex(8)
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._command_server({"fork": self._token}, theirs)
        self.pid = self._read(timeout_s)["ready"]
        self.move(self._cpus)

    def _is_idle(self) -> bool:
        """Say whether there is a child, and nothing has come from it since its last answer; else end it."""
        if self._channel is None or self.pid is None or self._control is None:
            return False
        if not self._buffer and not self._select([self._channel, self._control], 0.0):
            return True
        self.kill()
        return False

    def _read(self, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            channel = self._wait(deadline)
            chunk = b""
            with contextlib.suppress(OSError):  # nothing more will come
                chunk = channel.recv(1 << 16, socket.MSG_DONTWAIT)
            if not chunk:
                raise self._death()
            self._buffer += chunk
            if len(self._buffer) > MAX_ANSWER_BYTES:
                raise ForeignAnswerError
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ForeignAnswerError from error
        if not isinstance(answer, dict) or answer.get("id") != self._id:
            raise ForeignAnswerError
        return answer

    def _wait(self, deadline: float) -> socket.socket:
        """Wait until something can be read from the channel, and return it; its end can be, too."""
        while True:
            channel, control = self._channel, self._control
            if channel is None or control is None:
                raise ServerEndedError
            remaining = deadline - time.monotonic()
            readable = self._select([channel, control], max(remaining, 0.0))
            if channel in readable or self._exit_code is not None:
                return channel
            if control in readable:
                self._hear(deadline)
            elif remaining <= 0:
                raise TimeoutError

    def _death(self) -> ChildDiedError:
        """Return how the child died, which the server knows; its channel is closed."""
        self._settle()
        if self._exit_code is None:
            return ChildDiedError("its process closed its connection")
        return ChildDiedError(f"its process ended with exit code {self._exit_code}")

    def _settle(self) -> None:
        """Wait a moment for the server to say how the child ended."""
        deadline = time.monotonic() + _SETTLE_S
        with contextlib.suppress(TimeoutError):
            while self._exit_code is None:
                self._hear(deadline)

    def _hear(self, deadline: float) -> None:
        """Take in what the server says; raises TimeoutError and ServerEndedError."""
        control = self._control
        if control is None:
            raise ServerEndedError
        if not self._select([control], max(deadline - time.monotonic(), 0.0)):
            raise TimeoutError
        try:
            received = control.recv(4096)
        except OSError as error:
            raise ServerEndedError from error
        if not received:
            raise ServerEndedError
        *lines, self._control_buffer = (self._control_buffer + received).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message["died"] == self._token:
                self._exit_code = message["code"]

    def _command_server(self, message: Mapping[str, Any], end: socket.socket | None = None) -> None:
        if self._control is None:
            raise ServerEndedError
        ends = [end.fileno()] if end is not None else []
        try:
            socket.send_fds(self._control, [json.dumps(message).encode() + b"\n"], ends)
        except OSError as error:
            raise ServerEndedError from error

    def _select(self, sockets: list[socket.socket], timeout_s: float) -> list[socket.socket]:
        """Return those of the sockets that can be read or are at their end."""
        poll = select.poll()
        try:
            for end in sockets:
                poll.register(end, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll(math.ceil(timeout_s * 1e3))}
            return [end for end in sockets if end.fileno() in ready]
        except (OSError, ValueError) as error:  # closed by another thread, which ended all
            raise ServerEndedError from error
