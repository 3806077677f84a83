"""Chains of values that are read twice are cut: computed where it is read, each would double what it is made of.

A fused chain's values are computed where they are read (:mod:`tencost.programs.codegen.rules`). Of `t = t + tanh(t)`
twenty times over, the first value would be written out a million times. So the functions that operators are lowered to
are counted before they are fused, and where one has grown too large it is kept out of the fusion: its value is stored.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from typing import Any

from tencost.programs.codegen.blocks import called

MOST_OPERATIONS = 2048
"""Of a value that is computed where it is read: TVM simplifies and LLVM compiles each of them."""
_WRITTEN_OUT = {"exp": 16, "sigmoid": 16, "tanh": 24, "erf": 24, "pow": 4}
"""Function -> how much of it there is where it is written out (:mod:`tencost.programs.codegen.vector_math`)."""
_STORED = 3
"""Patterns of TVM's fusion from which on what a function computes is stored: sums, products and convolutions."""
_OPAQUE = 8


def cut_chains(mod: Any) -> Any:
    """Return the network in which no value takes more than MOST_OPERATIONS, written out where it is read.

    Args:
        mod: Relax module of one main, lowered to functions that are annotated with their patterns, not fused yet.
    """
    from tvm import relax

    counted = cache(_reads)
    written: dict[Any, int] = {}
    cut = set()
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != "relax.call_tir":
                continue
            function = mod[call.args[0]]
            if int(dict(function.attrs or {}).get("op_pattern", _OPAQUE)) >= _STORED:
                continue
            times, reads = counted(function)
            sizes = [written.get(argument, 1) for argument in call.args[1].fields]
            size = times * (1 + sum(map(math.prod, zip(reads, sizes, strict=False))))
            if size <= MOST_OPERATIONS:
                written[binding.var] = size
            else:
                cut.add(binding.var)
    return _kept_out(mod, cut) if cut else mod


def _reads(function: Any) -> tuple[int, list[int]]:
    """Return how often a PrimFunc's operations are written out, and how often it reads each parameter."""
    from tvm import ir
    from tvm_ffi import structural_walk

    reads: Counter[Any] = Counter()
    structural_walk(function.body, (ir.TensorLoad, lambda load: reads.update([load.source])))
    times = math.prod(_WRITTEN_OUT.get(name, 1) for name in called(function.body))
    return times, [reads[parameter] for parameter in function.params]


def _kept_out(mod: Any, cut: set[Any]) -> Any:
    """Return the network that calls, for each of the variables, a function that is fused with nothing."""
    from tvm import relax

    @relax.expr_functor.mutator
    class Cutting(relax.PyExprMutator):
        def visit_var_binding_(self, binding: Any) -> None:
            if binding.var not in cut:
                super().visit_var_binding_(binding)
                return
            call = binding.value
            function = mod[call.args[0]].with_attr("op_pattern", _OPAQUE)
            stored = self.builder_.add_func(function, f"{call.args[0].name_hint}_stored")
            value = relax.Call(call.op, [stored, *call.args[1:]], call.attrs, call.ty_args)
            self.set_var_remap(binding.var, self.builder_.emit(self.visit_expr(value)))

    cutting = Cutting(mod)
    (main,) = [variable for variable in mod.functions if variable.name_hint == "main"]
    cutting.builder_.update_func(main, cutting.visit_expr(mod[main]))
    return cutting.builder_.get()
