"""`tencost adapt` from its configuration to a version in the registry, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tencost import cli
from tencost.adapt import stage
from tencost.adapt.pool import read_pool
from tencost.config import AdaptMode, Config, HardwareConfig
from tencost.errors import ConfigError, FeatureError, RegistryError, TrainError
from tencost.models.programs.bundle import load_bundle
from tencost.models.programs.families.random import RandomConfig
from tencost.models.programs.families.xgb import XgbConfig
from tencost.models.programs.ranker.losses import RankingMetrics
from tencost.programs.starting_points import shipped_starts
from tencost.register import registry
from tencost.register.pull import pull
from tencost.train.data import Data
from tencost.workers.hardware import resolve_hardware
from toy_project import make_toy_project, toy_config, train_toy

pytestmark = pytest.mark.usefixtures("undrawn_figures")
XGB = XgbConfig(family="xgb", reads=["toy"], num_rounds=20, num_models=1, min_child_weight=0.0)
TURNED = "turned-1c"
BASES: dict[str, Any] = {"xgb": XGB, "random": RandomConfig(family="random", reads=["toy"])}


@pytest.fixture
def toy(
    tmp_path: Path, mlflow_database: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Config, Path]]:
    """A project with records of `toy-1c`, and a model of other hardware to start from.

    On `turned-1c` what is slow on `toy-1c` is fast: models that know the latter have all of it wrong.
    """
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    make_toy_project(tmp_path, mlflow_database, [(TURNED, -1.0)])

    def configured(base: str = "random", **changes: Any) -> tuple[Config, Path]:
        folder = train_toy(tmp_path, base, BASES[base], hardware="old-1c")
        cfg = replace(toy_config(), model_uri=str(folder / "seed0"), labels=20)
        mode = changes.pop("mode", AdaptMode.residual)
        cfg = replace(cfg, adapt=replace(cfg.adapt, mode=mode, programs_per_task=4))
        if changes.pop("turned", False):
            cfg = replace(cfg, hardware=replace(cfg.hardware, name=TURNED))
        return replace(cfg, **changes), tmp_path

    return configured


def test_a_model_that_knows_nothing_is_corrected_and_registered(
    toy: Callable[..., tuple[Config, Path]],
) -> None:
    cfg, root = toy(labels=36)
    version = stage.run(cfg, root)
    assert version.name == "tencost-toy-1c"
    assert registry.CHAMPION in version.aliases
    assert version.tags["adapted_from"] == cfg.model_uri
    assert (version.tags["adapt_mode"], version.tags["labels"]) == ("residual", "36")
    bundle = load_bundle(pull(version.uri, root / "cache", root=root))
    assert (bundle.info.family, bundle.info.hardware) == ("corrected", "toy-1c")
    data = Data(cfg, root)
    test = data.samples(["toy-1c"], "test")
    source = load_bundle(Path(str(cfg.model_uri)))
    watch = RankingMetrics(test.label, test.group)
    before, after = (watch(one.scores(test.features))["pairwise"] for one in (source, bundle))
    assert before < 0.65
    assert after > before + 0.1, "learnt what is fast"


@pytest.mark.parametrize("mode", AdaptMode)
def test_every_mode_makes_a_bundle_that_is_served(
    mode: AdaptMode, toy: Callable[..., tuple[Config, Path]]
) -> None:
    cfg, root = toy("xgb", mode=mode, turned=True, labels=36)
    version = stage.run(cfg, root)
    bundle = load_bundle(pull(version.uri, root / "cache", root=root), target_kind="llvm")
    assert bundle.info.family == "xgb"
    starts = shipped_starts(bundle.folder)
    assert starts is not None
    assert starts.hardware == TURNED
    assert starts.target == resolve_hardware(cfg.hardware).target, "what tuning compiles for"
    assert version.tags["labels"] == ("0" if mode is AdaptMode.zero_shot else "36")
    assert version.tags["adapt_mode"] == mode.value


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (20, "residual is not better than the model as it was by half of the 95 % interval"),
        (8, "These labels cannot show whether residual is better than the model as it was"),
    ],
)
def test_what_is_no_better_is_not_registered(
    labels: int,
    said: str,
    toy: Callable[..., tuple[Config, Path]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The model as it was stands in for the hardware, and tuning finds it; a champion that is there stays alone."""
    cfg, root = toy("xgb", labels=labels)
    first = stage.run(cfg, root)
    told = capsys.readouterr().err
    assert said in told
    assert "registered as it was, champion: the hardware had none" in told
    assert (first.tags["adapt_mode"], first.tags["labels"]) == ("zero_shot", "0")
    assert said in first.description
    source = load_bundle(Path(str(cfg.model_uri)))
    bundle = load_bundle(pull("models:/tencost-toy-1c@champion", root / "cache", root=root))
    features = Data(cfg, root).samples(["toy-1c"], "test").features
    assert bundle.ranker.predict(features).tolist() == source.ranker.predict(features).tolist()
    assert bundle.info.hardware == "toy-1c"

    second = stage.run(replace(cfg, seeds=[1]), root)
    assert "stays champion, nothing is registered" in capsys.readouterr().err
    assert second.number == first.number
    client = registry.connect(f"sqlite:///{root}/mlruns/mlflow.db")
    assert len(registry.list_versions(client, "tencost-toy-1c")) == 1


def test_what_is_better_than_the_model_as_it_was_takes_its_place(
    toy: Callable[..., tuple[Config, Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    cfg, root = toy("xgb", turned=True, labels=0)
    first = stage.run(cfg, root)
    assert registry.CHAMPION in first.aliases
    second = stage.run(replace(cfg, labels=36), root)
    assert second.number == first.number + 1
    assert registry.CHAMPION in second.aliases
    capsys.readouterr()
    assert stage.run(replace(cfg, labels=36), root).number == second.number
    assert "is champion already, nothing is registered" in capsys.readouterr().err


def test_a_second_version_leaves_the_champion_where_it_is(
    toy: Callable[..., tuple[Config, Path]],
) -> None:
    cfg, root = toy()
    first = stage.run(cfg, root)
    second = stage.run(replace(cfg, labels=30), root)
    assert second.number == first.number + 1
    assert registry.CHAMPION not in second.aliases
    again = stage.run(replace(cfg, labels=30), root)
    assert again.number == second.number, "the same labels, the same content"


def test_no_label_is_of_the_test_part(toy: Callable[..., tuple[Config, Path]]) -> None:
    cfg, root = toy()
    data = Data(cfg, root)
    pool = read_pool(data, load_bundle(Path(str(cfg.model_uri))), cfg.hardware, recorded=True)
    assert set(pool.workload_id.tolist()) == {"w2", "w3", "w4"}
    assert len(pool) == 36


def test_no_labels_is_the_model_as_it_is(toy: Callable[..., tuple[Config, Path]]) -> None:
    cfg, root = toy("xgb", labels=0)
    version = stage.run(cfg, root)
    assert (version.tags["adapt_mode"], version.tags["labels"]) == ("zero_shot", "0")
    cfg, root = toy("xgb", labels=0, mode=AdaptMode.scratch)
    with pytest.raises(ConfigError, match="labels alone"):
        stage.run(cfg, root)


def test_what_cannot_be_adapted_is_refused_by_name(
    toy: Callable[..., tuple[Config, Path]],
) -> None:
    cfg, root = toy()
    with pytest.raises(ConfigError, match="Name one: tencost adapt model="):
        stage.run(replace(cfg, model_uri=None), root)
    with pytest.raises(RegistryError, match="no model 'tencost-nowhere'"):
        stage.run(replace(cfg, model_uri="models:/tencost-nowhere@champion"), root)
    with pytest.raises(TrainError, match=r"found 36 in toy\. Ask for fewer: labels=36"):
        stage.run(replace(cfg, labels=37), root)
    gpu = HardwareConfig(name="toy-gpu", target={"kind": "cuda"})
    with pytest.raises(ConfigError, match="found cuda: their programs have nothing in common"):
        stage.run(replace(cfg, hardware=gpu), root)
    own = replace(cfg, hardware=replace(cfg.hardware, name="old-1c"))
    with pytest.raises(ConfigError, match="which is of old-1c itself"):
        stage.run(own, root)
    assert registry.list_models(registry.connect(f"sqlite:///{root}/mlruns/mlflow.db")) == []


def test_features_that_the_model_reads_must_be_there(
    toy: Callable[..., tuple[Config, Path]],
) -> None:
    cfg, root = toy()
    (root / "data" / "features" / "toy" / "toy").rename(root / "elsewhere")
    with pytest.raises(FeatureError, match=r"tencost features dataset=toy features=toy$"):
        stage.run(cfg, root)


def test_model_on_the_command_line_is_a_uri(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["adapt", "model=/nowhere/at/all", "hardware=epyc-sse42-1c", "labels=5"])
    assert ended.value.code == 2
    assert "found '/nowhere/at/all'" in capsys.readouterr().err
