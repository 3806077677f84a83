"""Files of a tuning run: in its work folder, or what it left in MLflow."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from tencost.errors import ProfileError, TencostError


@contextmanager
def run_files(name: str, names: Collection[str], root: Path) -> Iterator[Path]:
    """Yield the folder with a run's files; those of an MLflow run are fetched into one that is gone afterwards.

    Args:
        name: a work folder, or the id of an MLflow run.
        names: of the files that are wanted; one that is not there is left out.
        root: the project, whose MLflow is meant.

    Raises:
        ProfileError: it is neither.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        yield folder
        return
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    from tencost.tracking.runs import setup

    uri = setup(root)
    with tempfile.TemporaryDirectory(prefix="tencost-run-") as scratch:
        try:
            client = MlflowClient(tracking_uri=uri)
            there = {item.path for item in client.list_artifacts(name)}
            for file in there & set(names):
                client.download_artifacts(name, file, scratch)
        except (MlflowException, TencostError, OSError) as error:
            raise ProfileError(
                f"expected a work folder of `tencost tune` or the id of an MLflow run in {uri}, found {name!r}: "
                f"{str(error).splitlines()[0]}"
            ) from error
        yield Path(scratch)
