"""What a Relax function's variables are bound to, and who uses them."""

from __future__ import annotations

from collections import Counter
from typing import Any


def bindings_of(function: Any) -> dict[Any, Any]:
    """Return what each variable is bound to."""
    return {
        binding.var: binding.value
        for block in function.body.blocks
        for binding in block.bindings
        if hasattr(binding, "value")
    }


def uses_of(function: Any) -> Counter[Any]:
    """Return how often calls and tuples take each expression."""
    from tvm import relax

    uses: Counter[Any] = Counter()

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call | relax.Tuple):
            uses.update(node.args if isinstance(node, relax.Call) else node.fields)

    relax.analysis.post_order_visit(function.body, visit)
    return uses


def call_if(name: str, value: Any) -> Any:
    """Return a call if it is of an operator of this name, else None."""
    return value if getattr(getattr(value, "op", None), "name", "") == name else None
