"""The dataset that the committed pipeline starts from: whole, readable, and what its card says."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tencost.measure.card import generator_rows
from tencost.records.databases import Import, import_parts
from tencost.records.fetch.pack import sha256_of
from tencost.records.fetch.unpack import unpack
from tencost.store.generator import UNKNOWN, age
from tencost.store.schema import Record
from tencost.store.status import Status

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PARAMS = yaml.safe_load((ROOT / "params.yaml").read_text())
NAME = PARAMS["dataset"]
BEFORE = "tencost-epyc"
"""The default dataset of earlier releases: other layouts than networks are compiled in, of two code generators."""
WHOLE = "tencost-epyc-all"
"""That one and what was measured since."""
EVERY_CPU = "tencost-cpu"
XEON = "tencost-xeon"
"""It was measured before there were cards of this form."""
SMALLEST = ("tencost-epyc-variants-5", "tencost-zen4-3")
"""Of earlier releases and of the other machine: reading all archives takes minutes, for files that never change."""
HELD_OUT = ("bert_tiny", "gpt2", "efficientnet_b0-nhwc", "resnet_50-nhwc")
"""The standing test networks, with channels last where they are compiled so."""
BEFORE_THAT = ("efficientnet_b0", "resnet_50")
"""The same with channels first, in the datasets of earlier releases."""


def description_of(name: str) -> dict[str, Any]:
    found = yaml.safe_load((ROOT / "conf" / "dataset" / f"{name}.yaml").read_text())
    assert isinstance(found, dict)
    return found


def every_part() -> dict[str, str]:
    """The sha256 of every archive with a card."""
    parts: dict[str, str] = {}
    for name in (NAME, WHOLE, EVERY_CPU):
        parts |= description_of(name)["parts"]
    return {part: sha256 for part, sha256 in parts.items() if part != XEON}


@pytest.mark.parametrize("part", every_part())
def test_every_archive_is_the_one_of_its_card(part: str, tmp_path: Path) -> None:
    archive = ROOT / "datasets" / f"{part}.tar.zst"
    assert sha256_of(archive) == every_part()[part]
    unpack(archive, tmp_path / part)
    card = (ROOT / "datasets" / f"{part}.md").read_text()
    text = (tmp_path / part / "README.md").read_text()
    # Four archives were packed with a statement that a comparison has disproved since; their cards have the comparison.
    disproved = [each for each in text.split("\n\n") if "ran at half of its speed" in each]
    withdrawn = {line for paragraph in disproved for line in paragraph.splitlines()}
    assert set(text.splitlines()) - withdrawn <= set(card.splitlines())


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folders of the archives that are read, each under its archive's name."""
    source = description_of(NAME)["source"]
    raw = tmp_path_factory.mktemp("raw")
    names = [*description_of(NAME)["parts"], *SMALLEST]
    for part in names:
        unpack(ROOT / source / f"{part}.tar.zst", raw / part)
    return [raw / part for part in names]


@pytest.fixture(scope="module")
def imported(parts: list[Path]) -> Import:
    return import_parts(parts)


def _told(records: Iterable[Record]) -> str:
    """Counts as a card or a description tells them."""
    found = list(records)
    programs = len({record.program_id for record in found})
    workloads = len({record.workload_id for record in found})
    return f"{len(found)} records of {programs} programs and {workloads} workloads"


def test_every_line_is_read_and_no_measurement_is_there_twice(imported: Import) -> None:
    assert imported.rejects == []
    # When, too: a program that failed in two sessions has no times in either.
    measured = Counter(
        (record.record_id, record.provenance.timestamp, record.run_secs)
        for record in imported.records
    )
    assert max(measured.values()) == 1
    # Measured again in other sessions; the store makes one of them.
    default = set(description_of(NAME)["parts"])
    programs = {of_default: Counter[str]() for of_default in (False, True)}
    for record in imported.records:
        programs[record.source.dataset in default][record.record_id] += 1
    assert max(programs[False].values()) <= 3
    assert sum(count > 1 for count in programs[False].values()) < 0.02 * len(programs[False])
    # The datasets' noise is known from programs that two processes measured.
    assert Counter(programs[True].values()) == {1: 34894, 2: 1578, 3: 221}


def test_the_cards_count_what_is_there(parts: list[Path], imported: Import) -> None:
    for folder in parts:
        card = (ROOT / "datasets" / f"{folder.name}.md").read_text()
        assert _told(r for r in imported.records if r.source.dataset == folder.name) in card
    assert description_of(BEFORE)["parts"].items() <= description_of(WHOLE)["parts"].items()
    described = description_of(NAME)
    own = [r for r in imported.records if r.source.dataset in described["parts"]]
    once = {record.record_id: record for record in own}
    assert described["description"].startswith(_told(once.values()))


def test_every_hardware_of_the_pipeline_has_records_with_their_provenance(imported: Import) -> None:
    counts = Counter(record.hardware for record in imported.records)
    assert set(PARAMS["hardware"]) <= set(counts)
    assert all(count > 1000 for count in counts.values())
    for record in imported.records:
        about = record.provenance
        assert about.engine_version
        assert about.execution_config
        assert about.timestamp
        assert record.extra is not None
        assert record.extra["session"]


def test_failures_are_rare_and_told(imported: Import) -> None:
    failed = [record for record in imported.records if record.status is not Status.ok]
    assert len(failed) < 0.03 * len(imported.records)
    assert all(record.error for record in failed)
    assert not any(record.status is Status.unknown for record in failed)


def test_the_standing_test_networks_are_held_out_and_measured(imported: Import) -> None:
    split = yaml.safe_load((ROOT / "conf" / "split" / "by_network.yaml").read_text())
    assert sorted(split["test"]) == sorted((*HELD_OUT, *BEFORE_THAT))
    for network in HELD_OUT:
        tasks = [task for task in imported.tasks if task.network == network]
        work = sum(task.flop * task.weight for task in tasks)
        measured = sum(task.flop * task.weight for task in tasks if task.measured)
        assert measured > 0.95 * work
    assert len({task.network for task in imported.tasks}) >= 12


def test_the_cards_count_the_records_of_each_code_generator(
    parts: list[Path], imported: Import
) -> None:
    for folder in parts:
        card = (ROOT / "datasets" / f"{folder.name}.md").read_text()
        own = [record for record in imported.records if record.source.dataset == folder.name]
        for row in generator_rows(own):
            assert f"| {' | '.join(row)} |" in card, folder.name
        assert all(record.generator != UNKNOWN for record in own)


def test_no_record_is_of_two_code_generators(imported: Import) -> None:
    parts = description_of(NAME)["parts"]
    own = [record for record in imported.records if record.source.dataset in parts]
    of_program: dict[str, set[str]] = {}
    for record in own:
        of_program.setdefault(record.record_id, set()).add(record.generator)
    assert max(map(len, of_program.values())) == 1
    assert {age(record.generator)[1] for record in own} == {1}


def test_the_default_has_convolutions_as_they_are_compiled(parts: list[Path]) -> None:
    layouts: Counter[str] = Counter()
    for folder in (part for part in parts if part.name in description_of(NAME)["parts"]):
        for file in folder.glob("measure_records/*/*/database_workload.json"):
            for line in file.read_text().splitlines():
                module = base64.b64decode(json.loads(line)[1])
                layouts.update(re.findall(r"conv2d_n\w+", module.decode(errors="replace")))
    assert layouts["conv2d_nhwc"] > 50
    assert layouts["conv2d_nchw"] == 0, "their channels are last"
