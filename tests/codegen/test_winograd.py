"""Winograd's convolutions: as exact as is said, whatever is fused with them, on each core, where they are worth it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from relax_networks import run
from tencost.networks.lowering import compilable, fuse
from tencost.networks.winograd import with_winograd
from tencost.programs.codegen import rules, vector_math, winograd
from tencost.programs.codegen.products import Vectors
from tencost.programs.codegen.winograd import Convolution

pytestmark = pytest.mark.tvm
op = relax.op
WIDE = Vectors(16, 32)
ERRORS = {2: 2e-6, 4: 2e-5}
"""Size of the tiles -> largest difference, relative to the largest value."""


def direct(image: np.ndarray, taps: np.ndarray, padding: int) -> np.ndarray:
    """Return the convolution in float64."""
    padded = np.pad(image, ((0, 0), (padding,) * 2, (padding,) * 2, (0, 0))).astype(np.float64)
    height, width = (extent - 2 for extent in padded.shape[1:3])
    return sum(
        padded[:, y : y + height, x : x + width] @ taps[y, x].astype(np.float64)
        for y in range(3)
        for x in range(3)
    )


@pytest.mark.parametrize("size", winograd.SIZES)
def test_the_matrices_are_those_of_a_convolution(size: int) -> None:
    data, taps, back = winograd.matrices(size)
    rng = np.random.default_rng(0)
    image, filtered = rng.standard_normal((size + 2, size + 2)), rng.standard_normal((3, 3))
    product = (taps @ filtered @ taps.T) * (data @ image @ data.T)
    expected = direct(image[None, :, :, None], filtered[:, :, None, None], 0)[0, :, :, 0]
    assert np.allclose(back @ product @ back.T, expected, rtol=0, atol=1e-12)


def computed(
    convolution: Convolution, size: int, target: dict[str, Any], data: Any, transformed: Any
) -> tuple[str, Any]:
    """Return a convolution's schedule by rule as text, and what it makes of data and transformed taps."""
    function = winograd.convolve(convolution, size).with_attr("global_symbol", "main")
    assert winograd.is_winograd(function)
    by_rule = rules.scheduled(function, target)
    built = tvm.compile(tvm.IRModule({"main": by_rule}), target=tvm.target.Target(target))
    shape = [int(extent) for extent in function.params[-1].shape]
    output = tvm.runtime.empty(shape, "float32")
    taps = tvm.runtime.tensor(transformed.astype(np.float32))
    built["main"](tvm.runtime.tensor(data), taps, output)
    return by_rule.script(), output.numpy()


SHAPES = {
    "whole tiles": (1, 16, 24, 16, 32, 1),
    "rows and columns over": (1, 13, 15, 16, 16, 1),
    "no padding": (1, 14, 18, 32, 16, 0),
    "several images": (3, 8, 8, 16, 48, 1),
    "channels of half a vector": (1, 12, 12, 24, 40, 1),
    "less than a tile": (1, 3, 2, 16, 16, 1),
}
"""Images, rows, columns, channels, filters, padding."""


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("size", winograd.SIZES)
@pytest.mark.parametrize("name", SHAPES)
def test_the_numbers_are_those_of_the_direct_form(
    name: str, size: int, cores: int, target: dict[str, Any]
) -> None:
    images, rows, columns, channels, filters, padding = SHAPES[name]
    height, width = rows + 2 * padding - 2, columns + 2 * padding - 2
    convolution = Convolution(
        images, height, width, padding, padding, channels, filters, rows, columns
    )
    rng = np.random.default_rng(0)
    image = rng.standard_normal((images, rows, columns, channels)).astype(np.float32)
    taps = rng.standard_normal((3, 3, channels, filters)).astype(np.float32)
    matrix = winograd.matrices(size)[1]
    transformed = np.einsum("ea,abck,fb->efck", matrix, taps, matrix)
    text, output = computed(convolution, size, target | {"num-cores": cores}, image, transformed)
    assert "T.vectorized" in text
    assert ("T.parallel" in text) == (cores > 1)
    expected = direct(image, taps, padding)
    assert np.abs(output - expected).max() <= ERRORS[size] * np.abs(expected).max()


SEQUENCES = {
    "steps over": (2, 61, 16, 32, 1, 1),
    "no padding": (1, 66, 32, 16, 0, 1),
    "dilated": (1, 50, 24, 16, 8, 8),
    "dilated by more than its tiles": (1, 20, 16, 16, 16, 16),
}
"""Sequences, steps, channels, filters, padding, dilation."""


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("size", winograd.SIZES)
@pytest.mark.parametrize("name", SEQUENCES)
def test_so_are_those_of_sequences(
    name: str, size: int, cores: int, target: dict[str, Any]
) -> None:
    count, steps, channels, filters, padding, dilation = SEQUENCES[name]
    length = steps + 2 * padding - 2 * dilation
    convolution = Convolution(count, length, 1, padding, 0, channels, filters, steps, 1, dilation)
    rng = np.random.default_rng(0)
    data = rng.standard_normal((count, steps, channels)).astype(np.float32)
    taps = rng.standard_normal((3, channels, filters)).astype(np.float32)
    transformed = np.einsum("ea,ack->eck", winograd.matrices(size)[1], taps)[:, None]
    _, output = computed(convolution, size, target | {"num-cores": cores}, data, transformed)
    assert output.shape[1] == length
    padded = np.pad(data, ((0, 0), (padding,) * 2, (0, 0))).astype(np.float64)
    expected = sum(
        padded[:, place * dilation : place * dilation + length] @ taps[place].astype(np.float64)
        for place in range(3)
    )
    assert np.abs(output - expected).max() <= ERRORS[size] * np.abs(expected).max()


EPILOGUES: dict[str, Callable[[Any, Any], Any]] = {
    "alone": lambda x, image: x,
    "bias and ReLU": lambda x, image: op.nn.relu(op.add(x, relax.const(np.float32(0.25)))),
    "SiLU": lambda x, image: op.nn.silu(x),
    "residual": lambda x, image: op.nn.relu(op.add(x, image)),
    "a mean after it": lambda x, image: op.mean(op.nn.relu(x), [1, 2]),
    "two readers": lambda x, image: op.concat([op.nn.relu(x), op.nn.silu(x)], axis=3),
}
"""What is done with a convolution of as many filters as channels, and its image."""


TAPS = np.random.default_rng(0).standard_normal((3, 3, 32, 32)).astype(np.float32)


def convolving(epilogue: Callable[[Any, Any], Any], **attributes: Any) -> Any:
    """Return a network of one convolution, [1, 28, 28, 32] by [3, 3, 32, 32]."""
    builder = relax.BlockBuilder()
    image = relax.Var("image", relax.TensorType((1, 28, 28, 32), "float32"))
    taps = relax.Var("taps", relax.TensorType((3, 3, 32, 32), "float32"))
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    with builder.function("main", [image, taps]):
        with builder.dataflow():
            x = builder.emit(op.nn.conv2d(image, taps, **{"padding": 1, **layouts, **attributes}))
            output = builder.emit_output(builder.normalize(epilogue(x, image)))
        builder.emit_func_output(output)
    return builder.get()


def functions_of(mod: Any) -> list[str]:
    return [
        str(name.name_hint)
        for name, function in mod.functions.items()
        if isinstance(function, tirx.PrimFunc) and winograd.is_winograd(function)
    ]


@pytest.mark.parametrize("name", EPILOGUES)
def test_what_follows_a_convolution_is_computed_with_it(name: str, target: dict[str, Any]) -> None:
    vector_math.register_vector_math()
    mod = convolving(EPILOGUES[name])
    rewritten = compilable(fuse(with_winograd(mod, [tvm.runtime.tensor(TAPS)], target)))
    plain = compilable(fuse(mod))
    assert len(functions_of(rewritten)) == 1
    assert not functions_of(plain)
    image = np.random.default_rng(1).standard_normal((1, 28, 28, 32)).astype(np.float32)
    arrays = [image, TAPS]
    by_rule = rules.schedule_rest(rewritten, target)
    found = run(by_rule, arrays, rules.leave(by_rule, target))
    expected = run(plain, arrays, target)
    assert np.abs(found - expected).max() <= ERRORS[4] * np.abs(expected).max()


OTHERS: dict[str, tuple[dict[str, Any], list[np.ndarray]]] = {
    "strides": ({"strides": 2}, [TAPS]),
    "dilation": ({"dilation": 2, "padding": 2}, [TAPS]),
    "weights that are inputs": ({}, []),
    "whole numbers, whose sums are exact": ({}, [np.rint(10 * TAPS)]),
}
"""A convolution's attributes, and the known weights."""


@pytest.mark.parametrize("name", OTHERS)
def test_other_convolutions_stay_as_they_are(name: str, target: dict[str, Any]) -> None:
    attributes, weights = OTHERS[name]
    mod = convolving(EPILOGUES["alone"], **attributes)
    params = [tvm.runtime.tensor(weight) for weight in weights]
    assert "conv2d" in with_winograd(mod, params, target)["main"].script()


def test_no_other_processor_gets_them() -> None:
    mod = convolving(EPILOGUES["alone"])
    cuda = {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024}
    assert with_winograd(mod, [tvm.runtime.tensor(TAPS)], cuda).same_as(mod)


def square(side: int, channels: int, filters: int) -> Convolution:
    return Convolution(1, side, side, 1, 1, channels, filters, side, side)


def test_where_they_are_worth_it() -> None:
    """Much of an image: large tiles. Few pixels and many weights: they are read in sixteen places, not in nine."""
    assert winograd.best_size(square(56, 64, 64), WIDE) == 4
    assert winograd.best_size(square(7, 512, 512), WIDE) in (2, None)
    assert winograd.best_size(square(2, 512, 512), WIDE) is None
    assert winograd.best_size(square(224, 3, 32), WIDE) is None  # no vector of channels
    assert winograd.best_size(square(56, 64, 37), WIDE) is None  # ... of filters
