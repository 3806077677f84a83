"""Kills of what writes to a record store: import, compact, rename, delete."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from torture.kills import TESTS, Kills, Scenario


def store_state(uri: str) -> dict[str, Any]:
    """Return all rows of a store and its modules, without what a run alone knows."""
    from tencost.store.modules import stored_modules
    from tencost.store.record_store import RecordStore

    store = RecordStore(uri)
    rows = []
    if store.exists():
        for row in store.read(None, quarantined=True).to_dicts():
            source = row["source"] or {"file": "", "line": 0}
            row["source"] = [source["file"].split("/")[-1], source["line"]]
            rows.append(json.dumps(row, sort_keys=True, default=str))
    modules = stored_modules(uri)["workload_id"].to_list()
    return {"rows": sorted(rows), "modules": sorted(modules)}


class Import(Kills):
    """The part `kill-import`: what writes to a record store."""

    name = "kill-import"
    modules = (
        "deltalake",
        "polars",
        "duckdb",
        "tencost.records.import_command",
        "tencost.records.databases",
    )


class ImportLogs(Scenario):
    """`tencost records import` into a store that is not there."""

    name = "import"

    def prepare(self, root: Path) -> None:
        from tencost.config.parts import LOG_FORMATS

        for name, known in LOG_FORMATS.all().items():
            (root / "logs" / name).mkdir(parents=True)
            for file, text in known.example.items():
                (root / "logs" / name / file).write_text(text)
        shutil.copytree(TESTS / "records" / "golden", root / "logs" / "golden")
        with (root / "logs" / "ansor" / "ansor.json").open("a") as file:
            file.write("a bad line\n")

    def command(self, root: Path) -> None:
        from torture.logs import import_it

        import_it(root / "logs", root)

    def state(self, root: Path) -> Any:
        rejects = root / "data" / "rejects" / "set.jsonl"
        listed = rejects.read_text() if rejects.exists() else ""
        return {**store_state(str(root / "store")), "rejects": listed}

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        wrong = super().compare(clean, between, after)
        if between is not None and not set(between["rows"]) <= set(clean["rows"]):
            wrong.append("in between there are rows that nobody measured")
        return wrong


class ImportMore(ImportLogs):
    """The same into a store that has some of the rows, of many small commits."""

    name = "import more"

    def prepare(self, root: Path) -> None:
        from torture.logs import import_it

        super().prepare(root)
        for name in ("ansor", "golden", "metaschedule"):
            import_it(root / "logs" / name, root)


class Compact(ImportMore):
    """`tencost records compact`."""

    name = "compact"

    def command(self, root: Path) -> None:
        from tencost import cli

        cli.main(["records", "compact", "--store", str(root / "store")])

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        wrong = Scenario.compare(self, clean, between, after)
        if between is not None and between["rows"] != clean["rows"]:
            wrong.append("in between rows are missing or twice")
        return wrong


class Rename(ImportMore):
    """`tencost records rename`; once it is done there is nothing left to rename."""

    name = "rename"
    ends = (0, 2)

    def command(self, root: Path) -> None:
        from tencost import cli

        cli.main(
            ["records", "rename", "--hardware", "a100", "b100", "--store", str(root / "store")]
        )

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        wrong = Scenario.compare(self, clean, between, after)
        if between is not None and len(between["rows"]) != len(clean["rows"]):
            wrong.append(
                f"in between there are {len(between['rows'])} rows of {len(clean['rows'])}"
            )
        return wrong


class Delete(Rename):
    """`tencost records delete`."""

    name = "delete"

    def command(self, root: Path) -> None:
        from tencost import cli

        cli.main(["records", "delete", "--hardware", "a100", "--store", str(root / "store")])

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        return Scenario.compare(self, clean, between, after)


Import.scenarios = (ImportLogs, ImportMore, Compact, Rename, Delete)
