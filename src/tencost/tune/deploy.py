"""The tuned network: compiled with a database's best programs where they are faster than by rule, its outputs compared.

A program is timed alone while it is tuned, again and again on the same numbers, which stay in the caches, and the best
of many is partly luck. In the network its inputs come from another function. So the network is run with the programs
and without, by rule, in turn, each function timed, and a program stays if it is the faster one there.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import save_json
from tvm.s_tir.meta_schedule.database import JSONDatabase, MemoryDatabase

from tencost import signals
from tencost.config import GraphChoice, HardwareConfig, RunnerKind
from tencost.errors import TuneError
from tencost.networks.joining import join_networks
from tencost.networks.network import Array, Network, NetworkTask
from tencost.networks.rewriting import with_packed_weights
from tencost.networks.source import first_sentence
from tencost.programs.codegen.attention import with_attention
from tencost.programs.codegen.build import build
from tencost.programs.codegen.rules import leave, schedule_rest
from tencost.records.formats.metaschedule import RECORD_FILE, WORKLOAD_FILE
from tencost.store.ids import workload_id
from tencost.tune.hosts import Deployed, Host
from tencost.tune.target_records import records_for_target
from tencost.tune.workfolder import check_database

TVM_ERRORS = (RuntimeError, ValueError, TypeError)
"""What TVM raises where it refuses something."""
TOLERANCE = 1e-4
"""Largest difference from an expected output of float32 that is accepted, relative to the output's largest value."""
ROUNDED, MOST_SENSITIVE = 4, 0.2
"""Times the change that rounded inputs make, up to which an output may differ: each operator rounds, not the inputs
alone. And the largest such tolerance: beyond it nothing would be compared."""
_LEAST_OUTPUT = 1e-6
"""An output whose largest value, or whose spread in relation to it, is below this says nothing."""
_LEAST_SCALE = float(np.finfo(np.float32).tiny / np.finfo(np.float32).eps)
"""Below about 1e-31 intermediate results of float32 are subnormal and keep few digits, of which ONNX Runtime and TVM
keep others: a network with weights drawn at random may end there. Such outputs differ by nothing that counts."""
WORTH_IT = 0.97
"""A program is used where it takes at most this share of the time by rule: the best of many is partly luck."""
TURNS = 7
"""Calls of the network with programs and by rule, in turn."""


@dataclass(frozen=True, kw_only=True)
class OutputAgreement:
    """How far an output is from what it should be, as PyTorch, ONNX Runtime or ONNX's reference computes it.

    Attributes:
        max_abs: largest absolute difference where the expected value is a finite number; NaN if a value that is not
            finite is another one, or if one of the output's is.
        max_rel: that, divided by the largest finite absolute value that is expected (where that is less, by 1e-31).
        degenerate: why agreeing with the expected output would say nothing; empty if it says something.
        tolerance: the largest max_rel that is accepted.
    """

    max_abs: float
    max_rel: float
    degenerate: str = ""
    tolerance: float = TOLERANCE

    @property
    def differs(self) -> bool:
        """Whether it is beyond the tolerance; a NaN is."""
        return not self.max_rel <= self.tolerance

    @property
    def accepted(self) -> bool:
        """Whether it is within the tolerance, and that says something."""
        return not self.differs and not self.degenerate


def open_database(folder: Path, target: dict[str, Any], source: str = "tuner.compare_with") -> Any:
    """Read the records of a target from somebody's MetaSchedule database.

    Args:
        folder: of the database's two files.
        target: for which hardware; TVM's own look-ups ignore a record's target.
        source: the word by which the user gave the folder.

    Raises:
        TuneError: there is none, or TVM cannot read it.
        UntrustedError: a module or a trace in it could run code of others.
    """
    files = [folder / name for name in (WORKLOAD_FILE, RECORD_FILE)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise TuneError(
            f"{source}={folder}: expected the folder of a MetaSchedule database, found no "
            f"{' and no '.join(missing)} in it. Give the work_dir that ms.tune_tir or tune_relax wrote to."
        )
    check_database(folder)
    try:
        records = JSONDatabase(*map(str, files), allow_missing=False).get_all_tuning_records()
    except TVM_ERRORS as error:
        raise TuneError(
            f"{source}={folder}: expected a MetaSchedule database that TVM {tvm.__version__} can read, found one that "
            f"it refuses: {first_sentence(error)[:300]}. Give another folder, or tune anew"
        ) from error
    database = MemoryDatabase()
    fitting = records_for_target(records, target)
    for workload in {record.workload: None for record in fitting}:
        database.commit_workload(workload.mod)
    for record in fitting:
        database.commit_tuning_record(record)
    return database


def check_shapes(network: Network, tasks: Sequence[NetworkTask]) -> None:
    """Refuse a network with shapes that are known only when it runs: programs are tuned for the sizes of one shape.

    Raises:
        TuneError: a task has such a shape; its sizes are named.
    """
    for task in tasks:
        sizes = (size for arg in task.mod["main"].params for size in getattr(arg.ty, "shape", ()))
        variables = dict.fromkeys(
            str(size) for size in sizes if not isinstance(size, tvm.tirx.IntImm)
        )
        if variables:
            raise TuneError(
                f"network {network.name!r}: expected fixed shapes, found those of {task.name} with "
                f"{', '.join(variables)}. Nothing was measured; say its sizes (network.batch, network.size), or "
                "export it without dynamic shapes"
            )


def layout_note(graph: GraphChoice, tasks: Sequence[NetworkTask], target: dict[str, Any]) -> str:
    """Return what a user may want to know of a network's convolutions: they have channels first; else nothing."""
    if graph is not GraphChoice.as_is or target.get("kind") != "llvm":
        return ""
    convolutions = sum("conv2d_nchw" in str(save_json(task.mod)) for task in tasks)
    if not convolutions:
        return ""
    return (
        f"{convolutions} convolutions have their channels first, for which there are no register tiles: on CPUs most "
        "networks are several times faster with network.graph=channels_last"
    )


def best_record(database: Any, mod: Any, target: dict[str, Any]) -> Any:
    """Return the record of a workload's best program in a database; None where no program of it ran."""
    return database.query_tuning_record(mod, tvm.target.Target(target), "main")


def count_tuned(database: Any, tasks: Sequence[NetworkTask], target: dict[str, Any]) -> int:
    """Return for how many tasks a database has a program that ran."""
    return sum(best_record(database, task.mod, target) is not None for task in tasks)


def count_tuned_unpacked(
    database: Any, tasks: Sequence[NetworkTask], target: dict[str, Any]
) -> int:
    """Return for how many tasks that may reorder weights a database has a program of the same task that may not."""
    unpacked = [
        tvm.IRModule({"main": main.without_attr("layout_free_buffers")})
        for main in (task.mod["main"] for task in tasks)
        if "layout_free_buffers" in dict(main.attrs or {})
    ]
    return sum(best_record(database, mod, target) is not None for mod in unpacked)


def better_than_rules(
    database: Any,
    tasks: Sequence[NetworkTask],
    target: dict[str, Any],
    untuned_s: Mapping[str, float],
) -> Any:
    """Return a database of the programs that are worth it: each task's best one, if it is faster than untuned.

    Args:
        database: MetaSchedule's.
        tasks: of the network.
        target: for which hardware.
        untuned_s: seconds of tasks by rule, by workload id, as a tuning run's session keeps them.
    """
    worth_it = []
    for task in tasks:
        record = best_record(database, task.mod, target)
        seconds = [] if record is None else [float(time) for time in record.run_secs or ()]
        limit = untuned_s.get(workload_id(str(save_json(task.mod))), math.inf)
        if seconds and statistics.median(seconds) < WORTH_IT * limit:
            worth_it.append(task)
    return _best_of(database, worth_it, target)


def faster_in_network(
    network: Network,
    hardware: HardwareConfig,
    tasks: Sequence[NetworkTask],
    database: Any,
    untuned: Any | None = None,
) -> Any:
    """Return a database of those programs of a database that are faster in the network than by rule.

    Args:
        network: what is compiled.
        hardware: for which; this host has to be such. Devices behind a tracker do not tell what a function takes: there
            all programs stay.
        tasks: of the network.
        database: MetaSchedule's, its best programs are meant.
        untuned: the network, its entry "main", compiled by rule without programs, where that was done before.
    """
    target = hardware.target
    tuned = [task for task in tasks if best_record(database, task.mod, target) is not None]
    is_here = target.get("kind") == "llvm" and hardware.runner is RunnerKind.local
    if not is_here or not tuned:
        return database
    network = replace(network, entry="main")  # alone, so that functions have the tasks' names
    if untuned is None:
        untuned = compile_network(network, target, None, by_rule=True)
    networks = [
        Deployed(built, network, hardware.cores)
        for built in (compile_network(network, target, database), untuned)
    ]
    turns = Host(hardware).call(
        lambda: [[each.seconds_by_function() for each in networks] for _ in range(TURNS)]
    )
    by_program, by_rule = (
        {name: statistics.median(turn[place][name] for turn in turns) for name in turns[0][place]}
        for place in range(len(networks))
    )
    slower = {name for name in by_program.keys() & by_rule if by_program[name] > by_rule[name]}
    # Attention is one function by rule, three where a part of it has a program.
    apart, whole = by_program.keys() - by_rule, by_rule.keys() - by_program
    if sum(by_program[name] for name in apart) > sum(by_rule[name] for name in whole):
        slower |= apart
    return _best_of(database, [task for task in tuned if task.name not in slower], target)


def _best_of(database: Any, tasks: Sequence[NetworkTask], target: dict[str, Any]) -> Any:
    """Return a database that holds the best program of these tasks, and nothing else."""
    best = MemoryDatabase()
    for task in tasks:
        record = best_record(database, task.mod, target)
        if record is not None:
            best.commit_workload(task.mod)
            best.commit_tuning_record(record)
    return best


def compile_network(
    network: Network,
    target: dict[str, Any],
    database: Any | None,
    *,
    by_rule: bool | None = None,
    note: Callable[[str], object] = lambda _message: None,
) -> Any:
    """Return an executable; with a database, its best program replaces each function that it has one for.

    The database is applied as any user of TVM would: relax.transform.MetaScheduleApplyDatabase.

    Args:
        network: what is compiled.
        target: for which hardware.
        database: MetaSchedule's, or None.
        by_rule: functions without a program are scheduled by tencost.programs.codegen.rules; None: if there is a
            database. What TVM alone makes of the network is without both.
        note: called for each operator that cannot be compiled by rule, which keeps TVM's default schedule, and for
            weights that cannot be reordered; with the reason.

    Raises:
        RuntimeError, ValueError, TypeError: TVM refuses the network, or a program of the database.
    """
    mod = _with_programs(network, target, database)
    if database is not None if by_rule is None else by_rule:
        return compile_by_rule(mod, target, packs=network.packs(target), note=note)
    packs = database is not None and network.packs(target)
    return _compile(mod, tvm.target.Target(target), packs=packs, note=note)


def compile_together(
    parts: Sequence[tuple[Network, Any]],
    target: dict[str, Any],
    note: Callable[[str], object] = lambda _message: None,
) -> Any:
    """Return an executable of several networks, each under its `entry`, by rule where a database has no program.

    Args:
        parts: networks and the databases of their programs, or None.
        target: for which hardware.
        note: see :func:`compile_network`.

    Raises:
        RuntimeError, ValueError, TypeError: TVM refuses a network, or a program of a database.
    """
    mod = join_networks(
        {network.entry: _with_programs(network, target, database) for network, database in parts}
    )
    packs = any(network.packs(target) for network, _ in parts)
    return compile_by_rule(mod, target, packs=packs, note=note)


def _with_programs(network: Network, target: dict[str, Any], database: Any) -> Any:
    """Return a network's module, its functions replaced by a database's best programs."""
    mod = network.deployable(target)
    if database is None:
        return mod
    with tvm.target.Target(target), database:
        return relax.transform.MetaScheduleApplyDatabase(enable_warning=False)(mod)


def compile_by_rule(
    mod: Any, target: dict[str, Any], *, packs: bool, note: Callable[[str], object]
) -> Any:
    """Return an executable of a module whose functions have a program or are scheduled by rule.

    Args:
        mod: whose weights are bound.
        target: for which hardware.
        packs: programs may reorder weights.
        note: see :func:`compile_network`.
    """
    if target.get("kind") == "llvm":
        merged = with_attention(mod, target)
        try:
            return _compile_by_rule(merged, target, packs=packs, note=note)
        except TVM_ERRORS as error:
            if merged.same_as(mod):
                raise
            note(f"attention is compiled as three operators: {first_sentence(error)}")
    return _compile_by_rule(mod, target, packs=packs, note=note)


def _compile_by_rule(
    mod: Any, target: dict[str, Any], *, packs: bool, note: Callable[[str], object]
) -> Any:
    refused: dict[str, str] = {}
    ruled = schedule_rest(
        mod, target, lambda name, error: refused.update({name: first_sentence(error)})
    )
    try:
        granted = tvm.target.Target(leave(ruled, target))
        built = _compile(ruled, granted, packs=packs, note=note)
    except TVM_ERRORS:
        changed = (
            (name, function)
            for name, function in ruled.functions.items()
            if not function.same_as(mod[name])
        )
        alone = _refused_alone(changed, target, leave)
        if not alone:
            raise
        refused |= alone
        default = {
            name: function
            for name, function in mod.functions.items()
            if str(name.name_hint) in alone
        }
        ruled = tvm.IRModule({**ruled.functions, **default}, attrs=ruled.attrs)
        granted = tvm.target.Target(leave(ruled, target))
        built = _compile(ruled, granted, packs=packs, note=note)
    for name, reason in refused.items():
        direct = "; network.winograd=false computes it directly" if "winograd" in name else ""
        note(
            f"operator {name} has TVM's default schedule, as it cannot be compiled by rule: {reason}{direct}"
        )
    return built


def _compile(mod: Any, target: Any, *, packs: bool, note: Callable[[str], object]) -> Any:
    """Compile a scheduled module, its weights reordered once where that can be."""
    if packs:
        try:
            mod = with_packed_weights(mod)
        except TVM_ERRORS as error:
            note(f"programs reorder their weights at each call, not once: {first_sentence(error)}")
    return build(mod, target)


def _refused_alone(
    functions: Iterable[tuple[Any, Any]],
    target: dict[str, Any],
    target_for: Callable[[Any, dict[str, Any]], dict[str, Any]],
) -> dict[str, str]:
    """Return which functions, by name, TVM refuses even alone, and why."""
    refused = {}
    for name, function in functions:
        if isinstance(function, tvm.tirx.PrimFunc):
            alone = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
            try:
                build(alone, target_for(alone, target))
            except TVM_ERRORS as error:
                refused[str(name.name_hint)] = first_sentence(error)
    return refused


def compile_untuned(
    network: Network,
    target: dict[str, Any],
    note: Callable[[str], object] = lambda _message: None,
) -> Any:
    """Return an executable without programs: by rule on a CPU, with TVM's default schedules on other hardware.

    Args:
        network: what is compiled.
        target: for which hardware.
        note: see :func:`compile_network`; called, too, where the whole network has default schedules, with the reason.

    Raises:
        TuneError: see :func:`compile_default`.
    """
    if target.get("kind") != "llvm":
        return compile_default(network, target)
    try:
        with signals.not_swallowed():
            return compile_network(network, target, None, by_rule=True, note=note)
    except TVM_ERRORS as error:
        built = compile_default(network, target)
        note(
            "the whole network has TVM's default schedules, which are many times slower, as TVM refuses it by "
            f"rule, though each operator alone: {first_sentence(error)}. Please report the network"
        )
        return built


def compile_default(network: Network, target: dict[str, Any]) -> Any:
    """Return an executable with TVM's default schedules: what cannot be compiled so cannot be tuned either.

    Raises:
        TuneError: TVM refuses it; the operators that it refuses by themselves are named.
    """
    try:
        return compile_network(network, target, None)
    except Exception as error:
        mod, tvm_target = network.deployable(target), tvm.target.Target(target)
        with tvm_target, suppress(*TVM_ERRORS):
            mod = relax.get_default_pipeline(tvm_target)(mod)
        refused = _refused_alone(mod.functions.items(), target, lambda _mod, plain: plain)
        what = f"its operator {', '.join(refused)}" if refused else "it, though each operator alone"
        raise TuneError(
            f"network {network.name!r}: TVM {tvm.__version__} cannot compile {what} for {target['kind']}: "
            f"{first_sentence(error)}. Nothing was measured. Write that part with other operators; a "
            "saved network may do once this release has imported and saved it again"
        ) from error


def output_agreement(
    output: Array, expected: Array, tolerance: float = TOLERANCE
) -> OutputAgreement:
    """Compare an output with what it should be; values that are not finite have to be the same in the same places.

    Args:
        output: of the compiled network.
        expected: what the network's own runtime computes.
        tolerance: the largest difference that is accepted, relative to the largest value; see Network.tolerance.

    Raises:
        TuneError: another shape or type.
    """
    if output.shape != expected.shape:
        raise TuneError(f"expected an output of shape {expected.shape}, found {output.shape}")
    if output.dtype != expected.dtype:
        raise TuneError(f"expected an output of {expected.dtype}, found one of {output.dtype}")
    ours, theirs = output.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(theirs)
    difference = float(np.max(np.abs(ours[finite] - theirs[finite]), initial=0))
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
        difference = math.nan
    scale = float(np.max(np.abs(theirs[finite]), initial=0))
    max_rel = difference / max(scale, _LEAST_SCALE) if scale > 0 else difference
    return OutputAgreement(
        max_abs=difference,
        max_rel=max_rel,
        degenerate=degenerate(expected),
        tolerance=tolerance,
    )


def compare_outputs(network: Network, outputs: Sequence[Array]) -> dict[str, OutputAgreement]:
    """Compare a network's outputs, by name, the chosen one first.

    An output that differs may do so by rounding: one that changes as much when the inputs are rounded otherwise is
    accepted, up to MOST_SENSITIVE.

    Raises:
        TuneError: other shapes or types; the output is named.
    """
    agreements = {}
    for name, index in network.compared.items():
        try:
            agreements[name] = output_agreement(
                outputs[index], network.expected[index], network.tolerance
            )
        except TuneError as error:
            raise TuneError(f"network {network.name!r}, output {name}: {error}") from error
    for name, agreement in agreements.items():
        allowed = ROUNDED * network.sensitivity.get(name, 0) if agreement.differs else 0
        if agreement.tolerance < allowed <= MOST_SENSITIVE:
            agreements[name] = replace(agreement, tolerance=allowed)
    return agreements


def worst(agreements: Mapping[str, OutputAgreement]) -> tuple[str, OutputAgreement]:
    """Return the output that differs most, by name; a NaN is worse than any number."""
    return max(agreements.items(), key=lambda pair: (math.isnan(pair[1].max_rel), pair[1].max_rel))


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
