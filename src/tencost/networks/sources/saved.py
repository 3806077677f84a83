"""Networks in a file of our own: imported on one machine, for another that has no PyTorch, transformers or ONNX.

``<name>.npz``, version 1: a zip archive of NumPy arrays, read without pickle; nothing in it runs when it is read.

    header                      UTF-8 JSON object: {"format": "tencost network", "version": 1, "name", "tvm": release,
                                "inputs": [name, ...], "outputs": [name, ...], "output": index of the compared one,
                                "computed_by": what computed the expected outputs (absent in older files),
                                "dtypes": {array: NumPy or ml_dtypes name}}
    module                      UTF-8, the fused Relax module as TVM's JSON; ``main`` takes inputs, then weights
    input/<i>, param/<i>        one drawn input each, the weights
    expected/<i>                what the source's own runtime computed for the inputs, an array an output

Arrays of a type that NumPy lacks (bfloat16, say) are stored as unsigned integers of the same width.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
import orjson

from tencost.config import NetworkConfig
from tencost.config.parts import NETWORK_SOURCES
from tencost.errors import ConfigError, MeasureError, UntrustedError
from tencost.networks.inputs import Array
from tencost.networks.source import Imported, NetworkSource, first_sentence
from tencost.programs.trace.allowed import NoGraphError, check_module
from tencost.writing import whole_file

if TYPE_CHECKING:
    from tencost.networks.network import Network

FORMAT = "tencost network"
VERSION = 1
SUFFIX = ".npz"
_WRITE_IT = (
    "Write it where the network can be imported: tencost measure export network=... --to <file>.npz"
)


def save_network(network: Network, path: Path) -> None:
    """Write an imported network to one file, whole or not at all.

    Raises:
        MeasureError: the file cannot be written.
    """
    import tvm
    from tvm.ir import save_json

    groups = {
        "input": list(network.inputs.values()),
        "param": [param.numpy() for param in network.params],
        "expected": network.expected,
    }
    arrays = {
        f"{group}/{index}": np.asarray(array)
        for group, values in groups.items()
        for index, array in enumerate(values)
    }
    header = {
        "format": FORMAT,
        "version": VERSION,
        "tvm": tvm.__version__,
        **{name: getattr(network, name) for name in ("name", "outputs", "output", "computed_by")},
        "inputs": list(network.inputs),
        "dtypes": {name: array.dtype.name for name, array in arrays.items()},
    }
    texts = {"header": orjson.dumps(header), "module": str(save_json(network.mod)).encode()}
    content: dict[str, Any] = {name: np.frombuffer(text, np.uint8) for name, text in texts.items()}
    content |= {name: _storable(array) for name, array in arrays.items()}
    try:
        with whole_file(path) as partial, partial.open("wb") as file:
            np.savez(file, **content)
    except OSError as error:
        raise MeasureError(
            f"cannot write {path}: {error.strerror or error}. Make room or choose another place: --to <file>.npz"
        ) from error


def read_header(path: Path) -> dict[str, Any]:
    """Return what a saved network's file says about itself.

    Raises:
        ConfigError: it is no saved network, or of another version.
    """
    with _opened(path) as file:
        return _header(path, file)


def _read(config: NetworkConfig, path: Path | None) -> Imported:
    """Read a saved network, its operators fused already.

    Raises:
        ConfigError: something else in the file, or options that the file has settled.
        UntrustedError: its module could run code of others, and is not said to be trusted.
        MeasureError: this TVM does not read its module, or its parts do not belong together.
    """
    import tvm

    assert path is not None
    settings = [f"network.{name}={value}" for name, value in _settled(config).items()]
    if settings:
        raise ConfigError(
            f"a saved network has its inputs in its file, found {', '.join(settings)}. Leave that out, or save the "
            f"network with it: tencost measure export network=... {settings[0]} --to <file>.npz"
        )
    with _opened(path) as file:
        header = _header(path, file)
        text = file["module"].tobytes().decode()
        arrays = {name: _typed(file[name], dtype) for name, dtype in header["dtypes"].items()}
        inputs = dict(zip(header["inputs"], _group(arrays, "input"), strict=True))
        params, expected = _group(arrays, "param"), _group(arrays, "expected")
        outputs = [str(name) for name in header["outputs"]]
        if len(outputs) != len(expected):
            raise ValueError(f"{len(outputs)} outputs named, {len(expected)} stored")
        compared = outputs[header["output"]]
    mod = _module(path, header, text, trusted=config.trusted)
    _check(path, mod, [*inputs.values(), *params], expected)
    tensors = [tvm.runtime.tensor(array) for array in params]
    by = str(header.get("computed_by", "what its file says"))
    return Imported(mod, tensors, inputs, expected, outputs, compared, fused=True, computed_by=by)


def _settled(config: NetworkConfig) -> dict[str, Any]:
    settings: dict[str, Any] = {"batch": config.batch} if config.batch != 1 else {}
    settings |= {"size": config.size} if config.size else {}
    shapes = {f"inputs.{name}.shape": list(item.shape) for name, item in config.inputs.items()}
    return settings | shapes


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open the archive; whatever reading something else than a saved network raises becomes one ConfigError."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            yield file
    except (
        OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        raise ConfigError(
            f"network.path: expected a network that `tencost measure export` wrote in {path}, found something else "
            f"({first_sentence(error)}). {_WRITE_IT}"
        ) from error


def _header(path: Path, file: Any) -> dict[str, Any]:
    header: dict[str, Any] = orjson.loads(file["header"].tobytes())
    if header["format"] != FORMAT:
        raise ValueError(f"format {header['format']!r}")
    if header["version"] != VERSION:
        raise ConfigError(
            f"network.path: expected a saved network of version {VERSION} in {path}, found version "
            f"{header['version']}. Use the tencost release that wrote it, or write it again"
        )
    return header


def _storable(array: Array) -> Array:
    return array if array.dtype.kind in "biuf" else array.view(f"u{array.dtype.itemsize}")


def _typed(array: Array, dtype: str) -> Array:
    if array.dtype.name == dtype:
        return array
    import ml_dtypes

    return array.view(getattr(ml_dtypes, dtype))


def _group(arrays: Mapping[str, Array], group: str) -> list[Array]:
    number = sum(name.startswith(f"{group}/") for name in arrays)
    return [arrays[f"{group}/{index}"] for index in range(number)]


def _module(path: Path, header: Mapping[str, Any], text: str, *, trusted: bool) -> Any:
    import tvm
    from tvm.ir import load_json

    try:
        if not trusted:
            check_module(text, f"network.path: the module in {path}")
        mod = load_json(text)
        mod["main"]
    except Exception as error:
        if isinstance(error, UntrustedError) and not isinstance(error, NoGraphError):
            raise
        raise MeasureError(
            f"TVM {tvm.__version__} does not read the module in {path}, which TVM {header.get('tvm')} wrote: "
            f"{first_sentence(error)}. Write it again with this TVM"
        ) from error
    return mod


def _check(path: Path, mod: Any, arguments: list[Array], expected: list[Array]) -> None:
    """Compare the arrays with what ``main`` takes (types and shapes) and returns (shapes)."""
    main = mod["main"]
    parameters = [(str(param.ty.dtype), _sizes(param.ty)) for param in main.params]
    passed = [(array.dtype.name, array.shape) for array in arguments]
    returned = [_sizes(item) for item in main.ret_ty.fields]
    if parameters != passed or returned != [array.shape for array in expected]:
        raise ConfigError(
            f"network.path: expected the arrays that the module in {path} takes and returns beside it, found "
            f"others. {_WRITE_IT}"
        )


def _sizes(tensor: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor.shape)


def _example(folder: Path) -> NetworkConfig:
    """Write the tiny network of another source."""
    from tencost.networks.network import load_network

    other: NetworkSource = NETWORK_SOURCES.load("onnx")
    save_network(load_network(other.example(folder), folder), folder / f"tiny{SUFFIX}")
    return NetworkConfig(name="tiny", source="saved", path=f"tiny{SUFFIX}", output="")


SOURCE = NetworkSource(read=_read, example=_example, extension=SUFFIX)
