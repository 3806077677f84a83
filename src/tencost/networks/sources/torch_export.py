"""Networks from files of torch.export.save.

Opening such a file can run code: PyTorch unpickles parts of it, evaluates its shape expressions and looks its functions
up by name in its own modules. So it is opened only where network.trusted says that the file is trusted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from tencost.config import NetworkConfig
from tencost.errors import ConfigError, MeasureError, UntrustedError
from tencost.networks.inputs import (
    Array,
    DeclaredInput,
    batch_notes,
    draw_inputs,
    option_name,
    range_advice,
    resolve_shapes,
)
from tencost.networks.source import (
    Imported,
    NetworkSource,
    first_sentence,
    held_log,
    require_module,
)
from tencost.networks.torch_ids import within_tables
from tencost.networks.torch_modules import (
    module_to_onnx,
    module_to_relax,
    positional_module,
    run_module,
    tensors_of,
)
from tencost.networks.torch_types import without_detaching_in_place

_TRAINING = ("train", "training", "use_input_stats")
"""Arguments that say that an operator computes as in training."""
_CHANCES = ("p", "dropout", "dropout_p")
"""Arguments that say how likely a number is dropped."""


def _read(config: NetworkConfig, path: Path | None) -> Imported:
    """Import a .pt2 file: run it, export it again for the inputs' shapes, import that.

    Raises:
        UntrustedError: the file is not said to be trusted.
        ConfigError: not a whole exported program, one in training mode, inputs that do not fit it.
        MeasureError: an operator that TVM's frontend lacks.
    """
    program, inputs, notes = _opened(config, path)
    expected, names = _run(config, program, inputs)
    module, _ = _positional(program)
    mod, params = module_to_relax(config.name, module, tensors_of(inputs), list(inputs))
    return Imported(
        mod,
        params,
        inputs,
        expected,
        names,
        names[0],
        notes=notes,
        again=partial(run_module, module),
    )


def _to_onnx(config: NetworkConfig, path: Path | None) -> Any:
    """Export a .pt2 file once more, to ONNX.

    Raises:
        UntrustedError, ConfigError: as `_read`.
        MeasureError: PyTorch cannot export the program.
    """
    program, inputs, _ = _opened(config, path)
    _run(config, program, inputs)
    return module_to_onnx(config.name, _positional(program)[0], tensors_of(inputs))


def _opened(
    config: NetworkConfig, path: Path | None
) -> tuple[Any, dict[str, Array], tuple[str, ...]]:
    """Return (the exported program, arrays for its inputs, what a user should know of them)."""
    assert path is not None
    program = _trusted_program(config, path)
    _check_evaluating(config, program)
    declared = _declared(config, program)
    inputs = draw_inputs(config, declared, resolve_shapes(config, declared))
    free = {name for name in inputs if not {name, option_name(name)} & set(config.inputs)}
    inputs = within_tables(_positional(program)[0], inputs, free)
    return program, inputs, tuple(batch_notes(config, declared))


def _trusted_program(config: NetworkConfig, path: Path) -> Any:
    """Return the exported program in a file; raises UntrustedError and ConfigError."""
    if not config.trusted:
        raise UntrustedError(
            f"network.path: reading {path} can run code that it brings along (PyTorch unpickles parts of it). If "
            "you know who made it: network.trusted=true (in Python trusted=True). Otherwise make it ONNX, "
            "network=onnx, which holds no code"
        )
    require_module("torch")
    return _load_program(path)


def _load_program(path: Path) -> Any:
    import torch

    causes: list[BaseException] = []
    try:
        try:
            return _load(path, causes)
        except Exception:
            if not any("transformers." in str(error) for error in causes):
                raise
            # transformers' outputs register themselves with PyTorch when they are imported.
            import_module("transformers.modeling_outputs")
            return _load(path, causes)
    except Exception as error:
        cause = causes[0] if causes else error
        raise ConfigError(
            f"network.path: expected a whole file of torch.export.save in {path}, found something that PyTorch "
            f"{torch.__version__} cannot read: {first_sentence(cause)}. Export it again with this version"
        ) from error


def _load(path: Path, causes: list[BaseException]) -> Any:
    """Load a file; the exceptions that PyTorch logs on the way go into `causes`."""
    import torch

    with held_log("torch.export") as records, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own deprecations
        try:
            return torch.export.load(path)
        finally:
            errors = (record.exc_info[1] for record in records if record.exc_info)
            causes.extend(error for error in errors if error is not None)


def _check_evaluating(config: NetworkConfig, program: Any) -> None:
    """Raise ConfigError for an operator in training mode, MeasureError for one that draws random numbers."""
    import torch

    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            continue
        name = schema.name.rpartition("::")[2]
        arguments = _named_arguments(node, schema)
        if _is_training(arguments):
            raise ConfigError(
                f"network {config.name!r}: expected a program in evaluation mode, found {name} in training mode in "
                f"{config.path}. Call model.eval() before torch.export.export; of a function that is told "
                "training=True, write training=self.training"
            )
        is_random = torch.Tag.nondeterministic_seeded in node.target.tags
        if is_random and not {*_TRAINING, "dropout_p"} & set(arguments):
            raise MeasureError(
                f"network {config.name!r}: expected a program whose outputs depend on its inputs alone, found {name}, "
                f"which draws random numbers, in {config.path}. Take them as an input"
            )


def _named_arguments(node: Any, schema: Any) -> dict[str, Any]:
    """Return an operator's arguments by the names of its schema, with defaults for the absent ones."""
    names = [argument.name for argument in schema.arguments]
    defaults = {argument.name: argument.default_value for argument in schema.arguments}
    return {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs}


def _is_training(arguments: Mapping[str, Any]) -> bool:
    """Say whether an operator drops numbers by chance or renews running statistics.

    A norm without running statistics has its flag set in evaluation mode, too; dropping nothing is no training.
    """
    if not any(arguments.get(name, False) is not False for name in _TRAINING):
        return bool(arguments.get("dropout_p"))  # an attention's, which has no flag
    chances = [arguments[name] for name in _CHANCES if name in arguments]
    return any(chances) if chances else arguments.get("running_mean") is not None


def _declared(config: NetworkConfig, program: Any) -> dict[str, DeclaredInput]:
    """Return the tensors that a caller passes; other arguments (None, numbers) keep the value of the export."""
    import torch
    from torch.utils._pytree import tree_leaves

    metas = {node.name: node.meta["val"] for node in program.graph.find_nodes(op="placeholder")}
    arguments = _arguments(program)
    examples = tree_leaves(program.example_inputs or ())
    if len(examples) != len(arguments):
        examples = [None] * len(arguments)
    declared = {}
    for argument, example in zip(arguments, examples, strict=True):
        meta = metas[argument.name]
        if isinstance(meta, torch.Tensor):
            dims = tuple(size if isinstance(size, int) else str(size) for size in meta.shape)
            kind = str(meta.dtype).removeprefix("torch.")
            declared[argument.name] = DeclaredInput(dims, kind, _end(example))
    if not declared:
        raise MeasureError(f"network {config.name!r}: expected a program with inputs, found none")
    return declared


def _end(example: Any) -> int:
    """Return the number below which an example input's whole numbers lie, at least 2."""
    import torch

    whole = isinstance(example, torch.Tensor) and not example.is_floating_point()
    return max(2, int(example.max()) + 1) if whole and example.numel() else 2


def _arguments(program: Any) -> list[Any]:
    from torch.export.graph_signature import InputKind

    specs = program.graph_signature.input_specs
    return [spec.arg for spec in specs if spec.kind is InputKind.USER_INPUT]


def _positional(program: Any, *, check: bool = False) -> tuple[Any, list[str]]:
    """Return a module that takes the tensors in order and returns all tensors, and their names once it has run."""
    from torch.export.graph_signature import ConstantArgument
    from torch.utils import _pytree as pytree

    arguments, structure = _arguments(program), program.call_spec.in_spec

    def call(network: Any, tensors: tuple[Any, ...]) -> dict[str, Any]:
        remaining = iter(tensors)
        leaves = [
            argument.value if isinstance(argument, ConstantArgument) else next(remaining)
            for argument in arguments
        ]
        args, kwargs = pytree.tree_unflatten(leaves, structure)
        return dict(_named_tensors(network(*args, **kwargs), "", pytree.tree_leaves))

    module = without_detaching_in_place(program).module(check_guards=check)
    return positional_module(module, call)


def _named_tensors(
    value: Any, prefix: str, leaves: Callable[[Any], list[Any]]
) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a module's output with a name each: its key, its position, or "output" for a single one."""
    import torch

    if isinstance(value, torch.Tensor):
        yield prefix or "output", value
        return
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, tuple | list):
        items = list(enumerate(value))
    else:
        items = list(enumerate(leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)))
    for key, item in items:
        yield from _named_tensors(item, f"{prefix}.{key}" if prefix else str(key), leaves)


def _run(
    config: NetworkConfig, program: Any, inputs: dict[str, Array]
) -> tuple[list[Array], list[str]]:
    import torch

    tensors = tensors_of(inputs)
    module, names = _positional(program, check=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outputs = module(*tensors)
        except Exception as error:
            shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
            raise ConfigError(
                f"network {config.name!r}: {config.path} does not run on inputs of shape {shapes}: "
                f"{first_sentence(error)}. Choose network.batch, network.size or network.inputs.<name>.shape "
                f"within what it was exported for{range_advice(inputs)}"
            ) from error
    if not outputs:
        raise MeasureError(
            f"network {config.name!r}: expected a program that returns tensors, found none"
        )
    return [tensor.detach().numpy() for tensor in outputs], names


def _example(folder: Path) -> NetworkConfig:
    """Write a convolution and a dense layer."""
    require_module("torch")
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own deprecations
        program = torch.export.export(nn.Sequential(*layers).eval(), (torch.ones(1, 3, 6, 6),))
        torch.export.save(program, folder / "tiny.pt2")
    return NetworkConfig(name="tiny", source="torch_export", path="tiny.pt2", trusted=True)


SOURCE = NetworkSource(
    read=_read,
    example=_example,
    to_onnx=_to_onnx,
    declared=lambda config, path: _declared(config, _trusted_program(config, path)),
    extension=".pt2",
)
