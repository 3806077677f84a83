"""The networks that measure.networks lists: every combination of each entry's values, as definitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from tencost.config import NetworkConfig
from tencost.config.checking import instantiate
from tencost.config.composition import choice_names, choice_values
from tencost.errors import ConfigError


def listed_networks(entries: Sequence[dict[str, Any]]) -> Iterator[NetworkConfig]:
    """Yield the definitions in order of the list.

    Args:
        entries: field of NetworkConfig (or ``network``: a file of conf/network/) -> its value, or a list of values.

    Raises:
        ConfigError: nothing is listed, an entry names no network, or a definition does not fit.
    """
    if not entries:
        raise ConfigError(
            "measure.networks: expected a list of networks for --listed, found none. Choose one: measure=tenset"
        )
    for number, entry in enumerate(entries):
        if "network" not in entry:
            raise ConfigError(
                f"measure.networks[{number}]: expected network, a name of conf/network/; found only "
                f"{', '.join(entry) or 'an empty entry'}"
            )
        values = [value if isinstance(value, list) else [value] for value in entry.values()]
        for combination in product(*values):
            yield _definition(dict(zip(entry, combination, strict=True)), number)


def _definition(fields: dict[str, Any], number: int) -> NetworkConfig:
    """Return a definition with these fields; composing all of conf/ for each network would take half a minute."""
    from omegaconf import OmegaConf

    choice = fields.pop("network")
    settings = choice_values("network", choice)
    if not settings:
        raise ConfigError(
            f"measure.networks[{number}].network must be one of {', '.join(choice_names('network'))}; "
            f"found {choice!r}"
        )
    tree = OmegaConf.create({"network": settings})
    for key, value in fields.items():
        OmegaConf.update(tree, f"network.{key}", value)
    resolved: Any = OmegaConf.to_container(tree, resolve=True)
    return instantiate(NetworkConfig, resolved["network"], "network.")
