"""Register tiles: the same numbers for every tile, seeds that fit the registers, no space where no tile fits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx, topi
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from product_workloads import PRODUCTS, Body, Shapes, call, drawn, fused, nhwc, task_of
from tencost.features.kinds.tiles import TILE_COLUMNS, tile_row
from tencost.networks.rewriting import with_free_weights, with_packed_weights
from tencost.programs.codegen import candidates, products, registers, tiles, vector_math
from tencost.programs.codegen.products import Vectors
from tencost.programs.codegen.refit import apply_decisions, plain_values, sketch
from tencost.programs.codegen.registers import Design
from tencost.programs.trace.allowed import check_trace
from tencost.programs.trace.instructions import trace_values

pytestmark = [pytest.mark.tvm, pytest.mark.usefixtures("cpu_intrinsics")]
op = relax.op
TARGET = {"kind": "llvm", "mcpu": "x86-64-v3"}


def context_of(mod: Any, target: dict[str, Any]) -> Any:
    return ms.TuneContext(
        mod=mod, target=tvm.target.Target(target), space_generator="post-order-apply", num_threads=1
    )


def programs(design: Design, context: Any) -> list[Any]:
    """Return some of a design's seeds, and of the programs that TVM draws of it at random, as scheduled modules."""
    trace = design.schedule.trace.simplified(True)
    values = plain_values(trace)
    assert values is not None
    places = sketch(values).places
    made = [apply_decisions(context, trace, places, one, 1) for one in design.seeds[::3]]
    assert all(one is not None for one in made), "a seed cannot be made"
    undecided = type(trace)(trace.insts, {})
    made += [apply_decisions(context, undecided, (), (), seed) for seed in range(2)]
    return [one.mod for one in made if one is not None]


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("name", PRODUCTS)
def test_every_tile_computes_the_same(name: str, cores: int) -> None:
    shapes, body = PRODUCTS[name]
    vector_math.register_vector_math()
    target = TARGET | {"num-cores": cores}
    task = task_of(fused(shapes, body))
    arrays = drawn(shapes)
    shape = tuple(int(one) for one in task["main"].params[-1].ty.shape)
    expected = call(task, arrays, shape, target)
    designs = registers.designs(task, target)
    is_padded = "prime" in name or ("pad" in str(task) and "if_then_else" in str(task))
    assert len(designs) == (2 if is_padded else 1)
    for design in designs:
        for mod in programs(design, context_of(task, target)):
            found = call(mod, arrays, shape, target)
            assert np.allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_trace_is_plain_and_allowed(name: str) -> None:
    """It goes into databases and stores, and comes back from them."""
    for design in registers.designs(task_of(fused(*PRODUCTS[name])), TARGET):
        values = plain_values(design.schedule.trace)
        assert values is not None
        check_trace(values, "here")
        assert "sample_perfect_tile" in str(design.schedule.trace), "TVM cannot print it"


@pytest.mark.parametrize("name", ["dense", "batched", "a prime number of rows and columns"])
def test_what_a_model_reads_are_the_tiles(name: str) -> None:
    for design in registers.designs(task_of(fused(*PRODUCTS[name])), TARGET):
        row = tile_row(trace_values(design.schedule.trace))
        assert row is not None
        found = dict(zip(TILE_COLUMNS, (2.0 ** row[0] - 1.0).tolist(), strict=True))
        column, rows, sums = design.seeds[0]
        assert found["tile_lanes"] in (4, 8)
        assert found["tile_vector_axis"] == pytest.approx(column[2] * found["tile_lanes"])
        assert found["tile_register_rest"] == pytest.approx(rows[2])
        assert found["tile_level_s1"] == pytest.approx(column[1] * rows[1])
        assert found["tile_level_r1"] == pytest.approx(sums[1])
        assert found["tile_unroll_covers_register_tile"] == 1


def test_weights_of_their_own_order_are_laid_out_tile_by_tile() -> None:
    shapes = [(12, 24), (24, 32)]
    mod = with_free_weights(fused(shapes, op.matmul))
    task = task_of(mod)
    assert dict(task["main"].attrs)["layout_free_buffers"]
    scheduled = candidates.by_rule(task, TARGET)
    assert "layout_rewrite_preproc" in scheduled.script()
    (name,) = [one for one in mod.functions if isinstance(mod[one], tirx.PrimFunc)]
    mod[name] = candidates.by_rule(tvm.IRModule({"main": mod[name]}), TARGET)["main"]
    packed = with_packed_weights(mod)
    built = tvm.compile(packed, target=tvm.target.Target(TARGET))
    arrays = drawn(shapes)
    found = relax.VirtualMachine(built, tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays))
    assert np.allclose(found.numpy(), arrays[0] @ arrays[1], rtol=1e-4, atol=1e-4)


def test_what_comes_after_is_kept_whole() -> None:
    """A border around the product, or another operand beside it, is no part of a tile."""
    follows: Body
    for follows in (lambda y: topi.nn.pad(y, (1, 1)), lambda y: topi.concatenate([y, y], axis=0)):
        a, b = te.placeholder((8, 24), name="a"), te.placeholder((24, 32), name="b")
        function = te.create_prim_func([a, b, follows(topi.matmul(a, b))])
        assert registers.designs(tvm.IRModule({"main": function}), TARGET) == []
    leaky = te.create_prim_func([a, b, topi.nn.leaky_relu(topi.matmul(a, b), 0.1)])
    assert registers.designs(tvm.IRModule({"main": leaky}), TARGET)


NONE: dict[str, tuple[Shapes, Body]] = {
    "softmax": ([(8, 32)], lambda x: op.nn.softmax(x, axis=-1)),
    "a row is less than a vector": ([(8, 24), (24, 3)], op.matmul),
    "nothing is multiplied": ([(8, 24)], lambda x: op.sum(x, axis=1)),
    "channels first": (
        [(1, 4, 3, 3), (8, 4, 3, 3)],
        lambda x, w: op.nn.conv2d(x, w, padding=1),
    ),
}


@pytest.mark.parametrize("name", NONE)
def test_no_space_where_no_tile_fits(name: str) -> None:
    task = task_of(fused(*NONE[name]))
    assert registers.designs(task, TARGET) == []
    assert candidates.by_rule(task, TARGET) is None


def test_no_space_where_columns_are_not_beside_each_other() -> None:
    a, b = te.placeholder((8, 24), name="a"), te.placeholder((32, 24), name="b")
    k = te.reduce_axis((0, 24), name="k")
    product = te.compute((8, 32), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name="c")
    mod = tvm.IRModule({"main": te.create_prim_func([a, b, product])})
    assert registers.designs(mod, TARGET) == []
    free = mod["main"].with_attr("layout_free_buffers", [1])
    assert registers.designs(tvm.IRModule({"main": free}), TARGET)


@pytest.mark.parametrize(
    ("columns", "vectors", "lanes"),
    [
        (32, Vectors(16, 32), 16),
        (56, Vectors(16, 32), 14),
        (440, Vectors(16, 32), 11),
        (24, Vectors(16, 32), 12),
        (8, Vectors(16, 32), 8),
        (7, Vectors(16, 32), 0),
        (28, Vectors(8, 16), 7),
        (20, Vectors(8, 16), 5),
        (12, Vectors(4, 32), 4),
        (3, Vectors(4, 32), 0),
        (56, Vectors(16, 32, halves=True), 8),
        (104, Vectors(16, 32, halves=True), 8),
        (96, Vectors(16, 32, halves=True), 16),
    ],
)
def test_vectors_of_a_convolution_are_as_full_as_channels_allow(
    columns: int, vectors: Vectors, lanes: int
) -> None:
    task = task_of(fused([(1, 8, 8, 8), (3, 3, 8, columns)], nhwc))
    product = products.product_of(Schedule(task), vectors)
    assert product is not None
    found = tiles.padded(task, product, vectors)
    assert (found.lanes if found else 0) == lanes
    assert found is None or not found.padding


def test_halves_by_the_name_of_the_core() -> None:
    zen4, other = ({"kind": "llvm", "mcpu": core} for core in ("znver4", "icelake-server"))
    assert products.vectors_of(zen4) == Vectors(16, 32, halves=True)
    assert products.vectors_of(other) == Vectors(16, 32)


@pytest.mark.parametrize("columns", [28, 40, 56, 440])
def test_columns_that_can_be_padded_to_whole_registers_are(columns: int) -> None:
    vectors = Vectors(16, 32)
    task = task_of(fused([(196, 64), (64, columns)], op.matmul))
    product = products.product_of(Schedule(task), vectors)
    assert product is not None
    found = tiles.padded(task, product, vectors)
    assert found is not None
    assert found.lanes == 16
    assert found.columns == -(-columns // 16)


def test_no_space_for_other_devices() -> None:
    task = task_of(fused(*PRODUCTS["dense"]))
    assert registers.designs(task, {"kind": "cuda", "arch": "sm_80"}) == []


@pytest.mark.parametrize("vectors", [Vectors(16, 32), Vectors(8, 16), Vectors(4, 32)])
@pytest.mark.parametrize("cores", [1, 4])
@pytest.mark.parametrize("name", PRODUCTS)
def test_seeds_fit_registers_and_axes(name: str, cores: int, vectors: Vectors) -> None:
    task = task_of(fused(*PRODUCTS[name]))
    product = products.product_of(Schedule(task), vectors)
    assert product is not None
    product = tiles.padded(task, product, vectors)
    assert product is not None
    for near in (False, True):
        found = list(tiles.product_seeds(product, vectors, cores, near=near))
        assert len(found) == len(set(found)) > 0
        for columns, *others in found:
            rows = others[: len(product.rows)]
            assert math.prod(columns) == product.columns
            assert [math.prod(one) for one in rows] == [product.extents[at] for at in product.rows]
            sums = columns[-1] * math.prod(one[-1] for one in rows)
            assert sums == 1 or sums + columns[-1] < vectors.registers


def test_a_tile_feeds_both_units_where_it_can() -> None:
    """Eight sums at a time at least: with fewer, a core waits for the sum before."""
    task = task_of(fused([(128, 64), (64, 128)], op.matmul))
    vectors = Vectors(16, 32)
    product = products.product_of(Schedule(task), vectors)
    assert product is not None
    columns, rows, _ = next(tiles.product_seeds(product, vectors))
    assert columns[-1] * rows[-1] >= tiles.BUSY


def test_columns_are_padded_where_it_is_worth_it() -> None:
    """Not for one row: then padding the other operand costs more than the product."""
    vectors = Vectors(16, 32)

    def padding(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
        task = task_of(fused(list(shapes), op.matmul))
        product = products.product_of(Schedule(task), vectors)
        assert product is not None
        found = tiles.padded(task, product, vectors)
        return None if found is None else found.padding

    scores = padding((197, 64), (64, 197))
    assert scores is not None
    assert scores[0] > 1
    assert scores[1] == 16
    assert padding((96, 512), (512, 256)) == ()
    assert padding((1, 512), (512, 197)) is None
    assert padding((1, 512), (512, 200)) == ()


def test_an_epilogue_that_calls_functions_has_the_tile_of_its_product() -> None:
    """LLVM reads the numbers of its polynomials from memory where they are used: they take no registers of the sums."""
    vectors = Vectors(16, 32)

    def best_tile(body: Any) -> Any:
        task = task_of(fused([(128, 64), (64, 128), (128,)], body))
        product = products.product_of(Schedule(task), vectors)
        assert product is not None
        return product.dear, next(iter(tiles.product_seeds(product, vectors)))

    dear, tile = best_tile(PRODUCTS["dense, its values dear"][1])
    assert dear
    assert best_tile(lambda x, weights, bias: op.add(op.matmul(x, weights), bias)) == (False, tile)


def test_cores_divide_the_outer_axes() -> None:
    task = task_of(fused([(128, 64), (64, 128)], op.matmul))
    small = task_of(fused([(8, 16), (16, 32)], op.matmul))
    assert "parallel" not in candidates.by_rule(small, TARGET | {"num-cores": 4}).script()
    assert "parallel" in candidates.by_rule(task, TARGET | {"num-cores": 4}).script()
    assert "parallel" not in candidates.by_rule(task, TARGET).script()


def test_what_is_worth_measuring_first() -> None:
    first, second = Design(None, (((1,),), ((2,),), ((3,),))), Design(None, (((4,),), ((5,),)))
    order = [seed for _, seed in registers.interleave_spaces([first, second])]
    assert order[0] == ((1,),)
    assert set(order[:2]) == {((1,),), ((4,),)}
    assert sorted(order) == [((one,),) for one in (1, 2, 3, 4, 5)]
