"""run.json: what `train` says of a training as a whole, beside its bundles.

::

    seeds, best_seed    those trained, in order; the one that did best on the validation split
    valid               seed -> its validation metrics by name
    folds               the networks of each fold that the first seed was tried on (folds.py); [] for a reference
    spread              seed -> standard deviation of its raw scores over the programs learnt from; {} for a blend
    fold_spread         the same of the model without each of these folds, over what that one learnt from
    programs            [learnt from, watched], those with rows

A JSON object; the last three are what a blend takes a training by (members.py), and were not written up to 0.2.0. What
differs although the training was the same (when, by which run, by which code) is in MLflow, whose run is found by the
digest of the bundles.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from tencost.errors import BundleError

FILE = "run.json"


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """What run.json says; see the module's text."""

    seeds: tuple[int, ...]
    best_seed: int
    valid: dict[str, dict[str, float]]
    folds: tuple[tuple[str, ...], ...]
    spread: dict[str, float]
    fold_spread: tuple[float, ...]
    programs: tuple[int, ...]

    def write(self, folder: Path) -> None:
        """Write it into the folder of a training."""
        (folder / FILE).write_bytes(orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2))

    @classmethod
    def read(cls, folder: Path) -> RunFile:
        """Read the file of a folder.

        Raises:
            BundleError: missing, or not what `write` writes.
        """
        path = folder / FILE
        try:
            values = orjson.loads(path.read_bytes())
            return cls(
                seeds=tuple(int(seed) for seed in values["seeds"]),
                best_seed=int(values["best_seed"]),
                valid=values["valid"],
                folds=tuple(tuple(networks) for networks in values["folds"]),
                spread={
                    str(seed): float(spread) for seed, spread in values.get("spread", {}).items()
                },
                fold_spread=tuple(float(spread) for spread in values.get("fold_spread", ())),
                programs=tuple(int(count) for count in values.get("programs", ())),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BundleError(
                f"{path}: expected what `tencost train` writes, found something else ({type(error).__name__}: "
                f"{error}). Train it again: dvc repro, or tencost train"
            ) from error
