"""The whole network's times, as `tencost tune` and `tencost compile` take them, as records beside the live store.

The network with the tuned programs is of the engine `tencost`, with default schedules only of `tvm`.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tencost.errors import RecordError
from tencost.records.network_times.timing import NetworkTiming, networks_uri, write_timings
from tencost.tune.curve import CurvePoint, read_points
from tencost.tune.inputs import NOTE
from tencost.tune.recording import STORE_PACKAGES
from tencost.workers.hardware import another_machine

if TYPE_CHECKING:
    from tencost.config import Config, HardwareConfig
    from tencost.tune.inputs import Inputs

TIMES = "network_times_s"
"""Row of the report: seconds of each turn, by what the network was compiled with: tuned, default, compared."""


def record_tuned(inputs: Inputs, report: dict[str, Any]) -> None:
    """Write the times of a tuned network and of its default schedules, where there is a store and they were taken.

    Somebody else's database, tuner.compare_with, has no engine that is known here and is left out.
    """
    if inputs.store is None or TIMES not in report:
        return
    common = _common(inputs.cfg.hardware)
    common |= {"source": inputs.folder.path.name, "info": _conditions(report)}
    times = report[TIMES]
    timings = [
        NetworkTiming.of(
            inputs.cfg.network,
            engine="tencost",
            seconds=tuple(times["tuned"]),
            engine_config={"model": inputs.chosen.name},
            tuning_seconds=tuning_seconds(read_points(inputs.folder.curve)),
            tuning_programs=report["trials"],
            max_rel_error=report.get("max_rel_error"),
            **common,
        ),
    ]
    if "default" in times:
        untuned = tuple(times["default"])
        timings.append(
            NetworkTiming.of(inputs.cfg.network, engine="tvm", seconds=untuned, **common)
        )
    _write(inputs.store.uri, timings, inputs.console)


def record_compiled(
    cfg: Config,
    hardware: HardwareConfig,
    store_uri: str,
    console: Console,
    *,
    tuned: bool,
    **fields: Any,
) -> None:
    """Write the time of a compiled network, where what a store needs is installed and the host is the hardware's.

    Args:
        cfg: of which the network is.
        hardware: what it was compiled for.
        store_uri: the live store, which need not be there.
        console: where it is said that it cannot be written.
        tuned: whether programs of a database are in it.
        fields: the others of its timing.
    """
    if any(find_spec(name) is None for name in STORE_PACKAGES) or another_machine(hardware):
        return
    programs = {"programs": "tuned" if tuned else "by rule"}
    made = NetworkTiming.of(
        cfg.network, engine="tencost", engine_config=programs, **_common(hardware), **fields
    )
    _write(store_uri, [made], console)


def tuning_seconds(points: Iterable[CurvePoint]) -> float:
    """Return what all runs of a work folder tuned together, seconds: each counts from 0."""
    total = last = 0.0
    for point in points:
        total += point.elapsed_s - (last if point.elapsed_s >= last else 0.0)
        last = point.elapsed_s
    return total


def _common(hardware: HardwareConfig) -> dict[str, Any]:
    return {
        "hardware": hardware.name,
        "cores": hardware.cores,
        "hw_model": hardware.model or None,
        "target": hardware.target,
    }


def _conditions(report: dict[str, Any]) -> dict[str, Any]:
    told = {"tasks": report["tasks"], "host_told": report.get("host_told")}
    return {name: value for name, value in told.items() if value}


def _write(store_uri: str, timings: list[NetworkTiming], console: Console) -> None:
    """Write them; that the store cannot be written to now does not undo what was tuned or compiled."""
    try:
        added = write_timings(store_uri, timings)
    except RecordError as error:
        console.print(f"the network's time is in no record: {error}", **NOTE)
        return
    if added.quarantined:
        console.print(
            f"{added.quarantined} of the network's times are in quarantine, as their repeats contradict each other: "
            f"tencost records quarantine --store {networks_uri(store_uri)}",
            **NOTE,
        )
