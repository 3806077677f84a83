"""Write store-before-generators: records of the committed archives as schema version 3 kept them.

    python tests/store/golden/make_mixed_store.py

Run it in a checkout of before schema version 4 (fcd9711): the store must hold, under one record id, measurements of
programs compiled with libm's functions and with vector mathematics. It takes the tasks whose times differ most between
two archives of the EPYC, for one hardware, and is made once.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from tencost.records.databases import import_parts
from tencost.records.fetch.unpack import unpack
from tencost.store.record_store import RecordStore
from tencost.store.schema import SCHEMA_VERSION

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path(__file__).parent / "store-before-generators"
PARTS = ("tencost-epyc", "tencost-epyc-variants-3")
HARDWARE = "epyc-avx512-1c"
MOST = 12
"""Records of a workload and an archive that are kept."""
WORKLOADS = 3


def main() -> None:
    if SCHEMA_VERSION != "3" or FOLDER.exists():
        sys.exit(f"expected schema version 3 and no {FOLDER}, found version {SCHEMA_VERSION}")
    with tempfile.TemporaryDirectory() as scratch:
        for part in PARTS:
            unpack(ROOT / "datasets" / f"{part}.tar.zst", Path(scratch) / part)
        imported = import_parts([Path(scratch) / part for part in PARTS])
    by_id = defaultdict(list)
    for record in imported.records:
        if record.hardware == HARDWARE and record.run_secs:
            by_id[record.record_id].append(record)
    apart = {
        identity: max(r.run_secs[0] for r in records) / min(r.run_secs[0] for r in records)
        for identity, records in by_id.items()
        if {r.source.dataset for r in records} == set(PARTS)
    }
    workloads = [by_id[max(apart, key=lambda one: apart[one])][0].workload_id]
    # And tasks of which both archives have several programs.
    programs: dict[str, Counter[str]] = defaultdict(Counter)
    for records in by_id.values():
        programs[records[0].workload_id].update(record.source.dataset for record in records)
    shared = sorted(programs, key=lambda one: (-min(programs[one][part] for part in PARTS), one))
    workloads += [one for one in shared if one not in workloads][: WORKLOADS - 1]
    chosen = []
    for workload in workloads:
        ids = sorted(one for one in by_id if by_id[one][0].workload_id == workload)
        for part in PARTS:
            held = [one for one in ids if any(r.source.dataset == part for r in by_id[one])]
            chosen += [r for one in held[:MOST] for r in by_id[one] if r.source.dataset == part]
    store = RecordStore(str(FOLDER))
    for part in PARTS:
        store.write([record for record in chosen if record.source.dataset == part])
    created = FOLDER / "_delta_log" / f"{0:020}.json"
    text = created.read_text(encoding="utf-8")
    created.write_text(
        re.sub(r'"location":"[^"]*"', f'"location":"file:///{FOLDER.name}/"', text),
        encoding="utf-8",
    )
    for record in chosen:
        sys.stdout.write(
            f"{record.workload_id[:8]} {record.task_name} {record.record_id[:8]} {record.source.dataset} "
            f"{1e3 * record.run_secs[0]:.4f} ms\n"
        )


if __name__ == "__main__":
    main()
