"""Old names of modules that users import: they are found where they are now, with one warning.

``import tencost`` puts the finder first among Python's, so that a submodule of a moved package is the module at the new
place, too, and not a second copy of it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

MOVED = {
    "tencost.compat.lorien.rows": "tencost.compat.lorien.containers",
    "tencost.features.ragged": "tencost.features.rows.ragged",
    "tencost.graphs.adapt": "tencost.adapt.graph_correction",
    "tencost.graphs.api": "tencost.register.latency.api",
    "tencost.graphs.bundle": "tencost.models.networks.bundle",
    "tencost.graphs.cg": "tencost.compat.cg",
    "tencost.graphs.family": "tencost.models.networks.family",
    "tencost.graphs.graph_set": "tencost.networks.graph.graph_set",
    "tencost.graphs.metrics": "tencost.models.networks.bundle.latency_metrics",
    "tencost.graphs.operators": "tencost.networks.graph.operators",
    "tencost.graphs.promotion": "tencost.register.networks.promotion",
    "tencost.lorien": "tencost.compat.lorien",
    "tencost.measure.runner": "tencost.workers.runner",
    "tencost.measure.server": "tencost.workers.server",
    "tencost.models.networks.latency_metrics": "tencost.models.networks.bundle.latency_metrics",
    "tencost.profiles.features": "tencost.features.counters",
    "tencost.profiles.joining": "tencost.records.counters.joining",
    "tencost.profiles.launches": "tencost.records.counters.launches",
    "tencost.profiles.metrics": "tencost.records.counters.metrics",
    "tencost.profiles.perf": "tencost.tune.roofline.perf",
    "tencost.profiles.programs": "tencost.records.counters.programs",
    "tencost.profiles.reading": "tencost.records.counters.reading",
    "tencost.profiles.stored": "tencost.records.counters.stored",
    "tencost.profiles.table": "tencost.records.counters.table",
    "tencost.programs.allowed": "tencost.programs.trace.allowed",
    "tencost.records.lorien": "tencost.compat.lorien.api",
    "tencost.records.networks": "tencost.records.network_times.timing",
    "tencost.records.store": "tencost.store.record_store",
    "tencost.store.allowed": "tencost.programs.trace.allowed",
    "tencost.train.bundle": "tencost.models.programs.bundle",
    "tencost.train.ranker": "tencost.models.programs.ranker",
}
"""Old name of a module, or of a package with all that is in it -> new name.

They are the modules that the documentation named, and those that the copies of pyfunc.py in registered versions import:
tencost.train.bundle, tencost.graphs.bundle, tencost.graphs.graph_set and tencost.graphs.operators.
"""

PACKAGES = frozenset({"tencost.graphs", "tencost.profiles"})
"""Packages that are gone: empty ones stand for them, so that the old names of their modules are looked for."""


def new_name(name: str) -> str | None:
    """Return the present name of a module by its old one; None for a name that is not old."""
    for old, new in MOVED.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return None


class OldNames:
    """A finder and loader of Python's import system: finds modules by their old names, loads those that they are now.

    It is no subclass of the classes in ``importlib.abc``, which take longer to import than all of ``import tencost``.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname not in PACKAGES and new_name(fullname) is None:
            return None
        return ModuleSpec(fullname, cast("Loader", self), is_package=fullname in PACKAGES)

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python: the module made is replaced by `exec_module`."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name in PACKAGES:
            return
        _warn(name)
        sys.modules[name] = import_module(_present(name))

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of the module, which ``python -m`` runs."""
        from importlib.abc import InspectLoader
        from importlib.util import find_spec

        present = _present(fullname)
        spec = find_spec(present)
        assert spec is not None
        assert isinstance(spec.loader, InspectLoader)
        return spec.loader.get_code(present)


def install_finder() -> None:
    """Let old names be found; once a process, however often it is called."""
    if not any(isinstance(finder, OldNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldNames())


def _present(name: str) -> str:
    present = new_name(name)
    assert present is not None
    return present


def _warn(name: str) -> None:
    """Warn where the import stands; modules of a moved package are silent: the package itself has warned."""
    if name in MOVED:
        text = f"{name} is {MOVED[name]} now: import it from there"
        warnings.warn(text, DeprecationWarning, stacklevel=3)
