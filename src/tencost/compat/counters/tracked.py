"""The MLflow runs of the experiments with profiles: what they say about themselves, and the files that they keep."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from tencost.config import Config
from tencost.tracking.runs import TrackedRun, flatten, start_run
from tencost.writing import whole_folder


@contextmanager
def experiment(
    cfg: Config, root: Path, name: str, groups: Sequence[str], settings: Mapping[str, object]
) -> Iterator[tuple[TrackedRun, Path]]:
    """Start a run, and give it with a folder for its report, which is logged as an artifact where the block ends well.

    Args:
        cfg: the configuration.
        root: the project's root.
        name: of the command: "profiles transfer"; its last word and the set's name are the report's folder.
        groups: of the configuration that are logged as parameters.
        settings: what else is.
    """
    parameters: dict[str, str] = {"seeds": ",".join(map(str, cfg.seeds))}
    for group in groups:
        flatten(group, asdict(getattr(cfg, group)), parameters)
    flatten("experiment", dict(settings), parameters)
    word = name.split()[-1]
    what = cfg.profile_features.name if word == "transfer" else cfg.features.name
    folder = root / cfg.paths.reports / "profiles" / f"{word}-{what}"
    with start_run(
        cfg, root, stage=name, name=f"{word} · {what}", tags={}, parameters=parameters
    ) as tracked:
        with whole_folder(folder) as partial:
            yield tracked, partial
        tracked.log_artifacts(folder, f"reports/{word}")


def metric_name(*words: str) -> str:
    """Return a name that MLflow takes for a metric."""
    return "/".join(re.sub(r"[^\w.: -]", "_", word) for word in words)
