"""The programs that measure this host's roofs compute what they say, and are timed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tencost.config import HardwareConfig
from tencost.errors import ProfileError
from tencost.tune.roofline.host_roofs import (
    DEPTH,
    ROWS,
    TILES,
    VECTORS,
    inner_loop,
    measure_roofs,
    sums,
)

pytestmark = pytest.mark.tvm


def ran(mod: Any, target: dict[str, Any], *inputs: Any, shape: tuple[int, ...]) -> Any:
    import tvm

    tensors = [tvm.runtime.tensor(np.asarray(one, np.float32)) for one in inputs]
    out = tvm.runtime.tensor(np.full(shape, 7.0, np.float32))
    tvm.compile(mod, target=tvm.target.Target(target)).jit()["main"](*tensors, out)
    return out.numpy()


@pytest.mark.parametrize("lanes", [4, 16])
def test_the_inner_loop_is_a_matmul(lanes: int, target: dict[str, Any]) -> None:
    draw = np.random.default_rng(0)
    a, b = draw.random((DEPTH, ROWS)), draw.random((DEPTH, VECTORS * lanes))
    shape = (TILES, ROWS, VECTORS * lanes)
    found = ran(inner_loop(lanes), target, a, b, shape=shape)
    np.testing.assert_allclose(found, np.broadcast_to(a.T @ b, shape), rtol=1e-5)


def test_the_sums_go_over_all_of_both_arrays(target: dict[str, Any]) -> None:
    x, s = np.arange(128.0), np.arange(1.0, 6.0)
    np.testing.assert_allclose(ran(sums(128, 5, 8), target, x, s, shape=(128,)), 15 * x)


def test_the_roofs_of_this_host(target: dict[str, Any]) -> None:
    hardware = HardwareConfig(
        name="here", target=target, simd_bits=128, l1d_kib=16, l2_kib=128, l3_kib=0
    )
    roofs = measure_roofs(hardware)
    assert [level.name for level in roofs.levels] == ["L1", "L2", "memory"]
    assert roofs.levels[-1].size == math.inf
    assert roofs.flops is not None
    assert roofs.flops > 0
    assert all(level.bandwidth > 0 for level in roofs.levels)
    assert 0 < roofs.floor_s < 1
    with pytest.raises(ProfileError, match="expected one core, found 2"):
        measure_roofs(HardwareConfig(name="here", target=target, cores=2))
