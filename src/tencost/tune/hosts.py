"""Where compiled networks run: on cores of this host, or on a device behind a TVM RPC tracker.

A device is held by one session at a time: that of the workers which time programs ends before a network runs there.
Over RPC a network is called with inputs that were set before (TVM's `set_input`, `invoke_stateful`, `get_outputs`), and
what each of its functions takes cannot be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol, TypeVar

import tvm
from tvm import relax

from tencost.config import HardwareConfig, RunnerKind
from tencost.errors import HardwareError
from tencost.networks.network import Array, Network
from tencost.networks.source import first_sentence
from tencost.tune.deploy import Deployed, Timed, on_cores
from tencost.workers.remote import RemoteAddress, RemoteDevices, Session

T = TypeVar("T")
CALL_TIMEOUT_S = 60.0
"""Longest time that a call of a network on a device may take."""


class Running(Timed, Protocol):
    """A compiled network that can be called with the network's inputs."""

    def outputs(self) -> list[Array]:
        """Call it; return all outputs."""


class Host:
    """This host: networks run on the cores that a hardware's programs are timed on."""

    is_remote = False

    def __init__(self, hardware: HardwareConfig) -> None:
        self._hardware = hardware

    def deployed(self, executable: Any, network: Network) -> Running:
        """Return a compiled network, ready to run here."""
        return Deployed(executable, network)

    def call(
        self, function: Callable[[], T], on_interrupt: Callable[[], object] = lambda: None
    ) -> T:
        """Call a function that runs networks, see :func:`tencost.tune.deploy.on_cores`; raises HardwareError."""
        return on_cores(self._hardware, function, on_interrupt)

    def close(self) -> None:
        """Do nothing."""


class Device(Host):
    """One of the devices behind a tracker, in one session after the other."""

    is_remote = True

    def __init__(self, hardware: HardwareConfig) -> None:
        super().__init__(hardware)
        self._devices = RemoteDevices(RemoteAddress.of(hardware))

    def deployed(self, executable: Any, network: Network) -> Running:
        """Return a compiled network that is uploaded when it first runs, and again where a session has ended.

        Raises:
            HardwareError: hardware.cc is not there.
            RuntimeError: it cannot be linked.
        """
        kind = str(self._hardware.target["kind"])
        return _OnDevice(self._devices, self._devices.export(executable), network, kind)

    def call(
        self,
        function: Callable[[], T],
        on_interrupt: Callable[[], object] = lambda: None,  # noqa: ARG002 - a call of RPC is not given up
    ) -> T:
        """Call a function that runs networks.

        Raises:
            HardwareError: no device is there, or it went while a network ran.
        """
        return function()

    def close(self) -> None:
        """Give the device back."""
        self._devices.close()


def place_of(hardware: HardwareConfig) -> Host:
    """Return where networks for a hardware run; close it, so that others may have the device."""
    return Device(hardware) if hardware.runner is RunnerKind.rpc else Host(hardware)


class _OnDevice:
    """A network on a device, loaded anew in each session."""

    def __init__(
        self, devices: RemoteDevices, library: bytearray, network: Network, kind: str
    ) -> None:
        self._devices, self._library, self._network, self._kind = devices, library, network, kind
        self._session: Session | None = None
        self._machine: Any = None
        self._files = ExitStack()

    def outputs(self) -> list[Array]:
        def called(machine: Any, _device: Any) -> list[Array]:
            machine.invoke_stateful("main")
            return [output.numpy() for output in machine.get_outputs("main")]

        return self._run(called)

    def seconds(self, number: int = 1) -> float:
        def timed(machine: Any, device: Any) -> float:
            timer = machine.time_evaluator("invoke_stateful", device, number=number, repeat=1)
            return float(timer("main").results[0])

        return self._run(timed)

    def _run(self, function: Callable[[Any, Any], T]) -> T:
        session = self._devices.session(CALL_TIMEOUT_S)
        try:
            device = session.device(self._kind)
            if session is not self._session:
                self._load(session, device)
            return function(self._machine, device)
        except Exception as error:
            if isinstance(error, HardwareError) or session.is_alive():
                raise
            raise HardwareError(
                f"the session with a device of key {self._devices.address.key!r} broke while network "
                f"{self._network.name!r} ran there: {first_sentence(error)}. Look at the device's server; the same "
                "command goes on"
            ) from error

    def _load(self, session: Session, device: Any) -> None:
        self._files.close()
        module = self._files.enter_context(self._devices.loaded(session, self._library))
        machine = relax.VirtualMachine(module, device)
        inputs = [tvm.runtime.tensor(array, device) for array in self._network.inputs.values()]
        machine.set_input("main", *inputs)
        self._session, self._machine = session, machine
