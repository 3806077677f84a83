"""`tencost adapt curve`: labels against the share of the native model's figures, for one model and one new hardware.

Writes data/reports/<dataset>/<hardware>/adapt-from-<hardware of the model>/: curve.md, curve.csv, curve.png; and an
MLflow run with them and with ``adapt/<mode>/<figure>``, per cent of native, at step = labels.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from tencost.adapt.fitting import SourceModel
from tencost.adapt.pool import LabelPool, program_features, read_pool
from tencost.adapt.stage import choose_and_label, run_parameters
from tencost.compat.curves import label_curve_report
from tencost.compat.curves.label_curve import (
    NATIVE,
    Choose,
    Point,
    Summary,
    curve,
    judged,
    summarized,
)
from tencost.config import AdaptMode, Config
from tencost.errors import ConfigError, TrainError
from tencost.evaluate.truth import Truth, build_truth
from tencost.features.rows.ragged import IntArray, Ragged
from tencost.models.manifest import MANIFEST
from tencost.models.programs.bundle import Bundle, load_bundle
from tencost.models.programs.families.corrected import base_config, spread_within
from tencost.models.programs.ranker import make_ranker
from tencost.register.pull import pull
from tencost.tracking import runs as tracking
from tencost.tracking.runs import MetricPoint as Logged
from tencost.train.data import Data
from tencost.writing import shown_path, whole_folder


def run(cfg: Config, root: Path) -> Path:
    """Draw the curve; return the folder of the report.

    Raises:
        ConfigError: no model is named, or one of the hardware itself.
        TrainError: the dataset has no records of the hardware outside the test part.
        SplitError: or none in it.
    """
    bundles = _bundles(cfg, root)
    info = bundles[0].info
    spec = info.feature_spec
    features = replace(
        cfg.features,
        name=spec.name,
        kind=spec.kind,
        device_columns=any(name.startswith("device_") for name in spec.device_columns),
        relations=any(name.startswith("rel_") for name in spec.device_columns),
    )
    data = Data(replace(cfg, features=features), root)
    truth = build_truth(data.judged_records, data.split, data.tasks, cfg.hardware.name, "test")
    tested = program_features(data, bundles[0], cfg.hardware, truth.program_id.tolist())
    modes = [AdaptMode.residual, AdaptMode.scratch]
    if info.family in ("xgb", "blend"):
        modes.insert(1, AdaptMode.fine_tune)
    console = Console(stderr=True)
    pool = read_pool(data, bundles[0], cfg.hardware, recorded=True)
    folder = (
        root
        / cfg.paths.reports
        / cfg.dataset.name
        / cfg.hardware.name
        / f"adapt-from-{info.hardware}"
    )
    title = f"{info.family}: {info.hardware} to {cfg.hardware.name}"
    parameters = run_parameters(cfg) | {
        "family": info.family,
        "from": info.hardware,
        "seeds": ",".join(map(str, cfg.seeds)),
    }
    with tracking.start_run(
        cfg, root, stage="adapt curve", name=f"labels {title}", parameters=parameters
    ) as tracked:
        points: list[Point] = []
        for seed, bundle in zip(cfg.seeds, bundles, strict=True):
            with console.status(f"{title}, seed {seed}"):
                score = bundle.ranker.predict(pool.features)
                seed_pool = replace(pool, score=score, spread=spread_within(score, pool.group))
                source = SourceModel(bundle.ranker, bundle.info, seed_pool.spread)
                points.append(_native(data, bundle, (truth, tested), seed))
                points += curve(
                    seed_pool, source, (truth, tested), cfg.adapt.counts, modes, _chooser(cfg), seed
                )
        summaries = summarized(points)
        table = label_curve_report.markdown(summaries)
        with whole_folder(folder) as partial:
            (partial / "curve.md").write_text(table, encoding="utf-8")
            label_curve_report.write_csv(summaries, partial / "curve.csv")
            label_curve_report.plot(summaries, partial / "curve.png", title)
        tracked.log_points(_logged(summaries))
        tracked.log_artifacts(folder, "adapt")
    console.print(
        f"{title}: {len(truth.tasks)} test tasks, {len(truth.record_id)} programs; {len(pool)} programs of "
        f"{pool.num_tasks} tasks may be labelled\n\n{table}\n{shown_path(folder, root)}",
        soft_wrap=True,
    )
    return folder


def _bundles(cfg: Config, root: Path) -> list[Bundle]:
    """Return the model to start from, a bundle a seed: those of a training, or one for all seeds."""
    if cfg.model_uri is None:
        raise ConfigError(
            "expected the model to start from, found none. Name a folder of bundles, one a seed, or a registered "
            "model: tencost adapt curve model=data/models/... hardware=..."
        )
    trained = Path(cfg.model_uri) if Path(cfg.model_uri).is_absolute() else root / cfg.model_uri
    if any(trained.glob(f"seed*/{MANIFEST}")):
        absent = [seed for seed in cfg.seeds if not (trained / f"seed{seed}" / MANIFEST).is_file()]
        if absent:
            raise ConfigError(
                f"expected {trained}/seed{absent[0]}, found none. Choose other seeds=[...]"
            )
        bundles = [load_bundle(trained / f"seed{seed}") for seed in cfg.seeds]
    else:
        bundles = [load_bundle(pull(cfg.model_uri, root=root))] * len(cfg.seeds)
    if any(bundle.info.refit for bundle in bundles):
        raise ConfigError(
            f"expected a model that has not seen the held-out networks, found {cfg.model_uri}, which was fitted on all "
            "records: its curve would be of what it knows. Name the folder that `tencost train` left: data/models/..."
        )
    if bundles[0].info.hardware == cfg.hardware.name:
        raise ConfigError(
            f"expected a model of other hardware than {cfg.hardware.name}, found one of it: {cfg.model_uri}"
        )
    return bundles


def _native(data: Data, bundle: Bundle, test: tuple[Truth, Ragged], seed: int) -> Point:
    """Train and judge a native model: the same family and settings, the records of the train part."""
    hardware = [data.cfg.hardware.name]
    train = data.samples(hardware, "train")
    try:
        valid = data.samples(hardware, "valid")
    except TrainError:
        valid = train
    ranker = make_ranker(base_config(bundle.info.model_config), bundle.info.feature_spec)
    ranker.fit(train, valid, seed=seed, log=lambda *_: None)
    return Point(NATIVE, len(train), seed, judged(ranker, *test))


def _chooser(cfg: Config) -> Choose:
    def chosen(pool: LabelPool, source: SourceModel, count: int, seed: int) -> IntArray:
        return choose_and_label(
            pool, source, count, cfg, seed, lambda positions: pool.latency_s[positions]
        ).positions

    return chosen


def _logged(summaries: list[Summary]) -> list[Logged]:
    return [
        Logged(f"adapt/{summary.mode}/{name}", share.mean, summary.labels)
        for summary in summaries
        if summary.mode != NATIVE
        for name, share in summary.share.items()
        if not math.isnan(share.mean)
    ]
