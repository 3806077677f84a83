"""`tencost graphs latency`: what a network takes on a device, asked of a registered model."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

from tencost.config import Config
from tencost.graphs.bundle import load_graph_bundle
from tencost.graphs.canonical import canonical_network
from tencost.graphs.latency import COVERAGE, Answer, ask
from tencost.graphs.stages.register import model_name
from tencost.networks.source import network_to_onnx
from tencost.register.pull import pull


def run(cfg: Config, root: Path, *, top: int = 10, as_json: bool = False) -> Answer:
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
    uri = cfg.model_uri or f"models:/{model_name(hardware)}@champion"
    bundle = load_graph_bundle(pull(uri, root=root))
    name = cfg.network.name or Path(cfg.network.path).stem
    network = canonical_network(network_to_onnx(cfg.network, root), name=name)
    answer = ask(bundle, network.graphs, hardware, network.other)
    if as_json:
        option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        sys.stdout.write(orjson.dumps(answer.to_dict(top), option=option).decode())
    else:
        _print(answer, uri, top)
    return answer


def _print(answer: Answer, uri: str, top: int) -> None:
    console = Console(highlight=False, soft_wrap=True)
    interval = (
        ""
        if answer.low_ms is None
        else f", {COVERAGE:.0%} interval {_ms(answer.low_ms)} to {_ms(answer.high_ms)}"
    )
    console.print(f"{answer.name} on {answer.hardware}: {_ms(answer.latency_ms)}{interval} ({uri})")
    if answer.unseen:
        console.print(
            f"The model has not seen {len(answer.unseen)} things of it, so it may be further off:",
            style="yellow",
        )
        for line in answer.unseen[:top]:
            console.print(f"  {line}", style="yellow")
        if len(answer.unseen) > top:
            console.print(f"  and {len(answer.unseen) - top} more", style="yellow")
    if answer.costs:
        table = Table(
            title=f"the costliest of {len(answer.costs)} operators",
            title_justify="left",
            show_edge=False,
            pad_edge=False,
        )
        for heading in ("ms", "share"):
            table.add_column(heading, justify="right")
        for heading in ("operator", "input -> output"):
            table.add_column(heading)
        for cost in answer.costs[:top]:
            share = cost.latency_ms / answer.latency_ms
            table.add_row(f"{cost.latency_ms:.3g}", f"{share:.1%}", cost.operator, cost.shape)
        console.print(table)


def _ms(value: float | None) -> str:
    return f"{value:.4g} ms"
