"""What a workload computes on fixed inputs, and what counts as the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matmuls import make_matmul
from tencost.workers.expected import Array, Expected, Facts, draw, make_expected, read_facts

pytestmark = pytest.mark.tvm

SUM = Facts(["float32", "float32"], [[64], [4]], [8, 8], 256, 2**-23)
"""Two arguments: the second one holds sums of 256 terms."""


def workload(arguments: Sequence[Any]) -> Any:
    import tvm
    from tvm import te

    return tvm.IRModule({"main": te.create_prim_func(list(arguments))})


def test_the_longest_reduction_decides_what_is_tolerated() -> None:
    short, long = read_facts(make_matmul(16)), read_facts(make_matmul(64))
    assert (short.reduction, long.reduction) == (16, 64)
    assert short.shapes == [[16, 16]] * 3
    assert long.tolerance == pytest.approx(2 * short.tolerance)
    assert 16 * np.finfo(np.float32).eps < long.tolerance < 1e-3


def test_half_precision_tolerates_more_but_not_anything() -> None:
    from tvm import te

    a = te.placeholder((8, 4096), dtype="float16", name="a")
    k = te.reduce_axis((0, 4096), name="k")
    facts = read_facts(workload([a, te.compute((8,), lambda i: te.sum(a[i, k], axis=k))]))
    assert facts.tolerance == 0.1
    assert draw(facts)[0].dtype == np.float16


@pytest.mark.parametrize(
    ("index", "options", "below"),
    [
        (lambda rows: rows, {"mode": "fast"}, 50),
        (lambda rows: rows, {"mode": "clip"}, 50),
        (lambda rows: rows.astype("int32"), {"mode": "fast"}, 50),
        (lambda rows: rows * 3, {"mode": "fast"}, 1),
    ],
    ids=["plain", "clipped", "converted", "computed"],
)
def test_an_index_stays_inside_what_it_indexes(
    index: Callable[[Any], Any], options: dict[str, Any], below: int
) -> None:
    from tvm import te, topi

    table = te.placeholder((50, 4), name="table")
    rows = te.placeholder((8,), dtype="int64", name="rows")
    computed = te.compute((8,), lambda i: index(rows[i]), name="computed")
    facts = read_facts(workload([table, rows, topi.take(table, computed, axis=0, **options)]))
    assert facts.below[1] == below
    assert draw(facts)[1].max() < below
    assert draw(facts)[1].min() >= 0


def test_inputs_are_the_same_ones_each_time_and_of_both_signs() -> None:
    first, second = draw(SUM), draw(SUM)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert first[0].min() < -0.5 < 0.5 < first[0].max()
    assert np.abs(first[0]).max() <= 1.0


def test_a_workload_that_needs_positive_inputs_gets_them() -> None:
    def run(inputs: Sequence[Array]) -> Sequence[Array]:
        with np.errstate(invalid="ignore"):
            return [*inputs[:2], np.log(inputs[0])]

    expected = make_expected(make_matmul(4), run)
    assert expected.facts.positive
    assert min(array.min() for array in expected.inputs) >= 0.1


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (lambda inputs: [*inputs[:2], np.full_like(inputs[2], np.nan)], "nowhere finite"),
        (list, "writes to none"),
    ],
)
def test_a_workload_that_nothing_can_be_compared_with_is_said_so(
    run: Callable[[Sequence[Array]], Sequence[Array]], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        make_expected(make_matmul(4), run)


def test_rounding_is_accepted_and_a_missing_term_is_not(tmp_path: Path) -> None:
    terms = np.random.default_rng(1).uniform(-1, 1, (4, 256)).astype(np.float32)
    forth = np.cumsum(terms, axis=1, dtype=np.float32)[:, -1]
    back = np.cumsum(terms[:, ::-1], axis=1, dtype=np.float32)[:, -1]
    assert not np.array_equal(forth, back)
    Expected(SUM, {1: forth}).save(tmp_path / "one.npz")
    expected = Expected.load(tmp_path / "one.npz")
    untouched = expected.inputs[0]
    assert expected.difference([untouched, forth]).max_abs == 0
    assert expected.difference([untouched, back]).accepted
    short = expected.difference([untouched, forth - terms[:, 100]])
    assert not short.accepted
    assert short.argument == 1
    assert f"{short.max_abs:.3g}" in str(short)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda inputs, output: [inputs[0], np.where(output == output[2], np.nan, output)],
        lambda inputs, output: [inputs[0], inputs[1]],
        lambda inputs, output: [inputs[0] * 2, output],
    ],
    ids=["not_a_number", "unwritten", "input_overwritten"],
)
def test_what_else_is_wrong(spoil: Callable[[list[Array], Array], list[Array]]) -> None:
    output = np.array([5.0, 6.0, 7.0, 8.0], np.float32)
    expected = Expected(SUM, {1: output})
    assert expected.difference([expected.inputs[0], output]).accepted
    assert not expected.difference(spoil(expected.inputs, output)).accepted


def test_integers_are_exact_unless_a_float_was_rounded_to_them() -> None:
    output = np.array([100, 50], np.int32)
    for epsilon, accepted in ((0.0, False), (2**-23, True)):
        facts = Facts(["int32"], [[2]], [8], 1, epsilon)
        expected = Expected(facts, {0: output})
        assert expected.difference([output]).accepted
        assert expected.difference([output + 1]).accepted is accepted
        assert not expected.difference([output + 2]).accepted
