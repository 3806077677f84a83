"""The example of a model family in a package of its own: installed, it goes through train, leaderboard and tuner."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tencost.config.parts import FAMILIES
from tencost.errors import BundleError
from tencost.features.rows.spec import FeatureSpec
from tencost.models.programs.bundle import load_bundle

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "tencost-ridge"
HARDWARE = "xeon-avx2-1c"
CHOICES = ("dataset=tencost-xeon", "split=across_hosts", f"hardware={HARDWARE}")
TENCOST = ("-m", "tencost.cli")
TRAIN = (*TENCOST, "train", "features=tiles", "score_test=false", *CHOICES)
MODELS = Path("data", "models", "tencost-xeon", HARDWARE)
TUNE = """
import sys

from tvm.s_tir import meta_schedule as ms

import tencost
from matmuls import make_matmul

if __name__ == "__main__":
    model = tencost.load_cost_model(sys.argv[1])
    database = ms.tune_tir(
        make_matmul(64), {"kind": "llvm", "num-cores": 1}, "tuning", max_trials_global=8, num_trials_per_iter=4,
        cost_model=model, builder=tencost.WarmBuilder(), runner=tencost.WarmRunner(),
        strategy=ms.search_strategy.EvolutionarySearch(population_size=16, init_min_unmeasured=8, genetic_num_iters=1),
        num_tuning_cores=1, seed=1,
    )
    print(len(database), *(score for round in model.history for score in round.base_scores))
"""

pytestmark = [pytest.mark.slow, pytest.mark.tvm]
absent = pytest.mark.skipif("ridge" in FAMILIES.names(), reason="the example is installed here")


def run(folder: Path, site: Path | None, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder; it finds what is installed in `site`, None: the package is not installed."""
    paths = [str(site)] if site else []
    paths += [str(ROOT / "src"), str(ROOT / "tests")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def output(folder: Path, site: Path | None, *words: str) -> str:
    done = run(folder, site, *words)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as pip installs it, in a folder of its own; nothing is fetched."""
    folder = tmp_path_factory.mktemp("package")
    # A copy: setuptools writes beside what it builds.
    built = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    source = shutil.copytree(EXAMPLE, folder / "source", ignore=built)
    options = "--quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation"
    words = ["-m", "pip", "install", *options.split(), "--target", str(folder / "site")]
    output(folder, None, *words, str(source))
    return folder / "site"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, mlflow_database: Path) -> Path:
    """A project with the records of one host, 4,102 programs, their features, a split, and the example's settings."""
    root = tmp_path_factory.mktemp("example") / "project"
    shutil.copytree(ROOT / "conf", root / "conf")
    shutil.copy(EXAMPLE / "ridge.yaml", root / "conf" / "model")
    for folder in ("datasets", "mlruns"):
        (root / folder).mkdir()
    shutil.copy(ROOT / "datasets" / "tencost-xeon.tar.zst", root / "datasets")
    shutil.copy(mlflow_database, root / "mlruns" / "mlflow.db")
    for stage in (["fetch"], ["records"], ["features", "features=tiles", "jobs=1"], ["splits"]):
        output(root, None, *TENCOST, *stage, *CHOICES[:2])
    return root


@pytest.fixture(scope="module")
def bundle(project: Path, site: Path) -> Path:
    """Its bundle, as `tencost train` writes it."""
    output(project, site, *TRAIN, "model=ridge")
    return project / MODELS / "ridge-tiles" / "seed0"


def test_it_is_short() -> None:
    assert len((EXAMPLE / "tencost_ridge.py").read_text().splitlines()) < 100


def test_it_keeps_the_contract_of_families(site: Path) -> None:
    words = ["tests/contract/test_rankers.py", "-k", "ridge", "-q", "-p", "no:cacheprovider"]
    assert " passed" in output(ROOT, site, "-m", "pytest", *words)


@absent
def test_without_its_entry_point_it_is_no_family(project: Path) -> None:
    done = run(project, None, *TRAIN, "model=ridge")
    assert done.returncode == 2
    assert "model.family must be one of blend, " in done.stderr
    assert "found 'ridge'" in done.stderr


def test_its_settings_are_all_in_its_file(bundle: Path) -> None:
    settings = yaml.safe_load((EXAMPLE / "ridge.yaml").read_text())
    del settings["defaults"]
    assert json.loads((bundle / "bundle.json").read_text())["model_config"] == settings


def test_the_leaderboard_compares_it(bundle: Path, project: Path, site: Path) -> None:
    output(project, site, *TRAIN, "model=knn")
    output(project, site, *TENCOST, "evaluate", *CHOICES)
    rows = output(project, site, *TENCOST, "leaderboard").splitlines()
    figures = {line.split()[0]: line.split("│") for line in rows if "│ tiles" in line}
    pairwise = {model: float(cells[6]) for model, cells in figures.items()}
    assert pairwise.keys() == {"ridge", "knn"}
    assert pairwise["ridge"] > 0.6, "random order has 0.5"


def test_tvm_tunes_with_it(bundle: Path, site: Path, tmp_path: Path) -> None:
    script = tmp_path / "tune.py"
    script.write_text(TUNE)
    count, *scores = output(tmp_path, site, str(script), str(bundle)).splitlines()[-1].split()
    assert int(count) == len(scores) == 8
    assert all(0 < float(score) <= 1 for score in scores)
    assert len(set(scores)) > 4


@absent
def test_without_the_package_its_bundle_is_refused(bundle: Path) -> None:
    with pytest.raises(BundleError, match=r"expected a family of blend, .*found 'ridge'"):
        load_bundle(bundle)


@pytest.mark.parametrize(
    "weights",
    ['[1, 2]', '{"a": 1}', '{"a": 1, "b": 2, "c": 3}', '{"b": 1, "a": 2}', '{"a": 1, "b": null}', '{"a": 1, "b": [2]}',
     '{"a": 1, "b": "nan"}', ""],
)  # fmt: skip
def test_damaged_weights_are_refused(weights: str, tmp_path: Path) -> None:
    family = runpy.run_path(str(EXAMPLE / "tencost_ridge.py"))["FAMILY"]
    spec = FeatureSpec(name="two", kind="tiles", columns=("a", "b"))
    ranker = family.ranker(family.for_tests, spec)
    path = tmp_path / "ridge.json"
    path.write_text('{"weights": {"a": 1, "b": 2}}')
    ranker.load(tmp_path)
    path.write_text(f'{{"weights": {weights}}}')
    with pytest.raises(BundleError, match=r"ridge\.json: expected"):
        ranker.load(tmp_path)
