"""Leaderboards of graph models: what they hold, and that a file comes back as it was."""

from __future__ import annotations

import math
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tencost.errors import ConfigError
from tencost.evaluate.leaderboard import from_json
from tencost.evaluate.networks import report
from tencost.evaluate.networks.board import GraphBoard, GraphRow, graph_row_fields
from tencost.evaluate.program_board import ProgramBoard, ProgramRow
from tencost.models.networks.bundle.latency_metrics import by_family


def make_board() -> GraphBoard:
    family = np.array(["a", "a", "b", "b"])
    measured = np.array([1.0, 2.0, 3.0, 4.0])

    def row(model: str, error: float, *, reference: bool = False) -> GraphRow:
        seeds = [
            {
                "test": by_family(family, measured * (1 + error * (1 + seed / 10)), measured),
                "test_ood": {},
            }
            for seed in range(2)
        ]
        return GraphRow(
            model=model,
            family=model,
            reference=reference,
            seeds=(0, 1),
            valid_mape=(error, error),
            folder=f"data/models/{model}",
            **graph_row_fields(seeds),
        )

    rows = (row("additive", 0.02), row("summed", 0.2), row("constant", 0.01, reference=True))
    counts = {"test": {"a": 2, "b": 2}}
    return GraphBoard(
        dataset="d", hardware="h", split="s", split_hash="0", counts=counts, rows=rows
    )


def test_a_file_comes_back_as_it_was(tmp_path: Path) -> None:
    board = make_board()
    board.save(tmp_path / board.FILE)
    again = GraphBoard.load(tmp_path / GraphBoard.FILE)
    assert again.parts == ("test",)
    assert [row.model for row in again.rows] == [row.model for row in board.rows]
    assert again.rows[0].mean("mape", "test") == pytest.approx(0.021)
    assert again.rows[0].families["test"]["a"]["acc10"] == 1.0
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / GraphBoard.FILE).read_bytes()


def test_the_winner_is_no_reference_and_best_on_validation() -> None:
    board = make_board()
    best = board.winner()
    assert best is not None
    assert best.model == "additive"
    assert replace(board, rows=board.rows[2:]).winner() is None


@pytest.mark.parametrize("kind", [ProgramBoard, GraphBoard])
@pytest.mark.parametrize(
    "text",
    [
        None,
        "[]",
        "{",
        '{"format_version": 1}',
        '{"format_version": 2}',
        '{"format_version": 99}',
        '{"format_version": 1, "rows": 3}',
        '{"format_version": 2, "rows": [{"model": "xgb", "speed": 1}]}',
    ],
)
def test_bad_files_are_named(
    kind: type[ProgramBoard | GraphBoard], text: str | None, tmp_path: Path
) -> None:
    path = tmp_path / kind.FILE
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=rf"{path}.*Make it(?: again)?: {kind.COMMAND}$"):
        kind.load(path)


def test_fields_that_only_older_files_have_are_left_out() -> None:
    row: ProgramRow = from_json(
        ProgramRow,
        {"model": "xgb", "run_id": "1", "predict_ms": 2.0, "valid_pairwise": [0.5, None]},
    )
    assert row.model == "xgb"
    assert row.valid_pairwise[0] == 0.5
    assert math.isnan(row.valid_pairwise[1])


def test_people_see_models_families_and_averages() -> None:
    board = make_board()
    output = StringIO()
    report.print_graph_board(
        board, Console(width=150, file=output, force_terminal=True, no_color=True)
    )
    text = output.getvalue()
    assert "in distribution, 4 graphs of 2 families" in text
    assert "constant (ref)" in text
    page = report.graph_board_markdown(board)
    assert "| id avg | 4 | 1.000 | 0.000 | 1.000 |" in page
    assert "**0.010 ±" in page, "the best MAPE is bold"
    assert "nan" not in page


def test_metrics_hold_what_is_defined() -> None:
    values = make_board().metrics()
    assert values["additive"]["test"]["mape"]["mean"] == pytest.approx(0.021)
    assert "ci95" in values["additive"]["test"]["mape"]
    assert all(not math.isnan(one["mean"]) for one in values["summed"]["test"].values())
