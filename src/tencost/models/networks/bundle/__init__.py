"""A trained graph model as a folder: weights and what is needed to use them; nothing in it can run code.

The format is that of :mod:`tencost.models.programs.bundle`; bundle.json has `kind` "graphs" and the fields of
GraphBundleInfo. One training learns several devices; the registered model of a device is the same folder with
`hardware` set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from tencost.config.graphs import GraphModelConfig, graph_model_config
from tencost.config.parts import GRAPH_FAMILIES
from tencost.errors import BundleError, TencostError
from tencost.models.manifest import check_files, hash_weights, read_manifest, write_manifest
from tencost.models.networks.family import GraphModel
from tencost.networks.graph.graph_set import GraphSet
from tencost.networks.graph.operators import OPERATOR_CODES
from tencost.writing import whole_folder

KIND = "graphs"
FORMAT_VERSION = 1
GRAPH_ABI = 1
"""Of the vocabulary of operators and the columns of a node; appending an operator keeps it."""
SEEN = "seen.json"
"""File of a bundle: what its model has learnt from
(:class:`tencost.models.networks.bundle.training_range.TrainingRange`)."""


@dataclass(frozen=True, kw_only=True)
class GraphBundleInfo:
    """What bundle.json says."""

    family: str
    """Model family, a name of GRAPH_FAMILIES."""
    model_config: dict[str, Any]
    """The family's settings as plain JSON values."""
    devices: tuple[str, ...]
    """Hardware that it predicts, in the order of its outputs."""
    dataset: str
    """Name of the raw dataset."""
    dataset_hash: str
    """Content hash of the graphs and latencies."""
    split: str
    """Name of the split."""
    split_hash: str
    """Content hash of which graph is on which side."""
    seed: int
    """Seed of the training."""
    hardware: str = ""
    """The device that it is registered for; empty before."""
    log_error: dict[str, list[float]] = field(default_factory=dict)
    """Device -> bounds of log(measured / predicted) on graphs that were not learnt from (two; none without a latency),
    see :func:`tencost.models.networks.bundle.training_range.log_error_bounds`."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of tencost, torch, xgboost, numpy that made it."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the validation part."""
    files: dict[str, str] = field(default_factory=dict)
    """File name -> sha256 in hex; filled by save_graph_bundle."""
    abi: int = GRAPH_ABI
    """GRAPH_ABI of the code that wrote it."""
    kind: str = KIND
    """KIND."""
    format_version: int = FORMAT_VERSION
    """FORMAT_VERSION of the code that wrote it."""


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


def plain_settings(config: GraphModelConfig) -> dict[str, Any]:
    """Return a family's settings as plain JSON values."""
    assert is_dataclass(config)
    return {
        name: value.value if isinstance(value, Enum) else value
        for name, value in asdict(config).items()
    }


def save_graph_bundle(
    folder: Path,
    model: GraphModel,
    info: GraphBundleInfo,
    extra: Mapping[str, bytes] | None = None,
) -> GraphBundleInfo:
    """Write a bundle; the folder appears whole or not at all, an older one there is replaced.

    Args:
        folder: of the bundle.
        model: trained.
        info: all but `files`.
        extra: further files by name (.json).

    Returns:
        The info as written.
    """
    with whole_folder(folder) as content:
        model.save(content)
        for name, text in (extra or {}).items():
            (content / name).write_bytes(text)
        written = replace(info, files=hash_weights(content))
        write_manifest(content, _values(written))
    return written


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
        own = replace(info, hardware=hardware, files=hash_weights(content))
        write_manifest(content, _values(own))
    return own


def graph_digest(info: GraphBundleInfo) -> str:
    """Return the sha256, hex, of what decides a bundle's predictions."""
    names = (
        "abi", "dataset_hash", "devices", "family", "files", "hardware", "log_error", "model_config", "split_hash",
    )  # fmt: skip
    content = {name: getattr(info, name) for name in names}
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def training_digest(folder: Path) -> str:
    """Return the sha256, hex, of all bundles of a training (`seed<k>/` in a folder): its MLflow run carries it."""
    digests = sorted(
        graph_digest(read_graph_info(path.parent)) for path in folder.glob("*/bundle.json")
    )
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def read_graph_info(folder: Path) -> GraphBundleInfo:
    """Read and check bundle.json alone.

    Raises:
        BundleError: missing, not JSON, of programs, of another version, or a field is missing or of another type.
    """
    values = read_manifest(folder)
    kind = values.get("kind", "programs")
    if kind != KIND:
        raise BundleError(
            f"bundle {folder}: expected a model of whole networks, found one of {kind}. "
            "See `tencost register status` for what there is."
        )
    for name, expected in (("format_version", FORMAT_VERSION), ("abi", GRAPH_ABI)):
        if values.get(name) != expected:
            raise BundleError(
                f"bundle {folder}: expected {name} {expected}, found {values.get(name)!r}. "
                "Use the tencost release that wrote it, or train the model again."
            )
    wanted = {item.name for item in fields(GraphBundleInfo)}
    if set(values) != wanted:
        odd = ", ".join(sorted(set(values) ^ wanted))
        raise BundleError(f"bundle {folder}: bundle.json lacks or misspells a field: {odd}")
    _check_types(folder, values)
    return GraphBundleInfo(**{**values, "devices": tuple(values["devices"])})


def load_graph_bundle(folder: Path) -> GraphBundle:
    """Check a bundle completely, load it and let it predict one made-up network. Nothing in it can execute code.

    Raises:
        BundleError: one of its refusals, naming what does not fit.
    """
    folder = Path(folder)
    info = read_graph_info(folder)
    check_files(folder, info.files)
    try:
        config = graph_model_config(info.model_config, "model_config.")
        model: GraphModel = GRAPH_FAMILIES.load(info.family).make(config, len(info.devices))
        model.load(folder)
        found = model.predict(_smallest())
    except BundleError:
        raise
    except (
        TencostError, OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError,
        AssertionError, MemoryError, RecursionError, RuntimeError,
    ) as error:  # fmt: skip
        raise BundleError(
            f"bundle {folder}: its parts do not fit together ({type(error).__name__}: {error}). Pull or train it again."
        ) from error
    if found.shape != (1, len(info.devices)) or not (np.isfinite(found) & (found > 0)).all():
        raise BundleError(
            f"bundle {folder}: expected positive latencies of a small network, found {found.tolist()}. "
            "Pull or train it again."
        )
    return GraphBundle(folder, info, model)


def _values(info: GraphBundleInfo) -> dict[str, Any]:
    return {**asdict(info), "devices": list(info.devices)}


def _check_types(folder: Path, values: Mapping[str, Any]) -> None:
    texts = ("family", "dataset", "dataset_hash", "split", "split_hash", "hardware")
    tables = ("model_config", "log_error", "versions", "metrics", "files")
    devices = values["devices"]
    error_rows = values["log_error"].values() if isinstance(values["log_error"], dict) else []
    fits = (
        all(isinstance(values[name], str) for name in texts)
        and all(isinstance(values[name], dict) for name in tables)
        and isinstance(devices, list)
        and len(devices) > 0
        and all(isinstance(name, str) for name in devices)
        and values["hardware"] in ("", *devices)
        and all(isinstance(row, list) and _are_bounds(row) for row in error_rows)
        and all(isinstance(digest, str) for digest in values["files"].values())
    )
    if not fits:
        raise BundleError(
            f"bundle {folder}: bundle.json has a field of another type. Pull or train it again."
        )


def _are_bounds(row: Sequence[Any]) -> bool:
    return len(row) in (0, 2) and all(isinstance(value, float | int) for value in row)


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
