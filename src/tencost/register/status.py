"""`tencost register status` and `tencost register rollback`: the registry for people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tencost.errors import RegistryError
from tencost.evaluate.report import wide
from tencost.register import registry
from tencost.register.pull import registry_uri

_FIGURES = {"top1": "top-1", "top5": "top-5", "search_score": "search score"}


def print_status(root: Path, console: Console | None = None) -> None:
    """Print every version of every registered model, the newest first.

    Raises:
        RegistryError: the registry does not answer.
    """
    console = wide(console)
    with _registry(root) as client:
        names = [] if client is None else registry.list_models(client)
        if not names:
            console.print(
                f"no model is registered in {registry_uri(root)}; `tencost register` does it"
            )
        for name in names:
            table = Table(title=name, title_justify="left", show_edge=False, pad_edge=False)
            for heading in (
                "version",
                "semver",
                "aliases",
                "family",
                "features",
                *_FIGURES.values(),
            ):
                table.add_column(heading)
            table.add_column("verdict")
            table.add_column("champion since")
            for version in reversed(registry.list_versions(client, name)):
                tags = version.tags
                is_champion = registry.CHAMPION in version.aliases
                table.add_row(
                    str(version.number),
                    version.semver,
                    ", ".join(version.aliases),
                    tags.get("family", ""),
                    tags.get("features", ""),
                    *(tags.get(metric, "") for metric in _FIGURES),
                    tags.get(registry.VERDICT_TAG, ""),
                    tags.get(registry.PROMOTED_TAG, "") if is_champion else "",
                    style="bold" if is_champion else "",
                )
            console.print(table)
            console.print()


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
                f"there is no registry at {registry_uri(root)}. Run `dvc repro` first."
            )
        version = registry.rollback(client, name, number)
    Console().print(f"{name}: champion is version {version.number} ({version.semver}) again")


@contextmanager
def _registry(root: Path) -> Iterator[Any]:
    """Yield a client, or None where the project has no registry yet (looking must not create one)."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    uri = registry_uri(root)
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
        yield None
        return
    try:
        yield registry.connect(uri)
    except (MlflowException, SQLAlchemyError, OSError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise RegistryError(
            f"the registry {uri} does not answer: {first_line}. Check MLFLOW_TRACKING_URI and the server."
        ) from error
