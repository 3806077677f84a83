"""The leaderboard of models of programs for people: in the terminal and as Markdown."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console

from tencost.errors import ConfigError
from tencost.evaluate.interval import interval_text
from tencost.evaluate.leaderboard_table import markdown_table, print_tables, terminal_table, wide
from tencost.evaluate.lost_time import decisive
from tencost.evaluate.program_board import ProgramBoard, by_validation, regret
from tencost.evaluate.scoring import HEADINGS

COLUMNS = HEADINGS | {
    "pick_rule": "pick/rule",
    "trials_10pct": "trials to 10 %",
    "trials_5pct": "trials to 5 %",
    "trials_1pct": "trials to 1 %",
    "pooled_top1": "pooled top-1",
    "tau": "tau",
    "peak1": "peak@1",
    "peak5": "peak@5",
}
"""Metric -> heading, the most telling first: a narrow terminal shows as many as fit."""
_LISTED = 5
"""Tasks that are listed and not summed, in a note."""
_ROWS = 10
"""Tasks in Markdown, which is also the note of an MLflow run and so has to be short; leaderboard.json has all."""


def print_program_board(board: ProgramBoard, console: Console | None = None) -> None:
    """Print a leaderboard, as wide as the terminal allows."""
    console = wide(console)
    title = (
        f"{board.hardware}: {board.part} part of {board.split} ({board.dataset}): "
        f"{', '.join(board.networks)}"
    )
    columns = _fitting(board, console.width)
    table = terminal_table(board, title, columns, stacked=True)
    print_tables(console, [table], _notes(board))


def print_leaderboards(
    reports: Path, console: Console | None = None, *, hardware: str = ""
) -> None:
    """Print every leaderboard below data/reports.

    Args:
        reports: the folder.
        console: standard output by default.
        hardware: its leaderboards alone; "" for all.

    Raises:
        ConfigError: there is none.
    """
    every = sorted(reports.glob("*/*/leaderboard.json"))
    paths = [path for path in every if hardware in ("", path.parent.name)]
    if every and not paths:
        names = sorted({path.parent.name for path in every})
        raise ConfigError(
            f"--hardware {hardware}: expected one that has a leaderboard below {reports}: {', '.join(names)}"
        )
    if not paths:
        raise ConfigError(
            f"expected leaderboards below {reports}, found none. "
            "Run `dvc repro` or `tencost evaluate`."
        )
    for path in paths:
        print_program_board(ProgramBoard.load(path), console)


def program_board_markdown(board: ProgramBoard) -> str:
    """Return the leaderboard as a Markdown section: all columns, the best of each in bold."""
    heading = f"## {board.hardware} ({board.dataset}, {board.part} part of {board.split})"
    notes = "\n".join(f"- {line}" for line in _notes(board))
    text = f"{heading}\n\n{markdown_table(board, _columns(board))}\n{notes}\n"
    return f"{text}\n{_losses_table(board)}" if board.losses else text


def _losses_table(board: ProgramBoard) -> str:
    """Return the tasks in which the winner loses most as a Markdown table."""
    lines = [
        f"### Where {_winner(board)} loses its time",
        "",
        "Weight x (program ranked first - fastest one), as a share of the sum over all tasks and over the network's.",
        "",
        "| network | task | weight | chosen, ms | best, ms | share | of its network's |",
        "|---|---|---|---|---|---|---|",
    ]
    for loss in board.losses[:_ROWS]:
        times = f"{loss.chosen_ms:.4g} | {loss.best_ms:.4g}"
        shares = f"{loss.share:.1%} | {loss.network_share:.1%}"
        lines.append(f"| {loss.network} | {loss.task} | {loss.weight:g} | {times} | {shares} |")
    if rest := board.losses[_ROWS:]:
        share = sum(loss.share for loss in rest)
        lines.append(f"| {len(rest)} other tasks | | | | | {share:.1%} | |")
    return "\n".join(lines) + "\n"


def _winner(board: ProgramBoard) -> str:
    best = board.winner()
    return "" if best is None else best.model


def _columns(board: ProgramBoard) -> dict[str, str]:
    """Return COLUMNS without the comparison with the rules where no task of the dataset was timed by rule."""
    is_timed = any("pick_rule" in row.metrics for row in board.rows)
    return {name: text for name, text in COLUMNS.items() if is_timed or name != "pick_rule"}


def _fitting(board: ProgramBoard, width: int) -> dict[str, str]:
    """Return the first columns, as many as fit beside the names."""
    free, columns = width - 34, {}
    for metric, heading in _columns(board).items():
        need = 16 if metric in HEADINGS else max(8, max(len(word) for word in heading.split()) + 3)
        if free < need:
            break
        free -= need
        columns[metric] = heading
    return columns


def _notes(board: ProgramBoard) -> list[str]:
    lines = [
        "mean ± 95 % interval over seeds (of training), [95 % bootstrap interval over the test networks and their "
        "tasks]; geo1: geometric "
        "mean over tasks of best latency / latency of the program ranked first; geo1, top-k, peak, pairwise, search "
        "score: higher is better, trials per task: lower is better; search score: 0 = random order, 1 = optimum at once"
    ]
    if "pick_rule" in _columns(board):
        lines.append(
            "pick/rule: geometric mean over tasks of the latency of the program ranked first, with nothing measured, "
            "over that by rule (what `tencost compile` takes); lower is better, above 1 the rules choose better"
        )
    for gain in board.gains:
        parts = [
            f"{COLUMNS[name]} {interval_text(difference)}"
            for name, difference in gain.differences.items()
        ]
        lines.append(
            f"{gain.model} minus {gain.opponent}, 95 % bootstrap over networks and tasks: {', '.join(parts)}"
        )
    lines += _choice_notes(board)
    if board.losses:
        largest = decisive(board.losses)
        share = sum(loss.share for loss in largest)
        where = "; ".join(
            f"{loss.network} {loss.task} x {loss.weight:g} {loss.share:.0%}" for loss in largest
        )
        judged = sum(coverage.tasks_scored for coverage in board.coverage.values())
        lost_ms = sum(loss.lost_ms for loss in board.losses)
        lines.append(
            f"share of the lost time: of {lost_ms:.3g} ms that {_winner(board)}'s first choices lose, {share:.0%} are "
            f"in {len(largest)} of the {judged} tasks judged: {where}"
        )
    if board.left_out:
        heaviest = sorted(board.left_out, key=lambda task: -task.weight * task.best_ms)[:_LISTED]
        tasks = "; ".join(
            f"{task.network} {task.task} x {task.weight:g} ({task.why})" for task in heaviest
        )
        more = len(board.left_out) - len(heaviest)
        rest = f"; {more} more in leaderboard.json" if more else ""
        lines.append(f"listed, not summed: {len(board.left_out)} task(s): {tasks}{rest}")
    bare = []
    for network, coverage in board.coverage.items():
        if not coverage.programs:
            bare.append(network)
            continue
        share = coverage.flop_share
        flop = "" if math.isnan(share) else f", {share:.0%} of its FLOPs"
        failed = f", {coverage.failed} failed" if coverage.failed else ""
        lines.append(
            f"coverage {network}: {coverage.tasks_scored} of {coverage.tasks} tasks{flop}, "
            f"{coverage.programs} programs{failed}"
        )
    if bare:
        lines.append(f"not measured: {', '.join(bare)}")
    return lines


def _choice_notes(board: ProgramBoard) -> list[str]:
    """Return how the winner was chosen, and what the choice costs on the part that is evaluated."""
    best, before = board.winner(), by_validation(board)
    if best is None or before is None or len(board.candidates) < 2:
        return []
    tried = [(row.choice, row.model) for row in board.candidates if row.choice is not None]
    lines = ["chosen by pairwise on the validation part"]
    if len(tried) == len(board.candidates):
        composites = ", ".join(
            f"{model} {choice.composite:+.2f} ({len(choice.folds)})"
            for choice, model in sorted(tried, key=lambda pair: -pair[0].composite)
        )
        lines = [
            "chosen by leaving networks of the training side out: pairwise, geo1 and search score, each over its "
            f"spread between folds, mean advantage (folds tried): {composites}"
        ]
    for how, row in (("chosen", best), ("by validation pairwise", before)):
        behind = ", ".join(
            f"{HEADINGS[name]} {figure:.3f}" for name, figure in regret(board, row).items()
        )
        lines.append(f"regret, the best candidate minus the one {how}: {row.model}: {behind}")
    return lines
