"""One contract for every log format: what import and the records stage may rely on. Each brings its own example."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tencost.config.parts import LOG_FORMATS
from tencost.records.logs import find_logs, recognize
from tencost.records.reading.opening import read_head
from tencost.records.reading.protocol import About, LogFormat, Reject
from tencost.store.schema import SCHEMA

FORMATS: dict[str, LogFormat] = LOG_FORMATS.all()
EACH = pytest.mark.parametrize("name", FORMATS)
ROWS = 3
"""Records of an example: its last lines."""


def write(name: str, folder: Path, text: str | None = None) -> Path:
    """Write a format's example, or another text in the place of its log, and return the log."""
    folder.mkdir(exist_ok=True)
    (log, example), *others = FORMATS[name].example.items()
    for file, content in others:
        (folder / file).write_text(content)
    (folder / log).write_text(example if text is None else text)
    return folder / log


def read(name: str, path: Path, **options: Any) -> tuple[pa.Table, list[Reject]]:
    batches = list(FORMATS[name].read(path, About("set", f"a/{path.name}", "told"), **options))
    assert all(batch.records.schema.equals(SCHEMA) for batch in batches)
    records = pa.concat_tables([SCHEMA.empty_table(), *(batch.records for batch in batches)])
    return records, [reject for batch in batches for reject in batch.rejects]


def lines_of(name: str) -> list[str]:
    return next(iter(FORMATS[name].example.values())).splitlines(keepends=True)


def test_formats_are_found() -> None:
    assert {"ansor", "autotvm", "metaschedule", "rfc4304", "table"} <= set(FORMATS)
    assert all(isinstance(known, LogFormat) for known in FORMATS.values())


@EACH
def test_an_example_is_of_its_format_and_of_no_other(name: str, tmp_path: Path) -> None:
    path = write(name, tmp_path)
    assert [
        other for other, known in FORMATS.items() if known.recognizes(path, read_head(path))
    ] == [name]
    assert recognize(path, path.name) == (name, "")
    for other in tmp_path.iterdir():
        assert other == path or "read with its records" in recognize(other, other.name)[1]


@EACH
def test_good_lines_are_records(name: str, tmp_path: Path) -> None:
    path = write(name, tmp_path)
    records, rejects = read(name, path)
    assert (records.num_rows, rejects) == (ROWS, [])
    assert len(set(records["record_id"].to_pylist())) == ROWS
    count = len(lines_of(name))
    if name != "table":  # a table's rows keep where they were read first
        assert [source["line"] for source in records["source"].to_pylist()] == list(
            range(count - ROWS + 1, count + 1)
        )
        assert {source["file"] for source in records["source"].to_pylist()} == {f"a/{path.name}"}
    for row in records.to_pylist():
        assert (row["status"] == "ok") == bool(row["run_secs"])
        target = json.loads(row["target"])
        assert target == {} or "kind" in target, "a device that is no target: device_of({}, about)"
    assert len(set(records["status"].to_pylist())) > 1, "an example has a failure, too"


@EACH
def test_ids_are_the_same_again(name: str, tmp_path: Path) -> None:
    first, _ = read(name, write(name, tmp_path / "first"))
    again, _ = read(name, write(name, tmp_path / "again"), batch_rows=1)
    assert again.equals(first)


@EACH
@pytest.mark.parametrize("bad", ["garbage\n", '{"a": [1,\n', "\x00\n", '["\n'])
def test_a_bad_line_is_named_and_costs_nobody_else(name: str, bad: str, tmp_path: Path) -> None:
    good, _ = read(name, write(name, tmp_path / "good"))
    lines = lines_of(name)
    for place in range(len(lines) - ROWS + 1, len(lines) + 1):
        path = write(name, tmp_path / f"bad{place}", "".join([*lines[:place], bad, *lines[place:]]))
        records, rejects = read(name, path)
        assert records["record_id"].to_pylist() == good["record_id"].to_pylist()
        assert [(reject.file, reject.line) for reject in rejects] == [
            (f"a/{path.name}", place + 1)
        ], rejects
        assert rejects[0].reason


@EACH
def test_a_line_cut_anywhere_costs_itself_at_most(name: str, tmp_path: Path) -> None:
    good, _ = read(name, write(name, tmp_path))
    text = "".join(lines_of(name))
    last = len(lines_of(name)[-1])
    for left in range(2, last, 7):
        records, rejects = read(name, write(name, tmp_path, text[: len(text) - last + left]))
        assert records.slice(0, ROWS - 1).equals(good.slice(0, ROWS - 1))
        assert (records.num_rows, len(rejects)) in ((ROWS - 1, 1), (ROWS, 0))


@EACH
def test_gzip_whole_and_cut(name: str, tmp_path: Path) -> None:
    path = write(name, tmp_path)
    good, _ = read(name, path)
    data = gzip.compress(path.read_bytes(), mtime=0)
    path.write_bytes(data)
    assert FORMATS[name].recognizes(path, read_head(path))
    assert read(name, path)[0].equals(good)
    path.write_bytes(data[:-10])
    records, rejects = read(name, path)
    assert records.equals(good.slice(0, records.num_rows))
    assert rejects[-1].line >= records.num_rows
    assert "ends early" in rejects[-1].reason


@EACH
def test_an_empty_file_is_of_no_format(name: str, tmp_path: Path) -> None:
    for text in ("", "\n\n"):
        path = write(name, tmp_path, text)
        assert not FORMATS[name].recognizes(path, read_head(path))
    logs = find_logs([path], "set", None)
    assert logs.files == ()
    assert logs.skipped == ((path.name, "no format that is known"),)


@EACH
def test_modules_are_of_records(name: str, tmp_path: Path) -> None:
    path = write(name, tmp_path)
    records, _ = read(name, path)
    for module in FORMATS[name].modules(path):
        assert module.workload_id in records["workload_id"].to_pylist()
        assert isinstance(json.loads(module.mod_json), dict)


A_FORMAT = '''
"""Times by name: ``speed <name> <milliseconds>`` a line."""
import re
from tencost.records.reading.columns import networks, record_table, sources
from tencost.records.reading.protocol import BATCH_ROWS, Batch, LogFormat, Reject, read_lines
from tencost.store.ids import text_id


class Rows:
    def __init__(self, about):
        self.about, self.rejects, self.found = about, [], []

    def __bool__(self):
        return bool(self.found or self.rejects)

    def full(self, batch_rows):
        return len(self.found) + len(self.rejects) >= batch_rows

    def add(self, number, line):
        match = re.fullmatch(rb"speed (\\w+) ([0-9.]+)\\n?", line)
        if match:
            self.found.append((number, match[1].decode(), float(match[2]) / 1e3))
        else:
            self.rejects.append(Reject(self.about.file, number, "expected speed <name> <ms>"))

    def batch(self):
        lines, names, seconds = zip(*self.found)
        ids = [text_id("speed", name) for name in names]
        count = len(lines)
        columns = dict.fromkeys(("record_id", "program_id", "workload_id"), ids)
        columns |= dict.fromkeys(("task_name", "workload"), names)
        columns |= {"run_secs": [[item] for item in seconds], "networks": networks(self.about.dataset, count)}
        columns |= {"source": sources(self.about.dataset, self.about.file, lines)}
        told = {"hardware": self.about.hardware, "status": "ok", "program": "", "program_format": "none"}
        table = record_table(count, columns, {**told, "engine": "speed", "target": "{}"})
        return Batch(table, tuple(self.rejects))


class Speed(LogFormat):
    example = {"speed.txt": "speed a 1\\nspeed b 2\\nspeed c 3\\n"}

    def recognizes(self, path, head):
        return head.startswith(b"speed ")

    def read(self, path, about, batch_rows=BATCH_ROWS):
        return read_lines(path, about, batch_rows, Rows)


FORMAT = Speed()
'''


def test_a_package_adds_a_format_and_a_log_of_it_is_imported(tmp_path: Path) -> None:
    """An installed distribution, as pip leaves it: a module, and metadata with the entry point."""
    site = tmp_path / "site"
    info = site / "speedlogs-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "speedlogs.py").write_text(A_FORMAT)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: speedlogs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tencost.log_formats]\nspeed = speedlogs\n")
    log = tmp_path / "a.txt"
    log.write_text("speed conv 1.5\nslow\nspeed dense 0.25\n")
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from tencost.records.logs import find_logs, import_logs\n"
        "from tencost.store.record_store import RecordStore\n"
        "store = RecordStore(sys.argv[3])\n"
        "logs = find_logs([Path(sys.argv[2])], 'set', 'board')\n"
        "progress = import_logs(logs, store)\n"
        "print([item.format for item in logs.files], [item.line for item in progress.rejects])\n"
        "print(store.read().sort('task_name').select('task_name', 'hardware', 'run_secs').rows())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(site), str(log), str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "['speed'] [2]",
        "[('conv', 'board', [0.0015]), ('dense', 'board', [0.00025])]",
    ]


@pytest.mark.parametrize("content", [None, "import no_such_package\n"])
def test_a_format_of_a_package_that_cannot_be_imported_is_named(
    content: str | None, tmp_path: Path
) -> None:
    """What an entry point leads to is not there, or needs what is not installed: one message, no traceback."""
    site = tmp_path / "site"
    info = site / "speedlogs-1.0.dist-info"
    info.mkdir(parents=True)
    if content is not None:
        (site / "speedlogs.py").write_text(content)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: speedlogs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tencost.log_formats]\nspeed = speedlogs\n")
    (tmp_path / "a.txt").write_text("speed a 1\n")
    done = subprocess.run(
        [sys.executable, "-m", "tencost.cli", "records", "import", "a.txt"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("tencost: expected to import speedlogs, which an installed")
    assert "Traceback" not in done.stderr
