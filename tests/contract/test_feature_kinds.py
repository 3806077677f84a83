"""One contract for every feature kind: what the features stage, the summaries, train and tune may rely on."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tencost.config import FeaturesConfig
from tencost.config.parts import FAMILIES, FEATURE_KINDS
from tencost.errors import BundleError, ConfigError, FeatureError
from tencost.features.extractor import make_extractor, spec_for
from tencost.features.parallel import featurize_chunk
from tencost.features.rows.kind import Chunk, FeatureKind, kind_of
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.features.rows.summary import (
    constants,
    num_constant_columns,
    summarize_programs,
    summary_names,
    with_derived,
)
from tencost.models.programs.bundle import BundleInfo, load_bundle, plain_config, save_bundle
from tencost.models.programs.bundle.calibration import Calibration
from tencost.models.programs.ranker import Samples, make_ranker
from tencost.store.record import PROGRAM_FORMATS

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "tencost"
KINDS: dict[str, FeatureKind] = FEATURE_KINDS.all()
LIVE = [name for name, kind in KINDS.items() if kind.live is not None]
UNREADABLE = ("[]", "{}", "[[], 1]", "no JSON")
"""Texts that are no program of any format."""

UNLOWERABLE = """
# from tvm.script import tirx as T
@T.prim_func(s_tir=True)
def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for i in T.thread_binding(64, thread="strange.x"):
        with T.sblock("T_add"):
            v = T.axis.spatial(64, i)
            B[v] = A[v] + T.float32(1)
"""
"""A candidate without a single primitive and with a thread tag that TVM does not know."""

every_kind = pytest.mark.parametrize("name", KINDS)
every_format = pytest.mark.parametrize(
    ("name", "program_format"),
    [(name, text) for name, kind in KINDS.items() for text in kind.program_formats],
)


def spec_of(name: str, **settings: Any) -> FeatureSpec:
    return spec_for(FeaturesConfig(name=name, kind=name, **{**KINDS[name].for_tests, **settings}))


def chunk_of(programs: list[str], mod_json: str) -> Chunk:
    names = tuple(f"p{index}" for index in range(len(programs)))
    return Chunk("w", mod_json, '{"kind": "llvm", "num-cores": 1}', names, tuple(programs))


def ansor_chunk() -> Chunk:
    programs = [
        [["SP", 2, 0, 512, [threads, 4], 1], ["AN", 2, 1, 6], ["CHW", 3, "local"]]
        for threads in (2, 8, 32)
    ]
    about = {"workload": "auto_scheduler.layer", "args": []}
    return chunk_of([json.dumps(steps) for steps in programs], json.dumps(about))


def autotvm_chunk() -> Chunk:
    programs = [{"entity": [["tile_x", "sp", [-1, tile]], ["unroll", "ot", 1]]} for tile in (2, 4)]
    about = {"workload": "autotvm.dense.gpu", "args": [["TENSOR", [64, 512], "float32"], [1, 1]]}
    return chunk_of([json.dumps(program) for program in programs], json.dumps(about))


def configuration_chunk() -> Chunk:
    programs = [{"tile": tile, "layout": "NHWC", "use_padding": False} for tile in (2, 4)]
    about = {"workload": "t4.blur", "args": [4096, 4096]}
    return chunk_of([json.dumps(program) for program in programs], json.dumps(about))


@pytest.fixture(scope="module")
def chunks(matmul: Any, candidates: list[Any]) -> dict[str, Chunk]:
    """Some programs of each format that a kind reads."""
    from tvm.ir import save_json

    from tencost.programs.trace.instructions import trace_values

    texts = [json.dumps(trace_values(one.sch.trace)) for one in candidates[:4]]
    return {
        "metaschedule_trace": chunk_of(texts, str(save_json(matmul))),
        "ansor_steps": ansor_chunk(),
        "autotvm_config": autotvm_chunk(),
        "configuration": configuration_chunk(),
    }


@pytest.fixture(scope="module")
def stored(chunks: dict[str, Chunk], cpu_intrinsics: None) -> Callable[..., Ragged]:
    """The rows that a kind makes of programs of a format, by default the first that it reads."""

    def make(name: str, program_format: str = "") -> Ragged:
        spec = spec_of(name)
        found = featurize_chunk(spec, chunks[program_format or KINDS[name].program_formats[0]])
        assert [one.reason for one in found] == [""] * len(found)
        blocks = [one.rows for one in found if one.rows is not None]
        return Ragged.from_blocks(blocks, len(spec.columns))

    return make


@every_kind
def test_it_describes_itself(name: str) -> None:
    kind, spec = KINDS[name], spec_of(name)
    assert isinstance(kind, FeatureKind)
    assert kind_of(spec) is kind
    assert len(set(spec.columns)) == len(spec.columns) > 0
    assert (
        set(spec.options) == set(kind.options) <= {field.name for field in fields(FeaturesConfig)}
    )
    assert set(kind.for_tests) <= set(kind.options)
    assert set(kind.program_formats) <= set(PROGRAM_FORMATS)
    assert FeatureSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert kind.parts.keys() <= KINDS.keys()


@pytest.mark.tvm
@every_format
def test_rows_are_of_the_columns_named(
    name: str, program_format: str, stored: Callable[..., Ragged]
) -> None:
    rows = stored(name, program_format)
    assert rows.num_columns == len(spec_of(name).columns)
    assert rows.values.dtype == np.float32
    assert np.isfinite(rows.values).all()
    assert (rows.lengths >= 1).all()
    if KINDS[name].one_row:
        assert (rows.lengths == 1).all()
    else:
        assert (rows.lengths > 1).any()


@pytest.mark.tvm
@every_format
def test_the_same_program_gives_the_same_rows_alone_and_in_a_batch(
    name: str, program_format: str, stored: Callable[..., Ragged], chunks: dict[str, Chunk]
) -> None:
    rows, chunk = stored(name, program_format), chunks[program_format]
    assert stored(name, program_format).values.tobytes() == rows.values.tobytes()
    for index, program in enumerate(chunk.programs):
        (alone,) = featurize_chunk(spec_of(name), chunk_of([program], chunk.mod_json))
        assert alone.rows is not None
        assert alone.rows.tobytes() == rows[index].tobytes()


@pytest.mark.tvm
@every_format
def test_a_program_that_cannot_be_read_has_a_reason_and_stops_nothing(
    name: str, program_format: str, stored: Callable[..., Ragged], chunks: dict[str, Chunk]
) -> None:
    rows, chunk = stored(name, program_format), chunks[program_format]
    mixed = [chunk.programs[0], *UNREADABLE, chunk.programs[1]]
    first, *broken, last = featurize_chunk(spec_of(name), chunk_of(mixed, chunk.mod_json))
    assert [one.rows for one in broken] == [None] * len(UNREADABLE)
    assert all(one.reason for one in broken)
    assert first.rows is not None
    assert last.rows is not None
    assert first.rows.tobytes() == rows[0].tobytes()
    assert last.rows.tobytes() == rows[1].tobytes()


@pytest.mark.tvm
@pytest.mark.parametrize("name", LIVE)
def test_a_live_candidate_gives_what_its_text_gives(
    name: str, stored: Callable[[str], Ragged], context: Any, candidates: list[Any]
) -> None:
    import tvm
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

    rows = stored(name)
    extractor = make_extractor(spec_of(name))
    broken = Schedule(tvm.IRModule({"main": tvm.script.from_source(UNLOWERABLE)}), debug_mask=0)
    mixed = [*candidates[:2], MeasureCandidate(broken, []), *candidates[2:4]]
    live = extractor.extract(context, mixed)
    assert live.take(np.array([0, 1, 3, 4])).values.tobytes() == rows.values.tobytes()
    assert live.lengths[2] == 0
    for index in range(2):
        alone = extractor.extract(context, [candidates[index]])
        assert alone.values.tobytes() == rows[index].tobytes()


@pytest.mark.parametrize("name", [name for name in KINDS if name not in LIVE])
def test_what_a_search_has_no_candidates_of_is_refused_by_name(name: str) -> None:
    with pytest.raises(FeatureError, match=f"found {name} of kind {name}, which reads stored"):
        make_extractor(spec_of(name))


@pytest.mark.tvm
@every_kind
@pytest.mark.parametrize("device", [(), ("device_log2_cores", "device_log2_l2_kib")])
def test_a_summary_is_one_named_row(
    name: str, device: tuple[str, ...], stored: Callable[[str], Ragged]
) -> None:
    rows, spec = stored(name), spec_of(name)
    rows = rows.with_columns(np.ones((len(rows), len(device)), np.float32))
    spec = replace(spec, columns=(*spec.columns, *device), device_columns=device)
    names = summary_names(spec)
    assert len(set(names)) == len(names)
    found = summarize_programs(rows, spec)
    assert found.shape == (len(rows), len(names))
    assert found.dtype == np.float32
    if KINDS[name].one_row:
        assert names == list(spec.columns)
        np.testing.assert_array_equal(found, rows.values)
    for index in range(len(rows)):
        alone = summarize_programs(rows.take(np.array([index])), spec)
        assert alone.tobytes() == found[index].tobytes()
    none = Ragged(np.zeros((0, rows.num_columns), np.float32), np.zeros(2, np.int64))
    assert np.isnan(summarize_programs(none, spec)).all()


@pytest.mark.tvm
@every_kind
def test_constant_columns_are_constant_and_derived_ones_join_each_row(
    name: str, stored: Callable[[str], Ragged]
) -> None:
    rows, spec = stored(name), spec_of(name)
    number = num_constant_columns(spec)
    told = constants(rows, spec)
    assert told.shape == (len(rows), number)
    for index in range(len(rows)):
        trailing = rows[index][:, len(spec.columns) - number :]
        np.testing.assert_array_equal(trailing, np.tile(told[index], (len(trailing), 1)))
    wide = with_derived(rows, spec)
    np.testing.assert_array_equal(wide.values[:, : rows.num_columns], rows.values)
    np.testing.assert_array_equal(wide.offsets, rows.offsets)
    assert (wide.num_columns > rows.num_columns) == (KINDS[name].derived is not None)


@pytest.mark.tvm
@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.parts])
def test_a_joined_kind_holds_the_rows_of_its_parts(
    name: str, stored: Callable[[str], Ragged]
) -> None:
    rows, spec = stored(name), spec_of(name)
    first, *appended = KINDS[name].parts
    assert [*spec.columns] == [
        column for part in KINDS[name].parts.values() for column in part.columns(spec.options)
    ]
    for part in (first, *appended):
        places = spec.positions(spec_of(part).columns)
        assert places is not None
        expected = stored(part)
        for index in range(len(rows)):
            seen = rows[index][:, places]
            wanted = expected[index] if part == first else np.tile(expected[index], (len(seen), 1))
            np.testing.assert_array_equal(seen, wanted)


def test_an_unknown_kind_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match=r"features.kind must be one of .*tiles.*, found 'tilse'"):
        FeaturesConfig(name="x", kind="tilse")
    values = {**spec_of("tiles").to_dict(), "kind": "tilse"}
    with pytest.raises(FeatureError, match=r"found 'tilse'.*another package"):
        FeatureSpec.from_dict(values)


def test_the_table_is_light() -> None:
    code = (
        "import sys; from tencost.config.parts import FEATURE_KINDS; "
        "import tencost.features.rows.summary, tencost.features.extractor; "
        "settings = {'max_steps': 8, 'vocabulary_buckets': 4, 'max_numbers': 4}; "
        "assert all(kind.columns(settings) for kind in FEATURE_KINDS.all().values()); "
        "heavy = {'tvm', 'tvm_ffi', 'torch', 'polars', 'pyarrow', 'xgboost', 'mlflow'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def compared_names(path: Path) -> set[str]:
    """Return the strings that a module compares something called `kind` with, or looks it up among."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            texts = [
                one for side in sides for one in ast.walk(side) if isinstance(one, ast.Constant)
            ]
            named = [one for side in sides for one in ast.walk(side)]
            if any(getattr(one, "attr", getattr(one, "id", "")) == "kind" for one in named):
                found |= {str(one.value) for one in texts}
        elif isinstance(node, ast.MatchValue) and isinstance(node.value, ast.Constant):
            found.add(str(node.value.value))
    return found


def test_nothing_but_the_table_asks_what_a_kind_is_called() -> None:
    asked = {
        str(path.relative_to(SOURCE)): names
        for path in SOURCE.rglob("*.py")
        if SOURCE / "features" / "kinds" not in path.parents
        and (names := compared_names(path) & KINDS.keys())
    }
    assert asked == {}, (
        "ask what the kind says of itself (tencost.features.rows.kind), not its name"
    )


def samples_of(columns: int) -> Samples:
    generator = np.random.default_rng(0)
    values = generator.uniform(0, 9, (40, columns)).astype(np.float32)
    label = (values[:, 0] / values[:, 0].max()).astype(np.float32)
    names = np.asarray([f"r{index}" for index in range(len(label))])
    rows = Ragged(values, np.arange(len(label) + 1))
    return Samples(rows, label, np.repeat(np.arange(2), 20), 1 / label.astype(np.float64), names)


@pytest.mark.parametrize("kind", ["ansor_tiles", "configuration"])
@pytest.mark.parametrize("family", ["xgb", "mlp", "blend"])
def test_a_bundle_of_another_summary_is_refused(family: str, kind: str, tmp_path: Path) -> None:
    """Before these kinds were their own summary, first, sum and maximum of their one row were trained on."""
    spec = spec_of(kind)
    config, samples = FAMILIES.load(family).for_tests, samples_of(len(spec.columns))
    for name, made_as in (("before", spec_of("trace").kind), ("now", kind)):
        ranker = make_ranker(config, replace(spec, kind=made_as, options={}))
        ranker.fit(samples, samples, seed=0, log=lambda *_: None)
        info = BundleInfo(
            family=family,
            model_config=plain_config(config),
            feature_spec=spec,
            hardware="toy",
            target_kind="cuda",
            label="fastest / latency",
            calibration=Calibration(),
            tvm_range=("0.27.0", "0.28.0"),
            dataset="toy",
            dataset_hash="d",
            split="by_task",
            split_hash="5",
            seed=0,
        )
        save_bundle(tmp_path / name, ranker, info)
    width = len(spec.columns)
    before = (
        f"expected a model of {width} columns a program, .*{kind}.* found one of {3 * width + 1}"
    )
    with pytest.raises(BundleError, match=before):
        load_bundle(tmp_path / "before")
    scores = load_bundle(tmp_path / "now").scores(samples.features)
    assert len(np.unique(scores)) > 1


LENGTHS = '''
"""`lengths`: one row a program, how many instructions and decisions its trace has."""

import numpy as np

from tencost.features.rows.kind import FeatureKind
from tencost.features.rows.texts import stored_programs

COLUMNS = ("num_instructions", "num_decisions")


def row(trace):
    instructions, decisions = trace
    return np.array([[len(instructions), len(decisions)]], np.float32)


KIND = FeatureKind(
    columns=lambda options: COLUMNS,
    one_row=True,
    program_format="metaschedule_trace",
    stored=lambda spec: stored_programs(spec, row),
)
'''
USE = """
import sys
from pathlib import Path

from tencost.config.composition import compose
from tencost.features import stage
from tencost.features.rows.summary import summary_names
from tencost.features.table import load_features

if __name__ == "__main__":
    cfg, _ = compose(["dataset.name=toy", "features=tiles", "features.name=mine", "features.kind=lengths"])
    table = load_features(stage.run(cfg, Path(sys.argv[1])))
    print(table.spec.kind, summary_names(table.spec), table.features.values.tolist(), list(table.program_id))
"""


def test_another_package_adds_a_kind(tmp_path: Path, toy_project: Path) -> None:
    """An installed package with an entry point: `tencost features` makes its features, others find them."""
    import polars as pl

    site = tmp_path / "site"
    (site / "my_kinds").mkdir(parents=True)
    (site / "my_kinds" / "__init__.py").touch()
    (site / "my_kinds" / "lengths.py").write_text(LENGTHS)
    about = site / "my_kinds-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-kinds\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[tencost.feature_kinds]\nlengths = my_kinds.lengths\n")
    script = tmp_path / "use.py"
    script.write_text(USE)
    workloads = pl.DataFrame({"workload_id": [f"w{n}" for n in range(5)], "mod_json": ["{}"] * 5})
    workloads.write_parquet(toy_project / "data" / "records" / "toy" / "workloads.parquet")

    def use(path: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(
            [sys.executable, str(script), str(toy_project)],
            capture_output=True, text=True, check=False, cwd=ROOT, env=environment,
        )  # fmt: skip

    done = use(str(site))
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()[-1]
    assert told.startswith("lengths ['num_instructions', 'num_decisions'] [[0.0, 0.0], ")
    assert told.count("p0-") == 12
    without = use("")
    assert without.returncode != 0
    assert "features.kind must be one of ansor_steps, " in without.stderr
