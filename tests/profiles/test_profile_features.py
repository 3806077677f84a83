"""Hardware counters as columns: which, by what formula, fitted on what."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_profiles import SM_COUNT, concatenated, every_metric, profiles_of, wide_profiles
from tencost.config import Config, composition
from tencost.config.composition import compose
from tencost.config.profiles import (
    CounterConfig,
    CounterGroups,
    CounterKind,
    FittedOn,
    Preprocessing,
    ProfileFeaturesConfig,
)
from tencost.errors import ConfigError, ProfileError
from tencost.features.counters import append_counters, fit_counters
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.records.counters.counter_groups import tells_time

ROOT = Path(__file__).resolve().parents[2]
CHOICES = composition.group_choices()["profile_features"]
GROUPS = {
    "occupancy": (1, 1),
    "launch": (3, 3),
    "memory": (8, 10),
    "conflicts": (4, 4),
    "instructions": (10, 10),
    "runtime": (0, 12),
}
"""Group -> its columns in ncu, in ncu_upstream."""


def of_choice(*words: str) -> ProfileFeaturesConfig:
    config: Config = compose(list(words))[0]
    return config.profile_features


def raw(*columns: dict[str, Any], **values: Any) -> ProfileFeaturesConfig:
    made = [CounterConfig(**column) for column in columns]
    return ProfileFeaturesConfig(name="raw", kind=CounterKind.ncu_raw, columns=made, **values)


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_makes_columns(choice: str) -> None:
    profiles = wide_profiles()
    fitted = fit_counters(of_choice(f"profile_features={choice}"), profiles)
    columns = fitted.transform(profiles)
    assert columns.shape == (len(profiles), len(fitted.names))
    assert np.isfinite(columns).all()
    assert len(set(fitted.names)) == len(fitted.names) > 0
    assert bool(fitted.leaky) == (choice == "ncu_upstream")


def test_the_choices_are_the_kinds() -> None:
    assert {kind.value for kind in CounterKind} == set(CHOICES)


@pytest.mark.parametrize(
    ("words", "width"),
    [
        (["profile_features=ncu"], 26),
        (["profile_features=ncu_upstream"], 28),
        (["profile_features=ncu_upstream", "profile_features.groups.runtime=true"], 40),
        (["profile_features=ncu", "profile_features.groups.instructions=false"], 16),
        (["profile_features=device"], 1),
        (["profile_features=ncu_raw", "profile_features.leaky=true"], len(every_metric())),
    ],
)
def test_widths(words: list[str], width: int) -> None:
    assert fit_counters(of_choice(*words), wide_profiles()).transform(wide_profiles()).shape == (
        6,
        width,
    )


@pytest.mark.parametrize("group", GROUPS)
def test_the_mask_picks_a_group(group: str) -> None:
    assert {item.name for item in fields(CounterGroups)} == set(GROUPS)
    mask = CounterGroups(**{name: name == group for name in GROUPS})
    upstream = ProfileFeaturesConfig(
        name="one", kind=CounterKind.ncu_upstream, groups=mask, leaky=True
    )
    honest, all_of_it = GROUPS[group]
    assert len(fit_counters(upstream, wide_profiles()).names) == all_of_it
    if honest:
        one = ProfileFeaturesConfig(name="one", groups=mask)
        assert len(fit_counters(one, wide_profiles()).names) == honest


def test_an_empty_mask_is_refused() -> None:
    mask = CounterGroups(**dict.fromkeys(GROUPS, False))
    with pytest.raises(ProfileError, match="no group is in"):
        fit_counters(ProfileFeaturesConfig(groups=mask), wide_profiles())


def test_the_formulas() -> None:
    profiles = profiles_of({"a": [2.0, 4.0, 6.0], "b": [4.0, 0.0, 3.0], "c": [-1.0, 3.0, 7.0]})
    config = raw(
        {"metric": "a"},
        {"metric": "a", "how": Preprocessing.normalize_to, "by": "4"},
        {"metric": "a", "how": Preprocessing.normalize_to, "by": "b"},
        {"metric": "a", "how": Preprocessing.minimize, "others": ["b", "c"]},
        {"metric": "c", "how": Preprocessing.identity},
        {"metric": "c", "how": Preprocessing.log},
    )
    found = fit_counters(config, profiles).transform(profiles)
    wanted = [
        [0.0, 0.5, 0.5, -1.0, -1.0, -1.0],
        [0.5, 1.0, np.nan, 0.0, 3.0, 2.0],
        [1.0, 1.5, 2.0, 3.0, 7.0, 3.0],
    ]
    np.testing.assert_allclose(found, wanted)


def test_oraas_own_formulas() -> None:
    """Grid over multiprocessors, block over 256, the least limit of occupancy as it is."""
    profiles = wide_profiles()
    found = fit_counters(ProfileFeaturesConfig(), profiles).transform(profiles)
    limits = [name for name in profiles.metrics if name.startswith("launch__occupancy_limit_")]
    assert len(limits) == 4
    np.testing.assert_allclose(found[:, 0], np.min([profiles.column(n) for n in limits], axis=0))
    grid = profiles.column("launch__grid_size") / profiles.column(SM_COUNT)
    np.testing.assert_allclose(found[:, 1], grid)
    np.testing.assert_allclose(found[:, 2], profiles.column("launch__block_size") / 256)
    waves = profiles.column("launch__waves_per_multiprocessor")
    np.testing.assert_allclose(found[:, 3], (waves - waves.min()) / (waves.max() - waves.min()))


def test_nothing_of_nothing_is_nothing() -> None:
    profiles = profiles_of({"a": [0.0, 1.0], "b": [0.0, 0.0]})
    config = raw({"metric": "a", "how": Preprocessing.normalize_to, "by": "b"})
    np.testing.assert_array_equal(
        fit_counters(config, profiles).transform(profiles), [[0.0], [np.nan]]
    )


def test_a_constant_column_is_zero() -> None:
    profiles = profiles_of({"a": [5.0, 5.0, 5.0], "b": [np.nan, np.nan, np.nan]})
    fitted = fit_counters(raw({"metric": "a"}, {"metric": "b"}), profiles)
    other = profiles_of({"a": [7.0], "b": [1.0]})
    np.testing.assert_array_equal(fitted.transform(profiles), np.zeros((3, 2)))
    np.testing.assert_array_equal(fitted.transform(other), np.zeros((1, 2)))


def test_a_counter_that_was_not_measured_stays_unknown() -> None:
    profiles = profiles_of({"a": [1.0, np.nan, 3.0]})
    found = fit_counters(raw({"metric": "a"}), profiles).transform(profiles)
    np.testing.assert_array_equal(found, [[0.0], [np.nan], [1.0]])


def test_rows_that_are_tested_move_nothing() -> None:
    """The extreme of a test row is fitted by tvm_oraa, which normalises over the whole file."""
    training = profiles_of({"a": [0.0, 10.0]})
    tested = profiles_of({"a": [5.0, 1000.0]})
    fitted = fit_counters(raw({"metric": "a"}), training)
    np.testing.assert_allclose(fitted.transform(tested), [[0.5], [100.0]])
    np.testing.assert_allclose(fitted.transform(training), [[0.0], [1.0]])
    alone = fitted.transform(tested.take(np.array([0])))
    np.testing.assert_array_equal(alone, fitted.transform(tested)[:1])


def test_each_workload_by_its_own_scale() -> None:
    training = concatenated(
        profiles_of({"a": [0.0, 10.0]}, "small"), profiles_of({"a": [1e6, 3e6]}, "large")
    )
    fitted = fit_counters(raw({"metric": "a"}, fitted_on=FittedOn.workload), training)
    asked = concatenated(profiles_of({"a": [2e6]}, "large"), profiles_of({"a": [5.0]}, "small"))
    np.testing.assert_allclose(fitted.transform(asked), [[0.5], [0.5]])
    with pytest.raises(ProfileError, match="found one of other"):
        fitted.transform(profiles_of({"a": [1.0]}, "other"))


def test_missing_metrics_are_named() -> None:
    profiles = wide_profiles()
    kept = [n for n in profiles.metrics if "bank_conflicts" not in n and "ldsm.sum" not in n]
    thin = profiles_of({name: profiles.column(name) for name in kept})
    with pytest.raises(ProfileError) as error:
        fit_counters(ProfileFeaturesConfig(), thin)
    assert "without 5 of them" in str(error.value)
    for name in set(profiles.metrics) - set(kept):
        if "pct_of_peak" not in name:
            assert name in str(error.value)
    fitted = fit_counters(ProfileFeaturesConfig(), profiles)
    with pytest.raises(ProfileError, match="bank_conflicts"):
        fitted.transform(thin)


@pytest.mark.parametrize(
    ("metric", "leaks"),
    [
        ("gpu__time_duration.sum", True),
        ("dram__bytes.sum.per_second", True),
        ("dram__bytes.sum.peak_sustained", True),
        ("sm__cycles_elapsed.max", True),
        ("smsp__cycles_active.avg", True),
        ("sm__warps_active.avg.pct_of_peak_sustained_active", True),
        ("dram__throughput.avg.pct_of_peak_sustained_elapsed", True),
        ("smsp__inst_executed.avg.per_cycle_active", True),
        ("smsp__inst_executed.sum", False),
        ("dram__bytes_read.sum", False),
        ("launch__waves_per_multiprocessor", False),
        ("smsp__thread_inst_executed_per_inst_executed.ratio", False),
        ("device__attribute_clock_rate", False),
    ],
)
def test_what_tells_the_time(metric: str, leaks: bool) -> None:
    assert tells_time(metric) == leaks


def test_a_leak_is_refused_unless_it_is_called_one() -> None:
    profiles = profiles_of({"a": [1.0, 2.0], "dram__bytes.sum.per_second": [1.0, 2.0]})
    leak = {"metric": "a", "how": Preprocessing.normalize_to, "by": "dram__bytes.sum.per_second"}
    with pytest.raises(ProfileError, match=r"found dram__bytes\.sum\.per_second"):
        fit_counters(raw(leak), profiles)
    assert fit_counters(raw(leak, leaky=True), profiles).leaky == (
        "a / dram__bytes.sum.per_second",
    )
    everything = raw()
    assert fit_counters(everything, profiles).names == ("a",)
    assert len(fit_counters(replace(everything, leaky=True), profiles).names) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["profile_features=ncu", "profile_features.groups.runtime=true"],
        ["profile_features=ncu_upstream", "profile_features.leaky=false"],
        ["profile_features=ncu", "profile_features.columns=[{metric: a}]"],
        ["profile_features=ncu_raw", "profile_features.columns=[{metric: a, how: normalize_to}]"],
        ["profile_features=ncu_raw", "profile_features.columns=[{metric: a, by: '3'}]"],
        ["profile_features=ncu_raw", "profile_features.columns=[{metric: a, how: minimize}]"],
        ["profile_features=ncu_raw", "profile_features.how=minimize"],
        ["profile_features=ncu_raw", "profile_features.columns=[{metric: a, how: guess}]"],
    ],
)
def test_what_cannot_be_is_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"profile_features|expected one of"):
        compose(words)


def test_any_list_of_metrics_from_the_command_line() -> None:
    config = of_choice(
        "profile_features=ncu_raw",
        "profile_features.columns=[{metric: a, how: log}, {metric: a, how: normalize_to, by: '256'}]",
    )
    found = fit_counters(config, profiles_of({"a": [255.0]}))
    assert found.names == ("log2(a)", "a / 256")
    np.testing.assert_allclose(found.transform(profiles_of({"a": [255.0]})), [[8.0, 255 / 256]])
    with pytest.raises(ProfileError, match="each column of raw once, found a more often"):
        fit_counters(raw({"metric": "a"}, {"metric": "a"}), profiles_of({"a": [1.0]}))


def test_counters_beside_features_join_by_id() -> None:
    """In any order; rows of a program are summed up as trees read them; what does not join is named."""
    spec = FeatureSpec(name="toy", kind="trace", columns=("x",))
    rows = Ragged.from_blocks(
        [np.array(block, np.float32).reshape(-1, 1) for block in ([1, 2], [5], [7], [])], 1
    )
    ids = ["r0", "r1", "r2", "r3"]
    profiles = replace(
        profiles_of({"a": [30.0, 10.0, 20.0, 99.0]}),
        program_id=np.array(["r3", "r0", "stranger", "r2"]),
    )
    fitted = fit_counters(raw({"metric": "a", "how": Preprocessing.identity}), profiles)
    found = append_counters(rows, spec, ids, profiles, fitted)
    assert found.columns == ("first_x", "sum_x", "max_x", "num_rows", "a")
    np.testing.assert_array_equal(found.values, [[1, 3, 2, 2, 10], [7, 7, 7, 1, 99]])
    np.testing.assert_array_equal(found.rows, [0, 2])
    assert (found.missing, found.without_features, found.unknown) == (
        ("r1",),
        ("r3",),
        ("stranger",),
    )
    assert found.summary() == (
        "2 programs have features and counters; 1 without counters (r1); 1 with counters and without features (r3); "
        "1 profiles of other programs (stranger)"
    )
    backwards = profiles.take(np.array([3, 2, 1, 0]))
    np.testing.assert_array_equal(
        append_counters(rows, spec, ids, backwards, fitted).values, found.values
    )


def test_profiles_of_other_programs_are_told() -> None:
    spec = FeatureSpec(name="toy", kind="trace", columns=("x",))
    rows = Ragged.from_blocks([np.ones((1, 1), np.float32)] * 7, 1)
    profiles = profiles_of({"a": [1.0, 2.0]})
    fitted = fit_counters(raw({"metric": "a"}), profiles)
    with pytest.raises(
        ProfileError, match="none joins: the programs are r0, r1, r2, r3, r4 and 2 more"
    ):
        append_counters(rows, spec, [f"r{i}" for i in range(7)], profiles, fitted)
    twice = replace(profiles, program_id=np.array(["r1", "r1"]))
    with pytest.raises(ProfileError, match="one profile an id"):
        append_counters(rows, spec, [f"r{i}" for i in range(7)], twice, fitted)


def test_no_rows_to_fit_on() -> None:
    with pytest.raises(ProfileError, match="found none"):
        fit_counters(ProfileFeaturesConfig(), wide_profiles().take(np.array([], np.int64)))
