"""What is answered about a network: milliseconds, an interval, what was never seen, and where the time goes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from made_up_graphs import DEVICES, chain, networks
from tencost.config.parts import GRAPH_FAMILIES
from tencost.errors import BundleError
from tencost.graphs.bundle import (
    GraphBundle,
    GraphBundleInfo,
    load_graph_bundle,
    plain_settings,
    quantiles,
    save_graph_bundle,
)
from tencost.graphs.latency import COVERAGE, ask
from tencost.graphs.operators import OPERATOR_CODES
from tencost.graphs.seen import FILE, Seen, read_seen


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GraphBundle]:
    """A bundle of an additive family and of one that is none."""
    found = {}
    data = networks(30)
    for name in ("additive", "constant"):
        family = GRAPH_FAMILIES.load(name)
        model = family.make(family.for_tests, len(DEVICES))
        model.fit(data, data, seed=0, report=lambda name, value, step: None)
        predicted = model.predict(data.graphs)
        errors = {DEVICES[0]: quantiles(predicted[:, 0], data.latency_ms[:, 0])}
        info = GraphBundleInfo(
            family=name,
            model_config=plain_settings(family.for_tests),
            devices=DEVICES,
            dataset="made_up",
            dataset_hash="0",
            split="by_graph",
            split_hash="0",
            seed=0,
            log_error=errors,
        )
        folder = tmp_path_factory.mktemp(name) / "bundle"
        save_graph_bundle(folder, model, info, {FILE: Seen.of(data.graphs).to_json()})
        found[name] = load_graph_bundle(folder)
    return found


def test_costs_sum_to_the_latency(bundles: dict[str, GraphBundle]) -> None:
    network = chain("mine", "mine", 0, [8, 16, 16])
    answer = ask(bundles["additive"], network, DEVICES[0])
    assert sum(cost.latency_ms for cost in answer.costs) == pytest.approx(
        answer.latency_ms, rel=1e-6
    )
    assert answer.costs[0].latency_ms >= answer.costs[-1].latency_ms
    assert answer.costs[0].operator == "Conv2D"
    assert "weight 3x3x" in answer.costs[0].shape
    assert answer.unseen == ()
    assert ask(bundles["constant"], network, DEVICES[0]).costs == ()


def test_the_interval_covers_what_it_says(bundles: dict[str, GraphBundle]) -> None:
    data = networks(30)
    inside = 0
    for index in range(len(data)):
        answer = ask(bundles["additive"], data.graphs.take([index]), DEVICES[0])
        assert answer.low_ms is not None
        assert answer.high_ms is not None
        assert answer.low_ms < answer.high_ms
        inside += answer.low_ms <= data.latency_ms[index, 0] <= answer.high_ms
    assert inside / len(data) == pytest.approx(COVERAGE, abs=0.05)
    answer = ask(bundles["additive"], data.graphs.take([0]), DEVICES[1])
    assert (answer.low_ms, answer.high_ms) == (None, None)


def test_what_was_never_seen_is_told(bundles: dict[str, GraphBundle]) -> None:
    network = chain("mine", "mine", 0, [8, 500, 8, 8, 8, 8, 8])
    network.operator[2] = OPERATOR_CODES["Gelu"]
    told = ask(bundles["additive"], network, DEVICES[0], {"Foo": 2}).unseen
    text = "\n".join(told)
    assert "15 nodes; the largest network learnt from has 11" in text
    assert "Gelu (1 times) was never learnt" in text
    assert "Conv2D: channels_out up to 500; learnt up to 6" in text
    assert "Foo (2 times) is no operator that is known here" in text


def test_what_was_seen_comes_back(bundles: dict[str, GraphBundle], tmp_path: Path) -> None:
    seen = Seen.of(networks(30).graphs)
    assert read_seen(bundles["additive"].folder) == seen
    assert seen.unknown(networks(30).graphs) == []
    assert seen.operators["Conv2D"].low[5] == 3
    for text in ("", "[]", '{"graphs": 1}', seen.to_json().decode().replace("[", "[1,")):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(BundleError, match="Pull or train it again"):
            read_seen(tmp_path)


def test_another_device_is_refused(bundles: dict[str, GraphBundle]) -> None:
    with pytest.raises(BundleError, match="found 'v100'"):
        ask(bundles["additive"], networks(1).graphs.take([0]), "v100")


def test_json_has_no_nan(bundles: dict[str, GraphBundle]) -> None:
    import orjson

    values = ask(bundles["additive"], networks(1).graphs.take([0]), DEVICES[0]).to_dict(2)
    assert len(values["costs"]) == 2
    assert orjson.loads(orjson.dumps(values)) == values
    assert np.isfinite(values["latency_ms"])
