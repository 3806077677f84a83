"""Files of networks that conf/network does not hold: `tencost compile` by default against ONNX Runtime and others.

    python benchmarks/files.py [--files levit ...] [--batches 1 8] [--cores 1 2] [--again] [--work FOLDER] [--report]
                               [--litert-python PYTHON] [--tune SECONDS] [--results FOLDER]

The files are those of file_networks.py, exported to ONNX as a user's file would come, and compiled with the one command
that a user types, without a setting (`hardware.cores=N` for more cores than one):

    tencost compile network=onnx network.path=FILE --to LIBRARY

and with --tune a second time, by the command that measures programs, which gets Ctrl-C after so many seconds:

    tencost tune network=onnx network.path=FILE --to LIBRARY

Library, ONNX Runtime (CPU provider, default graph optimizations), OpenVINO (latency hint, one stream, float32; where
`pip install openvino` was done; Intel does not officially support other makers' CPUs) and LiteRT (where
`pip install ai-edge-litert` was done and --litert-python names a Python that converts, see litert_convert.py) are then
timed in turn, each in a process of its own on the same CPUs, the last of those that this process may use; outputs are
compared with PyTorch's. A call takes the network's inputs from memory and waits for its outputs.

Results: one file a network, batch and number of cores in benchmarks/results/files (or --results: files-tuned has those
of runs with --tune), in a folder a CPU, with the versions and the load of the host; what has a result is not timed
again, unless --again; --report prints them and times nothing.
A file that cannot be compiled stays in the table with its reason and counts as a miss. The ratio is over the better of
ONNX Runtime and OpenVINO, or over the one that runs the file; that over LiteRT stands beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from network_arms import Case
from network_processes import ROOT, Clock, Failed, command, time_arms, write

from tencost.measure.host_state import host_facts
from tencost.networks.torch_modules import module_to_onnx
from tencost.workers.noise import is_busy

RESULTS = ROOT / "benchmarks" / "results" / "files"
PEERS = ("onnxruntime", "openvino")
LITERT = "litert"
OURS = "rules"
TUNED = "tuned"
MOST_TRIALS = 100_000
"""Programs that no file's tuning measures before its seconds are over."""
PACKAGES = (
    "tencost",
    "apache-tvm",
    "onnxruntime",
    "openvino",
    "ai-edge-litert",
    "torch",
    "transformers",
)
TURN_S = 6.0
"""Seconds that an arm is timed for, about."""
WRONG = 1e-2
"""Largest difference from PyTorch's outputs, relative to their largest value, that an arm may have and count."""
Result = dict[str, Any]


def main() -> int:
    from file_networks import FILES

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", nargs="+", choices=list(FILES), default=list(FILES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1])
    parser.add_argument("--cores", nargs="+", type=int, default=[1])
    parser.add_argument("--work", type=Path, default=ROOT / "tuned" / "files-benchmark")
    parser.add_argument("--again", action="store_true", help="time what has a result, too")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--report", action="store_true", help="print results, time nothing")
    parser.add_argument("--litert-python", help="of an environment with litert-torch")
    parser.add_argument("--tune", type=float, metavar="SECONDS", help="tune each file, too")
    options = parser.parse_args()
    cpu = re.sub(r"[^a-z0-9]+", "-", str(host_facts([0])["cpu"]).lower()).strip("-")
    cells = [(c, b, f) for c in options.cores for b in options.batches for f in options.files]
    for cores, batch, name in [] if options.report else cells:
        result = options.results / cpu / f"{name}-b{batch}-{cores}c.json"
        if options.again or not result.exists():
            result.parent.mkdir(parents=True, exist_ok=True)
            folder = options.work.resolve() / f"{name}-b{batch}"
            found = benchmark(name, batch, cores, folder, options.litert_python, options.tune)
            write(result, found)
    results = sorted(options.results.glob("*/*.json"))
    print(report([json.loads(path.read_bytes()) for path in results]))
    return 0


def benchmark(
    name: str, batch: int, cores: int, folder: Path, litert: str | None, tune_s: float | None
) -> Result:
    """Export a file, compile it as a user does, and time the library beside its peers; `litert`: a Python."""
    folder.mkdir(parents=True, exist_ok=True)
    case = Case(
        network=name, via="", cores=cores, hardware="local", settings=(), folder=str(folder)
    )
    cpus = sorted(os.sched_getaffinity(0))[-cores:]
    if not (folder / "expected.npz").exists():  # written last
        export(name, batch, folder)
    rows: dict[str, dict[str, Any]] = {peer: {} for peer in PEERS if find_spec(peer)}
    if litert is not None:
        rows[LITERT] = convert_for_litert(litert, name, batch, folder)
    print(f"{name}, batch {batch}, {cores} cores", flush=True)
    words = ["network=onnx", f"network.path={folder / 'model.onnx'}"]
    words += [f"hardware.cores={cores}"] if cores > 1 else []
    rows[OURS] = made(["compile", *words], folder / OURS)
    if tune_s is not None:
        shutil.rmtree(folder / TUNED, ignore_errors=True)
        own = [f"paths.store={folder / TUNED / 'store'}", f"tuner.workdir={folder / TUNED}"]
        own += [f"tuner.trials={MOST_TRIALS}"]
        rows[TUNED] = made(["tune", *words, *own], folder / TUNED, interrupt_at=tune_s)
    before, after = time_arms(case, rows, cpus, TURN_S)
    return {
        "file": name,
        "batch": batch,
        "cores": cores,
        "timestamp": round(time.time()),
        "host": host_facts(cpus),
        "versions": versions(),
        "busy": is_busy(before) or is_busy(after) or "",
        "arms": rows,
    }


def made(words: Sequence[str], folder: Path, interrupt_at: float | None = None) -> dict[str, Any]:
    """Have a command of tencost write a folder's library; returns {"seconds": ...}, or {"error": why there is none}."""
    folder.mkdir(exist_ok=True)
    (folder / "spent.json").unlink(missing_ok=True)
    clock = Clock(folder / "spent.json")
    library = ["--to", str(folder / "library.so")]
    try:
        command([*words, *library], folder / "log.txt", clock, interrupt_at=interrupt_at)
    except Failed as failed:
        return {"error": str(failed)}
    return {"seconds": clock.spent}


def convert_for_litert(python: str, name: str, batch: int, folder: Path) -> dict[str, Any]:
    """Write litert/model.tflite, once; returns {}, or {"error": why the converter refuses the network}."""
    file = folder / LITERT / "model.tflite"
    if file.exists():
        return {}
    file.parent.mkdir(exist_ok=True)
    folders = (ROOT / "benchmarks", ROOT / "src")
    converted = subprocess.run(
        [python, ROOT / "benchmarks" / "litert_convert.py", name, str(batch), file],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    lines = [line for line in converted.stderr.splitlines() if line.strip()]
    last = re.sub(r"\S*/", "", lines[-1]) if lines else "no message"  # without the folders in it
    return {"error": last[:120]} if converted.returncode else {}


def versions() -> dict[str, str]:
    """Return the versions of the packages that are there."""
    installed = {}
    for package in PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed


def export(name: str, batch: int, folder: Path) -> None:
    """Write model.onnx, inputs.npz and expected.npz, what PyTorch computes for these inputs."""
    import onnx
    import torch
    from file_networks import FILES

    network = FILES[name]
    tensors, module = network.tensors(batch, seed=0), network.module()
    with torch.inference_mode():
        outputs = module(*tensors)
    expected = outputs if isinstance(outputs, tuple) else (outputs,)
    onnx.save(module_to_onnx(name, module, tensors), folder / "model.onnx")
    named = zip(network.inputs, tensors, strict=True)
    np.savez(folder / "inputs.npz", **{key: value.numpy() for key, value in named})
    np.savez(folder / "expected.npz", **{str(n): value.numpy() for n, value in enumerate(expected)})


def report(results: Sequence[Result]) -> str:
    """Return a table for each number of cores and batch: milliseconds, and ours over the better peer's."""
    cells: dict[tuple[int, int, str], list[Result]] = defaultdict(list)
    for result in results:
        cells[result["cores"], result["batch"], result["host"]["cpu"]].append(result)
    return "\n\n".join(table(cells[key]) for key in sorted(cells))


def table(results: Sequence[Result]) -> str:
    """Return the table of one CPU, number of cores and batch."""
    first = results[0]
    cores = first["cores"]
    title = f"{first['host']['cpu']}, {cores} core{'s' * (cores > 1)}, batch {first['batch']}"
    packages = ", ".join(f"{name} {number}" for name, number in first["versions"].items())
    lines = [
        f"{title} ({packages}): median [quartiles] of a call in ms; ratio: ours over the better peer's [95 % interval]",
        "",
        "| file | ONNX Runtime | OpenVINO | LiteRT | tencost by default | ratio | over LiteRT | error from PyTorch "
        "| compile, s | |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    ratios, over_litert, tuned_ratios = [], [], []
    for result in results:
        arms = result["arms"]
        peers = [arms[peer]["times_s"] for peer in PEERS if counts(arms.get(peer))]
        ours, note = arms[OURS], "busy host" if result["busy"] else ""
        ratio = interval = beside = ""
        litert = arms.get(LITERT)
        if counts(ours) and counts(litert):
            over_litert.append(
                statistics.median(ours["times_s"]) / statistics.median(litert["times_s"])
            )
            beside = f"{over_litert[-1]:.2f}"
        if counts(ours) and peers:
            best = min(peers, key=statistics.median)
            ratios.append(statistics.median(ours["times_s"]) / statistics.median(best))
            low, high = ratio_interval(ours["times_s"], best)
            ratio, interval = f"{ratios[-1]:.2f}", f" [{low:.2f}, {high:.2f}]"
        tuned = ""
        if counts(arms.get(TUNED)) and counts(ours) and peers:
            tuned_s = statistics.median(arms[TUNED]["times_s"])
            tuned_ratios.append(tuned_s / statistics.median(best))
            low, high = ratio_interval(arms[TUNED]["times_s"], ours["times_s"])
            tuned = f"tuned {1e3 * tuned_s:.3g}, ratio {tuned_ratios[-1]:.2f}, over default [{low:.2f}, {high:.2f}]"
        errors = [f"{arm}: {reason(row)}" for arm, row in arms.items() if not counts(row)]
        difference = f"{ours['max_rel_error']:.0e}" if "max_rel_error" in ours else ""
        seconds = f"{ours['seconds']:.0f}" if "seconds" in ours else ""
        notes = "; ".join(filter(None, [tuned, note, *errors]))
        times = " | ".join(spread(arms.get(arm, {})) for arm in (*PEERS, LITERT, OURS))
        lines.append(
            f"| {result['file']} | {times} | {ratio}{interval} | {beside} | {difference} | {seconds} | {notes} |"
        )
    if ratios:
        mean, worst = statistics.geometric_mean(ratios), max(ratios)
        over = sum(ratio > 1.1 for ratio in ratios)
        beside = f"{statistics.geometric_mean(over_litert):.2f}" if over_litert else ""
        tuned = (
            f"; tuned, mean of {len(tuned_ratios)}: {statistics.geometric_mean(tuned_ratios):.2f}"
            if tuned_ratios
            else ""
        )
        lines.append(
            f"| geometric mean of {len(ratios)} of {len(results)} | | | | | {mean:.2f} | {beside} | | | "
            f"worst {worst:.2f}, {over} above 1.10, {len(results) - len(ratios)} missed{tuned} |"
        )
    return "\n".join(lines)


def counts(row: dict[str, Any] | None) -> bool:
    """Whether an arm was timed and computes what PyTorch does."""
    return row is not None and "times_s" in row and row["max_rel_error"] <= WRONG


def reason(row: dict[str, Any]) -> str:
    if "error" in row:
        return str(row["error"])
    return f"its outputs differ by {row['max_rel_error']:.0e}" if "max_rel_error" in row else ""


def ratio_interval(ours: Sequence[float], best: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the ratio of medians over the turns, drawn again with replacement."""
    generator = np.random.default_rng(0)
    draws = [
        np.median(generator.choice(times, (2000, len(times))), axis=1) for times in (ours, best)
    ]
    low, high = np.percentile(draws[0] / draws[1], [2.5, 97.5])
    return float(low), float(high)


def spread(row: dict[str, Any]) -> str:
    """Return "median [first, third quartile]" of an arm's times in milliseconds, "" without times."""
    if "times_s" not in row:
        return ""
    low, middle, high = (1e3 * value for value in np.percentile(row["times_s"], [25, 50, 75]))
    return f"{middle:.3g} [{low:.3g}, {high:.3g}]"


if __name__ == "__main__":
    sys.exit(main())
