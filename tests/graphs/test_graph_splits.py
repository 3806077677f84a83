"""Divisions of graphs: nothing on both sides, the benchmark's own sizes and leak, and what cannot be divided."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from small_graphs import small_graphs
from tencost.config.composition import compose
from tencost.config.graphs import GraphSplitConfig, GraphSplitPolicy
from tencost.errors import SplitError
from tencost.networks.graph.graph_set import GraphSet, concatenate
from tencost.networks.graph.identity import shape_keys
from tencost.records.network_graphs.reading import read_folder
from tencost.splits.networks import GraphParts, divide_graphs, leaks, load_parts, save_parts

CG = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "cg"
GRAPHS = small_graphs({"aaa": 200, "bbb": 120, "ccc": 80}).graphs
BY_GRAPH, BY_FAMILY, BY_ORDER = GraphSplitPolicy


def with_copies(graphs: GraphSet, seed: int) -> GraphSet:
    """Return the graphs and copies of some of them in other families."""
    rng = np.random.default_rng(seed)
    copies = graphs.take(rng.integers(0, len(graphs), 150))
    return concatenate([graphs, replace(copies, family=rng.permutation(copies.family))])


def config(policy: GraphSplitPolicy, **values: object) -> GraphSplitConfig:
    shares = {"valid_fraction": 0.1, "test_fraction": 0.1}
    return GraphSplitConfig(policy=policy, **{**shares, **values})  # type: ignore[arg-type]


def keys_of(graphs: GraphSet, parts: GraphParts) -> dict[str, set[int]]:
    keys = shape_keys(graphs)
    return {name: set(keys[rows].tolist()) for name, rows in parts.items()}


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 100),
    salt=st.integers(0, 100),
    held_out=st.sampled_from([[], ["ccc"], ["aaa", "ccc"]]),
    per_family=st.sampled_from([None, 30]),
)
def test_no_graph_is_on_both_sides(
    seed: int, salt: int, held_out: list[str], per_family: int | None
) -> None:
    graphs = with_copies(GRAPHS, seed)
    policy = BY_FAMILY if held_out else BY_GRAPH
    parts = divide_graphs(
        graphs, config(policy, test_families=held_out, seed=salt, per_family=per_family)
    )
    found = keys_of(graphs, parts)
    assert not (found["train"] | found["valid"]) & (found["test"] | found["test_ood"])
    assert not found["train"] & found["valid"]
    assert len(leaks(graphs, parts)) == 0
    rows = np.concatenate([rows for _, rows in parts.items()])
    assert len(np.unique(rows)) == len(rows)
    assert parts.test_ood.tolist() == np.flatnonzero(np.isin(graphs.family, held_out)).tolist()
    if not held_out and per_family is None:
        assert len(rows) == len(graphs)


def test_shares_of_every_family() -> None:
    parts = divide_graphs(GRAPHS, config(BY_GRAPH))
    for family in ("aaa", "bbb", "ccc"):
        own = GRAPHS.family == family
        for rows in (parts.valid, parts.test):
            assert 0.02 < own[rows].sum() / own.sum() < 0.2
    assert parts.test_ood.tolist() == []


def test_a_graph_keeps_its_side_when_the_dataset_grows() -> None:
    some = np.arange(0, len(GRAPHS), 2)
    fewer = divide_graphs(GRAPHS.take(some), config(BY_GRAPH))
    whole = divide_graphs(GRAPHS, config(BY_GRAPH))
    for (_, ours), (_, theirs) in zip(fewer.items(), whole.items(), strict=True):
        assert some[ours].tolist() == np.intersect1d(theirs, some).tolist()
    other = divide_graphs(GRAPHS, config(BY_GRAPH, seed=1))
    assert other.test.tolist() != whole.test.tolist()


def test_some_families_take_part() -> None:
    parts = divide_graphs(GRAPHS, config(BY_GRAPH, families=["bbb"]))
    rows = np.concatenate([rows for _, rows in parts.items()])
    assert set(GRAPHS.family[rows].tolist()) == {"bbb"}
    parts = divide_graphs(GRAPHS, config(BY_FAMILY, families=["bbb"], test_families=["ccc"]))
    assert set(GRAPHS.family[parts.train].tolist()) == {"bbb"}
    assert set(GRAPHS.family[parts.test_ood].tolist()) == {"ccc"}


def test_a_cap_counts_what_is_learnt_from_and_chosen_by() -> None:
    whole = divide_graphs(GRAPHS, config(BY_GRAPH))
    parts = divide_graphs(GRAPHS, config(BY_GRAPH, per_family=40))
    assert parts.test.tolist() == whole.test.tolist()
    for name in ("train", "valid"):
        assert set(getattr(parts, name).tolist()) <= set(getattr(whole, name).tolist())
    for family in ("aaa", "bbb", "ccc"):
        rows = np.concatenate([parts.train, parts.valid])
        assert (GRAPHS.family[rows] == family).sum() == 40
    fewer = divide_graphs(GRAPHS, config(BY_GRAPH, per_family=20))
    assert set(fewer.train.tolist()) <= set(parts.train.tolist())


def test_the_benchmarks_own_is_by_position() -> None:
    parts = divide_graphs(GRAPHS, config(BY_ORDER, families=["aaa", "bbb"], test_families=["ccc"]))
    assert parts.train.tolist() == [*range(180), *range(200, 308)]
    assert parts.valid.tolist() == [*range(180, 190), *range(308, 314)]
    assert parts.test.tolist() == [*range(190, 200), *range(314, 320)]
    assert parts.test_ood.tolist() == list(range(320, 328))


def test_a_leak_is_found() -> None:
    twice = GRAPHS.take([*range(199), 0, *range(200, 400)])
    twice.position[199] = 199
    parts = divide_graphs(twice, config(BY_ORDER, families=["aaa"], test_families=["ccc"]))
    assert leaks(twice, parts).tolist() == [199]


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        (
            config(BY_GRAPH, families=["zzz"]),
            r"split\.families must name families .*aaa, bbb",
        ),
        (config(BY_FAMILY, test_families=["zzz"]), r"split\.test_families must name .* zzz"),
        (config(BY_FAMILY), "expected at least one of the .*test_families"),
        (config(BY_ORDER), "expected at least one of the .*test_families"),
        (config(BY_GRAPH, test_families=["aaa"]), "expected no split.test_families"),
        (config(BY_FAMILY, families=["aaa"], test_families=["aaa"]), "expected no family in both"),
        (config(BY_ORDER, test_families=["aaa"], per_family=5), "expected no .*per_family"),
        (config(BY_FAMILY, test_families=["aaa", "bbb", "ccc"]), "the part train .* is empty"),
        (config(BY_GRAPH, test_fraction=1e-9), "the part test .* is empty"),
        (config(BY_GRAPH, valid_fraction=1e-9), "the part valid .* is empty"),
    ],
)
def test_what_cannot_be_divided(chosen: GraphSplitConfig, reason: str) -> None:
    with pytest.raises(SplitError, match=reason):
        divide_graphs(GRAPHS, chosen)


def test_a_division_on_disk(tmp_path: Path) -> None:
    parts = divide_graphs(GRAPHS, config(BY_FAMILY, test_families=["ccc"]))
    for name in ("first", "again"):
        save_parts(tmp_path / name, GRAPHS, parts)
        for (_, found), (_, saved) in zip(
            load_parts(tmp_path / name, GRAPHS).items(), parts.items(), strict=True
        ):
            assert found.dtype == np.int64
            np.testing.assert_array_equal(found, saved)
    first, again = (tmp_path / name / "parts.parquet" for name in ("first", "again"))
    assert first.read_bytes() == again.read_bytes()
    with pytest.raises(SplitError, match="found the ids of others"):
        load_parts(tmp_path / "first", GRAPHS.take(range(len(GRAPHS))[::-1]))
    with pytest.raises(SplitError, match="expected rows of 10 graphs in order"):
        load_parts(tmp_path / "first", GRAPHS.take(range(10)))
    with pytest.raises(SplitError, match="found nothing"):
        load_parts(tmp_path, GRAPHS)
    pl.read_parquet(first).with_columns(part=pl.lit("tests")).write_parquet(first)
    with pytest.raises(SplitError, match="expected rows of"):
        load_parts(tmp_path / "first", GRAPHS)
    pl.read_parquet(first).drop("graph_id").write_parquet(first)
    with pytest.raises(SplitError, match="expected row, graph_id, part"):
        load_parts(tmp_path / "first", GRAPHS)
    first.write_bytes(again.read_bytes()[:-20])
    with pytest.raises(SplitError, match="to be whole"):
        load_parts(tmp_path / "first", GRAPHS)


@pytest.mark.slow
def test_the_benchmark() -> None:
    if not CG.is_dir():
        pytest.skip(f"the benchmark's 16 MB are not at {CG}")
    graphs = read_folder(CG).labelled.graphs
    own = divide_graphs(graphs, compose(["graph_split=cg"])[0].graph_split)
    assert [len(rows) for _, rows in own.items()] == [9_000, 500, 500, 600]
    leaked = leaks(graphs, own)
    assert set(graphs.family[leaked].tolist()) == {"nasbench201s"}
    assert len(leaked) == 39
    listed = [
        {(one.columns.tobytes(), one.edges.tobytes()) for one in graphs.take(rows).batches(1)}
        for rows in (own.train, leaked)
    ]
    tested = graphs.take(leaked).batches(1)
    assert sum((one.columns.tobytes(), one.edges.tobytes()) in listed[0] for one in tested) == 17
    for policy in ("by_graph", "by_family"):
        fair = divide_graphs(graphs, compose([f"graph_split={policy}"])[0].graph_split)
        assert len(leaks(graphs, fair)) == 0
        assert len(fair.test) > 900
