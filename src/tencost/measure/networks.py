"""A network from its definition: transformers configuration -> PyTorch -> torch.export -> Relax -> tasks.

The weights stay inputs of the Relax module until after fusion, as in the sample dataset: folding them earlier would
change the fused functions (a batch norm's scale becomes one constant) and with them the workloads, so that records
of the same layer would no longer meet. :meth:`Network.deployable` binds them afterwards, which folds everything that
depends on weights only and leaves the tasks' functions as they are.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tencost.config import NetworkConfig
from tencost.errors import ConfigError, TuneError

Array = npt.NDArray[Any]


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
        name: as configured.
        mod: fused Relax IRModule; ``main`` takes the inputs, then the weights.
        params: the weights as TVM tensors, in the order of the parameters.
        inputs: input arrays by argument name, drawn with the configured seed.
        expected: what PyTorch computes for the inputs, all tensor outputs in order.
        output: index of the output that is compared.
    """

    name: str
    mod: Any
    params: list[Any]
    inputs: dict[str, Array]
    expected: list[Array]
    output: int

    def tasks(self, target: dict[str, Any], min_mflop: float = 0.0) -> list[NetworkTask]:
        """Return the workloads with at least so many MFLOP a call, the costliest first."""
        from tvm.s_tir.analysis import estimate_tir_flops
        from tvm.s_tir.meta_schedule.relax_integration import extract_tasks
        from tvm.target import Target

        tasks = []
        for extracted in extract_tasks(self.mod, Target(target), {}):
            mod = extracted.dispatched[0]
            flop = float(estimate_tir_flops(mod))
            if flop >= min_mflop * 1e6:
                weight = int(extracted.weight)
                tasks.append(NetworkTask(str(extracted.task_name), mod, weight, flop, extracted))
        return sorted(tasks, key=lambda task: (-task.flop * task.weight, task.name))

    def deployable(self) -> Any:
        """Return the module with its weights bound and everything that depends on weights only folded."""
        from tvm import relax

        main = self.mod["main"]
        weights = dict(zip(main.params[len(self.inputs) :], self.params, strict=True))
        bound = relax.transform.BindParams("main", weights)(self.mod)
        return relax.transform.FoldConstant()(bound)


def load_network(config: NetworkConfig) -> Network:
    """Build, export and import a network with random weights.

    Raises:
        ConfigError: transformers has no such class, refuses the configuration, or has no such output.
        TuneError: the network cannot be exported or imported.
    """
    import torch

    model, names = _torch_model(config)
    inputs = _inputs(config)
    tensors = tuple(torch.from_numpy(array) for array in inputs.values())
    with torch.no_grad():
        try:
            expected = [array.numpy() for array in model(*tensors)]
        except (RuntimeError, ValueError, TypeError) as error:
            raise ConfigError(
                f"network {config.name!r} does not run on its configured inputs: {error}"
            ) from error
    if config.output not in names:
        raise ConfigError(
            f"network.output must be one of {', '.join(names)}; found {config.output!r}"
        )
    mod, params = _import(config.name, model, tensors)
    return Network(config.name, mod, params, inputs, expected, names.index(config.output))


def _torch_model(config: NetworkConfig) -> tuple[Any, list[str]]:
    """Return (module with positional inputs and a tuple of tensors as output, names of the outputs)."""
    import torch
    import transformers

    for name in (config.architecture, config.config_class):
        if not hasattr(transformers, name):
            raise ConfigError(
                f"network {config.name!r}: transformers {transformers.__version__} has no {name}"
            )
    try:
        settings = getattr(transformers, config.config_class)(**config.config)
        torch.manual_seed(config.seed)
        network = getattr(transformers, config.architecture)(settings).eval()
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"network {config.name!r}: {config.config_class} refuses its configuration: {error}"
        ) from error
    arguments = list(config.inputs)
    names: list[str] = []

    class Positional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *tensors: Any) -> tuple[Any, ...]:
            outputs = self.network(**dict(zip(arguments, tensors, strict=True)))
            kept = {
                name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)
            }
            names[:] = list(kept)
            return tuple(kept.values())

    return Positional().eval(), names


def _inputs(config: NetworkConfig) -> dict[str, Array]:
    rng = np.random.default_rng(config.seed)
    arrays: dict[str, Array] = {}
    for name, item in config.inputs.items():
        if item.dtype == "int64":
            arrays[name] = rng.integers(0, item.high, size=item.shape, dtype=np.int64)
        elif item.dtype == "float32":
            arrays[name] = rng.standard_normal(item.shape, dtype=np.float32)
        else:
            raise ConfigError(
                f"network.inputs.{name}.dtype must be float32 or int64, found {item.dtype!r}"
            )
    if not arrays:
        raise ConfigError(
            f"network {config.name!r} has no inputs; add network.inputs with a shape each"
        )
    return arrays


def _import(name: str, model: Any, tensors: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    import torch
    from tvm import relax
    from tvm.relax.frontend import detach_params
    from tvm.relax.frontend.torch import from_exported_program

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # PyTorch's and TVM's own deprecations; nothing of ours
        try:
            exported = torch.export.export(model, tensors)
            mod = from_exported_program(exported, keep_params_as_input=True)
        except Exception as error:
            raise TuneError(f"network {name!r} cannot be exported or imported: {error}") from error
    mod, params = detach_params(mod)
    mod = relax.transform.DecomposeOpsForInference()(mod)
    mod = relax.get_pipeline("zero")(mod)
    return mod, list(params["main"])
