"""Where a verdict, its numbers and its reasons are written: the run and the model version.

Run (the one that trained the challenger): metrics ``register/<name>``, tags ``register.verdict``,
``register.version``, ``register.reasons``, artifacts register/verdict.md and register/verdict.json.

Version: its description, and the tags

    verdict                         promoted or refused
    reasons                         a line a check, "yes: ..." or "no: ..."
    num_seeds, predict_ms, round_s  of the challenger; seconds with 4 digits
    champion                        what it was compared with; empty: there was no champion
    champion_predict_ms, champion_round_s
    gain_geo1, gain_top1, gain_top5, gain_pairwise
                                    over that champion, "mean [low, high]", 95 %

A number that is not known is an empty text.

verdict.json, version 1: see `content`; a later tencost
may add keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tencost.evaluate.interval import Difference, interval_text
from tencost.evaluate.program_board import ProgramRow
from tencost.register.promotion import METRICS, ProgramVerdict, PromotionRule
from tencost.register.registry import Version
from tencost.register.round_time import CANDIDATES, RoundTime

FORMAT_VERSION = 1
CHAMPION_TAG = "champion"
NUMBER_TAGS = ("num_seeds", "predict_ms", "round_s", "champion_predict_ms", "champion_round_s")
GAIN_TAGS = {metric: f"gain_{metric}" for metric in METRICS}
MAX_RUN_TAG = 8000
"""Characters of the reasons that a run's tag has room for."""
_GAIN = re.compile(r"(\S+) \[(\S+), (\S+)\]")


def version_tags(verdict: ProgramVerdict) -> dict[str, str]:
    """Return the tags of numbers that a version gets for a verdict, beside those of every model."""
    champion = verdict.champion
    tags = {CHAMPION_TAG: "" if champion is None else champion.opponent}
    for metric, tag in GAIN_TAGS.items():
        tags[tag] = "" if champion is None else interval_text(getattr(champion, metric))
    for name, number in _numbers(verdict).items():
        tags[name] = "" if number is None else f"{number:.4g}"
    return tags


def parse_gain(text: str) -> dict[str, float] | None:
    """Return mean, low and high of what `interval_text` wrote; None if it is no such text."""
    match = _GAIN.fullmatch(text)
    if match is None:
        return None
    return dict(zip(("mean", "low", "high"), map(float, match.groups()), strict=True))


def run_metrics(verdict: ProgramVerdict) -> dict[str, float]:
    """Return the metrics of the run: differences by opponent with their intervals, times, the verdict."""
    figures: dict[str, float] = {"register/promoted": float(verdict.promote)}
    for name, number in _numbers(verdict).items():
        if number is not None:
            figures[f"register/{name}"] = float(number)
    opponents = {comparison.opponent: comparison for comparison in verdict.references}
    if verdict.champion is not None:
        opponents["champion"] = verdict.champion
    for opponent, comparison in opponents.items():
        for metric in METRICS:
            difference: Difference = getattr(comparison, metric)
            name = f"register/minus_{opponent}/{metric}"
            figures[name] = difference.mean
            figures[f"{name}_low"], figures[f"{name}_high"] = difference.low, difference.high
    return figures


def content(
    version: Version,
    champion: Version | None,
    best: ProgramRow,
    verdict: ProgramVerdict,
    rule: PromotionRule,
    rounds: Mapping[str, RoundTime],
) -> dict[str, Any]:
    """Return a verdict as JSON values; NaN becomes null.

    Args:
        version: the challenger.
        champion: the champion after the verdict.
        best: the challenger's row of the leaderboard.
        verdict: what the rule said.
        rule: what it tolerates.
        rounds: "challenger" and "champion" -> time of a round, where measured.
    """
    numbers = verdict.challenger
    compared = [*verdict.references, *([] if verdict.champion is None else [verdict.champion])]
    return {
        "format_version": FORMAT_VERSION,
        "model": version.name,
        "challenger": {
            "version": version.number,
            "semver": version.semver,
            "model": best.model,
            "num_seeds": numbers.num_seeds,
            "predict_ms": numbers.predict_ms,
            "round_s": numbers.round_s,
        },
        "champion": None
        if champion is None
        else {"version": champion.number, "semver": champion.semver},
        "promoted": verdict.promote,
        "reasons": list(verdict.reasons),
        "comparisons": [asdict(comparison) for comparison in compared],
        "rounds": {
            name: {**asdict(time), "candidates": CANDIDATES, "seconds": time.seconds}
            for name, time in rounds.items()
        },
        "rule": asdict(rule),
    }


def _numbers(verdict: ProgramVerdict) -> dict[str, float | None]:
    challenger, champion = verdict.challenger, verdict.champion
    return {
        "num_seeds": challenger.num_seeds,
        "predict_ms": challenger.predict_ms,
        "round_s": challenger.round_s,
        "champion_predict_ms": None if champion is None else champion.predict_ms,
        "champion_round_s": None if champion is None else champion.round_s,
    }
