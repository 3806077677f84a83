"""The front door: ``tencost <command> [OPTIONS] [OVERRIDES]``. One grammar (grammar.py), one message for a mistake."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tencost import __version__, signals
from tencost.cli import extras, stages
from tencost.cli.completion import COMPLETION, VARIABLE
from tencost.cli.grammar import Group, command_options
from tencost.cli.graphs import GRAPHS
from tencost.cli.measure import MEASURE
from tencost.cli.pipeline import INIT, PARAMS, PIPELINE
from tencost.cli.profiles import PROFILES
from tencost.cli.records import RECORDS
from tencost.cli.register import REGISTER
from tencost.cli.servers import SERVE, UI
from tencost.errors import TencostError, printable, refusal
from tencost.tracking.server_check import database_errors, explanation, is_database_failure
from tencost.workers.parallel.lean_imports import leave_out_unused

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


TASKS: dict[str, tuple[click.Command, ...]] = {
    "A project": (INIT, PIPELINE, PARAMS),
    "Measure and import": (MEASURE, stages.FETCH, RECORDS, PROFILES),
    "Train and compare": (
        stages.FEATURES, stages.SPLITS, stages.TRAIN, stages.EVALUATE, stages.LEADERBOARD, stages.REPORT, UI,
    ),
    "Register and adapt": (REGISTER, stages.ADAPT),
    "Tune and compile": (stages.TUNE, stages.COMPILE, SERVE),
    "Whole networks": (GRAPHS,),
    "Shell": (COMPLETION,),
}  # fmt: skip
"""The commands by what they are for, as `tencost --help` lists them."""


class _Root(Group):
    """`tencost` itself: without a word it prints its help; `help` and `version` are words, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            words = {"help": "--help", "version": "--version"}
            args = [words.get(args[0], args[0]), *args[1:]] if args else ["--help"]
        return super().parse_args(ctx, args)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(map(len, self.commands))
        width = formatter.width - longest - 4
        for task, commands in TASKS.items():
            with formatter.section(task):
                formatter.write_dl(
                    [
                        (str(command.name).ljust(longest), command.get_short_help_str(width))
                        for command in commands
                    ]
                )

    def refuse(self, ctx: click.Context, word: str) -> None:
        raise click.UsageError(
            f"expected a command of {', '.join(self.commands)}, found {word}", ctx
        )


TENCOST = _Root(
    "tencost",
    "Learned cost models for tensor programs.\n\nOverrides are Hydra's: model=mlp features=trace model.epochs=20 "
    "'seeds=[0,1,2]'. What a command can be told: tencost <command> --help",
    examples=(
        "tencost train -m model=xgb,mlp hardware=epyc-avx512-1c,epyc-avx2-1c",
        "tencost tune network=bert_tiny hardware=epyc-avx512-1c",
        "tencost records query best --hardware v100",
    ),
    commands=[command for commands in TASKS.values() for command in commands],
)
click.version_option(
    __version__,
    "-V",
    "--version",
    message="%(prog)s %(version)s",
    help="Print the version and exit.",
)(TENCOST)
COMMANDS = TENCOST.commands


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; exits with 2 and one message on a user's mistake, 130 on Ctrl-C, 143 on SIGTERM."""
    if argv is None:  # a process of our own
        leave_out_unused()
        warnings.formatwarning = _format_warning
    arguments = list(sys.argv[1:] if argv is None else argv)
    for variable, setting in QUIET_ENVIRONMENT.items():
        os.environ.setdefault(variable, setting)
    try:
        with signals.listening():
            TENCOST.main(arguments, "tencost", complete_var=VARIABLE, standalone_mode=False)
    except click.Abort:
        ended, code = ("ended by SIGTERM", 143) if signals.terminated() else ("interrupted", 130)
        fail(f"{ended}; what was finished is kept, run the command again to continue", code)
    except click.ClickException as error:
        fail(_message(error), 2)
    except TencostError as error:
        fail(str(error), error.exit_code)
    except OSError as error:
        sentence = refusal(error)
        if sentence is None:
            raise
        fail(sentence, 2)
    except database_errors() as error:  # of a run's own writes, wherever they are
        if not is_database_failure(error):
            raise
        fail(explanation(os.environ.get("MLFLOW_TRACKING_URI", "of this project"), error), 2)
    except ModuleNotFoundError as error:
        missing = extras.missing(" ".join(["tencost", *arguments[:1]]), error)
        if missing is None:
            raise
        fail(str(missing), missing.exit_code)


_default_format = warnings.formatwarning
_PACKAGE = str(Path(__file__).parents[1])


def _format_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Return a warning of tencost as its sentence alone; other packages' warnings keep file and line."""
    if filename.startswith(_PACKAGE):
        return f"warning: {printable(str(message))}\n"
    return _default_format(message, category, filename, lineno, line)


def _message(error: click.ClickException) -> str:
    """Return what Click refused in the house's words, how the command is used, and where its help is."""
    ctx: Any = getattr(error, "ctx", None)
    param: Any = getattr(error, "param", None)
    message = error.format_message()
    name = param and (
        f"{param.opts[-1]} {param.make_metavar(ctx)}"
        if isinstance(param, click.Option)
        else param.make_metavar(ctx)
    )
    match error:
        case click.NoSuchOption():
            valid = [opt for option in command_options(ctx) for opt in option.opts]
            message = f"expected an option of {', '.join(valid)}, found {error.option_name!r}"
        case click.MissingParameter() if param is not None:
            help = getattr(param, "help", None)
            meaning = f" ({help[0].lower()}{help[1:].rstrip('.')})" if help else ""
            message = f"expected {name}{meaning}, found none"
        case click.BadOptionUsage():
            message = f"expected a value after {error.option_name}, found none"
        case click.BadParameter() if param is not None:
            message = f"{name}: {error.message}"
    if ctx is None:
        return message
    return f"{message}\n{ctx.get_usage()}\nSee `{ctx.command_path.strip()} --help`."


def fail(message: str, code: int) -> None:
    """End the process with a message, on one's guard: it may quote a file."""
    sys.stderr.write(f"tencost: {printable(message)}\n")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
