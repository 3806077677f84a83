"""A network from its source (a module of networks/sources/) to Relax and tuning tasks.

The weights stay inputs of the Relax module until after fusion, as in the sample dataset: folding them earlier would
change the fused functions (a batch norm's scale becomes one constant) and with them the workloads, so that records
of the same layer would no longer meet. :meth:`Network.deployable` binds them afterwards, which folds everything that
depends on weights only and leaves the tasks' functions as they are, but for a mark where a program may reorder weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tencost.config import GraphChoice, NetworkConfig
from tencost.errors import ConfigError, MeasureError
from tencost.networks.checked_ids import with_checked_ids
from tencost.networks.inputs import Array as Array
from tencost.networks.lowering import Precision, compilable, fuse, precisions_of
from tencost.networks.recurrent import recurrent_layers
from tencost.networks.rewriting import (
    candidates,
    with_free_weights,
    with_weights_computed,
    written_as,
)
from tencost.networks.samples import sample_by_sample
from tencost.networks.source import Imported, Run, first_sentence, read_network
from tencost.networks.winograd import with_winograd
from tencost.programs.codegen.winograd import is_winograd
from tencost.programs.refusals import TvmRefusal, tvm_call

ROUNDINGS = 4
"""Draws of otherwise rounded inputs and weights."""
_DEFAULT_OUTPUT = next(item.default for item in fields(NetworkConfig) if item.name == "output")


class _Rounding:
    """Makes each float of an array one relative step larger or smaller, as chance has it; other types stay."""

    def __init__(self, seed: int, epsilon: float) -> None:
        self._rng, self._epsilon = np.random.default_rng(seed), epsilon

    def __call__(self, array: Array) -> Array:
        if array.dtype.kind != "f" and "float" not in array.dtype.name:
            return array
        steps = self._rng.integers(0, 2, array.shape, np.int8) * 2 - 1
        rounded = array.astype(np.float64) * (1 + self._epsilon * steps)
        return np.asarray(rounded.astype(array.dtype))


@dataclass(frozen=True)
class NetworkTask:
    """A distinct workload of a network.

    Attributes:
        name: name of the fused function.
        mod: IRModule of the workload, one function ``main``.
        weight: how often the network calls it.
        flop: floating-point operations of one call; 0 for a mere copy.
        extracted: TVM's ExtractedTask.
    """

    name: str
    mod: Any
    weight: int
    flop: float
    extracted: Any


@dataclass(frozen=True)
class Network:
    """An imported network.

    Attributes:
        name: the variant's name.
        mod: fused Relax IRModule; ``main`` takes the inputs, then the weights.
        params: the weights as TVM tensors, in the order of the parameters.
        inputs: input arrays by name, drawn with the configured seed.
        expected: what `computed_by` computes for the inputs, all tensor outputs in order.
        output: index of the output that network.output chose.
        outputs: names of the outputs.
        packed: programs may ask for the weights in the order in which they read them, see network.pack_weights.
        computed_by: what computed `expected`, for example PyTorch.
        notes: sentences that a user should read: what was settled without her.
        entry: name of its function in a compiled library.
        again: see :class:`~tencost.networks.source.Imported`.
    """

    name: str
    mod: Any
    params: list[Any]
    inputs: dict[str, Array]
    expected: list[Array]
    output: int
    outputs: list[str]
    packed: bool = False
    computed_by: str = "PyTorch"
    notes: tuple[str, ...] = ()
    entry: str = "main"
    again: Run | None = None

    @property
    def compared(self) -> dict[str, int]:
        """Name and index of the outputs, which are all compared: the chosen one first."""
        others = [index for index in range(len(self.outputs)) if index != self.output]
        return {self.outputs[index]: index for index in [self.output, *others]}

    @cached_property
    def precisions(self) -> list[Precision]:
        """The precision that each output is computed in."""
        return precisions_of(self.mod)

    @cached_property
    def rounding_noise(self) -> list[Array] | None:
        """How much rounding alone changes each value of each output, float64; None without the source's runtime.

        The source's runtime computes the outputs of inputs and weights that are one step of the output's precision
        larger or smaller, as chance has it: the largest change of a few draws.
        """
        if self.again is None:
            return None
        noise: list[Array] = [np.zeros(array.shape) for array in self.expected]
        for epsilon in {precision.epsilon for precision in self.precisions}:
            for seed in range(ROUNDINGS):
                rounding = _Rounding(seed, epsilon)
                inputs = {name: rounding(array) for name, array in self.inputs.items()}
                outputs = self.again(inputs, rounding)
                for place, (output, expected) in enumerate(
                    zip(outputs, self.expected, strict=True)
                ):
                    if self.precisions[place].epsilon == epsilon and output.shape == expected.shape:
                        with np.errstate(invalid="ignore"):
                            change = np.abs(output.astype(np.float64) - expected.astype(np.float64))
                        noise[place] = np.fmax(noise[place], change)
        return noise

    def tasks(self, target: dict[str, Any], min_mflop: float = 0.0) -> list[NetworkTask]:
        """Return the workloads with at least so many MFLOP a call, the costliest first."""
        from tvm.s_tir.analysis import estimate_tir_flops
        from tvm.s_tir.meta_schedule.relax_integration import extract_tasks
        from tvm.target import Target

        tasks = []
        for extracted in extract_tasks(self.deployable(target), Target(target), {}):
            mod = extracted.dispatched[0]
            function = mod["main"]
            if dict(function.attrs or {}).get("tirx.is_scheduled") or is_winograd(function):
                continue  # there is nothing to tune
            flop = float(estimate_tir_flops(mod))
            if flop >= min_mflop * 1e6:
                weight = int(extracted.weight)
                tasks.append(NetworkTask(str(extracted.task_name), mod, weight, flop, extracted))
        return sorted(tasks, key=lambda task: (-task.flop * task.weight, task.name))

    def packs(self, target: dict[str, Any]) -> bool:
        """Say whether programs may reorder the weights: on CPUs; TVM's rules for GPUs never do."""
        return self.packed and target["kind"] == "llvm"

    def deployable(self, target: dict[str, Any]) -> Any:
        """Return the module with its weights bound and everything that depends on weights only folded."""
        return self._marked if self.packs(target) else self._bound

    @cached_property
    def _marked(self) -> Any:
        return with_free_weights(self._bound)

    @cached_property
    def _bound(self) -> Any:
        from tvm import relax

        main = self.mod["main"]
        weights = dict(zip(main.params[len(self.inputs) :], self.params, strict=True))
        bound = relax.transform.BindParams("main", weights)(self.mod)
        return relax.transform.FoldConstant()(bound)


def variant_name(config: NetworkConfig) -> str:
    """Return the network's name with the batch, size and graph that differ from what the plain name stands for.

    ``-unpacked``: programs have the weights in the order of the source. With network.graph=auto it is the plain name.
    """
    batch = f"-b{config.batch}" if config.batch != 1 else ""
    size = f"-s{config.size}" if config.size and config.size != config.default_size else ""
    graph = {GraphChoice.folded: "-folded", GraphChoice.channels_last: "-nhwc"}.get(
        config.graph, ""
    )
    weights = "" if config.pack_weights else "-unpacked"
    return f"{config.name}{batch}{size}{graph}{weights}"


_ONE_CORE: Mapping[str, Any] = {"kind": "llvm"}


def load_network(
    config: NetworkConfig,
    root: Path | None = None,
    *,
    target: Mapping[str, Any] = _ONE_CORE,
    is_deployed: bool = False,
) -> Network:
    """Import a network from its source and fuse its operators; network.path is relative to `root`.

    Args:
        config: the network.
        root: the project's root.
        target: of the hardware that it is for, at whose kind and cores network.graph=auto looks.
        is_deployed: it is compiled for use: its convolutions may be Winograd's, its ids are checked; else its operators
            are measured.

    Raises:
        ConfigError: the definition, its file or its inputs are wrong.
        MeasureError: an operator that TVM lacks, or a network that cannot be exported, imported or run.
        MissingDependencyError: a package that reads this source is not installed.
    """
    return lowered(config, read_network(config, root), target=target, is_deployed=is_deployed)


def lowered(
    config: NetworkConfig,
    imported: Imported,
    *,
    target: Mapping[str, Any] = _ONE_CORE,
    is_deployed: bool = False,
) -> Network:
    """Return an imported network with its operators written as network.graph says, lowered and fused.

    Args:
        config: the network.
        imported: what its source read.
        target: see :func:`load_network`.
        is_deployed: see :func:`load_network`.

    Raises:
        ConfigError: network.output is none of its outputs, or network.graph is for a network that is not fused yet.
        MeasureError: TVM cannot lower it, or it has recurrent layers and the target is no CPU.
    """
    output = _output_index(config, imported)
    if imported.fused and config.graph not in (GraphChoice.as_is, GraphChoice.auto):
        raise ConfigError(
            f"network.graph={config.graph.value}: expected a network whose operators are not fused yet, found "
            f"{config.name!r}, which was saved fused. Choose it where the network is saved: tencost save network=... "
            f"network.graph={config.graph.value}"
        )
    kind = str(target["kind"])
    layers = recurrent_layers(imported.mod) if kind != "llvm" else []
    if layers:
        raise MeasureError(
            f"network {config.name!r}: expected operators that run on {kind}, found {', '.join(layers)}, which runs on "
            "CPUs only. Choose hardware whose target is a CPU, hardware=local for example"
        )
    notes = imported.notes
    try:
        if imported.fused:
            with tvm_call():
                mod, params = compilable(imported.mod), imported.params
        else:
            mod, params, refused = _written(imported, config, target, is_deployed)
            notes += refused
    except TvmRefusal as error:
        raise MeasureError(
            f"network {config.name!r}: TVM cannot lower it: {first_sentence(error)}"
        ) from error
    return Network(
        variant_name(config),
        mod,
        params,
        imported.inputs,
        imported.expected,
        output,
        list(imported.outputs),
        config.pack_weights,
        imported.computed_by,
        notes,
        again=imported.again,
    )


def _written(
    imported: Imported, config: NetworkConfig, target: Mapping[str, Any], is_deployed: bool
) -> tuple[Any, list[Any], tuple[str, ...]]:
    """Return module and weights, written in the first way that TVM lowers, and why it does not lower those before."""
    choice = config.graph
    kind, cores = str(target["kind"]), int(target.get("num-cores", 1))
    *others, last = candidates(imported.mod, choice, kind)
    notes: list[str] = []
    for written in (*others, last):
        try:
            with tvm_call():
                mod, params = written_as(imported.mod, imported.params, written)
                if choice is GraphChoice.auto and kind == "llvm":
                    mod = sample_by_sample(mod, len(imported.inputs), cores)
                if is_deployed and config.winograd and written is GraphChoice.channels_last:
                    mod = with_winograd(mod, params, target)
                    mod, params = with_weights_computed(mod, params)
                if is_deployed and kind == "llvm":
                    mod = with_checked_ids(mod, list(imported.inputs))
                return compilable(fuse(mod)), params, tuple(notes)
        except TvmRefusal as error:
            if written is last:
                raise
            notes.append(
                f"network.graph={choice.value}: TVM cannot lower the network as {written.value}: "
                f"{first_sentence(error)}"
            )
    raise AssertionError


def _output_index(config: NetworkConfig, imported: Imported) -> int:
    """Return the index of network.output; where it says nothing, of the one that the source chose."""
    names = imported.outputs
    if config.output in names:
        return names.index(config.output)
    if imported.compared and config.output in ("", _DEFAULT_OUTPUT):
        return names.index(imported.compared)
    raise ConfigError(f"network.output must be one of {', '.join(names)}; found {config.output!r}")
