"""The old name of :mod:`tencost.lorien.api`, to the right of this room: imported when it is asked for."""

import warnings
from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    warnings.warn(
        "tencost.records.lorien is tencost.lorien.api now", DeprecationWarning, stacklevel=2
    )
    return getattr(import_module("tencost.lorien.api"), name)
