"""`tencost graphs latency`: what a network takes on a device, asked of a registered model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from tencost.config import Config
from tencost.errors import BundleError
from tencost.evaluate.networks import left_out
from tencost.evaluate.networks.left_out import FamilyErrorBounds, left_out_from_json
from tencost.models.networks.bundle import SEEN, GraphBundle, device_index, load_graph_bundle
from tencost.models.networks.bundle.training_range import range_from_json
from tencost.networks.graph.canonical import CanonicalNetwork, canonical_network
from tencost.networks.source import network_to_onnx
from tencost.register.latency.prediction import Latency, predict_latency
from tencost.register.pull import default_alias, pull

T = TypeVar("T")
_WIDE = 160
"""Characters of a line that no terminal shows: a row stays one."""


def run(cfg: Config, root: Path, *, top: int = 10, as_json: bool = False) -> Latency:
    """Predict the latency of cfg.network on cfg.hardware and print it.

    Args:
        cfg: names network, hardware and (`model_uri`) the model; its champion unless given.
        root: the project's root.
        top: how many of the costliest operators are shown.
        as_json: print JSON instead.

    Raises:
        RegistryError: no such model.
        BundleError: it is not for that hardware.
        ConfigError: the network's file is damaged, or its shapes cannot be inferred.
    """
    hardware = cfg.hardware.name
    # Spelt out: the stage `register` needs polars, and who asks for a latency has none.
    uri = cfg.model_uri or f"models:/tencost-graph-{hardware}@{default_alias()}"
    bundle = load_graph_bundle(pull(uri, root=root))
    name = cfg.network.name or Path(cfg.network.path).stem
    network = canonical_network(network_to_onnx(cfg.network, root, weights=False), name=name)
    answer = ask(bundle, network, hardware, top)
    if as_json:
        values = {"network": name, "model": uri, **asdict(answer)}
        option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        sys.stdout.write(orjson.dumps(values, option=option).decode())
    else:
        print_latency(name, answer, uri)
    return answer


def ask(bundle: GraphBundle, network: CanonicalNetwork, hardware: str, top: int) -> Latency:
    """Return a bundle's answer for one network on one device.

    Raises:
        BundleError: the model was not trained for that hardware, or does not say what it has learnt from.
    """
    info = bundle.info
    device = device_index(info, hardware)
    low, high = info.log_error.get(hardware) or (np.nan, np.nan)
    return predict_latency(
        network.graphs,
        bundle.model,
        hardware,
        device,
        (low, high),
        _parsed(bundle.folder / SEEN, range_from_json, "what the model has learnt from"),
        top=top,
        unmodelled=network.unmodelled(),
        left_out=_left_out(bundle, hardware),
    )


def _left_out(bundle: GraphBundle, hardware: str) -> FamilyErrorBounds | None:
    """Return the errors on families held out, which a bundle holds of the device that it is registered for."""
    path = bundle.folder / left_out.FILE
    if bundle.info.hardware != hardware or not path.exists():
        return None
    return _parsed(path, left_out_from_json, "the errors on families held out")


def _parsed(path: Path, parse: Callable[[Any], T], content: str) -> T:
    """Return what a JSON file of a bundle holds; raises BundleError for something else."""
    try:
        return parse(orjson.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise BundleError(f"{path}: expected {content}, found {error}") from error


def print_latency(name: str, answer: Latency, uri: str) -> None:
    """Print an answer for a person.

    Args:
        name: of the network.
        answer: for one device.
        uri: of the model that gave it.
    """
    width = None if sys.stdout.isatty() else _WIDE
    console = Console(highlight=False, soft_wrap=True, width=width)
    interval = ""
    if not np.isnan(answer.low):
        interval = f", {answer.coverage:.0%} interval {answer.low:.4g} to {answer.high:.4g} ms"
    console.print(f"{name} on {answer.hardware}: {answer.ms:.4g} ms{interval} ({uri})")
    if answer.basis:
        console.print(answer.basis, style="yellow" if answer.warnings else None)
    if answer.warnings:
        lines = ["The model has not learnt from networks with this:"]
        lines += [f"  {warning}" for warning in answer.warnings[:10]]
        if len(answer.warnings) > 10:
            lines.append(f"  and {len(answer.warnings) - 10} more; --json has all")
        console.print("\n".join(lines), style="yellow")
    if answer.costliest:
        table = Table(
            title="the costliest operators", title_justify="left", show_edge=False, pad_edge=False
        )
        for heading in ("ms", "share"):
            table.add_column(heading, justify="right")
        for heading in ("operator", "sizes"):
            table.add_column(heading)
        for cost in answer.costliest:
            table.add_row(f"{cost.ms:.3g}", f"{cost.share:.1%}", cost.operator, cost.sizes)
        console.print(table)
