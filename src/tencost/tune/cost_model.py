"""The cost model that MetaSchedule calls: a registered model, corrected by what this tuning run measures.

MetaSchedule clamps negative scores to 0 and draws parents in proportion to their scores, so scores are calibrated:
float64 in (0, 1], higher is faster, order kept. A candidate that cannot be featurized scores LOWEST_SCORE, below all
others, and stops nothing. With ``draft=False``, and for batches with fewer than 64 new candidates, a candidate has the
same score alone and in a batch; else those that a draft does not like are guessed, see
:mod:`tencost.models.draft_model`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.ir import save_json
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target
from tvm_ffi import structural_hash

from tencost.errors import BundleError, RegistryError
from tencost.features.device import attributes
from tencost.features.extractor import Extractor, make_extractor
from tencost.features.kinds import tiles
from tencost.features.rows.kind import kind_of
from tencost.features.rows.ragged import FloatArray, Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.models.draft_model import MIN_BATCH, guess_the_rest
from tencost.models.programs.bundle import Bundle, load_bundle
from tencost.models.programs.bundle.calibration import LOWEST_SCORE
from tencost.programs.codegen.build import prepare_compilation
from tencost.programs.starting_points import shipped_starts
from tencost.programs.trace.instructions import trace_key
from tencost.programs.trace.intrinsics import register_intrinsics
from tencost.register.pull import CHAMPION, EVERY_CPU, champion_of_cpu, default_alias, pull
from tencost.store.ids import workload_id
from tencost.tune.batches import Score, correlation, judge_scores
from tencost.tune.guard import Arm, Guard
from tencost.tune.residual import Doubles, Residual, aggregate
from tencost.workers.hardware import cpu_product_name, detect_host, host_flags
from tencost.workers.runner import target_mapping

MIN_UNREAD = 8
"""So many programs at once, none of which can be read, are no accident: a warning tells why."""
_log = logging.getLogger(__name__)
MAX_CACHED = 8192
"""Candidates whose features are remembered; the survivors of a generation are scored again in the next one."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """How well the model ranked a batch before it learnt from it.

    Attributes:
        task: name of the task.
        arm: who ranked the batch, see :mod:`tencost.tune.guard`.
        next_arm: who ranks the next one.
        residual_weight: weight of what was learnt, in [0, 1), after the batch.
        num_measured: programs in the batch.
        num_failed: those that did not build or run.
        kendall: Kendall's tau-b of scores with speed (1 / latency, 0 for failures) of the arm that ranked the batch, in
            [-1, 1], higher is better; None for fewer than 3 programs or no differences.
        fit_seconds: time that learning took; 0 if frozen.
        base_scores: the registered model's own score of each program, in (0, 1], in the order of the batch; none where
            no model is registered.
        scores: what the scores of every arm that could rank the batch were worth, see :mod:`tencost.tune.batches`.
    """

    task: str
    arm: Arm
    next_arm: Arm
    residual_weight: float
    num_measured: int = 0
    num_failed: int = 0
    kendall: float | None = None
    fit_seconds: float = 0.0
    base_scores: tuple[float, ...] = ()
    scores: Mapping[Arm, Score] = field(default_factory=dict)

    def score(self, arm: Arm) -> Score:
        """Return what an arm's scores of the batch were worth; nothing where it could not rank it."""
        return self.scores.get(arm, Score(None, None, None))

    @property
    def spearman(self) -> float | None:
        """Rank correlation as `kendall`, but Spearman's."""
        return self.score(self.arm).spearman

    @property
    def base_spearman(self) -> float | None:
        """Spearman's of the registered model alone, without what was learnt here."""
        return self.score(Arm.registered).spearman

    @property
    def residual_spearman(self) -> float | None:
        """Spearman's of the registered model with what was learnt here."""
        return self.score(Arm.residual).spearman

    @property
    def scratch_spearman(self) -> float | None:
        """Spearman's of trees that know only what was learnt here; None before there are any."""
        return self.score(Arm.scratch).spearman


@dataclass(frozen=True)
class _Scored:
    """A candidate that was scored in full: its rows and the registered model's score."""

    rows: FloatArray
    base: float


@derived_object
class TencostModel(ms.cost_model.PyCostModel):
    """A model bundle behind MetaSchedule's CostModel interface. Make one with :func:`load_cost_model`.

    Attributes:
        bundle: the registered model; None for a model from scratch.
        target: the TVM Target that its programs were compiled for, which is what to tune for; of a model of every CPU
            this host's. None where the bundle does not say: one that was never registered ships no starting points.
        frozen: whether it does not learn.
        history: the rounds so far.
    """

    def __init__(
        self,
        bundle: Bundle | None,
        extractor: Extractor,
        *,
        frozen: bool = False,
        draft: bool = True,
        on_round: Callable[[Round], None] | None = None,
        target: Any = None,
        warn: bool = True,
    ) -> None:
        super().__init__()
        self.bundle = bundle
        self.target = target
        self._warned: set[str] | None = set() if warn and target is not None else None
        self.frozen = frozen
        self.history: list[Round] = []
        self.on_round = on_round
        self._extractor = extractor
        self._residual = Residual()
        self._scratch = Residual()
        self._guard = Guard(Arm.registered if frozen else Arm.residual)
        self._draft = draft and kind_of(extractor.spec).lowers  # lowering is what a draft saves
        self._generator = np.random.default_rng(0)
        self._cache: dict[int, _Scored] = {}
        self._tile_rows: dict[int, dict[int, FloatArray]] = {}
        self._wide: dict[int, Any] = {}
        self._refused: Exception | None = None
        self._groups: dict[int, str] = {}
        self._lock = threading.RLock()

    def predict(self, context: Any, candidates: Sequence[Any]) -> Doubles:
        """Return scores, float64 [N] in (0, 1], higher is faster."""
        with self._lock:
            context = self._completed(context)
            keys = self._keys(context, candidates)
            by_key = dict(zip(keys, candidates, strict=True))
            new = {key: by_key[key] for key in by_key if key not in self._cache}
            guesses: Mapping[int, float] = {}
            if self._draft and len(new) >= MIN_BATCH:
                guesses = self._verify(context, new)
            else:
                self._extract(context, new)
            scores = np.array([guesses.get(key, np.nan) for key in keys], np.float64)
            scores[np.isnan(scores)] = self._scores([key for key in keys if key not in guesses])
            return scores

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Note how well the batch was ranked, then learn from it (unless frozen)."""
        if len(candidates) == 0:  # MetaSchedule leaves out programs that did not build
            return
        with self._lock:
            context = self._completed(context)
            features, base = self._scored(context, candidates)
            latency = latencies_s(results)
            speed = np.nan_to_num(1.0 / latency, nan=0.0)
            arm = self._in_charge()
            scores = {each: self._ranked(each, features, base) for each in self._arms()}
            judged = {each: judge_scores(scores[each], latency) for each in scores}
            next_arm = arm
            if not self.frozen:
                ranks = {each: score.spearman for each, score in judged.items()}
                next_arm = self._guard.note(ranks, len(candidates))
            fit_seconds = self._learn(context, features, base, latency)
            finished = Round(
                task=str(context.task_name),
                arm=arm,
                next_arm=next_arm,
                num_measured=len(candidates),
                num_failed=int(np.isnan(latency).sum()),
                kendall=correlation("kendalltau", scores[arm], speed),
                fit_seconds=fit_seconds,
                residual_weight=self._residual.weight,
                base_scores=() if self.bundle is None else tuple(base.tolist()),
                scores=judged,
            )
            self.history.append(finished)
        if self.on_round is not None:
            self.on_round(finished)

    def not_ranked(self, task: str) -> Round:
        """Return the round of a batch of which nothing was built: nobody ranked it, nothing was learnt."""
        with self._lock:
            arm = self._in_charge()
            weight = self._residual.weight
            return Round(task=task, arm=arm, next_arm=arm, residual_weight=weight)

    def warm_start(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Learn from measurements of an earlier run: nothing was predicted, so no round is noted."""
        with self._lock:
            context = self._completed(context)
            features, base = self._scored(context, candidates)
            self._learn(context, features, base, latencies_s(results))

    def save(self, path: str) -> None:
        """Write what was learnt here (not the bundle) and who ranks now to one .npz file.

        What is remembered of candidates is forgotten, as a model that loads the file remembers none: both give the
        same scores from here on, guesses of large batches included.
        """
        with self._lock:
            self._residual.save(Path(path), self._guard)
            self._forget()

    def load(self, path: str) -> None:
        """Read what `save` wrote; raises TuneError on anything else."""
        with self._lock:
            self._residual, guard = Residual.load(Path(path))
            self._scratch = self._residual.without_base()
            if not self.frozen:  # a frozen model ranks alone, whoever wrote the file
                self._guard = Guard() if guard is None else guard
            self._forget()

    def _forget(self) -> None:
        """Forget the candidates seen, and begin the draft's random numbers anew."""
        self._cache.clear()
        self._tile_rows.clear()
        self._generator = np.random.default_rng(0)

    def _keys(self, context: Any, candidates: Sequence[Any]) -> list[int]:
        """Return what candidates are remembered by; make room for them."""
        if self.bundle is not None and str(context.target.kind) != self.bundle.info.target_kind:
            raise BundleError(
                f"bundle {self.bundle.folder}: it scores programs for target kind {self.bundle.info.target_kind!r}, "
                f"found a tuning task for {str(context.target.kind)!r}. Choose a model that was trained for that kind."
            )
        self._compare_targets(context)
        if len(self._cache) + len(candidates) > MAX_CACHED:
            self._cache.clear()
            self._tile_rows.clear()
        task = structural_hash(context.mod)
        return [hash((task, trace_key(candidate))) for candidate in candidates]

    def _compare_targets(self, context: Any) -> None:
        """Warn, once a target, where programs are compiled for another target than those that the model knows."""
        if self._warned is None:
            return
        tuned, trained = target_mapping(context.target), target_mapping(self.target)
        text = str(context.target)
        if text in self._warned or tuned == trained:
            return
        self._warned.add(text)
        assert self.bundle is not None, "a model from scratch has no target"
        warnings.warn(
            f"{context.task_name} is tuned for target {tuned}, the model of {self.bundle.info.hardware} ranks programs "
            f"that are compiled for {trained}: they are slower or faster for other reasons. Write target=model.target "
            "and space=tencost.search_space(model.target), or load a model of that target",
            stacklevel=2,
        )

    def _scored(self, context: Any, candidates: Sequence[Any]) -> tuple[Ragged, Doubles]:
        """Return the candidates' rows, and the registered model's scores of them."""
        keys = self._keys(context, candidates)
        by_key = dict(zip(keys, candidates, strict=True))
        self._extract(context, {key: by_key[key] for key in by_key if key not in self._cache})
        return self._remembered(keys)

    def _remembered(self, keys: Sequence[int]) -> tuple[Ragged, Doubles]:
        scored = [self._cache[key] for key in keys]
        columns = len(self._extractor.spec.columns)
        features = Ragged.from_blocks([candidate.rows for candidate in scored], columns)
        return features, np.array([candidate.base for candidate in scored], np.float64)

    def _scores(self, keys: Sequence[int]) -> Doubles:
        """Return the scores of the arm in charge for candidates whose features are remembered."""
        features, base = self._remembered(keys)
        return self._ranked(self._in_charge(), features, base)

    def _verify(self, context: Any, new: Mapping[int, Any]) -> dict[int, float]:
        """Score the promising share of new candidates in full; return guesses for the others."""
        rows = {}
        for key, candidate in new.items():
            with suppress(Exception):  # a trace that cannot be read must not stop the search
                row = tiles.candidate_row(candidate, key)
                if row is not None:
                    rows[key] = row

        def score_in_full(keys: Iterable[int]) -> None:
            self._extract(context, {key: new[key] for key in keys})

        score_in_full([key for key in new if key not in rows])
        scored = self._tile_rows.setdefault(structural_hash(context.mod), {})
        return guess_the_rest(rows, scored, score_in_full, self._scores, self._generator)

    def _extract(self, context: Any, new: Mapping[int, Any]) -> None:
        """Remember the rows of new candidates, and the registered model's scores of them."""
        if not new:
            return
        rows = self._rows(context, list(new.values()))
        features = Ragged.from_blocks(rows, len(self._extractor.spec.columns))
        if self.bundle is None:
            base = np.where(features.lengths > 0, 0.5, LOWEST_SCORE)
        else:
            base = self.bundle.scores(features)
        for key, block, score in zip(new, rows, base.tolist(), strict=True):
            self._cache[key] = _Scored(block, score)
        if len(rows) >= MIN_UNREAD and not any(map(len, rows)) and self._refused is not None:
            warnings.warn(
                f"none of {len(rows)} programs of {context.task_name} could be read, the search is blind: "
                f"{self._refused}",
                stacklevel=2,
            )

    def _rows(self, context: Any, candidates: Sequence[Any]) -> list[FloatArray]:
        """Return each candidate's rows; none for a candidate that the extractor cannot read."""
        try:
            rows = self._extractor.extract(context, candidates)
        except Exception as error:  # noqa: BLE001 - whatever TVM raises for one candidate must not stop the search
            if len(candidates) == 1:
                self._refused = error
                return [np.zeros((0, len(self._extractor.spec.columns)), np.float32)]
            return [rows for candidate in candidates for rows in self._rows(context, [candidate])]
        return [rows[position] for position in range(len(rows))]

    def _completed(self, context: Any) -> Any:
        """Return the context with a target and with a thread for each CPU of this process: TVM lowers on them.

        A context without a target is of the target that the model's programs were compiled for, else of its kind.
        """
        cpus = len(os.sched_getaffinity(0))
        if int(context.num_threads) >= cpus and context.target is not None:
            return context
        target = context.target or self.target
        if target is None:
            target = Target("llvm" if self.bundle is None else self.bundle.info.target_kind)
        key = hash((structural_hash(context.mod), str(target), str(context.task_name)))
        if key not in self._wide:
            self._wide[key] = ms.TuneContext(
                mod=context.mod, target=target, task_name=context.task_name, num_threads=cpus
            )
        return self._wide[key]

    def _in_charge(self) -> Arm:
        """Return the arm that ranks now: what the guard chose, or the residual where that has learnt nothing yet."""
        chosen = self._guard.in_charge
        return chosen if chosen in self._arms() else Arm.residual

    def _arms(self) -> list[Arm]:
        """Return the arms that can rank now."""
        return [arm for arm in Arm if arm is not Arm.scratch or self._scratch.trained]

    def _ranked(self, arm: Arm, features: Ragged, base: Doubles) -> Doubles:
        if arm is Arm.scratch and self._scratch.trained:
            scores = self._scratch.alone(aggregate(features))
        elif arm is Arm.residual and self._residual.trained:
            scores = self._residual.apply(aggregate(features), base)
        else:
            return base
        return np.where(features.lengths > 0, scores, LOWEST_SCORE)

    def _learn(self, context: Any, features: Ragged, base: Doubles, latency: Doubles) -> float:
        usable = np.flatnonzero(features.lengths > 0)
        if self.frozen or len(usable) == 0:
            return 0.0
        started = time.perf_counter()
        rows, group = aggregate(features)[usable], self._group(context)
        self._residual.add(group, rows, base[usable], latency[usable])
        self._scratch.add(group, rows, np.zeros(len(usable)), latency[usable])
        self._residual.fit()
        self._scratch.fit()
        return time.perf_counter() - started

    def _group(self, context: Any) -> str:
        key = structural_hash(context.mod)
        if key not in self._groups:
            workload = workload_id(str(save_json(context.mod)))
            self._groups[key] = f"{workload} {target_mapping(context.target)}"
        return self._groups[key]


def load_cost_model(
    uri: str | Path | None = None,
    *,
    hardware: str = "local",
    frozen: bool = False,
    draft: bool = True,
    target_kind: str = "llvm",
    device: Mapping[str, float] | None = None,
    on_round: Callable[[Round], None] | None = None,
    root: Path | None = None,
) -> Any:
    """Return a registered model as the object for `cost_model=` of ms.tune_tir, tune_tasks and tune_relax.

    Its `target` is what to tune for: the TVM Target that its training programs were compiled for. A task for another
    one is a warning. TVM's tensor intrinsics of the target's kind are registered, and of no other kind, as TVM would at
    its first TuneContext, where those of all kinds take minutes; see :mod:`tencost.programs.trace.intrinsics`. For
    CPUs the vector mathematics of the tuner's workers is registered, too, for the life of the process: ``tvm.compile``
    of the result then makes the code that was measured, see :func:`tencost.build`.

    Args:
        uri: ``models:/<name>@<alias>``, ``models:/<name>/<version>``, ``runs:/...`` or the folder of a bundle; None
            takes the champion of `hardware` (what TENCOST_ALIAS names instead), or where it has none that of every CPU
            (``tencost-cpu``), and warns. With neither, this host's instruction sets choose a champion by name, and the
            log says which and why: the registry's of that name, or the one that is packaged with tencost.
        hardware: name of the hardware that is tuned on, where no `uri` says which model.
        frozen: do not learn from this run's measurements.
        draft: score only the promising share of large batches in full, guess the others, see
            :mod:`tencost.models.draft_model`; False scores all in full, each the same alone and in a batch.
        target_kind: kind of TVM target that is to be tuned; the bundle must be for it.
        device: what the bundle's device columns are made of on the hardware that is tuned on, see
            tencost.features.device.attributes; None takes those of the hardware that the model was trained for, of a
            model of several hardware those of this host. Who gives it has chosen the target: no warning compares it.
        on_round: called after every measured batch.
        root: the project whose registry is meant where MLFLOW_TRACKING_URI is not set; found upwards from the
            working folder by default.

    Raises:
        RegistryError: the model cannot be found and no copy of it is cached; without `uri`: no packaged champion fits
            this host either.
        BundleError: it does not fit this TVM or target, or is damaged.
    """
    folder = _champion(hardware, target_kind, root) if uri is None else pull(str(uri), root=root)
    bundle = load_bundle(folder, target_kind=target_kind, tvm_version=str(tvm.__version__))
    spec = bundle.info.feature_spec
    warn, host = device is None, None
    if device is None:
        device = bundle.info.device
        if spec.device_columns and not device:
            host = detect_host()
            device = attributes(host)
    extractor = make_extractor(spec, dict(device))
    target = _trained_target(bundle) if host is None else Target(host.target)
    register_intrinsics(target_kind)
    prepare_compilation(target_kind)
    return TencostModel(
        bundle,
        extractor,
        frozen=frozen,
        draft=draft,
        on_round=on_round,
        target=target,
        warn=warn,
    )


def _trained_target(bundle: Bundle) -> Any:
    """Return the TVM Target of a bundle's starting points, which is that of its training; None where it has none.

    None, too, for a model of several hardware, which has several targets, and for starting points that cannot be read:
    they are refused where they are used. Raises BundleError where TVM does not know the target.
    """
    info = bundle.info
    if info.feature_spec.device_columns and not info.device:
        return None
    try:
        book = shipped_starts(bundle.folder)
    except BundleError:
        return None
    if book is None:
        return None
    try:
        return Target(book.target)
    except (ValueError, TypeError, RuntimeError) as error:
        raise BundleError(
            f"bundle {bundle.folder}: expected starting points for a TVM target, found {book.target}: {error}"
        ) from error


def _champion(hardware: str, target_kind: str, root: Path | None) -> Path:
    """Return the bundle of a hardware's champion, or of every CPU's, or of the one for CPUs like this host.

    Raises:
        RegistryError: there is none.
    """
    alias = default_alias()
    try:
        return pull(f"models:/tencost-{hardware}@{alias}", root=root)
    except RegistryError as error:
        if target_kind != "llvm" or hardware == EVERY_CPU:
            raise
        try:
            folder = pull(f"models:/tencost-{EVERY_CPU}@{alias}", root=root)
        except RegistryError:
            if hardware != "local" or alias != CHAMPION:
                raise error from None
            _, folder, why = champion_of_cpu(host_flags(), cpu_product_name(), error, root=root)
            _log.warning("cost model: %s", why)
            return folder
    warnings.warn(
        f"no registered model for hardware {hardware}: tencost-{EVERY_CPU}, which knows a CPU by its description, "
        "is used",
        stacklevel=3,
    )
    return folder


def scratch_cost_model(spec: FeatureSpec) -> Any:
    """Return a cost model that knows nothing before the first measurements: where no model is registered.

    Args:
        spec: a feature set without device columns, which would be constant.
    """
    return TencostModel(None, make_extractor(spec, {}))


def latencies_s(results: Sequence[Any]) -> Doubles:
    """Return median seconds of each RunnerResult, float64 [N]; NaN for a failure (TVM marks some as 1e10 s)."""
    medians = [
        float(np.median([float(seconds) for seconds in result.run_secs]))
        if result.run_secs
        else np.nan
        for result in results
    ]
    latency = np.array(medians, np.float64)
    return np.where((latency > 0) & (latency < 1e9), latency, np.nan)
