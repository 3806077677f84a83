"""`tencost records compare` and `regress`: whole networks' times, which lie beside the record store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tencost.cli.answers import form_of, printed
from tencost.cli.grammar import Place, Text, Whole, option
from tencost.cli.records import hardware_option, store_option
from tencost.cli.store_changes import RECORDS as RECORDS

F = TypeVar("F", bound=Callable[..., Any])


def _network_runs(function: F) -> F:
    """Add the options that say which runs of networks are meant, and how the answer is printed."""
    function = store_option(printed(function))
    granularity = click.Choice(["end to end", "layer", "task"])
    text = "What was timed."
    for add in (
        option(
            "--granularity", type=granularity, default="end to end", show_default=True, help=text
        ),
        option("--engine", type=Text("NAME"), help="Of this engine only."),
        hardware_option("Of this device only."),
        option(
            "--network",
            type=Text("NAME"),
            help="Of this network only, all sizes, or one: bert_tiny-b4-s128.",
        ),
    ):
        function = add(function)
    return function


def _asked(
    *,
    store: str | None,
    as_json: bool,
    as_csv: bool,
    limit: int | None,
    granularity: str,
    **words: Any,
) -> tuple[Any, ...]:
    """Return what the options of :func:`_network_runs` say: the store, how the answer is printed, which runs."""
    from tencost.records.network_times.runs import Chosen
    from tencost.records.network_times.timing import Granularity

    chosen = Chosen(**words, granularity=Granularity(granularity))
    return store, form_of(as_json, as_csv, limit), chosen


@RECORDS.command(
    "compare",
    examples=[
        "tencost records compare --network bert_tiny",
        "tencost records compare --by engine,day --hardware epyc-avx512-1c --baseline onnxruntime",
    ],
)
@_network_runs
@option(
    "--by",
    type=Text("COLUMNS"),
    default="engine,version",
    show_default=True,
    help="Columns to compare by, with commas: engine, version, host, day, hardware, cores.",
)
@option(
    "--baseline",
    type=Text("VALUE"),
    help="What others are divided by, a value of these columns. [default: pytorch, or what was timed first]",
)
def compare_networks(by: str, baseline: str | None, **keywords: Any) -> None:
    """Print whole networks' times side by side: engines, versions, hosts, days.

    Medians and quartiles, each run with the same weight; ratios to a baseline with their 95 % bootstrap interval.
    """
    from tencost.records.network_times import command as network_command

    network_command.show_comparison(
        *_asked(**keywords),
        by=[name.strip() for name in by.split(",") if name.strip()],
        baseline=baseline,
    )


@RECORDS.command(
    "regress",
    examples=[
        "tencost records regress --since 2026-11-22 --plot nightly.png",
        "tencost records regress --since 0.27.0.post1 --engine tencost --margin 3",
    ],
)
@_network_runs
@option(
    "--since",
    type=Text("DAY|VERSION"),
    required=True,
    help="Where what is new begins: a day (UTC), or a version of an engine, of TVM or of tencost.",
)
@option(
    "--margin",
    type=Whole(0),
    default=5,
    show_default=True,
    help="Percent by which something must be slower at least, beyond its noise.",
)
@option(
    "--runs",
    type=Whole(1),
    default=10,
    show_default=True,
    help="Runs before that count, the last ones.",
)
@click.option("--any-host", is_flag=True, help="Hosts count as one.")
@click.option(
    "--programs", is_flag=True, help="Programs that were measured again, in place of networks."
)
@option("--plot", type=Place("FILE"), help="A file that gets a plot over time, PNG.")
def regress(
    since: str,
    margin: int,
    runs: int,
    any_host: bool,
    programs: bool,
    plot: Path | None,
    **keywords: Any,
) -> None:
    """Find what became slower beyond its noise: exit code 1 if something did, 0 if not.

    Runs are compared with earlier ones of the same network, engine, hardware, cores and host. Slower is what has the
    whole 95 % bootstrap interval of its ratio above 1 + margin; a network that cannot be timed any more counts, too.
    """
    from tencost.records.network_times import command as network_command

    found = network_command.show_regressions(
        *_asked(**keywords),
        since=since,
        margin=margin / 100,
        last=runs,
        any_host=any_host,
        programs=programs,
        plot=plot,
    )
    if found:
        raise SystemExit(1)
