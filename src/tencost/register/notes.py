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

import orjson

from tencost.evaluate.interval import Difference
from tencost.evaluate.program_board import ProgramRow
from tencost.register.promotion import METRICS, Comparison, ProgramVerdict, Rule
from tencost.register.registry import Version
from tencost.register.round_time import CANDIDATES, RoundTime
from tencost.register.verdict import interval_text

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
    return tags | {name: _text(value) for name, value in _own_numbers(verdict).items()}


def gain(text: str) -> Difference | None:
    """Return what `interval_text` wrote (0 resamples: their number is not in it); None if it is no such text."""
    found = _GAIN.fullmatch(text)
    if found is None:
        return None
    mean, low, high = (float(value) for value in found.groups())
    return Difference(mean, low, high, 0)


def run_metrics(verdict: ProgramVerdict) -> dict[str, float]:
    """Return the metrics of the run: differences by opponent with their intervals, times, the verdict."""
    figures: dict[str, float] = {"register/promoted": float(verdict.promote)}
    for name, value in _own_numbers(verdict).items():
        if value is not None:
            figures[f"register/{name}"] = float(value)
    compared: list[tuple[str, Comparison]] = [(one.opponent, one) for one in verdict.references]
    if verdict.champion is not None:
        compared.append(("champion", verdict.champion))
    for opponent, one in compared:
        for metric in METRICS:
            difference: Difference = getattr(one, metric)
            name = f"register/minus_{opponent}/{metric}"
            figures[name] = difference.mean
            figures[f"{name}_low"], figures[f"{name}_high"] = difference.low, difference.high
    return figures


def content(
    version: Version,
    champion: Version | None,
    best: ProgramRow,
    verdict: ProgramVerdict,
    rule: Rule,
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
    own = verdict.challenger
    compared = [*verdict.references, *([] if verdict.champion is None else [verdict.champion])]
    return {
        "format_version": FORMAT_VERSION,
        "model": version.name,
        "challenger": {
            "version": version.number,
            "semver": version.semver,
            "model": best.model,
            "num_seeds": own.num_seeds,
            "predict_ms": own.predict_ms,
            "round_s": own.round_s,
        },
        "champion": None
        if champion is None
        else {"version": champion.number, "semver": champion.semver},
        "promoted": verdict.promote,
        "reasons": list(verdict.reasons),
        "comparisons": [asdict(item) for item in compared],
        "rounds": {
            name: {**asdict(one), "candidates": CANDIDATES, "seconds": one.seconds}
            for name, one in rounds.items()
        },
        "rule": asdict(rule),
    }


def verdict_json(values: dict[str, Any]) -> str:
    """Return what `content` returns as the text of verdict.json."""
    return (orjson.dumps(values, option=orjson.OPT_INDENT_2) + b"\n").decode()


def _own_numbers(verdict: ProgramVerdict) -> dict[str, float | None]:
    own, champion = verdict.challenger, verdict.champion
    return {
        "num_seeds": own.num_seeds,
        "predict_ms": own.predict_ms,
        "round_s": own.round_s,
        "champion_predict_ms": None if champion is None else champion.predict_ms,
        "champion_round_s": None if champion is None else champion.round_s,
    }


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
