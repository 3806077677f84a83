"""`tencost records compare` and `regress`: whole networks' times side by side, and what became slower."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tencost.config import PathsConfig
from tencost.errors import RecordError, printable
from tencost.records.answers import Form, show
from tencost.records.network_times.compare import DEFAULT_BY, compare
from tencost.records.network_times.regress import (
    BEFORE,
    MARGIN,
    REGRESSED,
    Change,
    changes,
    parse_since,
    table,
)
from tencost.records.network_times.runs import Chosen, read_program_runs, read_runs
from tencost.records.query_command import project_folder

_SINGLE = (
    "Where both sides have one run, the interval does not hold the noise between runs: time again"
)


def show_comparison(
    store_uri: str | None,
    form: Form,
    chosen: Chosen,
    *,
    by: Sequence[str] = DEFAULT_BY,
    baseline: str | None = None,
) -> None:
    """Print runs of a record store (None: the live one) side by side, as :func:`compare` does.

    Raises:
        RecordError: no runs, no such column or baseline.
    """
    comparison = compare(read_runs(_place(store_uri), chosen), by, baseline)
    hidden = [] if comparison["failed"].sum() else ["failed"]
    if chosen.hardware is not None:
        hidden.append("hardware")
    show(comparison, form, hidden)
    if form.name == "table" and bool((comparison["runs"] == 1).any()):
        sys.stdout.write(f"{_SINGLE}.\n")


def show_regressions(
    store_uri: str | None,
    form: Form,
    chosen: Chosen,
    *,
    since: str,
    margin: float = MARGIN,
    last: int = BEFORE,
    any_host: bool = False,
    programs: bool = False,
    plot: Path | None = None,
) -> bool:
    """Print the times before and since, as :func:`changes` finds them; return whether a network became slower or fails.

    They are those of a record store (None: the live one), with `programs` those of its programs that were measured
    before and since. `since` is a day, or a version; `plot` a file that gets a plot.

    Raises:
        RecordError: no runs, or none on both sides; the plot cannot be written.
    """
    uri = _place(store_uri)
    runs = read_program_runs(uri, chosen) if programs else read_runs(uri, chosen)
    begins = parse_since(since, runs)
    compared = changes(runs, begins, margin=margin, last=last, any_host=any_host)
    worse = [change for change in compared if change.verdict in REGRESSED]
    left_out = 0
    if plot is not None:
        from tencost.records.network_times.plot import plot_changes

        try:
            left_out = plot_changes(compared, begins, plot)
        except OSError as error:
            raise RecordError(
                f"--plot: expected a file that can be written, found {plot}: {error}"
            ) from error
    hidden = [f"{side}_{end}_s" for side in ("before", "since") for end in ("q1", "q3")]
    hidden.append("changed")  # the lines below the table tell it of what became slower
    answer = table(compared)
    if form.name == "table" and form.limit is None:
        form = replace(form, limit=max(20, len(worse)))
    show(answer, form, hidden)
    if form.name == "table":
        _print_summary(compared, worse, margin, plot, left_out)
    return bool(worse)


def _print_summary(
    compared: Sequence[Change],
    worse: Sequence[Change],
    margin: float,
    plot: Path | None,
    left_out: int,
) -> None:
    lines = []
    for change in worse:
        if change.ratio is None or change.verdict == "fails":
            lines.append(f"fails: {change.name}: {change.changed}")
            continue
        why = f" ({change.changed})" if change.changed else ""
        ratio = change.ratio
        lines.append(
            f"slower: {change.name}: {ratio.value:.3f} times [{ratio.low:.3f}, {ratio.high:.3f}]{why}"
        )
    summary = f"{len(worse)} of {len(compared)} became slower by more than {100 * margin:g} % and their noise, or fail"
    if any(change.ratio is not None and not change.ratio.runs_known for change in compared):
        summary += f"; with one run on either side, by more than {200 * margin:g} %"
    lines.append(f"{summary}.")
    if plot is not None:
        more = f"; {left_out} panels are left out" if left_out else ""
        lines.append(f"plot: {plot}{more}")
    sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))


def _place(store_uri: str | None) -> str:
    return store_uri or PathsConfig().live_store(project_folder())
