"""Challenger against references and champion: training seeds against training seeds, on the same tasks.

Replayed search has no randomness of its own: given a bundle's scores the order of the recorded
programs is fixed, and random order enters as its exact expectation. What varies is the training. So
the seeds of a comparison are training seeds: all bundles of the challenger's training against all of
the champion's, which lie in its training run (`bundles/seed<k>`). The registered bundle alone would
be compared by luck: it is the seed that did best on the validation part. A champion whose run does
not hold its other seeds is compared as its one bundle, and the verdict says so.

A version that was fitted on all records has seen what is tested here and is never scored on it. Its
twin is: the bundle of that seed in its run, trained without the test networks. Where the run holds
no twin any more, the figures that the version keeps of it are compared, if they are of the same
records and split; they have no interval.

The 95 % interval resamples the test tasks (the same for both sides) and the seeds of each side; it
is wider than the leaderboard's, which resamples tasks only.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tencost.config import Pool
from tencost.errors import BundleError, FeatureError, RegistryError
from tencost.evaluate.interval import Difference, seeded_bootstrap
from tencost.evaluate.prediction import predict, predict_ms, program_rows
from tencost.evaluate.scoring import SeedScore, score_records, statistic
from tencost.evaluate.truth import Truth
from tencost.models.programs.bundle import Bundle, content_digest, load_bundle
from tencost.programs.starting_points import FILE as STARTS_FILE
from tencost.register import registry
from tencost.register.promotion import METRICS, Comparison
from tencost.register.pull import pull
from tencost.register.registry import Version
from tencost.register.verdict import of_another_split, unusable
from tencost.train.data import Data


@dataclass(frozen=True)
class ChampionOpponent:
    """The champion as the challenger meets it.

    Attributes:
        comparison: challenger minus champion; None if the champion cannot be used here any more.
        bundle: the champion's registered bundle; None as above.
        notes: what a reader of the verdict should know.
    """

    comparison: Comparison | None = None
    bundle: Bundle | None = None
    notes: tuple[str, ...] = ()


def compare_scores(
    opponent: str,
    family: str,
    truth: Truth,
    a: Sequence[SeedScore],
    b: Sequence[SeedScore],
    milliseconds: float | None = None,
) -> Comparison:
    """Return a minus b, one score a training seed on each side, with intervals over networks, tasks and seeds."""

    def difference(metric: str) -> Difference:
        of_a, of_b = ([statistic(metric, truth, [seed]) for seed in seeds] for seeds in (a, b))
        return seeded_bootstrap(of_a, of_b, truth.stratum, clusters=truth.network)

    differences: dict[str, Any] = {metric: difference(metric) for metric in METRICS}
    return Comparison(
        opponent=opponent,
        family=family,
        **differences,
        search_score=difference("search_score"),
        num_seeds=len(b),
        predict_ms=milliseconds,
    )


def against_champion(
    client: Any,
    data: Data,
    champion: Version,
    truth: Truth,
    challenger: Sequence[SeedScore],
) -> ChampionOpponent:
    """Score the champion's bundles anew on the test part and compare.

    Args:
        client: of the registry.
        data: what the challenger was trained on.
        champion: the version to beat.
        truth: the test part.
        challenger: its score for each training seed.
    """
    name = f"champion {champion.semver or champion.number}"
    notes = []
    try:
        with tempfile.TemporaryDirectory(prefix="tencost-") as cache:
            registered = load_bundle(pull(champion.uri, Path(cache), root=data.root))
            bundles, note = _seeds(client, data.root, Path(cache), champion, registered)
        rows = program_rows(data, registered.info, truth)
    except (BundleError, FeatureError) as error:
        return ChampionOpponent(notes=(unusable(name, error),))
    milliseconds = predict_ms(registered, rows)
    if not bundles:
        return _by_tags(data, champion, registered, truth, challenger, milliseconds)
    if note:
        notes.append(f"{name} is compared as {note}")
    if champion.tags.get("split_hash") != data.split_hash:
        notes.append(of_another_split(name))
    predictions = [predict(bundle, rows) for bundle in bundles]
    scores = [score_records(truth, each.raw, each.score) for each in predictions]
    family = registered.info.family
    comparison = compare_scores(name, family, truth, challenger, scores, milliseconds)
    return ChampionOpponent(comparison, registered, tuple(notes))


def _seeds(
    client: Any, root: Path, cache: Path, champion: Version, registered: Bundle
) -> tuple[list[Bundle], str]:
    """Return the bundles of all seeds that the champion was trained with, or one and why.

    The one is the bundle that is registered, or its twin; none where it has a twin that the run does not hold.
    """
    seeds = registry.trained_seeds(client, champion)
    bundles = []
    for seed in seeds:
        uri = f"runs:/{champion.run_id}/{registry.BUNDLES}/seed{seed}"
        with suppress(RegistryError, BundleError):
            bundles.append(load_bundle(pull(uri, cache, root=root)))
    refit = registered.info.refit
    digest = refit.get("twin") or content_digest(registered.info, without=[STARTS_FILE])
    twins = [bundle for bundle in bundles if content_digest(bundle.info) == digest]
    if twins and len(bundles) == len(seeds):
        return bundles, ""
    if not seeds:
        why = "its run does not say with which seeds it was trained"
    elif len(bundles) < len(seeds):
        why = "its run does not hold the bundles of its seeds"
    else:
        why = "the bundles in its run are of another training"
    if refit:
        return twins, f"the twin of the one bundle that is registered: {why}"
    return [registered], f"the one bundle that is registered: {why}"


def _dataset_hash(data: Data, bundle: Bundle) -> str:
    """Return the content hash of the records, as they are now, that a bundle would be trained on."""
    pooled = bundle.info.model_config.get("pool") == Pool.all.value
    every = sorted(data.records["hardware"].unique().to_list())
    return data.dataset_hash(every if pooled else [bundle.info.hardware])


def _by_tags(
    data: Data,
    champion: Version,
    registered: Bundle,
    truth: Truth,
    challenger: Sequence[SeedScore],
    milliseconds: float,
) -> ChampionOpponent:
    """Compare with what the version's tags hold of its twin's scores, if it was judged on the same tasks."""
    name, tags = f"champion {champion.semver or champion.number}", champion.tags
    same_tasks = tags.get(
        "split_hash"
    ) == data.split_hash and registered.info.dataset_hash == _dataset_hash(data, registered)
    if not same_tasks or not all(metric in tags for metric in METRICS):
        note = (
            f"{name} was fitted on all records and its run does not hold its twin any more, whose figures are of other "
            "tasks: it is not compared"
        )
        return ChampionOpponent(None, registered, (note,))
    every = np.ones((1, len(truth.tasks)))

    def difference(metric: str) -> Difference:
        mean = float(statistic(metric, truth, challenger)(every)[0])
        return Difference(mean - float(tags[metric]), math.nan, math.nan, 0)

    differences: dict[str, Any] = {metric: difference(metric) for metric in METRICS}
    comparison = Comparison(
        opponent=name,
        family=registered.info.family,
        **differences,
        num_seeds=int(tags.get("num_seeds") or 1),
        predict_ms=milliseconds,
    )
    note = f"{name} is compared by the figures that it keeps of its twin, which its run does not hold any more"
    return ChampionOpponent(comparison, registered, (note,))
