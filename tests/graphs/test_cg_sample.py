"""The sample of the CG benchmark in the repository: fetched as a user does, whole, with its attribution."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tencost.config import Config, DatasetConfig
from tencost.config.composition import compose
from tencost.errors import DatasetError
from tencost.networks.graph.identity import shape_keys
from tencost.records.fetch.stage import run
from tencost.records.network_graphs.reading import read_folder

ROOT = Path(__file__).resolve().parents[2]
CG = ROOT / ".." / "shared" / "data" / "cg"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cfg, *_ = compose(["dataset=cg-sample"])
    cfg.dataset.source = str(ROOT / cfg.dataset.source)
    return run(cfg, tmp_path_factory.mktemp("project"))


def test_the_sample(sample: Path) -> None:
    read = read_folder(sample)
    graphs = read.labelled.graphs
    families, counts = np.unique(graphs.family, return_counts=True)
    assert (len(families), set(counts.tolist())) == (13, {300})
    assert read.rejects == ()
    assert np.isnan(read.labelled.latency_ms).sum(axis=0).tolist() == [11, 301, 301, 37]
    assert len(np.unique(shape_keys(graphs))) == 3834, "there are equal graphs to keep together"
    last = {family: int(graphs.position[graphs.family == family].max()) for family in families}
    assert last == {family: 1997 if family == "alexnets" else 1999 for family in families.tolist()}


def test_its_attribution_comes_with_it(sample: Path) -> None:
    card = (sample / "README.md").read_text()
    assert card == (ROOT / "datasets" / "cg-sample.md").read_text()
    for text in (
        "CC BY 4.0",
        "peterwang66/Benchmark_for_DGRL_in_Hardwares",
        "ba453cad6b24",
        "nn-Meter",
    ):
        assert text in card
    assert (ROOT / "datasets" / "cg-sample.tar.zst").stat().st_size < 5e6


def test_the_whole_benchmark_asks_for_its_folder(tmp_path: Path) -> None:
    cfg, *_ = compose(["dataset=cg"])
    with pytest.raises(DatasetError, match=r"expected dataset cg at .*networks/cg .*found nothing"):
        run(cfg, tmp_path)


def test_a_folder_that_is_no_collection_of_programs_is_fetched(tmp_path: Path) -> None:
    (tmp_path / "own" / "aaa").mkdir(parents=True)
    (tmp_path / "own" / "bbb").mkdir()
    (tmp_path / "own" / "aaa" / "edge.csv").write_text("0,1\n")
    for graphs in (True, False):
        dataset = DatasetConfig(name="set", source=str(tmp_path / "own"), graphs=graphs)
        if graphs:
            folder = run(Config(dataset=dataset), tmp_path)
            assert (folder / "aaa" / "edge.csv").read_text() == "0,1\n"
        else:
            with pytest.raises(DatasetError, match="expected measure_records"):
                run(Config(dataset=dataset), tmp_path)


def test_the_sample_is_of_the_benchmark(sample: Path) -> None:
    if not CG.is_dir():
        pytest.skip(f"the benchmark's 16 MB are not at {CG}")
    whole, part = read_folder(CG).labelled, read_folder(sample).labelled
    rows = {name: row for row, name in enumerate(whole.graphs.name.tolist())}
    taken = whole.take([rows[name] for name in part.graphs.name.tolist()])
    np.testing.assert_array_equal(taken.graphs.graph_id, part.graphs.graph_id)
    np.testing.assert_array_equal(taken.latency_ms, part.latency_ms)
