"""Outputs that rounding alone changes: compared within that, and no wrong number passes for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tencost import cli
from tencost.config import GraphChoice, NetworkConfig
from tencost.networks.network import Network, load_network
from tencost.tune.deploy import NOISE_FACTOR, compare_outputs

pytestmark = pytest.mark.tvm


def magnified(folder: Path, factor: Any) -> Path:
    """Write a network of 256 products and a tanh; of that, many times as large, it is the sine."""
    weights = np.random.default_rng(0).standard_normal((256, 16)).astype(np.float32) / 16
    constants = {"weights": weights, "factor": np.asarray(factor, np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "weights"], ["sums"]),
        helper.make_node("Tanh", ["sums"], ["small"]),
        helper.make_node("Mul", ["small", "factor"], ["large"]),
        helper.make_node("Sin", ["large"], ["y"]),
    ]
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
        for name, shape in (("x", [8, 256]), ("y", [8, 16]))
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "magnified", *ends, tensors)
    path = folder / "magnified.onnx"
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def loaded(path: Path) -> Network:
    config = NetworkConfig(
        name="magnified", source="onnx", path=str(path), graph=GraphChoice.folded
    )
    return load_network(config, path.parent)


def test_rounding_is_measured_where_it_counts(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("calm", "nervous")]
    for folder in folders:
        folder.mkdir()
    calm, nervous = (
        loaded(magnified(folder, factor))
        for folder, factor in zip(folders, (1, 20_000), strict=True)
    )
    for network in (calm, nervous):
        assert network.rounding_noise is not None
        assert network.rounding_noise[0].shape == network.expected[0].shape
    (calm_noise,), (nervous_noise,) = calm.rounding_noise or [], nervous.rounding_noise or []
    assert np.max(calm_noise) < 2e-5
    assert 1e-4 < np.median(nervous_noise) < 0.05
    assert replace(nervous, again=None).rounding_noise is None


def test_what_differs_by_rounding_is_accepted_and_what_differs_by_more_is_not(
    tmp_path: Path,
) -> None:
    network = loaded(magnified(tmp_path, 20_000))
    assert network.rounding_noise is not None
    (noise,), (expected,) = network.rounding_noise, network.expected
    change = np.maximum(noise, np.median(noise)).astype(np.float32)
    for part, differs in ((0.5, False), (2, False), (NOISE_FACTOR + 1, True)):
        (agreement,) = compare_outputs(network, [expected + part * change]).values()
        assert agreement.differs == differs
        assert (agreement.noise > 0) == (not differs)


def test_the_noise_of_one_value_excuses_no_other(tmp_path: Path) -> None:
    """Rows that are multiplied by 20,000 are nervous; those that are not are compared as ever."""
    network = loaded(magnified(tmp_path, np.where(np.arange(16) < 2, 20_000, 1)))
    (expected,) = network.expected
    for column, differs in ((0, False), (1, False), (2, True), (15, True)):
        output = expected.copy()
        output[3, column] += 0.004
        (agreement,) = compare_outputs(network, [output]).values()
        assert agreement.differs == differs, column
        assert agreement.place == (3, column)


@pytest.mark.parametrize("factor", [1, 3e7], ids=["that is calm", "that rounding decides"])
def test_a_wrong_number_is_not_excused(factor: float, tmp_path: Path) -> None:
    """In the second nothing is left to compare: a tolerance of the output's own size would accept anything."""
    network = loaded(magnified(tmp_path, factor))
    (agreement,) = compare_outputs(network, [network.expected[0] + 0.3]).values()
    assert agreement.differs


def test_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, library = magnified(tmp_path, 20_000), tmp_path / "magnified.so"
    words = ["compile", "network=onnx", f"network.path={path}", "hardware=local"]
    cli.main([*words, "--to", str(library)])
    assert library.exists()
    said = " ".join(capsys.readouterr().err.split())
    assert "when the inputs are rounded otherwise" in said
