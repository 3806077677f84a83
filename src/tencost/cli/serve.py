"""`tencost serve`: scores over HTTP."""

from __future__ import annotations

import click

from tencost.cli import grammar
from tencost.errors import ConfigError


@click.command(
    "serve",
    cls=grammar.Command,
    examples=[
        "tencost serve models:/tencost-epyc-avx512-1c@champion",
        "tencost serve champion --port 8080 --jobs 4",
        "tencost serve models:/tencost-v100/3 --host 0.0.0.0",
    ],
)
@click.argument("model", type=grammar.Text("MODEL"))
@grammar.option(
    "--port", type=grammar.Whole(0), default=8017, show_default=True, help="0: any that is free."
)
@grammar.option(
    "--host",
    type=grammar.Text("ADDRESS"),
    default="127.0.0.1",
    show_default=True,
    help="Where it listens; others than this host need the token in TENCOST_SERVE_TOKEN.",
)
@grammar.option("--jobs", type=grammar.Whole(1), help="Worker processes. [default: one a core]")
@grammar.option(
    "--candidates",
    type=grammar.Whole(1),
    default=4096,
    show_default=True,
    help="Of a request, at most.",
)
@grammar.option(
    "--megabytes",
    type=grammar.Whole(1),
    default=64,
    show_default=True,
    help="Of a request, at most.",
)
@grammar.option(
    "--seconds",
    type=grammar.Whole(1),
    default=120,
    show_default=True,
    help="After which a request is given up.",
)
@grammar.option(
    "--body-seconds",
    type=grammar.Whole(1),
    default=30,
    show_default=True,
    help="After which a request whose body is not here is given up.",
)
def serve(
    model: str,
    port: int,
    host: str,
    jobs: int | None,
    candidates: int,
    megabytes: int,
    seconds: int,
    body_seconds: int,
) -> None:
    """Score candidates over HTTP until Ctrl-C, for tuners that are not in Python's process.

    MODEL is models:/NAME@ALIAS, models:/NAME/VERSION or the folder of a bundle.
    """
    from tencost.config import composition
    from tencost.register.service.app import Limits
    from tencost.register.service.command import serve as run

    if port > 65535:
        raise ConfigError(f"expected --port from 0 to 65535, found {port}")
    limits = Limits(
        candidates=candidates,
        megabytes=megabytes,
        seconds=float(seconds),
        body_seconds=float(body_seconds),
    )
    root = composition.config_folder()[0]
    run(model, root, host=host, port=port, jobs=jobs, limits=limits)
