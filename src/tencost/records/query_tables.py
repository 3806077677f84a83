"""A version of a record store as DuckDB tables, read where its files are.

    all_records   the schema's columns and `latency_s`, the median of run_secs in seconds
    records       those that are not in quarantine
    comparable    those of them whose times may be compared: of each workload, hardware and target the records of one
                  code generator, the one asked for or the preferred one (store/generator.py); after `compare_generator`

Files are read through Polars: only those of the hardware asked for, the columns asked for, and the row groups that the
filters leave. Columns that a file of an earlier schema lacks are null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from tencost.errors import RecordError
from tencost.records.reading.protocol import shorten
from tencost.records.reading.targets import parse_target
from tencost.store.delta import explain_damage
from tencost.store.generator import age
from tencost.store.ids import canonical_target
from tencost.store.layout import COLUMNS, PARTITION
from tencost.store.measured import KEY
from tencost.store.reading import StoredRecords, StoreView, View, preferred_generators

Target = Mapping[str, Any] | str
"""A target as a mapping, as its JSON text, or as the text of an older TVM."""
MEASURED = "coalesce(len(measurements), 1)"
"""SQL expression: the number of a record's measurements."""


def canonical(target: Target) -> str:
    """Return a target's canonical JSON; that of records of logs that say no target is {}.

    Raises:
        RecordError: no target.
    """
    if not isinstance(target, str):
        return canonical_target(dict(target))
    if target == "{}":
        return target
    try:
        return canonical_target(parse_target(target))
    except ValueError as error:
        raise RecordError(
            f"expected a target as JSON or as text (cuda -keys=cuda,gpu), found {shorten(target)}: {error}"
        ) from error


class Tables:
    """The tables of a store at the version that it was opened at; `known` holds what `only_since` finds."""

    def __init__(self, store: StoredRecords) -> None:
        import duckdb

        self._uri = store.uri
        self._view = store.view()
        self.version = self._view.version
        # Also keeps queries from Python's own variables.
        self._connection = duckdb.connect(config={"enable_external_access": "false"})
        self._present(self._view)

    def ask(self, text: str, **parameters: Any) -> pl.DataFrame:
        """Return a query's answer; `parameters` are its `$name`s."""
        import duckdb

        try:
            answer = self._connection.sql(text, params=parameters or None)
            return pl.DataFrame(answer.to_arrow_table())
        except duckdb.Error as error:
            raise RecordError(
                f"expected a query that {self._uri} can answer, found: {error}. Tables: records, all_records; their "
                "columns: tencost records query sql 'DESCRIBE records'"
            ) from error

    def compare_generator(self, generator: str | None = None) -> None:
        """Make the table `comparable`.

        Args:
            generator: the code generator whose records it has; None: of each workload the preferred one.

        Raises:
            RecordError: no record is of that generator; the message names those that there are.
        """
        generators = self.ask("SELECT DISTINCT generator FROM records")["generator"].to_list()
        if generator is not None and generator not in generators:
            raise RecordError(
                f"expected a code generator of the records in {self._uri}, found {generator!r}. There are: "
                + "; ".join(sorted(generators, key=age, reverse=True))
            )
        if generator is not None:
            chosen = f"SELECT * FROM records WHERE generator = {quoted(generator)}"
        elif len(generators) < 2:
            chosen = "SELECT * FROM records"
        else:
            group = ("workload_id", "hardware", "target")
            keys = ", ".join([*group, "generator"])
            counts = self.ask(
                f"SELECT {keys}, count(*) FILTER (status = 'ok') AS ok FROM records GROUP BY ALL"
            )
            self._connection.register("preferred", preferred_generators(counts, group))
            chosen = f"SELECT records.* FROM records SEMI JOIN preferred USING ({keys})"
        self._connection.execute(f"CREATE OR REPLACE VIEW comparable AS {chosen}")

    def fastest(
        self,
        hardware: str,
        target: Target,
        n: int,
        columns: Sequence[str],
        generator: str | None = None,
    ) -> pl.DataFrame:
        """Return the rows of the n fastest records of each workload, by workload's task name, workload and rank."""
        texts = self.targets(hardware, target)
        self.compare_generator(generator)
        chosen = self.ask(
            f"""
            SELECT record_id FROM comparable
            WHERE hardware = $hardware AND target IN {in_list(texts)} AND status = 'ok'
            QUALIFY row_number() OVER (PARTITION BY workload_id ORDER BY latency_s, record_id) <= {n}
            ORDER BY min(task_name) OVER (PARTITION BY workload_id), workload_id, latency_s, record_id
            """,
            hardware=hardware,
        )
        # Programs are long, and most of them are not asked for.
        same = pl.col("record_id").is_in(chosen["record_id"].implode())
        with explain_damage(self._uri):
            rows = self._view.scan([hardware]).filter(same).select(columns).collect()
        return chosen.join(rows, on="record_id", how="left", maintain_order="left")

    def canonical_targets(self, hardware: str) -> dict[str, str]:
        """Return the target texts of a hardware's records, each with its canonical JSON.

        Raises:
            RecordError: no records of that hardware.
        """
        targets = self.ask(
            "SELECT DISTINCT target FROM records WHERE hardware = $hardware", hardware=hardware
        )
        if targets.is_empty():
            there = self.ask("SELECT DISTINCT hardware FROM records ORDER BY hardware")["hardware"]
            raise RecordError(
                f"expected records of {hardware} in {self._uri}, found only "
                f"{', '.join(there) or 'an empty store'}"
            )
        return {text: canonical_target(json.loads(text)) for text in targets["target"]}

    def targets(self, hardware: str, target: Target) -> list[str]:
        """Return the texts that stand for a target in a hardware's records.

        Raises:
            RecordError: none do; the message names those that are there.
        """
        requested = canonical(target)
        canonical_names = self.canonical_targets(hardware)
        texts = sorted(text for text, name in canonical_names.items() if name == requested)
        if not texts:
            raise RecordError(
                f"expected records of {hardware} for the target {requested} in {self._uri}, found only "
                f"those for {'; '.join(sorted(set(canonical_names.values())))}"
            )
        return texts

    def register_canonical(self) -> None:
        """Add a table `targets`: every target text with its canonical JSON."""
        texts = self.ask("SELECT DISTINCT target FROM all_records")["target"].to_list()
        names = [canonical_target(json.loads(text)) for text in texts]
        columns = {
            "target": pa.array(texts, pa.string()),
            "canonical": pa.array(names, pa.string()),
        }
        self._connection.register("targets", pa.table(columns))

    def only_since(self, earlier: StoreView) -> None:
        """Select records of files that an earlier version lacks; records of files that only it has become `known`."""
        assert isinstance(self._view, StoreView)
        self._present(self._view.without(earlier))
        removed = earlier.without(self._view)
        try:
            rows = removed.scan(removed.hardware()).filter(pl.col("quarantine").is_null())
            measured = pl.col("measurements").list.len().fill_null(1).cast(pl.Int64)
            earlier_records = rows.select(*KEY, measured.alias("measured")).collect()
        except (OSError, pl.exceptions.ComputeError) as error:
            raise RecordError(
                f"expected the files of version {earlier.version} of {self._uri}, found some gone, vacuumed "
                f"probably: {error}. Ask for a later version, or for everything: leave since= out."
            ) from error
        self._connection.unregister("known")
        self._connection.register("known", earlier_records)

    def _present(self, view: View) -> None:
        """Put records behind the views; each hardware is a part that is not read where another is asked for."""
        parts = []
        for number, name in enumerate(view.hardware()):
            # DuckDB hands filters and the choice of columns on to a LazyFrame. To an Arrow dataset
            # it hands comparisons of strings that Arrow has no kernel for.
            self._connection.register(f"part{number}", view.scan([name]).drop(PARTITION))
            parts.append(f"SELECT *, {quoted(name)} AS hardware FROM part{number}")
        if not parts:
            self._connection.register("part0", pl.DataFrame(schema=COLUMNS))
            parts.append("SELECT * FROM part0")
        stored = " UNION ALL BY NAME ".join(parts)
        columns = ", ".join(f'"{name}"' for name in COLUMNS)  # foreign is a word of SQL
        self._connection.execute(
            f"CREATE OR REPLACE VIEW all_records AS SELECT {columns}, "
            f"list_median(run_secs) AS latency_s FROM ({stored})"
        )
        self._connection.execute(
            "CREATE OR REPLACE VIEW records AS SELECT * FROM all_records WHERE quarantine IS NULL"
        )
        self._connection.register(
            "known", pa.table({"hardware": [""], "record_id": [""], "measured": [0]}).slice(1)
        )


def quoted(value: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"


def in_list(values: Sequence[str]) -> str:
    """Return texts as the right side of SQL's IN."""
    return f"({', '.join(quoted(value) for value in values)})"
