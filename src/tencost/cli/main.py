"""The one front door: ``tencost <command> [hydra overrides]``, ``tencost <stage> -m ...`` for sweeps."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from tencost.errors import ConfigError, TencostError

QUIET_ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "GIT_PYTHON_REFRESH": "quiet",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "ITERATIVE_DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Nothing reports home and nothing asks a hub, unless the user's own environment says otherwise."""


@dataclass(frozen=True)
class Command:
    """A word on the command line, what it does, and the function that does it."""

    summary: str
    run: Callable[[list[str]], None]


def _stage(module: str) -> Callable[[list[str]], None]:
    def run(arguments: list[str]) -> None:
        from tencost.config import composition

        composition.run_stage(import_module(f"tencost.{module}.stage").run, module, arguments)

    return run


def _command(function: str) -> Callable[[list[str]], None]:
    def run(arguments: list[str]) -> None:
        getattr(import_module("tencost.cli.commands"), function)(arguments)

    return run


COMMANDS: dict[str, Command] = {
    "measure": Command(
        "collect a raw dataset on your hardware: measure networks, programs, run; also hardware, pack, export",
        _command("measure"),
    ),
    "pipeline": Command(
        "run every stage that is out of date (dvc repro); first mend what a kill left",
        _command("pipeline"),
    ),
    "params": Command("write the items of params.yaml from its lists", _command("params")),
    "fetch": Command("bring a raw dataset from where it lives to data/raw/", _stage("fetch")),
    "records": Command(
        "read its logs into the record store; also: records import, query, export, quarantine, compact",
        _command("records"),
    ),
    "features": Command("turn every program into rows of named columns", _stage("features")),
    "splits": Command(
        "divide the records into train, valid and test, leak-proof", _stage("splits")
    ),
    "train": Command("train a model family; -m sweeps over choices", _command("train")),
    "evaluate": Command(
        "compare all trained models of a hardware on the test split", _stage("evaluate")
    ),
    "register": Command(
        "promote the winner if the rule allows it; also: register status, drift, export, rollback",
        _command("register"),
    ),
    "tune": Command(
        "tune a network with TVM's MetaSchedule and a registered model", _stage("tune")
    ),
    "leaderboard": Command("print the last leaderboards and champions", _command("leaderboard")),
    "ui": Command("MLflow UI on loopback [--port N]", _command("ui")),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; exits with 2 and one message on a user's mistake, 130 on Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for name, value in QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        _dispatch(arguments)
    except TencostError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted; what was finished is kept, run the command again to continue", 130)


def _dispatch(arguments: list[str]) -> None:
    from tencost import __version__

    if not arguments or arguments[0] in ("-h", "--help", "help"):
        _help()
    elif arguments[0] in ("-V", "--version", "version"):
        _say(f"tencost {__version__}")
    elif arguments[0] not in COMMANDS:
        raise ConfigError(
            f"expected a command of {', '.join(COMMANDS)}, found {arguments[0]!r}. See `tencost --help`."
        )
    elif any(word in ("-h", "--help") for word in arguments[1:]):
        _help_for(arguments[0])
    else:
        COMMANDS[arguments[0]].run(arguments[1:])


def _help() -> None:
    lines = [
        "tencost: learned cost models for tensor programs",
        "",
        "usage: tencost <command> [overrides]",
        "",
    ]
    lines += [f"  {name:<12} {command.summary}" for name, command in COMMANDS.items()]
    lines += [
        "",
        "Overrides are Hydra's: model=mlp features=trace model.epochs=20 seeds=[0,1,2]",
        "Sweeps:                tencost train -m model=xgb,mlp hardware=epyc-avx512-1c,epyc-avx2-1c",
        "Choices of a command:  tencost <command> --help",
    ]
    _say("\n".join(lines))


def _help_for(name: str) -> None:
    from tencost.config import composition

    lines = [f"tencost {name}: {COMMANDS[name].summary}", ""]
    lines += ["Choices (group=choice), the default first:"]
    for group, choices in composition.group_choices().items():
        lines.append(f"  {group:<11} {', '.join(choices)}")
    lines += [
        "",
        "Any field: group.field=value, for example model.eta=0.05; fields: src/tencost/config/schema.py",
    ]
    _say("\n".join(lines))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _fail(message: str, code: int) -> None:
    sys.stderr.write(f"tencost: {message}\n")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
