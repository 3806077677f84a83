"""Write the golden store of the schema version at hand: five records on two hardware, two commits.

    python tests/store/golden/make_store.py

It makes the folder store-<version> beside itself and must not exist yet: a golden store is made once,
by the last code of its version, and never again. For an earlier version run it in a checkout of that
code: it uses what all versions have.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tencost.store.record_store import RecordStore
from tencost.store.schema import SCHEMA_VERSION, NetworkWeight, Provenance, Record, Source
from tencost.store.status import Status


def golden_record(number: int, hardware: str, run_secs: tuple[float, ...]) -> Record:
    failed = not run_secs
    return Record(
        record_id=f"{number:032x}",
        program_id=f"{number + 16:032x}",
        workload_id=f"{number % 2:032x}",
        task_name="matmul",
        networks=(NetworkWeight("net", 2),),
        hardware=hardware,
        target={"kind": "llvm", "mcpu": "core-avx2"},
        program_format="metaschedule_trace",
        program="[[],[]]",
        run_secs=run_secs,
        status=Status.run_error if failed else Status.ok,
        error="crashed" if failed else "",
        source=Source("set", "file.json", number),
        workload_args=[["TENSOR", "float32", [8, 8]]],
        provenance=Provenance(timestamp=1.5e9, engine_version="0.27"),
        extra={"raw_run_secs": "[1e10]"} if failed else None,
    )


def main() -> None:
    folder = Path(__file__).parent / f"store-{SCHEMA_VERSION}"
    if folder.exists():
        sys.exit(f"expected no {folder}: a golden store is never made again")
    store = RecordStore(str(folder))
    store.write([golden_record(1, "a", (3e-3, 1e-3)), golden_record(2, "b", (4e-3,))])
    store.write(
        [
            golden_record(3, "a", (1e-3,)),
            golden_record(4, "a", ()),
            golden_record(5, "ä b", (5e-3,)),
        ]
    )
    created = folder / "_delta_log" / f"{0:020}.json"
    text = created.read_text(
        encoding="utf-8"
    )  # says where the table was made, which is nobody's business
    created.write_text(
        re.sub(r'"location":"[^"]*"', f'"location":"file:///{folder.name}/"', text),
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
