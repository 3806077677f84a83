"""Operators that TVM's frontend lacks, from a file to the compiled network, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tencost.config import NetworkConfig, NetworkInput
from tencost.errors import MeasureError
from tencost.networks.network import Network, load_network
from tencost.networks.operators.signals import spectrum_matrix
from tencost.tune.deploy import compare_outputs, compile_network
from tencost.tune.hosts import Deployed

pytestmark = pytest.mark.tvm
node = helper.make_node
RNG = np.random.default_rng(0)


def imported(
    folder: Path,
    nodes: list[Any],
    inputs: dict[str, tuple[Any, list[int]]],
    outputs: dict[str, Any],
    constants: dict[str, Any],
    *,
    opset: int = 20,
    high: int = 200,
    ranks: dict[str, list[str]] | None = None,
) -> Network:
    """Write a graph into a file and import it; ONNX Runtime computes what is expected."""

    def declared(name: str, dtype: Any, shape: Any) -> Any:
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
        )

    graph = helper.make_graph(
        nodes,
        "operators",
        [declared(name, *item) for name, item in inputs.items()],
        [declared(name, dtype, (ranks or {}).get(name)) for name, dtype in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.save(onnx.shape_inference.infer_shapes(model, data_prop=True), folder / "mine.onnx")
    settings = {
        name: NetworkInput(
            shape=shape, dtype=np.dtype(dtype).name, high=min(high, np.iinfo(dtype).max)
        )
        for name, (dtype, shape) in inputs.items()
        if np.dtype(dtype).kind in "iu"
    }
    config = NetworkConfig(name="mine", source="onnx", path="mine.onnx", inputs=settings)
    return load_network(config, folder)


def computed(network: Network, target: dict[str, Any]) -> list[Any]:
    return Deployed(compile_network(network, target, None), network).outputs()


def check_equal(network: Network, target: dict[str, Any]) -> None:
    assert network.computed_by == "ONNX Runtime"
    for result, expected in zip(computed(network, target), network.expected, strict=True):
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)


SMALL = np.float32(0.1)


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint16, np.int16])
def test_quantization_rounds_half_to_even_and_saturates(
    kind: Any, tmp_path: Path, target: dict[str, Any]
) -> None:
    """A product with the reciprocal of the scale, as TVM has it, gives others of these thousands of values."""
    zero = kind(3)
    values = np.concatenate([np.arange(-4000, 4000) * np.float32(0.05), [4e9, -4e9, 1e20]])
    constants = {"scale": SMALL, "zero": zero, "values": values.astype(np.float32)}
    nodes = [
        node("Add", ["x", "values"], ["moved"]),
        node("QuantizeLinear", ["moved", "scale", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    inputs = {"x": (np.float32, [2, len(values)])}
    network = imported(tmp_path, nodes, inputs, {"q": kind, "y": np.float32}, constants, opset=21)
    network.inputs["x"][0] = 0
    moved = network.inputs["x"] + constants["values"]
    limits = np.iinfo(kind)
    expected = np.clip(np.rint(moved / SMALL) + zero, limits.min, limits.max).astype(kind)
    found, _ = computed(network, target)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("channels", "largest"), [(4, np.float32), (200, np.int32)])
def test_an_integer_convolution_is_exact(
    channels: int, largest: Any, tmp_path: Path, target: dict[str, Any]
) -> None:
    """Sums below 2**24 are summed as float32; beyond, where float32 skips integers, as int32."""
    weights = RNG.integers(100, 255, (8, channels, 3, 3)).astype(np.uint8)
    constants = {"w": weights, "xz": np.uint8(7), "wz": np.uint8(130)}
    if largest is np.int32:
        constants["wz"] = np.uint8(0)
    nodes = [node("ConvInteger", ["x", "w", "xz", "wz"], ["y"], pads=[1, 1, 1, 1])]
    inputs = {"x": (np.uint8, [1, channels, 5, 5])}
    network = imported(tmp_path, nodes, inputs, {"y": np.int32}, constants, high=255)
    products = [str(task.mod) for task in network.tasks(target) if "conv2d" in task.name]
    assert [np.dtype(largest).name in text for text in products] == [True]
    check_equal(network, target)


def test_a_product_of_integers_that_is_cast_stays_float(
    tmp_path: Path, target: dict[str, Any]
) -> None:
    constants = {"w": RNG.integers(-128, 127, (16, 6)).astype(np.int8), "az": np.uint8(9)}
    nodes = [
        node("MatMulInteger", ["x", "w", "az"], ["sum"]),
        node("Cast", ["sum"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    network = imported(tmp_path, nodes, {"x": (np.uint8, [3, 16])}, {"y": np.float32}, constants)
    assert "int32" not in str(network.mod["main"])
    check_equal(network, target)


@pytest.mark.parametrize("axis", [0, 1])
def test_scales_of_rows_columns_and_blocks(
    axis: int, tmp_path: Path, target: dict[str, Any]
) -> None:
    blocks = [4, 6]
    blocks[axis] //= 2
    constants = {
        "scale": RNG.uniform(0.01, 0.1, 4 if axis == 0 else 6).astype(np.float32),
        "zero": RNG.integers(-5, 5, 4 if axis == 0 else 6).astype(np.int8),
        "scales": RNG.uniform(0.01, 0.1, blocks).astype(np.float32),
    }
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["q"], axis=axis),
        node("QuantizeLinear", ["x", "scales"], ["b"], axis=axis, block_size=2, output_dtype=3),
        node("DequantizeLinear", ["b", "scales"], ["y"], axis=axis, block_size=2),
    ]
    outputs = {"q": np.int8, "b": np.int8, "y": np.float32}
    inputs = {"x": (np.float32, [4, 6])}
    network = imported(tmp_path, nodes, inputs, outputs, constants, opset=21)
    for result, expected in zip(computed(network, target), network.expected, strict=True):
        np.testing.assert_array_equal(result, expected)


def test_weights_of_four_bits_are_dequantized_at_import(
    tmp_path: Path, target: dict[str, Any]
) -> None:
    weights = RNG.integers(-8, 7, (8, 4)).astype(ml_dtypes.int4)
    constants = {"w": weights, "scales": RNG.uniform(0.1, 1, (4, 4)).astype(np.float32)}
    nodes = [
        node("DequantizeLinear", ["w", "scales"], ["d"], axis=0, block_size=2),
        node("MatMul", ["x", "d"], ["y"]),
    ]
    inputs = {"x": (np.float32, [3, 8])}
    network = imported(tmp_path, nodes, inputs, {"y": np.float32}, constants, opset=21)
    expected = network.inputs["x"] @ (
        weights.astype(np.float32) * constants["scales"].repeat(2, axis=0)
    )
    np.testing.assert_allclose(computed(network, target)[0], expected, rtol=1e-5, atol=1e-5)


def test_a_type_that_cannot_be_quantized_to_is_named(tmp_path: Path) -> None:
    zero = np.zeros((), ml_dtypes.float8_e4m3fn)
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    with pytest.raises(MeasureError, match="found QuantizeLinear to float8_e4m3fn"):
        imported(
            tmp_path, nodes, {"x": (np.float32, [3])}, {"y": np.float32}, {"s": SMALL, "z": zero}
        )


BOXES = {"most": np.int64(3), "overlap": np.float32(0.05), "least": np.float32(0.5)}


def detector(folder: Path, *more: Any, outputs: dict[str, Any] | None = None) -> Network:
    nodes = [
        node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["rows"]),
        *more,
    ]
    inputs = {"boxes": (np.float32, [2, 12, 4]), "scores": (np.float32, [2, 3, 12])}
    return imported(folder, nodes, inputs, outputs or {"rows": np.int64}, BOXES)


def test_boxes_are_followed_by_rows_of_minus_one(tmp_path: Path, target: dict[str, Any]) -> None:
    network = detector(tmp_path)
    assert "output rows (NonMaxSuppression) has always 18 rows" in network.notes[0]
    assert network.expected[0].shape == (18, 3)
    assert (network.expected[0][:, 0] == 0).any()
    assert (network.expected[0][-1] == -1).all(), "fewer boxes than rows"
    check_equal(network, target)


def test_boxes_that_operators_read_are_refused(tmp_path: Path) -> None:
    cast = node("Cast", ["rows"], ["y"], to=onnx.TensorProto.INT32)
    with pytest.raises(MeasureError, match="NonMaxSuppression whose boxes other operators read"):
        detector(tmp_path, cast, outputs={"y": np.int32})


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (np.float32, {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}),
        (
            np.float32,
            {"kernel_shape": [2, 2], "dilations": [2, 1], "ceil_mode": 1, "strides": [2, 2]},
        ),
        (np.float32, {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER", "storage_order": 1}),
        (np.uint8, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ],
)
def test_places_of_the_largest_values(
    kind: Any, settings: dict[str, Any], tmp_path: Path, target: dict[str, Any]
) -> None:
    """Ties, as of zeros in the padding's neighbourhood, go to the first place that is not padding."""
    nodes = [node("MaxPool", ["x"], ["y", "places"], **settings)]
    inputs, outputs = {"x": (kind, [2, 3, 7, 6])}, {"y": kind, "places": np.int64}
    check_equal(imported(tmp_path, nodes, inputs, outputs, {}, opset=13, high=3), target)


def test_windows_of_constant_size_are_computed_at_import(
    tmp_path: Path, target: dict[str, Any]
) -> None:
    """A spectrogram: frames, window, DFT, power, mel bands."""
    names = ["bins", "length", "rate", "low", "high"]
    numbers = [np.int64(8), np.int64(16), np.int64(16000), np.float32(0), np.float32(8000)]
    nodes = [
        node("HannWindow", ["length"], ["window"]),
        node("STFT", ["x", "step", "window"], ["frames"]),
        node("ReduceSumSquare", ["frames", "last"], ["power"], keepdims=0),
        node("MelWeightMatrix", names, ["mel"]),
        node("MatMul", ["power", "mel"], ["y"]),
    ]
    constants = dict(zip(names, numbers, strict=True)) | {"step": np.int64(5), "last": [-1]}
    inputs = {"x": (np.float32, [2, 64, 1])}
    ranks = {"y": ["n", "frames", "bands"]}  # which ONNX does not infer
    network = imported(tmp_path, nodes, inputs, {"y": np.float32}, constants, ranks=ranks)
    assert network.expected[0].shape == (2, 10, 8)
    outputs = computed(network, target)
    assert compare_outputs(network, outputs)["y"].accepted


def test_a_window_of_unknown_size_is_refused(tmp_path: Path) -> None:
    nodes = [node("HannWindow", ["n"], ["y"])]
    inputs: dict[str, tuple[Any, list[int]]] = {"n": (np.int64, [])}
    with pytest.raises(MeasureError, match="found HannWindow whose size is no constant"):
        imported(tmp_path, nodes, inputs, {"y": np.float32}, {}, ranks={"y": ["size"]})


@pytest.mark.parametrize("length", [6, 7, 10])
def test_spectra_are_those_of_numpy(length: int) -> None:
    signal = RNG.standard_normal((8, 2))
    values = signal[:, 0] + 1j * signal[:, 1]
    there = np.einsum("tp,tpvq->vq", signal, spectrum_matrix(8, length, parts=2))
    np.testing.assert_allclose(there[:, 0] + 1j * there[:, 1], np.fft.fft(values, length))
    matrix = spectrum_matrix(8, length, parts=2, inverse=True, onesided=True)
    back = np.einsum("tp,tpvq->vq", signal, matrix)
    np.testing.assert_allclose(back[:, 0], np.fft.irfft(values, length), atol=1e-12)


def test_whole_powers_are_exact(tmp_path: Path, target: dict[str, Any]) -> None:
    constants = {"base": np.array([3, -1, 7, 0, 1, -2, 2, -3], np.int64), "three": np.int64(3)}
    nodes = [
        node("Pow", ["base", "x"], ["y"]),
        node("Pow", ["x", "three"], ["z"]),
    ]
    network = imported(
        tmp_path, nodes, {"x": (np.int64, [2, 8])}, {"y": np.int64, "z": np.int64}, constants
    )
    exponents = np.array([[39, -3, 22, 5, 9**9, 63, -1, 0], [2_000_000, 10, 1, 1, -4, 3, 62, 2]])
    exponents[1, 0] = 1
    network.inputs["x"][:] = exponents
    expected = [[3**39, -1, 7**22, 0, 1, -(2**63), 0, 1], [3, 1, 7, 0, 1, -8, 2**62, 9]]
    powers, cubes = computed(network, target)
    np.testing.assert_array_equal(powers, np.array(expected))
    np.testing.assert_array_equal(cubes, exponents**3)


def computed_for(network: Network, target: dict[str, Any], **arrays: Any) -> list[Any]:
    """Return what a compiled network and what ONNX Runtime computes for these inputs."""
    network.inputs.update(arrays)
    assert network.again is not None
    executable = compile_network(network, target, None, by_rule=True)
    return [Deployed(executable, network).outputs(), network.again(network.inputs)]


@pytest.mark.parametrize("exponents", ["input", "constant"])
@pytest.mark.parametrize(
    ("base", "power"), [(np.int32, np.int32), (np.int64, np.int64), (np.int64, np.float32)]
)
def test_whole_powers_below_zero(
    base: Any, power: Any, exponents: str, tmp_path: Path, target: dict[str, Any]
) -> None:
    """0 to such a power is an infinity, which ONNX Runtime casts to the least integer."""
    bases, powers = (
        np.ascontiguousarray(grid)
        for grid in np.meshgrid(
            np.array([0, 1, -1, 2, -3], base), np.array([-3, -2, -1, 0, 3], power)
        )
    )
    inputs = {"x": (base, [5, 5])} | ({"p": (power, [5, 5])} if exponents == "input" else {})
    constants = {} if exponents == "input" else {"p": powers}
    network = imported(tmp_path, [node("Pow", ["x", "p"], ["y"])], inputs, {"y": base}, constants)
    arrays = {"x": bases} | ({"p": powers} if exponents == "input" else {})
    (found,), (expected,) = computed_for(network, target, **arrays)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("values", [np.zeros(20), -np.zeros(20), np.arange(20) - 7, np.arange(20)])
def test_zeros_are_quantized_dynamically(
    values: Any, tmp_path: Path, target: dict[str, Any]
) -> None:
    nodes = [node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])]
    outputs = {"y": np.uint8, "scale": np.float32, "zero": np.uint8}
    network = imported(tmp_path, nodes, {"x": (np.float32, [20])}, outputs, {})
    results, wanted = computed_for(network, target, x=values.astype(np.float32))
    for found, expected in zip(results, wanted, strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("opset", "axes", "keepdims"),
    [(18, [1], 0), (18, [-1], 1), (18, None, 1), (13, [0, 1], 0), (13, [1], 0), (13, None, 0)],
)
def test_a_logarithm_of_a_sum_with_infinities(
    opset: int, axes: Any, keepdims: int, tmp_path: Path, target: dict[str, Any]
) -> None:
    inf = np.inf
    rows = [
        [inf, 1, 2],
        [-inf] * 3,
        [-inf, 1, 2],
        [inf, -inf, 0],
        [inf, inf, 1],
        [1e3, 1e3, -1e3],
        [1, 2, 3],
    ]
    by_input = axes is not None and opset >= 18
    attributes = {"axes": axes} if axes is not None and not by_input else {}
    names = ["x", "axes"] if by_input else ["x"]
    reduce = node("ReduceLogSumExp", names, ["y"], keepdims=keepdims, **attributes)
    constants = {"axes": np.array(axes, np.int64)} if by_input else {}
    sizes = {"x": (np.float32, [7, 3])}
    network = imported(tmp_path, [reduce], sizes, {"y": np.float32}, constants, opset=opset)
    for x in (np.array(rows, np.float32), np.full((7, 3), -inf, np.float32)):
        (found,), (expected,) = computed_for(network, target, x=x)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_determinants_of_few_rows(tmp_path: Path, target: dict[str, Any]) -> None:
    for size in (1, 4, 5):
        inputs = {"x": (np.float32, [2, size, size])}
        network = imported(tmp_path, [node("Det", ["x"], ["y"])], inputs, {"y": np.float32}, {})
        np.testing.assert_allclose(computed(network, target)[0], network.expected[0], rtol=1e-4)
    with pytest.raises(MeasureError, match="found Det of 6 x 6 matrices"):
        imported(
            tmp_path,
            [node("Det", ["x"], ["y"])],
            {"x": (np.float32, [6, 6])},
            {"y": np.float32},
            {},
        )


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32, np.uint64, np.int64])
def test_inputs_of_all_integers(kind: Any, tmp_path: Path, target: dict[str, Any]) -> None:
    nodes = [node("Add", ["x", "x"], ["y"]), node("Cast", ["y"], ["z"], to=onnx.TensorProto.FLOAT)]
    inputs, outputs = {"x": (kind, [3, 5])}, {"y": kind, "z": np.float32}
    network = imported(tmp_path, nodes, inputs, outputs, {}, high=100)
    assert network.inputs["x"].dtype == kind
    assert network.inputs["x"].any()
    check_equal(network, target)


@pytest.mark.parametrize(
    ("opset", "low", "high"),
    [(20, 0.0, 6.0), (20, None, 0.5), (20, np.nan, 0.5), (9, -0.5, 0.5)],
)
def test_a_clip_between_constants_joins_the_convolution_before_it(
    opset: int, low: float | None, high: float, tmp_path: Path, target: dict[str, Any]
) -> None:
    limits = {name: value for name, value in (("low", low), ("high", high)) if value is not None}
    names = [name if name in limits else "" for name in ("low", "high")]
    settings = {} if opset > 10 else {"min": low, "max": high}
    nodes = [
        node("Conv", ["x", "w"], ["sums"]),
        node("Clip", ["sums", *(names if opset > 10 else [])], ["y"], **settings),
    ]
    constants: dict[str, Any] = {"w": RNG.standard_normal((16, 8, 3, 3)).astype(np.float32)}
    if opset > 10:
        constants |= {name: np.float32(value) for name, value in limits.items()}
    inputs = {"x": (np.float32, [1, 8, 9, 9])}
    network = imported(tmp_path, nodes, inputs, {"y": np.float32}, constants, opset=opset)
    functions = [str(name.name_hint) for name in network.mod.functions]
    assert any("conv2d" in name and "m" in name.partition("conv2d")[2] for name in functions)
    (agreement,) = compare_outputs(network, computed(network, target)).values()
    assert agreement.accepted


@pytest.mark.parametrize(
    "settings",
    [
        {
            "mode": "nearest",
            "nearest_mode": "floor",
            "coordinate_transformation_mode": "asymmetric",
        },
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
        {"mode": "cubic"},
    ],
    ids=["nearest", "linear", "cubic"],
)
@pytest.mark.parametrize("size", [(8, 10), (7, 9)])
@pytest.mark.parametrize("opset", [11, 12])
def test_sizes_beside_an_empty_region_and_empty_scales(
    opset: int,
    size: tuple[int, int],
    settings: dict[str, str],
    tmp_path: Path,
    unoptimized: dict[str, Any],
) -> None:
    """Before opset 13 both inputs have to be there, and an empty tensor stands for none."""
    empty = np.zeros(0, np.float32)
    constants = {"region": empty, "scales": empty, "sizes": np.array([1, 2, *size], np.int64)}
    nodes = [node("Resize", ["x", "region", "scales", "sizes"], ["y"], **settings)]
    inputs = {"x": (np.float32, [1, 2, 4, 5])}
    network = imported(tmp_path, nodes, inputs, {"y": np.float32}, constants, opset=opset)
    assert network.computed_by == "ONNX Runtime"
    np.testing.assert_allclose(computed(network, unoptimized)[0], network.expected[0], atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the exporter that makes opset 11
@pytest.mark.parametrize("opset", [11, 12])
def test_an_interpolation_to_sizes_that_pytorch_exported(
    opset: int, tmp_path: Path, unoptimized: dict[str, Any]
) -> None:
    """The sizes come of another tensor's shape, the empty inputs of Constant nodes."""
    torch = pytest.importorskip("torch")

    class Head(torch.nn.Module):  # type: ignore[name-defined]
        def forward(self, x: Any, other: Any) -> Any:
            resized = torch.nn.functional.interpolate(x, size=other.shape[2:], mode="bilinear")
            return resized + other

    arguments = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 7, 9)
    dynamic = {"x": {2: "h", 3: "w"}, "other": {2: "other_h", 3: "other_w"}}
    torch.onnx.export(
        Head(), arguments, str(tmp_path / "head.onnx"), opset_version=opset, dynamo=False,
        input_names=list(dynamic), output_names=["y"], dynamic_axes=dynamic,
    )  # fmt: skip
    shapes = {
        name: NetworkInput(shape=list(x.shape)) for name, x in zip(dynamic, arguments, strict=True)
    }
    config = NetworkConfig(name="head", source="onnx", path="head.onnx", inputs=shapes)
    network = load_network(config, tmp_path)
    np.testing.assert_allclose(computed(network, unoptimized)[0], network.expected[0], atol=1e-5)
