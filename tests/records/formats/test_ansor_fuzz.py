"""Damaged lines of auto_scheduler: the reader never fails, and makes no row of what is none."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tencost.records.formats.ansor import AnsorFormat, parse_line, write_lines
from tencost.records.reading.protocol import About

LINES_OF_A_FILE = 20
GOOD = [
    rb'{"i": [["[\"matmul\", 64, 64, 64]", "llvm -keys=cpu", [4, 64, 64, 0, 0, 0, 0, 0], "", 1, []],'
    rb' [[], [["CHW", 2, "local"], ["SP", 2, 0, 64, [2, 4], 1], ["FSP", 3, 0, 1, 2], ["CA", 2, 3, 3],'
    rb' ["FU", 3, [0, 1]], ["AN", 3, 0, 3], ["PR", 2, 0, "auto_unroll_max_step$16"]]]],'
    rb' "r": [[0.0013, 0.00131], 0, 1.25, 1693565744], "v": "v0.6"}',
    rb'{"i": [["[\"6b7583cf23c7c37d3212cad9d06e58c1\", 1, 28]", "cuda -arch=sm_80", [-1, 16, 64, 49152,'
    rb' 2147483647, 1024, 8, 32], "llvm", 2], [[], [["CHR", 1, "shared", [4]], ["FFSP", 6, 0, [3, 4], 1,'
    rb' 1], ["RE", 2, [0, 4, 1]], ["SA", 3, 1, 32, 8], ["CI", 1], ["CR", 4], ["RF", 3, 2, 1]]]],'
    rb' "r": [[1e+10], 4, 15.5, 1637927264], "v": "v0.5"}',
    rb'{"i": [["[\"f\", 1, [2, 3]]", "{\"kind\": \"llvm\", \"keys\": [\"cpu\"]}"], [[], []]],'
    rb' "r": [[0], 0, 0, 0], "v": "v0.2"}',
    b"# a comment",
    b"",
]
PIECES = [
    *(bytes([value]) for value in range(256)),
    *b'null true -1 0.5 1e999 NaN {} [] "" "x" 99999999999999999999 \\ud800 \\" v0.7'.split(),
    *(b"[" * 5000, b'{"i":' * 5000, b"9" * 5000, b'["SP",1]', b", ", b": "),
]
good_lines = st.sampled_from(GOOD)
lengths = st.integers(0, 12)


@st.composite
def mutated_lines(draw: st.DrawFn) -> bytes:
    """Return a good line with up to four pieces of it cut out, replaced, or repeated, or more put in."""
    line = draw(good_lines)
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(line)))
        end = start + draw(lengths)
        middle = draw(
            st.one_of(st.just(b""), st.sampled_from(PIECES), st.just(line[start:end] * 2))
        )
        line = line[:start] + middle + line[end:]
    return line


def check_mutated_files(examples: int) -> None:
    """Read `examples` files of LINES_OF_A_FILE lines that were damaged at random."""

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(mutated_lines(), min_size=LINES_OF_A_FILE, max_size=LINES_OF_A_FILE))
    def check(lines: list[bytes]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            check_file(Path(folder) / "some.log", b"\n".join(lines))

    check()


def check_file(path: Path, data: bytes) -> None:
    """Check that each line is a record that says what it says, or a reject, or holds nothing."""
    path.write_bytes(data)
    fmt = AnsorFormat()
    assert fmt.recognizes(path, data) in (True, False)
    lines = data.split(b"\n")
    seen: dict[int, str] = {}
    for batch in fmt.read(path, About("set", "some.log", "device"), batch_rows=7):
        records = batch.records
        numbers = [source["line"] for source in records["source"].to_pylist()]
        seen |= dict(zip(numbers, write_lines(records), strict=True))
        rejected = {reject.line: "" for reject in batch.rejects}
        assert not seen.keys() & rejected.keys()
        assert all(reject.reason for reject in batch.rejects)
        seen |= rejected
    for number, line in enumerate(lines, start=1):
        nothing = not line.strip() or line.startswith((b"#", b" "))
        assert (number in seen) != nothing
        if written := seen.get(number):
            parse_line(line)
            assert values(written) == values(line)
        elif not nothing:
            json_or_reason(line)


def values(line: str | bytes) -> Any:
    """Return what a line says; TVM writes 1.0 as 1."""
    found = json.loads(line)
    costs, *rest = found["r"]
    return [found["i"], found["v"], [float(cost) for cost in costs], [float(item) for item in rest]]


def json_or_reason(line: bytes) -> None:
    """Parse a line that the reader rejected: it may be refused, and only by ValueError."""
    try:
        parse_line(line)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - that nothing else is raised is what is checked


def test_mutated_lines() -> None:
    check_mutated_files(60)


def test_every_byte_cut_off(tmp_path: Path) -> None:
    for good in GOOD[:3]:
        data = b"\n".join(good[:end] for end in range(len(good) + 1))
        check_file(tmp_path / "some.log", data)
        batches = list(AnsorFormat().read(tmp_path / "some.log", About("set", "some.log", "d")))
        (row,) = batches[0].records.to_pylist()
        assert row["source"]["line"] == len(good) + 1


def test_every_byte_left_out(tmp_path: Path) -> None:
    for good in GOOD[:3]:
        lines = [good[:at] + good[at + 1 :] for at in range(len(good))]
        check_file(tmp_path / "some.log", b"\n".join(lines))
