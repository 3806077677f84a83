"""What the rule decides for a tile: bands of an image, the squarest of equal tiles, how much of a sum is unrolled."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from tvm import ir, relax, tirx
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer
from tvm_ffi import structural_map

from product_workloads import fused, nhwc, task_of
from tencost.programs.codegen import tiles
from tencost.programs.codegen.candidates import (
    Candidate,
    by_rule,
    draw_candidates,
    rank_candidates,
)

pytestmark = [pytest.mark.tvm, pytest.mark.usefixtures("cpu_intrinsics")]
TARGET = {"kind": "llvm", "mcpu": "x86-64-v3"}
op = relax.op


def convolution(
    image: int, channels: int, outputs: int, *, groups: int = 1, strides: int = 1
) -> Any:
    shapes = [(1, image, image, channels), (3, 3, channels // groups, outputs)]
    return task_of(
        fused(shapes, lambda x, w: op.nn.relu(nhwc(x, w, groups=groups, strides=strides)))
    )


def first(task: Any, cores: int = 1) -> Candidate:
    return draw_candidates(task, TARGET | {"num-cores": cores}, 1)[0]


@pytest.mark.parametrize("channels", [32, 64, 192, 256])
@pytest.mark.parametrize("image", [12, 24])
def test_a_depthwise_convolution_reads_an_image_in_bands(image: int, channels: int) -> None:
    chosen = first(convolution(image, channels, channels, groups=channels))
    (outside, inside, wide), (bands, rows, height), *_ = chosen.decisions
    lanes = chosen.product.lanes
    assert chosen.product.apart
    assert chosen.near
    assert outside * inside * wide * lanes == channels
    assert 2 <= inside <= tiles.PIXEL_VECTORS
    assert bands * rows * height == image
    assert rows <= tiles.BAND_TILES
    padded = 4 * (image + 2) * inside * wide * lanes
    assert (rows * height + 2) * padded <= 1.25 * tiles.BAND or rows == 1


@pytest.mark.parametrize(
    ("mcpu", "image", "channels", "height"),
    [
        ("x86-64-v4", 56, 256, 8),
        ("x86-64-v4", 28, 512, 7),
        ("x86-64-v3", 56, 256, 4),
        ("x86-64-v3", 60, 144, 6),
        ("x86-64-v4", 14, 512, None),  # all of it is in the second cache
        ("x86-64-v3", 28, 512, None),  # 64 vectors of a pixel
        ("x86-64-v4", 56, 240, 8),
    ],
)
def test_a_large_depthwise_convolution_writes_rows_from_end_to_end(
    mcpu: str, image: int, channels: int, height: int | None
) -> None:
    task = convolution(image, channels, channels, groups=channels)
    (chosen, *_) = draw_candidates(task, TARGET | {"mcpu": mcpu, "num-cores": 1}, 1)
    (outside, *_), (*_, rows), (*_, pixels), *_ = chosen.decisions
    assert tiles.streams(chosen.product, chosen.tile, chosen.decisions) == (height is not None)
    assert ((outside, pixels) == (1, 1)) == (height is not None)
    if height is not None:
        assert rows == height


def test_of_several_cores_each_has_rows_of_its_own() -> None:
    """Eight rows of seven bands would leave cores without work."""
    chosen = first(convolution(56, 256, 256, groups=256), cores=4)
    (outside, *_), (bands, *_), *_ = chosen.decisions
    assert outside * bands >= 16


@pytest.mark.parametrize("channels", [32, 256])
def test_its_bands_are_enough_for_the_cores(channels: int) -> None:
    (outside, *_), (bands, rows, _), *_ = first(
        convolution(32, channels, channels, groups=channels), cores=4
    ).decisions
    assert outside * bands >= 16 or rows == 1


@pytest.mark.parametrize("cores", [1, 4])
def test_one_whose_windows_lie_apart_pads_tile_by_tile(cores: int) -> None:
    chosen = first(convolution(32, 64, 64, groups=64, strides=2), cores)
    (_, inside, wide), *rows = chosen.decisions[: 1 + len(chosen.product.rows)]
    assert chosen.near
    assert inside * wide <= tiles.PIXEL_VECTORS
    assert [middle for _, middle, _ in rows] == [1, 1]
    assert min(height for *_, height in rows) > 1


@pytest.mark.parametrize(("channels", "shuffled"), [(2, True), (8, False), (16, False)])
def test_narrow_groups_share_a_vector(channels: int, shuffled: bool) -> None:
    """A vector of AVX2 has four groups of two channels; of eight and more channels each group has its own."""
    chosen = first(convolution(16, 64, 64, groups=64 // channels))
    assert bool(chosen.product.shuffled) == shuffled
    assert chosen.product.lanes == 8
    assert chosen.product.padded_near
    assert chosen.near


def test_of_equal_tiles_the_squarest_is_first() -> None:
    task = convolution(24, 16, 48)
    chosen = first(task)
    equal = [
        each
        for each in rank_candidates(task, TARGET)
        if (each.cycles, each.tile[0], each.decisions[0])
        == (chosen.cycles, chosen.tile[0], chosen.decisions[0])
    ]
    around = [tiles.read_around(each.product, each.tile[1]) for each in equal]
    assert len(set(around)) > 1
    assert around[0] == min(around)
    assert min(chosen.tile[1]) > 1


def test_a_tile_of_one_vector_is_unrolled_less() -> None:
    task = task_of(fused([(60, 64), (64, 128)], op.matmul))
    unrolled = {
        each.tile[0]: math.prod(inner for _, inner in each.decisions[2:])
        for each in rank_candidates(task, TARGET)
    }
    assert unrolled[1] == 4
    assert unrolled[2] == 8


def rows_of_cores(task: Any) -> list[set[int]]:
    """Return the rows (the output's first axis of more than one number) that each of two cores computes by rule."""
    module = by_rule(task, TARGET | {"num-cores": 2})
    loops: list[Any] = []
    nests: list[tuple[tuple[Any, ...], Any]] = []

    def walk(node: Any, around: tuple[Any, ...]) -> None:
        if isinstance(node, tirx.For):
            around = (*around, node)
            if int(node.kind) == tirx.ForKind.PARALLEL:
                loops.append(node)
            walk(node.body, around)
        elif isinstance(node, tirx.SeqStmt):
            for part in node.seq:
                walk(part, around)
        elif isinstance(node, SBlockRealize):
            if node.block.iter_vars:
                nests.append((around, node))
            else:
                walk(node.block.body, around)

    walk(module["main"].body, ())
    around, last = nests[-1]
    (divided,) = (loop for loop in around if any(loop.same_as(each) for each in loops))
    axis = next(
        place for place, each in enumerate(last.block.iter_vars) if int(each.dom.extent) > 1
    )
    count = int(divided.extent)
    within = [loop for loop in around if not loop.same_as(divided)]
    cores: list[set[int]] = [set(), set()]
    for number in range(count):
        for numbers in itertools.product(*(range(int(loop.extent)) for loop in within)):
            values = dict(zip([loop.loop_var for loop in within], numbers, strict=True))
            values[divided.loop_var] = number
            named = {name: tirx.const(at, str(name.ty.dtype)) for name, at in values.items()}
            place = structural_map(
                last.iter_values[axis], (ir.Var, lambda name, named=named: named.get(name, name))
            )
            cores[number >= -(-count // 2)].add(int(Analyzer().simplify(place)))
    return cores


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(lambda: convolution(16, 32, 48), id="rows of an image"),
        pytest.param(lambda: convolution(16, 64, 64, groups=4), id="groups"),
        pytest.param(lambda: convolution(16, 64, 64, groups=64), id="depthwise"),
        pytest.param(lambda: task_of(fused([(48, 64), (64, 1024)], op.matmul)), id="many columns"),
    ],
)
def test_a_core_has_the_same_rows_of_every_operator(body: Any) -> None:
    """What it computed is in its own caches: TVM divides a loop into as many runs of iterations as there are cores."""
    first, second = rows_of_cores(body())
    half = (len(first | second)) // 2
    assert first == set(range(half))
    assert second == set(range(half, 2 * half))


def test_many_weights_are_divided_by_columns() -> None:
    """By rows, each core would read all of them: nine megabytes to find 400 KB of rows in its own caches."""
    target = TARGET | {"num-cores": 2}
    (many,) = draw_candidates(convolution(14, 512, 512), target, 1)
    assert many.decisions[1][0] == 1
    (few,) = draw_candidates(task_of(fused([(192, 512), (512, 512)], op.matmul)), target, 1)
    assert few.decisions[1][0] == 2


def test_each_core_gets_as_many_tiles() -> None:
    """257 rows are 43 tiles of six; with two cores a 44th costs nothing, as one of them would wait."""
    task = task_of(fused([(257, 96), (96, 256)], op.matmul))
    (one,) = draw_candidates(task, TARGET, 1)
    (two,) = draw_candidates(task, TARGET | {"num-cores": 2}, 1)
    assert one.overlaps
    assert two.overlaps
    assert (tiles.outer_tiles(two.product, two.decisions)) % 2 == 0
    assert tiles.waiting(43, 2) == 44 / 43
    assert tiles.waiting(44, 2) == tiles.waiting(7, 1) == 1
