"""Network weights in safetensors files, read and written with NumPy alone.

Format (huggingface/safetensors): 8 bytes little-endian length n, n bytes of UTF-8 JSON
``{name: {"dtype": "F32", "shape": [...], "data_offsets": [begin, end]}}`` padded with spaces, then
the tensors' bytes, row-major, offsets counted from the end of the JSON. We write float32 only, and
names in sorted order. Nothing in such a file can run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

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
        BundleError: not a safetensors file of float32 arrays.
    """
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    body = memoryview(content)[8 + size :]
    weights: Weights = {}
    try:
        header = orjson.loads(content[8 : 8 + size])
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            if entry["dtype"] != "F32":
                raise BundleError(f"{path}: expected float32 weights, {name} is {entry['dtype']}")
            array = np.frombuffer(body[begin:end], dtype="<f4").reshape(entry["shape"])
            weights[name] = array.astype(np.float32)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{path}: expected a safetensors file, found {error}") from error
    return weights
