"""The stages without sub-commands, train with its sweeps, and what shows results: leaderboard and ui."""

from __future__ import annotations

import errno
import os
import socket
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import psutil
from click.core import ParameterSource

from tencost import signals
from tencost.cli import grammar
from tencost.cli.overrides import StageCommand, stage_function
from tencost.config import Config
from tencost.errors import ConfigError, MissingDependencyError, RegistryError

_SHELLS = ("bash", "dash", "fish", "ksh", "sh", "zsh")

FETCH = StageCommand(
    "fetch",
    stage_function("tencost.records.fetch.stage"),
    uses=("dataset", "paths.raw"),
    examples=("tencost fetch", "tencost fetch dataset=tencost-xeon"),
    help="Bring a raw dataset from where it lives to data/raw/.",
)
FEATURES = StageCommand(
    "features",
    stage_function("tencost.features.stage"),
    uses=("dataset", "features", "execution", "jobs", "paths.records", "paths.features"),
    examples=(
        "tencost features features=per_store_tiles",
        "tencost features features=trace jobs=4",
        "tencost features features=per_store execution=ray execution.address=10.0.0.5:6379",
    ),
    help="Turn every program into rows of named columns.",
)
SPLITS = StageCommand(
    "splits",
    stage_function("tencost.splits.stage"),
    uses=("dataset", "split", "paths.records", "paths.splits"),
    examples=(
        "tencost splits split=by_network",
        "tencost splits split=by_task split.test_fraction=0.3",
    ),
    help="Divide the records into train, valid and test, leak-proof.",
)

COMPILE = StageCommand(
    "compile",
    stage_function("tencost.tune.compiled"),
    uses=("network", "hardware", "tuner.workdir", "paths.store"),
    defaults=("hardware=local",),
    options=(
        grammar.ValueOption(
            ["--to"],
            type=grammar.Place("FILE"),
            help="The library; compiled/<network>-<hardware>.so unless given.",
        ),
        grammar.ValueOption(
            ["--database"],
            type=grammar.Place("FOLDER"),
            help="A MetaSchedule database; what `tencost tune` left of the network unless given.",
        ),
    ),
    examples=(
        "tencost compile network=bert_tiny hardware=epyc-avx512-1c --to model.so",
        "tencost compile network=onnx network.path=model.onnx --database tuned",
    ),
    help="Write a tuned network as one library that TVM's runtime runs.\n\nRunners in Python and C++ lie beside it.",
)


def train_and_score(config: Config, root: Path) -> float:
    """Train every seed, score the test split into the same MLflow run; return the validation metric (maximize)."""
    from tencost.tracking.runs import check_tracking
    from tencost.train.data import Data
    from tencost.train.programs import run

    check_tracking(config, root)
    data = Data(config, root)
    if config.score_test:
        from tencost.evaluate.stage import load_truth, score_run

        # Refuses a part that nothing can be judged on now, not after the training.
        load_truth(data, "test")
    result = run(config, root, data)
    if config.score_test:
        score_run(data, result.folder)
    return float(result.valid_score)


def _train_sweep(overrides: list[str]) -> Any:
    from tencost.train import sweeps

    return sweeps.run("train", overrides, _train_in_sweep, sweeps.train_watched)


def _train_in_sweep(config: Config, root: Path, folder: Path) -> float:
    """Train one combination of a sweep; one that cannot work is skipped with its reason, and the sweep goes on."""
    from rich.console import Console

    if config.features.name not in config.model.reads:
        Console(stderr=True).print(
            f"skipped model={config.model_name} features={config.features.name}: the family "
            f"{config.model.family} reads {', '.join(config.model.reads)}"
        )
        return float("nan")
    # Jobs may differ in any field, so each has a folder of its own and the pipeline's outputs stay as they are.
    config.folds = 0  # what is not compared with the project's models is not chosen among them
    config.paths.models = str(folder / "models")
    return train_and_score(config, root)


TRAIN = StageCommand(
    "train",
    train_and_score,
    uses=(
        "dataset", "hardware", "features", "split", "model", "seeds", "folds", "score_test", "execution", "jobs",
        "experiment_name", "paths.records", "paths.features", "paths.splits", "paths.models",
    ),
    examples=(
        "tencost train model=mlp features=per_store_tiles hardware=epyc-avx512-1c",
        "tencost train model.eta=0.05 'seeds=[0,1,2]'",
        "tencost train -m model=xgb,mlp hardware=epyc-avx512-1c,epyc-avx2-1c",
        "tencost train -m experiment=search_xgb",
        "tencost train model=tlp 'seeds=[0,1,2,3,4]' execution=ray",
        "tencost train model=tlp --cfg job",
    ),
    help="Train a model family and score it on the held-out split.\n\nWith -m: every combination of some choices.",
    sweep=_train_sweep,
)  # fmt: skip


def _show_leaderboards(config: Config, root: Path) -> None:
    from tencost.evaluate.networks.report import print_boards
    from tencost.evaluate.report import print_leaderboards
    from tencost.register import registry_status

    reports = root / config.paths.reports
    if not print_boards(root, config.paths) or any(reports.glob("*/*/leaderboard.json")):
        print_leaderboards(reports)
    registry_status.print_champions(root)


LEADERBOARD = StageCommand(
    "leaderboard",
    _show_leaderboards,
    uses=("paths.reports",),
    examples=("tencost leaderboard",),
    help="Print the last leaderboards, and the champions in the registry.",
)

REPORT = StageCommand(
    "report",
    stage_function("tencost.cli.page"),
    uses=("dataset", "paths.records", "paths.reports"),
    options=(
        grammar.ValueOption(
            ["--tuned"],
            type=grammar.Place("FOLDER"),
            multiple=True,
            help="The work folder of a tuning run, which gets a part of its own.",
        ),
        grammar.ValueOption(
            ["--to"],
            type=grammar.Place("FILE"),
            default="report.html",
            show_default=True,
            help="The page.",
        ),
    ),
    examples=(
        "tencost report",
        "tencost report dataset=tencost-epyc --tuned tuned/bert_tiny-epyc-avx512-1c --to epyc.html",
    ),
    help=(
        "Write a dataset, its leaderboards and tuning runs as one HTML file that can be mailed.\n\nIt needs no "
        "network and no other file; light and dark, readable on a phone."
    ),
)


@click.command("params", cls=grammar.Command, examples=["tencost params"])
def params() -> None:
    """Write the items of params.yaml (what the stage train builds, by name) from its lists."""
    from tencost.config.pipeline import FILE, write_items
    from tencost.config.schema import project_root

    changed = write_items(project_root())
    sys.stdout.write(f"{FILE}: {'written anew' if changed else 'up to date'}\n")


@click.command(
    "pipeline",
    cls=grammar.Command,
    examples=[
        "tencost pipeline",
        "tencost pipeline records",
        "tencost pipeline graphs/dvc.yaml",
        "tencost pipeline -- --dry",
    ],
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def pipeline(words: tuple[str, ...]) -> None:
    """Run every stage that is out of date.

    It is `dvc repro`, with its stages and (after --) its options, on sound files: a dvc.lock that a kill cut off is
    restored first, and the items of params.yaml are written from its lists. With graphs/dvc.yaml, or
    graphs/dvc.yaml:<stage>, it runs the pipeline of whole networks, a DVC project of its own.
    """
    from tencost.cli.pipeline_progress import Progress, plan
    from tencost.config import graph_outputs, lockfile
    from tencost.config.pipeline import allow_no_git, write_items
    from tencost.config.schema import project_root

    root = project_root()
    for name, source in lockfile.mend(root).items():
        sys.stderr.write(f"{name} was cut off, as by a kill; restored from {source}\n")
    if lockfile.release(root):
        sys.stderr.write("what a killed command still held of DVC's paths is released\n")
    write_items(root)
    folder, words = graph_outputs.pipeline_words(root, words)
    if folder != root:
        graph_outputs.report_old_outputs(root)
        graph_outputs.remove_lost_marks(root)
    allow_no_git(folder)
    # Stages are `tencost <stage>`: of this installation, where its scripts are not on the path, too.
    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    os.chdir(folder)
    planned = None if words else plan(folder)
    if planned is None:
        code = _repro(words)
    else:
        with Progress(folder, planned) as progress:
            code = _repro(words)
            if code == 0:
                progress.end_stage()
    if signals.terminated():
        raise click.Abort
    raise SystemExit(code)


def _repro(words: Sequence[str]) -> int:
    """Run `dvc repro` in this process; SIGTERM goes to the stage that DVC waits for, whose end is waited for."""
    from dvc.cli import main as dvc

    def end_stages() -> None:
        if signals.terminated():
            stages = list(_stages(psutil.Process()))
            for stage in stages:
                with suppress(psutil.NoSuchProcess):
                    stage.terminate()
            while any(_runs(stage) for stage in stages):
                time.sleep(0.05)
        raise KeyboardInterrupt

    with signals.handled(end_stages):
        return int(dvc(["repro", *words]))


def _stages(process: psutil.Process) -> Iterator[psutil.Process]:
    """Yield the commands that a process waits for; a shell waits for its own."""
    for child in process.children():
        with suppress(psutil.NoSuchProcess):
            if child.name() in _SHELLS and child.children():
                yield from _stages(child)
            else:
                yield child


def _runs(process: psutil.Process) -> bool:
    """Say whether a child runs; one that has ended is left to whoever waits for it."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@click.command("ui", cls=grammar.Command, examples=["tencost ui", "tencost ui --port 5001"])
@grammar.option(
    "--port",
    type=grammar.Whole(0),
    default=5000,
    show_default=True,
    help="The port that it listens on, up to 65535; 0, or none given and 5000 taken: any that is free.",
)
@grammar.option(
    "--host",
    type=grammar.Text("ADDRESS"),
    default="127.0.0.1",
    show_default=True,
    help="The address that it listens on; others than loopback let everybody in who reaches it.",
)
def ui(port: int, host: str) -> None:
    """Serve the MLflow UI on loopback until Ctrl-C.

    It says under which address the table of runs opens with the headline figures. One worker, no job queue: it starts
    in seconds. In a container: --host 0.0.0.0.
    """
    from tencost.config import composition

    if port > 65535:
        raise click.UsageError(f"expected --port from 0 to 65535, found {port}")
    chosen = click.get_current_context().get_parameter_source("port")
    port = _port_to_listen_on(host, port, or_another=chosen is ParameterSource.DEFAULT)
    from mlflow import MlflowClient

    from tencost.evaluate import runs_view
    from tencost.tracking import runs as tracking

    root, _ = composition.config_folder()
    uri = tracking.setup(root)
    executable = Path(sys.executable).with_name("mlflow")
    if not executable.exists():
        raise MissingDependencyError(
            "the MLflow UI needs the full mlflow: pip install 'tencost[pipeline]'"
        )
    environment: dict[str, Any] = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    command = [str(executable), "ui", "--workers", "1", "--host", host, "--port", str(port)]
    if host not in ("127.0.0.1", "localhost", "::1"):
        command += ["--allowed-hosts", "*"]
    page = runs_view.keep(MlflowClient(tracking_uri=uri), tracking.EXPERIMENT)
    where = f"[{host}]" if ":" in host else host
    sys.stderr.write(f"runs with their headline figures: http://{where}:{port}{page or '/'}\n")
    try:
        os.execve(executable, [*command, "--backend-store-uri", uri], environment)
    except OSError as error:
        raise RegistryError(f"cannot start {executable}: {error}") from error


def _port_to_listen_on(host: str, port: int, *, or_another: bool) -> int:
    """Return a port that is free now.

    Args:
        host: the address that it belongs to.
        port: the one that is asked for; 0: any.
        or_another: whether another one will do where it is taken.

    Raises:
        ConfigError: it is taken, or there is no such address here.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as listener:
            return int(listener.getsockname()[1])
    except OSError as error:
        if or_another and error.errno == errno.EADDRINUSE:
            return _port_to_listen_on(host, 0, or_another=False)
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror or error
        raise ConfigError(
            f"expected to listen on {host} port {port}, cannot: {reason}. Choose another with --port "
            "(0: any that is free) or --host"
        ) from error
