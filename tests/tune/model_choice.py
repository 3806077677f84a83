"""Which model `tencost tune` chooses, and what it prints of it."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from tencost.config import HardwareConfig
from tencost.config.composition import compose
from tencost.tune.inputs import choose_model


def chosen(root: Path, hardware: HardwareConfig) -> tuple[Any, str]:
    """Return the choice for hardware in a project where no model is named, and what was printed."""
    out = io.StringIO()
    cfg = replace(compose([])[0], model_uri=None, hardware=hardware)
    choice = choose_model(cfg, root, Console(file=out, width=1000))
    return choice, out.getvalue()
