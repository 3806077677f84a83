"""The tuned network: compiled with the database's best programs, checked against PyTorch, timed against untuned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tencost.errors import TuneError
from tencost.measure.networks import Array, Network

TOLERANCE = 1e-4
"""Largest difference from PyTorch's output that is accepted, relative to the output's largest value."""
_MAX_TIMING_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far an output is from what PyTorch computes.

    Attributes:
        max_abs: largest absolute difference.
        max_rel: that, divided by the largest absolute value that PyTorch computes.
    """

    max_abs: float
    max_rel: float

    @property
    def accepted(self) -> bool:
        """Whether it is within TOLERANCE."""
        return self.max_rel <= TOLERANCE


def compile_network(network: Network, target: dict[str, Any], database: Any | None) -> Any:
    """Return an executable; with a database, its best program replaces each function that it knows.

    The database is applied as any user of TVM would: relax.transform.MetaScheduleApplyDatabase.
    """
    mod = network.deployable()
    tvm_target = tvm.target.Target(target)
    if database is not None:
        with tvm_target, database:
            mod = relax.transform.MetaScheduleApplyDatabase(enable_warning=False)(mod)
    return tvm.compile(mod, target=tvm_target)


def run_network(executable: Any, network: Network, cores: int) -> tuple[list[Array], float]:
    """Run a compiled network on its inputs: (all outputs, median seconds of a call on so many cores)."""
    tvm.get_global_func("runtime.config_threadpool")(1, cores)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    inputs = [tvm.runtime.tensor(array) for array in network.inputs.values()]
    outputs = machine["main"](*inputs)
    arrays = [output.numpy() for output in outputs]
    once = machine.time_evaluator("main", tvm.cpu(), number=1, repeat=1)(*inputs).results[0]
    repeat = int(np.clip(_MAX_TIMING_S / max(float(once), 1e-6), 3, 20))
    times = machine.time_evaluator("main", tvm.cpu(), number=1, repeat=repeat)(*inputs).results
    return arrays, float(np.median([float(seconds) for seconds in times]))


def compare(found: Array, expected: Array) -> Agreement:
    """Compare an output with PyTorch's.

    Raises:
        TuneError: other shapes.
    """
    if found.shape != expected.shape:
        raise TuneError(f"expected an output of shape {expected.shape}, found {found.shape}")
    difference = float(np.max(np.abs(found.astype(np.float64) - expected)))
    scale = float(np.max(np.abs(expected)))
    return Agreement(max_abs=difference, max_rel=difference / scale if scale > 0 else difference)


def require_agreement(agreement: Agreement, network: Network) -> None:
    """Raise TuneError if a compiled network's output is not PyTorch's."""
    if not agreement.accepted or not np.isfinite(agreement.max_abs):
        raise TuneError(
            f"network {network.name!r}: the tuned network's output differs from PyTorch's by {agreement.max_abs:.2e} "
            f"({agreement.max_rel:.2e} of its largest value; {TOLERANCE:g} is accepted). A program in the database "
            "computes something else: look at its folder, or delete it and tune again."
        )
