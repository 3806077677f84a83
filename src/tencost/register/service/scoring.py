"""Scores of candidates that come as text: what the service's worker processes do.

A candidate is a schedule trace as MetaSchedule's databases write it; its rows are those of a stored program
(:mod:`tencost.features.rows.kind`), with the same guard against what could run code of others, and are bit for bit
those of the live candidate. Each candidate's score depends on nothing else in its batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tencost.errors import FeatureError, UntrustedError
from tencost.features.extractor import make_extractor
from tencost.features.rows.kind import Chunk, Outcome, kind_of
from tencost.models.programs.bundle import Bundle, load_bundle


@dataclass(frozen=True)
class ServedModel:
    """What a worker needs to know of the model that it asks.

    Attributes:
        folder: the bundle.
        device: what its device columns are made of.
    """

    folder: Path
    device: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class CandidateScore:
    """What became of a candidate: its score in (0, 1], and why it could not be read where that is so."""

    score: float
    reason: str = ""
    guessed: bool = False
    """Whether the score is a draft's guess, not the model's."""


def score_chunk(model: ServedModel, chunk: Chunk) -> list[CandidateScore]:
    """Score the candidates of a chunk, in their order; one that cannot be read scores lowest.

    Raises:
        FeatureError: TVM cannot read the workload's module.
        UntrustedError: it names what could run code of others.
        BundleError: the bundle does not fit this TVM, or is damaged.
    """
    bundle, extractor = _loaded(model)
    spec = bundle.info.feature_spec
    outcomes: list[Outcome] = []
    if chunk.programs:
        _check(chunk.mod_json)
        outcomes = kind_of(spec).stored(spec)(chunk)
    reasons = [outcome if isinstance(outcome, str) else "" for outcome in outcomes]
    rows = extractor.appended([None if isinstance(rows, str) else rows for rows in outcomes])
    scores = bundle.scores(rows).tolist()
    return [CandidateScore(score, reason) for score, reason in zip(scores, reasons, strict=True)]


def _check(mod_json: str) -> None:
    from tencost.programs.trace.replay import error_line, load_module

    try:
        load_module(mod_json)
    except UntrustedError:
        raise
    except Exception as error:  # noqa: BLE001 - TVM raises whatever its C++ side says
        raise FeatureError(f"workload: TVM cannot read the module: {error_line(error)}") from None


@cache
def _loaded(model: ServedModel) -> tuple[Bundle, Any]:
    import tvm

    from tencost.programs.trace.intrinsics import register_intrinsics

    bundle = load_bundle(model.folder, tvm_version=str(tvm.__version__))
    register_intrinsics(bundle.info.target_kind)
    return bundle, make_extractor(bundle.info.feature_spec, dict(model.device))
