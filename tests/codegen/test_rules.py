"""Schedules by rule: the same numbers, the loops that were meant, one place to run them, nothing left unscheduled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm_ffi import structural_walk

from relax_networks import lowered as network
from relax_networks import run
from tencost.programs.codegen import products, rules, vector_math

pytestmark = pytest.mark.tvm
op = relax.op
TARGET = {"kind": "llvm", "mcpu": "x86-64-v3"}


def functions(mod: Any) -> list[Any]:
    return [one for one in mod.functions.values() if isinstance(one, tirx.PrimFunc)]


SCALE_48 = relax.const(np.linspace(1, 2, 48, dtype=np.float32))
SCALE = [relax.const(np.linspace(1, 2, 32, dtype=np.float32)) for _ in range(2)]


def softmax(x: Any) -> Any:
    return op.nn.softmax(x, axis=-1)


def shifted_back(x: Any) -> Any:
    """Return windows of 7 by 7 as rows of pixels, moved by three and cut to 16 by 16, as Swin's windows end."""
    x = op.permute_dims(op.reshape(x, (3, 3, 7, 7, 16)), [0, 2, 1, 3, 4])
    x = op.reshape(x, (21, 21, 16))
    for axis in (0, 1):
        ends = op.strided_slice(x, [axis], [18], [21]), op.strided_slice(x, [axis], [0], [18])
        x = op.concat(ends, axis=axis)
    return op.reshape(
        op.strided_slice(op.strided_slice(x, [0], [0], [16]), [1], [0], [16]), (1, 256, 16)
    )


OPERATORS: dict[str, tuple[list[tuple[int, ...]], Callable[..., Any]]] = {
    "softmax": ([(2, 3, 33, 47)], softmax),
    "softmax of whole vectors": ([(6, 160)], softmax),
    "softmax of less than a vector": ([(6, 5)], softmax),
    "softmax of another axis": ([(4, 21, 50)], lambda x: op.nn.softmax(x, axis=1)),
    "layer norm": (
        [(2, 9, 50), (50,), (50,)],
        lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]),
    ),
    "layer norm of two vectors": (
        [(2, 9, 16), (16,), (16,)],
        lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]),
    ),
    "layer norm of half vectors": (
        [(2, 9, 44), (44,), (44,)],
        lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]),
    ),
    "layer norm of many vectors": (
        [(70, 256), (256,), (256,)],
        lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]),
    ),
    "rms norm": ([(3, 5, 96), (96,)], lambda x, g: op.nn.rms_norm(x, g, [-1])),
    "lengths of rows": ([(3, 7, 48)], lambda x: op.sqrt(op.sum(op.multiply(x, x), [-1]))),
    "largest of rows": ([(5, 64)], lambda x: op.max(x, [-1])),
    "mean of images": ([(2, 5, 6, 32)], lambda x: op.mean(x, [2, 3])),
    "a row alone": ([(4096,)], lambda x: op.mean(x)),
    "matrix product": ([(17, 64), (64, 48)], op.matmul),
    "its second transposed": ([(17, 64), (48, 64)], lambda a, b: op.matmul(a, op.permute_dims(b))),
    "batched": ([(3, 17, 19), (3, 19, 23)], op.matmul),
    "convolution": (
        [(1, 5, 14, 13), (7, 5, 3, 3)],
        lambda x, w: op.nn.relu(op.nn.conv2d(x, w, padding=1, strides=2)),
    ),
    "channels last": (
        [(1, 14, 13, 16), (3, 3, 16, 32)],
        lambda x, w: op.nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="HWIO"),
    ),
    "depthwise": (
        [(1, 14, 13, 16), (3, 3, 1, 16)],
        lambda x, w: op.nn.conv2d(
            x, w, padding=1, groups=16, data_layout="NHWC", kernel_layout="HWIO"
        ),
    ),
    "pooling": ([(1, 6, 15, 15)], lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1))),
    "pooling, channels last": (
        [(1, 32, 30, 16)],
        lambda x: op.nn.max_pool2d(x, (3, 3), (1, 1), (1, 1), layout="NHWC"),
    ),
    "average pooling, channels last": (
        [(1, 9, 11, 48)],
        lambda x: op.multiply(op.nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1), layout="NHWC"), SCALE_48),
    ),
    "one group of a few images, channels last": (
        [(2, 6, 5, 48), (48,), (48,)],
        lambda x, g, b: op.nn.group_norm(x, g, b, 1, 3, [1, 2]),
    ),
    "groups of four channels": (
        [(1, 9, 8, 64), (3, 3, 4, 64)],
        lambda x, w: op.nn.conv2d(
            x, w, padding=1, groups=16, data_layout="NHWC", kernel_layout="HWIO"
        ),
    ),
    "groups of two channels, without padding": (
        [(1, 9, 8, 32), (3, 3, 2, 32), (32,)],
        lambda x, w, b: op.nn.relu(
            op.add(
                op.nn.conv2d(x, w, strides=2, groups=16, data_layout="NHWC", kernel_layout="HWIO"),
                b,
            )
        ),
    ),
    "groups of two rows of vectors": (
        [(1, 9, 8, 96), (3, 3, 32, 96)],
        lambda x, w: op.nn.conv2d(
            x, w, strides=2, padding=1, groups=3, data_layout="NHWC", kernel_layout="HWIO"
        ),
    ),
    "average pooling": ([(1, 6, 14, 14)], lambda x: op.nn.avg_pool2d(x, (2, 2), (2, 2))),
    "mean of pixels": ([(2, 24, 7, 7)], lambda x: op.mean(x, [2, 3])),
    "sum of columns": ([(40, 50)], lambda x: op.sum(x, [0])),
    "GELU": ([(12, 100)], op.nn.gelu),
    "SiLU of a sum": ([(12, 100), (100,)], lambda x, b: op.nn.silu(op.add(x, b))),
    "heads apart": (
        [(1, 12, 24)],
        lambda x: op.permute_dims(op.reshape(x, (1, 12, 3, 8)), [0, 2, 1, 3]),
    ),
    "heads together": (
        [(1, 3, 12, 8)],
        lambda x: op.reshape(op.permute_dims(x, [0, 2, 1, 3]), (12, 24)),
    ),
    "a transposition": ([(37, 53)], op.permute_dims),
    "windows shifted back": ([(9, 49, 16)], shifted_back),
    "moved and padded": (
        [(6, 20)],
        lambda x: op.strided_slice(op.nn.pad(op.nn.relu(x), (0, 0, 3, 0)), [1], [0], [20]),
    ),
    "parts together": ([(5, 7), (5, 9)], lambda a, b: op.concat([a, b], axis=1)),
    "group norm": (
        [(1, 20, 7, 7), (20,), (20,)],
        lambda x, g, b: op.nn.group_norm(x, g, b, 2, 1, [2, 3]),
    ),
    "convolution in groups": (
        [(1, 12, 40), (12, 3, 1)],
        lambda x, w: op.nn.conv1d(x, w, groups=4),
    ),
    "one number": ([(64,)], lambda x: op.sum(x)),
}
"""Input shapes, and what is computed of them: odd sizes, every kind of small operator."""


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("name", OPERATORS)
def test_the_numbers_stay(name: str, cores: int, target: dict[str, Any]) -> None:
    shapes, body = OPERATORS[name]
    vector_math.register_vector_math()
    mod = network(shapes, body)
    rng = np.random.default_rng(cores)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    target = target | {"num-cores": cores}
    by_rule = rules.schedule_rest(mod, target)
    # Before TVM's own schedule: a value that a rule leaves unwritten would be that of its memory, used again.
    found = run(by_rule, arrays, rules.leave(by_rule, target))
    expected = run(mod, arrays, target | {"opt-level": 0})
    assert found.shape == expected.shape
    assert np.allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_a_mask_of_infinities_stays_a_mask(target: dict[str, Any]) -> None:
    """The leave that LLVM gets must not take infinities for numbers."""
    vector_math.register_vector_math()
    mod = rules.schedule_rest(network([(8, 32)], softmax), target)
    values = np.zeros((8, 32), np.float32)
    values[:, 5:] = -np.inf
    found = run(mod, [values], rules.leave(mod, target))
    assert np.allclose(found[:, :5], 0.2)
    assert np.all(found[:, 5:] == 0)


def test_what_is_infinite_is_still_found(target: dict[str, Any]) -> None:
    """Told that there are no infinities, LLVM leaves the comparison with one out, and the mask stays -inf."""
    body = lambda x: op.where(op.equal(x, relax.const(np.float32(-np.inf))), relax.const(7.0), x)  # noqa: E731
    mod = rules.schedule_rest(network([(2, 32)], body), target)
    values = np.zeros((2, 32), np.float32)
    values[:, 5:] = -np.inf
    found = run(mod, [values], rules.leave(mod, target))
    assert np.all(found == np.where(np.isinf(values), 7, values))


def test_llvm_gets_this_leave_and_no_other() -> None:
    """Each of the others changes results by more than rounding.

    ninf: masks are full of -inf; arcp and afn: quotients and functions are further off than a reordered sum;
    fast: all of these.
    """
    assert set(rules.LENIENT) == {
        "fast-math-reassoc",  # sums in another order: off by rounding
        "fast-math-nsz",  # -0 and 0 compare equal
        "fast-math-nnan",  # withdrawn from a network that looks for NaN
        "fast-math-contract",  # a fused multiply-add rounds once instead of twice
    }


def test_what_is_no_number_is_still_found(target: dict[str, Any]) -> None:
    """Networks replace it: a row of attention that is masked as a whole, for example."""
    body = lambda x: op.where(op.isnan(x), relax.const(7.0), x)  # noqa: E731
    mod = rules.schedule_rest(network([(4, 64)], body), target)
    granted = rules.leave(mod, target)
    assert "fast-math-nnan" not in granted
    assert granted["fast-math-reassoc"]
    other = rules.leave(network([(8, 32)], softmax), target)
    assert other["fast-math-nnan"]
    values = np.ones((4, 64), np.float32)
    values[1, ::3] = np.nan
    found = run(mod, [values], granted)
    assert np.all(found == np.where(np.isnan(values), 7, values))


@pytest.mark.parametrize(("cores", "bands"), [(1, 4), (2, 8)])
def test_padding_below_a_pooling_is_done_in_bands(
    cores: int, bands: int, target: dict[str, Any]
) -> None:
    """A whole padded image would be written and read again; several cores get several bands each."""
    mod = network(
        [(1, 32, 30, 12)],  # channels that are no whole vectors
        lambda x: op.nn.max_pool2d(x, (3, 3), (1, 1), (1, 1), layout="NHWC"),
    )
    by_rule = rules.schedule_rest(mod, target | {"num-cores": cores})
    (name,) = [one for one in by_rule.functions if isinstance(by_rule[one], tirx.PrimFunc)]
    schedule = tvm.s_tir.Schedule(
        tvm.IRModule({"main": by_rule[name].with_attr("global_symbol", "main")})
    )
    pad, pool = (
        [schedule.get(loop) for loop in schedule.get_loops(schedule.get_sblock(block))]
        for block in ("pad_temp", "pool_max_update")
    )
    shared = [one for one, other in zip(pad, pool, strict=False) if one.same_as(other)]
    assert np.prod([int(loop.extent) for loop in shared]) == bands
    assert (shared[0].kind == tirx.ForKind.PARALLEL) == (cores > 1)


@pytest.mark.parametrize(
    ("pool", "sums"),
    [
        (lambda x: op.nn.max_pool2d(x, (3, 3), (1, 1), (1, 1), layout="NHWC"), "pool_max_update"),
        (lambda x: op.nn.avg_pool2d(x, (3, 3), (1, 1), (1, 1), layout="NHWC"), "pool_sum_update"),
    ],
)
def test_a_window_of_whole_vectors_is_summed_vector_by_vector(
    pool: Callable[[Any], Any], sums: str, target: dict[str, Any]
) -> None:
    by_rule = rules.schedule_rest(network([(1, 32, 30, 16)], pool), target)
    (name,) = [one for one in by_rule.functions if isinstance(by_rule[one], tirx.PrimFunc)]
    schedule = tvm.s_tir.Schedule(
        tvm.IRModule({"main": by_rule[name].with_attr("global_symbol", "main")})
    )
    *around, rows, columns, lane = map(schedule.get, schedule.get_loops(schedule.get_sblock(sums)))
    kinds = [loop.kind for loop in (rows, columns, lane)]
    assert kinds == [tirx.ForKind.UNROLLED, tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED]
    pad = [schedule.get(loop) for loop in schedule.get_loops(schedule.get_sblock("pad_temp"))]
    assert all(one.same_as(other) for one, other in zip(around, pad, strict=False))


def test_a_mean_of_pixels_reads_them_one_after_the_other(target: dict[str, Any]) -> None:
    """Vector by vector, each of them would be read in steps of a pixel."""
    by_rule = rules.schedule_rest(network([(1, 7, 7, 64)], lambda x: op.mean(x, [1, 2])), target)
    (name,) = [one for one in by_rule.functions if isinstance(by_rule[one], tirx.PrimFunc)]
    schedule = tvm.s_tir.Schedule(
        tvm.IRModule({"main": by_rule[name].with_attr("global_symbol", "main")})
    )
    (sums,) = [
        block
        for block in schedule.get_child_blocks(schedule.get_sblock("root"))
        if schedule.get(block).name_hint.endswith("_update")
    ]
    assert int(schedule.get(schedule.get_loops(sums)[-1]).extent) == 64


def test_a_group_norm_is_summed_in_vectors(target: dict[str, Any]) -> None:
    """Both sums, of numbers and of squares; as they were, one number after the other, it took ten times as long."""
    shapes = [(1, 8, 8, 32), (32,), (32,)]
    body = lambda x, g, b: op.nn.group_norm(x, g, b, 1, 3, [1, 2])  # noqa: E731
    by_rule = rules.schedule_rest(network(shapes, body), target)
    text = by_rule.script()
    assert "_v0_rf" in text
    assert "_v1_rf" in text
    assert "T.vectorized" in text


@pytest.mark.parametrize(
    "body",
    [
        lambda x: op.sum(x, axis=[1, 2], keepdims=True),
        lambda x: op.mean(x, axis=[1, 2]),
        lambda x: op.sum(op.reshape(x, (256, 320)), axis=0),
        lambda x: op.max(op.reshape(x, (256, 320)), axis=0),
        lambda x: op.nn.max_pool2d(x, (8, 32), (8, 32), (4, 0), layout="NHWC"),
    ],
)
def test_no_sum_is_divided_among_the_cores(body: Any, target: dict[str, Any]) -> None:
    """Its loops may stand outside of the last axis; two cores would add to the same number."""
    from tvm.s_tir import SBlockRealize
    from tvm_ffi import structural_walk

    mod = rules.schedule_rest(network([(1, 8, 32, 320)], body), target | {"num-cores": 8})
    parallel: list[Any] = []
    summed: list[str] = []

    def loop(node: Any) -> None:
        if node.kind == tirx.ForKind.PARALLEL:
            parallel.append(node.loop_var)

    def block(node: Any) -> None:
        for axis, value in zip(node.block.iter_vars, node.iter_values, strict=True):
            if axis.iter_type == tirx.IterVar.CommReduce:
                summed.append(str(value))

    for function in mod.functions.values():
        if isinstance(function, tirx.PrimFunc):
            structural_walk(function.body, [(tirx.For, loop), (SBlockRealize, block)])
    assert summed
    assert not [name for name in parallel if any(str(name.name) in value for value in summed)]


def test_a_sum_over_pixels_is_divided_by_channels(target: dict[str, Any]) -> None:
    """There is no other axis: one core alone would read half of the image from the other one's cache."""
    body = lambda x: op.mean(x, axis=[1, 2], keepdims=True)  # noqa: E731
    mod = network([(1, 14, 14, 336)], body)
    by_rule = rules.schedule_rest(mod, target | {"num-cores": 2})
    (text,) = (
        by_rule[name].script()
        for name in by_rule.functions
        if isinstance(by_rule[name], tirx.PrimFunc)
    )
    assert "T.parallel(T.int64(2))" in text
    values = np.random.default_rng(0).standard_normal((1, 14, 14, 336)).astype(np.float32)
    found = run(by_rule, [values], target)
    assert np.allclose(found, values.mean((1, 2), keepdims=True), atol=1e-5)
    uneven = rules.schedule_rest(network([(1, 14, 14, 335)], body), target | {"num-cores": 2})
    assert "T.parallel" not in uneven.script()
    of_many = rules.schedule_rest(network([(1, 14, 14, 335)], body), target | {"num-cores": 16})
    assert "T.parallel(T.int64(5))" in of_many.script()


def test_an_image_that_few_sums_scale_is_divided_by_rows(target: dict[str, Any]) -> None:
    """Squeeze and excitation: with the image at the end of the product's tile, one core did all of it."""

    def scaled(squeezed: Any, weights: Any, image: Any) -> Any:
        excited = op.nn.conv2d(squeezed, weights, data_layout="NHWC", kernel_layout="HWIO")
        return op.multiply(op.sigmoid(excited), image)

    shapes: list[tuple[int, ...]] = [(1, 1, 1, 6), (1, 1, 6, 144), (1, 20, 20, 144)]
    by_rule = rules.schedule_rest(network(shapes, scaled), target | {"num-cores": 4})
    (text,) = (
        by_rule[name].script()
        for name in by_rule.functions
        if isinstance(by_rule[name], tirx.PrimFunc)
    )
    assert "T.parallel(T.int64(20))" in text
    values = [
        np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        for seed, shape in enumerate(shapes)
    ]
    expected = values[2] / (1 + np.exp(-(values[0] @ values[1][0])))
    assert np.allclose(run(by_rule, values, target), expected, atol=1e-5)


def test_leave_is_the_module_s_not_a_function_s(target: dict[str, Any]) -> None:
    """Said in a function's attributes, LLVM does not hear of it."""
    mod = rules.schedule_rest(network([(8, 32)], lambda x: op.sum(x, axis=1)), target)
    (name,) = [one for one in mod.functions if isinstance(mod[one], tirx.PrimFunc)]
    alone = tvm.IRModule({"main": mod[name].with_attr("global_symbol", "main")})
    granted = rules.leave(alone, target)
    told = tvm.IRModule({"main": alone["main"].with_attr("target", tvm.target.Target(granted))})
    said = [
        tvm.compile(one, target=tvm.target.Target(given)).mod.inspect_source("ll")
        for one, given in ((told, target), (alone, granted))
    ]
    assert ["fadd reassoc" in one for one in said] == [False, True]


def loops(function: Any) -> list[str]:
    return [
        line.strip() for line in function.script().splitlines() if line.strip().startswith("for ")
    ]


def test_a_softmax_is_vectors_where_nan_counts(target: dict[str, Any]) -> None:
    """A network that asks for NaN gets no leave to ignore it: LLVM makes no vectors of a row's maximum then."""
    vector_math.register_vector_math()
    (function,) = functions(network([(8, 49)], softmax))
    vectors = products.vectors_of(target)
    assert vectors is not None
    text = rules.scheduled(function, target).script()
    assert f"float32x{vectors.lanes}" in text
    assert (
        text.count("<< T.Broadcast(23") == 2
    )  # exponentials of the whole vectors and of the last one
    mod = rules.schedule_rest(network([(8, 49)], softmax), target)
    values = np.random.default_rng(0).standard_normal((8, 49)).astype(np.float32)
    values[1, 48] = np.nan
    values[2] = -np.inf
    strict = {name: value for name, value in rules.lenient(target).items() if "nnan" not in name}
    found = run(mod, [values], strict)
    with np.errstate(invalid="ignore"):
        powers = np.exp(values - values.max(-1, keepdims=True))
    expected = powers / powers.sum(-1, keepdims=True)
    assert np.allclose(found, expected, rtol=2e-6, atol=1e-7, equal_nan=True)


def test_what_a_chain_stores_between_is_gone() -> None:
    (function,) = functions(network([(12, 100), (100,)], lambda x, b: op.nn.silu(op.add(x, b))))
    assert "alloc_buffer" in function.script()
    scheduled = rules.scheduled(function, TARGET).script()
    assert "alloc_buffer" not in scheduled
    assert scheduled.count("T.sblock(") == 2  # the function's own, and one


def test_an_exponential_is_not_computed_twice() -> None:
    (function,) = functions(network([(8, 32)], softmax))
    assert rules.scheduled(function, TARGET).script().count("<< T.Broadcast(23") == 1


@pytest.mark.parametrize(
    ("size", "lanes"), [(8, 0), (16, 8), (32, 8), (44, 4), (50, 0), (128, 16), (512, 32)]
)
def test_rows_are_summed_in_as_many_vectors_as_they_are_worth(size: int, lanes: int) -> None:
    mod = network([(6, size)], lambda x: op.sum(op.multiply(x, x), [-1]))
    (function,) = functions(mod)
    widths: list[int] = []

    def vectorized(loop: Any) -> None:
        if loop.kind == tirx.ForKind.VECTORIZED:
            widths.append(int(loop.extent))

    structural_walk(rules.scheduled(function, TARGET).body, (tirx.For, vectorized))
    assert widths == ([lanes] * 2 if lanes else []), "where sums begin, and where they go on"


def test_rows_of_a_softmax_are_computed_together() -> None:
    (function,) = functions(network([(8, 32)], softmax))
    assert len([line for line in loops(function) if "(8)" in line or "8)" in line]) > 1
    text = rules.scheduled(function, TARGET).script()
    assert text.count("range(T.int64(8))") == 1


def test_a_sum_over_everything_is_not_computed_for_each_row() -> None:
    """A norm over channels and pixels: its sums belong to no channel."""
    (function,) = functions(
        network(
            [(1, 20, 7, 7), (20,), (20,)],
            lambda x, g, b: op.nn.group_norm(x, g, b, 1, 1, [2, 3]),
        )
    )
    text = rules.scheduled(function, TARGET).script()
    sums = next(line for line in text.splitlines() if "T.grid" in line)
    assert sums.strip().endswith("T.int64(20), T.int64(7), T.int64(7)):")


def test_a_convolution_in_groups_walks_along_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "by_rule", lambda *_: None)
    (function,) = functions(
        network([(1, 12, 41), (12, 3, 1)], lambda x, w: op.nn.conv1d(x, w, groups=4))
    )
    after = rules.scheduled(function, TARGET).script()
    innermost = [line for line in after.splitlines() if "T.grid" in line][-1]
    assert innermost.rstrip(":").rstrip(")").endswith("T.int64(41")


def test_a_product_walks_along_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Innermost lies what lies together in memory: 30 times faster than the order that TVM lowers it in."""
    monkeypatch.setattr(rules, "by_rule", lambda *_: None)
    (function,) = functions(network([(17, 64), (64, 47)], op.matmul))
    before, after = function.script(), rules.scheduled(function, TARGET).script()
    assert before.index("SSR") > 0
    innermost = [line for line in after.splitlines() if "T.grid" in line][-1]
    assert innermost.rstrip(":").endswith("T.int64(47))")


@pytest.mark.parametrize("body", [softmax, lambda x: op.nn.layer_norm(x, *SCALE, axes=[-1])])
def test_cores_share_large_functions_only(body: Any) -> None:
    """How large does not depend on how many there are: 16 left layer normalizations of a network to one of them."""
    small = functions(network([(8, 32)], body))[0]
    large = functions(network([(512, 32)], body))[0]
    assert "parallel" not in rules.scheduled(small, TARGET | {"num-cores": 4}).script()
    assert "parallel" in rules.scheduled(large, TARGET | {"num-cores": 4}).script()
    assert "parallel" in rules.scheduled(large, TARGET | {"num-cores": 16}).script()
    assert "parallel" not in rules.scheduled(large, TARGET | {"num-cores": 1}).script()


def test_a_function_without_blocks_stays_as_it_is() -> None:
    """Scattering and sorting are calls, or loops, that TVM writes without blocks."""
    shapes: list[tuple[int, ...]] = [(4, 8), (4, 8)]
    mod = network(
        shapes,
        lambda x, y: op.scatter_elements(
            x, relax.const(np.zeros((2, 8), "int64")), op.strided_slice(y, [0], [0], [2])
        ),
    )
    assert rules.schedule_rest(mod, TARGET)


def test_tuned_functions_and_other_targets_are_left_alone() -> None:
    mod = network([(8, 32)], softmax)
    name, function = next(
        (name, one) for name, one in mod.functions.items() if isinstance(one, tirx.PrimFunc)
    )
    mod[name] = function.with_attr("tirx.is_scheduled", True)
    assert rules.schedule_rest(mod, {"kind": "llvm"})[name].same_as(mod[name])
    gpu = {"kind": "cuda"}
    assert rules.schedule_rest(mod, gpu) is mod
    assert rules.lenient(gpu) is gpu
