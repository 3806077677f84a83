"""Damaged logs of every format, plain, compressed and in archives; TenSet folders; read by import and Lorien's API."""

from __future__ import annotations

import gzip
import io
import json
import math
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

from tencost import cli
from tencost.config.parts import LOG_FORMATS
from tencost.errors import TencostError
from torture.forked import CANARY, run
from torture.mutations import PIECES, is_json, mutated_bytes, mutated_file, mutated_json_text
from torture.verdict import Case

GOLDEN = Path(__file__).resolve().parents[1] / "records" / "golden"
TAR_MODES: dict[str, Literal["w:", "w:gz", "w:bz2"]] = {
    "tar": "w:",
    "tar.gz": "w:gz",
    "tar.bz2": "w:bz2",
}
IMPORT = ("records", "import")
EXPORTS = (
    ("rfc4304", "json.jsonl", ()), ("rfc4304", "columns.jsonl", ("--layout", "columns")),
    ("rfc4304", "all.json", ()), ("rfc4304", "all.parquet", ()),
    ("table", "own.parquet", ()), ("table", "own.csv", ()),
)  # fmt: skip


@dataclass(frozen=True)
class Log:
    """A sound log.

    Attributes:
        files: by name; the first is the one that has the records.
        ids: the record of each line (from 1) of the first file; empty where a line is none.
    """

    name: str
    files: dict[str, bytes]
    ids: dict[int, str]


def import_it(path: Path, root: Path, *more: str) -> None:
    words = [
        "--hardware",
        "board",
        "--dataset",
        "set",
        "--store",
        str(root / "store"),
        "--jobs",
        "1",
    ]
    cli.main([*IMPORT, str(path), *words, *more])


def rows_of(root: Path) -> list[dict[str, Any]]:
    """Return what is in the store of a case's folder."""
    from tencost.store.record_store import RecordStore

    store = RecordStore(str(root / "store"))
    if not store.exists():
        return []
    columns = ["record_id", "status", "run_secs", "source"]
    return store.read(None, columns, quarantined=True).to_dicts()


def make_logs(folder: Path) -> list[Log]:
    """Return sound logs of every format: its examples, a real database, and what export writes."""
    found: dict[str, dict[str, bytes]] = {
        name: {file: text.encode() for file, text in known.example.items()}
        for name, known in LOG_FORMATS.all().items()
    }
    found["golden"] = {
        path.name: path.read_bytes()
        for path in sorted(GOLDEN.glob("*.json"), key=lambda path: "workload" in path.name)
    }

    def export() -> None:
        for name, files in found.items():
            place = folder / "sound" / name
            place.mkdir(parents=True)
            for file, content in files.items():
                (place / file).write_bytes(content)
        import_it(folder / "sound", folder)
        for kind, file, more in EXPORTS:
            words = [str(folder / "exported" / file), "--store", str(folder / "store"), *more]
            (folder / "exported").mkdir(exist_ok=True)
            cli.main(["records", "export", kind, *words])

    made = run(export, folder)
    assert made.status == 0, made.errors
    for kind, file, _ in EXPORTS:
        content = (folder / "exported" / file).read_bytes()
        found[f"{kind} {file}"] = {file.replace("json.jsonl", "rfc.jsonl"): content}
    return [Log(name, files, _ids(name, files, folder)) for name, files in found.items()]


def _ids(name: str, files: dict[str, bytes], folder: Path) -> dict[int, str]:
    place = folder / "ids" / name.replace(" ", "-")
    place.mkdir(parents=True)
    for file, content in files.items():
        (place / file).write_bytes(content)
    log = place / next(iter(files))
    if log.suffix == ".parquet" or log.name == "all.json":
        return {}

    def read() -> Any:
        from tencost.records.logs import recognize
        from tencost.records.reading.protocol import About

        form = LOG_FORMATS.load(recognize(log, log.name)[0])
        lines = log.read_bytes().count(b"\n")
        rows = [
            row
            for batch in form.read(log, About("set", log.name, "board", default=True))
            for row in batch.records.select(["record_id", "source"]).to_pylist()
        ]
        # A table's rows keep where they were read first; they stand in its last lines.
        own = name.startswith("table")
        first = lines - len(rows) + 1
        return [
            [first + number if own else row["source"]["line"], row["record_id"]]
            for number, row in enumerate(rows)
        ]

    outcome = run(read, place)
    assert outcome.status == 0, outcome.errors
    return {int(line): str(identity) for line, identity in outcome.told}


def exploit(rng: Random) -> bytes:
    """Return a pickle that makes the canary when it is unpickled."""
    touch = f"touch {CANARY}"
    return rng.choice(
        (
            f"cos\nsystem\n(S'{touch}'\ntR.".encode(),
            b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c"
            + bytes([len(touch)])
            + touch.encode()
            + b"\x85R.",
            f'cbuiltins\neval\n(S\'__import__("os").system("{touch}")\'\ntR.'.encode(),
            f"(S'{touch}'\nios\nsystem\n.".encode(),
            b"ctvm.runtime.object\n_new_object\n(cos\nsystem\ntR.",
        )
    )


class Logs:
    """The part `logs`."""

    name = "logs"

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(GOLDEN.parent))
        import deltalake  # noqa: F401 - imported before forking
        import duckdb  # noqa: F401
        import polars  # noqa: F401

        import tencost.compat.lorien.api
        import tencost.compat.lorien.knobs
        import tencost.records.databases
        import tencost.records.import_command  # noqa: F401

        self._logs = make_logs(folder)

    def case(self, rng: Random, folder: Path) -> Case:
        kind = rng.randrange(20)
        if kind < 2:
            return self._tenset(rng, folder)
        log = rng.choice(self._logs)
        if kind < 4:
            return self._archive(rng, log, folder)
        place = folder / "logs"
        place.mkdir()
        if kind < 13 and log.ids:
            return self._lines(rng, log, place)
        name = rng.choice(list(log.files))
        for file, content in log.files.items():
            (place / file).write_bytes(content)
        data = log.files[name]
        if rng.random() < 0.2:
            name, data = f"{name}.gz", gzip.compress(data, mtime=0)
        (place / name).write_bytes(mutated_file(rng, data))
        return self._command(rng, f"{log.name}: {name} damaged", place, folder, set())

    def _lines(self, rng: Random, log: Log, place: Path) -> Case:
        """Damage some lines of the log; the others are to be read."""
        (first, content), *others = log.files.items()
        for file, other in others:
            (place / file).write_bytes(other)
        lines = content.splitlines(keepends=True)
        damaged = set(rng.sample(sorted(log.ids), rng.randint(1, max(1, len(log.ids) - 1))))
        for number in damaged:
            line = lines[number - 1].rstrip(b"\n")
            if is_json(line) and rng.randrange(2):
                line = mutated_json_text(rng, line.decode()).encode("utf-8", "replace")
            else:
                line = mutated_bytes(
                    rng, line, keep=b"\n" if not first.endswith("csv") else b'\n"\r'
                )
            lines[number - 1] = line + b"\n"
        if rng.random() < 0.1:
            lines.insert(
                rng.randint(len(lines) - len(log.ids), len(lines)), rng.choice(PIECES) + b"\n"
            )
        (place / first).write_bytes(b"".join(lines))
        kept = {identity for number, identity in log.ids.items() if number not in damaged}
        what = f"{log.name}: lines {sorted(damaged)} damaged"
        return self._command(rng, what, place, place.parent, kept, log.name)

    def _command(
        self, rng: Random, what: str, place: Path, folder: Path, kept: set[str], name: str = ""
    ) -> Case:
        lorien = {"ansor", "autotvm", "metaschedule"} & {name}
        if lorien and rng.random() < 0.25:
            return Case(f"{what}; Lorien", lambda: _read_with_lorien(place))
        if name == "autotvm" and rng.random() < 0.25:
            return Case(f"{what}; knob tables", lambda: _knob_tables(place, folder))
        return Case(what, lambda: import_it(place, folder), lambda _: check_rows(folder, kept))

    def _tenset(self, rng: Random, folder: Path) -> Case:
        from test_tenset import GENERATIONS
        from test_tenset import _folder as make_tenset

        place = make_tenset(folder / "logs", rng.choice(sorted(GENERATIONS)))
        path = rng.choice(sorted(item for item in place.rglob("*") if item.is_file()))
        if path.suffix == ".pkl" and rng.random() < 0.5:
            data = path.read_bytes()
            at = rng.choice((0, len(data) - 1, rng.randrange(len(data))))
            path.write_bytes(data[:at] + exploit(rng) + data[at:])
        else:
            path.write_bytes(mutated_file(rng, path.read_bytes()))
        return Case(
            f"TenSet: {path.relative_to(folder)} damaged",
            lambda: import_it(place, folder),
            lambda _: check_rows(folder, set()),
        )

    def _archive(self, rng: Random, log: Log, folder: Path) -> Case:
        """Pack the log with members of strange names, or damage the archive."""
        place = folder / "logs"
        place.mkdir()
        odd = rng.choice((
            "", "../out.log", "/tmp/torture-out.log", "a/../../out.log", "x\x1b[31m.log", "x" * 300, "CON", "a\\b.log",
            "a/\u202egol.log", "\ud800.log".encode("utf-8", "replace").decode(),
        ))  # fmt: skip
        files = dict(log.files)
        if odd:
            files[odd] = next(iter(files.values()))
        buffer = io.BytesIO()
        kind = rng.choice((*TAR_MODES, "zip"))
        if kind == "zip":
            with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
                for name, content in files.items():
                    packed.writestr(zipfile.ZipInfo(name), content)
        else:
            with tarfile.open(fileobj=buffer, mode=TAR_MODES[kind]) as tar:
                for name, content in files.items():
                    _add(tar, tarfile.TarInfo(name), content)
                if rng.random() < 0.5:
                    link = tarfile.TarInfo(rng.choice(("link.log", "logs/link.log")))
                    link.type = rng.choice(
                        (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)
                    )
                    link.linkname = rng.choice(
                        ("/etc/passwd", "../../x", "link.log", next(iter(files)))
                    )
                    _add(tar, link, b"")
        data = buffer.getvalue()
        kept = set() if kind == "tar.bz2" else set(log.ids.values())  # refused by its name
        damaged = rng.random() < 0.5
        if damaged:
            data, kept = mutated_file(rng, data), set()
        (place / f"packed.{kind}").write_bytes(data)
        return Case(
            f"{log.name} in {kind}, member {odd!r}, {'damaged' if damaged else 'whole'}",
            lambda: import_it(place, folder),
            lambda _: check_rows(folder, kept),
        )


def _add(tar: tarfile.TarFile, info: tarfile.TarInfo, content: bytes) -> None:
    info.size = len(content) if info.isfile() else 0
    tar.addfile(info, io.BytesIO(content) if info.isfile() else None)


def check_rows(folder: Path, kept: set[str]) -> list[str]:
    """Say which of the good rows are gone, and which rows cannot be."""
    rows = rows_of(folder)
    found = []
    lost = kept - {row["record_id"] for row in rows}
    if lost:
        found.append(f"{len(lost)} of {len(kept)} good lines lost")
    for row in rows:
        times = row["run_secs"]
        ok = bool(times) and all(math.isfinite(one) and one > 0 for one in times)
        if ok != (row["status"] == "ok"):
            found.append(f"a row that cannot be: {row['status']} with {times}")
    listed = folder / "data" / "rejects" / "set.jsonl"
    if listed.exists():
        for line in listed.read_text().splitlines():
            if set(json.loads(line)) != {"file", "line", "reason"}:
                found.append("a reject that does not say why")
    return found


def _read_with_lorien(place: Path) -> None:
    from tencost.compat.lorien.api import TuneResult

    for path in sorted(place.iterdir()):
        if "workload" in path.name:
            continue
        for records in TuneResult.create_records_by_workloads(path, 2, hardware="board"):
            if len(records):
                encode: Callable[[Any], str] = records.encode
                encode(records.peak())
            records.gen_task_item()


def _knob_tables(place: Path, folder: Path) -> None:
    from tencost.compat.lorien.knobs import gen_features

    out = folder / "tables"
    try:
        gen_features(place, out)
    except TencostError:
        shutil.rmtree(out, ignore_errors=True)
        raise
