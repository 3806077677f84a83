"""`tencost register`: the stage, and the registry: status, drift, export, promote, rollback, webhooks."""

from __future__ import annotations

from pathlib import Path

import click

from tencost.cli.grammar import Place, Text, ValueOption, Whole, option
from tencost.cli.overrides import StageCommand, StageGroup, stage_function

REGISTER = StageGroup(
    StageCommand(
        "register",
        stage_function("tencost.register.programs"),
        uses=(
            "dataset", "hardware", "split", "rule", "experiment_name", "paths.records", "paths.features",
            "paths.splits", "paths.models", "paths.reports", "paths.registry",
        ),
        examples=("tencost register hardware=epyc-avx2-1c",),
        help="Register the winner of a hardware; it is promoted if the rule allows it.",
    ),
    examples=("tencost register status", "tencost register drift tencost-epyc-avx512-1c"),
    help="Register and promote the winner of a hardware; ask the registry.\n\nWith a command below: the registry.",
)  # fmt: skip


REGISTER.add_command(
    StageCommand(
        "live",
        stage_function("tencost.tune.live"),
        uses=("hardware", "tuner", "experiment_name"),
        options=(
            ValueOption(
                ["--programs"],
                type=Whole(1),
                default=64,
                show_default=True,
                help="Programs measured a task, seed and side.",
            ),
            ValueOption(
                ["--seeds"],
                type=Whole(1),
                default=2,
                show_default=True,
                help="Searches of each task and side.",
            ),
        ),
        examples=(
            "tencost register live hardware=epyc-avx512-1c",
            "tencost register live hardware=epyc-avx512-1c --programs 128 --seeds 3",
        ),
        help=(
            "Let champion and challenger tune the same tasks on this host.\n\nThe verdict is a note on the "
            "challenger's version. It takes minutes, and a quiet host."
        ),
    )
)


def _root() -> Path:
    from tencost.config import composition

    return composition.config_folder()[0]


@REGISTER.command("status", examples=["tencost register status", "tencost register status --json"])
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
def status(as_json: bool) -> None:
    """Print all versions, their verdicts, and why one was refused."""
    from tencost.register import registry_status

    if as_json:
        registry_status.print_json(_root())
    else:
        registry_status.print_status(_root())


@REGISTER.command(
    "drift",
    examples=[
        "tencost register drift",
        "tencost register drift tencost-epyc-avx512-1c --plot drift.png",
        "tencost register drift tencost-epyc-avx512-1c --add-to measured/tencost-epyc-2",
    ],
)
@click.argument("model", required=False)
@option(
    "--store",
    type=Text("URI"),
    help="The record store that tuning runs wrote to. [default: the live one, data/store]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
@option("--plot", type=Place("FILE.png"), help="Draw it, too.")
@option(
    "--add-to",
    type=Place("FOLDER"),
    help="A raw dataset's folder that gets the records, for training again.",
)
def drift(
    model: str | None, store: str | None, as_json: bool, plot: Path | None, add_to: Path | None
) -> None:
    """Print how versions rank in production, and whether to train again.

    MODEL is a registered model's name or models:/<name>/<version>; without it all are shown.
    """
    from tencost.register import drift_report

    if as_json and add_to is not None:
        raise click.UsageError("expected one of --json and --add-to, found both")
    drift_report.run(
        _root(), model=model, store_uri=store, as_json=as_json, plot=plot, add_to=add_to
    )


@REGISTER.command(
    "export",
    examples=["tencost register export models:/tencost-epyc-avx512-1c@champion champion"],
)
@click.argument("model")
@click.argument("folder", type=Place("FOLDER"))
def export(model: str, folder: Path) -> None:
    """Copy a model into a folder, for a machine without a network.

    MODEL is models:/<name>@<alias> or models:/<name>/<version>.
    """
    from tencost.register import export as exporting

    exporting.run(model, folder, _root())


@REGISTER.command(
    "promote",
    examples=[
        "tencost register promote tencost-epyc-avx2-1c --to staging",
        "tencost register promote tencost-epyc-avx2-1c 3 --to production",
    ],
)
@click.argument("model")
@click.argument("version", required=False, type=Whole(1))
@option("--to", type=Text("ALIAS"), required=True, help="The environment: staging, production, ...")
def promote(model: str, version: int | None, to: str) -> None:
    """Let an environment use a version, the champion by default.

    Its hosts pull models:/<name>@<alias>, or set TENCOST_ALIAS. Names and versions: tencost register status
    """
    from tencost.register import registry_status

    registry_status.promote(_root(), model, to, version)


@REGISTER.command("hook", examples=["tencost register hook https://tuner.example.org/promotions"])
@click.argument("url")
def hook(url: str) -> None:
    """Let the registry's server tell a listener of every promotion.

    URL is where the server reaches `tencost register listen`. Both need TENCOST_WEBHOOK_SECRET.
    """
    from tencost.register import webhook

    webhook.add(_root(), url)


@REGISTER.command(
    "listen",
    examples=["tencost register listen --network bert_tiny --network resnet_18 --alias production"],
)
@option(
    "--network", "networks", type=Text("NAME"), multiple=True, required=True, help="What is tuned."
)
@option(
    "--alias", type=Text("ALIAS"), default="champion", show_default=True, help="Which alias counts."
)
@option("--hardware", type=Text("NAME"), help="What is tuned for. [default: what the model is for]")
@option(
    "--override",
    "overrides",
    type=Text("WORD"),
    multiple=True,
    help="A word more for tencost tune.",
)
@option(
    "--host", type=Text("ADDRESS"), default="127.0.0.1", show_default=True, help="Where to listen."
)
@option("--port", type=Whole(0), default=8710, show_default=True, help="Where to listen.")
def listen(
    networks: tuple[str, ...],
    alias: str,
    hardware: str | None,
    overrides: tuple[str, ...],
    host: str,
    port: int,
) -> None:
    """Tune networks again whenever a model is promoted.

    Waits for the registry's webhook (tencost register hook); one network after the other, until Ctrl-C.
    """
    from tencost.register import webhook

    webhook.listen(webhook.Listener(networks, alias, hardware, overrides), host, port)


@REGISTER.command(
    "rollback",
    examples=[
        "tencost register rollback tencost-epyc-avx2-1c",
        "tencost register rollback tencost-epyc-avx2-1c 1",
    ],
)
@click.argument("model")
@click.argument("version", required=False, type=Whole(1))
def rollback(model: str, version: int | None) -> None:
    """Make a version the champion again, the one before by default.

    Names and versions: tencost register status
    """
    from tencost.register import registry_status

    registry_status.rollback(_root(), model, version)
