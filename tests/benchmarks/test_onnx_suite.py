"""A sample of ONNX's backend suite, each of its cases that came out wrong among them: the whole is a benchmark."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

pytestmark = [pytest.mark.tvm, pytest.mark.slow]
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

CASES = [
    line.split()
    for line in Path(__file__).with_name("onnx_cases.txt").read_text().splitlines()
    if not line.startswith("#")
]
REFUSED = {
    "batchnorm_example_training_mode": "BatchNormalization in training mode",
    "maxunpool_export_with_output_shape": "MaxUnpool whose output_shape is no constant",
    "tril_zero": "TVM takes a size of 0 for one that is not known: give x values",
    "top_k_uint64": "TopK of uint64 values",
    "training_dropout": "Dropout whose training mode is no constant",
    "hannwindow": "HannWindow whose size is no constant",
    "loop11": "Loop whose number of iterations is no constant",
    "scan_sum": "Scan of operator set 8",
}


@pytest.fixture(scope="module")
def suite() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        import onnx_suite  # type: ignore[import-not-found]

        yield onnx_suite
        sys.modules.pop("onnx_suite", None)


@pytest.fixture(scope="module")
def cases(suite: ModuleType) -> Any:
    return suite.cases()


@pytest.mark.parametrize(("end", "name"), CASES)
def test_a_case_ends_as_it_should(end: str, name: str, suite: ModuleType, cases: Any) -> None:
    """It computes what ONNX says, does once shapes and axes are constants, or is refused by name."""
    whole = name if "/" in name else f"node/test_{name}"
    answer = suite.run_case(whole, cases[whole])
    assert answer["end"] == end, answer.get("why")
    assert REFUSED.get(name, "") in answer.get("why", "")


X = np.random.default_rng(0).standard_normal((2, 3, 3, 3), np.float32)
CHANNELS = np.array([1, 2, 3], np.float32)
WIDE = CHANNELS[:, None, None]
SCALES = np.array([1, 1, 2, 1.5], np.float32)
UPSAMPLED = X[:, :, [0, 0, 1, 1, 2, 2]][:, :, :, [0, 0, 1, 2]]
WORDS = np.array([[3, 65535, 1], [9, 7, 8]], np.uint16)


@pytest.mark.parametrize(
    ("operator", "opset", "settings", "inputs", "constants", "expected"),
    [
        ("Sub", 6, {"axis": 1, "broadcast": 1}, [X, CHANNELS], [], [X - WIDE]),
        ("Greater", 6, {"axis": -3, "broadcast": 1}, [X, CHANNELS], [], [X > WIDE]),
        ("Pow", 6, {"axis": 1, "broadcast": 1}, [abs(X), CHANNELS], [], [abs(X) ** WIDE]),
        ("PRelu", 6, {}, [X, CHANNELS], [], [np.where(X < 0, X * WIDE, X)]),
        ("Slice", 6, {"starts": [0, 1], "ends": [1, 2]}, [X], [], [X[:1, 1:2]]),
        ("Slice", 9, {"axes": [-1], "starts": [-2], "ends": [9]}, [X], [], [X[..., -2:]]),
        ("Upsample", 6, {"height_scale": 2.0, "width_scale": 1.0}, [X], [], [X.repeat(2, 2)]),
        ("Upsample", 7, {"scales": SCALES.tolist()}, [X], [], [UPSAMPLED]),
        ("Resize", 10, {}, [X], [SCALES], [UPSAMPLED]),
        ("Dropout", 7, {}, [X], [], [X, np.ones_like(X)]),
        ("TopK", 11, {}, [WORDS], [np.array([1])], [WORDS.max(1)[:, None], np.array([[1], [0]])]),
    ],
)
def test_what_the_suite_has_no_case_of(
    operator: str,
    opset: int,
    settings: dict[str, Any],
    inputs: list[Any],
    constants: list[Any],
    expected: list[Any],
    suite: ModuleType,
) -> None:
    """Operators as older operator sets define them, and a sort of integers that TVM sorts none of."""
    tensors = {f"x{index}": array for index, array in enumerate(inputs)}
    weights = {f"c{index}": array for index, array in enumerate(constants)}
    outputs = {f"y{index}": array for index, array in enumerate(expected)}
    graph = helper.make_graph(
        [helper.make_node(operator, [*tensors, *weights], list(outputs), **settings)],
        "alone",
        [value_info(name, array) for name, array in tensors.items()],
        [value_info(name, array) for name, array in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    results = suite.computed(model, tensors, expected)
    for result, array in zip(results, expected, strict=True):
        assert not suite.different(result, array, 1e-3, 1e-6)


def value_info(name: str, array: Any) -> Any:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
    )


def test_a_float16_may_be_eight_units_in_the_last_place_off(suite: ModuleType) -> None:
    one, off = np.ones(1, np.float16), np.full(1, 1 + 2**-7, np.float16)
    assert not suite.different(off, one, 1e-3, 1e-7)
    assert suite.different(off + np.float16(2**-9), one, 1e-3, 1e-7)


def test_scope_is_a_rule(suite: ModuleType, cases: Any) -> None:
    reasons = {name: suite.out_of_scope(case) for name, case in cases.items()}
    assert len(reasons) > 2000
    assert reasons["node/test_add"] == ""
    assert reasons["node/test_sequence_insert_at_back"] == "sequence as input or output"
    assert reasons["node/test_bernoulli_seed"] == "random numbers"


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (np.array([1.0, np.inf], np.float32), ""),
        (np.array([1.0, -np.inf], np.float32), "1 of 2 differ: -inf for inf"),
        (np.array([1.0, 3e38], np.float32), "1 of 2 differ: 3.0000000054977558e+38 for inf"),
        (np.array([1.0, np.inf]), "expected float32, found float64"),
        (np.array([[1.0, np.inf]], np.float32), "expected shape (2,), found (1, 2)"),
    ],
)
def test_an_array_differs_in_type_shape_or_value(found: Any, told: str, suite: ModuleType) -> None:
    told_now = suite.different(found, np.array([1.0, np.inf], np.float32), 1e-3, 1e-7)
    assert told_now.startswith(told[:24]) if told else not told_now
