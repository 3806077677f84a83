"""Leaderboards of graph models: what they hold, and that a file comes back as it was."""

from __future__ import annotations

import math
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tencost.errors import ConfigError
from tencost.evaluate.networks import board as boards
from tencost.evaluate.networks import report
from tencost.evaluate.networks.board import Board, Row
from tencost.models.networks.latency_metrics import by_family


def make_board() -> Board:
    family = np.array(["a", "a", "b", "b"])
    measured = np.array([1.0, 2.0, 3.0, 4.0])

    def row(model: str, error: float, *, reference: bool = False) -> Row:
        seeds = [
            {
                "test": by_family(family, measured * (1 + error * (1 + seed / 10)), measured),
                "test_ood": {},
            }
            for seed in range(2)
        ]
        return Row(
            model=model,
            family=model,
            reference=reference,
            seeds=(0, 1),
            valid_mape=(error, error),
            folder=f"data/models/{model}",
            **boards.summarize(seeds),
        )

    rows = (row("additive", 0.02), row("summed", 0.2), row("constant", 0.01, reference=True))
    counts = {"test": {"a": 2, "b": 2}}
    return Board(dataset="d", hardware="h", split="s", split_hash="0", counts=counts, rows=rows)


def test_a_file_comes_back_as_it_was(tmp_path: Path) -> None:
    board = make_board()
    boards.save(board, tmp_path / boards.FILE)
    again = boards.load(tmp_path / boards.FILE)
    assert again.parts == ("test",)
    assert [row.model for row in again.rows] == [row.model for row in board.rows]
    assert again.rows[0].mean("test", "mape") == pytest.approx(0.021)
    assert again.rows[0].families["test"]["a"]["acc10"] == 1.0
    boards.save(again, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / boards.FILE).read_bytes()


def test_the_winner_is_no_reference_and_best_on_validation() -> None:
    board = make_board()
    best = boards.winner(board)
    assert best is not None
    assert best.model == "additive"
    assert boards.winner(Board(**{**vars(board), "rows": board.rows[2:]})) is None


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tencost graphs evaluate"):
        boards.load(tmp_path / boards.FILE)
    for text in ("[]", "{", '{"format_version": 1}', '{"format_version": 2}'):
        (tmp_path / boards.FILE).write_text(text)
        with pytest.raises(ConfigError, match="tencost graphs evaluate"):
            boards.load(tmp_path / boards.FILE)


def test_people_see_models_families_and_averages() -> None:
    board = make_board()
    output = StringIO()
    report.print_board(board, Console(width=150, file=output, force_terminal=True, no_color=True))
    text = output.getvalue()
    assert "in distribution, 4 graphs of 2 families" in text
    assert "constant (ref)" in text
    page = report.markdown(board)
    assert "| id avg | 4 | 1.000 | 0.000 | 1.000 |" in page
    assert "**0.010 ±" in page, "the best MAPE is bold"
    assert "nan" not in page


def test_metrics_hold_what_is_defined() -> None:
    values = boards.metrics_dict(make_board())
    assert values["additive"]["test"]["mape"]["mean"] == pytest.approx(0.021)
    assert "ci95" in values["additive"]["test"]["mape"]
    assert all(not math.isnan(one["mean"]) for one in values["summed"]["test"].values())
