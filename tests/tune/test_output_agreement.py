"""Outputs are compared value by value: what stands beside a value, large or coarse, excuses no error in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tencost.config import NetworkConfig
from tencost.networks.lowering import Precision
from tencost.networks.network import Network, load_network
from tencost.tune.deploy import compare_outputs, output_agreement

pytestmark = pytest.mark.tvm
RNG = np.random.default_rng(0)


def logits(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def masked(values: Any, share: float, mask: float) -> Any:
    hidden = RNG.random(values.shape) < share
    hidden.flat[0] = False
    return np.where(hidden, np.float32(mask), values)


def boxes(*shape: int) -> Any:
    """Four coordinates and two scores."""
    coordinates = 640 * RNG.random((*shape, 4), np.float32)
    return np.concatenate([coordinates, RNG.random((*shape, 2), np.float32)], axis=-1)


OUTPUTS = {
    "logits": logits(4, 50),
    "a column of -1e9": np.concatenate([np.full((4, 1), -1e9), logits(4, 7)], 1).astype(np.float32),
    "mostly -1e9": masked(logits(4, 50), 0.95, -1e9),
    "mostly the least number": masked(logits(4, 50), 0.8, float(np.finfo(np.float32).min)),
    "infinite": masked(logits(4, 50), 0.8, -np.inf),
    "one of 1e30": masked(logits(4, 50), 0.01, 1e30),
    "boxes and scores": boxes(30),
    "boxes and scores of a batch": boxes(2, 10),
    "boxes and scores of channels": np.moveaxis(boxes(2, 10), -1, 1),
    "probabilities": np.exp(6 * logits(3, 40)) / np.exp(6 * logits(3, 40)).sum(),
    "half of them zeros": np.maximum(logits(4, 50), 0),
}


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("share", [0.01, 0.05])
def test_an_error_in_any_one_value_is_seen(name: str, share: float) -> None:
    """Of values that are large enough, among those like it, for their rounding to be less than that."""
    expected = OUTPUTS[name]
    finite = np.isfinite(expected) & (np.abs(expected) < 1e8)
    of_kind = np.where(finite & (expected != 0), np.abs(expected), np.nan)
    typical = np.nanmedian(of_kind) if "boxes" not in name else np.where(of_kind < 1, 0.5, 300)
    places = np.argwhere(finite & (np.abs(expected) > 0.2 * typical))
    assert len(places) > 3
    for place in map(tuple, places):
        output = expected.copy()
        output[place] *= 1 + share
        agreement = output_agreement(output, expected)
        assert agreement.differs, (place, expected[place])
        assert agreement.place == place
        assert f"{output[place]:.8g}" in str(agreement)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", OUTPUTS)
def test_rounding_is_accepted(name: str, strict: bool) -> None:
    """Of each value, and of some 1e-7 of what it is a sum of, values like it."""
    expected = OUTPUTS[name]
    is_small = (np.abs(expected) < 1e8) & (expected != 0)
    # A quotient's rounding is relative to itself.
    typical = 0 if name == "probabilities" else np.median(np.abs(expected[is_small])).clip(max=1)
    for _ in range(20):
        own, summed = RNG.standard_normal((2, *expected.shape)).astype(np.float32)
        output = expected.copy()
        output[is_small] *= (1 + 4e-7 * own)[is_small]
        output[is_small] += (2e-7 * typical * summed)[is_small]
        agreement = output_agreement(output, expected, strict=strict)
        assert not agreement.differs, str(agreement)


def test_a_value_that_cancellation_left_is_no_kind_of_its_own() -> None:
    expected = np.append(logits(200), np.float32(1e-7))
    output = expected + np.float32(1e-7)
    assert not output_agreement(output, expected).differs
    assert not output_agreement(output, expected, strict=True).differs


@pytest.mark.parametrize("shape", [(1, 1000), (8, 64), (2, 16, 9, 9), (257,)])
def test_sums_in_another_order_are_accepted(shape: tuple[int, ...]) -> None:
    """Values near 0 among them, of which cancellation leaves few digits."""
    for _ in range(10):
        factors = RNG.standard_normal((2, *shape, 512)).astype(np.float32)
        products = factors[0] * factors[1]
        expected = products.sum(-1)
        output = np.zeros(shape, np.float32)
        for part in np.moveaxis(products, -1, 0):
            output += part
        for strict in (False, True):
            agreement = output_agreement(output, expected, strict=strict)
            assert not agreement.differs, str(agreement)


def test_a_score_beside_boxes_of_one_row_is_seen_where_noise_can_be_measured() -> None:
    expected = np.array([[12.0, 300.0, 260.0, 640.0, 0.6, 0.9]], np.float32)
    for place in (4, 5):
        output = expected.copy()
        output[0, place] *= 1.02
        assert output_agreement(output, expected, strict=True).differs
        noise = 1e-6 * expected.astype(np.float64)
        assert output_agreement(output, expected, noise=noise, strict=True).differs


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.int8, np.bool_])
def test_integers_are_equal(dtype: Any) -> None:
    expected = RNG.integers(0, 2 if dtype is np.bool_ else 100, (4, 9)).astype(dtype)
    expected[0, 0] = 1
    output = expected.copy()
    assert output_agreement(output, expected).accepted
    output[2, 3] ^= np.ones((), dtype)
    assert output_agreement(output, expected).differs
    assert output_agreement(output, expected).place == (2, 3)
    flips = np.zeros(expected.shape)
    flips[2, 3] = 1
    assert not output_agreement(output, expected, noise=flips).differs, "a tie, as measured"
    assert output_agreement(output, expected, noise=flips[::-1]).differs, "of another value"
    assert output_agreement(output, expected, noise=np.ones(expected.shape)).differs, "all do"
    quantized = output_agreement(output, expected, Precision(is_quantized=True))
    assert quantized.differs == (dtype not in (np.uint8, np.int8, np.int32))


def test_large_integers_that_a_float_does_not_tell_apart() -> None:
    expected = np.array([2**62, 5])
    assert output_agreement(expected + np.array([1, 0]), expected).differs


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """Outputs of float32, through bfloat16, through float16, of a quantized product and of uint8."""
    node, cast = helper.make_node, TensorProto
    nodes = [
        node("MatMul", ["x", "w"], ["product"]),
        node("Tanh", ["product"], ["single"]),
        node("Cast", ["single"], ["coarse"], to=cast.BFLOAT16),
        node("Cast", ["coarse"], ["bfloat"], to=cast.FLOAT),
        node("Cast", ["product"], ["halved"], to=cast.FLOAT16),
        node("Tanh", ["halved"], ["half"]),
        node("QuantizeLinear", ["product", "scale", "zero"], ["bytes"]),
        node("DequantizeLinear", ["bytes", "scale", "zero"], ["quantized"]),
        node("Relu", ["product"], ["positive"]),
        node("Cast", ["positive"], ["whole"], to=cast.UINT8),
    ]
    outputs = {"single": cast.FLOAT, "bfloat": cast.FLOAT, "half": cast.FLOAT16}
    outputs |= {"quantized": cast.FLOAT, "whole": cast.UINT8}
    constants = {"w": logits(8, 8), "scale": np.float32(0.05), "zero": np.uint8(128)}
    graph = helper.make_graph(
        nodes,
        "mixed",
        [helper.make_tensor_value_info("x", cast.FLOAT, [4, 8])],
        [helper.make_tensor_value_info(name, kind, [4, 8]) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    folder: Path = tmp_path_factory.mktemp("mixed")
    opset = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), folder / "mixed.onnx")
    return load_network(NetworkConfig(name="mixed", source="onnx", path="mixed.onnx"), folder)


def test_each_output_has_the_precision_of_what_it_is_computed_from(mixed: Network) -> None:
    tolerances = dict(
        zip(mixed.outputs, (each.tolerance for each in mixed.precisions), strict=True)
    )
    assert tolerances["single"] == 1e-4
    assert tolerances["half"] == 2**-7
    assert tolerances["bfloat"] == 2**-4
    assert tolerances["quantized"] == 2**-5


def test_a_coarse_output_excuses_no_error_in_another(mixed: Network) -> None:
    assert not any(each.differs for each in compare_outputs(mixed, mixed.expected).values())
    for share, seen in ((0.02, {"single", "half"}), (0.4, {"single", "half", "bfloat"})):
        for name, index in mixed.compared.items():
            outputs = [output.copy() for output in mixed.expected]
            place = np.unravel_index(np.argmax(outputs[index]), outputs[index].shape)
            outputs[index][place] *= (
                np.asarray(1 + share, ml_dtypes.bfloat16).astype(np.float32)
                if (outputs[index].dtype.kind == "f")
                else 1
            )
            differs = {
                name for name, each in compare_outputs(mixed, outputs).items() if each.differs
            }
            assert differs == ({name} & (seen | {"quantized"} if share > 0.1 else seen)), name
