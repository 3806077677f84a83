"""Latencies of whole networks in scripts: ``tencost.load_graph_model(uri).predict_ms(tencost.graphs_of(path))``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from tencost.config import NetworkConfig
from tencost.models.networks.bundle import GraphBundle, load_graph_bundle
from tencost.networks.graph.canonical import canonical_network
from tencost.networks.graph.graph_set import GraphSet, concatenate
from tencost.networks.source import network_to_onnx
from tencost.register.pull import pull


def load_graph_model(uri: str) -> GraphBundle:
    """Return a registered graph model.

    Args:
        uri: models:/tencost-graph-<hardware>@champion, models:/name/version, runs:/run/path, or a bundle's folder.

    Raises:
        RegistryError: no such model, or the registry is down and nothing was pulled before.
        BundleError: it is damaged, or a model of programs.
    """
    return load_graph_bundle(pull(uri))


def graphs_of(*networks: Path | str | Any) -> GraphSet:
    """Return the graphs of some networks, in the order given.

    A network with operators or settings that a graph cannot state (a dilation, say) gives a UserWarning that names
    them: models predict as if they were not there.

    Args:
        networks: paths of ONNX files, or onnx.ModelProto.

    Raises:
        ConfigError: a file is missing or damaged, or its shapes cannot be inferred.
    """
    return concatenate([_graph(network) for network in networks])


def _graph(network: Path | str | Any) -> GraphSet:
    if isinstance(network, Path | str):
        path = Path(network)
        config = NetworkConfig(name=path.stem, source="onnx", path=str(path.resolve()))
        canonical = canonical_network(network_to_onnx(config, weights=False), name=path.stem)
    else:
        canonical = canonical_network(network, name=str(network.graph.name))
    unmodelled = canonical.unmodelled()
    if unmodelled:
        name = str(canonical.graphs.name[0])
        warnings.warn(f"{name}: {'; '.join(unmodelled)}", UserWarning, stacklevel=3)
    return canonical.graphs
