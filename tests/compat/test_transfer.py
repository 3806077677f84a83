"""Learning from one workload and asking about another, on counters of which the right answer is known."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl
import pytest

from made_profiles import concatenated, counted, profiles_of, wide_profiles
from tencost.compat.counters import report
from tencost.compat.counters.transfer import (
    ALL_LEAKS,
    Arm,
    Outcome,
    PairRows,
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
from tencost.compat.counters.transfer_stage import record_rows, run
from tencost.config import Config
from tencost.config.profiles import CounterConfig, CounterKind, FittedOn, ProfileFeaturesConfig
from tencost.errors import ProfileError
from tencost.records.counters.table import Profiles
from tencost.tracking.runs import setup

SMALL = Settings(programs=40, top=10, draws=4, seeds=(0, 1, 2), test_fraction=0.25)
RAW = ProfileFeaturesConfig(name="raw", kind=CounterKind.ncu_raw)
OWN = replace(RAW, fitted_on=FittedOn.workload)


@pytest.fixture(scope="module")
def profiles() -> Profiles:
    """Two workloads whose times are the same function of two counters; one does a thousand times as much."""
    return concatenated(
        counted("small", 320, scale=1.0, seed=1), counted("large", 320, scale=1000.0, seed=2)
    )


@pytest.fixture(scope="module")
def outcomes(profiles: Profiles) -> dict[tuple[str, str, str], Outcome]:
    noise = profiles.column("lts__t_sectors.sum")[:, None]
    rows = dict(zip(profiles.program_id.tolist(), noise, strict=True))
    counters = counter_arm("counters", profiles, OWN)
    arms = [
        counters,
        counter_arm("on the training part", profiles, RAW),
        matrix_arm("noise", rows, profiles),
        beside("both", matrix_arm("noise", rows, profiles), counters),
    ]
    return {(one.source, one.target, one.arm): one for one in transfer(profiles, arms, SMALL)}


PAIRS = [("small", "large"), ("large", "small")]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_what_decides_carries_over_and_noise_does_not(
    outcomes: dict[tuple[str, str, str], Outcome], source: str, target: str
) -> None:
    assert SMALL.chance == 0.25
    assert outcomes[source, target, "counters"].top.mean > 0.8
    assert outcomes[source, target, "counters"].tau.mean > 0.8
    assert outcomes[source, target, "both"].top.mean > 0.8
    assert abs(outcomes[source, target, "noise"].top.mean - 0.25) < 0.2
    assert outcomes[source, source, "counters"].top.mean > 0.8
    assert outcomes[source, source, "noise"].top.mean < 0.5


def test_another_scale_needs_a_scale_of_its_own(
    outcomes: dict[tuple[str, str, str], Outcome],
) -> None:
    """A thousand times as large, each program lies beyond all that was learnt from: trees call them all alike."""
    for source, target in PAIRS:
        far = outcomes[source, target, "on the training part"].top.mean
        assert far < outcomes[source, target, "counters"].top.mean - 0.3
        same = outcomes[source, source, "on the training part"]
        assert same.top.mean == outcomes[source, source, "counters"].top.mean


def test_figures_are_over_seeds(outcomes: dict[tuple[str, str, str], Outcome]) -> None:
    assert len(outcomes) == 16
    for one in outcomes.values():
        assert one.top.num_seeds == one.tau.num_seeds == 3
        assert one.top.half_width >= 0
        assert not one.reason
    assert {one.columns for one in outcomes.values()} == {1, 3, 4}


def test_it_repeats(profiles: Profiles) -> None:
    arms = [counter_arm("counters", profiles, OWN)]
    once = replace(SMALL, seeds=(4,))
    first = transfer(profiles, arms, once)
    assert [one.top.mean for one in transfer(profiles, arms, once)] == [
        one.top.mean for one in first
    ]


def watched(arm: Arm, seen: list[tuple[PairRows, Any]]) -> Arm:
    def inputs(asked: PairRows) -> Any:
        found = arm.inputs(asked)
        seen.append((asked, found))
        return found

    return Arm(arm.name, inputs)


def test_parts_never_meet_and_tests_move_nothing(profiles: Profiles) -> None:
    """An extreme in the rows that are asked about changes nothing of what is learnt from, under either scale."""
    for config in (RAW, OWN):
        seen: list[tuple[PairRows, Any]] = []
        transfer(
            profiles,
            [watched(counter_arm("c", profiles, config), seen)],
            replace(SMALL, seeds=(0,)),
        )
        for asked, (learnt, _) in seen:
            assert not set(asked.test) & set(asked.training)
            assert set(asked.learn) <= set(asked.training)
            assert len(set(profiles.workload[asked.learn].tolist())) == 1
            extreme = profiles.values.copy()
            extreme[asked.test[0]] = 1e12
            changed = counter_arm("c", replace(profiles, values=extreme), config)
            np.testing.assert_array_equal(changed.inputs(asked)[0], learnt)


def test_no_time_of_the_other_workload_is_read(profiles: Profiles) -> None:
    """The times of the workload that is asked about judge the answer and nothing else: turned, it is turned, too."""
    arms = [counter_arm("c", profiles, OWN)]
    one_seed = replace(SMALL, seeds=(0,))
    large = profiles.workload == "large"
    turned = replace(profiles, time_ns=np.where(large, 1e9 / profiles.time_ns, profiles.time_ns))
    before, after = (
        {(one.source, one.target): one for one in transfer(table, arms, one_seed)}
        for table in (profiles, turned)
    )
    assert after["small", "large"].tau.mean == pytest.approx(-before["small", "large"].tau.mean)
    assert after["small", "large"].top.mean < 0.05


def test_profiles_without_parameters_have_none_in_common(profiles: Profiles) -> None:
    """An import of profiles without tuning parameters writes an empty table of them."""
    empty = pl.DataFrame(schema={"program_id": pl.String, "workload": pl.String})
    outcomes = transfer(profiles, [parameter_arm("p", profiles, empty)], SMALL)
    assert {outcome.reason for outcome in outcomes} == {"not applicable: no parameter in common"}


def test_parameters_in_common(profiles: Profiles) -> None:
    """Workloads that share none have no figure and say why; within a workload all that vary count."""
    ids = profiles.program_id.tolist()
    sectors = profiles.column("dram__sectors_read.sum").tolist()
    small = (profiles.workload == "small").tolist()
    table = pl.DataFrame(
        {
            "program_id": ids,
            "tile": [v if own else None for v, own in zip(sectors, small, strict=True)],
            "unroll": [None if own else v for v, own in zip(sectors, small, strict=True)],
            "constant": [1] * len(ids),
            "words": ["x"] * len(ids),
        }
    )
    found = {
        (one.source, one.target): one
        for one in transfer(profiles, [parameter_arm("p", profiles, table)], SMALL)
    }
    for source, target in PAIRS:
        one = found[source, target]
        assert one.reason == "not applicable: no parameter in common"
        assert np.isnan(one.top.mean)
        assert found[source, source].top.mean > 0.8
        assert found[source, source].columns == 1
    shared = table.with_columns(pl.Series("shared", sectors))
    arm = parameter_arm("p", profiles, shared)
    common = [one for one in transfer(profiles, [arm], SMALL) if one.source != one.target]
    assert [one.columns for one in common] == [1, 1]
    text = report.transfer_grid([*found.values()], SMALL).markdown()
    assert "| small | large | not applicable: no parameter in common |" in text
    assert "| small | itself (control) | " in text


def test_programs_without_time_or_counters_are_left_out(profiles: Profiles) -> None:
    time = profiles.time_ns.copy()
    time[:3] = np.nan
    values = profiles.values.copy()
    values[5:7] = np.nan
    broken = replace(profiles, time_ns=time, values=values)
    few = profiles_of({name: [1.0] for name in profiles.metrics}, "few")
    found, notes = usable_profiles(concatenated(broken, few), SMALL)
    assert len(found) == 635
    assert notes == [
        "3 programs without a time are left out",
        "2 programs without any counter are left out",
        "left out, as their test parts have fewer than 40 programs: few",
    ]


def test_devices_are_apart(profiles: Profiles) -> None:
    device = np.where(profiles.workload == "large", "B", "A")
    found, notes = usable_profiles(replace(profiles, device=device), SMALL)
    assert set(found.workload.tolist()) == {"small on A", "large on B"}
    assert notes == []


def test_too_few_programs() -> None:
    with pytest.raises(ProfileError, match="160 profiled programs, found 1 workloads of at most 6"):
        usable_profiles(wide_profiles(), SMALL)


def test_each_leak_is_told_with_what_it_does_to_the_score() -> None:
    """A workload of which nothing but noise is known: the leak alone lifts the score, and the guard shows it."""
    generator = np.random.default_rng(0)

    def blind(workload: str, scale: float) -> Profiles:
        time = scale * generator.uniform(1.0, 10.0, 320)
        return profiles_of(
            {
                "lts__t_sectors.sum": generator.uniform(1.0, 10.0, 320),
                "dram__bytes.sum.per_second": 1e6 / time,
                "sm__warps_active.avg.pct_of_peak_sustained_active": generator.uniform(
                    1.0, 9.0, 320
                ),
            },
            workload,
            time,
        )

    found = leakage(concatenated(blind("a", 1.0), blind("b", 3.0)), OWN, SMALL)
    names = [
        "", "dram__bytes.sum.per_second", "sm__warps_active.avg.pct_of_peak_sustained_active", ALL_LEAKS,
    ]  # fmt: skip
    assert [one.column for one in found] == names
    assert [one.columns for one in found] == [1, 2, 2, 3]
    honest, rate, share, both = found
    assert abs(honest.within - 0.25) < 0.15
    assert abs(honest.across - 0.25) < 0.15
    for leak in (rate, both):
        assert leak.gain_within > 0.6
        assert leak.gain_across > 0.5
        assert leak.gain_within == pytest.approx(leak.within - honest.within)
    assert abs(share.gain_within) < 0.15
    text = report.leak_grid(found, SMALL).markdown()
    assert "| without any of them | 1 | " in text
    assert "| with dram__bytes.sum.per_second | 2 | " in text
    assert f"{rate.gain_within:+.3f}" in text


def test_upstreams_columns_against_ours() -> None:
    """The two of the 28 are what the report adds to the 26; with the group runtime its 12, too."""

    def table(workload: str, seed: int) -> Profiles:
        made = wide_profiles(200, seed)
        names = np.array([f"{workload}-{index}" for index in range(200)])
        time = 1e6 / made.column("dram__bytes.sum.per_second")
        return replace(made, program_id=names, workload=np.full(200, workload), time_ns=time)

    made = concatenated(table("a", 1), table("b", 2))
    few = replace(SMALL, seeds=(0,))
    found = leakage(made, ProfileFeaturesConfig(), few)
    assert [one.columns for one in found] == [26, 27, 27, 28]
    by_name = {one.column: one for one in found}
    assert by_name["dram__bytes.sum.per_second"].gain_across > 0.4
    assert abs(by_name["dram__bytes.sum.peak_sustained"].gain_across) < 0.3
    everything = ProfileFeaturesConfig(
        name="u", kind=CounterKind.ncu_upstream, leaky=True,
        groups=replace(ProfileFeaturesConfig().groups, runtime=True),
    )  # fmt: skip
    assert leakage(made, everything, few)[-1].columns == 40
    assert leakage(made, everything, few)[0].columns == 26


def test_twins() -> None:
    ours = ProfileFeaturesConfig()
    theirs = leaky_twin(ours)
    assert theirs is not None
    assert theirs.kind is CounterKind.ncu_upstream
    assert honest_twin(theirs) == ours
    assert honest_twin(ours) == ours
    device = ProfileFeaturesConfig(name="device", kind=CounterKind.device)
    assert leaky_twin(device) is None
    assert leaky_twin(RAW) == replace(RAW, leaky=True)
    assert honest_twin(replace(RAW, leaky=True)) == RAW
    rate = CounterConfig(metric="dram__bytes.sum.per_second")
    listed = replace(RAW, leaky=True, columns=[rate, CounterConfig(metric="launch__grid_size")])
    assert honest_twin(listed).columns == listed.columns[1:]
    with pytest.raises(ProfileError, match="nothing to compare with"):
        honest_twin(replace(listed, columns=[rate]))


def ktt_file(path: Path, kernel: str, size: int, seed: int) -> None:
    """Write a file as KTT 2.1 does: a counter that decides the time, one of noise, one that tells it."""
    generator = np.random.default_rng(seed)
    results = []
    for index in range(size):
        sectors = generator.uniform(1e6, 1e7)
        time = sectors / 1e4 * generator.uniform(0.97, 1.03)
        counters = {
            "dram__sectors_read.sum": sectors,
            "smsp__inst_executed.sum": generator.uniform(1e6, 1e7),
            "dram__throughput.avg.pct_of_peak_sustained_elapsed": 1e5 / time,
        }
        results.append(
            {
                "ComputationResults": [
                    {
                        "CompilationData": {"RegistersCount": 32},
                        "Duration": time,
                        "GlobalSize": {"X": 64, "Y": 1, "Z": 1},
                        "KernelFunction": kernel,
                        "LocalSize": {"X": 32 * (1 + index % 4), "Y": 1, "Z": 1},
                        "ProfilingData": {
                            "Counters": [
                                {"Name": name, "Type": "Double", "Value": value}
                                for name, value in counters.items()
                            ]
                        },
                    }
                ],
                "Configuration": [
                    {"Name": f"{kernel}_TILE", "Value": index, "ValueType": "UnsignedInt"}
                ],
                "KernelName": kernel,
                "Status": "Ok" if index else "ComputationFailed",
                "TotalDuration": time,
            }
        )
    about = {
        "ComputeApi": "CUDA", "Device": "made up", "GlobalSizeType": "CUDA", "KttVersion": "2.1.0",
        "TimeUnit": "Microseconds",
    }  # fmt: skip
    with gzip.open(path, "wt") as file:
        json.dump({"Metadata": about, "Results": results}, file)


def test_the_command(toy_project: Path, toy_config: Config, tmp_path: Path) -> None:
    """From files to a report with tables and a plot, which are an MLflow run's artifacts, too."""
    from mlflow import MlflowClient

    counters = tmp_path / "counters"
    counters.mkdir()
    for seed, kernel in enumerate(("scan", "sort")):
        ktt_file(counters / f"{kernel}.json.gz", kernel, 241, seed)
    toy_config.profile_features = RAW
    toy_config.seeds = [0, 1]
    found = {
        (one.source, one.target, one.arm): one
        for one in run(toy_config, toy_project, profiles=[counters], programs=40, top=10, draws=3)
    }
    assert found["scan", "sort", "counters"].top.mean > 0.7
    assert found["sort", "scan", "counters"].top.mean > 0.7
    assert found["sort", "scan", "tuning parameters"].reason.startswith("not applicable")
    assert found["sort", "sort", "tuning parameters"].top.mean < 0.6
    assert found["sort", "scan", "launch only"].top.mean < 0.6
    folder = toy_project / "data" / "reports" / "profiles" / "transfer-raw"
    names = ["outcomes.json", "transfer.md", "transfer.png"]
    assert sorted(path.name for path in folder.iterdir()) == names
    text = (folder / "transfer.md").read_text()
    assert "with dram__throughput.avg.pct_of_peak_sustained_elapsed" in text
    assert "none of the programs is a record of toy" in text
    assert "2 places of the files were left out" in text
    values = orjson.loads((folder / "outcomes.json").read_bytes())
    assert len(values["outcomes"]) == len(found)
    assert values["leakage"][1]["column"] == "dram__throughput.avg.pct_of_peak_sustained_elapsed"
    client = MlflowClient(tracking_uri=setup(toy_project))
    (done,) = client.search_runs(["1"], "tags.`tencost.stage` = 'profiles transfer'")
    artifacts = [item.path for item in client.list_artifacts(done.info.run_id, "reports/transfer")]
    assert artifacts == [f"reports/transfer/{name}" for name in names]
    assert (
        done.data.metrics["transfer/scan to sort/counters"]
        == found["scan", "sort", "counters"].top.mean
    )
    assert done.data.params["profile_features.kind"] == "ncu_raw"
    assert done.info.status == "FINISHED"


def test_records_are_compared_with_their_features(toy_project: Path, toy_config: Config) -> None:
    """Counters of the toy project's records, by record id: its feature `speed` tells what the counter does not."""
    from tencost.store.tables import load_records

    columns = ("record_id", "workload_id", "hardware", "status")
    records = load_records(toy_project / "data/records/toy", columns=columns)
    ok = records.filter(pl.col("status") == "ok").sort("latency_s")
    size = ok.height
    noise = np.random.default_rng(0).uniform(1.0, 10.0, size + 1)
    profiles = Profiles(
        np.array([*ok["record_id"].to_list(), "stranger"]),
        np.array([*ok["workload_id"].to_list(), "w0"]),
        np.full(size + 1, "toy-1c"),
        ("dram__sectors_read.sum",),
        noise[:, None],
        np.array([*(1e9 * ok["latency_s"]).to_list(), 1.0]),
    )
    toy_config.profile_features = RAW
    notes: list[str] = []
    rows = record_rows(toy_config, toy_project, profiles, notes)
    assert len(rows) == size == 59
    assert notes == [
        "59 programs have features and counters; 1 without counters "
        f"({records.filter(pl.col('status') != 'ok')['record_id'][0]}); 1 profiles of other programs (stranger)"
    ]
    few = Settings(programs=4, top=1, draws=10, seeds=(0, 1, 2), test_fraction=0.4)
    found, _ = usable_profiles(profiles.take(np.arange(size)), few)
    own = matrix_arm("toy", rows, found)
    counters = counter_arm("counters", found, RAW)
    by_arm: dict[str, list[float]] = {}
    for one in transfer(found, [own, counters, beside("both", own, counters)], few):
        by_arm.setdefault(one.arm, []).append(one.tau.mean)
    means = {arm: float(np.mean(taus)) for arm, taus in by_arm.items()}
    assert means["toy"] > 0.5
    assert means["both"] > means["counters"] + 0.3


def test_a_dataset_that_knows_none_of_the_programs(toy_project: Path, toy_config: Config) -> None:
    notes: list[str] = []
    assert record_rows(toy_config, toy_project, counted("w", 9, scale=1.0, seed=0), notes) == {}
    assert notes == [
        "none of the programs is a record of toy: nothing is known of them but counters"
    ]
    toy_config.dataset.name = "absent"
    assert record_rows(toy_config, toy_project, counted("w", 9, scale=1.0, seed=0), []) == {}


KTT = Path(__file__).resolve().parents[3] / "shared" / "data" / "ktt" / "ktt_data"


@pytest.mark.slow
def test_on_ktts_data() -> None:
    """Counters without what tells time carry over where tuning parameters do not; within a workload both do."""
    if not KTT.is_dir():
        pytest.skip("KTT's data (benchmark_hub) is not beside the repository")
    from tencost.records.counters.reading import read_profiles

    files = [KTT / f"KT{name}Output_2080Ti.json.gz" for name in ("Convolution", "Pnpoly")]
    read, parameters, _ = read_profiles(*files)
    settings = Settings(seeds=(0,))
    profiles, _ = usable_profiles(read, settings)
    names, counts = np.unique(profiles.workload, return_counts=True)
    assert dict(zip(names.tolist(), counts.tolist(), strict=True)) == {
        "Convolution": 5280,
        "Pnpoly": 3815,
    }
    arms = [
        counter_arm("counters", profiles, OWN),
        parameter_arm("parameters", profiles, parameters),
    ]
    found = {(one.source, one.target, one.arm): one for one in transfer(profiles, arms, settings)}
    for name in names.tolist():
        assert found[name, name, "counters"].top.mean > 0.9
        assert found[name, name, "parameters"].top.mean > 0.8
    assert found["Convolution", "Pnpoly", "counters"].top.mean > 0.4
    assert {found[a, b, "parameters"].columns for a, b in (names, names[::-1])} == {1}
