"""The code generator of a record: how it is told, which one answers, and how older stores get theirs."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from tencost.errors import RecordError
from tencost.programs.codegen.vector_math import VERSION
from tencost.records.databases import import_dataset
from tencost.records.fetch.unpack import unpack
from tencost.records.query_tables import Tables
from tencost.store.generator import MATH_SINCE, UNKNOWN, age, generator, inferred, preferred
from tencost.store.ids import record_id
from tencost.store.migration import migrate_store
from tencost.store.reading import of_preferred_generator
from tencost.store.record import NetworkWeight, Provenance, Record, Source
from tencost.store.record_store import RecordStore
from tencost.store.status import Status

TARGET = {"kind": "llvm", "mcpu": "x86-64-v4"}
LIBM = generator(0, "0.27.0.post1", 22)
VECTORS = generator(1, "0.27.0.post1", 22)
WHOLE_ERF = generator(2, "0.27.0.post1", 22)
ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
HARDWARE = "epyc-avx512-1c"


def record(program: str, seconds: float, made_by: str, when: float = 1.0) -> Record:
    return Record(
        record_id=record_id(program, TARGET, "cpu", made_by),
        program_id=program,
        workload_id="w",
        task_name="softmax",
        networks=(NetworkWeight("net", 1),),
        hardware="cpu",
        target=TARGET,
        program_format="metaschedule_trace",
        program="[[],[]]",
        run_secs=(seconds,),
        status=Status.ok,
        error="",
        source=Source("set", "file.json", 1),
        provenance=Provenance(timestamp=when),
        generator=made_by,
    )


def test_an_unknown_generator_is_no_part_of_the_id() -> None:
    assert record_id("p", TARGET, "cpu", UNKNOWN) == record_id("p", TARGET, "cpu")
    # By hand: the id of before there were generators.
    text = '["p","{\\"kind\\":\\"llvm\\",\\"mcpu\\":\\"x86-64-v4\\"}","cpu"]'
    assert record_id("p", TARGET, "cpu") == hashlib.sha256(text.encode()).hexdigest()[:32]
    assert len({record_id("p", TARGET, "cpu", one) for one in (UNKNOWN, LIBM, VECTORS)}) == 3


def test_newer_versions_are_newer() -> None:
    old = generator(1, "0.9.1", 22)
    assert sorted([WHOLE_ERF, VECTORS, UNKNOWN, old, LIBM], key=age) == [
        UNKNOWN, LIBM, old, VECTORS, WHOLE_ERF,
    ]  # fmt: skip
    assert age(generator(1, "0.27.0.post1", 9)) < age(VECTORS)


def test_the_newest_generator_with_enough_programs_is_preferred() -> None:
    assert preferred({LIBM: 100, VECTORS: 8}) == VECTORS
    assert preferred({LIBM: 100, VECTORS: 7}) == LIBM
    assert preferred({LIBM: 7, VECTORS: 6}) == LIBM
    assert preferred({UNKNOWN: 3, VECTORS: 3}) == VECTORS


@pytest.mark.parametrize(
    ("kind", "engine", "config", "info", "when", "expected"),
    [
        ("llvm", "0.27.0.post1", {"tencost": "0.1.0", "llvm": 22}, None, 1.9e9, LIBM),
        ("llvm", "0.27.0.post1", {"tencost": "0.2.0", "llvm": 22}, None, 1795351091.0, LIBM),
        ("llvm", "0.27.0.post1", {"tencost": "0.2.0", "llvm": 22}, None, 1795351092.0, VECTORS),
        ("llvm", "0.27.0.post1", {"tencost": "0.2.0", "llvm": 22}, None, 1795816741.0, VECTORS),
        ("llvm", "0.27.0.post1", {"tencost": "0.2.0", "llvm": 22}, None, 1795816742.0, WHOLE_ERF),
        ("llvm", "0.27.0.post1", {"population": 9}, {"tencost": "0.2.0"}, 1.9e9, WHOLE_ERF),
        ("llvm", "0.27.0.post1", {"tencost": "0.2.0", "vector_math": 1}, None, 1.9e9, WHOLE_ERF),
        ("llvm", "0.27.0.post1", {"tencost": "0.2.0", "vector_math": 1}, None, None, VECTORS),
        ("llvm", "0.27.0.post1", {"tencost": "0.3", "vector_math": 0}, None, 1.9e9, LIBM),
        (
            "llvm",
            "0.27.0.post1",
            {"tencost": "0.3", "vector_math": 3},
            None,
            1.9e9,
            generator(3, "0.27.0.post1", 22),
        ),
        (
            "llvm",
            "0.27.0.post1",
            {"tencost": "0.3", "llvm": 22, "vector_math": 1},
            None,
            1.0,
            VECTORS,
        ),
        ("llvm", "0.27.0.post1", {"apache-tvm-ffi": "0.1.14.post1"}, None, None, LIBM),
        ("cuda", "0.27.0.post1", {"tencost": "0.2.0", "llvm": 22}, None, 1.9e9, LIBM),
        ("llvm", "0.27.0.post1", {"tencost": "0.2.0", "llvm": 22}, None, None, UNKNOWN),
        ("llvm", "0.12.0", {"trials": 64}, None, 1.9e9, UNKNOWN),
        ("llvm", None, {"tencost": "0.2.0"}, None, 1.9e9, UNKNOWN),
        ("llvm", "0.27.0.post1", "[]", "no json", 1.9e9, UNKNOWN),
    ],
)
def test_what_a_record_tells_of_its_generator(
    kind: str, engine: str | None, config: object, info: object, when: float | None, expected: str
) -> None:
    as_text = [json.dumps(one) if isinstance(one, dict) else one for one in (config, info)]
    for first, second in ((config, info), as_text):
        assert inferred(kind, engine, first, second, when) == expected  # type: ignore[arg-type]


def test_workers_of_today_are_of_the_newest_version_that_is_told_by_time() -> None:
    assert len(MATH_SINCE) == VERSION, "a version without the time of its commit"
    assert sorted(MATH_SINCE) == [*MATH_SINCE]


def test_programs_of_two_generators_are_two_records_and_one_answers(tmp_path: Path) -> None:
    store = RecordStore(str(tmp_path / "store"))
    old = [record(f"p{number}", 1e-3, LIBM) for number in range(9)]
    new = [record(f"p{number}", 2e-5, VECTORS) for number in range(7)]
    assert store.write([*old, *new]) == 16

    def times(**named: str) -> list[set[float]]:
        at = {"hardware": "cpu", "target": TARGET}
        tables = Tables(store)
        return [
            set(store.best("w", **at, n=99, **named)["run_secs"].list.first()),  # type: ignore[arg-type]
            set(store.lookup("w", **at, **named)["run_secs"].list.first()),  # type: ignore[arg-type]
            set(
                tables.fastest("cpu", TARGET, 99, ["record_id", "run_secs"], **named)[
                    "run_secs"
                ].list.first()
            ),
        ]

    assert times() == [{1e-3}] * 3  # seven programs of the newer one are not enough
    assert times(generator=VECTORS) == [{2e-5}] * 3
    assert store.write([record("p7", 2e-5, VECTORS)]) == 1
    assert times() == [{2e-5}] * 3
    assert times(generator=LIBM) == [{1e-3}] * 3
    rows = of_preferred_generator(store.read())
    assert rows["generator"].unique().to_list() == [VECTORS]
    with pytest.raises(RecordError, match=r"expected a code generator of the records.*math-1 tvm"):
        Tables(store).compare_generator("math-7")


def test_a_build_without_generators_is_one_group() -> None:
    rows = pl.DataFrame({"workload_id": ["w"] * 2, "hardware": "a", "status": "ok"})
    assert of_preferred_generator(rows).equals(rows)


def mixed_store(tmp_path: Path) -> RecordStore:
    """Records of two archives as version 3 kept them (golden/make_mixed_store.py)."""
    folder = tmp_path / "mixed"
    shutil.copytree(GOLDEN / "store-before-generators", folder)
    return RecordStore(str(folder))


def test_a_migrated_store_divides_what_two_generators_made(tmp_path: Path) -> None:
    store = mixed_store(tmp_path)
    before = store.read()
    assert set(before["generator"]) == {UNKNOWN}
    both = before.filter(pl.col("measurements").is_not_null())
    assert both.height
    planned = migrate_store(store.uri, dry_run=True)
    assert store.read().equals(before)
    done = migrate_store(store.uri)
    assert done == planned
    assert done.records == before.height
    after = store.read()
    assert set(done.generators) == {LIBM, VECTORS} == set(after["generator"])
    assert sum(done.generators.values()) == after.height == before.height + done.divided
    assert set(after["alias"]) == set(before["record_id"])
    # Every run is there once, and no record has times of two generators.
    assert sorted(after["run_secs"].explode()) == sorted(before["run_secs"].explode())
    for row in after.iter_rows(named=True):
        of_part = LIBM if row["source"]["dataset"] == "tencost-epyc" else VECTORS
        assert row["generator"] == of_part
        target = json.loads(row["target"])
        assert row["record_id"] == record_id(row["program_id"], target, HARDWARE, row["generator"])
    assert migrate_store(store.uri).records == 0
    assert store.read().equals(after)


def test_a_store_that_is_not_migrated_is_read_and_not_written_to(tmp_path: Path) -> None:
    store = mixed_store(tmp_path)
    assert store.read().height
    with pytest.raises(RecordError, match=r"tencost records migrate --store .*mixed"):
        store.write([record("p", 1e-3, VECTORS)])
    migrate_store(store.uri)
    assert store.write([record("p", 1e-3, VECTORS)]) == 1


@pytest.mark.slow
def test_an_archive_adds_nothing_to_the_store_that_was_migrated(tmp_path: Path) -> None:
    store = mixed_store(tmp_path)
    migrate_store(store.uri)
    part = "tencost-epyc-variants-3"
    unpack(ROOT / "datasets" / f"{part}.tar.zst", tmp_path / part)
    held = store.read()
    ids = set(held["record_id"])
    again = [one for one in import_dataset(tmp_path / part, part).records if one.record_id in ids]
    assert len(again) == held.filter(pl.col("source").struct.field("dataset") == part).height > 5
    assert store.write(again) == 0
