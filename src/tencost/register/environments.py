"""Where a version stands on its way to everybody: aliases beside `champion` and `challenger`, moved by people.

The promotion rule says which version is the champion. Which one a team's hosts tune with is a decision of its own:
`tencost register promote <model> --to staging`, later `--to production`. An alias is any name but those that the rule
and MLflow give a meaning. A host of an environment sets TENCOST_ALIAS (:mod:`tencost.register.aliases`), or names the
alias: models:/<name>@production. A version's tag `alias.<name>` says when it was put there last.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from tencost.errors import RegistryError, without_secrets
from tencost.register import registry
from tencost.register.aliases import ALIAS
from tencost.register.pull import registry_uri
from tencost.register.registry import CHALLENGER, CHAMPION, Version
from tencost.tracking.server_check import answering

TAG = "alias."


def run(root: Path, name: str, to: str, number: int | None = None) -> None:
    """Point an environment's alias to a version, the champion unless one is named, and say so.

    Raises:
        RegistryError: no such model or version, no registry, or an alias that is not a person's to move.
    """
    uri = registry_uri(root)
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
        raise RegistryError(
            f"there is no registry at {without_secrets(uri)}. Run `dvc repro` first."
        )
    with answering(uri):
        version, before = point(registry.connect(uri), name, to, number)
    said = f"{to} is version {version.number} ({version.semver})"
    if before is not None and before != version.number:
        said += f", it was version {before}"
    Console().print(
        f"{name}: {said}; use it: models:/{name}@{to}, or TENCOST_ALIAS={to}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def point(client: Any, name: str, to: str, number: int | None = None) -> tuple[Version, int | None]:
    """Point an alias to a version; return that, and the number that it pointed to before.

    Raises:
        RegistryError: no such model or version, no champion, or an alias that is not a person's to move.
    """
    if to in (CHAMPION, CHALLENGER) or not re.fullmatch(ALIAS, to):
        raise RegistryError(
            f"expected an environment's alias (staging, production), found {to!r}: lower-case letters, digits and "
            f"dashes, and not {CHAMPION} or {CHALLENGER}, which the promotion rule moves (to take it back: tencost "
            "register rollback)"
        )
    versions = registry.list_versions(client, name)
    if not versions:
        known = ", ".join(registry.list_models(client)) or "none"
        raise RegistryError(f"the registry has no model {name!r}; it has: {known}.")
    wanted = [
        item
        for item in versions
        if (CHAMPION in item.aliases if number is None else item.number == number)
    ]
    if not wanted:
        have = ", ".join(str(item.number) for item in versions)
        missing = "champion" if number is None else f"version {number}"
        raise RegistryError(
            f"model {name!r} has no {missing}; versions: {have}. Name one: tencost register promote {name} <version> "
            f"--to {to}"
        )
    before = next((item.number for item in versions if to in item.aliases), None)
    chosen = wanted[0]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    client.set_model_version_tag(name, str(chosen.number), f"{TAG}{to}", now)
    client.set_registered_model_alias(name, to, str(chosen.number))
    return chosen, before
