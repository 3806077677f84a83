"""The front door: ``tencost <command> [OPTIONS] [OVERRIDES]``. One grammar (grammar.py), one message for a mistake."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from tencost import signals
from tencost.cli import completion, extras, grammar, stages
from tencost.cli.adapt import ADAPT
from tencost.cli.evaluate import EVALUATE
from tencost.cli.graphs import GRAPHS
from tencost.cli.init import init
from tencost.cli.measure import MEASURE
from tencost.cli.network_times import RECORDS
from tencost.cli.profiles import PROFILES
from tencost.cli.register import REGISTER
from tencost.cli.serve import serve
from tencost.cli.tune import TUNE
from tencost.errors import TencostError, printable, refusal

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


class Root(grammar.Group):
    """`tencost` itself: without a word it prints its help; `help` and `version` are words, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            words = {"help": "--help", "version": "--version"}
            args = [words.get(args[0], args[0]), *args[1:]] if args else ["--help"]
        return super().parse_args(ctx, args)

    def refuse(self, ctx: click.Context, found: str) -> None:
        raise click.UsageError(
            f"expected a command of {', '.join(self.commands)}, found {found}", ctx
        )


TENCOST = Root(
    "tencost",
    help=(
        "Learned cost models for tensor programs.\n\nOverrides are Hydra's: model=mlp features=trace model.epochs=20 "
        "'seeds=[0,1,2]'. What a command can be told: tencost <command> --help"
    ),
    examples=(
        "tencost train -m model=xgb,mlp hardware=epyc-avx512-1c,epyc-avx2-1c",
        "tencost tune network=bert_tiny hardware=epyc-avx512-1c",
        "tencost records query best --hardware v100",
    ),
    commands={
        str(command.name): command
        for command in (
            init,
            MEASURE,
            stages.FETCH,
            RECORDS,
            stages.FEATURES,
            stages.SPLITS,
            stages.TRAIN,
            EVALUATE,
            REGISTER,
            ADAPT,
            TUNE,
            stages.COMPILE,
            serve,
            GRAPHS,
            PROFILES,
            stages.LEADERBOARD,
            stages.REPORT,
            stages.ui,
            stages.pipeline,
            stages.params,
            completion.completion,
        )
    },
)
COMMANDS = TENCOST.commands


def _print_version(ctx: click.Context, _param: click.Parameter, asked: bool) -> None:
    from tencost import __version__

    if asked and not ctx.resilient_parsing:
        sys.stdout.write(f"tencost {__version__}\n")
        ctx.exit()


TENCOST.params.append(
    click.Option(
        ["-V", "--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_version,
        help="Print the version and exit.",
    )
)


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; exits with 2 and one message on a user's mistake, 130 on Ctrl-C, 143 on SIGTERM."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for name, value in QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        with signals.listening():
            TENCOST.main(
                arguments, "tencost", complete_var=completion.VARIABLE, standalone_mode=False
            )
    except click.Abort:
        ended, code = ("ended by SIGTERM", 143) if signals.terminated() else ("interrupted", 130)
        fail(f"{ended}; what was finished is kept, run the command again to continue", code)
    except click.ClickException as error:
        fail(_told(error), 2)
    except TencostError as error:
        fail(str(error), error.exit_code)
    except OSError as error:
        sentence = refusal(error)
        if sentence is None:
            raise
        fail(sentence, 2)
    except ModuleNotFoundError as error:
        told = extras.missing(" ".join(["tencost", *arguments[:1]]), error)
        if told is None:
            raise
        fail(str(told), told.exit_code)


def _told(error: click.ClickException) -> str:
    """Return what Click found wrong in the house's words, how the command is used, and where its help is."""
    ctx: Any = getattr(error, "ctx", None)
    message = error.format_message()
    if isinstance(error, click.NoSuchOption):
        valid = [name for item in _options(ctx) for name in item.opts]
        message = f"expected an option of {', '.join(valid)}, found {error.option_name!r}"
    elif isinstance(error, click.MissingParameter) and error.param is not None:
        told = getattr(error.param, "help", None)
        meaning = f" ({told[0].lower()}{told[1:].rstrip('.')})" if told else ""
        message = f"expected {_named(error.param, ctx)}{meaning}, found none"
    elif isinstance(error, click.BadOptionUsage):
        message = f"expected a value after {error.option_name}, found none"
    elif isinstance(error, click.BadParameter) and error.param is not None:
        message = f"{_named(error.param, ctx)}: {error.message}"
    if ctx is None:
        return message
    return f"{message}\n{ctx.get_usage()}\nSee `{ctx.command_path.strip()} --help`."


def _options(ctx: Any) -> list[click.Option]:
    found = [] if ctx is None else ctx.command.get_params(ctx)
    return [item for item in found if isinstance(item, click.Option)]


def _named(param: click.Parameter, ctx: Any) -> str:
    if isinstance(param, click.Option):
        return f"{param.opts[-1]} {param.make_metavar(ctx)}"
    return param.make_metavar(ctx)


def fail(message: str, code: int) -> None:
    """End the process with a message, on one's guard: it may quote a file."""
    sys.stderr.write(f"tencost: {printable(message)}\n")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
