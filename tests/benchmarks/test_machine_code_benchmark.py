"""What machine_code.py counts in an assembly, and what it finds after so many seconds."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

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
