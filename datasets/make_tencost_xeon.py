"""Convert the measurements of tencost-xeon into the raw layout and pack them; run once.

    python datasets/make_tencost_xeon.py SOURCE

SOURCE holds the measurements as they were taken: for every hardware one MetaSchedule database of
all workloads (`<hardware>/database_workload.json.gz` and `database_tuning_record.json.gz`),
`tasks.json` in the order of the workloads, and `network_info/<network>.json.gz`. The result,
`datasets/tencost-xeon.tar.zst`, is the layout of `src/tencost/records/raw_layout.py`: one
database pair a task. Record lines keep their text but for the workload index. The dataset card,
docs/reference/dataset-card.md, goes in as README.md. Prints the archive's sha256 for
conf/dataset/tencost-xeon.yaml.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tencost.records.fetch.pack import pack_folder
from tencost.records.formats.metaschedule import (
    RECORD_FILE,
    WORKLOAD_FILE,
    decode_module,
)
from tencost.records.raw_layout import folder_name
from tencost.store.ids import workload_id

HERE = Path(__file__).resolve().parent
HARDWARE = ("xeon-avx512-1c", "xeon-avx2-1c")
GENERATED_FOR = "xeon-avx512-1c"
NETWORKS = ("bert_tiny", "mobilenet_v2", "resnet_18", "vit_s", "poolformer_s12", "squeezebert")
MEASURED_ON = 1795219200.0  # 2026-11-21 00:00 UTC
PROVENANCE: dict[str, Any] = {
    "timestamp": MEASURED_ON,
    "engine_version": "0.27.0.post1",
    "env_name": "shared virtual machine, 2 virtual cores",
    "hw_model": "Intel Xeon (model name hidden by the hypervisor; AVX-512, AMX)",
    "engine_config": {"apache-tvm-ffi": "0.1.14.post1"},
    "runtime_config": {"num_cpu_threads": 1, "pinned": True},
    "execution_config": {
        "warm_up": 1,
        "repeat": 3,
        "min_repeat_ms": 15,
        "remeasured_above_spread": 0.05,
        "single_run_above_ms": 150,
    },
    "additional_info": {
        "timestamp_resolution": "day",
        "clock": "no frequency control",
        "l1d_kib": 48,
        "l2_kib": 2048,
        "l3_kib_shared": 491520,
    },
}


def main(source: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "tencost-xeon"
        convert(source, folder)
        archive = HERE / "tencost-xeon.tar.zst"
        sha256 = pack_folder(folder, archive)
        sys.stdout.write(f"{archive.stat().st_size} bytes, sha256 {sha256}\n")


def convert(source: Path, folder: Path) -> None:
    """Write the raw layout of `source` to `folder`."""
    measured = json.loads((source / "tasks.json").read_text())
    folders: dict[str, str] = {}
    for hardware in HARDWARE:
        workloads = [json.loads(line) for line in lines(source / hardware / f"{WORKLOAD_FILE}.gz")]
        modules = [decode_module(module) for _, module in workloads]
        ids = [workload_id(module) for module in modules]
        assert len(set(ids)) == len(ids) == len(measured), "two measured workloads are one"
        names = [
            folder_name(task["task_name"], key) for task, key in zip(measured, ids, strict=True)
        ]
        folders.update(zip(ids, names, strict=True))
        records: list[list[str]] = [[] for _ in ids]
        for line in lines(source / hardware / f"{RECORD_FILE}.gz"):
            index, body = split_index(line)
            records[index].append(body)
        top = folder / "measure_records" / hardware
        for name, workload, bodies in zip(names, workloads, records, strict=True):
            write_pair(top / name, workload, [f"[0,{body}" for body in bodies])
            if hardware == GENERATED_FOR:
                todo = [without_times(body) for body in bodies]
                write_pair(folder / "to_measure_programs" / name, workload, todo)
        write_json(top / "provenance.json", PROVENANCE)
    index = []
    for network in NETWORKS:
        entries = []
        with gzip.open(source / "network_info" / f"{network}.json.gz") as file:
            tasks = json.load(file)
        for task in tasks:
            key = workload_id(task["mod"])
            entry = {
                "task_name": task["name"],
                "weight": int(task["weight"]),
                "flop": float(task["flops"]),
                "workload_id": key,
            }
            entries.append({**entry, "mod": task["mod"]})
            index.append(
                {
                    "network": network,
                    **entry,
                    "measured": key in folders,
                    "folder": folders.get(key),
                }
            )
        write_json(folder / "network_info" / f"{network}.json", entries)
    write_json(folder / "tasks.json", index)
    (folder / "README.md").write_text(
        (HERE.parent / "docs" / "reference" / "dataset-card.md").read_text()
    )


def lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def split_index(line: str) -> tuple[int, str]:
    """Split `[index,body]` into the index and `body]`, the text untouched."""
    number, body = line[1:].split(",", 1)
    return int(number), body


def without_times(body: str) -> str:
    record = json.loads("[" + body)[0]
    record[1] = None
    return json.dumps([0, record], separators=(",", ":"))


def write_pair(folder: Path, workload: list[str], records: list[str]) -> None:
    folder.mkdir(parents=True)
    (folder / WORKLOAD_FILE).write_text(json.dumps(workload, separators=(",", ":")) + "\n")
    (folder / RECORD_FILE).write_text("".join(f"{line}\n" for line in records))


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
