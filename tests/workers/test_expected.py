"""What a workload computes on fixed inputs, and what counts as the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matmuls import make_matmul
from tencost.workers.expected import (
    Array,
    Expected,
    Facts,
    draw_arguments,
    make_expected,
    read_facts,
)

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
    assert draw_arguments(facts)[0].dtype == np.float16


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
    assert draw_arguments(facts)[1].max() < below
    assert draw_arguments(facts)[1].min() >= 0


def test_inputs_are_the_same_ones_each_time_and_of_both_signs() -> None:
    first, second = draw_arguments(SUM), draw_arguments(SUM)
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


def test_the_inputs_are_those_of_earlier_releases() -> None:
    """Files with expected outputs are kept; their inputs are drawn again."""
    numbers, integers = draw_arguments(Facts(["float32", "int64"], [[3], [4]], [8, 8], 1, 2**-23))
    np.testing.assert_allclose(numbers, [0.784505, -0.4398482, -0.4767215], rtol=1e-6)
    assert integers.tolist() == [3, 7, 0, 1]


def test_integers_and_truth_values_take_all_their_values() -> None:
    integers, truths, positive = draw_arguments(
        Facts(["uint8", "bool", "float32"], [[999]] * 3, [8, 8, 8], 1, 2**-23, positive=True)
    )
    assert set(integers.tolist()) == set(range(8))
    assert truths.dtype == np.bool_
    assert 0.45 < truths.mean() < 0.55
    assert 0.1 <= positive.min() < 0.15 < 0.95 < positive.max() < 1.0


def test_types_that_numpy_lacks(tmp_path: Path) -> None:
    from tvm import te

    a = te.placeholder((8, 64), dtype="bfloat16", name="a")
    facts = read_facts(workload([a, te.compute((8, 64), lambda i, j: a[i, j] + a[i, j])]))
    assert (facts.reduction, facts.epsilon, facts.below) == (1, 2**-7, [8, 8])
    given = draw_arguments(facts)[0]
    assert str(given.dtype) == "bfloat16"
    Expected(facts, {1: given + given}).save(tmp_path / "one.npz")
    expected = Expected.load(tmp_path / "one.npz")
    assert expected.difference([given, given + given]).max_abs == 0
    assert not expected.difference([given, given]).accepted
    with pytest.raises(ValueError, match="no random values of type 'float31'"):
        draw_arguments(Facts(["float31"], [[1]], [8], 1, 0.0))


def test_the_coarsest_type_on_the_way_decides_what_is_tolerated() -> None:
    from tvm import te

    a = te.placeholder((8,), name="a")
    half = te.compute((8,), lambda i: a[i].astype("float16"), name="half")
    facts = read_facts(workload([a, te.compute((8,), lambda i: half[i].astype("float32"))]))
    assert facts.epsilon == 2**-10
    whole = te.placeholder((8,), dtype="int32", name="a")
    assert read_facts(workload([whole, te.compute((8,), lambda i: whole[i] + 1)])).epsilon == 0
    assert SUM.tolerance == pytest.approx(16 * 16 * 2**-23)


def test_a_number_among_the_arguments_is_refused() -> None:
    from tvm import te

    a, n = te.placeholder((8,), name="a"), te.var("n", "int64")
    mod = workload([a, n, te.compute((8,), lambda i: a[i] + n.astype("float32"))])
    with pytest.raises(ValueError, match="tensor arguments only"):
        read_facts(mod)


def test_an_index_stays_inside_everything_that_it_indexes() -> None:
    from tvm import te, topi

    def below(*taken: Callable[[Any], Any], size: int = 20) -> int:
        first = te.placeholder((50, 4), name="first")
        second = te.placeholder((size, 4), name="second")
        rows = te.placeholder((8,), dtype="int64", name="rows")
        copied = te.compute((8,), lambda i: rows[i], name="copied")
        again = te.compute((8,), lambda i: copied[i], name="again")

        def take(table: Any, index: Callable[[Any], Any]) -> Any:
            at = te.compute((8,), lambda i: index(again[i]))
            return topi.take(table, at, axis=0, mode="fast")

        both = [take(*pair) for pair in zip((first, second), taken, strict=True)]
        facts = read_facts(workload([first, second, rows, *both]))
        assert facts.indices == [2]
        return facts.below[2]

    assert below(lambda row: row, lambda row: row) == 20
    assert below(lambda row: row, lambda row: row, size=70) == 50
    assert below(lambda row: row, lambda row: row * 3) == 1


def test_one_index_that_is_computed_is_enough_for_zeros() -> None:
    from tvm import te

    first, second = te.placeholder((50,), name="first"), te.placeholder((20,), name="second")
    rows = te.placeholder((8,), dtype="int64", name="rows")
    both = te.compute((8,), lambda i: first[rows[i]] + second[rows[i] * 2])
    assert read_facts(workload([first, second, rows, both])).below[2] == 1


def test_an_index_that_says_where_to_write_stays_inside_too() -> None:
    import tvm
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def scatter(
        rows: T.Buffer((8,), "int64"),  # type: ignore[valid-type]
        values: T.Buffer((8,), "float32"),  # type: ignore[valid-type]
        out: T.Buffer((30,), "float32"),  # type: ignore[valid-type]
    ) -> None:
        for i in range(8):
            with T.sblock("scatter"):
                at = T.axis.opaque(8, i)
                out[rows[at]] = values[at]

    assert read_facts(tvm.IRModule({"main": scatter})).below == [30, 8, 8]


def test_one_output_that_is_nowhere_finite_is_enough() -> None:
    def run(inputs: Sequence[Array]) -> Sequence[Array]:
        return [inputs[0], inputs[1] + 1, np.full_like(inputs[2], np.nan)]

    with pytest.raises(ValueError, match="nowhere finite"):
        make_expected(make_matmul(4), run)
    fine = make_expected(make_matmul(4), lambda inputs: [*inputs[:2], inputs[0] @ inputs[1]])
    assert not fine.facts.positive


def test_a_file_with_objects_in_it_is_not_opened(tmp_path: Path) -> None:
    """Reading one runs code."""
    Expected(SUM, {1: np.ones(4, np.float32)}).save(tmp_path / "one.npz")
    with np.load(tmp_path / "one.npz") as file:
        arrays = {**file, "arg1": np.array([{}], dtype=object)}
    np.savez(tmp_path / "two.npz", **arrays)
    with pytest.raises(ValueError, match="allow_pickle"):
        Expected.load(tmp_path / "two.npz")


def test_outputs_of_any_size_are_compared_with_their_largest_value() -> None:
    small = np.full(4, 1e-3, np.float32)
    expected = Expected(SUM, {1: small})
    assert not expected.difference([expected.inputs[0], small * np.float32(1.005)]).accepted
    bytes_ = Facts(["uint8"], [[2]], [8], 1, 2**-23)
    output = np.array([100, 50], np.uint8)
    assert Expected(bytes_, {0: output}).difference([output - 1]).accepted, "rounded the other way"
    zeros = Expected(bytes_, {0: np.zeros(2, np.uint8)})
    assert zeros.difference([np.array([0, 1], np.uint8)]).accepted
    assert not zeros.difference([np.array([0, 2], np.uint8)]).accepted


def test_the_argument_that_is_told_is_the_one_that_is_most_wrong() -> None:
    whole, parts = np.array([100, 50], np.int32), np.array([1.0, 0.5], np.float32)

    def told(epsilon: float, integers: Array, floats: Array) -> int:
        facts = Facts(["int32", "float32"], [[2], [2]], [8, 8], 1, epsilon)
        return Expected(facts, {0: whole, 1: parts}).difference([integers, floats]).argument

    assert told(0.0, whole + 1, parts) == 0, "no difference of integers is tolerated"
    assert told(2**-23, whole + 1, parts + np.float32(1e-3)) == 1
    exact = Facts(["int32", "int32"], [[2], [2]], [8, 8], 1, 0.0)
    expected = Expected(exact, {0: whole, 1: whole})
    assert expected.difference([whole, whole + 1]).argument == 1
    near = Facts(["int32", "float16"], [[2], [2]], [8, 8], 1, 0.0)
    assert Expected(near, {0: whole, 1: parts}).difference([whole, parts]).accepted


@pytest.mark.parametrize("mask", [-1e9, float(np.finfo(np.float32).min), 1e30, np.inf])
def test_a_mask_excuses_no_wrong_value_beside_it(mask: float) -> None:
    facts = Facts(["float32"], [[8, 16]], [8], 64, 2**-23)
    outputs = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    outputs[:, 3:] = mask
    expected = Expected(facts, {0: outputs})
    assert expected.difference([outputs * np.float32(1 - 1e-6)]).accepted
    wrong = outputs.copy()
    wrong[5, 1] += 0.02
    assert not expected.difference([wrong]).accepted
