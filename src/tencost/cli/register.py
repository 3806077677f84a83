"""`tencost register`: the stage, and the registry: status, drift, export, promote, rollback, webhooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tencost.cli.grammar import Command, PathType, Text, Whole, flag, option, project
from tencost.cli.overrides import StageCommand, StageGroup

_JSON = flag("--json", "Print JSON, for scripts.", parameter="as_json")
_MODEL = click.Argument(["name"], metavar="MODEL")
_VERSION = click.Argument(["number"], required=False, type=Whole(1), metavar="[VERSION]")


def _status(as_json: bool) -> None:
    from tencost.register import registry_status

    (registry_status.print_json if as_json else registry_status.print_status)(project())


def _drift(as_json: bool, add_to: Path | None, **options: Any) -> None:
    from tencost.register import drift_report

    if as_json and add_to is not None:
        raise click.UsageError("expected one of --json and --add-to, found both")
    drift_report.run(project(), as_json=as_json, add_to=add_to, **options)


def _listen(host: str, port: int, **listener: Any) -> None:
    from tencost.register import webhook

    webhook.listen(webhook.Listener(**listener), host, port)


_COMMANDS = [
    StageCommand(
        "live",
        "tencost.tune.live",
        "Let champion and challenger tune the same tasks on this host.\n\nThe verdict is a note on the challenger's "
        "version. It takes minutes, and a quiet host.",
        uses="hardware tuner experiment_name",
        params=(
            option("--programs", Whole(1), "Programs measured a task, seed and side.", default=64),
            option("--seeds", Whole(1), "Searches of each task and side.", default=2),
        ),
        examples=(
            "tencost register live hardware=epyc-avx512-1c",
            "tencost register live hardware=epyc-avx512-1c --programs 128 --seeds 3",
        ),
    ),
    Command(
        "status",
        _status,
        "Print all versions, their verdicts, and why one was refused.",
        examples=("tencost register status", "tencost register status --json"),
        params=(_JSON,),
    ),
    Command(
        "drift",
        _drift,
        "Print how versions rank in production, and whether to train again.\n\nMODEL is a registered model's name or "
        "models:/<name>/<version>; without it all are shown.",
        examples=(
            "tencost register drift",
            "tencost register drift tencost-epyc-avx512-1c --plot drift.png",
            "tencost register drift tencost-epyc-avx512-1c --add-to measured/tencost-epyc-2",
        ),
        params=(
            click.Argument(["model"], required=False),
            option(
                "--store",
                Text("URI"),
                "The record store that tuning runs wrote to. [default: the live one, data/store]",
                parameter="store_uri",
            ),
            _JSON,
            option("--plot", PathType("FILE.png"), "Draw it, too."),
            option("--add-to", PathType("FOLDER"), "A raw dataset's folder that gets the records, for training again."),
        ),
    ),
    Command(
        "export",
        "tencost.register.export",
        "Copy a model into a folder, for a machine without a network.\n\nMODEL is models:/<name>@<alias> or "
        "models:/<name>/<version>.",
        examples=("tencost register export models:/tencost-epyc-avx512-1c@champion champion",),
        params=(
            click.Argument(["uri"], metavar="MODEL"),
            click.Argument(["folder"], type=PathType("FOLDER")),
            flag("--card", "Write the model's card, FOLDER.md, too: dataset, commit, figures, sha256."),
            flag("--replace", "Replace another bundle in FOLDER."),
        ),
    ),
    Command(
        "promote",
        "tencost.register.registry_status:promote_and_print",
        "Let an environment use a version, the champion by default.\n\nIts hosts pull models:/<name>@<alias>, or set "
        "TENCOST_ALIAS. Names and versions: tencost register status",
        examples=(
            "tencost register promote tencost-epyc-avx2-1c --to staging",
            "tencost register promote tencost-epyc-avx2-1c 3 --to production",
        ),
        params=(
            _MODEL,
            _VERSION,
            option("--to", Text("ALIAS"), "The environment: staging, production.", required=True, parameter="alias"),
        ),
    ),
    Command(
        "hook",
        "tencost.register.webhook:add",
        "Let the registry's server tell a listener of every promotion.\n\nURL is where the server reaches `tencost "
        "register listen`. Both need TENCOST_WEBHOOK_SECRET.",
        examples=("tencost register hook https://tuner.example.org/promotions",),
        params=(click.Argument(["url"]),),
    ),
    Command(
        "listen",
        _listen,
        "Tune networks again whenever a model is promoted.\n\nWaits for the registry's webhook (tencost register "
        "hook); one network after the other, until Ctrl-C.",
        examples=(
            "tencost register listen --network bert_tiny --network resnet_18 --alias production",
        ),
        params=(
            option("--network", Text("NAME"), "What is tuned.", multiple=True, required=True, parameter="networks"),
            option("--alias", Text("ALIAS"), "Which alias counts.", default="champion"),
            option("--hardware", Text("NAME"), "What is tuned for. [default: what the model is for]"),
            option("--override", Text("WORD"), "A word more for tencost tune.", multiple=True, parameter="overrides"),
            option("--host", Text("ADDRESS"), "Where to listen.", default="127.0.0.1"),
            option("--port", Whole(0), "Where to listen.", default=8710),
        ),
    ),
    Command(
        "rollback",
        "tencost.register.registry_status:rollback_and_print",
        "Make a version the champion again, the one before by default.\n\nNames and versions: tencost register status",
        examples=(
            "tencost register rollback tencost-epyc-avx2-1c",
            "tencost register rollback tencost-epyc-avx2-1c 1",
        ),
        params=(_MODEL, _VERSION),
    ),
]  # fmt: skip
REGISTER = StageGroup(
    StageCommand(
        "register",
        "tencost.register.programs",
        "Register the winner of a hardware; it is promoted if the rule allows it.",
        uses="dataset hardware split rule experiment_name paths.records paths.features paths.splits paths.models "
        "paths.reports paths.registry",
        examples=("tencost register hardware=epyc-avx2-1c",),
    ),
    "Register and promote the winner of a hardware; ask the registry.\n\nWith a command below: the registry.",
    examples=("tencost register status", "tencost register drift tencost-epyc-avx512-1c"),
    commands=_COMMANDS,
)
