"""Several networks as one module, so that they share a library, and their weights where these are the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def join_networks(mods: Mapping[str, Any]) -> Any:
    """Return one IRModule of several networks' modules.

    Args:
        mods: a network's entry -> its module, whose ``main`` is to have that name.
    """
    from tvm import IRModule, relax
    from tvm.ir import GlobalVar

    if list(mods) == ["main"]:
        return mods["main"]

    @relax.expr_functor.mutator
    class Renaming(relax.PyExprMutator):
        def __init__(self, names: Mapping[Any, Any]) -> None:
            super().__init__()
            self.names = names

        def visit_global_var_(self, op: Any) -> Any:
            return self.names[op]

    functions = {}
    for name, mod in mods.items():
        names = {}
        for variable in mod.functions:
            hint = str(variable.name_hint)
            names[variable] = GlobalVar(name if hint == "main" else f"{hint}_of_{name}")
            relax.expr._update_type(names[variable], variable.ty)
        renaming = Renaming(names)
        for variable, function in mod.functions.items():
            renamed = names[variable]
            if isinstance(function, relax.Function):
                function = renaming.visit_expr(function)
            if "global_symbol" in dict(function.attrs or {}):
                function = function.with_attr("global_symbol", renamed.name_hint)
            functions[renamed] = function
    return relax.transform.Normalize()(IRModule(functions))
