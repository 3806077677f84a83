"""Champion and challenger that tune the same tasks: what is said of the runs, real searches, the version's note."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from matmuls import make_matmul
from tencost.config import HardwareConfig, TunerConfig
from tencost.errors import RegistryError, TuneError
from tencost.programs.starting_points import StartBook
from tencost.register import registry
from tencost.register.start_records import ship
from tencost.tracking import runs as tracking
from tencost.tune import live
from tencost.tune.live import LiveRun


def made(champion_s: float, challenger_s: float, seed: int = 0) -> LiveRun:
    return LiveRun("task", seed, champion_s, challenger_s, 1.0, math.nan)


def test_speeds_are_averaged_as_factors_with_an_interval() -> None:
    found = live.summarize_runs([made(2.0, 1.0), made(1.0, 2.0)])
    assert found.speed == pytest.approx(1.0)
    assert found.low < 1.0 < found.high
    assert found.word == "even"
    ahead = live.summarize_runs([made(1.2, 1.0), made(1.21, 1.0), made(1.19, 1.0)])
    assert (ahead.word, round(ahead.speed, 2)) == ("ahead", 1.2)
    behind = live.summarize_runs([made(1.0, 1.2), made(1.0, 1.21), made(1.0, 1.19)])
    assert behind.word == "behind"
    assert live.summarize_runs([made(2.0, 1.0)]).word == "even"  # one run has no interval


def version(client: Any, number: int, run_id: str, alias: str) -> None:
    name = registry.model_name("local")
    if number == 1:
        client.create_registered_model(name)
    client.create_model_version(
        name, source="nowhere", run_id=run_id, tags={"semver": f"1.{number}"}
    )
    client.set_registered_model_alias(name, alias, str(number))


def test_the_verdict_is_a_note_on_the_version(toy_project: Path, tmp_path: Path) -> None:
    client = registry.connect(tracking.setup(toy_project))
    experiment = client.get_experiment_by_name("tencost").experiment_id
    run_id = str(client.create_run(experiment).info.run_id)
    with pytest.raises(RegistryError, match=r"found 0 version\(s\) and no champion"):
        live.versions(client, "local")
    version(client, 1, run_id, registry.CHAMPION)
    client.set_registered_model_alias(registry.model_name("local"), registry.CHALLENGER, "1")
    with pytest.raises(RegistryError, match="champion and challenger at once"):
        live.versions(client, "local")
    version(client, 2, run_id, registry.CHALLENGER)
    champion, challenger = live.versions(client, "local")
    assert (champion.number, challenger.number) == (1, 2)
    found = live.summarize_runs([made(1.2, 1.0), made(1.21, 1.0, seed=1)])
    live.note_verdict(client, champion, challenger, found, 64)
    (_, noted) = registry.list_versions(client, challenger.name)
    told = noted.tags["live"]
    assert told.startswith("ahead: its programs are 1.205 [")
    assert told.endswith("version 1 (1.1) after 64 programs of each of 1 tasks, 2 seed(s)")
    path = Path(client.download_artifacts(run_id, "register/live.json", str(tmp_path)))
    content = orjson.loads(path.read_bytes())
    assert (content["word"], content["against"], len(content["runs"])) == ("ahead", 1, 2)


@pytest.mark.tvm
def test_two_models_tune_and_are_compared(
    make_bundle: Callable[[str], Path], target: dict[str, Any], cpu_intrinsics: None, tmp_path: Path
) -> None:
    from rich.console import Console
    from tvm.ir import save_json

    from tencost.networks.network import NetworkTask
    from tencost.store.ids import workload_id
    from tencost.workers.evaluator import MeasureOptions
    from tencost.workers.pool import WorkerPool

    tasks = [
        NetworkTask(f"matmul_{size}", make_matmul(size), 1, 2.0 * size**3, None)
        for size in (48, 32)
    ]
    first = workload_id(str(save_json(tasks[0].mod)))
    book = StartBook.of("test", target, [(first, 1e-3, [[], []])])
    knowing = ship(make_bundle("xgb"), book, tmp_path / "knowing")
    sides = {"champion": str(knowing), "challenger": str(make_bundle("random"))}
    left = live.unknown_tasks(tasks, sides, tmp_path, Console(quiet=True))
    assert [task.name for task in left] == ["matmul_32"]
    with pytest.raises(TuneError, match="found all 1 among their starting points"):
        live.unknown_tasks(tasks[:1], sides, tmp_path, Console(quiet=True))

    tuner = TunerConfig(trials=8, population=16, generations=1, starts=0, register_tiles=False)
    hardware = HardwareConfig(name="local", target=target)
    pool = WorkerPool(MeasureOptions(number=1, repeat=1, min_repeat_ms=0))
    told: list[LiveRun] = []
    try:
        found = live.tune_both_sides(
            left, sides, hardware, tuner, pool, tmp_path, range(2), told.append
        )
    finally:
        pool.close()
    assert tuple(told) == found.runs
    assert [one.seed for one in found.runs] == [0, 1]
    for one in found.runs:
        assert one.champion_s > 0
        assert one.challenger_s > 0
        reached = [one.champion_programs, one.challenger_programs]
        assert any(1 <= count <= 8 for count in reached)
    mean = sum(math.log(one.champion_s / one.challenger_s) for one in found.runs) / 2
    assert found.speed == pytest.approx(math.exp(mean))
