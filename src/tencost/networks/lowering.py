"""From the operators of an imported network to fused functions that TVM compiles."""

from __future__ import annotations

from typing import Any


def fuse(mod: Any) -> Any:
    """Lower and fuse as TVM's own `static_shape_tuning` pipeline does before it tunes."""
    from tvm import relax

    mod = relax.transform.DecomposeOpsForInference()(mod)
    mod = relax.transform.CanonicalizeBindings()(mod)  # else a tuple keeps ReLU out of the fusion
    return relax.get_pipeline("zero")(mod)


def compilable(mod: Any) -> Any:
    """Write arithmetic on truth values in a way that TVM compiles; other functions stay as they are.

    TVM 0.27's code generator takes a bool for a floating-point number where it compares, adds or multiplies, and LLVM
    refuses that: `equal` of two masks is enough (gpt2, llama). Numbers of one byte are compared instead, and sums and
    products of truth values are what PyTorch takes them for.
    """
    from tvm import IRModule, tirx
    from tvm_ffi import structural_map

    def is_bool(value: Any) -> bool:
        return str(value.ty.dtype) == "bool"

    def compared(node: Any) -> Any:
        if not is_bool(node.a):
            return node
        return type(node)(tirx.Cast("int8", node.a), tirx.Cast("int8", node.b))

    def both(node: Any) -> Any:
        return tirx.And(node.a, node.b) if is_bool(node) else node

    def either(node: Any) -> Any:
        return tirx.Or(node.a, node.b) if is_bool(node) else node

    callbacks = [
        ((tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE), compared),
        ((tirx.Mul, tirx.Min), both),
        ((tirx.Add, tirx.Max), either),
    ]
    mended = {
        name: structural_map(function, callbacks)
        for name, function in mod.functions.items()
        if isinstance(function, tirx.PrimFunc)
    }
    changed = {
        name: function for name, function in mended.items() if not function.same_as(mod[name])
    }
    return IRModule({**mod.functions, **changed}, attrs=mod.attrs) if changed else mod
