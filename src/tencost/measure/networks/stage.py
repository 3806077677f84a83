"""`tencost graphs measure`: whole networks timed on this host, and a dataset of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tencost.config import Config
from tencost.config.composition import compose
from tencost.errors import ConfigError, MeasureError
from tencost.measure.networks.measuring import (
    Measured,
    TimingSettings,
    measure_networks,
    round_ratios,
)
from tencost.networks.variants.variants import Variant, defined_variants, standard_variants
from tencost.workers.hardware import resolve_hardware


def run(
    cfg: Config,
    root: Path,
    *,
    to: Path | None = None,
    count: int | None = None,
    variants: int | None = None,
    cpus: str | None = None,
    threads: int = 1,
    rounds: int = 1,
    clock: str = "wall",
) -> Measured:
    """Time the standard variants, or those of cfg.network, with ONNX Runtime; what is measured already is skipped.

    Args:
        cfg: `hardware` names the host, `network` the definition whose variants are wanted.
        root: the project's root.
        to: folder to measure into; None: measured/graphs-<hardware>.
        count: networks at most; None: all.
        variants: make that many variants of cfg.network instead of the standard ones.
        cpus: CPUs to run on, "3" or "0,1"; None: wherever the system puts them.
        threads: of ONNX Runtime.
        rounds: how often all networks are timed in turn; the quietest round of each counts.
        clock: wall or cpu.

    Raises:
        ConfigError: CPUs that this process may not use.
        MeasureError: see :func:`tencost.measure.networks.measuring.measure_networks`.
    """
    hardware = resolve_hardware(cfg.hardware).name
    folder = root / "measured" / f"graphs-{hardware}" if to is None else to
    settings = TimingSettings(
        hardware=hardware, cpus=_numbers(cpus), threads=threads, rounds=rounds, clock=clock
    )
    networks: list[Variant] = (
        standard_variants(compose)
        if variants is None
        else defined_variants(cfg.network, variants, [cfg.network.size])
    )
    networks = networks[:count]
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console,
    ) as bars:  # fmt: skip
        bar = bars.add_task(f"networks on {hardware}", total=len(networks) * rounds)

        def on_progress(name: str, line: dict[str, Any], place: int, todo: int) -> None:
            state = f"{line['latency_ms']:.3g} ms" if line["status"] == "ok" else line["status"]
            bars.update(
                bar, completed=len(networks) * rounds - todo + place, description=f"{name}: {state}"
            )

        measured = measure_networks(networks, folder, settings, on_progress)
    what = "networks" if rounds == 1 else "networks and rounds"
    console.print(
        f"{measured.ok} {what} measured, {measured.before} before, {len(measured.failed)} failed; in {folder}",
    )
    for name, why in list(measured.failed.items())[:5]:
        console.print(f"  {name}: {why}", style="yellow")
    if not measured.ok + measured.before:
        raise MeasureError(
            f"expected at least one network that could be timed, found none; see {folder}"
        )
    ratios = round_ratios(folder)
    if len(ratios):
        within = ", ".join(
            f"{share:.0%}: {np.mean(ratios <= 1 + share):.2f}" for share in (0.05, 0.1)
        )
        console.print(
            f"share of networks whose rounds agree within {within} (of {len(ratios)}). A model cannot be better than "
            "that: where it is low, use a quieter host or more rounds",
        )
    console.print(
        f"Learn from them: tencost fetch dataset=measured-graphs dataset.source={folder}, then tencost graphs records, "
        "splits, train, evaluate and register with dataset=measured-graphs",
    )
    return measured


def _numbers(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    words = text.split(",")
    if not all(word.isdecimal() for word in words):
        raise ConfigError(f"expected numbers of CPUs as --cpus, such as 3 or 0,1; found {text!r}")
    numbers = tuple(int(word) for word in words)
    if hasattr(os, "sched_getaffinity") and not os.sched_getaffinity(0) >= set(numbers):
        usable = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        raise ConfigError(f"expected CPUs of {usable} as --cpus, found {text!r:.80}")
    return numbers
