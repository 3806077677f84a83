"""Tracking stores of projects that were copied or moved: MLflow writes down absolute paths, which must follow.

Where a project lay is told by its experiments: ``<root>/mlruns/artifacts`` is their artifact_location, and the
database is ``<root>/mlruns/mlflow.db``. Where the two differ, every location in the database that begins with the old
``<root>/mlruns/``, as a file: URI or as a path, is made to begin with the new one. What lies elsewhere stays.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlparse

_LOCATIONS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("trace_tags", "value"),
)
_BUSY_SECONDS = 60.0


def follow(database: Path) -> int:
    """Make a project's own tracking database point to where it lies now; the caller holds the project's lock.

    One transaction changes everything or nothing; where nothing moved, nothing is written.

    Args:
        database: ``<root>/mlruns/mlflow.db``; nothing is done where it does not exist.

    Returns:
        How many locations were changed.
    """
    if not database.is_file():
        return 0
    folder = database.resolve().parent
    changed = 0
    with closing(sqlite3.connect(database, timeout=_BUSY_SECONDS, isolation_level=None)) as store:
        tables = {str(name) for (name,) in store.execute("SELECT name FROM sqlite_master")}
        if "experiments" not in tables:
            return 0
        former = _former(store, folder)
        if not former:
            return 0
        store.execute("BEGIN IMMEDIATE")
        for uri in former:
            path = unquote(urlparse(uri).path)
            for table, column in _LOCATIONS:
                if table in tables:
                    for old, new in ((uri, folder.as_uri()), (path, str(folder))):
                        changed += store.execute(
                            f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                            f"WHERE substr({column}, 1, ?) = ?",
                            (new, len(old) + 1, len(old) + 1, f"{old}/"),
                        ).rowcount
        store.execute("COMMIT")
    return changed


def _former(store: sqlite3.Connection, folder: Path) -> list[str]:
    """Return the URIs of the folders mlruns that this one was before."""
    places = store.execute("SELECT DISTINCT artifact_location FROM experiments").fetchall()
    here = (folder / "artifacts").as_uri()
    ending = f"/{folder.name}/artifacts"
    return [
        place.removesuffix("/artifacts")
        for (place,) in places
        if place != here and str(place).startswith("file:") and str(place).endswith(ending)
    ]
