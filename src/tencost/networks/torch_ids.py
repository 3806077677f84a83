"""Whole numbers that a PyTorch program looks up in tables, drawn within them.

A file says of an input of several categories, each with a table of its own, only that it has whole numbers. So the
program runs once on numbers that were drawn at will. Numbers of the inputs are followed to the tables through what
only moves them or adds a constant; the table says what range the number must lie in.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from tencost.networks.inputs import Array
from tencost.networks.torch_modules import tensors_of

_MOVES = {
    "alias", "chunk", "clone", "contiguous", "detach", "expand", "flatten", "movedim", "narrow", "numpy_T", "permute",
    "repeat", "reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "swapaxes", "t", "tensor_split",
    "transpose", "unbind", "unflatten", "unsqueeze", "view",
}  # fmt: skip
"""Operators whose results are numbers of their first argument."""
_JOINS = {"cat", "concat", "stack"}
_CASTS = {"_to_copy", "to"}
_SUMS = {"add": 1, "sub": -1}
_ALONG = {"gather", "index_select", "scatter", "scatter_add", "scatter_reduce"}
"""Operators whose second and third argument are an axis and ids along it."""
_NO_LIMIT = 2**63 - 1


def within_tables(module: Any, inputs: dict[str, Array], names: set[str]) -> dict[str, Array]:
    """Return inputs whose ids lie in the tables that the program looks them up in, as far as they can be followed.

    Args:
        module: takes the inputs as tensors, in order.
        inputs: drawn arrays by name.
        names: of the inputs that may be changed; numbers that lie in their tables stay.

    Raises:
        ConfigError: an input of a type that NumPy has not.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    tensors = [tensor.clone() for tensor in tensors_of(inputs)]  # the program may write to them
    sizes = [tensor.numel() for tensor in tensors]
    starts = np.cumsum([0, *sizes])
    low = torch.zeros(sum(sizes), dtype=torch.int64)
    high = torch.full_like(low, _NO_LIMIT)
    followed: dict[int, tuple[Any, Any, Any]] = {}
    """Of a tensor: itself, so that no other gets its id, which number of the inputs each is (or -1), what was added."""

    def follow(tensor: Any, places: Any, added: Any) -> None:
        followed[id(tensor)] = tensor, places, added

    def origin(value: Any, part: int) -> Any:
        """Return places (1) or sums (2) of a followed tensor, and of others what stands for no number."""
        if not isinstance(value, torch.Tensor):
            return [origin(item, part) for item in value]
        if id(value) in followed:
            return followed[id(value)][part]
        return torch.full(value.shape, -1 if part == 1 else 0)

    def looked_up(ids: Any, size: int) -> Any:
        """Note the range of ids of a table and return them within it."""
        if not isinstance(ids, torch.Tensor) or id(ids) not in followed:
            return ids
        _, places, added = followed[id(ids)]
        is_known = places >= 0
        chosen, sums = places[is_known], added[is_known]
        low.scatter_reduce_(0, chosen, -sums, "amax")
        high.scatter_reduce_(0, chosen, size - sums, "amin")
        return ids.clamp(0, size - 1)

    def within(name: str, args: list[Any]) -> None:
        """Replace ids among an operator's arguments by others within its table."""
        if name in ("embedding", "embedding_bag"):
            args[1] = looked_up(args[1], args[0].shape[0])
        elif name in _ALONG:
            args[2] = looked_up(args[2], args[0].shape[args[1]])
        elif name in ("index", "index_put"):
            args[1] = [looked_up(*pair) for pair in zip(args[1], args[0].shape, strict=False)]
        elif name == "one_hot" and len(args) > 1 and args[1] > 0:
            args[0] = looked_up(args[0], args[1])

    class Following(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = str(getattr(getattr(func, "overloadpacket", func), "__name__", ""))
            args, kwargs = list(args), kwargs or {}
            first: Any = args[0] if args else None
            is_followed = id(first) in followed
            is_joined = name in _JOINS and any(id(item) in followed for item in first)
            within(name, args)
            result = func(*args, **kwargs)
            if is_joined or (is_followed and name in _MOVES):
                moved = [func(origin(first, part), *args[1:], **kwargs) for part in (1, 2)]
                if isinstance(result, torch.Tensor):
                    follow(result, *moved)
                else:
                    for tensors in zip(result, *moved, strict=True):
                        follow(*tensors)
            elif is_followed and name in (*_CASTS, *_SUMS) and not result.is_floating_point():
                _, places, added = followed[id(first)]
                if name in _CASTS:
                    follow(result, places, added)
                elif not kwargs and id(args[1]) not in followed:
                    follow(result, places.expand_as(result), added + _SUMS[name] * args[1])
            else:
                followed.pop(id(result), None)  # it was written to
            return result

    for name, tensor, start in zip(inputs, tensors, starts, strict=False):
        if name in names and not tensor.is_floating_point() and tensor.dtype != torch.bool:
            places = torch.arange(start, start + tensor.numel()).reshape(tensor.shape)
            follow(tensor, places, torch.zeros_like(places))
    if not followed:
        return inputs
    # Where it does not run for another reason, the run that follows says so.
    with contextlib.suppress(Exception), torch.no_grad(), Following():
        module(*tensors)
    return {
        name: _between(array, low[start:end].numpy(), high[start:end].numpy())
        for (name, array), start, end in zip(inputs.items(), starts, starts[1:], strict=False)
    }


def _between(array: Array, low: Array, high: Array) -> Array:
    """Return an array whose numbers outside [low, high) are others within it; empty ranges change nothing."""
    low, high = low.reshape(array.shape), high.reshape(array.shape)
    is_limited = (high > low) & (high < _NO_LIMIT)
    is_outside = is_limited & ((array < low) | (array >= high))
    span = np.where(is_outside, high - low, 1)
    return np.where(is_outside, low + array % span, array).astype(array.dtype)
