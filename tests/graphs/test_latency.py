"""The answer for one network: its interval, what the model cannot know, and where the time goes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tencost.errors import BundleError, GraphError
from tencost.evaluate.networks.left_out import FamilyErrorBounds
from tencost.models.networks.bundle.training_range import (
    TrainingRange,
    log_error_bounds,
    range_from_json,
    training_range,
)
from tencost.models.networks.families.constant import ConstantConfig, ConstantModel
from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs, concatenate
from tencost.networks.graph.node_writer import NodeWriter
from tencost.networks.graph.operators import COLUMNS, OPERATOR_CODES
from tencost.register.latency.prediction import (
    Latency,
    OperatorCost,
    costliest,
    node_sizes,
    novelties,
    predict_latency,
)
from tencost.register.latency.stage import print_latency


def chain(*sizes: int, operator: str = "Conv2D") -> GraphSet:
    """Return a graph: an input, then convolutions of these channels."""
    nodes = NodeWriter()
    last = nodes.add("Placeholder", [], returned=(1, 8, 8, 3))
    given = 3
    for size in sizes:
        shapes = ((1, 8, 8, given), (1, 8, 8, size))
        last = nodes.add(operator, [last], *shapes, weight=(3, 3, given, size), strides=(1, 1))
        given = size
    return nodes.graph("mine", "chains")


class PerOperator(ConstantModel):
    """Milliseconds of a node: its channels, on the second device twice as many."""

    def node_costs(self, graphs: GraphSet) -> NDArray[np.float64]:
        channels = graphs.columns[:, COLUMNS.index("channels_out")].astype(np.float64)
        return np.stack([channels, 2 * channels], axis=1)

    def predict(self, graphs: GraphSet) -> NDArray[np.float64]:
        return np.add.reduceat(self.node_costs(graphs), graphs.node_start[:-1], axis=0)


def warnings_for(graph: GraphSet, learnt: TrainingRange) -> tuple[str, ...]:
    return tuple(text for _, text in novelties(graph, learnt))


LEARNT = training_range(concatenate([chain(8, 16), chain(4, 4, 4)]))
BOUNDS = [(np.log(0.5), np.log(2.0)), (np.log(0.9), np.log(1.2))]
LEFT_OUT = FamilyErrorBounds(np.log(0.25), np.log(1.5), {"deep": 40, "wide": 30})


def test_a_constant_model_answers_without_a_table() -> None:
    model = ConstantModel(ConstantConfig(family="constant"), 1)
    train = LabelledGraphs(chain(8), ("phone",), np.array([[5.0]]))
    model.fit(train, train, seed=0, report=lambda name, value, step: None)
    found = predict_latency(chain(8, 16), model, "phone", 0, BOUNDS[0], LEARNT)
    assert (found.hardware, found.ms, found.costliest) == ("phone", 5.0, ())
    assert (found.low, found.high) == pytest.approx((2.5, 10.0))
    assert found.warnings == ()
    assert found.basis.startswith(
        "The interval holds for networks of the families learnt from only: "
    )


@pytest.mark.parametrize(
    ("graph", "unmodelled", "left_out", "ends", "basis"),
    [
        (chain(8, operator="Gelu"), (), LEFT_OUT, None, "no network learnt from has"),
        (chain(8), ("Conv2D with dilation 2x2",), LEFT_OUT, None, "no network learnt from has"),
        (chain(64), (), None, None, "split=by_family"),
        (chain(64), (), LEFT_OUT, (0.25, 2.0), "families never learnt, from errors on deep, wide"),
        (chain(16_000), (), LEFT_OUT, None, "941 times beyond those learnt from"),
        (
            chain(8),
            (),
            LEFT_OUT,
            (0.25, 2.0),
            "of the families learnt from it is -50.0% to +100.0%",
        ),
        (chain(8), (), None, (0.5, 2.0), "of the families learnt from only"),
    ],
)
def test_an_interval_is_of_networks_as_new_as_the_one_asked_for_or_there_is_none(
    graph: GraphSet,
    unmodelled: tuple[str, ...],
    left_out: FamilyErrorBounds | None,
    ends: tuple[float, float] | None,
    basis: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = PerOperator(ConstantConfig(family="constant"), 1)
    model.node_costs = lambda graphs: np.full((len(graphs.operator), 1), 1.0)  # type: ignore[method-assign]
    found = predict_latency(
        graph, model, "phone", 0, BOUNDS[0], LEARNT, unmodelled=unmodelled, left_out=left_out
    )
    assert basis in found.basis
    assert found.warnings[: len(unmodelled)] == unmodelled
    print_latency("mine", found, "models:/x@champion")
    printed = capsys.readouterr().out
    if ends is None:
        assert np.isnan([found.low, found.high]).all()
        assert found.basis.startswith("No interval: ")
        assert "90% interval" not in printed
    else:
        assert (found.low / found.ms, found.high / found.ms) == pytest.approx(ends)
        assert "90% interval" in printed
    assert found.basis in printed


def test_an_additive_model_tells_what_costs_most_on_each_device() -> None:
    model = PerOperator(ConstantConfig(family="constant"), 2)
    phone, host = (
        predict_latency(
            chain(8, 32, 16), model, name, device, BOUNDS[device], LEARNT, top=2, left_out=LEFT_OUT
        )
        for device, name in enumerate(("phone", "host"))
    )
    assert (phone.ms, host.ms) == (56.0, 112.0)
    assert [(item.node, item.ms) for item in phone.costliest] == [(2, 32.0), (3, 16.0)]
    assert [item.ms for item in host.costliest] == [64.0, 32.0]
    assert phone.costliest[0].share == pytest.approx(32 / 56)
    assert phone.costliest[0].sizes == "1x8x8x8 3x3x8x32/1x1 -> 1x8x8x32"
    assert host.high == pytest.approx(112 * 1.5)


def test_more_than_one_network_is_refused() -> None:
    model = PerOperator(ConstantConfig(family="constant"), 2)
    both = concatenate([chain(8), chain(16)])
    with pytest.raises(GraphError, match="the graph of one network, found 2"):
        predict_latency(both, model, "phone", 0, BOUNDS[0], LEARNT)


def test_what_was_never_seen_is_told_worst_first() -> None:
    strange = chain(8, operator="Gelu")
    assert warnings_for(strange, LEARNT) == ("Gelu (1 node): no network learnt from has it",)
    wide = warnings_for(chain(8, 64), LEARNT)
    assert wide == (
        "Conv2D: channels_out 64, learnt from 4 to 16 (1 of 2 nodes)",
        "Conv2D: out_3 64, learnt from 4 to 16 (1 of 2 nodes)",
    )
    long = warnings_for(chain(*[4] * 7), LEARNT)
    assert long == ("8 nodes: the largest network learnt from has 4",)
    assert warnings_for(chain(2), LEARNT) == (
        "Conv2D: channels_out 2, learnt from 4 to 16 (1 of 1 nodes)",
        "Conv2D: out_3 2, learnt from 4 to 16 (1 of 1 nodes)",
    )


def test_what_was_learnt_from_gives_no_warning() -> None:
    for graph in (chain(8, 16), chain(4, 4, 4)):
        assert warnings_for(graph, LEARNT) == ()


def test_a_size_that_is_not_known_is_not_beyond_any_range() -> None:
    graph = chain(8, 16)
    graph.columns[:, COLUMNS.index("in_0")] = -1
    assert warnings_for(graph, LEARNT) == ()
    assert training_range(graph).operators["Conv2D"].low[0] == 0
    graph.columns[1, COLUMNS.index("in_0")] = 7
    assert training_range(graph).operators["Conv2D"].low[0] == 7


def test_what_was_only_ever_unknown_is_no_limit() -> None:
    """A batch that no training graph knew (-1) is told of once, with a number; a dimension that is not there is not."""
    graph = chain(8, 16)
    graph.columns[:, COLUMNS.index("in_0")] = -1
    told = warnings_for(chain(8, 16), training_range(graph))
    assert told == ("Conv2D: in_0 1, learnt from -1 (2 of 2 nodes)",)
    flat = chain(8, 16)
    flat.columns[2, COLUMNS.index("out_3")] = 0
    assert warnings_for(flat, LEARNT) == ()


def test_the_range_is_the_same_behind_a_file(tmp_path: Path) -> None:
    path = tmp_path / "range.json"
    path.write_text(json.dumps(asdict(LEARNT)))
    assert range_from_json(json.loads(path.read_text())) == LEARNT


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"graphs": 1, "max_nodes": 2},
        {"graphs": 1, "max_nodes": "many", "operators": {}},
        {"graphs": 1, "max_nodes": 2, "operators": {"Add": {"nodes": 1, "low": [1], "high": [2]}}},
        {"graphs": 1, "max_nodes": 2, "operators": ["Add"]},
    ],
)
def test_a_damaged_range_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(BundleError, match="expected"):
        range_from_json(values)


def test_the_interval_holds_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(300):
        actual = np.exp(rng.normal(0.1, 0.3, (101, 1)))
        (bounds,) = log_error_bounds(actual[:-1], np.ones((100, 1)), 0.9)
        inside.append(bounds[0] <= np.log(actual[-1, 0]) <= bounds[1])
    assert 0.85 < np.mean(inside) < 0.97


def test_bounds_need_neither_many_graphs_nor_all_labels() -> None:
    actual = np.array([[1.0, np.nan, 2.0], [2.0, np.nan, np.nan]])
    bounds = log_error_bounds(actual, np.ones((2, 3)))
    assert bounds[0] == pytest.approx([0, np.log(2)])
    assert np.isnan(bounds[1]).all()
    assert bounds[2] == pytest.approx([np.log(2), np.log(2)])


def test_costs_of_a_graph_of_nothing_have_no_share() -> None:
    graph = chain(8)
    assert [item.share for item in costliest(graph, np.zeros(2))] == [0.0, 0.0]


def test_sizes_say_what_is_not_known() -> None:
    graph = chain(8)
    graph.columns[1, 0] = -1
    assert node_sizes(graph.columns[1]).startswith("?x8x8x3 ")
    assert node_sizes(np.zeros(16, np.int32)) == "() -> ()"
    assert graph.operator[1] == OPERATOR_CODES["Conv2D"]


def test_a_row_of_a_piped_answer_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    sizes = "1x112x112x24 1x1x24x96/1x1 -> 1x112x112x96"
    cost = OperatorCost(3, "DepthwiseConv2dNative", sizes, 3.41, 0.108)
    print_latency("mine", Latency("here", 31.4, 30.1, 32.7, 0.9, (), (cost,)), "models:/x@champion")
    (line,) = (line for line in capsys.readouterr().out.splitlines() if cost.operator in line)
    assert sizes in line
