"""The stage `register`: the winner of an evaluation becomes a version, and champion if the rule allows it.

Which family: the best on networks left out of the training side, references aside (`ProgramBoard.winner`). Which
seed: the best pairwise accuracy on the validation part. The test part decides nothing but the promotion: all seeds of
the challenger against all seeds of each reference and of the champion, whose predictions are made anew on the same test
part. What is registered is that seed fitted once more on all records (:mod:`tencost.train.refit`); it has seen the test
networks, so that it is the twins, trained without them, that are compared, its own and the champion's. The two
registered bundles are timed in this process, one after the other.

Writes the notes that :mod:`tencost.register.notes` describes, and for DVC mlruns/registered/<dataset>/<hardware>.json:
the registered model and the digest of the content that was offered to it. It lies beside the registry, so that where
the registry is lost DVC runs the stage again; version numbers and times are in the registry alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from rich.console import Console

from tencost.config import Config
from tencost.errors import RecordError, RegistryError
from tencost.evaluate.leaderboard_table import markdown_table
from tencost.evaluate.prediction import load_model, predict_ms, program_rows
from tencost.evaluate.program_board import REFERENCES, ProgramBoard, ProgramRow
from tencost.evaluate.report import COLUMNS
from tencost.evaluate.scoring import HEADLINE, SeedScore, score_records
from tencost.evaluate.stage import best_seed, load_truth
from tencost.evaluate.truth import Truth
from tencost.features.computable import readable_stored
from tencost.register import notes, offering, registry
from tencost.register.comparison import Opponent, against_champion, compare
from tencost.register.promotion import YES, Challenger, Comparison, Rule, Verdict, judge
from tencost.register.registry import Version
from tencost.register.round_time import RoundTime, round_times
from tencost.register.start_records import training_starts
from tencost.register.starts import ship
from tencost.train import tracking
from tencost.train.bundle import Bundle, BundleInfo, load_bundle, training_digest
from tencost.train.data import Data
from tencost.train.ranker import reference_features
from tencost.train.refit import refit


@dataclass(frozen=True)
class _Report:
    """What `evaluate` found: the leaderboard, its winner, and the score of every model's every seed."""

    board: ProgramBoard
    best: ProgramRow
    truth: Truth
    scores: dict[str, list[SeedScore]]

    @property
    def own(self) -> list[SeedScore]:
        """The winner's score for each seed."""
        return self.scores[self.best.model]

    def references(self) -> tuple[Comparison, ...]:
        """Return the winner compared with each reference."""
        return tuple(
            compare(row.model, row.family, self.truth, self.own, self.scores[row.model])
            for row in self.board.models
            if row.reference
        )


def run(cfg: Config, root: Path, *, required: tuple[str, ...] | None = None) -> Verdict:
    """Register the winner on cfg.hardware and promote it if the rule allows.

    Args:
        cfg: names dataset, hardware and split.
        root: the project's root.
        required: families that a champion must have been compared with and must beat; None: all references that can
            be trained on the records.

    Raises:
        ConfigError: nothing was evaluated.
        RegistryError: there are only references to choose from, or the report is not of this split.
    """
    root = root.resolve()
    folder = root / cfg.paths.reports / cfg.dataset.name / cfg.hardware.name
    board = ProgramBoard.load(folder / "leaderboard.json")
    best = board.winner()
    if best is None:
        raise RegistryError(
            f"expected a model to register in {folder / 'leaderboard.json'}, found only references. "
            "Train one: tencost train model=xgb, then tencost evaluate"
        )
    client = registry.connect(tracking.setup(root, cfg.experiment_name))
    data = Data(cfg, root)
    truth = load_truth(data, "test")
    report = _Report(board, best, truth, read_scores(folder / "predictions.parquet", truth))
    twin = _chosen(root, best, report.own)

    champion = registry.find_champion(client, registry.model_name(cfg.hardware.name))
    with tempfile.TemporaryDirectory(prefix="tencost-") as work:
        bundle = twin
        if cfg.rule.refit:
            with Console(stderr=True).status(f"fitting {best.model} on all records"):
                bundle = load_bundle(refit(data, twin, Path(work) / "refit"))
        version, new = registry.register_bundle(
            client,
            _shipped(data, bundle, Path(work)),
            run_id=offering.run_of(
                client,
                cfg,
                "register",
                root / best.folder,
                training_digest(root / best.folder),
                best.seeds,
            ),
            hardware_text=cfg.hardware.description or cfg.hardware.name,
            description="",
            programs=program_rows(data, bundle.info, truth),
        )
    rule = Rule(min_seeds=cfg.rule.min_seeds)
    if champion is not None and champion.number == version.number:
        reason = f"{YES}version {version.number} is the champion already"
        verdict = Verdict(False, (reason,), references=report.references())
    else:
        opponent = Opponent(None, None, ())
        if champion is not None:
            opponent = against_champion(client, data, champion, truth, report.own)
        rounds, unmeasured = _rounds(cfg, root, truth, bundle, opponent.bundle)
        challenger = Challenger(
            num_seeds=len(report.own),
            predict_ms=predict_ms(bundle, program_rows(data, bundle.info, truth)),
            round_s=_seconds(rounds, "challenger"),
            unmeasured=unmeasured,
            rolled_back=version.tags.get(registry.ROLLED_BACK_TAG, ""),
        )
        met = opponent.with_round(_seconds(rounds, "champion"))
        asked, spared = _asked(cfg, root, board, twin) if required is None else (required, ())
        judged = judge(challenger, report.references(), met, required=asked, rule=rule)
        told = tuple(f"{YES}note that {note}" for note in (*opponent.notes, *spared))
        verdict = replace(judged, reasons=(*told, *judged.reasons))
        judged_against = champion
        champion = version if verdict.promote else champion
        values = notes.content(version, champion, best, verdict, rule, rounds)
        text = description(board, best, bundle, version, verdict)
        notes.write(client, version, best, verdict, text, values)
        if verdict.promote:  # last: a run killed before it judges and writes again
            registry.check_unchanged(client, version.name, judged_against)
            registry.promote(client, version)
    offering.mark(root, cfg, version)
    offering.say(version, new, champion, verdict)
    return verdict


def _asked(
    cfg: Config, root: Path, board: ProgramBoard, twin: Bundle
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the references that a champion must beat, and for each that nobody can train why it is not asked for.

    Programs of other tuners, and workloads that another TVM wrote, have no features of TVM's own: what reads these
    alone cannot be there. It is not enough that nobody has made those features: they are tried on the records, beside
    the features that the winner reads.
    """
    evaluated = {row.family for row in board.models}
    kinds = {name: reference_features(name) for name in REFERENCES if name not in evaluated}
    wanted = tuple(sorted({kind for kind in kinds.values() if kind}))
    if not wanted:
        return REFERENCES, ()
    try:
        found = readable_stored(
            root / cfg.paths.records / cfg.dataset.name, (*wanted, twin.info.feature_spec.kind)
        )
    except RecordError:  # without workloads nobody can tell
        return REFERENCES, ()
    spared = {name: kind for name, kind in kinds.items() if kind and not found.allows(kind)}
    notes = tuple(
        f"{name} is not asked for, since its features {kind} cannot be computed of these records: "
        f"{found.reasons[kind]}"
        for name, kind in spared.items()
    )
    return tuple(name for name in REFERENCES if name not in spared), notes


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


def description(
    board: ProgramBoard, best: ProgramRow, bundle: Bundle, version: Version, verdict: Verdict
) -> str:
    """Return a version's description in Markdown: figures, what it is for, how to use it, the verdict."""
    info = bundle.info
    lines = [
        f"**{info.family}** on `{info.feature_spec.name}` features for **{info.hardware}** "
        f"(target kind {info.target_kind}), version {version.semver}, seed {info.seed} of {list(best.seeds)}.",
        "",
        *_fitted_on(info),
        markdown_table(board, {name: COLUMNS[name] for name in (*HEADLINE, "trials_10pct")}),
        f"Test networks: {', '.join(board.networks)}; mean ± 95 % interval over seeds [over test tasks]. "
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


def _shipped(data: Data, bundle: Bundle, work: Path) -> Path:
    """Return the bundle's folder with starting points in it, or as it is where no MetaSchedule programs are known."""
    book = training_starts(data, refit=bool(bundle.info.refit))
    return ship(bundle.folder, book, work / "shipped") if len(book) else bundle.folder


def _chosen(root: Path, best: ProgramRow, scores: Sequence[SeedScore]) -> Bundle:
    """Return the bundle of the seed that did best on the validation part."""
    bundles = load_model(root / best.folder).bundles
    assert len(bundles) == len(scores) == len(best.seeds), "the report does not fit the models"
    values = best.valid_pairwise
    return bundles[values.index(max(values)) if values else best_seed(scores)]


def _rounds(
    cfg: Config, root: Path, truth: Truth, challenger: Bundle, champion: Bundle | None
) -> tuple[dict[str, RoundTime], str]:
    """Return each side's time of a round, or nothing and why it cannot be measured."""
    sides = {"challenger": challenger} | ({} if champion is None else {"champion": champion})
    times, unmeasured = round_times(cfg, root, truth, list(sides.values()))
    return dict(zip(sides, times, strict=True)) if times else {}, unmeasured


def _seconds(rounds: dict[str, RoundTime], side: str) -> float | None:
    return rounds[side].seconds if side in rounds else None
