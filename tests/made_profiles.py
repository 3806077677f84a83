"""Made-up hardware counters, of which it is known what makes a program slow."""

from __future__ import annotations

import numpy as np

from tencost.config.profiles import CounterGroups
from tencost.records.counters.counter_groups import group_columns
from tencost.records.counters.table import Profiles

SM_COUNT = "device__attribute_multiprocessor_count"


def every_metric() -> tuple[str, ...]:
    """All metrics of tvm_oraa's 40 columns."""
    columns = group_columns(CounterGroups(runtime=True), upstream=True)
    names = [name for column in columns for name in (column.metric, *column.others)]
    return tuple(dict.fromkeys([*names, SM_COUNT]))


def wide_profiles(size: int = 6, seed: int = 0) -> Profiles:
    """Random values of all metrics."""
    metrics = every_metric()
    generator = np.random.default_rng(seed)
    values = generator.uniform(1.0, 100.0, (size, len(metrics)))
    return profiles_of({name: values[:, index] for index, name in enumerate(metrics)})


def profiles_of(
    columns: dict[str, np.ndarray | list[float]],
    workload: str = "w",
    time_ns: np.ndarray | None = None,
) -> Profiles:
    """Programs of one workload, by metric."""
    values = np.stack([np.asarray(column, np.float64) for column in columns.values()], axis=1)
    size = len(values)
    return Profiles(
        np.array([f"{workload}-{index:04d}" for index in range(size)]),
        np.full(size, workload),
        np.full(size, "made up"),
        tuple(columns),
        values,
        np.arange(1.0, size + 1) if time_ns is None else time_ns,
    )


def concatenated(*tables: Profiles) -> Profiles:
    """Tables of the same metrics, one after the other."""
    return Profiles(
        np.concatenate([one.program_id for one in tables]),
        np.concatenate([one.workload for one in tables]),
        np.concatenate([one.device for one in tables]),
        tables[0].metrics,
        np.concatenate([one.values for one in tables]),
        np.concatenate([one.time_ns for one in tables]),
    )


def counted(workload: str, size: int, *, scale: float, seed: int) -> Profiles:
    """Programs whose time is the sectors that they read and a tenth of what they execute, beside a counter of noise and
    one that tells the time.

    `scale`: how many times as much the workload does as another.
    """
    generator = np.random.default_rng(seed)
    sectors = scale * generator.uniform(1.0, 10.0, size)
    instructions = scale * generator.uniform(1.0, 10.0, size)
    time = sectors + 0.1 * instructions
    return profiles_of(
        {
            "dram__sectors_read.sum": sectors,
            "smsp__inst_executed.sum": instructions,
            "lts__t_sectors.sum": generator.uniform(1.0, 10.0, size),
            "dram__bytes.sum.per_second": 1e6 / time,
        },
        workload,
        time,
    )
