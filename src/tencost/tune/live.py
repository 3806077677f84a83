"""`tencost register live`: champion and challenger tune the same tasks for as many programs, on their hardware.

Records can be ranked; whether a search guided by a model finds fast programs is seen where it searches. The tasks are a
fixed set: the heaviest of a few networks in sizes that no dataset of this repository has; one whose workload is among
the starting points that a side ships has been learnt from and is left out. Each run starts from nothing, a task alone,
with the settings of `tuner`; which side goes first alternates, since the host's speed drifts. The verdict is a note on
the challenger's version and decides nothing. It takes minutes, and a quiet host: it is no stage of the pipeline.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from tencost.config import Config, HardwareConfig, TunerConfig
from tencost.errors import RegistryError, TuneError
from tencost.evaluate.interval import seed_interval
from tencost.evaluate.leaderboard_table import wide
from tencost.features.device import attributes
from tencost.programs.starting_points import shipped_starts
from tencost.register import registry
from tencost.register.registry import Version

if TYPE_CHECKING:
    from tencost.networks.network import NetworkTask
    from tencost.workers.pool import WorkerPool

NETWORKS: tuple[tuple[str, ...], ...] = (
    (
        "network=bert_tiny", "network.size=112", "network.config.hidden_size=160",
        "network.config.intermediate_size=720",
    ),
    ("network=resnet_18", "network.size=176", "network.config.hidden_sizes=[56,112,224,448]"),
)  # fmt: skip
"""What each network is composed of: its choice and its changes."""
HEAVIEST = 2
"""Tasks of a network: those of most FLOP."""
NEAR = 1.02
"""A side is there once it has a program within this factor of the faster of the two sides' best."""


@dataclass(frozen=True)
class LiveRun:
    """One task tuned once by each side.

    Attributes:
        task: its name, with its network's.
        seed: of the search.
        champion_s, challenger_s: latency of the best program found, seconds.
        champion_programs, challenger_programs: programs until within NEAR of the faster of the two; NaN if never.
    """

    task: str
    seed: int
    champion_s: float
    challenger_s: float
    champion_programs: float
    challenger_programs: float


@dataclass(frozen=True)
class Live:
    """What the runs say together.

    Attributes:
        speed: geometric mean of champion's latency / challenger's; above 1 the challenger's programs are faster.
        low, high: its 95 % interval over the runs (Student's t on the logarithms); NaN with one run.
        runs: one a task and seed.
    """

    speed: float
    low: float
    high: float
    runs: tuple[LiveRun, ...]

    @property
    def word(self) -> str:
        """Ahead or behind where the interval says so, else even."""
        return "ahead" if self.low > 1.0 else "behind" if self.high < 1.0 else "even"

    @property
    def figures(self) -> str:
        """The speed with its interval, where there is one."""
        interval = "" if math.isnan(self.low) else f" [{self.low:.3f}, {self.high:.3f}]"
        return f"{self.speed:.3f}{interval}"


def run(cfg: Config, root: Path, *, programs: int = 64, seeds: int = 2) -> Live:
    """Let champion and challenger of cfg.hardware tune; write the verdict to the challenger's version and run.

    Args:
        cfg: names hardware and tuner; its network is not used.
        root: the project's root.
        programs: measured a task, seed and side.
        seeds: searches of each task and side.

    Raises:
        RegistryError: there is no champion, or no challenger beside it.
        HardwareError: the hardware's programs cannot run on this host.
        TuneError: the models have learnt from every task.
    """
    from tencost.measure.run import cpus_of
    from tencost.programs.trace.intrinsics import register_cpu_intrinsics
    from tencost.tracking import runs as tracking
    from tencost.tune.inputs import flushes_caches, program_timing
    from tencost.workers.hardware import check_cores, check_runnable, check_target, resolve_hardware
    from tencost.workers.pool import CpuPlan, WorkerPool

    root, console = root.resolve(), Console(stderr=True)
    hardware = resolve_hardware(cfg.hardware)
    for check in (check_target, check_runnable, check_cores):
        check(hardware)
    client = registry.connect(tracking.setup(root, cfg.experiment_name))
    champion, challenger = versions(client, hardware.name)
    sides = {"champion": champion.uri, "challenger": challenger.uri}
    register_cpu_intrinsics()
    tasks = unknown_tasks(fixed_tasks(hardware, root), sides, root, console)
    tuner = replace(cfg.tuner, trials=programs)
    options = program_timing(tuner, cache_flush=flushes_caches(tuner, hardware))
    plan = CpuPlan.choose(cpus_of(hardware), name=hardware.name)
    with closing(WorkerPool(options, cpus_of(hardware), plan)) as pool:
        live = tune_both_sides(
            tasks,
            sides,
            hardware,
            tuner,
            pool,
            root,
            range(seeds),
            lambda run: _print(run, console),
        )
    note_verdict(client, champion, challenger, live, programs)
    print_live(live, champion, challenger)
    return live


def versions(client: Any, hardware: str) -> tuple[Version, Version]:
    """Return the champion and the challenger of a hardware.

    Raises:
        RegistryError: there is no champion, or no challenger beside it.
    """
    name = registry.model_name(hardware)
    all_versions = registry.list_versions(client, name)
    champion, challenger = (
        registry.with_alias(all_versions, alias)
        for alias in (registry.CHAMPION, registry.CHALLENGER)
    )
    if champion is None or challenger is None:
        raise RegistryError(
            f"expected a champion and a challenger of {name}, found {len(all_versions)} version(s) and "
            f"{'no champion' if champion is None else 'no challenger'}. Make them: tencost register"
        )
    if champion.number == challenger.number:
        raise RegistryError(
            f"version {champion.number} of {name} is champion and challenger at once, so there is nothing to compare "
            "it with. Train another and register it: tencost register"
        )
    return champion, challenger


def fixed_tasks(hardware: HardwareConfig, root: Path) -> list[NetworkTask]:
    """Return the tasks that both sides tune, their names with their network's."""
    from tencost.config.composition import compose
    from tencost.networks.network import load_network
    from tencost.tune.reporting import native_messages_to

    heaviest: list[NetworkTask] = []
    for words in NETWORKS:
        cfg, _ = compose(list(words))
        with (
            tempfile.TemporaryDirectory(prefix="tencost-live-") as scratch,
            native_messages_to(Path(scratch) / "import.log"),
        ):
            network = load_network(cfg.network, root, target=hardware.target)
            every = network.tasks(hardware.target)
        tasks = sorted(every, key=lambda task: (-task.flop, task.name))
        heaviest += [
            replace(task, name=f"{network.name}_{task.name}", weight=1) for task in tasks[:HEAVIEST]
        ]
    return heaviest


def unknown_tasks(
    tasks: Sequence[NetworkTask], sides: Mapping[str, str], root: Path, console: Console
) -> list[NetworkTask]:
    """Return the tasks that no side ships starting points of: those have been learnt from.

    Raises:
        TuneError: there is none.
    """
    from tvm.ir import save_json

    from tencost.register.pull import pull
    from tencost.store.ids import workload_id

    learnt: set[str] = set()
    for uri in sides.values():
        book = shipped_starts(pull(uri, root=root))
        learnt |= set() if book is None else {start.workload for start in book.starts}
    unknown = [task for task in tasks if workload_id(str(save_json(task.mod))) not in learnt]
    if not unknown:
        raise TuneError(
            f"expected tasks that neither side has learnt from, found all {len(tasks)} among their starting points. "
            "Compare on the test networks instead: tencost register rule.refit=false"
        )
    if len(unknown) < len(tasks):
        console.print(f"{len(tasks) - len(unknown)} task(s) left out: a side has learnt from them")
    return unknown


def tune_both_sides(
    tasks: Sequence[NetworkTask],
    sides: Mapping[str, str],
    hardware: HardwareConfig,
    tuner: TunerConfig,
    pool: WorkerPool,
    root: Path,
    seeds: Sequence[int],
    on_run: Callable[[LiveRun], None] = lambda _: None,
) -> Live:
    """Tune every task with every seed by champion and challenger in turn.

    Args:
        tasks: each is tuned alone.
        sides: where the models of "champion" and "challenger" are, as `load_cost_model` takes it.
        hardware: what is tuned on: this host.
        tuner: settings of each run; `trials` programs are measured.
        pool: builds and times.
        root: the project's root.
        seeds: of the searches.
        on_run: called after each run.
    """
    runs = []
    for seed in seeds:
        for at, task in enumerate(tasks):
            settings = replace(tuner, seed=tuner.seed + seed)
            curves = {}
            for side in list(sides)[:: -1 if (at + seed) % 2 else 1]:
                best_s = _curve(task, side, sides[side], hardware, settings, pool, root)
                curves[side] = np.array(best_s)
            champion, challenger = (curves[side] for side in sides)
            near = NEAR * min(champion.min(), challenger.min())
            runs.append(
                LiveRun(
                    task=task.name,
                    seed=seed,
                    champion_s=float(champion.min()),
                    challenger_s=float(challenger.min()),
                    champion_programs=_reached(champion, near),
                    challenger_programs=_reached(challenger, near),
                )
            )
            on_run(runs[-1])
    return summarize_runs(runs)


def summarize_runs(runs: Sequence[LiveRun]) -> Live:
    """Return the geometric mean of the runs' speeds with its interval."""
    over = seed_interval([math.log(run.champion_s / run.challenger_s) for run in runs])
    low, high = math.exp(over.low), math.exp(over.high)
    return Live(math.exp(over.mean), low, high, tuple(runs))


def note_verdict(
    client: Any, champion: Version, challenger: Version, live: Live, programs: int
) -> None:
    """Write the verdict to the challenger's version (tag `live`) and all runs to its MLflow run."""
    tasks, seeds = ({getattr(run, name) for run in live.runs} for name in ("task", "seed"))
    text = (
        f"{live.word}: its programs are {live.figures} times as fast as those of version "
        f"{champion.number} ({champion.semver}) after {programs} programs of each of {len(tasks)} tasks, "
        f"{len(seeds)} seed(s)"
    )
    client.set_model_version_tag(challenger.name, str(challenger.number), registry.LIVE_TAG, text)
    content = {
        "against": champion.number,
        "programs": programs,
        "word": live.word,
        **asdict(live),
    }
    text = orjson.dumps(content, option=orjson.OPT_INDENT_2).decode()
    client.log_text(challenger.run_id, text + "\n", "register/live.json")


def print_live(live: Live, champion: Version, challenger: Version) -> None:
    """Print a row a run, and the verdict."""
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("task", no_wrap=True)
    for heading in (
        "seed", "champion, us", "challenger, us", "programs of the champion", "of the challenger",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for run in live.runs:
        table.add_row(
            run.task,
            str(run.seed),
            *(f"{1e6 * seconds:.1f}" for seconds in (run.champion_s, run.challenger_s)),
            *(
                "not reached" if math.isnan(count) else f"{count:.0f}"
                for count in (run.champion_programs, run.challenger_programs)
            ),
        )
    console = wide()
    console.print(table)
    console.print(
        f"{challenger.name}: version {challenger.number} is {live.word} against version {champion.number}, its "
        f"programs are {live.figures} times as fast; programs: until within {100 * (NEAR - 1):.0f} % of"
        " the faster best",
        soft_wrap=True,
        highlight=False,
    )


def _print(run: LiveRun, console: Console) -> None:
    console.print(
        f"{run.task}, seed {run.seed}: champion {1e6 * run.champion_s:.1f} us, challenger "
        f"{1e6 * run.challenger_s:.1f} us",
        highlight=False,
        soft_wrap=True,
    )


def _curve(
    task: NetworkTask,
    side: str,
    uri: str,
    hardware: HardwareConfig,
    tuner: TunerConfig,
    pool: WorkerPool,
    root: Path,
) -> list[float]:
    """Return the best latency known after each program that a side measures, seconds; infinite while all failed."""
    from tencost.tune.cost_model import load_cost_model
    from tencost.tune.inputs import flushes_caches
    from tencost.tune.session import MeasuredBatch, TuningSession
    from tencost.tune.workfolder import open_folder

    model = load_cost_model(uri, frozen=not tuner.learn, device=attributes(hardware), root=root)
    book = shipped_starts(model.bundle.folder) if tuner.starts else None
    cache_flush = flushes_caches(tuner, hardware)
    best: list[float] = []

    def add(batch: MeasuredBatch) -> None:
        for timing in batch.timings:
            seconds = float(np.median(timing.run_secs)) if timing.run_secs else math.inf
            best.append(min([seconds, *best[-1:]]))

    with (
        tempfile.TemporaryDirectory(prefix="tencost-live-") as scratch,
        open_folder(
            Path(scratch), task.name, hardware.name, hardware.target, cache_flush=cache_flush
        ) as folder,
    ):
        session = TuningSession(
            [task], hardware.target, tuner, model, folder, pool, threads=1, on_batch=add, book=book
        )
        session.measure_untuned()
        session.run()
    if not best or math.isinf(best[-1]):
        raise TuneError(
            f"expected a program of {task.name} that works among {tuner.trials}, found none with the {side} "
            f"({uri}). Measure more: tencost register live --programs {4 * tuner.trials}"
        )
    return best


def _reached(curve: np.ndarray[Any, np.dtype[np.float64]], near_s: float) -> float:
    reached = np.flatnonzero(curve <= near_s)
    return float(reached[0] + 1) if len(reached) else math.nan
