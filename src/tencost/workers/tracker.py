"""What a TVM RPC tracker is asked: which devices there are, and for one of them.

TVM's own client retries a refused connection for a minute and waits for a free device without end; both have limits
here, so that a wrong address is said at once and a run does not hang.
"""

from __future__ import annotations

import socket
import struct
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from tencost.config import HardwareConfig, RunnerKind
from tencost.errors import HardwareError

CONNECT_TIMEOUT_S = 10.0
"""Longest time that the tracker may take to answer."""


@dataclass(frozen=True)
class RemoteAddress:
    """Devices of one kind behind a TVM RPC tracker."""

    host: str
    """Host name of the tracker."""
    port: int
    """Port of the tracker."""
    key: str
    """Key that the devices registered with."""
    cc: str = ""
    """Command that links programs for the device here; empty links them on the device."""

    @classmethod
    def of(cls, hardware: HardwareConfig) -> RemoteAddress:
        """Return where a hardware's devices are."""
        return cls(hardware.host, hardware.port, hardware.key or hardware.name, hardware.cc)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def devices_of(hardware: HardwareConfig) -> tuple[dict[str, Any], int] | tuple[None, None]:
    """Return where a hardware's devices are, as `WorkerPool` takes it, and their number; None for this host.

    Raises:
        HardwareError: as :func:`check_tracker`.
    """
    if hardware.runner is not RunnerKind.rpc:
        return None, None
    address = RemoteAddress.of(hardware)
    return asdict(address), check_tracker(address)


def check_tracker(address: RemoteAddress) -> int:
    """Return the number of devices that registered with the address's key.

    Raises:
        HardwareError: the tracker cannot be reached, or has no such device; the message names the keys it has.
    """
    with closing(TrackerConnection(address)) as tracker:
        return tracker.count()


def server_command(address: RemoteAddress) -> str:
    """Return the command that registers a device with the tracker."""
    return (
        f"python -m tencost.workers.server --tracker {address} --key {address.key} "
        "(or TVM's own: python -m tvm.exec.rpc_server, with the same options)"
    )


class TrackerConnection:
    """An open connection to the tracker, to be closed: a request that waits is forgotten then.

    Raises:
        HardwareError: nothing listens at the address, or something else than a tracker.
    """

    def __init__(self, address: RemoteAddress) -> None:
        from tvm.rpc import base

        self._address = address
        try:
            self._socket = socket.create_connection(
                (address.host, address.port), timeout=CONNECT_TIMEOUT_S
            )
        except (OSError, OverflowError) as error:
            raise self._unreachable(f"{error}") from error
        try:
            self._socket.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
            magic = struct.unpack("<i", base.recvall(self._socket, 4))[0]
        except OSError as error:
            self.close()
            raise self._unreachable(
                f"something that does not answer as a tracker ({error})"
            ) from error
        if magic != base.RPC_TRACKER_MAGIC:
            self.close()
            raise self._unreachable("something else")

    def close(self) -> None:
        self._socket.close()

    def count(self) -> int:
        """Return the number of devices with the address's key, free or busy.

        Raises:
            HardwareError: there is none.
        """
        keys, key = self.keys(), self._address.key
        if key in keys:
            return keys[key]
        others = ", ".join(f"{name} ({count})" for name, count in sorted(keys.items()))
        raise HardwareError(
            f"expected a device with key {key!r} at the RPC tracker {self._address}, found "
            f"{f'only {others}' if others else 'no device at all'}. Start a server on the device: "
            f"{server_command(self._address)}, or set hardware.key"
        )

    def keys(self) -> Counter[str]:
        """Return the number of registered devices by key, free or busy."""
        from tvm.rpc import base

        summary = self._ask([base.TrackerCode.SUMMARY], CONNECT_TIMEOUT_S)
        return Counter(info["key"].partition(":")[2] for info in summary["server_info"])

    def request(self, timeout_s: float) -> tuple[str, int, str] | None:
        """Wait for a free device: host, port and the key that opens it; None when there is none in time.

        Close the connection after None: the tracker has the request in its queue.
        """
        from tvm.rpc import base

        try:
            message = [base.TrackerCode.REQUEST, self._address.key, "", 1]
            host, port, key = self._ask(message, timeout_s)
        except TimeoutError:
            return None
        return str(host), int(port), str(key)

    def _ask(self, message: list[Any], timeout_s: float) -> Any:
        from tvm.rpc import base

        self._socket.settimeout(timeout_s)
        try:
            base.sendjson(self._socket, message)
            code, answer = base.recvjson(self._socket)
        except TimeoutError:
            raise
        except OSError as error:
            raise self._unreachable(f"{error}") from error
        if code != base.TrackerCode.SUCCESS:
            raise self._unreachable(f"answer {code}")
        return answer

    def _unreachable(self, answer: str) -> HardwareError:
        return HardwareError(
            f"expected an RPC tracker at {self._address}, found {answer}. Start one: python -m tvm.exec.rpc_tracker "
            f"--host 0.0.0.0 --port {self._address.port}, or set hardware.host and hardware.port"
        )
