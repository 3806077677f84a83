"""Twenty networks of ten of CG's families, rebuilt in PyTorch and exported, are predicted as their rows of CSV are.

The rows are read from the sample's CSV files, the model is trained on that sample. What is asked goes the user's way:
a file, tencost.graphs_of, tencost.load_graph_model.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import tencost
from tencost.config.composition import compose
from tencost.models.networks.bundle import (
    GraphBundle,
    GraphBundleInfo,
    load_graph_bundle,
    plain_config,
    save_bundle,
)
from tencost.models.networks.families.additive import FAMILY, AdditiveConfig
from tencost.networks.graph.graph_set import LabelledGraphs
from tencost.records.fetch.stage import run
from tencost.records.network_graphs.reading import read_folder

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

from cg_networks import rebuilt  # noqa: E402  # needs torch

from tencost.networks.torch_modules import module_to_onnx  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = (
    "densenets", "googlenets", "mnasnets", "mobilenetv1s", "mobilenetv2s", "mobilenetv3s", "proxylessnass", "resnets",
    "shufflenetv2s", "squeezenets",
)  # fmt: skip
"""Of the other three, alexnets and vggs have files of a hundred megabytes, and nasbench201s cannot be rebuilt to the
letter: equal ReLUs of one node are one in what PyTorch exports."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> LabelledGraphs:
    """The sample of CG in the repository, as read from its CSV files."""
    cfg, *_ = compose(["dataset=cg-sample"])
    cfg.dataset.source = str(ROOT / cfg.dataset.source)
    return read_folder(run(cfg, tmp_path_factory.mktemp("project"))).labelled


@pytest.fixture(scope="module")
def model(sample: LabelledGraphs, tmp_path_factory: pytest.TempPathFactory) -> GraphBundle:
    """An additive model of the sample's four devices, trained shortly."""
    torch.set_num_threads(1)
    rows = np.random.default_rng(0).permutation(len(sample))[:1000]
    settings = cast(AdditiveConfig, FAMILY.for_tests)
    config = replace(settings, members=1, steps=300, hidden=32, batch=64)
    trained = FAMILY.make(config, len(sample.hardware))
    trained.fit(sample.take(rows[50:]), sample.take(rows[:50]), seed=0, report=lambda *_: None)
    info = GraphBundleInfo(
        family="additive",
        model_config=plain_config(config),
        devices=sample.hardware,
        dataset="cg-sample",
        dataset_hash="0",
        split="by_graph",
        split_hash="0",
        seed=0,
        hardware="cortex-a76",
    )
    folder = tmp_path_factory.mktemp("model") / "bundle"
    save_bundle(folder, trained, info)
    return load_graph_bundle(folder)


def test_the_model_has_learnt(sample: LabelledGraphs, model: GraphBundle) -> None:
    """Two models that tell nothing would agree on everything."""
    ratio = model.model.predict(sample.graphs) / sample.latency_ms
    assert (np.nanmedian(np.abs(ratio - 1), axis=0) < 0.1).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_two_networks_of_a_family_are_predicted_from_their_files_as_from_their_rows(
    sample: LabelledGraphs, model: GraphBundle, family: str, tmp_path: Path
) -> None:
    own = np.flatnonzero(sample.graphs.family == family)
    for row in np.random.default_rng(0).choice(own, 2, replace=False):
        expected = sample.graphs.take([row])
        network, tensors = rebuilt(expected)
        path = tmp_path / f"{family}.onnx"
        exported: Any = module_to_onnx(family, network, tuple(tensors))
        onnx.save(exported, path)
        found = tencost.graphs_of(path)
        for device in sample.hardware:
            by_row = model.predict_ms(expected, device)
            by_file = model.predict_ms(found, device)
            assert by_file == pytest.approx(by_row, rel=0.02), (device, sample.graphs.name[row])
