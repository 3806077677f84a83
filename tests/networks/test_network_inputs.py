from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tencost.config import NetworkConfig, NetworkInput
from tencost.errors import ConfigError
from tencost.networks.inputs import (
    DeclaredInput,
    batch_notes,
    draw_inputs,
    option_name,
    resolve_shapes,
)

IMAGE = {"pixels.1": DeclaredInput(("N", 3, "H", "W"), "float32")}
TEXT = {
    "ids": DeclaredInput(("batch", "seq"), "int64"),
    "attention_mask": DeclaredInput(("batch", "seq"), "int64"),
}


def config(**values: Any) -> NetworkConfig:
    return NetworkConfig(name="mine", source="onnx", path="mine.onnx", **values)


@pytest.mark.parametrize(
    ("declared", "values", "shapes"),
    [
        (IMAGE, {"size": 32}, [(1, 3, 32, 32)]),
        (IMAGE, {"size": 32, "batch": 4}, [(4, 3, 32, 32)]),
        (IMAGE, {"inputs": {"pixels_1": NetworkInput(shape=[2, 3, 8, 6])}}, [(2, 3, 8, 6)]),
        (IMAGE, {"inputs": {"pixels.1": NetworkInput(shape=[2, 3, 8, 6])}}, [(2, 3, 8, 6)]),
        (TEXT, {"inputs": {"ids": NetworkInput(shape=[2, 7])}}, [(2, 7), (2, 7)]),
        (TEXT, {"batch": 3, "size": 5}, [(3, 5), (3, 5)]),
        ({"x": DeclaredInput((8, 4), "float32")}, {}, [(8, 4)]),
        ({"x": DeclaredInput(("", ""), "float32")}, {"size": 9}, [(1, 9)]),
        ({"x": DeclaredInput((), "float32")}, {}, [()]),
        (
            {"x": DeclaredInput(None, "float32")},
            {"inputs": {"x": NetworkInput(shape=[5])}},
            [(5,)],
        ),
    ],
)
def test_dynamic_dimensions_are_settled(
    declared: dict[str, DeclaredInput], values: dict[str, Any], shapes: list[tuple[int, ...]]
) -> None:
    assert list(resolve_shapes(config(**values), declared).values()) == shapes


@pytest.mark.parametrize(
    ("declared", "values", "message"),
    [
        (
            IMAGE,
            {},
            r"dimension 2 \(H\) of input pixels.1 is dynamic.*network.inputs.pixels_1.shape=\[1,3,<H>,<W>\]",
        ),
        (
            {"x": DeclaredInput((1, ""), "float32")},
            {},
            r"dimension 1 of input x .*\.x\.shape=\[1,<number>\]",
        ),
        (
            IMAGE,
            {"inputs": {"pixels_1": NetworkInput(shape=[1, 4, 8, 8])}},
            r"network.inputs.pixels_1.shape: .* expected \[<N>,3,<H>,<W>\], found \[1, 4, 8, 8\]",
        ),
        (IMAGE, {"inputs": {"pixels_1": NetworkInput(shape=[1, 3])}}, r"found \[1, 3\]"),
        (IMAGE, {"inputs": {"pixels_1": NetworkInput(shape=[1, 3, 0, 8])}}, "found"),
        (
            TEXT,
            {
                "inputs": {
                    "ids": NetworkInput(shape=[2, 7]),
                    "attention_mask": NetworkInput(shape=[2, 8]),
                }
            },
            r"network.inputs.attention_mask.shape: .* expected \[2,7\], found \[2, 8\]",
        ),
        (
            IMAGE,
            {"inputs": {"image": NetworkInput(shape=[1])}},
            "has the inputs pixels_1; found 'image'",
        ),
        (
            {"x": DeclaredInput((1, 4), "float32")},
            {"batch": 8},
            r"network.batch=8: no input .* takes it \(x=\[1, 4\]\)",
        ),
        (
            {"x": DeclaredInput((1, 4), "float32")},
            {"size": 8},
            r"network.size=8: no input .* takes it",
        ),
        (
            {"x": DeclaredInput(None, "float32")},
            {},
            r"has no shape in its file. Give one: network.inputs.x.shape=\[1,...\]",
        ),
        (
            {"x": DeclaredInput((-1, 4), "float32")},
            {},
            "expected a size of dimension 0 of input x, found -1 in its file",
        ),
    ],
)
def test_what_cannot_be_settled_is_named(
    declared: dict[str, DeclaredInput], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_shapes(config(**values), declared)


def test_a_dynamic_batch_is_said() -> None:
    declared = {"x": DeclaredInput(("batch", 3), "float32"), "y": DeclaredInput((1, 3), "float32")}
    (note,) = batch_notes(config(), declared)
    assert "dimension of x is dynamic" in note
    assert "network.batch=8" in note
    assert "network.buckets=[1,8]" in note
    shaped = config(inputs={"x": NetworkInput(shape=[1, 3])})
    assert batch_notes(shaped, declared) == batch_notes(config(batch=2), declared) == []


def test_drawn_inputs_follow_the_file_s_types_and_the_seed() -> None:
    declared = {
        "x": DeclaredInput((2, 3), "float16"),
        "ids": DeclaredInput((2, 50), "int32"),
        "attention_mask": DeclaredInput((2, 5), "int64"),
        "keep": DeclaredInput((2,), "bool"),
    }
    shapes = {name: item.dims for name, item in declared.items()}
    wide = config(inputs={"ids": NetworkInput(shape=[2, 50], high=99)})
    arrays = draw_inputs(wide, declared, shapes)  # type: ignore[arg-type]
    assert [array.dtype.name for array in arrays.values()] == [
        item.dtype for item in declared.values()
    ]
    assert arrays["ids"].max() == 98
    assert arrays["ids"].flat[0] == 0, "the ends of what is indexed are read"
    assert arrays["ids"].flat[-1] == 98
    assert arrays["attention_mask"].tolist() == [[1, 1, 1, 1, 0]] * 2, "a mask that masks"
    assert arrays["keep"].tolist() == [True, False]
    again = draw_inputs(wide, declared, shapes)  # type: ignore[arg-type]
    np.testing.assert_array_equal(arrays["x"], again["x"])
    other = draw_inputs(config(seed=1), declared, shapes)  # type: ignore[arg-type]
    assert other["ids"].max() == 1
    assert not np.array_equal(arrays["x"], other["x"])
    with pytest.raises(
        ConfigError, match=r"input z: its type must be one of .*; found 'complex64'"
    ):
        draw_inputs(config(), {"z": DeclaredInput((1,), "complex64")}, {"z": (1,)})


@pytest.mark.parametrize("shape", [(1 << 40, 3), (1 << 33, 1 << 33)])
def test_inputs_beyond_the_memory_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"input x: expected a shape that fits into the \d+ GB"):
        draw_inputs(config(), {"x": DeclaredInput(shape, "float32")}, {"x": shape})


def test_option_names_are_words() -> None:
    assert option_name("input.1") == "input_1"
    assert option_name("/model/x:0") == "_model_x_0"
