"""Where the pipeline of whole networks, graphs/dvc.yaml, keeps its outputs.

The folder graphs/ is a DVC project inside that of the root, and DVC refuses outputs outside a project. So where graphs/
has a dvc.yaml, each default path of :class:`~tencost.config.schema.PathsConfig` is below graphs/: `data/graphs` is
`graphs/data/graphs`. A project without that file (`tencost init`) keeps networks in data/ with everything else, and a
path that a person sets is relative to the root in both.

``python -m tencost.config.graph_outputs`` moves the outputs of earlier versions, in data/, to the new place.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

from tencost.config.schema import PathsConfig

FOLDER = "graphs"
PIPELINE = f"{FOLDER}/dvc.yaml"
MOVE_COMMAND = "python -m tencost.config.graph_outputs"

_MOVED = ("raw", "graphs", "models", "searches", "reports")
"""Fields of PathsConfig. The registry has one place: programs and networks share it."""


def graph_project(root: Path) -> Path | None:
    """Return the folder of the pipeline of whole networks; None in a project without one."""
    return root / FOLDER if (root / PIPELINE).is_file() else None


def pipeline_words(root: Path, words: Sequence[str]) -> tuple[Path, tuple[str, ...]]:
    """Return the folder of DVC's project that the words of `dvc repro` are about, and the words as seen from there."""
    project = graph_project(root)
    if project is None or not any(word.partition(":")[0] == PIPELINE for word in words):
        return root, tuple(words)
    return project, tuple(
        word.removeprefix(f"{FOLDER}/") if word.partition(":")[0] == PIPELINE else word
        for word in words
    )


def graph_paths(paths: PathsConfig, root: Path) -> PathsConfig:
    """Return the paths, relative to the root, that commands about whole networks use."""
    if graph_project(root) is None:
        return paths
    defaults = {field.name: field.default for field in fields(PathsConfig)}
    moved = {
        name: f"{FOLDER}/{defaults[name]}"
        for name in _MOVED
        if getattr(paths, name) == defaults[name]
    }
    return replace(paths, **moved)


def graph_mark(root: Path, dataset: str, hardware: str) -> Path | None:
    """Return the path of DVC's copy of a registration's mark; None in a project without the pipeline."""
    project = graph_project(root)
    return project and project / "data" / "registered" / dataset / f"{hardware}.json"


def old_outputs(root: Path) -> list[tuple[Path, Path]]:
    """Return (old, new) place of each output that an earlier version left in data/; none without the pipeline."""
    if graph_project(root) is None:
        return []
    before = PathsConfig()
    after = graph_paths(before, root)
    tables = root / before.graphs
    pairs = [(before.graphs, after.graphs)]
    for folder in sorted(tables.glob("*")):
        dataset = folder.name.removesuffix("-splits")
        moved = [("raw", dataset), ("searches", dataset)]
        for split in sorted((tables / f"{dataset}-splits").glob("*")):
            moved += [("models", f"{dataset}/{split.name}"), ("reports", f"{dataset}-{split.name}")]
        pairs += [
            (f"{getattr(before, name)}/{inner}", f"{getattr(after, name)}/{inner}")
            for name, inner in moved
        ]
    return [(root / old, root / new) for old, new in dict(pairs).items() if (root / old).exists()]


def move_outputs(root: Path) -> list[tuple[Path, Path]]:
    """Move all old outputs; a file that is at the new place already stays, and the old one is removed.

    Returns:
        The pairs that `old_outputs` found.
    """
    pairs = old_outputs(root)
    for source, target in reversed(pairs):  # data/graphs last: it lists the datasets
        _merge(source, target)
    return pairs


@cache
def report_old_outputs(root: Path) -> None:
    """Print once how to move the outputs of earlier versions, if there are any."""
    pairs = old_outputs(root)
    if pairs:
        places = ", ".join(str(source.relative_to(root)) for source, _ in pairs)
        sys.stderr.write(
            f"outputs of whole networks are in {places}; they belong below {FOLDER}/. Move them, in {root}:\n"
            f"    {MOVE_COMMAND}\n"
        )


def _merge(source: Path, target: Path) -> None:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(source, target)
        return
    if source.is_dir() and target.is_dir():
        for child in sorted(source.iterdir()):
            _merge(child, target / child.name)
        source.rmdir()
    elif source.is_dir():
        shutil.rmtree(source)
    else:
        source.unlink()


def _main() -> None:
    from tencost.config.schema import project_root

    root = project_root()
    for source, target in move_outputs(root):
        sys.stdout.write(f"{source.relative_to(root)} -> {target.relative_to(root)}\n")


if __name__ == "__main__":
    _main()
