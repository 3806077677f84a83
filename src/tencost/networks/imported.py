"""What every source of networks returns, and how it finds its file and what it needs."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tencost.config import NetworkConfig
from tencost.errors import ConfigError, MissingDependencyError
from tencost.networks.inputs import Array

_EXTENSIONS = {".onnx": "onnx", ".pt2": "torch_export", ".npz": "saved"}


@dataclass(frozen=True)
class Imported:
    """A network as a source read it, before operators are lowered and fused.

    Attributes:
        mod: Relax IRModule; ``main`` takes the inputs, then the weights, and returns a tuple of tensors.
        params: the weights as TVM tensors, in the order of the parameters.
        inputs: input arrays by name, drawn with the configured seed.
        expected: what the source's own runtime computes for the inputs, one array an output.
        outputs: names of the outputs.
    """

    mod: Any
    params: list[Any]
    inputs: dict[str, Array]
    expected: list[Array]
    outputs: list[str]


def network_file(config: NetworkConfig, extension: str, root: Path | None) -> Path:
    """Return network.path, relative to `root` (the current folder without one).

    Raises:
        ConfigError: none is given, it ends in something else, or there is no such file.
    """
    source = config.source.value
    if not config.path:
        raise ConfigError(
            f"network.path: expected a {extension} file, found none. "
            f"Give one: network={source} network.path=<file>{extension}"
        )
    path = (root or Path.cwd()) / config.path
    found = path.suffix.lower()
    if found != extension:
        other = _EXTENSIONS.get(found)
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


def require(*modules: str) -> None:
    """Raise MissingDependencyError for a module that is not installed."""
    for module in modules:
        if find_spec(module) is None:
            raise MissingDependencyError(
                f"importing this network needs {module}, which is not installed. Run: pip install 'tencost[pipeline]', "
                "or import it elsewhere (tencost measure export network=... --to <file>.npz) and use network=saved "
                "network.path=<file>.npz"
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
