"""`tencost report`: one file that names no other, with what the board, the records and a tuning run say."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tencost.cli import page
from tencost.errors import ConfigError, TuneError
from tencost.evaluate import stage
from tencost.models.programs.families.random import RandomConfig
from tencost.models.programs.families.xgb import XgbConfig
from tencost.tracking import runs as tracking
from tencost.tune import curve
from tencost.tune.curve import CurvePoint, append_point

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Balanced(HTMLParser):
    """Every element that is opened is closed, in order; text is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def trained(train_toy: Callable[..., Path], toy_project: Path, toy_config: Any) -> None:
    """Two models: a reference that knows nothing and trees that see how fast a program is."""
    reference = RandomConfig(family="random", reads=["toy"], reference=True)
    with tracking.start_run(toy_config, toy_project, stage="train") as run:
        pass
    train_toy("random", reference, run_id=run.run_id)
    train_toy("xgb", XgbConfig(family="xgb", reads=["toy"], num_rounds=30), run_id=run.run_id)


def tuned(folder: Path, task: str) -> Path:
    folder.mkdir()
    for point in (
        CurvePoint(trials=0, total_latency_s=0.04),
        CurvePoint(
            trials=16, total_latency_s=0.01, task=task, task_latency_s=0.0021, failed=3, spearman=0.7, model="m/1"
        ),
    ):  # fmt: skip
        append_point(folder / curve.FILE, point)
    return folder


def test_a_page_needs_nothing_beside_it(
    toy_project: Path, toy_config: Any, trained: None, tmp_path: Path
) -> None:
    board = stage.run(toy_config, toy_project)
    to = tmp_path / "page.html"
    run = tuned(tmp_path / "run", "<b>fused</b> & co")
    page.run(toy_config, toy_project, tuned=[run], to=to)
    text = to.read_text()
    read = Balanced()
    read.feed(text)
    assert read.open == []
    assert not {"script", "link", "img", "iframe"} & set(read.seen)
    # Names of XML's vocabularies are no addresses that a reader fetches.
    named = set(re.findall(r'(?:src|href)="([^"#][^"]*)"|url\(([^#)][^)]*)\)', text))
    assert named == set()
    assert read.seen.count("svg") >= 3
    assert "<b>fused" not in text
    assert "<b>fused</b> & co" in read.text
    assert f"{board.rows[0].mean('top1'):.3f}" in read.text
    assert "16 programs: 40 ms before, 10 ms after, 4.00 times as fast" in read.text
    assert "2.1 ms" in read.text
    assert "0.70" in read.text
    before = text
    page.run(toy_config, toy_project, tuned=[run], to=to)
    assert to.read_text() == before


def test_what_is_not_there_is_said(
    toy_project: Path, toy_config: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "page.html"
    page.run(toy_config, toy_project, tuned=[], to=to)
    assert "left out: no leaderboards below" in capsys.readouterr().err
    assert "Dataset toy" in to.read_text()
    with pytest.raises(TuneError, match=r"found none in .*nothing"):
        page.run(toy_config, toy_project, tuned=[tmp_path / "nothing"], to=to)
    with pytest.raises(
        ConfigError, match=r"something of toy to tell, found no records in .*tencost"
    ):
        page.run(toy_config, tmp_path, tuned=[], to=to)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        page.run(toy_config, toy_project, tuned=[], to=tmp_path / "file" / "page.html")
