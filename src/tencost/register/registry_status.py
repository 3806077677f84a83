"""`tencost register status`, `promote` and `rollback`: the registry for people and for scripts.

The promotion rule says which version is the champion. Which one a team's hosts tune with is a decision of its own:
`tencost register promote <model> --to staging`, later `--to production`. An alias is any name but those that the rule
and MLflow give a meaning. A host of an environment sets TENCOST_ALIAS (:func:`tencost.register.pull.default_alias`),
or names the alias: models:/<name>@production. A version's tag `alias.<name>` says when it was put there last.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tencost.errors import RegistryError, without_secrets
from tencost.evaluate.leaderboard_table import wide
from tencost.evaluate.scoring import HEADINGS, HEADLINE
from tencost.register import notes, registry
from tencost.register.pull import ALIAS, CHALLENGER, CHAMPION, is_absent, registry_uri
from tencost.register.registry import Version
from tencost.register.verdict import NO
from tencost.tracking.server_check import explain_server_errors

ALIAS_TAG = "alias."
_FIGURES = {name: HEADINGS[name] for name in ("geo1", "top1", "top5", "search_score")}
_GRAPH_FIGURES = {"acc10": "acc10", "mape": "MAPE"}
"""Of models of whole networks."""


def print_json(root: Path) -> None:
    """Print every version of every registered model as JSON, the newest of a model first.

    Numbers that are not known are null: versions of an older tencost have no gains and no times. A gain is over the
    champion at that time, the mean over seeds with its 95 % interval.

    Raises:
        RegistryError: the registry does not answer.
    """
    rows = [_json(version) for _, versions in _models(root) for version in versions]
    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    sys.stdout.write(orjson.dumps(rows, option=option).decode())


def print_status(root: Path, console: Console | None = None) -> None:
    """Print every version of every registered model, the newest first; under one that was refused, why.

    Raises:
        RegistryError: the registry does not answer.
    """
    console = wide(console)
    models = _models(root)
    if not models:
        console.print(
            f"no model is registered in {without_secrets(registry_uri(root))}; `tencost register` does it"
        )
    for name, versions in models:
        _print_model(console, name, versions)


def print_champions(root: Path, console: Console | None = None) -> None:
    """Print one line a registered model: its champion and how to use it.

    Raises:
        RegistryError: the registry does not answer.
    """
    console = wide(console)
    for name, versions in _models(root):
        champion = registry.with_alias(versions, CHAMPION)
        text = "no champion yet, see `tencost register status`"
        if champion is not None:
            family = champion.tags.get("family", "")
            text = f"champion is version {champion.number} ({champion.semver}, {family}); "
            text += f"use it: models:/{name}@champion"
        console.print(f"{name}: {text}", highlight=False)


def rollback_and_print(root: Path, name: str, number: int | None = None) -> None:
    """Point the champion alias back, to a version or to the champion before, and print that.

    Raises:
        RegistryError: no such model or version, no earlier champion, or no registry.
    """
    with _existing_registry(root) as client:
        before = registry.find_champion(client, name)
        version = registry.rollback(client, name, number)
    text = f"champion is version {version.number} ({version.semver})"
    if before is not None and before.number == version.number:
        text = f"version {version.number} ({version.semver}) is the champion already"
    elif before is not None:
        text += f" again, it was version {before.number} ({before.semver})"
    Console().print(f"{name}: {text}", highlight=False, soft_wrap=True)


def promote_and_print(root: Path, name: str, alias: str, number: int | None = None) -> None:
    """Point an environment's alias to a version, the champion unless one is named, and print that.

    Raises:
        RegistryError: no such model or version, no registry, or an alias that is not a person's to move.
    """
    with _existing_registry(root) as client:
        version, before = point_alias(client, name, alias, number)
    text = f"{alias} is version {version.number} ({version.semver})"
    if before is not None and before != version.number:
        text += f", it was version {before}"
    text += f"; use it: models:/{name}@{alias}, or TENCOST_ALIAS={alias}"
    Console().print(f"{name}: {text}", highlight=False, soft_wrap=True)


def point_alias(
    client: Any, name: str, alias: str, number: int | None = None
) -> tuple[Version, int | None]:
    """Point an alias to a version; return that, and the number that it pointed to before.

    Raises:
        RegistryError: no such model or version, no champion, or an alias that is not a person's to move.
    """
    if alias in (CHAMPION, CHALLENGER) or not re.fullmatch(ALIAS, alias):
        raise RegistryError(
            f"expected an environment's alias (staging, production), found {alias!r}: lower-case letters, digits and "
            f"dashes, and not {CHAMPION} or {CHALLENGER}, which the promotion rule moves (to take it back: tencost "
            "register rollback)"
        )
    versions = registry.existing_versions(client, name)
    if number is None:
        champion = registry.with_alias(versions, CHAMPION)
        if champion is None:
            numbers = ", ".join(str(version.number) for version in versions)
            raise RegistryError(
                f"model {name!r} has no champion; versions: {numbers}. Name one: tencost register promote {name} "
                f"<version> --to {alias}"
            )
        number = champion.number
    version, before = registry.numbered(versions, number), registry.with_alias(versions, alias)
    client.set_model_version_tag(name, str(version.number), f"{ALIAS_TAG}{alias}", registry.now())
    client.set_registered_model_alias(name, alias, str(version.number))
    return version, None if before is None else before.number


def _print_model(console: Console, name: str, versions: list[Version]) -> None:
    of_graphs = any("acc10" in version.tags for version in versions)
    figures = _GRAPH_FIGURES if of_graphs else _FIGURES
    headings = ("version", "semver", "aliases", "family", "features", *figures.values())
    table = Table(
        *headings, "verdict", "champion since",
        title=name, title_justify="left", show_edge=False, pad_edge=False,
    )  # fmt: skip
    for version in versions:
        tags, is_champion = version.tags, CHAMPION in version.aliases
        rolled_back = registry.ROLLED_BACK_TAG in tags
        table.add_row(
            str(version.number),
            version.semver,
            ", ".join(version.aliases),
            *(tags.get(tag, "") for tag in ("family", "features", *figures)),
            "rolled back" if rolled_back else tags.get(registry.VERDICT_TAG, ""),
            tags.get(registry.PROMOTED_TAG, "") if is_champion else "",
            style="bold" if is_champion else "",
        )
    console.print(table)
    for version in versions:
        for style, line in _lines(version):
            console.print(Text(line, style), soft_wrap=True)
    console.print()


def _lines(version: Version) -> list[tuple[str, str]]:
    """Return the lines about a version below the table, (style, line) each: key numbers, and why it was refused."""
    tags, lines, numbers = version.tags, [], []
    label = f"version {version.number} ({version.semver})"
    if opponent := tags.get(notes.CHAMPION_TAG):
        numbers.append(f"geo1 {tags.get(notes.GAIN_TAGS['geo1'], '')} against {opponent}")
    if tags.get("num_seeds"):
        numbers.append(f"{tags['num_seeds']} seed(s)")
    for tag, text, unit in (
        ("predict_ms", "1,000 programs in", "ms"),
        ("round_s", "a round's features and scores in", "s"),
    ):
        if tags.get(tag):
            champions = tags.get(f"champion_{tag}")
            other = f" (champion {champions} {unit})" if champions else ""
            numbers.append(f"{text} {tags[tag]} {unit}{other}")
    if numbers:
        lines.append(("", f"{label}: {', '.join(numbers)}"))
    if registry.LIVE_TAG in tags:
        lines.append(("", f"{label} live, {tags[registry.LIVE_TAG]}"))
    if registry.ROLLED_BACK_TAG in tags:
        lines.append(("bold red", f"{label} was rolled back on {tags[registry.ROLLED_BACK_TAG]}"))
    objections = [text.removeprefix(NO) for text in _reasons(version) if text.startswith(NO)]
    if objections:
        lines.append(("bold red", f"{label} refused: {'; '.join(objections)}"))
    return lines


def _reasons(version: Version) -> list[str]:
    return version.tags.get(registry.REASONS_TAG, "").splitlines()


def _json(version: Version) -> dict[str, Any]:
    tags = version.tags
    texts = ("family", "features", "hardware", "dataset", "split_hash", registry.VERDICT_TAG)
    return {
        "model": version.name,
        "version": version.number,
        "semver": version.semver,
        "aliases": version.aliases,
        "run_id": version.run_id,
        **{name: tags.get(name) or None for name in texts},
        **{name: _number(tags.get(name)) for name in (*HEADLINE, *notes.NUMBER_TAGS)},
        **{name: _number(tags[name]) for name in _GRAPH_FIGURES if name in tags},
        "promoted": tags.get(registry.PROMOTED_TAG),
        "rolled_back": tags.get(registry.ROLLED_BACK_TAG),
        "live": tags.get(registry.LIVE_TAG),
        "gain_over": tags.get(notes.CHAMPION_TAG) or None,
        "gain": {
            metric: notes.parse_gain(tags.get(tag, "")) for metric, tag in notes.GAIN_TAGS.items()
        },
        "reasons": _reasons(version),
    }


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _models(root: Path) -> list[tuple[str, list[Version]]]:
    """Return each registered model with its versions, the newest first; none where there is no registry."""
    uri = registry_uri(root)
    if is_absent(uri):
        return []
    with explain_server_errors(uri):
        client = registry.connect(uri)
        names = registry.list_models(client)
        return [(name, registry.list_versions(client, name)[::-1]) for name in names]


@contextmanager
def _existing_registry(root: Path) -> Iterator[Any]:
    """Yield a client of the project's registry.

    Raises:
        RegistryError: the project has none yet, or it does not answer.
    """
    uri = registry_uri(root)
    if is_absent(uri):
        raise RegistryError(
            f"there is no registry at {without_secrets(uri)}. Register a model: tencost pipeline"
        )
    with explain_server_errors(uri):
        yield registry.connect(uri)
