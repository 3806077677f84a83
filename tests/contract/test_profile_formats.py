"""Every format of profiles: it knows its own files and no others, and no damage is more than rejects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tencost.config.parts import PROFILE_FORMATS
from tencost.records.counters.launches import Launch, Note, ProfileFormat, Reject
from tencost.records.reading.opening import read_head
from tencost.records.reading.protocol import About

FORMATS: dict[str, ProfileFormat] = PROFILE_FORMATS.all()
SAMPLES = {
    "ncu_wide": b'"ID","Kernel Name","gpu__time_duration.sum"\n"","","us"\n"0","k","1.5"\n',
    "ncu_long": (
        b'"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"\n'
        b'"0","k","GPU Speed Of Light","Duration","us","1.5"\n'
    ),
    "ktt": (
        b'{"Metadata": {"Device": "GPU", "KttVersion": "2.1.0", "TimeUnit": "Microseconds"}, "Results": [\n'
        b'{"ComputationResults": [{"Duration": 1.5, "GlobalSize": {"X": 1, "Y": 1, "Z": 1}, "KernelFunction": "k", '
        b'"LocalSize": {"X": 1, "Y": 1, "Z": 1}}], "Configuration": [], "KernelName": "k", "Status": "Ok"}]}\n'
    ),
}


def test_there_is_a_sample_of_every_format() -> None:
    assert set(SAMPLES) == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_describes_itself_and_knows_its_files_only(name: str, tmp_path: Path) -> None:
    known = FORMATS[name]
    assert known.layout
    for other, content in SAMPLES.items():
        path = tmp_path / other
        path.write_bytes(content)
        assert known.recognizes(path, read_head(path)) == (other == name)


@pytest.mark.parametrize("name", FORMATS)
def test_a_launch_takes_microseconds_in_every_format(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(SAMPLES[name])
    launches = [
        item
        for item in FORMATS[name].read(path, About("", str(path), None))
        if isinstance(item, Launch)
    ]
    assert len(launches) == 1
    times = dict(zip(launches[0].columns.names, launches[0].values.tolist(), strict=True))
    assert 1500.0 in (launches[0].time_ns, times.get("gpu__time_duration.sum"))
    assert len(set(launches[0].columns.names)) == len(launches[0].columns.names)


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_is_cut_anywhere_gives_launches_and_rejects(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    for size in range(len(SAMPLES[name])):
        path.write_bytes(SAMPLES[name][:size])
        for item in FORMATS[name].read(path, About("", str(path), None)):
            assert isinstance(item, Launch | Reject | Note)
