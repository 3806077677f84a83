"""The networks timed on an AMD EPYC in the repository: whole, as their card says, and naming no path and no host."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tencost.config.composition import compose
from tencost.measure.networks.measuring import round_ratios
from tencost.records.fetch.stage import run
from tencost.records.network_graphs.formats.measured import HARDWARE_FILE, MEASURED_FILE
from tencost.records.network_graphs.reading import read_folder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cfg, *_ = compose(["dataset=tencost-epyc-graphs"])
    cfg.dataset.source = str(ROOT / cfg.dataset.source)
    return run(cfg, tmp_path_factory.mktemp("project"))


def test_it_holds_what_its_card_says(folder: Path) -> None:
    card = (folder / "README.md").read_text()
    assert card == (ROOT / "datasets" / "tencost-epyc-graphs.md").read_text()
    found = read_folder(folder)
    labelled = found.labelled
    assert (len(labelled), labelled.hardware, found.rejects) == (498, ("host-epyc-1c",), ())
    assert (labelled.latency_ms > 0).all()
    families, counts = np.unique(labelled.graphs.family, return_counts=True)
    assert len(families) == 18
    for family, count in zip(families.tolist(), counts.tolist(), strict=True):
        assert f"| {family} | {count} |" in card
    agree = [f"{np.mean(round_ratios(folder) <= 1 + share):.2f}" for share in (0.05, 0.1)]
    assert f"| all | 498 | 31 to 651 | 0.0488 to 72.9 | {agree[0]} | {agree[1]} |" in card
    assert (ROOT / "datasets" / "tencost-epyc-graphs.tar.zst").stat().st_size < 1.5e6


def test_nothing_in_it_names_a_path_or_a_host(folder: Path) -> None:
    for name in (HARDWARE_FILE, MEASURED_FILE):
        text = (folder / name).read_text()
        assert not re.search(r'"(/|~|[A-Z]:\\\\)|/home|/root|/tmp|hostname', text)
