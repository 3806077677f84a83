"""What a network source is: how it describes itself, what it returns, how it finds its file and what it needs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from tencost.config import NetworkConfig
from tencost.config.parts import NETWORK_SOURCES
from tencost.errors import ConfigError, MissingDependencyError
from tencost.networks.inputs import Array, DeclaredInput


class Run(Protocol):
    """Runs a network in its source's own runtime."""

    def __call__(
        self, inputs: dict[str, Array], changed: Callable[[Array], Array] | None = None, /
    ) -> list[Array]:
        """Compute the outputs of inputs, by name; `changed` is applied to each weight before."""


@dataclass(frozen=True)
class Imported:
    """A network as a source read it, before operators are lowered and fused.

    Attributes:
        mod: Relax IRModule; ``main`` takes the inputs, then the weights, and returns a tuple of tensors.
        params: the weights as TVM tensors, in the order of the parameters.
        inputs: input arrays by name, drawn with the configured seed.
        expected: what the source's own runtime computes for the inputs, one array an output.
        outputs: names of the outputs.
        compared: name of the output that is compared where network.output says nothing; "" if it has to.
        fused: whether the module's operators are lowered and fused already.
        computed_by: what computed `expected`.
        notes: sentences that a user should read: what was settled without her.
        again: computes the outputs of other inputs, or weights, as `computed_by` does; None of a source that keeps no
            runtime.
    """

    mod: Any
    params: list[Any]
    inputs: dict[str, Array]
    expected: list[Array]
    outputs: list[str]
    compared: str = ""
    fused: bool = False
    computed_by: str = "PyTorch"
    notes: tuple[str, ...] = ()
    again: Run | None = None


@dataclass(frozen=True)
class NetworkSource:
    """A source of networks, described by its own module as ``SOURCE``; its name is the module's."""

    read: Callable[[NetworkConfig, Path | None], Imported]
    """Import a network; the path is that of its file, which is there, and None for a source that reads none.

    Raises ConfigError for a damaged file or a definition that does not fit it, MeasureError for what TVM cannot take.
    """
    example: Callable[[Path], NetworkConfig]
    """Write a tiny network into a folder and return its configuration, with network.path relative to the folder."""
    to_onnx: Callable[[NetworkConfig, Path | None], Any] | None = None
    """Return a network as an onnx.ModelProto whose inputs have fixed shapes; None for a source that cannot.

    Raises ConfigError as `read`, MeasureError for what PyTorch cannot export.
    """
    structure: Callable[[NetworkConfig, Path | None], Any] | None = None
    """Return the same from a file that may lack the weights' data; None for a source that reads them in any case."""
    declared: Callable[[NetworkConfig, Path], dict[str, DeclaredInput]] | None = None
    """Return the inputs as a file declares them, open dimensions by name; None for a source that has none such.

    Raises ConfigError as `read`.
    """
    extension: str = ""
    """How its files end, with the dot; "" for a source that reads none."""


def read_network(config: NetworkConfig, root: Path | None = None) -> Imported:
    """Read a network from its source; network.path is relative to `root`. Raises as :attr:`NetworkSource.read`."""
    source: NetworkSource = NETWORK_SOURCES.load(config.source, "network.source")
    return source.read(config, source_file(config, source, root))


def network_to_onnx(
    config: NetworkConfig, root: Path | None = None, *, weights: bool = True
) -> Any:
    """Return a network as an onnx.ModelProto whose inputs have fixed shapes; network.path is relative to `root`.

    Without `weights`, their data need not be there: the initializers of an ONNX file may have their shapes only.

    Raises:
        ConfigError: the definition, its file or its inputs are wrong, or its source keeps no such graph.
        MeasureError: a network that PyTorch cannot export.
        MissingDependencyError: a package that reads this source is not installed.
    """
    source: NetworkSource = NETWORK_SOURCES.load(config.source, "network.source")
    if source.to_onnx is None:
        sources: dict[str, NetworkSource] = NETWORK_SOURCES.all()
        able = ", ".join(name for name, other in sources.items() if other.to_onnx is not None)
        raise ConfigError(
            f"network {config.name!r}: expected a source that can be made ONNX ({able}), found {config.source}, whose "
            "operators are lowered already. Use the network that the file was made from"
        )
    read = source.to_onnx if weights or source.structure is None else source.structure
    return read(config, source_file(config, source, root))


def source_file(config: NetworkConfig, source: NetworkSource, root: Path | None) -> Path | None:
    """Return the file that a source is to read, relative to `root` (the current folder without one), or None.

    Raises:
        ConfigError: a file is missing, ends in something else, or is given to a source that reads none.
    """
    if source.extension:
        return _file(config, source.extension, root)
    if config.path:
        raise ConfigError(
            f"network {config.name!r}: source {config.source} reads no file, found network.path={config.path}. "
            f"Use {' or '.join(f'network={name}' for name in _extensions().values())} with it"
        )
    return None


def _extensions() -> dict[str, str]:
    """Return the source that reads a file, by the file's end."""
    sources: dict[str, NetworkSource] = NETWORK_SOURCES.all()
    return {source.extension: name for name, source in sources.items() if source.extension}


def _file(config: NetworkConfig, extension: str, root: Path | None) -> Path:
    source = config.source
    if not config.path:
        raise ConfigError(
            f"network.path: expected a {extension} file, found none. "
            f"Give one: network={source} network.path=<file>{extension}"
        )
    path = (root or Path.cwd()) / config.path
    suffix = path.suffix.lower()
    if suffix != extension:
        other = _extensions().get(suffix)
        hint = (
            f"Read it with network={other}"
            if other
            else "Save the network with torch.onnx.export (.onnx), torch.export.save (.pt2) or tencost measure export "
            "(.npz)"
        )
        raise ConfigError(
            f"network.path: source {source} expected a {extension} file, found {path}. {hint}"
        )
    if not path.is_file():
        raise ConfigError(
            f"network.path: expected a {extension} file at {path}, found "
            f"{'a folder' if path.is_dir() else 'nothing'}. Paths are relative to the project"
        )
    return path


def require_module(*modules: str, extra: str = "pipeline") -> None:
    """Raise MissingDependencyError for a module that is not installed, with the extra of tencost that brings it."""
    for module in modules:
        if find_spec(module) is None:
            elsewhere = (
                ", or import it elsewhere (tencost measure export network=... --to <file>.npz) and use network=saved "
                "network.path=<file>.npz"
            )
            raise MissingDependencyError(
                f"importing this network needs {module}, which is not installed. Run: pip install 'tencost[{extra}]'"
                f"{elsewhere if extra == 'pipeline' else ''}"
            )


def first_sentence(error: BaseException) -> str:
    """Return what an exception says first, without the stack and the advice that libraries put after it."""
    lines = [line.strip() for line in str(error).splitlines()]
    text = next((line for line in lines if line), type(error).__name__)
    return re.split(r"\.(?: (?=[A-Z])|$)", text)[0]


@contextmanager
def held_log(name: str) -> Iterator[list[logging.LogRecord]]:
    """Keep what a library's logger says from the terminal and hand it over instead."""
    records: list[logging.LogRecord] = []

    def hold(record: logging.LogRecord) -> bool:
        records.append(record)
        return False

    logger = logging.getLogger(name)
    logger.addFilter(hold)
    try:
        yield records
    finally:
        logger.removeFilter(hold)
