"""Network weights in safetensors files, read and written with NumPy alone.

Format (huggingface/safetensors): 8 bytes little-endian length n, n bytes of UTF-8 JSON
``{name: {"dtype": "F32", "shape": [...], "data_offsets": [begin, end]}}`` padded with spaces, then
the tensors' bytes, row-major, offsets counted from the end of the JSON. We write float32 only, and
names in sorted order. Nothing in such a file can run.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from tencost.errors import BundleError

Weights = dict[str, npt.NDArray[np.float32]]


def write_weights(path: Path, weights: Mapping[str, npt.NDArray[np.floating]]) -> None:
    """Write arrays by name as float32."""
    header: dict[str, object] = {}
    chunks: list[bytes] = []
    position = 0
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name], dtype="<f4")
        shape = list(np.shape(weights[name]))
        span = [position, position + array.nbytes]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": span}
        chunks.append(array.tobytes())
        position = span[1]
    text = orjson.dumps(header)
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(chunks))


def read_weights(path: Path) -> Weights:
    """Read every array of a file.

    Raises:
        BundleError: not a safetensors file of float32 arrays, laid end to end.
    """
    try:
        return _read(path, path.read_bytes())
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise BundleError(
            f"{path}: expected a safetensors file, found {error}. Pull or train the model again."
        ) from error


def _read(path: Path, content: bytes) -> Weights:
    size = int.from_bytes(content[:8], "little")
    if size > len(content) - 8:
        raise ValueError(f"a header of {size} bytes in a file of {len(content)}")
    header = orjson.loads(content[8 : 8 + size])
    if not isinstance(header, dict):
        raise TypeError(f"a header that is no object: {str(header)[:40]}")
    header.pop("__metadata__", None)
    spans = sorted((entry["data_offsets"], name) for name, entry in header.items())
    body = memoryview(content)[8 + size :]
    weights: Weights = {}
    position = 0
    for span, name in spans:
        weights[name] = _array(path, name, header[name], span, position, body)
        position += weights[name].nbytes
    if position != len(body):
        raise ValueError(f"{len(body)} bytes of tensors, {position} of them named")
    return {name: weights[name] for name in header}


def _array(
    path: Path, name: str, entry: dict[str, Any], span: Any, position: int, body: memoryview
) -> npt.NDArray[np.float32]:
    if entry["dtype"] != "F32":
        raise BundleError(f"{path}: expected float32 weights, {name} is {entry['dtype']}")
    shape = entry["shape"]
    if not isinstance(shape, list) or not all(type(side) is int and side >= 0 for side in shape):
        raise ValueError(f"the shape {str(shape)[:40]} of {name}")
    end = position + 4 * prod(shape)
    if span != [position, end] or end > len(body):
        raise ValueError(
            f"{name} of shape {shape} at {str(span)[:60]}, expected [{position}, {end}]"
        )
    return np.frombuffer(body[position:end], dtype="<f4").reshape(shape).astype(np.float32)


def layer_shapes(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a dense layer's two weights as they are served: [in, out] and [out]."""
    return {f"{name}.weight": (inputs, outputs), f"{name}.bias": (outputs,)}


def check_weights(path: Path, weights: Weights, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse weights that are not exactly those of the configured model.

    Raises:
        BundleError: a weight is missing, not configured, of another shape, or not finite.
    """
    for name in sorted({*weights, *expected}):
        shape = weights[name].shape if name in weights else None
        if shape != expected.get(name):
            raise BundleError(
                f"{path}: expected {name} of shape {expected.get(name, 'none')} as configured, found "
                f"{shape or 'none'}. Pull or train the model again."
            )
        if not np.isfinite(weights[name]).all():
            raise BundleError(
                f"{path}: expected finite weights, {name} has others (NaN or infinite). Pull or train the model again."
            )
