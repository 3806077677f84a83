"""`tencost profiles transfer`: do counters tell fast programs of another workload from slow ones?

Writes data/reports/profiles/transfer-<set>/: transfer.md with both tables, transfer.png, outcomes.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tencost.compat.counters import report
from tencost.compat.counters.tracked import experiment, metric_name
from tencost.compat.counters.transfer import (
    Arm,
    Outcome,
    Settings,
    beside,
    counter_arm,
    honest_twin,
    leakage,
    leaky_twin,
    matrix_arm,
    parameter_arm,
    transfer,
    usable_profiles,
)
from tencost.config import Config
from tencost.config.profiles import CounterConfig, CounterKind, FittedOn, ProfileFeaturesConfig
from tencost.errors import ProfileError
from tencost.features.counters import append_counters, fit_counters
from tencost.features.rows.summary import summarize_programs
from tencost.records.counters.reading import read_places
from tencost.records.counters.table import Profiles
from tencost.train.data import Data
from tencost.tune.roofline.perf import available


def run(
    cfg: Config,
    root: Path,
    *,
    profiles: Sequence[Path],
    programs: int = 128,
    top: int = 32,
    draws: int = 20,
) -> list[Outcome]:
    """Learn from each workload, ask about each, and say what columns that tell run time do to the scores.

    Args:
        cfg: the configuration: profile_features, seeds, and the dataset and features of records.
        root: the project's root.
        profiles: a folder that `tencost profiles import` wrote, or files of profiles and folders of them; none:
            data/profiles.
        programs: drawn at a time.
        top: how many of them count as the fastest.
        draws: of each seed.

    Raises:
        ProfileError: nothing that can be read or compared.
    """
    if not top < programs:
        raise ProfileError(f"expected --top below --programs, found {top} of {programs}")
    settings = Settings(programs=programs, top=top, draws=draws, seeds=tuple(cfg.seeds))
    read, parameters, notes = read_places(profiles or [root / "data" / "profiles"])
    if why := available():
        notes.append(f"own programs with counters of this host's CPU: not run: {why}")
    rows = record_rows(cfg, root, read, notes)
    if rows:
        has = [program in rows for program in read.program_id.tolist()]
        read = read.take(np.flatnonzero(has))
    table, left_out = usable_profiles(read, settings)
    notes += left_out
    arms = counter_arms(cfg.profile_features, table)
    if rows:
        features = matrix_arm(cfg.features.name, rows, table)
        arms += [features, beside(f"{cfg.features.name} and counters", features, arms[0])]
    if parameters is not None:
        arms.append(parameter_arm("tuning parameters", table, parameters))
    options = {"programs": programs, "top": top, "draws": draws}
    with experiment(cfg, root, "profiles transfer", ["profile_features"], options) as (run, folder):
        outcomes = transfer(table, arms, settings)
        leaks = leakage(table, cfg.profile_features, settings)
        grids = [report.transfer_grid(outcomes, settings)]
        if len(leaks) > 1:
            grids.append(report.leak_grid(leaks, settings))
        report.write_report(
            folder / "transfer.md", folder / "outcomes.json", grids, notes, settings=settings, outcomes=outcomes,
            leakage=leaks, notes=notes,
        )  # fmt: skip
        title = "Asked about programs of a workload, what was known of them?"
        report.plot_transfer(folder / "transfer.png", outcomes, settings, title)
        run.log_metrics(
            {
                metric_name("transfer", f"{each.source} to {each.target}", each.arm): each.top.mean
                for each in outcomes
            }
        )
    report.print_report(grids, notes)
    return outcomes


def counter_arms(config: ProfileFeaturesConfig, profiles: Profiles) -> list[Arm]:
    """Return what is compared: the set without and with what tells time, normalised either way, and launch sizes."""
    honest, leaky = honest_twin(config), leaky_twin(config)
    arms = [counter_arm("counters", profiles, replace(honest, fitted_on=FittedOn.training))]
    scaled = replace(honest, fitted_on=FittedOn.workload)
    arms.append(counter_arm("counters, each workload's own scale", profiles, scaled))
    if leaky is not None and _measured(leaky, profiles):
        name = "with what tells time, own scale"
        arms.append(counter_arm(name, profiles, replace(leaky, fitted_on=FittedOn.workload)))
    sizes = [CounterConfig(metric=name) for name in profiles.metrics if name.startswith("launch__")]
    if sizes:
        launch = ProfileFeaturesConfig(name="launch", kind=CounterKind.ncu_raw, columns=sizes)
        arms.append(counter_arm("launch only", profiles, launch))
    return arms


def _measured(config: ProfileFeaturesConfig, profiles: Profiles) -> bool:
    try:
        fit_counters(config, profiles)
    except ProfileError:
        return False
    return True


def record_rows(
    cfg: Config, root: Path, profiles: Profiles, notes: list[str]
) -> dict[str, NDArray[np.float64]]:
    """Return the features of the programs that are records of the dataset, one row a program, by the record's id.

    What does not join is told in `notes`; where there is no dataset, or none of its records, nothing is returned.
    """
    data = Data(cfg, root)
    if not data.records_folder.is_dir():
        return {}
    records = data.records
    ids = records["record_id"].to_list()
    if not set(ids) & set(profiles.program_id.tolist()):
        notes.append(
            f"none of the programs is a record of {cfg.dataset.name}: nothing is known of them but counters"
        )
        return {}
    table = data.features(cfg.features.name)
    rows = table.select(records["program_id"].to_list())
    fitted = fit_counters(honest_twin(cfg.profile_features), profiles)
    counted = append_counters(rows, table.spec, ids, profiles, fitted)
    notes.append(counted.summary())
    summed = summarize_programs(rows.take(counted.rows), table.spec).astype(np.float64)
    return {ids[place]: row for place, row in zip(counted.rows.tolist(), summed, strict=True)}
