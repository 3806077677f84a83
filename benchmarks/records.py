"""Reading other tuners' logs: speed against Python's json in a plain loop, whole imports, counts, and mutated lines.

    python benchmarks/records.py FOLDER... [--parts parse import counts round fuzz] [--lines N]

FOLDER  logs of one source (Ansor, AutoTVM, MetaSchedule), for example the published ones of Roller and Bennu.
parse   Lines a second on one core, from memory: `json.loads` in a loop, our typed parse_line, and our read() of the
        files to Arrow tables with ids and status, decompression included. No reader of TVM or Lorien runs beside them:
        TVM has removed both formats, and Lorien needs such a TVM.
import  Folder by folder into a new store, everything included: looking at the files, reading on all cores, the gate,
        writing.
counts  Records and ok records of each folder, and what was rejected, to compare with what its owner says.
round   Every record of every folder read and written back: the lines whose values differ (there should be none).
fuzz    Mutated lines (bytes flipped, cut, doubled, swapped between lines) through every reader: rows, rejects, and
        anything else, which would be a bug. --lines of them for each format.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tencost.config.parts import LOG_FORMATS
from tencost.records.formats import ansor, autotvm
from tencost.records.formats.metaschedule import LoggedWorkload, MetascheduleFormat, programs_of
from tencost.records.logs import LogFile, find_logs, import_logs
from tencost.records.reading.opening import lines
from tencost.records.reading.protocol import About
from tencost.store.record_store import RecordStore

ABOUT_LINES = 40_000
"""Lines of a folder that are parsed from memory."""
PARSERS: dict[str, Callable[[bytes], Any]] = {
    "ansor": ansor.parse_line,
    "autotvm": autotvm.parse_line,
}


def parse(folders: list[Path]) -> None:
    print(f"{'folder':<32} {'lines':>7} {'json/s':>9} {'parse/s':>9} {'ratio':>6} {'read/s':>9}")
    for folder in folders:
        files = find_logs([folder], "bench", "board").files
        if files[0].format not in PARSERS:
            continue
        texts = [
            line
            for item in files
            for _, line in lines(item.path)
            if line.strip() and line[:1] == b"{"
        ]
        texts = texts[:ABOUT_LINES]
        plain = rate(texts, json.loads)
        ours = rate(texts, PARSERS[files[0].format])
        start, rows = time.perf_counter(), 0
        for item in files:
            rows += sum(
                batch.records.num_rows
                for batch in LOG_FORMATS.load(item.format).read(item.path, item.about)
            )
        read = rows / (time.perf_counter() - start)
        print(
            f"{folder.name:<32} {rows:>7} {plain:>9.0f} {ours:>9.0f} {ours / plain:>6.1f} {read:>9.0f}"
        )


def rate(texts: list[bytes], function: Callable[[bytes], Any]) -> float:
    """Return calls a second, the best of three passes."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for text in texts:
            function(text)
        best = min(best, time.perf_counter() - start)
    return len(texts) / best


def import_all(folders: list[Path]) -> None:
    print(f"{'folder':<32} {'records':>8} {'new':>8} {'seconds':>8} {'records/s':>10}")
    total, seconds = 0, 0.0
    with tempfile.TemporaryDirectory(prefix="tencost-benchmark-") as scratch:
        store = RecordStore(f"{scratch}/store")
        for folder in folders:
            start = time.perf_counter()
            progress = import_logs(find_logs([folder], folder.name, folder.name), store)
            taken = time.perf_counter() - start
            count = progress.records.total()
            total, seconds = total + count, seconds + taken
            print(
                f"{folder.name:<32} {count:>8} {progress.written:>8} {taken:>8.1f} {count / taken:>10.0f}"
            )
    print(f"{'all, one store':<32} {total:>8} {'':>8} {seconds:>8.1f} {total / seconds:>10.0f}")


def counts(folders: list[Path]) -> None:
    print(f"{'folder':<32} {'records':>8} {'ok':>8} {'distinct':>8} {'rejects':>8}")
    for folder in folders:
        records, ok, rejects, ids = 0, 0, 0, set()
        for batch in batches(find_logs([folder], "x", "board").files):
            records += batch.records.num_rows
            ok += batch.records.column("status").to_pylist().count("ok")
            ids |= set(batch.records.column("record_id").to_pylist())
            rejects += len(batch.rejects)
        print(f"{folder.name:<32} {records:>8} {ok:>8} {len(ids):>8} {rejects:>8}")


def batches(files: tuple[LogFile, ...]) -> Iterator[Any]:
    for item in files:
        yield from LOG_FORMATS.load(item.format).read(item.path, item.about)


def round_trips(folders: list[Path]) -> None:
    print(f"{'folder':<32} {'lines':>8} {'same text':>9} {'same value':>10} {'different':>9}")
    for folder in folders:
        files = find_logs([folder], "x", "board").files
        text = value = other = 0
        for item in files:
            originals = dict(lines(item.path))
            written = writer(item)
            for batch in LOG_FORMATS.load(item.format).read(item.path, item.about):
                places = [row["line"] for row in batch.records.column("source").to_pylist()]
                for place, back in zip(places, written(batch.records), strict=True):
                    line = originals[place].strip().decode()
                    text += line == back
                    value += line != back and json.loads(line) == json.loads(back)
                    other += line != back and json.loads(line) != json.loads(back)
        print(f"{folder.name:<32} {text + value + other:>8} {text:>9} {value:>10} {other:>9}")


def writer(item: LogFile) -> Callable[[Any], Iterator[str]]:
    """Return what writes records of a log back as lines; a MetaSchedule database keeps its numbers of workloads."""
    if item.format == "ansor":
        return ansor.write_lines
    if item.format == "autotvm":
        return autotvm.write_lines
    reader = MetascheduleFormat()
    found = reader.modules(item.path)
    modules = {
        identity: LoggedWorkload(shash, text, identity) for identity, text, _, shash in found
    }
    originals = {number: json.loads(line)[0] for number, line in lines(item.path) if line.strip()}

    def pairs(table: Any) -> Iterator[str]:
        for one in programs_of(table, modules):
            body = [one.trace, one.run_secs, one.target, one.args_info]
            yield json.dumps([originals[one.line], body], separators=(",", ":"))

    return pairs


def fuzz(folders: list[Path], count: int) -> None:
    chance = random.Random(0)
    print(f"{'format':<14} {'lines':>8} {'rows':>8} {'rejects':>8} {'seconds':>8}")
    seen: set[str] = set()
    for folder in folders:
        files = find_logs([folder], "x", "board").files
        name = files[0].format
        if name in seen:
            continue
        seen.add(name)
        rows, rejects, seconds = fuzz_format(files[0], count, chance)
        print(f"{name:<14} {count:>8} {rows:>8} {rejects:>8} {seconds:>8.1f}")


def fuzz_format(item: LogFile, count: int, chance: random.Random) -> tuple[int, int, float]:
    good = [line for _, line in lines(item.path)][:200]
    rows = rejects = 0
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tencost-benchmark-") as scratch:
        folder = Path(scratch)
        for other in item.path.parent.glob("*workload*"):
            (folder / other.name).write_bytes(other.read_bytes())
        for done in range(0, count, 2000):
            number = min(2000, count - done)
            mutated = [mutate(good, chance).replace(b"\n", b"") for _ in range(number)]
            path = folder / item.path.name.removesuffix(".gz").removesuffix(".zst")
            header = [good[0].rstrip()] if item.format == "tencost" else []  # a CSV file's columns
            path.write_bytes(b"\n".join([*header, *mutated]))
            for batch in LOG_FORMATS.load(item.format).read(
                path, About("fuzz", path.name, "board")
            ):
                places = [row["line"] for row in batch.records.column("source").to_pylist()]
                if item.format != "tencost":  # whose rows say where they were read first
                    assert len(set(places)) == len(places), "two rows of one line"
                rows += batch.records.num_rows
                rejects += len({one.line for one in batch.rejects if one.file == path.name})
    assert rows <= count, "a row was invented"
    return rows, rejects, time.perf_counter() - start


def mutate(good: list[bytes], chance: random.Random) -> bytes:
    line = bytearray(chance.choice(good))
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(line) or 1)
        kind = chance.randrange(5)
        if kind == 0 and line:
            line[at] = chance.randrange(256)
        elif kind == 1:
            del line[at : at + chance.randint(1, 40)]
        elif kind == 2:
            line[at:at] = line[at : at + chance.randint(1, 40)]
        elif kind == 3:
            line[at:at] = chance.choice(good)[at : at + 40]
        else:
            line[at:at] = chance.choice(
                [b"[", b"]", b"null", b"1e999", b'"', b"-", b"{", b"\\u0000", b"9" * 30]
            )
    return bytes(line)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument(
        "--parts",
        nargs="+",
        default=["parse", "import", "counts"],
        help="what to do, in this order",
    )
    parser.add_argument("--lines", type=int, default=100_000, help="mutated lines a format (fuzz)")
    given = parser.parse_args()
    known: dict[str, Callable[[list[Path]], None]] = {
        "parse": parse,
        "import": import_all,
        "counts": counts,
        "round": round_trips,
        "fuzz": lambda folders: fuzz(folders, given.lines),
    }
    if unknown := set(given.parts) - set(known):
        parser.error(f"expected {', '.join(known)}, found {', '.join(sorted(unknown))}")
    for part in given.parts:
        known[part](given.folders)


if __name__ == "__main__":
    main()
