"""The texts that Lorien's database is indexed by: target, target's kind with its keys, AutoTVM workload.

    target key      kind ["-keys=" keys in order] {" -" name "=" values}, attributes by name, values of a list sorted,
                    -libs and an empty tag left out:           cuda -keys=cuda,gpu -max_num_threads=1024
    alter key       kind "_" keys joined by "-":               cuda_cuda-gpu
    workload key    AutoTVM: task name {"#" argument}, see `autotvm_workload_key`;
                    auto_scheduler: the log's own workload key; MetaSchedule: workload_id

TVM fills in the keys of a target that names none; the table `DEFAULT_KEYS` does it here. Other defaults of TVM
(``-max_num_threads`` of ``cuda``) are not filled in: what the text does not say is not part of its key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from tencost.errors import RecordError
from tencost.records.reading.targets import parse_target

DEFAULT_KEYS = {
    **dict.fromkeys(("llvm", "c", "stackvm"), ("cpu",)),
    **{kind: (kind, "gpu") for kind in ("cuda", "rocm", "opencl", "metal", "vulkan", "webgpu")},
    "nvptx": ("cuda", "gpu"),
    "hexagon": ("hexagon", "cpu"),
}
"""The keys that TVM gives a target of a kind; -device puts one more in front."""

REQUIRED_LIBS = {
    "dense_mkl.x86": "mkl",
    "dense_mkldnn.x86": "mkldnn",
    "dense_cblas.x86": "cblas",
    "batch_matmul_cblas.x86": "cblas",
    "dense_cublas.cuda": "cublas",
    "batch_matmul_cublas.cuda": "cublas",
    "softmax.cudnn": "cudnn",
    "conv2d_cudnn.cuda": "cudnn",
    "conv3d_cudnn.cuda": "cudnn",
}
"""AutoTVM templates that call a library, and which."""

_NOT_IN_KEY = frozenset({"kind", "keys", "libs"})
_KEY_TEXT = str.maketrans(
    {"(": "_", ")": "_", "[": "_", "]": "_", ",": "_", " ": None, "'": None, '"': None}
)


def target_of(target: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return a target, text of any TVM or a mapping, as a mapping.

    Raises:
        RecordError: it is no target.
    """
    if not isinstance(target, str):
        return dict(target)
    try:
        return parse_target(target)
    except ValueError as error:
        raise RecordError(
            f"expected a target as TVM writes it, such as `cuda -model=v100`: {error}"
        ) from error


def target_key(target: str | Mapping[str, Any]) -> str:
    """Return the canonical text of a target, the same for all ways to write it."""
    return _target_key(target if isinstance(target, str) else json.dumps(dict(target)))


@lru_cache(maxsize=4096)
def _target_key(text: str) -> str:
    target = target_of(text)
    keys = target_keys(target)
    words = [str(target["kind"]), *([f"-keys={','.join(keys)}"] if keys else [])]
    for name in sorted(set(target) - _NOT_IN_KEY):
        if (name, target[name]) != ("tag", ""):
            words.append(f"-{name}={_value(target[name])}")
    return " ".join(words)


def alter_key(target: str | Mapping[str, Any]) -> str:
    """Return a target's kind and keys: ``llvm_cpu``."""
    parsed = target_of(target)
    return f"{parsed['kind']}_{'-'.join(target_keys(parsed))}"


def target_keys(target: Mapping[str, Any]) -> list[str]:
    """Return the keys of a target in order, TVM's default where it names none."""
    keys = target.get("keys")
    if keys:
        return [str(key) for key in keys] if isinstance(keys, list | tuple) else [str(keys)]
    default = list(DEFAULT_KEYS.get(str(target["kind"]), ()))
    device = target.get("device")
    return [str(device), *default] if device and device not in default else default


def autotvm_workload_key(task_name: str, args: Sequence[Any]) -> str:
    """Return the task name and ``#`` with each argument: brackets and commas become ``_``, spaces and quotes go.

    ``dense.x86``, ``[["TENSOR", [1, 8], "float32"], None]`` gives ``dense.x86#_TENSOR__1_8__float32_#None``. None and
    the text "None" look the same in it; workload_id tells them apart.
    """
    return "#".join([task_name, *(str(_lists(arg)).translate(_KEY_TEXT) for arg in args)])


def _lists(value: Any) -> Any:
    return [_lists(part) for part in value] if isinstance(value, list | tuple) else value


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(sorted(map(_value, value)))
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return str(int(value)) if isinstance(value, bool) else str(value)
