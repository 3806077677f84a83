"""Records that were read from logs of auto_scheduler, written back as they were."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from tencost.errors import RecordError
from tencost.records.formats.ansor.steps import FAMILY, PROGRAM_FORMAT
from tencost.records.reading.protocol import BATCH_ROWS

if TYPE_CHECKING:
    import polars


def write_lines(table: pa.Table | polars.DataFrame) -> Iterator[str]:
    """Yield the line of each record in the table's order, without its end, formatted as auto_scheduler does.

    Times have six digits where these say all of the value, as in every log of TVM, and all of theirs elsewhere.

    Raises:
        RecordError: a record that was not read from such a log.
    """
    arrow = table if isinstance(table, pa.Table) else table.to_arrow()
    columns = arrow.select(["foreign", "program", "run_secs", "wall_s", "timestamp"])
    for batch in columns.to_batches(max_chunksize=BATCH_ROWS):
        for foreign, program, run_secs, wall_s, timestamp in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        ):
            task, version, error, costs = _foreign_parts(foreign)
            steps = msgspec.json.format(program, indent=0)
            times = ", ".join(map(_number, run_secs if costs is None else costs))
            yield (
                f'{{"i": [{task}, [[], {steps}]], "r": [[{times}], {error}, {_number(wall_s)}, '
                f'{int(timestamp)}], "v": {version}}}'
            )


@lru_cache(maxsize=256)
def _foreign_parts(foreign: str | None) -> tuple[str, str, int, list[float] | None]:
    """Return JSON text of the task, of the version, the error number, and the costs of a failure."""
    fields = json.loads(foreign or "null")
    if not (isinstance(fields, dict) and fields.get("format") == FAMILY):
        raise RecordError(
            f"expected records that were read from a log of auto_scheduler, found one whose `foreign` is "
            f"{(foreign or '')[:60]!r}: select those with program_format = '{PROGRAM_FORMAT}'"
        )
    task, version = (json.dumps(fields[name], ensure_ascii=False) for name in ("task", "v"))
    return task, version, fields["error_no"], fields.get("costs")


def _number(value: float) -> str:
    short = f"{value:.6g}"
    return short if float(short) == value else repr(value)
