"""The tuned network: compiled with a database's best programs, its outputs compared, timed as a whole."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import tvm
from tvm import relax
from tvm.ir import save_json

from tencost.config import GraphChoice, HardwareConfig
from tencost.errors import TuneError
from tencost.networks.network import Array, Network, NetworkTask
from tencost.networks.rewriting import with_packed_weights
from tencost.networks.source import first_sentence
from tencost.programs.codegen import vector_math
from tencost.programs.codegen.rules import leave, schedule_rest
from tencost.records.formats.metaschedule import RECORD_FILE, WORKLOAD_FILE
from tencost.store.ids import workload_id
from tencost.tune.workfolder import check_database
from tencost.workers.pool import CpuPlan
from tencost.workers.threads import run_on

T = TypeVar("T")
TVM_ERRORS = (RuntimeError, ValueError, TypeError)
"""What TVM raises where it refuses something."""
TOLERANCE = 1e-4
"""Largest difference from an expected output that is accepted, relative to the output's largest value."""
_LEAST_OUTPUT = 1e-6
"""An output whose largest value, or whose spread in relation to it, is below this says nothing."""
MAX_TIMING_S = 3.0
"""Seconds that a network is timed for, about."""
_LEAST_TIME_S = 0.01
WORTH_IT = 0.97
"""A program is used where it takes at most this share of the time by rule: the best of many is partly luck."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far an output is from what it should be, as PyTorch, ONNX Runtime or ONNX's reference computes it.

    Attributes:
        max_abs: largest absolute difference where the expected value is a finite number; NaN if a value that is not
            finite is another one, or if one of those found is.
        max_rel: that, divided by the largest finite absolute value that is expected.
        degenerate: why agreeing with the expected output would say nothing; empty if it says something.
    """

    max_abs: float
    max_rel: float
    degenerate: str = ""

    @property
    def differs(self) -> bool:
        """Whether it is beyond TOLERANCE; a NaN is."""
        return not self.max_rel <= TOLERANCE

    @property
    def accepted(self) -> bool:
        """Whether it is within TOLERANCE, and that says something."""
        return not self.differs and not self.degenerate


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Seconds of a call, timed several times: median and quartiles, and of how many."""

    median_s: float
    lower_s: float
    upper_s: float
    repeats: int


class Deployed:
    """A compiled network, ready to be called with the network's inputs."""

    def __init__(self, executable: Any, network: Network) -> None:
        self._machine = relax.VirtualMachine(executable, tvm.cpu())
        self._inputs = [tvm.runtime.tensor(array) for array in network.inputs.values()]

    def outputs(self) -> list[Array]:
        """Call it; return all outputs."""
        return [output.numpy() for output in self._machine["main"](*self._inputs)]

    def seconds(self, number: int = 1) -> float:
        """Return the mean seconds of so many calls."""
        timer = self._machine.time_evaluator("main", tvm.cpu(), number=number, repeat=1)
        return float(timer(*self._inputs).results[0])

    def seconds_by_function(self) -> dict[str, float]:
        """Return the seconds that each function which it calls takes in one call of the network, all its calls."""
        found: dict[str, float] = {}
        begun = 0.0

        def note(_function: Any, name: str, before: bool, _returned: Any, *_arguments: Any) -> None:
            nonlocal begun
            now = time.perf_counter()
            if not before:
                found[str(name)] = found.get(str(name), 0.0) + now - begun
            begun = time.perf_counter()

        self._machine["main"](*self._inputs)
        self._machine.set_instrument(note)
        self._machine["main"](*self._inputs)
        return found


def open_database(folder: Path, told: str = "tuner.compare_with") -> Any:
    """Open somebody's MetaSchedule database for reading; `told` is how the user said where it is.

    Raises:
        TuneError: there is none, or TVM cannot read it.
        UntrustedError: a module or a trace in it could run code of others.
    """
    files = [folder / name for name in (WORKLOAD_FILE, RECORD_FILE)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise TuneError(
            f"{told}={folder}: expected the folder of a MetaSchedule database, found no "
            f"{' and no '.join(missing)} in it. Give the work_dir that ms.tune_tir or tune_relax wrote to."
        )
    check_database(folder)
    workloads, records = map(str, files)
    try:
        return tvm.s_tir.meta_schedule.database.JSONDatabase(
            workloads, records, allow_missing=False
        )
    except TVM_ERRORS as error:
        raise TuneError(
            f"{told}={folder}: expected a MetaSchedule database that TVM {tvm.__version__} can read, found one that it "
            f"refuses: {first_sentence(error)[:300]}. Give another folder, or tune anew"
        ) from error


def check_shapes(network: Network, tasks: Sequence[NetworkTask]) -> None:
    """Refuse a network with shapes that are known only when it runs: programs are tuned for the sizes of one shape.

    Raises:
        TuneError: a task has such a shape; its sizes are named.
    """
    for task in tasks:
        sizes = (size for one in task.mod["main"].params for size in getattr(one.ty, "shape", ()))
        open_ones = dict.fromkeys(
            str(size) for size in sizes if not isinstance(size, tvm.tirx.IntImm)
        )
        if open_ones:
            raise TuneError(
                f"network {network.name!r}: expected fixed shapes, found those of {task.name} with "
                f"{', '.join(open_ones)}. Nothing was measured; say its sizes (network.batch, network.size), or "
                "export it without dynamic shapes"
            )


def layout_note(graph: GraphChoice, tasks: Sequence[NetworkTask], target: dict[str, Any]) -> str:
    """Return what a user may want to know of a network's convolutions: they have channels first; else nothing."""
    if graph is not GraphChoice.as_is or target.get("kind") != "llvm":
        return ""
    found = sum("conv2d_nchw" in str(save_json(task.mod)) for task in tasks)
    if not found:
        return ""
    return (
        f"{found} convolutions have their channels first, for which there are no register tiles: on CPUs most networks "
        "are several times faster with network.graph=channels_last"
    )


def count_known(database: Any, tasks: Sequence[NetworkTask], target: dict[str, Any]) -> int:
    """Return for how many tasks a database has a program that ran."""
    tvm_target = tvm.target.Target(target)
    found = (database.query_tuning_record(task.mod, tvm_target, "main") for task in tasks)
    return sum(record is not None for record in found)


def count_known_unpacked(
    database: Any, tasks: Sequence[NetworkTask], target: dict[str, Any]
) -> int:
    """Return for how many tasks that may reorder weights a database has a program of the same task that may not."""
    tvm_target = tvm.target.Target(target)
    found = 0
    for task in tasks:
        main = task.mod["main"]
        if "layout_free_buffers" in dict(main.attrs or {}):
            plain = tvm.IRModule({"main": main.without_attr("layout_free_buffers")})
            found += database.query_tuning_record(plain, tvm_target, "main") is not None
    return found


def better_than_rules(
    database: Any, tasks: Sequence[NetworkTask], target: dict[str, Any], rule_s: Mapping[str, float]
) -> Any:
    """Return a database of the programs that are worth it: each task's best one, if it is faster than by rule.

    Args:
        database: MetaSchedule's.
        tasks: of the network.
        target: for which hardware.
        rule_s: seconds of tasks by rule, by workload id, as a tuning run's session keeps them.
    """
    worth_it = []
    for task in tasks:
        record = database.query_tuning_record(task.mod, tvm.target.Target(target), "main")
        seconds = [] if record is None else [float(one) for one in record.run_secs or ()]
        limit = rule_s.get(workload_id(str(save_json(task.mod))), math.inf)
        if seconds and statistics.median(seconds) < WORTH_IT * limit:
            worth_it.append(task)
    return only(database, worth_it, target)


def only(database: Any, tasks: Sequence[NetworkTask], target: dict[str, Any]) -> Any:
    """Return a database that holds the best program of these tasks, and nothing else."""
    kept = tvm.s_tir.meta_schedule.database.MemoryDatabase()
    for task in tasks:
        record = database.query_tuning_record(task.mod, tvm.target.Target(target), "main")
        if record is not None:
            kept.commit_workload(task.mod)
            kept.commit_tuning_record(record)
    return kept


def compile_network(
    network: Network,
    target: dict[str, Any],
    database: Any | None,
    *,
    by_rule: bool | None = None,
    note: Callable[[str], object] | None = None,
) -> Any:
    """Return an executable; with a database, its best program replaces each function that it knows.

    The database is applied as any user of TVM would: relax.transform.MetaScheduleApplyDatabase.

    Args:
        network: what is compiled.
        target: for which hardware.
        database: MetaSchedule's, or None.
        by_rule: functions without a program are scheduled by tencost.programs.codegen.rules; None: if there is a
        database. What
            TVM alone makes of the network is without both.
        note: is told of each operator that cannot be compiled by rule, which keeps TVM's default schedule, and of
            weights that cannot be reordered; with the reason.

    Raises:
        RuntimeError, ValueError, TypeError: TVM refuses the network, or a program of the database.
    """
    note = note or (lambda _told: None)
    mod = network.deployable(target)
    tvm_target = tvm.target.Target(target)
    by_rule = database is not None if by_rule is None else by_rule
    if by_rule and target.get("kind") == "llvm":
        vector_math.register()
    if database is not None:
        with tvm_target, database:
            mod = relax.transform.MetaScheduleApplyDatabase(enable_warning=False)(mod)
    if not by_rule:
        return _built(network, mod, target, tvm_target, packs=database is not None, note=note)
    refused: dict[str, str] = {}
    ruled = schedule_rest(
        mod, target, lambda name, error: refused.update({name: first_sentence(error)})
    )
    try:
        granted = tvm.target.Target(leave(ruled, target))
        built = _built(network, ruled, target, granted, packs=True, note=note)
    except TVM_ERRORS:
        alone = _refused_by_rule(mod, ruled, target)
        if not alone:
            raise
        refused |= alone
        kept = {name: one for name, one in mod.functions.items() if str(name.name_hint) in alone}
        ruled = tvm.IRModule({**ruled.functions, **kept}, attrs=ruled.attrs)
        granted = tvm.target.Target(leave(ruled, target))
        built = _built(network, ruled, target, granted, packs=True, note=note)
    for name, reason in refused.items():
        note(
            f"operator {name} has TVM's default schedule, as it cannot be compiled by rule: {reason}"
        )
    return built


def _built(
    network: Network,
    mod: Any,
    target: dict[str, Any],
    granted: Any,
    *,
    packs: bool,
    note: Callable[[str], object],
) -> Any:
    """Compile a scheduled module for the target that is granted, weights reordered where the network allows it."""
    if packs and network.packs(target):
        try:
            mod = with_packed_weights(mod)
        except TVM_ERRORS as error:
            note(f"programs reorder their weights at each call, not once: {first_sentence(error)}")
    return tvm.compile(mod, target=granted)


def _refused_by_rule(mod: Any, ruled: Any, target: dict[str, Any]) -> dict[str, str]:
    """Return which functions, by name, TVM refuses by rule even alone, and why."""
    refused = {}
    for name, function in ruled.functions.items():
        if isinstance(function, tvm.tirx.PrimFunc) and not function.same_as(mod[name]):
            alone = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
            try:
                tvm.compile(alone, target=tvm.target.Target(leave(alone, target)))
            except TVM_ERRORS as error:
                refused[str(name.name_hint)] = first_sentence(error)
    return refused


def compile_untuned(network: Network, target: dict[str, Any]) -> Any:
    """Return an executable with default schedules: what cannot be compiled like this cannot be tuned either.

    Raises:
        TuneError: TVM refuses it; the operators that it refuses by themselves are named.
    """
    try:
        return compile_network(network, target, None)
    except Exception as error:
        refused = _refused(network, target)
        what = f"its operator {', '.join(refused)}" if refused else "it, though each operator alone"
        raise TuneError(
            f"network {network.name!r}: TVM {tvm.__version__} cannot compile {what} for {target['kind']}: "
            f"{first_sentence(error)}. Nothing was measured. Write that part with other operators; a "
            "saved network may do once this release has imported and saved it again"
        ) from error


def _refused(network: Network, target: dict[str, Any]) -> list[str]:
    mod, tvm_target = network.deployable(target), tvm.target.Target(target)
    with tvm_target, suppress(*TVM_ERRORS):
        mod = relax.get_default_pipeline(tvm_target)(mod)
    names = []
    for variable, function in mod.functions.items():
        if isinstance(function, tvm.tirx.PrimFunc):
            alone = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
            try:
                tvm.compile(alone, target=tvm_target)
            except TVM_ERRORS:
                names.append(str(variable.name_hint))
    return names


def on_cores(
    hardware: HardwareConfig,
    function: Callable[[], T],
    on_interrupt: Callable[[], object] = lambda: None,
) -> T:
    """Call a function whose networks run on the cores that a hardware's programs are timed on; see `run_on`.

    Raises:
        HardwareError: this host has fewer.
    """
    plan = CpuPlan.choose(hardware.cores, name=hardware.name)
    return run_on(plan.run, hardware.cores, function, on_interrupt)


class Timed(Protocol):
    """What can be timed: a network, or a task's program."""

    def seconds(self, number: int = 1) -> float:
        """Return the mean seconds of so many calls."""


def times_in_turn(
    parts: Mapping[str, Timed], limit_s: float, stop: threading.Event | None = None
) -> dict[str, list[float]]:
    """Time parts one after the other, again and again, so that what disturbs the host disturbs all of them.

    3 turns at least, 30 at most; short ones are called several times for one time.

    Args:
        parts: by name.
        limit_s: seconds that all turns take, about.
        stop: set by who no longer wants to know: no further turn begins.

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


def spread_of(values: Sequence[float]) -> Spread:
    """Return median and quartiles of times, or of differences, in seconds."""
    lower, median, upper = (float(value) for value in np.quantile(values, (0.25, 0.5, 0.75)))
    return Spread(median_s=median, lower_s=lower, upper_s=upper, repeats=len(values))


def compare(found: Array, expected: Array) -> Agreement:
    """Compare an output with what it should be; values that are not finite have to be the same in the same places.

    Raises:
        TuneError: another shape or type.
    """
    if found.shape != expected.shape:
        raise TuneError(f"expected an output of shape {expected.shape}, found {found.shape}")
    if found.dtype != expected.dtype:
        raise TuneError(f"expected an output of {expected.dtype}, found one of {found.dtype}")
    numbers, wanted = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(wanted)
    difference = float(np.max(np.abs(numbers[finite] - wanted[finite]), initial=0))
    if not np.array_equal(numbers[~finite], wanted[~finite], equal_nan=True):
        difference = math.nan
    scale = float(np.max(np.abs(wanted[finite]), initial=0))
    max_rel = difference / scale if scale > 0 else difference
    return Agreement(max_abs=difference, max_rel=max_rel, degenerate=degenerate(expected))


def compare_outputs(network: Network, found: Sequence[Array]) -> dict[str, Agreement]:
    """Compare a network's outputs, by name, the chosen one first.

    Raises:
        TuneError: other shapes or types; the output is named.
    """
    agreements = {}
    for name, index in network.compared.items():
        try:
            agreements[name] = compare(found[index], network.expected[index])
        except TuneError as error:
            raise TuneError(f"network {network.name!r}, output {name}: {error}") from error
    return agreements


def worst(agreements: Mapping[str, Agreement]) -> Agreement:
    """Return the one that differs most; a NaN is worse than any number."""
    return max(agreements.values(), key=lambda one: (math.isnan(one.max_rel), one.max_rel))


def degenerate(output: Array) -> str:
    """Return why agreeing with this output would say nothing: "all zeros", say; empty if it says something."""
    values = np.asarray(output, np.float64)
    values = values[np.isfinite(values)]
    if not values.size and np.size(output):
        return "not finite"
    scale = float(np.max(np.abs(values), initial=0))
    if scale == 0:
        return "all zeros"
    if scale < _LEAST_OUTPUT:
        return f"at most {scale:.0e}"
    if values.size > 1 and np.ptp(values) < _LEAST_OUTPUT * scale:
        return f"{values.flat[0]:.3g} throughout"
    return ""


def meaningless(network: Network) -> dict[str, str]:
    """Return the compared outputs of a network that say nothing, and why."""
    reasons = {
        name: degenerate(network.expected[index]) for name, index in network.compared.items()
    }
    return {name: reason for name, reason in reasons.items() if reason}
