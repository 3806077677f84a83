"""Small changes of what a program decides: a factor of a tile moved, another category, another compute location."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from tencost.programs.codegen.refit import Decisions


def mutate(
    choices: Sequence[tuple[Any, ...]],
    values: list[Any],
    seen: Sequence[Collection[int]],
    random: np.random.Generator,
) -> None:
    """Change one decision in place; none where a program decides nothing.

    Args:
        choices: what is decided, see :class:`tencost.programs.codegen.refit.Sketch`.
        values: the decisions.
        seen: compute locations known to be possible, by decision.
        random: draws what is changed, tiles four times as often as the rest.
    """
    weights = [
        (1.0 if value and math.prod(value) > 1 else 0.0) if choice[0] == "tile" else 0.25
        for choice, value in zip(choices, values, strict=True)
    ]
    total = sum(weights)
    if total == 0:
        return
    at = int(random.choice(len(weights), p=np.array(weights) / total))
    choice = choices[at]
    if choice[0] == "tile":
        values[at] = move_divisor(values[at], int(choice[2]), random)
    else:
        values[at] = other(choice, values[at], seen[at], random)


def other(
    choice: tuple[Any, ...], value: Any, seen: Collection[int], random: np.random.Generator
) -> Any:
    """Return a category, or one of the compute locations seen; the value itself where none was."""
    if choice[0] == "category":
        return int(random.integers(len(choice[1])))
    options = sorted(seen)
    return options[int(random.integers(len(options)))] if options else value


def move_divisor(
    factors: Sequence[int], largest_innermost: int, random: np.random.Generator
) -> Decisions:
    """Return a tile with a divisor of one level moved to another; the same where no move is allowed."""
    levels = len(factors)
    for _ in range(8):
        giver, taker = (int(level) for level in random.choice(levels, 2, replace=False))
        divisors = [
            divisor for divisor in range(2, factors[giver] + 1) if factors[giver] % divisor == 0
        ]
        if not divisors:
            continue
        divisor = divisors[int(random.integers(len(divisors)))]
        tile = list(factors)
        tile[giver] //= divisor
        tile[taker] *= divisor
        if tile[-1] <= largest_innermost:
            return tuple(tile)
    return tuple(factors)


def plain_decisions(values: Decisions) -> Decisions:
    """Return decisions with tiles as tuples of int."""
    return tuple(
        tuple(map(int, value)) if isinstance(value, list | tuple) else value for value in values
    )
