"""`tencost register status` and `tencost register rollback`: the registry for people and for scripts."""

from __future__ import annotations

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
from tencost.evaluate.scoring import HEADLINE
from tencost.register import notes, registry
from tencost.register.pull import registry_uri
from tencost.register.registry import Version
from tencost.register.verdict import NO
from tencost.tracking.server_check import answering

_FIGURES = {"geo1": "geo1", "top1": "top-1", "top5": "top-5", "search_score": "search score"}
_GRAPH_FIGURES = {"acc10": "acc10", "mape": "MAPE"}
"""Of models of whole networks."""


def print_json(root: Path) -> None:
    """Print what `versions` returns.

    Raises:
        RegistryError: the registry does not answer.
    """
    sys.stdout.write(_json(versions(root)))


def print_status(root: Path, console: Console | None = None) -> None:
    """Print every version of every registered model, the newest first; under one that was refused, why.

    Raises:
        RegistryError: the registry does not answer.
    """
    console = wide(console)
    with _registry(root) as client:
        names = [] if client is None else registry.list_models(client)
        if not names:
            console.print(
                f"no model is registered in {without_secrets(registry_uri(root))}; `tencost register` does it"
            )
        for name in names:
            found = list(reversed(registry.list_versions(client, name)))
            _print_model(console, name, found)


def versions(root: Path) -> list[dict[str, Any]]:
    """Return every version of every registered model as JSON values, the newest of a model first.

    Numbers that are not known are null: versions of an older tencost have no gains and no times. A gain is over the
    champion at that time, the mean over seeds with its 95 % interval.

    Raises:
        RegistryError: the registry does not answer.
    """
    with _registry(root) as client:
        return [
            _values(version)
            for name in ([] if client is None else registry.list_models(client))
            for version in reversed(registry.list_versions(client, name))
        ]


def print_champions(root: Path, console: Console | None = None) -> None:
    """Print one line a registered model: its champion and how to use it.

    Raises:
        RegistryError: the registry does not answer.
    """
    console = wide(console)
    with _registry(root) as client:
        for name in [] if client is None else registry.list_models(client):
            champion = registry.find_champion(client, name)
            if champion is None:
                console.print(f"{name}: no champion yet, see `tencost register status`")
            else:
                family = champion.tags.get("family", "")
                console.print(
                    f"{name}: champion is version {champion.number} ({champion.semver}, {family}); "
                    f"use it: models:/{name}@champion",
                    highlight=False,
                )


def rollback(root: Path, name: str, number: int | None = None) -> None:
    """Point the champion alias back, to a version or to the champion before, and say so.

    Raises:
        RegistryError: no such model or version, no earlier champion, or no registry.
    """
    with _registry(root) as client:
        if client is None:
            raise RegistryError(
                f"there is no registry at {without_secrets(registry_uri(root))}. Run `dvc repro` first."
            )
        before = registry.find_champion(client, name)
        version = registry.rollback(client, name, number)
    if before is None:
        said = f"champion is version {version.number} ({version.semver})"
    elif before.number == version.number:
        said = f"version {version.number} ({version.semver}) is the champion already"
    else:
        said = f"champion is version {version.number} ({version.semver}) again"
        said += f", it was version {before.number} ({before.semver})"
    Console().print(f"{name}: {said}", highlight=False, soft_wrap=True)


def _print_model(console: Console, name: str, found: list[Version]) -> None:
    table = Table(title=name, title_justify="left", show_edge=False, pad_edge=False)
    of_graphs = any("acc10" in version.tags for version in found)
    figures = _GRAPH_FIGURES if of_graphs else _FIGURES
    for heading in ("version", "semver", "aliases", "family", "features", *figures.values()):
        table.add_column(heading)
    for heading in ("verdict", "champion since"):
        table.add_column(heading)
    for version in found:
        tags = version.tags
        is_champion = registry.CHAMPION in version.aliases
        taken_back = registry.ROLLED_BACK_TAG in tags
        table.add_row(
            str(version.number),
            version.semver,
            ", ".join(version.aliases),
            tags.get("family", ""),
            tags.get("features", ""),
            *(tags.get(metric, "") for metric in figures),
            "rolled back" if taken_back else tags.get(registry.VERDICT_TAG, ""),
            tags.get(registry.PROMOTED_TAG, "") if is_champion else "",
            style="bold" if is_champion else "",
        )
    console.print(table)
    for version in found:
        for style, line in _lines(version):
            console.print(Text(line, style), soft_wrap=True)
    console.print()


def _lines(version: Version) -> list[tuple[str, str]]:
    """Return what is told of a version below the table, (style, line) each: its key numbers, and why it was refused."""
    tags, lines = version.tags, []
    own = f"version {version.number} ({version.semver})"
    told = []
    over = tags.get(notes.CHAMPION_TAG)
    if over:
        gain = tags.get(notes.GAIN_TAGS["geo1"], "")
        told.append(f"geo1 {gain} against {over}")
    if tags.get("num_seeds"):
        told.append(f"{tags['num_seeds']} seed(s)")
    for name, champions, text, unit in (
        ("predict_ms", "champion_predict_ms", "1,000 programs in", "ms"),
        ("round_s", "champion_round_s", "a round's features and scores in", "s"),
    ):
        if tags.get(name):
            other = f" (champion {tags[champions]} {unit})" if tags.get(champions) else ""
            told.append(f"{text} {tags[name]} {unit}{other}")
    if told:
        lines.append(("", f"{own}: {', '.join(told)}"))
    if registry.LIVE_TAG in tags:
        lines.append(("", f"{own} live, {tags[registry.LIVE_TAG]}"))
    if registry.ROLLED_BACK_TAG in tags:
        lines.append(("bold red", f"{own} was rolled back on {tags[registry.ROLLED_BACK_TAG]}"))
    objections = [line.removeprefix(NO) for line in _reasons(version) if line.startswith(NO)]
    if objections:
        lines.append(("bold red", f"{own} refused: {'; '.join(objections)}"))
    return lines


def _reasons(version: Version) -> list[str]:
    return version.tags.get(registry.REASONS_TAG, "").splitlines()


def _values(version: Version) -> dict[str, Any]:
    tags = version.tags
    texts = ("family", "features", "hardware", "dataset", "split_hash", registry.VERDICT_TAG)
    return {
        "model": version.name,
        "version": version.number,
        "semver": version.semver,
        "aliases": list(version.aliases),
        "run_id": version.run_id,
        **{name: tags.get(name) or None for name in texts},
        **{name: _number(tags.get(name)) for name in (*HEADLINE, *notes.NUMBER_TAGS)},
        **{name: _number(tags[name]) for name in _GRAPH_FIGURES if name in tags},
        "promoted": tags.get(registry.PROMOTED_TAG),
        "rolled_back": tags.get(registry.ROLLED_BACK_TAG),
        "live": tags.get(registry.LIVE_TAG),
        "gain_over": tags.get(notes.CHAMPION_TAG) or None,
        "gain": {metric: _gain(tags.get(name, "")) for metric, name in notes.GAIN_TAGS.items()},
        "reasons": _reasons(version),
    }


def _json(values: list[dict[str, Any]]) -> str:
    return orjson.dumps(values, option=orjson.OPT_INDENT_2).decode() + "\n"


def _gain(text: str) -> dict[str, float] | None:
    found = notes.gain(text)
    return None if found is None else {"mean": found.mean, "low": found.low, "high": found.high}


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


@contextmanager
def _registry(root: Path) -> Iterator[Any]:
    """Yield a client, or None where the project has no registry yet (looking must not create one)."""
    uri = registry_uri(root)
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
        yield None
        return
    with answering(uri):
        yield registry.connect(uri)
