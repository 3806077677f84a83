"""Parts that there are many of: model families, feature kinds, log formats, network sources.

A part is one module (or one folder) that describes itself in one attribute; its name is the module's. Adding a module
to the package adds the part; nothing else lists it. A package of one's own adds parts through an entry point:

    [project.entry-points."tencost.families"]
    my_family = "my_package.my_family"

This module knows where parts are, by name; it imports none of them until one is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import Any

from tencost.errors import ConfigError


@dataclass(frozen=True)
class Parts:
    """All parts of a kind."""

    noun: str
    """What one is called in a message."""
    package: str
    """The package whose public modules are parts."""
    attribute: str
    """The attribute of a part's module that describes it."""
    group: str
    """Entry points of this group are parts, too: name = module."""

    def modules(self) -> dict[str, str]:
        """Return the module of each part, by name, sorted; nothing is imported but the package itself."""
        return dict(sorted(_modules(self).items()))

    def names(self) -> tuple[str, ...]:
        return tuple(self.modules())

    def load(self, name: object, field: str = "") -> Any:
        """Import a part and return what describes it.

        Args:
            name: the part's name.
            field: where the name was given, for the message.

        Raises:
            ConfigError: no such part, a module that describes none, or another package's that cannot be imported.
        """
        modules = self.modules()
        if not isinstance(name, str) or name not in modules:
            raise ConfigError(
                f"{field or self.noun} must be one of {', '.join(modules)}, found {name!r}. Where a package of its own "
                f"brings it (entry points of the group {self.group}), install that"
            )
        try:
            module = import_module(modules[name])
        except ImportError as error:
            if not modules[name].startswith(f"{self.package}."):
                raise ConfigError(
                    f"expected to import {modules[name]}, which an installed package names for the {self.noun} {name}: "
                    f"{error}. Install what it needs, or remove that package"
                ) from error
            raise  # of our own: the command line says which extra brings what is missing
        try:
            return getattr(module, self.attribute)
        except AttributeError as error:
            raise ConfigError(
                f"expected {self.attribute} in {module.__name__}, which describes the {self.noun} {name}; found none"
            ) from error

    def all(self) -> dict[str, Any]:
        """Import all parts: name -> what describes it."""
        return {name: self.load(name) for name in self.modules()}


@cache
def _modules(parts: Parts) -> dict[str, str]:
    package = import_module(parts.package)
    shipped = {
        module.name: f"{parts.package}.{module.name}"
        for module in iter_modules(package.__path__)
        if not module.name.startswith("_")
    }
    others = {point.name: point.value for point in entry_points(group=parts.group)}
    for name in shipped.keys() & others.keys():
        raise ConfigError(
            f"expected another name for the {parts.noun} {name} of {others[name]}: {shipped[name]} has it already"
        )
    return {**shipped, **others}


FAMILIES = Parts("model family", "tencost.models.programs.families", "FAMILY", "tencost.families")
"""Model families, each a :class:`tencost.models.programs.ranker.Family`."""

FEATURE_KINDS = Parts("feature kind", "tencost.features.kinds", "KIND", "tencost.feature_kinds")
"""Feature kinds, each a :class:`tencost.features.rows.kind.FeatureKind`."""

NETWORK_SOURCES = Parts(
    "network source", "tencost.networks.sources", "SOURCE", "tencost.network_sources"
)
"""Where networks come from, each a :class:`tencost.networks.source.NetworkSource`."""
NETWORK_FILES = {".onnx": "onnx", ".pt2": "torch_export", ".npz": "saved"}
"""Endings of networks' files -> the source that reads such a file."""

LOG_FORMATS = Parts("log format", "tencost.records.formats", "FORMAT", "tencost.log_formats")
"""Log formats, each a :class:`tencost.records.reading.protocol.LogFormat`."""

GRAPH_FORMATS = Parts(
    "graph format", "tencost.records.network_graphs.formats", "FORMAT", "tencost.graph_formats"
)
"""Formats of whole networks with latencies, each a :class:`tencost.records.network_graphs.reading.GraphFormat`."""

GRAPH_FAMILIES = Parts(
    "graph model family", "tencost.models.networks.families", "FAMILY", "tencost.graph_families"
)
"""Families of graph models, each a :class:`tencost.models.networks.family.GraphFamily`."""

PROFILE_FORMATS = Parts(
    "profile format", "tencost.records.counters.formats", "FORMAT", "tencost.profile_formats"
)
"""Formats of hardware counters, each a :class:`tencost.records.counters.launches.ProfileFormat`."""
