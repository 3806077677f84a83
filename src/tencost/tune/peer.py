"""ONNX Runtime beside a tuned network: what most people would run on a CPU, timed in turn with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from tencost.config import NetworkConfig
from tencost.networks.inputs import Array
from tencost.networks.source import first_sentence, network_to_onnx

PACKAGES = ("onnx", "onnxruntime", "onnxscript")


class OnnxRuntime:
    """A network in ONNX Runtime, on its CPU provider, with the graph optimizations that are on by default."""

    def __init__(self, model: bytes, inputs: Mapping[str, Array], cores: int) -> None:
        """Load a network.

        Args:
            model: a serialized onnx.ModelProto.
            inputs: arrays by name, in the order of the model's inputs; the model may name them otherwise.
            cores: threads that an operator uses.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = cores
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # fatal: everything else is raised as well
        self._session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
        names = [item.name for item in self._session.get_inputs()]
        self._feeds = dict(zip(names, inputs.values(), strict=True))
        self._session.run(None, self._feeds)

    def seconds(self, number: int = 1) -> float:
        """Return the mean seconds of so many calls."""
        begun = time.perf_counter()
        for _ in range(number):
            self._session.run(None, self._feeds)
        return (time.perf_counter() - begun) / number


def onnx_runtime(
    config: NetworkConfig,
    root: Path,
    inputs: Mapping[str, Array],
    cores: int,
    note: Callable[[str], object],
) -> OnnxRuntime | None:
    """Return a network in ONNX Runtime; None where a package is not installed, or it cannot be run there.

    Args:
        config: the network.
        root: network.path is relative to it.
        inputs: arrays by name.
        cores: threads that an operator uses.
        note: is told why the network cannot be run there.
    """
    if any(find_spec(name) is None for name in PACKAGES):
        return None
    try:
        model = network_to_onnx(config, root)
        return OnnxRuntime(model.SerializeToString(), inputs, cores)
    except Exception as error:  # noqa: BLE001 - exporters, protobuf and onnxruntime raise what they like
        note(f"ONNX Runtime is not in the table: {first_sentence(error)}")
        return None
