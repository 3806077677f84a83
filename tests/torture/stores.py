"""Damaged record stores and a damaged dvc.lock, met by every command that reads or writes them."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

from tencost import cli
from tencost.config import lockfile
from torture.forked import run
from torture.killed_imports import ImportLogs
from torture.logs import import_it
from torture.mutations import mutated_file, mutated_json_text
from torture.verdict import Case

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = (
    ("query", "best", "--hardware", "i7"), ("query", "stats"),
    ("query", "history", "--hardware", "a100", "--workload", "ms"),
    ("query", "new"), ("query", "sql", "SELECT hardware, count(*) FROM records GROUP BY ALL"), ("compact",),
    ("quarantine",), ("rename", "--hardware", "a100", "b100"), ("delete", "--hardware", "v100"),
    ("export", "table", "out.parquet"), ("export", "ansor", "out.json"),
    ("export", "metaschedule", "best", "--hardware", "a100"), ("import",),
)  # fmt: skip


class Stores:
    """The part `stores`."""

    name = "stores"

    def __init__(self, folder: Path) -> None:
        for name in ("deltalake", "polars", "duckdb", "yaml", "tencost.records.import_command"):
            __import__(name)
        self._folder = folder

        def make() -> None:
            ImportLogs().prepare(folder)
            for name in ("ansor", "golden", "autotvm", "metaschedule", "rfc4304", "table"):
                import_it(folder / "logs" / name, folder)

        made = run(make, folder)
        assert made.status == 0, made.errors

    def case(self, rng: Random, folder: Path) -> Case:
        if rng.random() < 0.15:
            return self._lock(rng, folder)
        for name in ("store", "store-modules"):
            shutil.copytree(self._folder / name, folder / name)
        files = sorted(path for path in folder.glob("store*/**/*") if path.is_file())
        path = rng.choice(files)
        kind = rng.randrange(6)
        if kind == 0:
            what = "gone"
            path.unlink()
        elif kind == 1:
            what = "a folder"
            path.unlink()
            path.mkdir()
        elif kind < 4 and path.suffix == ".json":
            what = "values"
            lines = path.read_text().splitlines()
            at = rng.randrange(len(lines))
            lines[at] = mutated_json_text(rng, lines[at])
            path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
        else:
            what = "bytes"
            path.write_bytes(mutated_file(rng, path.read_bytes()))
        words = rng.choice(COMMANDS)
        told = f"{path.relative_to(folder)}: {what}; records {' '.join(words[:2])}"
        store = str(folder / "store")

        def command() -> None:
            if words == ("import",):
                import_it(self._folder / "logs", folder)
            else:
                cli.main(["records", *words, "--store", store])

        return Case(told, command, events=("ctypes.dlopen",))  # an export hashes modules with TVM

    def _lock(self, rng: Random, folder: Path) -> Case:
        whole = (ROOT / "dvc.lock").read_bytes()
        (folder / ".dvc" / "tmp").mkdir(parents=True)
        for place in ("dvc.lock", ".dvc/tmp/dvc.lock.kept"):
            (folder / place).write_bytes(whole if rng.random() < 0.3 else mutated_file(rng, whole))
        return Case(
            "dvc.lock damaged",
            lambda: _mend(folder),
            lambda _: _lock_is_sound(folder),
            ends=(0,),
            events=("subprocess.Popen git", "subprocess.Popen ('git'"),
        )


def _mend(folder: Path) -> None:
    lockfile.mend_lockfiles(folder)
    lockfile.copy_lockfiles(folder)


def _lock_is_sound(folder: Path) -> list[str]:
    """Read dvc.lock, if it was kept, as DVC does."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from dvc.utils.serialize import parse_yaml

    lock = folder / "dvc.lock"
    if lock.exists():
        try:
            COMPILED_LOCKFILE_SCHEMA(parse_yaml(lock.read_text(), lock))
        except Exception as error:  # noqa: BLE001 - DVC's and voluptuous' own
            return [f"kept, and DVC does not read it: {type(error).__name__}: {str(error)[:150]}"]
    return []
