"""The next panel of a product's weights is fetched, all of it and nothing else, and nothing else changes."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from tvm import ir, relax, tirx
from tvm_ffi import structural_map, structural_walk

from product_workloads import Body, Shapes, drawn, fused, nhwc, task_of
from tencost.networks.rewriting import with_free_weights, with_packed_weights
from tencost.programs.codegen import prefetch, rules, vector_math

pytestmark = [pytest.mark.tvm, pytest.mark.usefixtures("cpu_intrinsics")]
TARGET = {"kind": "llvm", "mcpu": "x86-64-v3"}
op = relax.op

FETCHED: dict[str, tuple[Shapes, Body]] = {
    "dense": ([(60, 96), (96, 128)], op.matmul),
    "a prime number of rows": ([(131, 96), (96, 256)], op.matmul),
    "many columns": ([(24, 64), (64, 1024)], op.matmul),
    "convolution": ([(1, 12, 12, 24), (3, 3, 24, 128)], lambda x, w: op.nn.relu(nhwc(x, w))),
}
NOT_FETCHED: dict[str, tuple[Shapes, Body]] = {
    "one row": ([(1, 96), (96, 256)], op.matmul),
    "one panel": ([(60, 96), (96, 16)], op.matmul),
    "small panels": ([(60, 8), (8, 512)], op.matmul),
    "depthwise": ([(1, 14, 14, 64), (3, 3, 1, 64)], lambda x, w: nhwc(x, w, groups=64)),
}
Line = tuple[int, int]


def scheduled(shapes: Shapes, body: Body, cores: int, *, free: bool = True) -> Any:
    mod = fused(shapes, body)
    task = task_of(with_free_weights(mod) if free else mod)
    return rules.scheduled(task["main"], TARGET | {"num-cores": cores})


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("name", FETCHED)
def test_the_next_panel_is_fetched_whole(name: str, cores: int) -> None:
    function = prefetch.with_prefetches(scheduled(*FETCHED[name], cores))
    weights, fetched = fetches(function)
    panels = int(weights.shape[0])
    lines = int(np.prod([int(size) for size in weights.shape[1:]])) * 4 // prefetch.LINE
    assert panels > 1
    assert lines * prefetch.LINE >= prefetch.PANEL
    for panel in range(panels):
        following = min(panel + 1, panels - 1)
        # Each core has all panels for its rows: after the last one come the first again.
        begun = {0} if panel == following else set()
        assert {at for at, _ in fetched[panel]} - begun == {following}
        assert {line for at, line in fetched[panel] if at == following} == set(range(lines))


@pytest.mark.parametrize("name", NOT_FETCHED)
def test_what_would_gain_nothing_stays(name: str) -> None:
    function = scheduled(*NOT_FETCHED[name], 1)
    assert prefetch.with_prefetches(function).same_as(function)


def test_weights_that_keep_their_order_are_not_fetched() -> None:
    function = scheduled(*FETCHED["dense"], 1, free=False)
    assert prefetch.with_prefetches(function).same_as(function)


def test_a_loop_of_unknown_length_is_left_alone() -> None:
    function = scheduled(*FETCHED["dense"], 1)

    def unknown(loop: Any) -> Any:
        if int(loop.extent) != 96 // 8:  # the sum's
            return loop
        extent = tirx.Add(loop.extent, tirx.const(0, str(loop.extent.ty.dtype)))
        return tirx.For(loop.loop_var, loop.min, extent, loop.kind, loop.body)

    changed = structural_map(function, (tirx.For, unknown))
    assert prefetch.with_prefetches(changed).same_as(changed)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("name", FETCHED)
def test_the_numbers_stay(name: str, cores: int) -> None:
    vector_math.register_vector_math()
    shapes, body = FETCHED[name]
    target = TARGET | {"num-cores": cores}
    values, weight = drawn(shapes)
    mod = with_free_weights(relax.transform.BindParams("main", {"x1": weight})(fused(shapes, body)))
    by_rule = rules.schedule_rest(mod, target)
    assert any(map(has_fetches, by_rule.functions.values()))
    outputs = [
        run(packed, values, rules.leave(packed, target))
        for packed in (with_packed_weights(by_rule), by_rule, mod)
    ]
    assert np.allclose(outputs[0], outputs[2], rtol=1e-4, atol=1e-4)
    assert np.allclose(outputs[1], outputs[2], rtol=1e-4, atol=1e-4)


def run(mod: Any, values: Any, target: dict[str, Any]) -> Any:
    import tvm

    machine = relax.VirtualMachine(tvm.compile(mod, target=tvm.target.Target(target)), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(values)).numpy()


def has_fetches(function: Any) -> bool:
    return isinstance(function, tirx.PrimFunc) and bool(addresses(function.body))


def addresses(node: Any) -> list[Any]:
    """Return the loads whose addresses are fetched."""
    loads: list[Any] = []

    def call(expression: Any) -> None:
        if getattr(expression.op, "name", "") == "tirx.address_of":
            loads.append(expression.args[0])

    structural_walk(node, (ir.Call, call))
    return loads


def fetches(function: Any) -> tuple[Any, dict[int, set[Line]]]:
    """Return the weights, and the lines fetched (panel, number) while each panel is used."""
    loops: list[Any] = []

    def loop(node: Any) -> None:
        if addresses(node):
            loops.append(node)

    structural_walk(function.body, (tirx.For, loop))
    loads = addresses(function.body)
    (weights,) = {load.source for load in loads}
    used = panel_of(function, weights)
    names = [node.loop_var for node in loops]
    lines: dict[int, set[Line]] = defaultdict(set)
    for numbers in itertools.product(*(range(int(node.extent)) for node in loops)):
        values = {
            name: tirx.const(number, str(name.ty.dtype))
            for name, number in zip(names, numbers, strict=True)
        }
        for load in loads:
            panel, *places = (number_of(place, values) for place in load.indices)
            # The last place may be beyond its dimension's end: what lies in a row is counted through.
            *rest, last = places
            offset = last
            for place, step in zip(rest, strides_of(weights.shape[1:]), strict=False):
                offset += place * step
            assert offset * 4 % prefetch.LINE == 0
            lines[number_of(used, values)].add((panel, int(offset) * 4 // prefetch.LINE))
    return weights, lines


def strides_of(shape: Any) -> list[int]:
    sizes = [int(size) for size in shape]
    return [math.prod(sizes[place + 1 :]) for place in range(len(sizes))]


def panel_of(function: Any, weights: Any) -> Any:
    """Return which panel the product reads, by the loops outside of the innermost sum."""
    from tvm.s_tir import SBlockRealize

    panels: list[Any] = []

    def block(node: Any) -> None:
        names = [axis.var for axis in node.block.iter_vars]
        values = dict(zip(names, node.iter_values, strict=True))
        for region in node.block.reads:
            if region.source.same_as(weights) and "preproc" not in str(node.block.annotations):
                panels.append(
                    structural_map(
                        region.region[0].min, (ir.Var, lambda name: values.get(name, name))
                    )
                )

    structural_walk(function.body, (SBlockRealize, block))
    return panels[0]


def number_of(place: Any, values: dict[Any, Any]) -> int:
    """Return an index for an iteration; loops that are not named are at their beginning."""
    from tvm.sym import Analyzer

    def value(name: Any) -> Any:
        return values.get(name, tirx.const(0, str(name.ty.dtype)))

    return int(Analyzer().simplify(structural_map(place, (ir.Var, value))))
