"""Where compiled networks run: on cores of this host, on a device behind a TVM RPC tracker, in ONNX Runtime.

A device is held by one session at a time: that of the workers which time programs ends before a network runs there.
Over RPC a network is called with inputs that were set before (TVM's `set_input`, `invoke_stateful`, `get_outputs`), and
what each of its functions takes cannot be seen.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import tvm
from tvm import relax

from tencost.config import HardwareConfig, NetworkConfig, RunnerKind
from tencost.errors import HardwareError
from tencost.networks.network import Array, Network
from tencost.networks.source import first_sentence, network_to_onnx
from tencost.workers.hardware import check_cores, check_runnable
from tencost.workers.pool import CpuPlan
from tencost.workers.remote import DeviceSession, RemoteDevices
from tencost.workers.threads import choose_threads, run_on
from tencost.workers.tracker import RemoteAddress, check_tracker

T = TypeVar("T")
CALL_TIMEOUT_S = 60.0
"""Longest time that a call of a network on a device may take."""
ONNX_PACKAGES = ("onnx", "onnxruntime", "onnxscript")
MAX_TIMING_S = 3.0
"""Seconds that a network is timed for, about."""
_LEAST_TIME_S = 0.01
_REORDERED = "_prepacked"
"""What TVM appends to the name of a function whose weights are reordered before."""


class Timed(Protocol):
    """A network or a task's program that can be timed."""

    def seconds(self, number: int = 1) -> float:
        """Return the mean seconds of so many calls."""


class Running(Timed, Protocol):
    """A compiled network that can be called with the network's inputs."""

    def outputs(self) -> list[Array]:
        """Call it; return all outputs."""


class Deployed:
    """A compiled network on this host, ready to be called with the network's inputs.

    Args:
        executable: the compiled network.
        network: its inputs and entry are read.
        cores: that it was compiled for; its loops get the threads that those of its library have.
    """

    def __init__(self, executable: Any, network: Network, cores: int = 1) -> None:
        choose_threads(cores)
        self._machine = relax.VirtualMachine(executable, tvm.cpu())
        self._entry = network.entry
        self._inputs = [tvm.runtime.tensor(array) for array in network.inputs.values()]

    def outputs(self) -> list[Array]:
        """Call it; return all outputs."""
        return [output.numpy() for output in self._machine[self._entry](*self._inputs)]

    def seconds(self, number: int = 1) -> float:
        """Return the mean seconds of so many calls."""
        timer = self._machine.time_evaluator(self._entry, tvm.cpu(), number=number, repeat=1)
        return float(timer(*self._inputs).results[0])

    def seconds_by_function(self) -> dict[str, float]:
        """Return the seconds that each function takes in one call of the network, all its calls, by its task's name."""
        seconds: dict[str, float] = {}
        begun = 0.0

        def note(_function: Any, name: str, before: bool, _returned: Any, *_arguments: Any) -> None:
            nonlocal begun
            now = time.perf_counter()
            if not before:
                task = str(name).removesuffix(_REORDERED)
                seconds[task] = seconds.get(task, 0.0) + now - begun
            begun = time.perf_counter()

        self._machine[self._entry](*self._inputs)
        self._machine.set_instrument(note)
        self._machine[self._entry](*self._inputs)
        return seconds


class Host:
    """This host: networks run on the cores that a hardware's programs are timed on."""

    is_remote = False

    def __init__(self, hardware: HardwareConfig) -> None:
        self._hardware = hardware

    def deployed(self, executable: Any, network: Network) -> Running:
        """Return a compiled network, ready to run here."""
        return Deployed(executable, network, self._hardware.cores)

    def call(
        self, function: Callable[[], T], on_interrupt: Callable[[], object] = lambda: None
    ) -> T:
        """Call a function whose networks run here; see :func:`tencost.workers.threads.run_on`.

        Raises:
            HardwareError: this host has fewer cores, no device is there, or it went while a network ran.
        """
        cores, name = self._hardware.cores, self._hardware.name
        return run_on(CpuPlan.choose(cores, name=name).run, cores, function, on_interrupt)

    def outputs(self, executable: Any, network: Network) -> list[Array]:
        """Run a compiled network once; return all outputs."""
        return self.call(self.deployed(executable, network).outputs)

    def close(self) -> None:
        """Give a device back."""


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
        return function()

    def close(self) -> None:
        self._devices.close()


def check_host(hardware: HardwareConfig) -> None:
    """Refuse hardware whose programs cannot run on this host, or whose devices are not there.

    Raises:
        HardwareError: the programs would crash here, this host has fewer cores, or no device is there.
    """
    if hardware.runner is RunnerKind.rpc:
        check_tracker(RemoteAddress.of(hardware))
    else:
        check_runnable(hardware)
        check_cores(hardware)


def host_of(hardware: HardwareConfig) -> Host:
    """Return where networks for a hardware run; close it, so that others may have the device."""
    return Device(hardware) if hardware.runner is RunnerKind.rpc else Host(hardware)


class _OnDevice:
    """A network on a device, loaded anew in each session."""

    def __init__(
        self, devices: RemoteDevices, library: bytearray, network: Network, kind: str
    ) -> None:
        self._devices, self._library, self._network, self._kind = devices, library, network, kind
        self._session: DeviceSession | None = None
        self._machine: Any = None
        self._files = ExitStack()

    def outputs(self) -> list[Array]:
        entry = self._network.entry

        def call(machine: Any, _device: Any) -> list[Array]:
            machine.invoke_stateful(entry)
            return [output.numpy() for output in machine.get_outputs(entry)]

        return self._run(call)

    def seconds(self, number: int = 1) -> float:
        entry = self._network.entry

        def time_calls(machine: Any, device: Any) -> float:
            timer = machine.time_evaluator("invoke_stateful", device, number=number, repeat=1)
            return float(timer(entry).results[0])

        return self._run(time_calls)

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

    def _load(self, session: DeviceSession, device: Any) -> None:
        self._files.close()
        module = self._files.enter_context(self._devices.loaded(session, self._library))
        machine = relax.VirtualMachine(module, device)
        inputs = [tvm.runtime.tensor(array, device) for array in self._network.inputs.values()]
        machine.set_input(self._network.entry, *inputs)
        self._session, self._machine = session, machine


class OnnxRuntime:
    """A network in ONNX Runtime, on its CPU provider, with the graph optimizations that are on by default."""

    def __init__(self, model: bytes, inputs: Mapping[str, Array], cores: int) -> None:
        """Load a network.

        Args:
            model: a serialized onnx.ModelProto.
            inputs: arrays by name, in the order of the model's inputs; the model may name them otherwise.
            cores: threads that an operator uses.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = cores
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # fatal: everything else is raised as well
        self._session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
        names = [argument.name for argument in self._session.get_inputs()]
        self._feeds = dict(zip(names, inputs.values(), strict=True))
        self.outputs()

    def outputs(self) -> list[Array]:
        """Call it; return all outputs."""
        outputs: list[Array] = self._session.run(None, self._feeds)
        return outputs

    def seconds(self, number: int = 1) -> float:
        """Return the mean seconds of so many calls."""
        begun = time.perf_counter()
        for _ in range(number):
            self._session.run(None, self._feeds)
        return (time.perf_counter() - begun) / number


def onnx_runtime(
    config: NetworkConfig,
    root: Path,
    inputs: Mapping[str, Array],
    cores: int,
    note: Callable[[str], object],
) -> OnnxRuntime | None:
    """Return a network in ONNX Runtime; None where a package is not installed, or it cannot be run there.

    Args:
        config: the network.
        root: network.path is relative to it.
        inputs: arrays by name.
        cores: threads that an operator uses.
        note: called with the reason why the network cannot be run there.
    """
    if any(find_spec(name) is None for name in ONNX_PACKAGES):
        return None
    try:
        model = network_to_onnx(config, root)
        return OnnxRuntime(model.SerializeToString(), inputs, cores)
    except Exception as error:  # noqa: BLE001 - exporters, protobuf and onnxruntime raise what they like
        note(f"ONNX Runtime is not in the table: {first_sentence(error)}")
        return None


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Seconds of a call, timed several times: median and quartiles, and of how many."""

    median_s: float
    lower_s: float
    upper_s: float
    repeats: int

    def report(self, key: str) -> dict[str, float]:
        """Return rows of a report, their names beginning with a key."""
        return {
            f"{key}_s": self.median_s,
            f"{key}_q1_s": self.lower_s,
            f"{key}_q3_s": self.upper_s,
        }


def spread_of(values: Sequence[float]) -> Spread:
    """Return median and quartiles of times, or of differences, in seconds."""
    lower, median, upper = (float(value) for value in np.quantile(values, (0.25, 0.5, 0.75)))
    return Spread(median_s=median, lower_s=lower, upper_s=upper, repeats=len(values))


def times_in_turn(
    parts: Mapping[str, Timed], limit_s: float, stop: threading.Event | None = None
) -> dict[str, list[float]]:
    """Time parts one after the other, again and again, so that what disturbs the host disturbs all of them.

    3 turns at least, 30 at most; short ones are called several times for one time.

    Args:
        parts: by name.
        limit_s: seconds that all turns take, about.
        stop: no further turn begins once it is set.

    Returns:
        Seconds of a call in each turn, by name.
    """
    once = {name: part.seconds() for name, part in parts.items()}
    number = {
        name: max(1, math.ceil(_LEAST_TIME_S / max(seconds, 1e-7)))
        for name, seconds in once.items()
    }
    turn_s = sum(number[name] * once[name] for name in parts)
    turns = int(np.clip(limit_s / max(turn_s, 1e-6), 3, 30))
    times: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(turns):
        if stop is not None and stop.is_set():
            break
        for name, part in parts.items():
            times[name].append(part.seconds(number[name]))
    return times
