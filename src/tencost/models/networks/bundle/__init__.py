"""Bundles of graph models; the format is that of :mod:`tencost.models.manifest`, with `kind` "graphs".

One training learns several devices; the registered model of a device is the same folder with `hardware` set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tencost.config.graphs import graph_model_config
from tencost.config.parts import GRAPH_FAMILIES
from tencost.errors import BundleError
from tencost.models import manifest
from tencost.models.manifest import (
    FORMAT_VERSION,
    GRAPHS,
    UNFIT_PARTS,
    BundleFacts,
    check_files,
    check_types,
    content_digest,
    hash_weights,
    plain_config,
    read_kind,
    save_bundle,
    unfit,
    write_manifest,
)
from tencost.models.networks.family import GraphModel
from tencost.networks.graph.graph_set import GraphSet
from tencost.networks.graph.operators import OPERATOR_CODES
from tencost.writing import whole_folder

__all__ = [
    "GRAPH_ABI",
    "SEEN",
    "GraphBundle",
    "GraphBundleInfo",
    "content_digest",
    "device_index",
    "graph_training_digest",
    "load_graph_bundle",
    "plain_config",
    "read_graph_info",
    "register_for",
    "save_bundle",
]  # fmt: skip
GRAPH_ABI = 1
"""Of the vocabulary of operators and the columns of a node; appending an operator keeps it."""
SEEN = "seen.json"
"""File of a bundle: what its model has learnt from
(:class:`tencost.models.networks.bundle.training_range.TrainingRange`)."""
_FIELD_TYPES: dict[str, Any] = {
    **dict.fromkeys(("family", "dataset", "dataset_hash", "split", "split_hash", "hardware"), str),
    **{name: {} for name in ("model_config", "versions", "metrics")},
    "devices": [str],
    "log_error": {"": [float]},
    "files": {"": str},
}
"""What JSON values the fields of bundle.json have, see :func:`tencost.models.manifest.check_types`."""


@dataclass(frozen=True, kw_only=True)
class GraphBundleInfo(BundleFacts):
    """What bundle.json says of a graph model; its family is a name of GRAPH_FAMILIES."""

    devices: tuple[str, ...]
    """Hardware that it predicts, in the order of its outputs."""
    hardware: str = ""
    """The device that it is registered for; empty before."""
    log_error: dict[str, list[float]] = field(default_factory=dict)
    """Device -> bounds of log(measured / predicted) on graphs that were not learnt from (two; none without a latency),
    see :func:`tencost.models.networks.bundle.training_range.log_error_bounds`."""
    abi: int = GRAPH_ABI
    """GRAPH_ABI of the code that wrote it."""
    kind: str = GRAPHS
    """GRAPHS."""

    def deciding(self, files: Mapping[str, str]) -> dict[str, Any]:
        names = (
            "abi", "dataset_hash", "devices", "family", "hardware", "log_error", "model_config", "split_hash",
        )  # fmt: skip
        return {"files": files, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True)
class GraphBundle:
    """A loaded graph model."""

    folder: Path
    """Where it was loaded from."""
    info: GraphBundleInfo
    """What its bundle.json says."""
    model: GraphModel
    """The model itself."""

    def predict_ms(self, graphs: GraphSet, hardware: str = "") -> NDArray[np.float64]:
        """Return milliseconds, float64 [G].

        Args:
            graphs: what to predict.
            hardware: one of `info.devices`; empty means the one that it is registered for.

        Raises:
            BundleError: it was not trained for that hardware.
        """
        return self.model.predict(graphs)[
            :, device_index(self.info, hardware or self.info.hardware)
        ]


def device_index(info: GraphBundleInfo, hardware: str) -> int:
    """Return the column of a device.

    Raises:
        BundleError: the model was not trained for it.
    """
    if hardware not in info.devices:
        raise BundleError(
            f"expected one of {', '.join(info.devices)}, which this model was trained for; found {hardware!r}"
        )
    return info.devices.index(hardware)


def register_for(
    folder: Path, hardware: str, target: Path, extra: Mapping[str, bytes] | None = None
) -> GraphBundleInfo:
    """Copy a bundle and set the device that it is registered for.

    Args:
        folder: of the bundle.
        hardware: the device.
        target: folder of the copy.
        extra: further files by name (.json).

    Raises:
        BundleError: it was not trained for that hardware.
    """
    info = read_graph_info(folder)
    device_index(info, hardware)
    with whole_folder(target) as content:
        for name in info.files:
            (content / name).write_bytes((folder / name).read_bytes())
        for name, text in (extra or {}).items():
            (content / name).write_bytes(text)
        registered = replace(info, hardware=hardware, files=hash_weights(content))
        write_manifest(content, registered.to_dict())
    return registered


def graph_training_digest(folder: Path) -> str:
    """Return the digest of all bundles of a training, see :func:`tencost.models.manifest.digest_training`."""
    return manifest.digest_training(folder, read_graph_info)


def read_graph_info(folder: Path) -> GraphBundleInfo:
    """Read and check bundle.json alone.

    Raises:
        BundleError: missing, not JSON, of programs, of another version, or a field is missing or of another type.
    """
    values = read_kind(folder, GRAPHS, {"format_version": FORMAT_VERSION, "abi": GRAPH_ABI})
    try:
        check_types(values, _FIELD_TYPES)
        info = GraphBundleInfo(**{**values, "devices": tuple(values["devices"])})
    except (KeyError, TypeError) as error:
        raise BundleError(
            f"bundle {folder}: {manifest.MANIFEST} lacks or misspells a field: {error}"
        ) from error
    known_device = bool(info.devices) and info.hardware in ("", *info.devices)
    if not known_device or any(len(bounds) not in (0, 2) for bounds in info.log_error.values()):
        raise BundleError(
            f"bundle {folder}: {manifest.MANIFEST} lacks or misspells a field: devices, hardware or log_error"
        )
    return info


def load_graph_bundle(folder: Path) -> GraphBundle:
    """Check a bundle completely, load it and let it predict one made-up network. Nothing in it can execute code.

    Raises:
        BundleError: the bundle is damaged or does not fit this code; the message names the part.
    """
    folder = Path(folder)
    info = read_graph_info(folder)
    check_files(folder, info.files)
    try:
        config = graph_model_config(info.model_config, "model_config.")
        model: GraphModel = GRAPH_FAMILIES.load(info.family).make(config, len(info.devices))
        model.load(folder)
        latencies = model.predict(_smallest())
    except BundleError:
        raise
    except UNFIT_PARTS as error:
        raise unfit(folder, error) from error
    if (
        latencies.shape != (1, len(info.devices))
        or not (np.isfinite(latencies) & (latencies > 0)).all()
    ):
        raise BundleError(
            f"bundle {folder}: expected positive latencies of a small network, found {latencies.tolist()}. "
            "Pull or train it again."
        )
    return GraphBundle(folder, info, model)


def _smallest() -> GraphSet:
    """Return a network of one convolution."""
    columns = np.zeros((2, 16), dtype=np.int32)
    columns[0, 11:16] = (1, 8, 8, 3, 0)
    columns[1] = (1, 8, 8, 3, 0, 3, 3, 3, 4, 1, 1, 1, 8, 8, 4, 0)
    return GraphSet(
        graph_id=np.array(["g"]),
        family=np.array(["made_up"]),
        name=np.array(["made_up"]),
        position=np.zeros(1, np.int32),
        operator=np.array([OPERATOR_CODES["Placeholder"], OPERATOR_CODES["Conv2D"]], np.uint8),
        columns=columns,
        node_start=np.array([0, 2]),
        edges=np.array([[0], [1]], np.int32),
        edge_start=np.array([0, 1]),
    )
