"""What `tencost register` offers: the best model of programs of a hardware, see :mod:`tencost.register.stage`.

Which family: the best on networks left out of the training side, references aside (`ProgramBoard.winner`). Which
seed: the best pairwise accuracy on the validation part. The test part decides nothing but the promotion: all seeds of
the challenger against all seeds of each reference and of the champion, whose predictions are made anew on the same test
part. What is registered is that seed fitted once more on all records (:mod:`tencost.train.fit.refit`); it has seen the
test networks, so that it is the twins, trained without them, that are compared, its own and the champion's. The two
registered bundles are timed in this process, one after the other.

Writes the notes that :mod:`tencost.register.notes` describes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import orjson
import polars as pl
from rich.console import Console

from tencost.config import Config
from tencost.errors import RecordError, RegistryError
from tencost.evaluate.leaderboard_table import markdown_table
from tencost.evaluate.prediction import load_seeds, predict_ms, program_rows
from tencost.evaluate.program_board import REFERENCES, ProgramBoard, ProgramRow
from tencost.evaluate.report import COLUMNS
from tencost.evaluate.scoring import HEADLINE, SeedScore, score_records
from tencost.evaluate.stage import best_seed, load_truth
from tencost.evaluate.truth import Truth
from tencost.features.computable import readable_stored
from tencost.features.rows.ragged import Ragged
from tencost.models.programs.bundle import Bundle, BundleInfo, load_bundle, training_digest
from tencost.models.programs.ranker import reference_features
from tencost.register import notes, registry, stage
from tencost.register.comparison import ChampionOpponent, against_champion, compare_scores
from tencost.register.promotion import Challenger, ProgramVerdict, PromotionRule, judge_ranker
from tencost.register.registry import Offer, Version
from tencost.register.round_time import RoundTime, round_times
from tencost.register.stage import RegistrationSubject
from tencost.register.start_records import ship, training_starts
from tencost.register.verdict import PromotionVerdict
from tencost.tracking.runs import TrackedRun
from tencost.train.data import Data
from tencost.train.fit.refit import fit_all_parts

_JSON = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE


@dataclass
class ProgramSubject(RegistrationSubject[ProgramRow, ProgramVerdict]):
    """The winner among the models of programs of a hardware.

    Attributes:
        required: families that a champion must have been compared with and must beat; None: all references that can
            be trained on the records.
    """

    COMMAND: ClassVar = "register"
    TRAIN: ClassVar = "tencost train model=xgb, then tencost evaluate"

    required: tuple[str, ...] | None = None
    _rounds: dict[str, RoundTime] = field(default_factory=dict)

    @property
    def model_name(self) -> str:
        return registry.model_name(self.cfg.hardware.name)

    @property
    def report(self) -> Path:
        cfg = self.cfg
        return self.root / cfg.paths.reports / cfg.dataset.name / cfg.hardware.name

    @cached_property
    def board(self) -> ProgramBoard:
        return ProgramBoard.load(self.report / ProgramBoard.FILE)

    @cached_property
    def data(self) -> Data:
        """The records, as the split has them."""
        return Data(self.cfg, self.root)

    @cached_property
    def truth(self) -> Truth:
        """The test part."""
        return load_truth(self.data, "test")

    @cached_property
    def scores(self) -> dict[str, list[SeedScore]]:
        """The scores of every model, one a seed."""
        return read_scores(self.report / "predictions.parquet", self.truth)

    @cached_property
    def twin(self) -> Bundle:
        """The winner's bundle of the seed that did best on the validation part."""
        scores, pairwise = self.scores[self.row.model], self.row.valid_pairwise
        bundles = load_seeds(self.root / self.row.folder).bundles
        assert len(bundles) == len(scores) == len(self.row.seeds), (
            "the report does not fit the models"
        )
        return bundles[pairwise.index(max(pairwise)) if pairwise else best_seed(scores)]

    @cached_property
    def bundle(self) -> Bundle:
        """What is registered: the twin, or that seed fitted once more on all records."""
        if not self.cfg.rule.refit:
            return self.twin
        with Console(stderr=True).status(f"fitting {self.row.model} on all records"):
            return load_bundle(fit_all_parts(self.data, self.twin, self.work / "refit"))

    @cached_property
    def programs(self) -> Ragged:
        """The programs of the test part as the bundle reads them."""
        return program_rows(self.data, self.bundle.info, self.truth)

    def training(self) -> tuple[Path, str]:
        folder = self.root / self.row.folder
        return folder, training_digest(folder)

    def offer(self) -> Offer:
        """Return the bundle, with starting points in it where MetaSchedule programs are known."""
        folder = self.bundle.folder
        book = training_starts(self.data, refit=bool(self.bundle.info.refit))
        if len(book):
            folder = ship(folder, book, self.work / "shipped")
        hardware = self.cfg.hardware
        return registry.bundle_offer(folder, hardware.description or hardware.name, self.programs)

    def judge(self, client: Any, version: Version, champion: Version | None) -> ProgramVerdict:
        scores, opponent = self.scores[self.row.model], ChampionOpponent()
        if champion is not None:
            opponent = against_champion(client, self.data, champion, self.truth, scores)
        sides = {"challenger": self.bundle}
        if opponent.bundle is not None:
            sides["champion"] = opponent.bundle
        times, unmeasured = round_times(self.cfg, self.root, self.truth, list(sides.values()))
        self._rounds = dict(zip(sides, times, strict=True)) if times else {}
        challenger = Challenger(
            num_seeds=len(scores),
            predict_ms=predict_ms(self.bundle, self.programs),
            round_s=self._seconds("challenger"),
            unmeasured=unmeasured,
            rolled_back=version.tags.get(registry.ROLLED_BACK_TAG, ""),
        )
        references = tuple(
            compare_scores(row.model, row.family, self.truth, scores, self.scores[row.model])
            for row in self.board.models
            if row.reference
        )
        required, spared = (self.required, ()) if self.required is not None else self._required()
        compared = opponent.comparison
        if compared is not None:
            compared = replace(compared, round_s=self._seconds("champion"))
        verdict = judge_ranker(challenger, references, compared, required=required, rule=self._rule)
        return verdict.with_notes((*opponent.notes, *spared))

    def description(self, version: Version) -> str:
        """Return figures, what the version is for and how to use it."""
        info, board = self.bundle.info, self.board
        columns = {name: COLUMNS[name] for name in (*HEADLINE, "trials_10pct")}
        lines = [
            f"**{info.family}** on `{info.feature_spec.name}` features for **{info.hardware}** "
            f"(target kind {info.target_kind}), version {version.semver}, seed {info.seed} of {list(self.row.seeds)}.",
            "",
            *_fitted_on(info),
            markdown_table(board, columns),
            f"Test networks: {', '.join(board.networks)}; mean ± 95 % interval over seeds [over test tasks]. "
            f"Trained on {info.dataset} ({board.split}), TVM >= {info.tvm_range[0]} and < {info.tvm_range[1]}.",
            "",
            "```python",
            "import tencost",
            f'cost_model = tencost.load_cost_model("models:/{version.name}/{version.number}")',
            "# cost_model=... of ms.tune_tir, ms.tune_tasks and relax_integration.tune_relax",
            "```",
            "",
        ]
        return "\n".join(lines)

    def tags(self, verdict: ProgramVerdict) -> dict[str, str]:
        figures = {metric: f"{self.row.mean(metric):.4f}" for metric in HEADLINE}
        return notes.version_tags(verdict) | figures

    def note(
        self,
        client: Any,
        version: Version,
        champion: Version | None,
        verdict: ProgramVerdict,
        text: str,
    ) -> None:
        run = TrackedRun(client, version.run_id)
        run.set_tag("register.verdict", verdict.word)
        run.set_tag("register.version", f"{version.name} {version.semver}")
        run.set_tag("register.reasons", "\n".join(verdict.reasons)[: notes.MAX_RUN_TAG])
        run.log_metrics(notes.run_metrics(verdict))
        client.log_text(run.run_id, text, "register/verdict.md")
        record = notes.content(version, champion, self.row, verdict, self._rule, self._rounds)
        json = orjson.dumps(record, option=_JSON).decode()
        client.log_text(run.run_id, json, "register/verdict.json")

    @property
    def _rule(self) -> PromotionRule:
        return PromotionRule(min_seeds=self.cfg.rule.min_seeds)

    def _seconds(self, side: str) -> float | None:
        return self._rounds[side].seconds if side in self._rounds else None

    def _required(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the references that a champion must beat, and for each that nobody can train why it is not asked for.

        Programs of other tuners, and workloads that another TVM wrote, have no features of TVM's own: what reads
        these alone cannot be there. It is not enough that nobody has made those features: they are tried on the
        records, beside the features that the winner reads.
        """
        evaluated = {row.family for row in self.board.models}
        kinds = {name: reference_features(name) for name in REFERENCES if name not in evaluated}
        missing = tuple(sorted({kind for kind in kinds.values() if kind}))
        if not missing:
            return REFERENCES, ()
        folder = self.root / self.cfg.paths.records / self.cfg.dataset.name
        try:
            readable = readable_stored(folder, (*missing, self.twin.info.feature_spec.kind))
        except RecordError:  # without workloads nobody can tell
            return REFERENCES, ()
        spared = {name: kind for name, kind in kinds.items() if kind and not readable.allows(kind)}
        notes = tuple(
            f"{name} is not asked for, since its features {kind} cannot be computed of these records: "
            f"{readable.reasons[kind]}"
            for name, kind in spared.items()
        )
        return tuple(name for name in REFERENCES if name not in spared), notes


def run(cfg: Config, root: Path, *, required: tuple[str, ...] | None = None) -> PromotionVerdict:
    """Register the winner on cfg.hardware, see `stage.run`; `required` is that of `ProgramSubject`."""
    return stage.run(cfg, root, partial(ProgramSubject, required=required))


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


def _fitted_on(info: BundleInfo) -> list[str]:
    """Return what a refitted version has learnt from, and that its figures are its twin's; nothing for another one."""
    if not info.refit:
        return []
    networks = info.refit["networks"]
    return [
        f"Fitted on all {info.refit['records']:,} records ({info.refit['parts']}) of {len(networks)} networks "
        f"({', '.join(networks)}); judged as its twin without the test networks, whose figures these are:",
        "",
    ]
