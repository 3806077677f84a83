"""How a program has to be timed alone to tell what it takes in its network.

    taskset -c 0 python benchmarks/in_network.py FILE.onnx ... [--count 6] [--to FOLDER]
    python benchmarks/in_network.py --report [--to FOLDER]

A network is compiled by rule and called; where it calls a product's function, a candidate of that product
(`tencost.programs.codegen.candidates`, the rule's among them) runs in its place, in all products at once. So each is
timed with what the functions before it left in the caches. The same programs are then timed alone: again and again on
the same arguments ("hot"), with all arguments but the first flushed before each run ("flushed", as `tencost tune` does:
tuner.cache_flush), and with arguments or weights of many sets in turn, of as many bytes as fit no L2 or no L3.

Results: a file a network in --to. --report prints, for each way: how many pairs of programs of a task are in the
network's order, of those that differ by 5 %; the network's time with the programs that look best, and with the better
one of these and the rule's, over that of the best ones (products alone, geometric mean over networks); a program's time
over its time in the network.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from network_processes import ROOT
from tvm.relax import VirtualMachine
from tvm.runtime.vm import VMInstrumentReturnKind

from tencost.config.composition import compose
from tencost.networks.network import Network, load_network
from tencost.programs.codegen.candidates import draw_candidates, schedule_candidate
from tencost.programs.codegen.overlap import arguments_of
from tencost.programs.codegen.vector_math import register_vector_math
from tencost.programs.trace.intrinsics import register_cpu_intrinsics
from tencost.tune.deploy import compile_network
from tencost.tune.hosts import Deployed
from tencost.workers.evaluator import FLUSH
from tencost.workers.hardware import resolve_hardware
from tencost.workers.runner import arg_json
from tencost.workers.worker import build

RESULTS = ROOT / "benchmarks" / "results" / "in-network" / "amd-epyc-znver4"
ROUNDS = 14
WORTH = 0.01
"""Tasks that take less than this share of the network are left as they are."""
WAYS = ("hot", "flushed", "all, 80 MB", "all, 4 MB", "weights, 80 MB")
TURNS = {"all, 80 MB": (80e6, False), "all, 4 MB": (4e6, False), "weights, 80 MB": (80e6, True)}
"""Bytes of the sets of arguments that take turns, and whether the first argument stays."""
MOST_SETS = 64
DIFFERENT = 0.05


@dataclass
class Program:
    """A compiled candidate, its arguments and its seconds in the network."""

    module: Any
    shapes: list[Any]
    arguments: list[Any] = field(default_factory=list)
    inside: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run = self.module["main"]
        self.arguments = self._drawn()

    @property
    def in_network(self) -> float:
        """Seconds in the network: the lower quartile, as others only add to a time."""
        return float(np.quantile(self.inside, 0.25))

    def alone(self) -> dict[str, float]:
        """Return the seconds of a run alone, in each way."""
        runs = max(3, int(4e-3 / max(self.in_network, 1e-6)))
        self.run(*self.arguments)
        seconds = {"hot": min(self._mean([self.arguments] * runs) for _ in range(5))}
        flushed = self.module.time_evaluator(
            "main", tvm.cpu(), number=1, repeat=12, f_preproc=FLUSH
        )
        seconds["flushed"] = float(np.quantile(flushed(*self.arguments).results, 0.25))
        for way, (size, first_stays) in TURNS.items():
            sets = self._sets(size, first_stays=first_stays)
            self._mean(sets)
            turns = 4 if len(sets) > 8 else 10
            seconds[way] = float(np.quantile([self._mean(sets) for _ in range(turns)], 0.25))
        return seconds

    def _drawn(self) -> list[Any]:
        fill = tvm.get_global_func("tvm.contrib.random.random_fill_for_measure")
        tensors = []
        for _, dtype, shape in self.shapes:
            tensors.append(tvm.runtime.empty(tuple(shape), dtype))
            fill(tensors[-1])
        return tensors

    def _sets(self, size: float, *, first_stays: bool) -> list[list[Any]]:
        """Return sets of arguments of so many bytes in all, from 2 to MOST_SETS."""
        own = sum(tensor.numpy().nbytes for tensor in self.arguments)
        count = max(2, min(MOST_SETS, math.ceil(size / own)))
        sets = [self.arguments, *(self._drawn() for _ in range(count - 1))]
        return [[sets[0][0], *one[1:]] for one in sets] if first_stays else sets

    def _mean(self, sets: Sequence[Sequence[Any]]) -> float:
        begun = time.perf_counter()
        for arguments in sets:
            self.run(*arguments)
        return (time.perf_counter() - begun) / len(sets)


def programs_of(
    network: Network, target: dict[str, Any], seconds: dict[str, float], count: int
) -> dict[str, list[Program]]:
    """Return candidates of the products that take WORTH of the network, by their function's name, the rule's first."""
    programs: dict[str, list[Program]] = {}
    for task in network.tasks(target):
        if seconds.get(task.name, 0.0) < WORTH * sum(seconds.values()):
            continue
        for candidate in draw_candidates(task.mod, target, count):
            scheduled = schedule_candidate(task.mod, target, candidate)
            if scheduled is not None:
                shapes = [arg_json(one) for one in arguments_of(scheduled)]
                made = Program(build(scheduled, target).jit(), shapes)
                programs.setdefault(task.name, []).append(made)
    return {name: made for name, made in programs.items() if len(made) > 1}


def time_inside(built: Any, network: Network, programs: dict[str, list[Program]]) -> None:
    """Call the network, candidates in the place of its functions, and note what they take."""
    machine = VirtualMachine(built, tvm.cpu())
    inputs = [tvm.runtime.tensor(array) for array in network.inputs.values()]
    turn = 0

    def replaced(_function: Any, name: str, before: bool, _result: Any, *given: Any) -> int:
        made = programs.get(str(name).removesuffix("_prepacked"))
        if made is None or not before:
            return int(VMInstrumentReturnKind.NO_OP)
        program = made[turn % len(made)]
        # Weights are in the order that a candidate reads: where that is of another shape, they are its own.
        arguments = [
            theirs if tuple(theirs.shape) == tuple(own.shape) else own
            for theirs, own in zip(given, program.arguments, strict=True)
        ]
        begun = time.perf_counter()
        program.run(*arguments)
        program.inside.append(time.perf_counter() - begun)
        return int(VMInstrumentReturnKind.SKIP_RUN)

    machine.set_instrument(replaced)
    most = max(map(len, programs.values()))
    for turn in [*range(most)] * ROUNDS:  # noqa: B007 - `replaced` reads it
        machine[network.entry](*inputs)


def measured(file: Path, count: int) -> list[dict[str, Any]]:
    """Time the candidates of a network's products in it and alone; return a row a product, seconds by candidate."""
    cfg, root = compose(["network=onnx", f"network.path={file}", "hardware=local"])
    target = resolve_hardware(cfg.hardware).target
    network = load_network(cfg.network, root, target=target, is_deployed=True)
    built = compile_network(network, target, None, by_rule=True)
    seconds = Deployed(built, network).seconds_by_function()
    programs = programs_of(network, target, seconds, count)
    time_inside(built, network, programs)
    weights = {task.name: task.weight for task in network.tasks(target)}
    rows = []
    for name, made in programs.items():
        alone = [program.alone() for program in made]
        ways = {way: [f"{times[way]:.4g}" for times in alone] for way in WAYS}
        inside = [f"{program.in_network:.4g}" for program in made]
        rows.append({"task": name, "calls": weights[name], "inside": inside, **ways})
    return rows


def report(networks: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yield the lines of the table."""
    pairs = sum(len(_pairs(row, "hot")) for rows in networks.values() for row in rows)
    yield f"{len(networks)} networks, {sum(map(len, networks.values()))} products, {pairs} pairs"
    yield "| timed alone | pairs in order | chosen / best | or by rule | over the time in the network (10 %, 90 %) |"
    yield "|---|---|---|---|---|"
    rule = statistics.geometric_mean(_total(rows, "rule") for rows in networks.values())
    for way in WAYS:
        right = [pair for rows in networks.values() for row in rows for pair in _pairs(row, way)]
        chosen, either = (
            statistics.geometric_mean(_total(rows, how, way) for rows in networks.values())
            for how in ("chosen", "either")
        )
        level = np.concatenate(
            [_times(row, way) / _times(row, "inside") for rows in networks.values() for row in rows]
        )
        low, middle, high = np.quantile(level, [0.1, 0.5, 0.9])
        yield (
            f"| {way} | {statistics.fmean(right):.3f} | {chosen:.4f} | {either:.4f} | "
            f"{middle:.2f} ({low:.2f}, {high:.2f}) |"
        )
    yield f"by rule / best: {rule:.4f}"


def _times(row: dict[str, Any], way: str) -> npt.NDArray[np.float64]:
    return np.array(row[way], float)


def _pairs(row: dict[str, Any], way: str) -> list[bool]:
    """Say of each pair of programs that differ in the network whether their times alone are in that order."""
    inside, alone = np.log(_times(row, "inside")), np.log(_times(row, way))
    apart = inside[:, None] - inside[None]
    places = np.argwhere(apart > DIFFERENT)
    return [bool(alone[one] > alone[other]) for one, other in places]


def _total(rows: Sequence[dict[str, Any]], how: str, way: str = "hot") -> float:
    """Return a network's seconds over those of its best programs."""
    total = best = 0.0
    for row in rows:
        inside = _times(row, "inside")
        chosen = 0 if how == "rule" else int(_times(row, way).argmin())
        total += row["calls"] * (
            min(inside[0], inside[chosen]) if how == "either" else inside[chosen]
        )
        best += row["calls"] * inside.min()
    return total / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.onnx")
    parser.add_argument("--count", type=int, default=6, help="candidates of a product")
    parser.add_argument("--to", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="print the table, time nothing")
    options = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = "1"
    register_cpu_intrinsics()
    register_vector_math()
    options.to.mkdir(parents=True, exist_ok=True)
    for file in options.files:
        name = file.parent.name if file.stem == "model" else file.stem
        if not (options.to / f"{name}.json").exists():
            lines = ",\n".join(json.dumps(row) for row in measured(file, options.count))
            (options.to / f"{name}.json").write_text(f"[{lines}]\n")
        print(name, flush=True)
    if options.report:
        found = sorted(options.to.glob("*.json"))
        for line in report({file.stem: json.loads(file.read_text()) for file in found}):
            print(line)


if __name__ == "__main__":
    sys.exit(main())
