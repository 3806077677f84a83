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
from tencost.networks.lowering import Precision
from tencost.networks.network import Array, Network, NetworkTask
from tencost.networks.rewriting import with_packed_weights
from tencost.networks.source import first_sentence
from tencost.programs.codegen.attention import with_attention
from tencost.programs.codegen.build import build
from tencost.programs.codegen.rules import leave, schedule_rest
from tencost.programs.magnitudes import finite_magnitudes, kinds_of
from tencost.programs.refusals import TvmRefusal, tvm_call
from tencost.records.formats.metaschedule import RECORD_FILE, WORKLOAD_FILE
from tencost.store.ids import workload_id
from tencost.tune.hosts import Deployed, Host
from tencost.tune.target_records import records_for_target
from tencost.tune.workfolder import check_database

NOISE_FACTOR = 4
"""How many times the measured rounding noise of a value it may differ: each operator rounds, not the inputs alone."""
LOOSEST_TOLERANCE = 0.2
"""The largest share of a value's magnitude that rounding noise excuses: beyond it nothing would be compared."""
_FEW = 4
"""Values of a row or column from which their typical magnitude is read."""
_FLOOR = 0.1
"""The share of the tolerance that every value of an output may differ by, in relation to the typical magnitude."""
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
    """How far an output is from the expected one, at the value that differs most compared with what is accepted there.

    Attributes:
        max_abs: largest absolute difference of all values; NaN if a value that is not finite is another one, or if one
            of the output's is.
        max_rel: difference of that value, divided by its magnitude and the typical one of its neighbours.
        degenerate: why agreeing with the expected output would say nothing; empty if it says something.
        tolerance: the largest max_rel that is accepted at that value.
        noise: how much rounding alone changes that value, in the unit of max_rel, where only that explains the
            difference; else 0.
        place: index of that value.
        expected, found: that value, as it should be and as it is.
    """

    max_abs: float
    max_rel: float
    degenerate: str = ""
    tolerance: float = Precision().tolerance
    noise: float = 0.0
    place: tuple[int, ...] = ()
    expected: float = math.nan
    found: float = math.nan

    def __str__(self) -> str:
        where = ", ".join(map(str, self.place))
        return (
            f"at [{where}]: expected {self.expected:.8g}, found {self.found:.8g}, which differs by {self.max_rel:.2e} "
            f"of such values ({self.tolerance:.2g} is accepted)"
        )

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
        with tvm_call():
            records = JSONDatabase(*map(str, files), allow_missing=False).get_all_tuning_records()
    except TvmRefusal as error:
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
        TvmRefusal: TVM refuses the network, or a program of the database.
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
        TvmRefusal: TVM refuses a network, or a program of a database.
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
    with tvm_call(), tvm.target.Target(target), database:
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
        except TvmRefusal as error:
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
    except TvmRefusal:
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
            with tvm_call():
                mod = with_packed_weights(mod)
        except TvmRefusal as error:
            note(f"programs reorder their weights at each call, not once: {first_sentence(error)}")
    with tvm_call():
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
                with tvm_call():
                    build(alone, target_for(alone, target))
            except TvmRefusal as error:
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
    except TvmRefusal as error:
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
    except TvmRefusal as error:
        mod, tvm_target = network.deployable(target), tvm.target.Target(target)
        with suppress(TvmRefusal), tvm_call(), tvm_target:
            mod = relax.get_default_pipeline(tvm_target)(mod)
        refused = _refused_alone(mod.functions.items(), target, lambda _mod, plain: plain)
        what = f"its operator {', '.join(refused)}" if refused else "it, though each operator alone"
        raise TuneError(
            f"network {network.name!r}: TVM {tvm.__version__} cannot compile {what} for {target['kind']}: "
            f"{first_sentence(error)}. Nothing was measured. Write that part with other operators; a "
            "saved network may do once this release has imported and saved it again"
        ) from error


def output_agreement(
    output: Array,
    expected: Array,
    precision: Precision | None = None,
    noise: Array | None = None,
    *,
    strict: bool = False,
) -> OutputAgreement:
    """Compare an output with the expected one, value by value.

    A float may differ by the precision's tolerance of its own magnitude, and of the typical magnitude of the values
    like it: those of its row, or of its column, whichever is smaller, without values that are 1000 times as large.
    Integers and truth values have to be equal, but for a step of quantized ones. What rounding noise changes may differ
    by that, up to LOOSEST_TOLERANCE. Values that are not finite have to be the same in the same places.

    Args:
        output: of the compiled network.
        expected: as the network's own runtime computes it.
        precision: that it is computed in; None: float32.
        noise: how much rounding changes each value, float64, where that was measured.
        strict: a row or column of fewer than four values counts, too, where the noise can be measured afterwards.

    Raises:
        TuneError: another shape or type.
    """
    if output.shape != expected.shape:
        raise TuneError(f"expected an output of shape {expected.shape}, found {output.shape}")
    if output.dtype != expected.dtype:
        raise TuneError(f"expected an output of {expected.dtype}, found one of {output.dtype}")
    precision = precision or Precision()
    ours, theirs = output.astype(np.float64), expected.astype(np.float64)
    if not theirs.size:
        return OutputAgreement(max_abs=0.0, max_rel=0.0, degenerate=degenerate(expected))
    same = (output == expected) | (np.isnan(ours) & np.isnan(theirs))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(ours - theirs))
    difference[~same & ~(np.isfinite(ours) & np.isfinite(theirs))] = math.nan
    is_float = expected.dtype.kind not in "biu"
    if is_float:
        scale, typical = _scales(theirs, is_uniform=precision.is_quantized, strict=strict)
        allowed = precision.tolerance * scale
        excused = _excused(noise, np.abs(theirs), typical)
    else:
        difference = np.where(same, 0.0, np.maximum(difference, 1.0))  # beyond 2**53, too
        scale = np.maximum(np.abs(theirs), 1.0)
        allowed = np.full(theirs.shape, _steps(expected, precision))
        is_rare = noise is not None and np.mean(noise > 0) <= LOOSEST_TOLERANCE
        excused = noise if noise is not None and is_rare else np.zeros(theirs.shape)
    limit = np.maximum(allowed, excused)
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = np.where(difference == 0, 0.0, difference / limit)
    place = np.unravel_index(int(np.argmax(excess)), excess.shape)  # a NaN is the largest
    unit = float(scale[place]) or 1.0
    is_noise = allowed[place] < difference[place] <= limit[place]
    return OutputAgreement(
        max_abs=float(np.max(difference)),
        max_rel=float(difference[place]) / unit,
        degenerate=degenerate(expected),
        tolerance=float(limit[place]) / unit,
        noise=float(excused[place]) / NOISE_FACTOR / unit if is_noise else 0.0,
        place=tuple(map(int, place)),
        expected=float(theirs[place]),
        found=float(ours[place]),
    )


def _scales(expected: Array, *, is_uniform: bool, strict: bool) -> tuple[Array, Array]:
    """Return (the magnitude that each value's tolerance refers to, the typical magnitude of all values like it).

    Args:
        expected: float64.
        is_uniform: values large and small are stored in the same steps, so that the largest one decides.
        strict: see `output_agreement`.
    """
    magnitudes = finite_magnitudes(expected)
    kinds = kinds_of(magnitudes)
    typical, local = np.ones(magnitudes.shape), np.ones(magnitudes.shape)
    with np.errstate(divide="ignore"):
        logarithms = np.log(magnitudes)
    for kind in np.unique(kinds):
        members = kinds == kind
        counted = members & (magnitudes > 0)
        if not counted.any():
            continue
        mean = np.exp(logarithms[counted].mean())
        typical[members] = local[members] = magnitudes[counted].max() if is_uniform else mean
        for axis in range(0 if is_uniform else expected.ndim):
            others = tuple(other for other in range(expected.ndim) if other != axis)
            counts = counted.sum(axis=others, keepdims=True)
            sums = np.where(counted, logarithms, 0.0).sum(axis=others, keepdims=True)
            means = np.exp(sums / np.maximum(counts, 1))
            is_enough = members & (counts >= (1 if strict else _FEW))
            local = np.where(is_enough, np.minimum(local, means), local)
    if strict:
        is_zero = magnitudes == 0
        typical[is_zero] = np.minimum(typical[is_zero], 1.0)
        local[is_zero] = np.minimum(local[is_zero], 1.0)
    return np.maximum(magnitudes + np.maximum(local, _FLOOR * typical), _LEAST_SCALE), typical


def _excused(noise: Array | None, magnitudes: Array, typical: Array) -> Array:
    """Return the differences of floats that rounding noise explains; 0 where it would explain anything."""
    if noise is None:
        return np.zeros(magnitudes.shape)
    noise = noise.copy()
    for kind in np.unique(typical):
        members = typical == kind
        noise[members] = np.fmax(noise[members], np.nanmedian(noise[members]))
    excused = NOISE_FACTOR * noise
    return np.where(excused <= LOOSEST_TOLERANCE * np.maximum(magnitudes, typical), excused, 0.0)


def _steps(expected: Array, precision: Precision) -> float:
    """Return by how much an integer may differ: one step where it is quantized; sums of such values by more."""
    if not precision.is_quantized or expected.dtype.kind == "b":
        return 0.0
    if expected.dtype.itemsize == 1:
        return 1.0
    is_sum = expected.dtype == np.int32
    return precision.tolerance * float(np.max(np.abs(expected.astype(np.float64)))) * is_sum


def compare_outputs(network: Network, outputs: Sequence[Array]) -> dict[str, OutputAgreement]:
    """Compare a network's outputs, by name, the chosen one first.

    Where an output differs, the source's own runtime says what rounding changes in it.

    Raises:
        TuneError: other shapes or types; the output is named.
    """
    strict, agreements = network.again is not None, {}
    for name, index in network.compared.items():
        pair = outputs[index], network.expected[index], network.precisions[index]
        try:
            agreement = output_agreement(*pair, strict=strict)
        except TuneError as error:
            raise TuneError(f"network {network.name!r}, output {name}: {error}") from error
        if agreement.differs and not math.isnan(agreement.max_rel) and network.rounding_noise:
            agreement = output_agreement(*pair, network.rounding_noise[index], strict=True)
        agreements[name] = agreement
    return agreements


def worst(agreements: Mapping[str, OutputAgreement]) -> tuple[str, OutputAgreement]:
    """Return the output that differs most, by name: one that is not accepted, a NaN first, before one that is."""
    return max(
        agreements.items(),
        key=lambda pair: (math.isnan(pair[1].max_rel), pair[1].differs, pair[1].max_rel),
    )


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
