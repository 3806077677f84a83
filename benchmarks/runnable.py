"""The hardware that a benchmark compiles for and runs on: this host, or one whose instruction sets this host has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tencost.config import Config
from tencost.config.composition import compose
from tencost.workers.hardware import check_device, resolve_hardware


def compose_runnable(words: Sequence[str]) -> tuple[Config, Path]:
    """Compose a configuration and check its hardware, before anything compiled for it is called.

    Returns:
        The configuration, its hardware resolved, and the project's folder.

    Raises:
        HardwareError: the host lacks instruction sets or the device of the hardware; a call would end the process.
    """
    cfg, root = compose(list(words))
    hardware = resolve_hardware(cfg.hardware)
    check_device(hardware)
    return replace(cfg, hardware=hardware), root
