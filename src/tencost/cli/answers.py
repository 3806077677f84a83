"""How commands print answers: the options that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tencost.cli.grammar import Whole, option

F = TypeVar("F", bound=Callable[..., Any])


def printed(function: F) -> F:
    """Add the options that say how an answer is printed."""
    limit = "Rows at most, 0 for all. [default: 20 of a table, all of the others]"
    function = option("--limit", type=Whole(0), help=limit)(function)
    function = click.option(
        "--csv", "as_csv", is_flag=True, help="Print CSV, everything, times in seconds."
    )(function)
    text = "Print a list of JSON objects, everything, times in seconds."
    return click.option("--json", "as_json", is_flag=True, help=text)(function)


def form_of(as_json: bool, as_csv: bool, limit: int | None) -> Any:
    """Return how an answer is printed."""
    from tencost.records.query_command import Form

    if as_json and as_csv:
        raise click.UsageError("expected one of --json and --csv, found both")
    return Form("json" if as_json else "csv" if as_csv else "table", limit)
