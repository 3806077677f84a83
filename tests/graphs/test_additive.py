"""The additive model: a made-up additive truth is recovered, a prediction is the sum of its nodes, files are strict."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import yaml

from made_graphs import chain, labelled, shuffled, true_ms
from tencost.config.graphs import graph_model_config
from tencost.config.parts import GRAPH_FAMILIES
from tencost.errors import BundleError, TrainError
from tencost.models.networks.families.additive import FAMILY, AdditiveConfig, AdditiveModel
from tencost.models.neural.weights import read_weights, write_weights
from tencost.networks.graph.graph_set import LabelledGraphs, concatenate

CONF = Path(__file__).resolve().parents[2] / "conf" / "graph_model" / "additive.yaml"
CONFIG = cast(AdditiveConfig, FAMILY.for_tests)


def trained(config: AdditiveConfig = CONFIG, count: int = 60, seed: int = 0) -> AdditiveModel:
    model = FAMILY.make(config, 2)
    model.fit(labelled(count, 1, missing=0.1), labelled(10, 2), seed=seed, report=lambda *_: None)
    assert isinstance(model, AdditiveModel)
    return model


@pytest.fixture(scope="module")
def good() -> AdditiveModel:
    return trained(replace(CONFIG, steps=300, hidden=32), count=200)


def test_an_additive_truth_is_recovered(good: AdditiveModel) -> None:
    test = labelled(60, 3)
    error = np.abs(good.predict(test.graphs) / test.latency_ms - 1)
    assert (np.mean(error < 0.05, axis=0) > 0.9).all(), np.median(error, axis=0)


def test_costs_of_kernels_are_recovered(good: AdditiveModel) -> None:
    """No label ever told what a single convolution costs."""
    channels = [24, 40, 16]
    graphs = chain(channels)
    convolutions = good.node_costs(graphs)[[1, 4, 7]]
    truth = true_ms(channels, 16)
    assert np.abs(convolutions / truth - 1).max() < 0.5
    assert (np.argsort(convolutions[:, 0]) == np.argsort(truth[:, 0])).all()


def test_deeper_than_ever_seen_scales(good: AdditiveModel) -> None:
    channels = [32] * 20
    expected = true_ms(channels, 16).sum(axis=0)
    assert np.abs(good.predict(chain(channels))[0] / expected - 1).max() < 0.15


def test_nodes_sum_to_the_prediction(good: AdditiveModel) -> None:
    graphs = labelled(7, 4).graphs
    costs = good.node_costs(graphs)
    assert (costs >= 0).all()
    sums = np.add.reduceat(costs, graphs.node_start[:-1], axis=0)
    assert np.allclose(sums, good.predict(graphs), rtol=1e-12)


def test_order_of_nodes_does_not_matter(good: AdditiveModel) -> None:
    one = labelled(1, 5).graphs
    assert np.allclose(good.predict(one), good.predict(shuffled(one, 0)), rtol=1e-12)


def test_a_graph_is_priced_alike_alone_and_among_others(good: AdditiveModel) -> None:
    graphs = labelled(6, 6).graphs
    alone = np.concatenate([good.predict(graphs.take([index])) for index in range(6)])
    assert np.allclose(alone, good.predict(graphs), rtol=1e-12)


def test_sizes_far_off_stay_positive_and_finite(good: AdditiveModel) -> None:
    predicted = good.predict(concatenate([chain([1], 1), chain([60000, 60000], 5000)]))
    assert (predicted > 0).all()
    assert np.isfinite(predicted).all()


def test_same_training_same_bytes_and_loads(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        trained().save(folder)
    names = sorted(path.name for path in first.iterdir())
    assert names == ["additive_0.safetensors", "additive_1.safetensors"]
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()
    loaded = FAMILY.make(CONFIG, 2)
    loaded.load(first)
    graphs = labelled(5, 5).graphs
    assert np.array_equal(loaded.predict(graphs), trained().predict(graphs))


def test_seeds_differ() -> None:
    graphs = labelled(5, 5).graphs
    assert not np.array_equal(trained(seed=0).predict(graphs), trained(seed=1).predict(graphs))


@pytest.mark.parametrize("damage", ["gone", "cut", "nan", "shape", "range"])
def test_bad_weights_are_told(tmp_path: Path, damage: str) -> None:
    trained().save(tmp_path)
    path = tmp_path / "additive_1.safetensors"
    weights = read_weights(path)
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-8])
    else:
        if damage == "nan":
            weights["head.bias"][0] = np.nan
        elif damage == "shape":
            weights["head.bias"] = weights["head.bias"][1:]
        else:
            weights["scaler.low"] = weights["scaler.high"] + 1
        write_weights(path, weights)
    with pytest.raises(BundleError, match=r"additive_1\.safetensors"):
        FAMILY.make(CONFIG, 2).load(tmp_path)


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_few_steps_train(steps: int) -> None:
    predicted = trained(replace(CONFIG, steps=steps), count=8).predict(labelled(3, 2).graphs)
    assert (predicted > 0).all()


TRAIN = """
import hashlib, os, sys
os.sched_setaffinity(0, [int(word) for word in sys.argv[2:]])
import numpy as np, yaml
from made_graphs import chain
from tencost.config.graphs import graph_model_config
from tencost.models.networks.families.additive import FAMILY
from tencost.networks.graph.graph_set import LabelledGraphs, concatenate
settings = yaml.safe_load(open(sys.argv[1])) | {"members": 1, "steps": 20, "kinds_first": 0.0}
model = FAMILY.make(graph_model_config(settings), 4)
random = np.random.default_rng(0)
graphs = concatenate([chain(random.integers(4, 400, 12).tolist()) for _ in range(400)])
train = LabelledGraphs(graphs, ("a", "b", "c", "d"), random.uniform(1, 2, (len(graphs), 4)))
model.fit(train, train.take(range(5)), seed=0, report=lambda *_: None)
weights = model._members[0]
print(hashlib.sha256(b"".join(weights[name].tobytes() for name in sorted(weights))).hexdigest())
"""
"""As many different kernels as it takes until PyTorch divides sums among threads."""


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two CPUs",
)
def test_the_pipelines_settings_give_the_same_weights_on_one_cpu_as_on_two() -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    path = ":".join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in threads}
    trainings = [
        subprocess.Popen(
            [sys.executable, "-c", TRAIN, str(CONF), *map(str, cpus)],
            env=environment | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True,
        )
        for cpus in ((first,), (first, second))
    ]  # fmt: skip
    digests = [training.communicate(timeout=120)[0] for training in trainings]
    assert len(digests[0]) == 65
    assert digests[0] == digests[1]


@pytest.mark.parametrize("family", ["additive", "summed"])
def test_every_setting_stands_in_conf(family: str) -> None:
    path = Path(__file__).resolve().parents[2] / "conf" / "graph_model" / f"{family}.yaml"
    values = yaml.safe_load(path.read_text())
    schema = GRAPH_FAMILIES.load(family).config
    assert set(values) == {item.name for item in fields(schema)}
    reference = family == "summed"
    assert graph_model_config(values) == schema(family=family, reference=reference)


def test_a_device_without_labels_is_told() -> None:
    train = labelled(5, 1)
    without = LabelledGraphs(train.graphs, train.hardware, train.latency_ms * [1.0, np.nan])
    with pytest.raises(TrainError, match="bound"):
        FAMILY.make(CONFIG, 2).fit(without, train, seed=0, report=lambda *_: None)
