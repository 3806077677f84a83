"""What machine_code.py counts in an assembly, and what it finds after so many seconds."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import polars as pl
import pytest

from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.features.table import save_features

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

ASSEMBLY = """
main:
\tpushq\t%rbp
\tvmovups\t(%rdi), %zmm0
.LBB0_1:
\txorl\t%eax, %eax
.LBB0_2:                                # the products
\tvfmadd231ps\t(%rsi){1to16}, %zmm0, %zmm1
\tvfmadd231ps\t32(%rsp), %ymm0, %ymm2
\tvfmadd231ss\t%xmm0, %xmm3, %xmm4
\taddq\t$4, %rsi
\tjne\t.LBB0_2
\tvaddps\t%zmm1, %zmm2, %zmm3
\tjne\t.LBB0_1
.LBB0_3:
\tvaddps\t%zmm1, %zmm2, %zmm3
\tjl\t.LBB0_3
\tcallq\texpf@PLT
\tretq
"""


@pytest.fixture
def machine_code(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import machine_code  # type: ignore[import-not-found]

    module: ModuleType = machine_code
    return module


def counts(machine_code: ModuleType, assembly: str) -> dict[str, float]:
    return dict(zip(machine_code.COLUMNS, machine_code.columns_of(assembly), strict=True))


def test_the_loop_with_the_most_products_is_counted(machine_code: ModuleType) -> None:
    columns = counts(machine_code, ASSEMBLY)
    assert columns["fmas"] == 3
    assert columns["length"] == 5
    assert columns["lanes_an_instruction"] == pytest.approx((16 + 8 + 1) / 5)
    assert columns["width"] == 16
    assert columns["loads"] == pytest.approx(2 / 3)
    assert columns["stack"] == pytest.approx(1 / 3)
    assert columns["broadcasts"] == pytest.approx(1 / 3)
    assert columns["loops"] == 3
    assert columns["calls"] == 1
    assert columns["all_length"] == 14


def test_code_without_a_loop_is_counted_whole(machine_code: ModuleType) -> None:
    columns = counts(machine_code, "main:\n\tvaddps %zmm1, %zmm2, %zmm3\n\tretq\n")
    assert (columns["length"], columns["fmas"], columns["width"]) == (2, 0, 1)


def test_what_is_found_is_the_best_of_those_that_were_measured_in_time(
    machine_code: ModuleType,
) -> None:
    found_after = machine_code.found_after
    latency, seconds = np.array([4.0, 2.0, 1.0]), np.ones(3)
    assert found_after(latency, seconds, 2.5) == 0.5
    assert found_after(latency, seconds, 3.0) == 1.0
    assert found_after(latency, seconds, 0.5) == 0.25  # nothing yet: as if the slowest


def test_columns_that_tell_the_latency_are_judged_better(
    machine_code: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Source columns here are noise, and one of the assembly is the speed."""
    monkeypatch.setattr(machine_code, "SEEDS", 1)
    monkeypatch.setattr(machine_code, "DRAWS", 50)
    rng = np.random.default_rng(0)
    ids = [f"p{number}" for number in range(96)]
    workloads = [f"w{number // 16}" for number in range(96)]
    latency = rng.uniform(1.0, 4.0, 96)
    records = pl.DataFrame(
        {
            "program_id": ids,
            "workload_id": workloads,
            "run_secs": [[seconds] for seconds in latency],
            "networks": [[{"network": f"n{number // 32}", "weight": 1}] for number in range(96)],
        }
    )
    spec = FeatureSpec(name="tiles", kind="tiles", columns=("a", "b"), options={})
    noise = rng.normal(size=(96, 2)).astype(np.float32)
    save_features(tmp_path / "features", spec, ids, workloads, Ragged(noise, np.arange(97)), [])
    code = dict.fromkeys(machine_code.COLUMNS, 1.0) | {"build_s": 0.1, "assembly_s": 0.02}
    assembly = pl.DataFrame([{"program_id": program, **code} for program in ids])
    path = tmp_path / "columns.parquet"
    assembly.with_columns(pl.Series("fmas", 1.0 / latency)).write_parquet(path)

    machine_code.judge(records, tmp_path / "features", path, 0.24)
    printed = capsys.readouterr().out
    rows = {
        cells[1].strip(): cells
        for cells in (line.split("|") for line in printed.splitlines())
        if len(cells) > 2
    }
    assert float(rows["assembly"][5]) > 0.8 > 0.6 > float(rows["source"][5])
    # All 16 are built before the first is run: 1.92 s.
    assert float(rows["1"][3]) < float(rows["1"][2])
    assert float(rows["3"][3]) > 0.95 > float(rows["1"][2])
