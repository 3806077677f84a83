"""Tiles that overlap: rows and columns without good divisors, computed as if there were a few more of them.

799 rows are tiles of 17 or 47, or of one; 104 columns are 6.5 vectors. As tiles of 8 rows they are 100, as vectors of
16 columns 7, the last of which would reach too far. So a product is widened before it is scheduled, to 800 rows and 112
columns, and narrowed afterwards: where a tensor is read or written, the last tile begins at row 791 and the last vector
at column 88. What two tiles have in common is computed and stored twice, with the same value: sums are kept by the
widened row and column, so that none is added to twice. Nothing is copied, and the innermost loops have no choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tencost.programs.codegen.blocks import moves, replaced
from tencost.programs.refusals import StepRefusal


@dataclass(frozen=True)
class Axis:
    """An axis that is widened.

    Attributes:
        extent: what it has.
        widened: what it is scheduled with, a multiple of `tile`; no other extent of the function is the same.
        tile: what is moved back as a whole where it would reach too far; at most `extent`.
    """

    extent: int
    widened: int
    tile: int

    def place(self, index: Any) -> Any:
        """Return where an index of the widened axis is in a tensor that is not widened."""
        from tvm import tirx

        kind = str(index.ty.dtype)
        tile, last = tirx.const(self.tile, kind), tirx.const(self.extent - self.tile, kind)
        return tirx.Min(tirx.floordiv(index, tile) * tile, last) + tirx.floormod(index, tile)


@dataclass(frozen=True)
class Widened:
    """A function some of whose axes are widened; only what :meth:`narrowed` returns computes something.

    Attributes:
        function: the widened PrimFunc, to be scheduled.
        original: the PrimFunc that it was made of.
        axes: by the extent that they were widened to.
        narrow: for each of these extents, the intermediate tensors that were not widened along it, by name.
    """

    function: Any
    original: Any
    axes: Mapping[int, Axis]
    narrow: Mapping[int, frozenset[str]]

    def narrowed(self, function: Any) -> Any:
        """Return the scheduled function with its tiles moved back to where the tensors end."""
        from tvm import ir, tirx
        from tvm.s_tir import SBlock
        from tvm_ffi import structural_map

        parameters = set(function.params)

        def moved(block: Any) -> Any:
            axes = {
                iteration.var: self.axes[size]
                for iteration in block.iter_vars
                if (size := _size(iteration.dom.extent)) in self.axes
            }

            def places(buffer: Any, indices: Any) -> list[Any]:
                by_name = {
                    name: axis.place(name)
                    for name, axis in axes.items()
                    if buffer in parameters or buffer.name in self.narrow[axis.widened]
                }
                return [replaced(index, by_name) for index in indices]

            def load(node: Any) -> Any:
                return tirx.BufferLoad(node.source, places(node.source, node.indices))

            def store(node: Any) -> Any:
                return tirx.BufferStore(node.buffer, node.value, places(node.buffer, node.indices))

            def region(node: Any) -> Any:
                starts = places(node.source, [bound.min for bound in node.region])
                bounds = zip(starts, node.region, strict=True)
                ranges = [ir.Range.from_min_extent(start, bound.extent) for start, bound in bounds]
                return tirx.BufferRegion(node.source, ranges)

            if not axes:
                return block
            accesses = [(ir.TensorLoad, load), (tirx.BufferStore, store), (ir.TensorRegion, region)]
            return structural_map(block, accesses)

        function = structural_map(function, (SBlock, moved))
        return replaced(function, dict(zip(function.params, self.original.params, strict=True)))


def widened(function: Any, block: str, axes: Mapping[int, Axis]) -> Widened:
    """Widen axes of a product, and of all that stands before and after it at the same rows and columns.

    Args:
        function: PrimFunc, unscheduled.
        block: name of the product's block.
        axes: by their numbers of the block's axes.

    Raises:
        StepRefusal: values are needed at other rows or columns than their own, or the extents cannot be told apart.
    """
    from tvm import tirx
    from tvm.s_tir import SBlockRealize
    from tvm_ffi import structural_walk

    realized: list[Any] = []
    structural_walk(function.body, (SBlockRealize, realized.append))
    nests = [node for node in realized if node.block.iter_vars]
    parameters = set(function.params)
    (product,) = (node.block for node in nests if node.block.name_hint == block)
    moving = {product.iter_vars[place].var: axis for place, axis in axes.items()}
    dimensions: dict[Any, dict[int, Axis]] = {}
    """Tensor -> its dimensions that are widened."""
    size = -1
    while size != (size := len(moving) + sum(map(len, dimensions.values()))):
        for node in nests:
            iterations = {each.var: each for each in node.block.iter_vars}
            for buffer, indices in _accesses(node.block):
                for place, index in enumerate(indices):
                    axis = dimensions.get(buffer, {}).get(place)
                    if index in moving:
                        dimensions.setdefault(buffer, {}).setdefault(place, moving[index])
                    elif axis and buffer not in parameters:
                        iteration = iterations.get(index)
                        if (
                            iteration is None
                            or iteration.iter_type != tirx.IterVar.DataPar
                            or _size(iteration.dom.extent) != axis.extent
                        ):
                            raise StepRefusal(f"{buffer.name} is read at other places than its own")
                        moving[index] = axis
    return Widened(
        _with_extents(function, nests, moving, dimensions),
        function,
        {axis.widened: axis for axis in axes.values()},
        {
            axis.widened: _narrow(nests, moving, dimensions, axis, parameters)
            for axis in axes.values()
        },
    )


def _accesses(block: Any) -> list[tuple[Any, list[Any]]]:
    """Return the tensors that a block reads and writes, each with the indices of an element."""
    return [
        (region.source, [bound.min for bound in region.region])
        for region in (*block.reads, *block.writes)
    ]


def _narrow(
    nests: list[Any],
    moving: Mapping[Any, Axis],
    dimensions: Mapping[Any, Mapping[int, Axis]],
    axis: Axis,
    parameters: set[Any],
) -> frozenset[str]:
    """Return the names of intermediate tensors that are not widened along an axis, whether or not it reads them.

    A copy that it reads is inlined later: then it reads what that was made of.
    """
    names = set()
    for node in nests:
        along = [name for name, other in moving.items() if other is axis]
        for buffer, indices in _accesses(node.block):
            wide = dimensions.get(buffer, {})
            if axis not in wide.values():
                names.add(buffer.name)
            for place, index in enumerate(indices):
                if any(moves(index, name) for name in along) and wide.get(place) is not axis:
                    if axis in wide.values() and buffer not in parameters:
                        raise StepRefusal(f"{buffer.name} is read at other places than its own")
                    names.add(buffer.name)
    return frozenset(names)


def _with_extents(
    function: Any,
    nests: list[Any],
    moving: Mapping[Any, Axis],
    dimensions: Mapping[Any, Mapping[int, Axis]],
) -> Any:
    """Return a function with its axes and tensors widened."""
    from tvm import ir, tirx
    from tvm.s_tir import SBlock
    from tvm_ffi import structural_map, structural_walk

    extents: set[int] = set()
    structural_walk(function.body, (tirx.For, lambda node: extents.add(_size(node.extent))))
    buffers = {buffer for node in nests for buffer, _ in _accesses(node.block)}
    extents |= {_size(size) for buffer in buffers for size in buffer.shape}
    if extents & {axis.widened for axis in moving.values()}:
        raise StepRefusal("another extent is the same as a widened one")
    if len({axis.widened for axis in moving.values()}) < len(set(moving.values())):
        raise StepRefusal("two axes are widened to the same extent")
    loops = {}
    for node in nests:
        for iteration, value in zip(node.block.iter_vars, node.iter_values, strict=True):
            if iteration.var in moving:
                if _used_as_a_number(node.block, iteration.var):
                    raise StepRefusal("a value depends on its row or column")
                loops[value] = moving[iteration.var]

    def loop(node: Any) -> Any:
        axis = loops.get(node.loop_var)
        if axis is None:
            return node
        extent = tirx.const(axis.widened, str(node.extent.ty.dtype))
        return tirx.For(node.loop_var, node.min, extent, node.kind, node.body)

    def block(node: Any) -> Any:
        if not any(iteration.var in moving for iteration in node.iter_vars):
            return node
        iterations = []
        for iteration in node.iter_vars:
            axis = moving.get(iteration.var)
            if axis is not None:
                kind = str(iteration.dom.extent.ty.dtype)
                domain = ir.Range(tirx.const(0, kind), tirx.const(axis.widened, kind))
                iteration = tirx.IterVar(domain, iteration.var, iteration.iter_type)
            iterations.append(iteration)
        return SBlock(
            iterations, node.reads, node.writes, node.name_hint, node.body, node.init,
            node.alloc_buffers, node.match_buffers, node.annotations,
        )  # fmt: skip

    wide = {
        buffer: tirx.decl_buffer(
            [
                tirx.const(axes[place].widened, "int64") if place in axes else size
                for place, size in enumerate(buffer.shape)
            ],
            str(buffer.dtype),
            name=buffer.name,
        )
        for buffer, axes in dimensions.items()
    }
    changed = structural_map(function, [(tirx.For, loop), (SBlock, block)])
    return replaced(changed, wide)


def _used_as_a_number(block: Any, name: Any) -> bool:
    """Say whether a block uses a variable otherwise than to read or write at it."""
    from tvm import ir, tirx
    from tvm_ffi import structural_map

    accesses = [
        (ir.TensorLoad, lambda node: tirx.const(0, str(node.ty.dtype))),
        (tirx.BufferStore, lambda node: tirx.Evaluate(node.value)),
    ]
    return moves(structural_map(block.body, accesses), name)


def _size(extent: Any) -> int:
    """Return an extent that is a constant; 0 where it is none."""
    return int(extent) if hasattr(extent, "value") else 0


def without_layout_blocks(module: Any) -> Any:
    """Return a scheduled module without the blocks that reorder weights, which then computes nonsense at equal speed.

    TVM's own pass, that of ``ArgInfo.from_entry_func(remove_preproc=True)`` too, refuses weights that tiles repeat.
    """
    from tvm import ir, tirx
    from tvm.s_tir import SBlock
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock
    from tvm_ffi import structural_map

    def plain(block: Any) -> Any:
        # TVM leaves out blocks that read at their own axes only; overlapping tiles repeat some weights.
        if "meta_schedule.layout_rewrite_preproc" not in block.annotations:
            return block
        names = [iteration.var for iteration in block.iter_vars]
        return structural_map(
            block, (ir.TensorLoad, lambda load: tirx.BufferLoad(load.source, names))
        )

    functions = {
        name: structural_map(function, (SBlock, plain))
        for name, function in module.functions.items()
    }
    module = ir.IRModule(functions, attrs=module.attrs)
    return RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)


def arguments_of(module: Any) -> list[Any]:
    """Return MetaSchedule's ArgInfo of a module's ``main``, as a program of the search or by rule."""
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    arguments: list[Any] = ArgInfo.from_entry_func(
        without_layout_blocks(module), remove_preproc=False
    )
    return arguments
