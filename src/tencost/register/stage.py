"""The stage `register`: the winner of an evaluation becomes a version, and champion if the rule allows it.

Which family: the best search score on the validation part, references aside (`evaluate.board.winner`). Which seed: the
best search score on the validation part. The test part decides nothing but the promotion: the family's mean over seeds
against each reference, and the registered bundle against the champion's bundle, whose predictions are made anew on the
same test part.

Writes data/registry/<dataset>/<hardware>.json, version 1: the verdict, its reasons and numbers.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl
from rich.console import Console
from rich.text import Text

from tencost.config import Config
from tencost.errors import BundleError, FeatureError, RegistryError
from tencost.evaluate import board as boards
from tencost.evaluate.board import REFERENCES, Board, Row, winner
from tencost.evaluate.prediction import Features, load_model, predict, predict_ms
from tencost.evaluate.report import markdown_table
from tencost.evaluate.scoring import SeedScore, score_records
from tencost.evaluate.stage import best_seed, differences, load_feature_tables, load_truth
from tencost.evaluate.truth import Truth
from tencost.register import registry
from tencost.register.promotion import Comparison, Verdict, judge
from tencost.register.pull import pull
from tencost.register.registry import Version
from tencost.train import tracking
from tencost.train.bundle import Bundle, load_bundle

FORMAT_VERSION = 1


def run(cfg: Config, root: Path, *, required: tuple[str, ...] = REFERENCES) -> Verdict:
    """Register the winner on cfg.hardware and promote it if the rule allows.

    Args:
        cfg: names dataset, hardware and split.
        root: the project's root.
        required: families that a champion must have been compared with and must beat.

    Raises:
        ConfigError: nothing was evaluated.
        RegistryError: there are only references to choose from, or the report is not of this split.
    """
    root = root.resolve()
    report = root / cfg.paths.reports / cfg.dataset.name / cfg.hardware.name
    board = boards.load(report / "leaderboard.json")
    best = winner(board)
    if best is None:
        raise RegistryError(
            f"expected a model to register in {report / 'leaderboard.json'}, found only references. "
            "Train one: tencost train model=xgb, then tencost evaluate"
        )
    client = registry.connect(tracking.setup(root, cfg.experiment_name))
    truth = load_truth(cfg, root, "test")
    features = load_feature_tables(cfg, root)
    scores = read_scores(report / "predictions.parquet", truth)
    bundle, seed_score = _chosen(root, best, scores[best.model])

    champion = registry.find_champion(client, registry.model_name(cfg.hardware.name))
    version, new = registry.register_bundle(
        client,
        bundle.folder,
        run_id=_run(client, cfg, best),
        hardware_text=cfg.hardware.description or cfg.hardware.name,
        description="",
    )
    references = tuple(
        _comparison((row.model, row.family), truth, scores[best.model], scores[row.model])
        for row in board.models
        if row.reference
    )
    if champion is not None and champion.number == version.number:
        verdict = Verdict(
            False, (f"yes: version {version.number} is the champion already",), references
        )
    else:
        against, notes = _against_champion(root, champion, version, truth, features, seed_score)
        judged = judge(best.predict_ms, references, against, required=required)
        verdict = Verdict(judged.promote, (*notes, *judged.reasons), judged.comparisons)
    if verdict.promote:
        registry.promote(client, version)
        champion = version
    if champion is None or champion.number != version.number or verdict.promote:
        _note(client, version, best, verdict, description(board, best, bundle, version, verdict))
    path = root / cfg.paths.registry / cfg.dataset.name / f"{cfg.hardware.name}.json"
    _write(path, _content(version, champion, best, verdict))
    _print(version, new, champion, verdict)
    return verdict


def read_scores(path: Path, truth: Truth) -> dict[str, list[SeedScore]]:
    """Score the predictions that `evaluate` wrote: model -> one entry a seed, by seed.

    Raises:
        RegistryError: they are of other records than the truth's.
    """
    frame = pl.read_parquet(path)
    scores: dict[str, list[SeedScore]] = {}
    for (model, _), part in frame.group_by("model", "seed", maintain_order=True):
        if part["record_id"].to_list() != truth.record_id.tolist():
            raise RegistryError(
                f"{path} holds predictions for other records than the split's test part. "
                "Make it again: tencost evaluate"
            )
        raw = part["raw"].fill_null(np.nan).to_numpy()
        scores.setdefault(str(model), []).append(
            score_records(truth, raw, part["score"].to_numpy())
        )
    return scores


def description(board: Board, best: Row, bundle: Bundle, version: Version, verdict: Verdict) -> str:
    """Return a version's description in Markdown: figures, what it is for, how to use it, the verdict."""
    info = bundle.info
    lines = [
        f"**{info.family}** on `{info.feature_spec.name}` features for **{info.hardware}** "
        f"(target kind {info.target_kind}), version {version.semver}, seed {info.seed} of {list(best.seeds)}.",
        "",
        markdown_table(board, ("top1", "top5", "search_score", "trials_10pct", "pairwise")),
        f"Test networks: {', '.join(board.networks)}; mean ± 95 % interval over seeds. "
        f"Trained on {info.dataset} ({board.split}), TVM >= {info.tvm_range[0]} and < {info.tvm_range[1]}.",
        "",
        "```python",
        "import tencost",
        f'cost_model = tencost.load_cost_model("models:/{version.name}/{version.number}")',
        "# cost_model=... of ms.tune_tir, ms.tune_tasks and relax_integration.tune_relax",
        "```",
        "",
        "Promoted:" if verdict.promote else "Not promoted:",
        *(f"- {reason}" for reason in verdict.reasons),
    ]
    return "\n".join(lines)


def _chosen(root: Path, best: Row, scores: Sequence[SeedScore]) -> tuple[Bundle, SeedScore]:
    """Return the bundle of the seed that did best on the validation part, and its test score."""
    bundles = load_model(root / best.folder).bundles
    assert len(bundles) == len(scores) == len(best.seeds), "the report does not fit the models"
    values = best.valid_search_score
    chosen = values.index(max(values)) if values else best_seed(scores)
    return bundles[chosen], scores[chosen]


def _against_champion(
    root: Path,
    champion: Version | None,
    version: Version,
    truth: Truth,
    features: Features,
    challenger: SeedScore,
) -> tuple[Comparison | None, tuple[str, ...]]:
    """Compare with the champion's bundle on the same test part; None where that cannot be done, with the reason."""
    if champion is None:
        return None, ()
    name = f"champion {champion.semver or champion.number}"
    try:
        with tempfile.TemporaryDirectory(prefix="tencost-") as cache:
            bundle = load_bundle(pull(champion.uri, Path(cache), root=root))
        rows = features.rows(bundle.info, truth)
    except (BundleError, FeatureError) as error:
        return None, (f"yes: {name} cannot be used here any more, so it is not compared: {error}",)
    found = predict(bundle, rows)
    score = score_records(truth, found.raw, found.score)
    milliseconds = predict_ms(bundle, rows)
    opponent = (name, bundle.info.family)
    comparison = _comparison(opponent, truth, [challenger], [score], milliseconds)
    if champion.tags.get("split_hash") != version.tags.get("split_hash"):
        return comparison, (f"yes: note that {name} was trained on another split",)
    return comparison, ()


def _comparison(
    opponent: tuple[str, str],
    truth: Truth,
    a: Sequence[SeedScore],
    b: Sequence[SeedScore],
    milliseconds: float | None = None,
) -> Comparison:
    name, family = opponent
    found = differences(truth, a, b)
    return Comparison(opponent=name, family=family, predict_ms=milliseconds, **found)


def _run(client: Any, cfg: Config, best: Row) -> str:
    """Return the run that trained the winner, or a new one where this registry does not have it."""
    from mlflow.exceptions import MlflowException

    if best.run_id:
        try:
            return str(client.get_run(best.run_id).info.run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
    experiment = client.get_experiment_by_name(cfg.experiment_name)
    tags = {"tencost.stage": "register", "hardware": cfg.hardware.name}
    name = f"register {cfg.hardware.name}"
    created = client.create_run(experiment.experiment_id, run_name=name, tags=tags)
    client.set_terminated(created.info.run_id)
    return str(created.info.run_id)


def _note(client: Any, version: Version, best: Row, verdict: Verdict, text: str) -> None:
    """Write verdict and reasons to the version and to its run."""
    word = "promoted" if verdict.promote else "refused"
    number = str(version.number)
    client.update_model_version(version.name, number, description=text)
    if registry.PROMOTED_TAG not in version.tags or verdict.promote:
        client.set_model_version_tag(version.name, number, registry.VERDICT_TAG, word)
    for metric in ("top1", "top5", "search_score"):
        client.set_model_version_tag(version.name, number, metric, f"{best.mean(metric):.4f}")
    client.set_tag(version.run_id, "register.verdict", word)
    client.set_tag(version.run_id, "register.version", f"{version.name} {version.semver}")
    client.log_text(version.run_id, text, "register/verdict.md")


def _content(
    version: Version, champion: Version | None, best: Row, verdict: Verdict
) -> dict[str, Any]:
    return {
        "format_version": FORMAT_VERSION,
        "model": version.name,
        "challenger": {"version": version.number, "semver": version.semver, "model": best.model},
        "champion": None
        if champion is None
        else {"version": champion.number, "semver": champion.semver},
        "promoted": verdict.promote,
        "reasons": list(verdict.reasons),
        "comparisons": [asdict(item) for item in verdict.comparisons],
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
    partial.replace(path)


def _print(version: Version, new: bool, champion: Version | None, verdict: Verdict) -> None:
    console = Console()
    state = "registered" if new else "registered before"
    console.print(f"{version.name} version {version.number} ({version.semver}): {state}")
    for reason in verdict.reasons:
        word, _, rest = reason.partition(": ")
        console.print(
            Text.assemble((f"  {word:<4}", "green" if word == "yes" else "bold red"), rest),
            soft_wrap=True,
        )
    if champion is None:
        console.print("  there is no champion yet", style="bold red")
    elif champion.number == version.number:
        console.print(
            f"  champion: version {version.number} ({version.semver})", style="bold green"
        )
    else:
        console.print(
            f"  champion stays: version {champion.number} ({champion.semver})", style="bold"
        )
