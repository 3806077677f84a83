"""Commands that are more than one stage: train and score, registry subcommands, the leaderboard page, the UI."""

from __future__ import annotations

import os
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tencost.config import Config
from tencost.errors import ConfigError, MissingDependencyError, RegistryError


def train(arguments: list[str]) -> None:
    """Train (stage train) and score on the held-out split (room evaluate), once or as a sweep."""
    from tencost.config import composition

    if any(word in ("-m", "--multirun") for word in arguments):
        _train_sweep(arguments)
    else:
        composition.run_stage(train_and_score, "train", arguments)


def train_and_score(config: Config, root: Path) -> float:
    """Train every seed, score the test split into the same MLflow run; return the validation metric (maximize)."""
    from tencost.evaluate.stage import score_run
    from tencost.train.data import Data
    from tencost.train.stage import run

    data = Data(config, root)
    result = run(config, root, data)
    if config.score_test:
        score_run(data, result.folder)
    return float(result.valid_score)


def _train_sweep(arguments: list[str]) -> None:
    from tencost.config import composition
    from tencost.train import tracking

    root, _ = composition.config_folder()
    name = "sweep " + " ".join(word for word in arguments if "=" in word)
    with tracking.parent_run(root, name):
        composition.run_sweep(_sweep_job, "train", arguments)


def _sweep_job(config: Config, root: Path) -> float:
    """Train one combination of a sweep; one that cannot work is skipped with its reason, and the sweep goes on."""
    from hydra.core.hydra_config import HydraConfig
    from rich.console import Console

    if config.features.name not in config.model.reads:
        Console(stderr=True).print(
            f"skipped model={config.model_name} features={config.features.name}: the family "
            f"{config.model.family} reads {', '.join(config.model.reads)}"
        )
        return float("nan")
    # Jobs may differ in any field, so each has a folder of its own and the pipeline's outputs stay as they are.
    config.paths.models = str(Path(HydraConfig.get().runtime.output_dir) / "models")
    return train_and_score(config, root)


def measure(arguments: list[str]) -> None:
    """Run one step of a collection: `tencost measure networks network=bert_tiny`, also as a sweep with -m."""
    from tencost.config import composition
    from tencost.measure import stage

    word = arguments[0] if arguments else None
    if word == "export":
        from tencost.networks import saving as network_export

        to, words = network_export.split_words(arguments[1:])
        composition.run_stage(partial(network_export.run, to=to), "measure export", words)
        return
    if word not in stage.COMMANDS:
        raise ConfigError(
            f"expected `tencost measure` and one of {', '.join(stage.COMMANDS)}, export, found {word or 'nothing'}. In "
            "this order: tencost measure networks network=bert_tiny && tencost measure programs && tencost measure run "
            "hardware=local"
        )
    words = arguments[1:]
    if word == "hardware" and not any(item.startswith("hardware=") for item in words):
        words = ["hardware=local", *words]  # the one description that is read from the host
    composition.run_stage(stage.COMMANDS[word], f"measure {word}", words)


def records(arguments: list[str]) -> None:
    """Run the records stage, or `records import`, `query`, `export`, `quarantine` and `compact` on the live store."""
    from tencost.config import composition
    from tencost.records import stage

    word, words = (arguments[0], arguments[1:]) if arguments else ("", [])
    root, _ = composition.config_folder()
    if word == "import":
        from tencost.records import import_command

        import_command.run(words, root)
    elif word == "query":
        from tencost.records import query_command

        query_command.run(words)
    elif word == "export":
        from tencost.records import best_schedules as export
        from tencost.records import export_logs

        if words[:1] == ["metaschedule"]:
            export.run(words)
        else:
            export_logs.run(words, root)
    elif word in ("quarantine", "compact"):
        from tencost.records import store_commands

        getattr(store_commands, word)(words, root)
    elif word and "=" not in word and not word.startswith("-"):
        raise ConfigError(
            f"expected `tencost records` and import, query, export, quarantine, compact or overrides, found {word!r}"
        )
    else:
        composition.run_stage(stage.run, "records", arguments)


def register(arguments: list[str]) -> None:
    """Run the register stage, or `register status`, `drift`, `export <model> <folder>` or `rollback <model>`."""
    from tencost.config import composition

    word = arguments[0] if arguments else ""
    root, _ = composition.config_folder()
    if word == "export":
        from tencost.register import export

        export.run(arguments[1:], root)
        return
    from tencost.register import stage
    from tencost.register import standing as status

    if word == "status":
        status.show(root, arguments[1:])
    elif word == "drift":
        from tencost.register import drift_command

        drift_command.run(arguments[1:], root)
    elif word == "rollback":
        status.rollback_command(root, arguments[1:])
    else:
        composition.run_stage(stage.run, "register", arguments)


def params(arguments: list[str]) -> None:
    """Write what `train` and `blends` of params.yaml are from its lists."""
    from tencost.config.pipeline import FILE, write_items
    from tencost.config.schema import project_root

    _nothing_more("params", arguments)
    changed = write_items(project_root())
    sys.stdout.write(f"{FILE}: {'written anew' if changed else 'up to date'}\n")


def pipeline(arguments: list[str]) -> None:
    """Run `dvc repro` with the arguments given, on sound files: dvc.lock mended, params.yaml's items up to date."""
    from tencost.config import lockfile
    from tencost.config.pipeline import write_items
    from tencost.config.schema import project_root

    root = project_root()
    source = lockfile.mend(root)
    if source is not None:
        sys.stderr.write(f"dvc.lock was cut off, as by a kill; restored from {source}\n")
    write_items(root)
    if find_spec("dvc") is None:
        raise MissingDependencyError("the pipeline needs DVC: pip install 'tencost[pipeline]'")
    os.chdir(root)
    os.execv(sys.executable, [sys.executable, "-m", "dvc", "repro", *arguments])


def _nothing_more(command: str, arguments: list[str]) -> None:
    if arguments:
        raise ConfigError(f"expected `tencost {command}` alone, found {' '.join(arguments)!r}")


def leaderboard(arguments: list[str]) -> None:
    """Print the leaderboards that `evaluate` wrote last and the champions in the registry."""
    from tencost.config import composition
    from tencost.evaluate.report import print_leaderboards
    from tencost.register import standing as status

    config, root = composition.compose(arguments)
    print_leaderboards(root / config.paths.reports)
    status.print_champions(root)


def ui(arguments: list[str]) -> None:
    """Serve the MLflow UI on loopback until Ctrl-C: one worker, no job queue (it starts in seconds)."""
    from tencost.config import composition
    from tencost.train import tracking

    port = "5000"
    if arguments:
        if len(arguments) != 2 or arguments[0] != "--port" or not arguments[1].isdigit():
            raise ConfigError(f"expected `tencost ui [--port N]`, found {' '.join(arguments)!r}")
        port = arguments[1]
    root, _ = composition.config_folder()
    uri = tracking.setup(root)
    executable = Path(sys.executable).with_name("mlflow")
    if not executable.exists():
        raise MissingDependencyError(
            "the MLflow UI needs the full mlflow: pip install 'tencost[pipeline]'"
        )
    environment: dict[str, Any] = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    command = [str(executable), "ui", "--workers", "1", "--host", "127.0.0.1", "--port", port]
    try:
        os.execve(executable, [*command, "--backend-store-uri", uri], environment)
    except OSError as error:
        raise RegistryError(f"cannot start {executable}: {error}") from error
