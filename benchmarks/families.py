"""Families and settings against each other, by networks left out of the training side: what stays, and why.

    python benchmarks/families.py --hardware epyc-avx512-1c --seeds 2 --jobs 4

Each candidate is trained once a fold of networks (:mod:`tencost.train.data.folds`) and a seed, scores the fold's
programs, and is compared with what was measured of them. A row is a candidate: means over folds and seeds, and its
difference to the first row with a 95 % interval over the folds' tasks (the same resamples on both sides; seeds are
averaged before). ``a+b`` is the average of two candidates, each over the standard deviation of its own scores. ``a@25``
learns from a quarter of the networks that a fold leaves, others with each seed: the learning curve over networks. Test
networks are not looked at. Needs the stages up to `splits` of the dataset, and `features=tiles` for the candidate that
reads it.

Scores lie in the folder of ``--out``, a file a candidate, hardware and seed: the command goes on with what is missing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
from rich.console import Console
from rich.progress import Progress

from tencost.config import Config
from tencost.config.composition import compose
from tencost.evaluate.fold_scores import Folds
from tencost.evaluate.interval import LEVEL, resample_tasks
from tencost.evaluate.metrics import Floats
from tencost.evaluate.scoring import SeedScore, score_records, statistic
from tencost.evaluate.truth import Truth
from tencost.models.programs.ranker import Samples, make_ranker
from tencost.train.data import Data
from tencost.train.data.folds import (
    Fold,
    divide_networks,
    fold_programs,
    samples_without_folds,
    without,
)
from tencost.train.programs import read_material

STORES = "features=per_store_tiles"
CANDIDATES: dict[str, tuple[str, ...]] = {
    "xgb": ("model=xgb", STORES),
    "xgb-lambdarank": ("model=xgb", STORES, "model.objective=lambdarank"),
    "xgb-listwise": ("model=xgb", STORES, "model.objective=listwise"),
    "xgb-regression": ("model=xgb", STORES, "model.objective=regression"),
    "xgb-packed": ("model=xgb", STORES, "model.view=stores"),
    "xgb-600": ("model=xgb", STORES, "model.num_rounds=600"),
    "xgb-1200": ("model=xgb", STORES, "model.num_rounds=1200"),
    "xgb-deep": ("model=xgb", STORES, "model.max_depth=8"),
    "xgb-tiles": ("model=xgb", "features=tiles"),
    "mlp": ("model=mlp", STORES),
    "mlp-b6": ("model=mlp", STORES, "model.tasks_per_batch=6"),
    "mlp-lambdarank": ("model=mlp", STORES, "model.objective=lambdarank"),
    "mlp-listwise": ("model=mlp", STORES, "model.objective=listwise"),
    "mlp-wide": ("model=mlp", STORES, "model.hidden=256"),
    "attention": (
        "model=tlp", STORES, "model.reads=[per_store_tiles]", "model.hidden=128", "model.beside=constants",
        "model.epochs=40", "model.dropout=0.2", "model.learning_rate=0.001",
    ),
}  # fmt: skip
"""Name -> overrides. `attention` is a set transformer over buffer stores, with positions: `tlp` on other rows."""
SUMS = ("xgb+mlp", "xgb+mlp+xgb-tiles", "xgb+attention", "xgb-600+mlp")
METRICS = ("geo1", "top1", "top5", "pairwise", "search_score")
NUM_RESAMPLES = 2000


class Tried:
    """A dataset's folds of networks on one hardware, or on all."""

    def __init__(self, dataset: str, split: str, hardware: str) -> None:
        self._of = (f"dataset={dataset}", f"split={split}", f"hardware={hardware}", "folds=5")
        self.data = Data(self._config("xgb"), Path.cwd())
        own = self.data.split.filter(
            pl.col("hardware").is_in(self.data.hardware()), pl.col("part").is_in(["train", "valid"])
        )
        workloads = own["workload_id"].unique().to_list()
        self.folds: tuple[Fold, ...] = divide_networks(
            self.data.tasks, workloads, self.data.cfg.folds
        )

    def _config(self, name: str) -> Config:
        return compose([*self._of, *CANDIDATES[name.partition("@")[0]]])[0]

    def scores(self, name: str, seed: int) -> pl.DataFrame:
        """Train a candidate once a fold: fold (int32), record_id, raw (float64, null for a program without rows)."""
        percent = int(name.partition("@")[2] or 100)
        cfg = self._config(name)
        data = Data(cfg, Path.cwd())
        material = read_material(cfg, data)
        train, valid = material.train, material.valid
        frames = []
        # Not the material's own folds: a slow family has fewer.
        for at, fold in enumerate(samples_without_folds(self.folds, data.records, train, valid)):
            ranker = make_ranker(cfg.model, material.spec)
            foreign = ~self._drawn(train, self.folds[at], percent, seed)
            learn, watch = without(train, valid, replace(fold, train=fold.train | foreign))
            ranker.fit(learn, watch, seed=seed, log=lambda *_: None)
            for part in fold_programs(train, valid, fold):
                raw = pl.Series("raw", ranker.predict(part.features), pl.Float64).fill_nan(None)
                frames.append(
                    pl.DataFrame({"record_id": part.record_id.tolist(), "raw": raw}).select(
                        pl.lit(at, pl.Int32).alias("fold"), "record_id", "raw"
                    )
                )
        return pl.concat(frames)

    def _drawn(self, train: Samples, fold: Fold, percent: int, seed: int) -> npt.NDArray[np.bool_]:
        """Return whether each program is of a network that is drawn of those that a fold leaves; all of 100 %."""
        stem = pl.col("network").str.split("-").list.first()
        left_out = {network.split("-")[0] for network in fold.networks}
        workload = dict(self.data.records.select("record_id", "workload_id").iter_rows())
        of_sample = np.array([workload[record] for record in train.record_id.tolist()])
        tasks = self.data.tasks.with_columns(stem.alias("stem")).filter(
            pl.col("workload_id").is_in(of_sample.tolist()), ~pl.col("stem").is_in(list(left_out))
        )
        stems = tasks["stem"].unique().sort().to_numpy()
        drawn = np.random.default_rng(seed).permutation(stems)[: -(-len(stems) * percent // 100)]
        kept = tasks.filter(pl.col("stem").is_in(drawn.tolist()))["workload_id"].unique()
        return np.isin(of_sample, kept.to_list())


class Judged:
    """Candidates' scores against what was measured."""

    def __init__(self, tried: Tried, scores: dict[tuple[str, int], pl.DataFrame]) -> None:
        self._scores = scores
        self._seeds = sorted({seed for _, seed in scores})
        first = next(iter(scores.values()))
        folds = Folds(tried.data)
        self.truths: list[Truth] = [
            folds.truth(fold.networks, first.filter(pl.col("fold") == at)["record_id"].to_list())
            for at, fold in enumerate(tried.folds)
        ]
        self._drawn = [
            resample_tasks(truth.stratum, NUM_RESAMPLES, seed=at)
            for at, truth in enumerate(self.truths)
        ]

    def figures(self, name: str) -> dict[str, Floats]:
        """Return metric -> [1 + NUM_RESAMPLES]: the mean over folds and seeds, of all tasks and of each resample."""
        found: dict[str, list[Floats]] = {metric: [] for metric in METRICS}
        for at, (truth, drawn) in enumerate(zip(self.truths, self._drawn, strict=True)):
            counts = np.concatenate([np.ones((1, drawn.shape[1])), drawn])
            seeds = [self._score(name, seed, at, truth) for seed in self._seeds]
            for metric in METRICS:
                found[metric].append(statistic(metric, truth, seeds)(counts))
        return {metric: np.mean(values, axis=0) for metric, values in found.items()}

    def total(self, name: str, at: int, truth: Truth) -> Floats:
        """Return the mean of all seeds' scores of a fold's programs: float64 [N]."""
        return np.mean([self._raw(name, seed, at, truth) for seed in self._seeds], axis=0)

    def _score(self, name: str, seed: int, at: int, truth: Truth) -> SeedScore:
        raw = self._raw(name, seed, at, truth)
        return score_records(truth, raw, raw)

    def _raw(self, name: str, seed: int, at: int, truth: Truth) -> Floats:
        total = np.zeros(len(truth.record_id))
        for member in name.split("+"):
            one = self._scores[member, seed].filter(pl.col("fold") == at)
            known = dict(one.select("record_id", "raw").iter_rows())
            raw = np.array([known[key] for key in truth.record_id.tolist()], dtype=np.float64)
            total += raw / np.nanstd(raw)
        return total


def _train(of: tuple[str, str, str], name: str, seed: int, path: Path) -> None:
    part = path.with_suffix(".part")
    Tried(*of).scores(name, seed).write_parquet(part)
    part.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "candidates",
        nargs="*",
        default=[*CANDIDATES, *SUMS],
        help="names, a+b, a@percent of the networks",
    )
    parser.add_argument("--dataset", default="tencost-zen5")
    parser.add_argument("--split", default="by_network")
    parser.add_argument("--hardware", default="epyc-avx512-1c")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("data/families"))
    asked = parser.parse_args()
    members = list(dict.fromkeys(one for name in asked.candidates for one in name.split("+")))
    if unknown := [one for one in members if one.partition("@")[0] not in CANDIDATES]:
        parser.error(f"expected candidates of {', '.join(CANDIDATES)}; found {', '.join(unknown)}")

    os.environ["OMP_NUM_THREADS"] = "1"
    of = (asked.dataset, asked.split, asked.hardware)
    folder = asked.out / asked.dataset / asked.hardware
    folder.mkdir(parents=True, exist_ok=True)
    paths = {
        (name, seed): folder / f"{name}-seed{seed}.parquet"
        for name in members
        for seed in range(asked.seeds)
    }
    with (
        ProcessPoolExecutor(asked.jobs, mp_context=multiprocessing.get_context("spawn")) as pool,
        Progress(console=Console(stderr=True)) as progress,
    ):
        runs = [
            pool.submit(_train, of, *key, path) for key, path in paths.items() if not path.exists()
        ]
        for run in progress.track(as_completed(runs), total=len(runs), description="trained"):
            run.result()

    judged = Judged(Tried(*of), {key: pl.read_parquet(path) for key, path in paths.items()})
    _print(asked.hardware, {name: judged.figures(name) for name in asked.candidates})


def _print(hardware: str, figures: dict[str, dict[str, Floats]]) -> None:
    tail = 100 * (1 - LEVEL) / 2
    first, reference = next(iter(figures.items()))
    said = [f"{hardware}: mean over folds, (minus {first}: 95 % interval over tasks)"]
    said += ["| candidate | " + " | ".join(METRICS) + " |", "|---" * (1 + len(METRICS)) + "|"]
    for name, found in figures.items():
        cells = [name]
        for metric in METRICS:
            value, change = found[metric], found[metric] - reference[metric]
            low, high = np.nanpercentile(change[1:], [tail, 100 - tail])
            apart = "" if name == first else f" ({change[0]:+.3f}: {low:+.3f}, {high:+.3f})"
            cells.append(f"{value[0]:.3f}{apart}")
        said.append("| " + " | ".join(cells) + " |")
    print("\n".join(said))


if __name__ == "__main__":
    main()
