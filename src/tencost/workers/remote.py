"""Programs on devices behind a TVM RPC tracker: uploaded, linked there, timed there.

Used inside the worker process, and for whole networks by :mod:`tencost.tune.hosts`. A session with a device is kept
over many programs, because opening one takes longer than most programs; it is renewed before the server ends it. The
server ends it so that a program which never returns costs the device seconds, not the day: the server cannot see that
its client is gone while the program runs.
"""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tencost.errors import HardwareError
from tencost.workers.evaluator import (
    MeasureOptions,
    adaptive_times,
    local_timer,
    random_arguments,
)
from tencost.workers.threads import threads_of_library
from tencost.workers.tracker import RemoteAddress as RemoteAddress
from tencost.workers.tracker import TrackerConnection, server_command
from tencost.workers.tracker import check_tracker as check_tracker

NO_DEVICE_S = 30.0
"""How long to wait while the tracker knows no device with the key: one may be starting again."""
BUSY_S = 600.0
"""How long to wait while there are devices, all of them in use by others."""
_ASK_AGAIN_S = 5.0
"""How long one request to the tracker waits before its devices are counted again."""


class SessionLostError(RuntimeError):
    """The device or the way to it failed, not the program."""


class RemoteDevices:
    """One session after the other with the devices of an address.

    Args:
        address: the tracker and the key.
        no_device_s: how long to wait while the tracker knows no device with the key.
    """

    def __init__(self, address: RemoteAddress, *, no_device_s: float = NO_DEVICE_S) -> None:
        self.address = address
        self.num_sessions = 0
        self._no_device_s = no_device_s
        self._session: DeviceSession | None = None
        self._has_loaded = False

    def export(self, executable: Any) -> bytearray:
        """Return a compiled tvm Executable as the device takes it: objects to link there, or a library linked here.

        Raises:
            HardwareError: there is no such compiler as the address's `cc`.
            RuntimeError: LLVM cannot generate its code, or `cc` cannot link it.
        """
        with tempfile.TemporaryDirectory(prefix="tencost-export-") as folder:
            path = Path(folder) / f"program{self._suffix}"
            executable.export_library(str(path), **linking(self.address.cc))
            return bytearray(path.read_bytes())

    def time(
        self,
        executable: Any,
        target: dict[str, Any],
        args: Sequence[Any],
        options: MeasureOptions,
        *,
        waiting: Callable[[], None] = lambda: None,
        running: Callable[[], None] = lambda: None,
    ) -> list[float]:
        """Time a program on a device: all times in the order taken, seconds.

        When the session breaks, the program gets a second chance in another one.

        Args:
            executable: what `tvm.compile` returned, or what `export` made of it.
            target: what it was compiled for.
            args: its arguments, ["TENSOR", dtype, [shape]] each.
            options: how long to time.
            waiting: called before waiting for a device.
            running: called before each attempt to run; nothing after it waits for other users of the devices.

        Raises:
            HardwareError: no device is there, or it cannot load programs.
            RuntimeError: the program failed, or its session broke twice.
        """
        library = executable if isinstance(executable, bytearray) else self.export(executable)

        def attempt() -> list[float]:
            session = self.session(options.run_timeout_s, waiting)
            running()
            return self._time(session, library, target, args, options)

        try:
            return attempt()
        except SessionLostError:
            return attempt()

    @contextlib.contextmanager
    def loaded(self, session: DeviceSession, library: bytearray) -> Iterator[Any]:
        """Upload what `export` made and load it there; its files are removed when the block ends.

        Raises:
            HardwareError: the device cannot link or load any program.
        """
        name = session.upload(library, self._suffix)
        try:
            module = session.load(name)
        except Exception as error:
            if self._has_loaded or not session.is_alive():
                raise
            raise HardwareError(
                f"expected the device of key {self.address.key!r} to link and load a program, found: {_last(error)}. "
                "Install a C++ compiler on it (for a GPU nvcc, too), or link here with hardware.cc=<cross compiler>; "
                "hardware.target must name the device's processor"
            ) from error
        self._has_loaded = True
        try:
            yield module
        finally:
            del module
            session.remove(name)

    def close(self) -> None:
        """Give the device back."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    @property
    def _suffix(self) -> str:
        return ".so" if self.address.cc else ".tar"

    def _time(
        self,
        session: DeviceSession,
        library: bytearray,
        target: dict[str, Any],
        args: Sequence[Any],
        options: MeasureOptions,
    ) -> list[float]:
        try:
            with self.loaded(session, library) as module:
                device = session.device(str(target["kind"]))
                tensors = session.arguments(device, args)
                timer = local_timer(module, tensors, device, flush=options.cache_flush)
                return adaptive_times(timer, options)
        except HardwareError:
            self.close()
            raise
        except Exception as error:
            alive = session.is_alive()
            if alive and target["kind"] == "llvm":
                raise
            self.close()  # CUDA refuses all later calls of a process after an illegal access
            if alive:
                raise
            if session.is_over():
                raise RuntimeError("it ran until the device's server ended the session") from error
            raise SessionLostError(
                f"the session with a device of key {self.address.key!r} broke: {error}"
            ) from error

    def session(
        self, run_timeout_s: float, waiting: Callable[[], None] = lambda: None
    ) -> DeviceSession:
        """Return a session that lasts for one more program: its run, and as long for what goes before.

        Raises:
            HardwareError: no device is there.
        """
        need = 2 * run_timeout_s
        if self._session is not None:
            if self._session.remaining_s() >= need and self._session.is_alive():
                return self._session
            self.close()
        waiting()
        self._session = self._acquire(lifetime_s=2 * need)
        self.num_sessions += 1
        return self._session

    def _acquire(self, lifetime_s: float) -> DeviceSession:
        """Wait for a device.

        Raises:
            HardwareError: the tracker cannot be reached or knows no device with the key, for `no_device_s`, or all
                are in use for ten minutes.
        """
        started = last_seen = time.monotonic()
        while True:
            problem: HardwareError
            try:
                with contextlib.closing(TrackerConnection(self.address)) as tracker:
                    tracker.count()
                    last_seen = time.monotonic()
                    device = tracker.request(_ASK_AGAIN_S)
                if device is not None:
                    return DeviceSession(*device, lifetime_s)
                problem = HardwareError(
                    f"expected a free device of key {self.address.key!r} at the RPC tracker {self.address}, found all "
                    f"of them in use for {BUSY_S:g} s. Start more servers, or wait for other users"
                )
            except HardwareError as error:
                problem = error
            except (OSError, RuntimeError) as error:  # handed out, but gone when we called
                problem = HardwareError(
                    f"expected a device of key {self.address.key!r} to answer, found: {_last(error)}. Start it again: "
                    f"{server_command(self.address)}"
                )
                time.sleep(0.2)
            now = time.monotonic()
            if now - last_seen > self._no_device_s or now - started > BUSY_S:
                raise problem
            time.sleep(0.2)


class DeviceSession:
    """An open session with one device."""

    def __init__(self, host: str, port: int, key: str, lifetime_s: float) -> None:
        from tvm import rpc

        self._ends = time.monotonic() + lifetime_s
        self._session = rpc.connect(host, port, key, session_timeout=math.ceil(lifetime_s))
        self._fill: Any = None
        with contextlib.suppress(AttributeError):  # a small TVM has no such function
            self._fill = self._session.get_function("tvm.contrib.random.random_fill_for_measure")
        self._tensors: tuple[str, list[Any]] = ("", [])
        self._num_uploads = 0

    def remaining_s(self) -> float:
        return self._ends - time.monotonic()

    def is_over(self) -> bool:
        """Say whether the server has ended the session, because its time was up."""
        return self.remaining_s() <= 0.5

    def is_alive(self) -> bool:
        """Ask the device for a sign of life."""
        try:
            self._session.get_function("runtime.GetDeviceAttr")
        except AttributeError:
            return True  # it answered: it has no such function
        except Exception:  # noqa: BLE001 - however the connection failed, it has
            return False
        return True

    def upload(self, library: bytearray, suffix: str) -> str:
        """Write a file on the device, under a name that the session has not used: dlopen goes by names."""
        self._num_uploads += 1
        name = f"program{self._num_uploads}{suffix}"
        self._session.upload(library, name)
        return name

    def load(self, name: str) -> Any:
        return self._session.load_module(name)

    def remove(self, name: str) -> None:
        """Remove an uploaded file and the library that was linked from it."""
        with contextlib.suppress(Exception):  # a dead session has nothing to remove
            self._session.remove(name)
            if name.endswith(".tar"):
                self._session.remove(f"{name}.so")

    def device(self, kind: str) -> Any:
        return self._session.device("cpu" if kind == "llvm" else kind)

    def arguments(self, device: Any, args: Sequence[Any]) -> list[Any]:
        """Return random arguments on the device; those of the program before are used again if they fit."""
        key = json.dumps([str(device), list(args)])
        if self._tensors[0] != key:
            self._tensors = ("", [])
            self._tensors = (key, random_arguments(args, device, self._fill_one))
        return self._tensors[1]

    def _fill_one(self, tensor: Any, dtype: str, shape: Sequence[int]) -> None:
        if self._fill is not None:
            self._fill(tensor)
        else:
            tensor.copyfrom(_random_array(dtype, shape))

    def close(self) -> None:
        """End the session; the server takes the next client at once."""
        self._tensors = ("", [])
        self._fill = None
        with contextlib.suppress(Exception):  # it may be dead
            self._session.get_function("CloseRPCConnection")()


def linking(cc: str, cores: int = 1) -> dict[str, Any]:
    """Return the arguments of TVM's `export_library` that link with hardware.cc; TVM's own choice where that is empty.

    Args:
        cc: hardware.cc.
        cores: of more than one the library gets threads of its own, see loop_threads.c.

    Raises:
        HardwareError: this host has no such compiler.
    """
    threads = threads_of_library(cores)
    if not cc:
        return {"options": threads} if threads else {}
    compiler, *options = shlex.split(cc)
    options += threads
    if shutil.which(compiler) is None:
        raise HardwareError(
            f"expected the compiler {compiler!r} of hardware.cc on this host, found none. Install it, or leave "
            "hardware.cc empty to link programs on the device"
        )
    return {"cc": compiler, **({"options": options} if options else {})}


def _random_array(dtype: str, shape: Sequence[int]) -> Any:
    """Return what is uploaded to a device whose TVM cannot make random numbers: floats in [0, 1), integers 0 or 1."""
    import numpy as np

    uniform = np.random.default_rng(0).random(tuple(shape))
    return uniform.astype(dtype) if "float" in dtype else (uniform < 0.5).astype(dtype)


def _last(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
