"""From an evaluation to a champion: promotion, refusal, idempotence, status and rollback, with real MLflow."""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest
from rich.console import Console

import toy_project as toy
from tencost import cli
from tencost.errors import ConfigError, RegistryError
from tencost.evaluate import stage as evaluation
from tencost.evaluate.program_board import ProgramBoard
from tencost.features.rows.spec import FEATURE_ABI
from tencost.models.programs.bundle import content_digest, load_bundle
from tencost.models.programs.families.random import RandomConfig
from tencost.models.programs.families.xgb import XgbConfig
from tencost.models.programs.ranker import make_ranker
from tencost.register import programs, registry
from tencost.register import registry_status as status
from tencost.register.promotion import METRICS, ProgramVerdict
from tencost.register.pull import pull
from tencost.tracking import runs as tracking
from tencost.train.data import Data
from tencost.train.data.samples import join_samples

pytestmark = pytest.mark.usefixtures("undrawn_figures")
Train = Callable[..., Path]
NAME = "tencost-toy-1c"
FIRST, SECOND = f"{FEATURE_ABI}.0", f"{FEATURE_ABI}.1"
FLOOR = RandomConfig(family="random", reads=["toy"], reference=True)
FIVE = (0, 1, 2, 3, 4)


def trees(rounds: int) -> XgbConfig:
    return XgbConfig(family="xgb", reads=["toy"], num_rounds=rounds)


def train_trees(project: Path, client: Any, train_toy: Train, rounds: int, **changes: Any) -> str:
    """Train five seeds as the stage `train` does: the run holds the seeds and their bundles."""
    experiment = client.get_experiment_by_name("tencost").experiment_id
    run = str(client.create_run(experiment, run_name="xgb").info.run_id)
    folder = train_toy("xgb", trees(rounds), FIVE, run, **changes)
    client.log_param(run, "seeds", "0,1,2,3,4")
    client.log_artifacts(run, str(folder), "bundles")
    return run


def challenge(project: Path, config: Any) -> Any:
    evaluation.run(config, project)
    return programs.run(config, project, required=("random",))


def verdict_of(client: Any, run_id: str, folder: Path) -> dict[str, Any]:
    """What the run says of its registration."""
    path = Path(client.download_artifacts(run_id, "register/verdict.json", str(folder)))
    content: dict[str, Any] = orjson.loads(path.read_bytes())
    return content


def mark(project: Path) -> Path:
    return project / "mlruns" / "registered" / "toy" / "toy-1c.json"


@pytest.fixture(scope="module")
def promoted_template(
    toy_project_template: Path, tmp_path_factory: pytest.TempPathFactory, undrawn_figures: None
) -> Path:
    """The toy project with a first champion."""
    root = tmp_path_factory.mktemp("promoted") / "project"
    shutil.copytree(toy_project_template, root)
    train_here = partial(toy.train_toy, root)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        client = registry.connect(tracking.setup(root))
        train_here("random", FLOOR)
        train_trees(root, client, train_here, 30)
        assert challenge(root, toy.toy_config()).promote
    return root


@pytest.fixture
def promoted(toy_project: Path, promoted_template: Path) -> Any:
    """A registry client of the toy project, which has a first champion."""
    shutil.copytree(promoted_template, toy_project, dirs_exist_ok=True)
    return registry.connect(tracking.setup(toy_project))


class Killed(BaseException):
    """Ends the process, as far as the stage can tell."""


class KilledClient:
    """A registry's client that ends the process instead of writing for the n-th time."""

    def __init__(self, client: Any, at: int) -> None:
        self._client, self.left = client, at

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("set_", "log_", "update_", "create_", "delete_")):
            self.left -= 1
            if self.left == 0:
                raise Killed
        return getattr(self._client, name)


def test_killed_at_any_write_it_is_registered_whole_the_next_time(
    toy_project: Path,
    toy_config: Any,
    train_toy: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = registry.connect(tracking.setup(toy_project))
    train_toy("random", FLOOR)
    train_trees(toy_project, client, train_toy, 30)
    evaluation.run(toy_config, toy_project)
    connect = registry.connect
    at, writes = 0, 0
    while True:
        at += 6
        root = Path(shutil.copytree(toy_project, tmp_path / f"killed{at}"))
        killed = KilledClient(connect(tracking.setup(root)), at)
        monkeypatch.setattr(registry, "connect", lambda _, killed=killed: killed)
        try:
            programs.run(toy_config, root, required=("random",))
        except Killed:
            writes += 1
        else:
            break
        monkeypatch.setattr(registry, "connect", connect)
        programs.run(toy_config, root, required=("random",))
        (version,) = registry.list_versions(connect(tracking.setup(root)), NAME)
        assert version.aliases == ("challenger", "champion")
        assert version.tags["verdict"] == "promoted", at
        assert version.description, at
        assert mark(root).exists()
    assert writes > 3


def test_first_champion(promoted: Any, toy_project: Path, tmp_path: Path) -> None:
    version = registry.find_champion(promoted, NAME)
    assert version is not None
    assert version.aliases == ("challenger", "champion")
    assert version.tags["verdict"] == "promoted"
    assert version.tags["family"] == "xgb"
    for words in ("| xgb | toy |", "load_cost_model", "Promoted:", "against random-toy"):
        assert words in version.description
    assert version.tags["champion"] == version.tags["gain_geo1"] == ""
    run = promoted.get_run(version.run_id)
    assert run.data.tags["register.verdict"] == "promoted"
    assert run.data.metrics["register/promoted"] == 1.0
    assert "yes: a round's time was not measured" in run.data.tags["register.reasons"]
    content = verdict_of(promoted, version.run_id, tmp_path)
    assert content["promoted"] is True
    assert content["champion"] == {"version": 1, "semver": FIRST}
    assert content["comparisons"][0]["geo1"]["mean"] > 0
    folder = pull(f"models:/{NAME}@champion", tmp_path / "cache", root=toy_project)
    assert load_bundle(folder).info.family == "xgb"


def test_again_changes_nothing(promoted: Any, toy_project: Path, toy_config: Any) -> None:
    offered = mark(toy_project).read_bytes()
    verdict = programs.run(toy_config, toy_project, required=("random",))
    assert mark(toy_project).read_bytes() == offered
    assert not verdict.promote
    assert verdict.reasons == ("yes: version 1 is the champion already",)
    (version,) = registry.list_versions(promoted, NAME)
    assert version.tags["verdict"] == "promoted"
    assert "Promoted:" in version.description


def test_a_worse_challenger_is_refused(
    promoted: Any, toy_project: Path, toy_config: Any, train_toy: Train, tmp_path: Path
) -> None:
    run_id = train_trees(toy_project, promoted, train_toy, 3)
    verdict = challenge(toy_project, toy_config)
    assert not verdict.promote
    (told, *_) = [text for text in verdict.objections if f"against champion {FIRST}" in text]
    first, second = registry.list_versions(promoted, NAME)
    assert first.aliases == ("champion",)
    assert second.aliases == ("challenger",)
    # The verdict, its numbers and its reasons: in the run and on the version.
    content = verdict_of(promoted, run_id, tmp_path)
    assert (content["champion"]["version"], content["challenger"]["version"]) == (1, 2)
    against = content["comparisons"][-1]
    assert (against["opponent"], against["num_seeds"]) == (f"champion {FIRST}", 5)
    gain = against["geo1"]
    assert gain["low"] <= gain["mean"] <= gain["high"]
    assert (second.semver, second.tags["verdict"]) == (SECOND, "refused")
    assert second.tags["gain_geo1"] in told
    assert told in second.tags["reasons"]
    assert "Not promoted:" in second.description
    assert told in second.description
    data = promoted.get_run(run_id).data
    assert told in data.tags["register.reasons"]
    assert data.metrics["register/minus_champion/geo1"] == pytest.approx(gain["mean"])
    assert data.metrics["register/minus_champion/geo1_high"] == pytest.approx(gain["high"])
    assert data.metrics["register/num_seeds"] == 5
    written = Path(promoted.download_artifacts(run_id, "register", str(tmp_path)))
    assert (written / "verdict.md").read_text() == second.description


def test_a_champion_without_its_other_seeds_is_compared_as_one_bundle(
    toy_project: Path, toy_config: Any, train_toy: Train
) -> None:
    toy_config.rule.refit = False
    client = registry.connect(tracking.setup(toy_project))
    train_toy("random", FLOOR)
    train_trees(toy_project, client, train_toy, 30)
    assert challenge(toy_project, toy_config).promote
    (bundles,) = (toy_project / "mlruns" / "artifacts").glob("*/artifacts/bundles")
    shutil.rmtree(bundles / "seed3")
    train_trees(toy_project, client, train_toy, 3)
    verdict = challenge(toy_project, toy_config)
    assert verdict.champion.num_seeds == 1
    assert verdict.reasons[0] == (
        f"yes: note that champion {FIRST} is compared as the one bundle that is registered: "
        "its run does not hold the bundles of its seeds"
    )


def seed_of(client: Any) -> str:
    champion = registry.find_champion(client, NAME)
    assert champion is not None
    return champion.tags["seed"]


def test_what_is_registered_has_seen_all_records_and_is_judged_as_its_twin(
    promoted: Any, toy_project: Path, toy_config: Any, tmp_path: Path
) -> None:
    """The version knows programs of the test networks; the figures and the comparisons are of the bundles without."""
    version = registry.find_champion(promoted, NAME)
    assert version is not None
    bundle = load_bundle(pull(version.uri, tmp_path / "cache", root=toy_project))
    assert bundle.info.refit["networks"] == ["held_out", "seen"]
    assert bundle.info.refit["records"] == 60
    assert version.tags["fitted_on"] == "60 records of train, valid, test"
    assert version.tags["networks"] == "held_out, seen"
    assert "Fitted on all 60 records (train, valid, test) of 2 networks" in version.description
    folder = (
        toy_project / "data" / "models" / "toy" / "toy-1c" / "xgb-toy" / f"seed{bundle.info.seed}"
    )
    twin = load_bundle(folder)
    assert version.tags["twin"] == content_digest(twin.info)
    assert (bundle.info.calibration, bundle.info.seed) == (twin.info.calibration, twin.info.seed)
    data = Data(toy_config, toy_project)
    spec = data.features("toy").spec
    every = data.split.with_columns(part=pl.lit("train"))
    learnt = join_samples(data.records, every, data.features("toy"), ["toy-1c"], "train")
    ranker = make_ranker(trees(30), spec)
    ranker.fit(learnt, data.samples(["toy-1c"], "valid"), seed=twin.info.seed, log=lambda *_: None)
    assert (
        bundle.ranker.predict(learnt.features).tolist() == ranker.predict(learnt.features).tolist()
    )
    shown = ProgramBoard.load(
        toy_project / "data" / "reports" / "toy" / "toy-1c" / "leaderboard.json"
    )
    assert version.tags["top1"] == f"{shown.rows[0].mean('top1'):.4f}"


def test_a_champion_that_has_seen_the_test_networks_is_compared_by_its_twins(
    promoted: Any, toy_project: Path, toy_config: Any, train_toy: Train
) -> None:
    """The same training again gains nothing over the champion, although that one knows the answers by now."""
    toy_config.rule.refit = False
    verdict = programs.run(toy_config, toy_project, required=("random",))
    assert isinstance(verdict, ProgramVerdict)
    assert verdict.champion is not None
    assert verdict.champion.num_seeds == 5
    assert [getattr(verdict.champion, name).mean for name in METRICS] == [0.0, 0.0, 0.0, 0.0]


def test_a_champion_without_its_twin_is_compared_by_the_figures_it_keeps(
    toy_project: Path, toy_config: Any, train_toy: Train
) -> None:
    client = registry.connect(tracking.setup(toy_project))
    train_toy("random", FLOOR)
    records = Data(toy_config, toy_project).dataset_hash(["toy-1c"])
    train_trees(toy_project, client, train_toy, 30, dataset_hash=records)
    assert challenge(toy_project, toy_config).promote
    own = seed_of(client)
    (bundles,) = (toy_project / "mlruns" / "artifacts").glob("*/artifacts/bundles")
    other = next(seed for seed in "01234" if seed != own)
    shutil.rmtree(bundles / f"seed{other}")
    train_trees(toy_project, client, train_toy, 3)
    verdict = challenge(toy_project, toy_config)
    assert verdict.champion.num_seeds == 1
    assert verdict.reasons[0] == (
        f"yes: note that champion {FIRST} is compared as the twin of the one bundle that is registered: "
        "its run does not hold the bundles of its seeds"
    )
    shutil.rmtree(bundles)
    train_trees(toy_project, client, train_toy, 4)
    verdict = challenge(toy_project, toy_config)
    assert "is compared by the figures that it keeps of its twin" in verdict.reasons[0]
    champion = registry.find_champion(client, NAME)
    shown = ProgramBoard.load(
        toy_project / "data" / "reports" / "toy" / "toy-1c" / "leaderboard.json"
    )
    assert champion is not None
    assert verdict.champion.top1.mean == pytest.approx(
        shown.rows[0].mean("top1") - float(champion.tags["top1"]), abs=1e-5
    )
    assert math.isnan(verdict.champion.top1.low)
    assert any(f"(no interval) against champion {FIRST}" in text for text in verdict.reasons)
    client.set_model_version_tag(NAME, str(champion.number), "split_hash", "0" * 32)
    train_trees(toy_project, client, train_toy, 5)
    verdict = challenge(toy_project, toy_config)
    assert verdict.champion is None
    assert "whose figures are of other tasks: it is not compared" in verdict.reasons[0]


def test_few_seeds_make_no_champion_unless_the_project_says_so(
    toy_project: Path, toy_config: Any, train_toy: Train
) -> None:
    train_toy("random", FLOOR)
    train_toy("xgb", trees(30), (0, 1))
    verdict = challenge(toy_project, toy_config)
    assert verdict.objections == (
        "trained with 2 seed(s), at least 5 asked for: train with seeds=[0,1,2,3,4], "
        "or lower rule.min_seeds",
    )
    toy_config.rule.min_seeds = 2
    assert programs.run(toy_config, toy_project, required=("random",)).promote
    # Not trained in this registry: the run made for the version holds its seeds all the same.
    client = registry.connect(tracking.setup(toy_project))
    version = registry.find_champion(client, NAME)
    assert version is not None
    assert registry.trained_seeds(client, version) == ("0", "1")
    assert version.tags["reasons"].startswith("yes: trained with 2 seed(s), at least 2 asked for")


def test_references_must_be_there(toy_project: Path, toy_config: Any, train_toy: Train) -> None:
    with pytest.raises(ConfigError, match="expected a leaderboard"):
        programs.run(toy_config, toy_project)
    train_toy("random", FLOOR)
    evaluation.run(toy_config, toy_project)
    with pytest.raises(RegistryError, match="found only references"):
        programs.run(toy_config, toy_project)
    train_toy("xgb", trees(30))
    evaluation.run(toy_config, toy_project)
    verdict = programs.run(toy_config, toy_project)
    assert not verdict.promote
    assert "no: tvm_xgb: not evaluated, so not known to be beaten" in verdict.reasons
    client = registry.connect(tracking.setup(toy_project))
    assert registry.find_champion(client, NAME) is None


def test_a_lost_registry_is_filled_again_with_the_same_mark(
    promoted: Any, toy_project: Path, toy_config: Any, tmp_path: Path
) -> None:
    restored = tmp_path / "restored"
    shutil.copytree(toy_project, restored, ignore=shutil.ignore_patterns("mlruns"))
    assert programs.run(toy_config, restored, required=("random",)).promote
    assert mark(restored).read_bytes() == mark(toy_project).read_bytes()
    client = registry.connect(tracking.setup(restored))
    version = registry.find_champion(client, NAME)
    assert version is not None
    assert registry.trained_seeds(client, version) == ("0", "1", "2", "3", "4")


def test_a_champion_that_cannot_be_used_any_more_is_not_compared(
    promoted: Any,
    toy_project: Path,
    toy_config: Any,
    train_toy: Train,
) -> None:
    client = registry.connect(tracking.setup(toy_project))
    location = client.get_model_version(NAME, "1").source
    (manifest,) = Path(location.removeprefix("file://")).rglob("bundle.json")
    text = manifest.read_bytes().replace(b'"abi": %d' % FEATURE_ABI, b'"abi": 0')
    manifest.write_bytes(text)
    train_toy("xgb", trees(40), FIVE)
    verdict = challenge(toy_project, toy_config)
    assert verdict.promote
    assert "cannot be used here any more" in verdict.reasons[0]


def test_what_was_rolled_back_stays_so(
    toy_project: Path, toy_config: Any, train_toy: Train
) -> None:
    client = registry.connect(tracking.setup(toy_project))
    train_toy("random", FLOOR)
    train_trees(toy_project, client, train_toy, 3)
    assert challenge(toy_project, toy_config).promote
    train_trees(toy_project, client, train_toy, 30)
    assert challenge(toy_project, toy_config).promote
    status.rollback_and_print(toy_project, NAME)
    verdict = programs.run(toy_config, toy_project, required=("random",))
    assert [text for text in verdict.objections if "was rolled back on" in text]
    assert len(verdict.objections) == 1
    champion = registry.find_champion(client, NAME)
    assert champion is not None
    assert champion.number == 1
    status.rollback_and_print(toy_project, NAME, 2)
    assert programs.run(toy_config, toy_project, required=("random",)).reasons == (
        "yes: version 2 is the champion already",
    )


def test_status_and_rollback(
    promoted: Any,
    toy_project: Path,
    toy_config: Any,
    train_toy: Train,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train_trees(toy_project, promoted, train_toy, 3)
    verdict = challenge(toy_project, toy_config)
    capsys.readouterr()
    status.print_json(toy_project)
    new, old = orjson.loads(capsys.readouterr().out)
    assert (new["version"], new["verdict"], new["gain_over"]) == (2, "refused", f"champion {FIRST}")
    assert new["reasons"] == list(verdict.reasons)
    assert new["gain"]["top1"]["mean"] == pytest.approx(verdict.champion.top1.mean, abs=1e-3)
    assert new["num_seeds"] == 5
    assert (old["aliases"], old["gain"]["top1"], old["gain_over"]) == (["champion"], None, None)

    status.rollback_and_print(toy_project, NAME, 2)
    shown = io.StringIO()
    status.print_status(toy_project, Console(file=shown))
    status.print_champions(toy_project, Console(file=shown))
    for words in (
        NAME,
        SECOND,
        "challenger, champion",
        "refused",
        f"version 2 ({SECOND}) refused: {verdict.objections[0]}",
        f"against champion {FIRST}, 5 seed(s), 1,000 programs in ",
        f"champion is version 2 ({SECOND}, xgb)",
    ):
        assert words in shown.getvalue(), words
    assert f"version 1 ({FIRST}) refused" not in shown.getvalue()
    capsys.readouterr()
    status.rollback_and_print(toy_project, NAME)
    status.rollback_and_print(toy_project, NAME, 1)
    assert capsys.readouterr().out == (
        f"{NAME}: champion is version 1 ({FIRST}) again, it was version 2 ({SECOND})\n"
        f"{NAME}: version 1 ({FIRST}) is the champion already\n"
    )
    champion = registry.find_champion(promoted, NAME)
    assert champion is not None
    assert champion.number == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["rollback"], "expected MODEL, found none"),
        (["rollback", NAME, "two"], "expected a whole number of at least 1, found 'two'"),
        (["rollback", NAME, "-1"], "expected a whole number of at least 1, found '-1'"),
        (["rollback", NAME, "1", "2"], "expected no more words, found '2'"),
        (["status", "--csv"], "expected an option of --json, -h, --help, found '--csv'"),
    ],
)
def test_rollback_and_status_in_other_words(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["register", *words])
    assert stop.value.code == 2
    assert told in capsys.readouterr().err


def test_looking_at_no_registry_creates_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shown = io.StringIO()
    status.print_status(tmp_path, Console(file=shown))
    status.print_champions(tmp_path, Console(file=shown))
    assert "no model is registered" in shown.getvalue()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RegistryError, match="there is no registry"):
        status.rollback_and_print(tmp_path, NAME)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(RegistryError, match="does not answer"):
        status.print_status(tmp_path)
