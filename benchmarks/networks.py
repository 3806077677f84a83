"""Whole networks: PyTorch, ONNX Runtime, TVM, stock MetaSchedule and tencost on the same cores, timed in one sitting.

    python benchmarks/networks.py [--networks bert_tiny resnet_18:onnx ...] [--cores 1 4] [--arms ...] [--seconds 900]
                                  [--stock-times 10] [--stock-warm] [--set OVERRIDE ...] [--again ARM ...] [--report]
                                  [--store URI]

Arms, all with the same number of threads on the same CPUs:

eager, compile   PyTorch as it is, and torch.compile (Inductor); compile-frozen: with its weights frozen, too
onnxruntime      ONNX Runtime, the graph as the project's own exporter makes it
untuned          TVM's default schedules
rules            `tencost compile` without a database: nothing was measured
stock            stock MetaSchedule (tune_relax: XGBModel, LocalBuilder, LocalRunner), as many seconds as tencost took;
                 stock-x10: ten times as many, on the networks of --stock-long; stock-warm: with our warm workers
tencost          `tencost tune` as a user runs it, ended by Ctrl-C after --seconds, then `tencost compile`. Its live
                 store is an empty one of its own: it has the registered model and the starting points that this ships

Every arm is prepared once, in a process of its own, and what it made is kept under --work, so that the script can be
stopped at any moment and goes on; nothing that is finished is run again, an arm that failed neither, unless --again
names it (`--again timing` for the timing). Then all arms of a network are timed in turn, see
tencost.tune.hosts.times_in_turn: each is loaded by a resident process that sleeps while it is not its turn, as thread
pools in one process get into each other's way; a turn begins with a call that does not count. Outputs are compared with
what PyTorch computes.

`bert_tiny:onnx` and `vit_s:torch_export` go through a file for TVM: saved by PyTorch, read by that network.source.

Results: one file a network and number of cores in benchmarks/results/networks; --report prints the tables, draws the
plots and measures nothing. --store URI writes every arm beside that record store, too, where `tencost records compare`
and `regress` read it: with --report of all results that are there, else of each network as it is timed. What the store
has is not written again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import network_table as table
from network_arms import Case
from network_processes import ROOT, Clock, Failed, child, command, time_arms, write
from runnable import compose_runnable

from tencost.config.composition import compose
from tencost.errors import RecordError, TencostError
from tencost.measure.host_state import host_facts
from tencost.records.formats.metaschedule import RECORD_FILE
from tencost.records.network_times.timing import host_name, networks_uri
from tencost.workers.noise import host_load, is_busy

NETWORKS = (
    *("bert_tiny", "gpt2", "vit_s", "deit_tiny:torch_export"),
    *("mobilenet_v2", "efficientnet_b0", "resnet_18:onnx", "convnext_tiny", "swin_tiny"),
)
ARMS = ("eager", "compile", "onnxruntime", "untuned", "rules", "tencost", "stock")
OTHER_ARMS = ("compile-frozen", "stock-warm")
LONG = ("bert_tiny", "mobilenet_v2", "vit_s")
TURN_S = 4.0
"""Seconds that an arm is timed for in a sitting, about."""
TRIES = 3
"""Times that `tencost tune` is run: where its best program computes something else, it says so and asks for another."""
ENDLESS = 1_000_000
"""Programs: more than a budget in seconds allows."""


def main() -> int:
    given = arguments()
    results = given.results
    # Without a result it is only looked whether the place is a store: before hours, not after them.
    if not stored(given, table.read_results(results) if given.report else []):
        return 2
    all_stored = True
    if not given.report:
        cpus = sorted(os.sched_getaffinity(0))
        if max(given.cores) > len(cpus):
            print(
                f"--cores {max(given.cores)}: expected so many CPUs, found {len(cpus)} that this process may use "
                f"({', '.join(map(str, cpus))}). Give fewer: --cores {len(cpus)}",
                file=sys.stderr,
            )
            return 2
        try:
            compose_runnable([f"hardware={given.hardware}", *given.set])
        except TencostError as error:
            print(f"--hardware {given.hardware}: {error}", file=sys.stderr)
            return 2
        results.mkdir(parents=True, exist_ok=True)
        for cores in given.cores:
            for named in given.networks:
                file = benchmark(given, case_of(given, named, cores), cpus)
                if file is not None:
                    all_stored &= stored(given, [json.loads(file.read_text(encoding="utf-8"))])
    print(table.report(results))
    return 0 if all_stored else 2


def stored(given: argparse.Namespace, results: Sequence[table.Result]) -> bool:
    """Write results into the store that is named, if one is, and say so; returns whether that could be done."""
    if given.store is None:
        return True
    try:
        added = table.store(results, given.store)
    except RecordError as error:
        print(f"--store {given.store}: {error}", file=sys.stderr, flush=True)
        print("Results are kept; to store them: --report --store URI", file=sys.stderr, flush=True)
        return False
    uri = networks_uri(given.store)
    if results:
        arms = sum(len(result["arms"]) for result in results)
        print(f"{added.records} of {arms} arms are new in {uri}", flush=True)
    if added.quarantined:
        print(
            f"{added.quarantined} of them are in quarantine, as their repeats contradict each other: tencost records "
            f"quarantine --store {uri}",
            flush=True,
        )
    return True


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = (*ARMS, *OTHER_ARMS)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--cores", nargs="+", type=int, default=[1])
    parser.add_argument("--arms", nargs="+", choices=known, default=list(ARMS))
    parser.add_argument("--seconds", type=float, default=900, help="of `tencost tune`")
    parser.add_argument("--trials", type=int, default=ENDLESS, help="of `tencost tune`, at most")
    parser.add_argument("--hardware", default="local")
    parser.add_argument("--model", help="model_uri; the hardware's champion unless given")
    parser.add_argument("--stock-times", type=int, help="stock with so many times the seconds")
    parser.add_argument("--stock-long", nargs="+", default=list(LONG), help="on these networks")
    parser.add_argument("--stock-warm", action="store_true", help="stock with warm workers, too")
    parser.add_argument("--stock-round", type=int, help="programs of its rounds")
    parser.add_argument("--set", nargs="+", default=[], help="overrides of the configuration")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", nargs="+", default=[], help="arms to prepare anew; timing")
    parser.add_argument("--work", type=Path, default=ROOT / "tuned" / "networks-benchmark")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "benchmarks" / "results" / "networks"
    )
    parser.add_argument("--report", action="store_true", help="print what is there, run nothing")
    parser.add_argument("--store", metavar="URI", help="record store beside which arms are records")
    given = parser.parse_args()
    if given.store is not None and not given.store.strip():
        parser.error("--store: expected a folder or a URI of a record store, found nothing")
    for named in given.networks:
        network, _, via = named.partition(":")
        if via not in ("", "onnx", "torch_export"):
            parser.error(f"--networks {named}: expected {network}:onnx or {network}:torch_export")
    return given


def case_of(given: argparse.Namespace, named: str, cores: int) -> Case:
    network, _, via = named.partition(":")
    folder = given.work.resolve() / f"{named.replace(':', '-')}-{cores}c"
    return Case(
        network=network,
        via=via,
        cores=cores,
        hardware=given.hardware,
        settings=tuple(given.set),
        folder=str(folder),
    )


def arms_of(given: argparse.Namespace, network: str) -> list[str]:
    """Return a network's arms, tencost before those whose budget is its seconds."""
    arms = [arm for arm in (*ARMS, *OTHER_ARMS) if arm in given.arms]
    if given.stock_warm and "stock-warm" not in arms:
        arms.append("stock-warm")
    if given.stock_times and network in given.stock_long:
        arms.append(f"stock-x{given.stock_times}")
    return arms


def benchmark(given: argparse.Namespace, case: Case, cpus: Sequence[int]) -> Path | None:
    """Prepare what is not prepared yet, then time all arms, unless the same ones have been; returns the result's file.

    None: the network could not be prepared.
    """
    case.path.mkdir(parents=True, exist_ok=True)
    try:
        prepare_network(case, cpus)
    except Failed as failed:
        print(f"{case.name}: left out: {failed}", file=sys.stderr, flush=True)
        return None
    for arm in arms_of(given, case.network):
        prepare_once(given, case, arm, cpus)
    prepared = {
        file.parent.name: json.loads(file.read_text()) for file in case.path.glob("*/arm.json")
    }
    file = given.results / f"{case.name}-{case.cores}c.json"
    if "timing" not in given.again and file.exists() and is_of(file, prepared):
        return file
    print(f"{case.name}, {case.cores} cores: timing {len(prepared)} arms", flush=True)
    write(file, time_all(case, prepared, cpus[-case.cores :]))
    return file


def is_of(file: Path, prepared: Mapping[str, dict[str, Any]]) -> bool:
    """Say whether a result is one of these arms as they are prepared."""
    rows = json.loads(file.read_text())["arms"]
    return rows.keys() == prepared.keys() and all(
        rows[arm].items() >= values.items() for arm, values in prepared.items()
    )


def prepare_once(given: argparse.Namespace, case: Case, arm: str, cpus: Sequence[int]) -> None:
    """Prepare an arm unless it is; that it failed is kept, too."""
    folder = case.path / arm
    if arm in given.again and folder.exists():
        shutil.rmtree(folder)
    if (folder / "arm.json").exists():
        return
    print(f"{case.name}, {case.cores} cores: {arm}", flush=True)
    folder.mkdir(exist_ok=True)
    load = {"load_before": host_load(set(cpus))}
    try:
        found = prepare(given, case, arm, cpus)
    except Failed as failed:
        found = {"error": str(failed)}
        print(f"  failed: {failed}", flush=True)
    write(folder / "arm.json", found | load | {"load_after": host_load(set(cpus))})


def prepare_network(case: Case, cpus: Sequence[int]) -> None:
    """Write what all arms start from; without it there is nothing to time."""
    file = case.path / "network.json"
    if not file.exists():
        print(f"{case.name}, {case.cores} cores: inputs, weights, ONNX", flush=True)
        write(file, child(case, "network", "network", cpus, threads=1))


def prepare(given: argparse.Namespace, case: Case, arm: str, cpus: Sequence[int]) -> dict[str, Any]:
    """Make an arm; returns seconds and programs that it took to get there, and what it was made into."""
    database = case.path / arm / "database" / RECORD_FILE if arm.startswith("stock") else None
    clock = Clock(case.path / arm / "spent.json", database)
    if arm == "tencost":
        found = prepare_tencost(given, case, clock)
    elif arm == "rules":
        found = prepare_by_rule(case, clock)
    elif arm == "eager":
        found = {}
    else:
        budget = stock_seconds(given, case, arm)
        settings = {
            "budget_s": budget,
            "left_s": budget - clock.spent,
            "round": given.stock_round,
            "seed": given.seed,
        }
        threads = case.cores if arm.startswith("compile") else 1
        used = cpus[-case.cores :] if arm.startswith("compile") else cpus
        found = child(case, "prepare", arm, used, settings, clock, threads=threads)
        if arm.startswith("stock"):
            found["budget_s"] = budget
    seconds = clock.spent
    if arm == "onnxruntime":
        seconds += json.loads((case.path / "network.json").read_text())["onnx_export_s"]
    return {"seconds": seconds, "sittings": clock.sittings, **found}


def stock_seconds(given: argparse.Namespace, case: Case, arm: str) -> float:
    """Return the seconds that stock has: as many as tencost took, or those that it was to have."""
    file = case.path / "tencost" / "arm.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    times = int(arm.rpartition("-x")[2]) if "-x" in arm else 1
    return times * float(found.get("seconds", given.seconds))


def prepare_tencost(given: argparse.Namespace, case: Case, clock: Clock) -> dict[str, Any]:
    """Tune and compile with the command line, as a user does."""
    folder = case.path / "tencost"
    tuned = folder / "tuned"
    store = f"paths.store={folder / 'store'}"
    own = [store, f"tuner.workdir={tuned}", f"tuner.seed={given.seed}"]
    model = [f"model_uri={given.model}"] if given.model else []
    log = folder / "log.txt"
    for attempt in range(1, TRIES + 1):
        reports = list(tuned.glob("*/report.json"))
        if reports and clock.spent >= given.seconds:
            break
        has_time = clock.spent < given.seconds
        # With one program to measure, which it has, it only compares and times what it knows.
        trials = f"tuner.trials={given.trials if has_time else 1}"
        words = ["tune", *case.overrides, *own, *model, trials]
        try:
            command(words, log, clock, interrupt_at=given.seconds if has_time else None)
            break
        except Failed:
            if attempt == TRIES or not any(tuned.glob(f"*/{RECORD_FILE}")):
                raise
    reports = list(tuned.glob("*/report.json"))
    if not reports:
        raise Failed(f"`tencost tune` left no report after {clock.spent:.0f} s, see {log}")
    database, library = reports[0].parent, folder / "library.so"
    paths = ["--database", str(database), "--to", str(library)]
    command(["compile", *case.overrides, store, *paths], log, clock)
    about = json.loads(library.with_suffix(".json").read_text())
    report = json.loads(reports[0].read_text())
    return {
        "programs": len((database / RECORD_FILE).read_text().splitlines()),
        "tasks": about["tasks"],
        "tasks_tuned": about["tuned_tasks"],
        "model": report["model"],
        "tune_report_latency_s": report.get("network_latency_s"),
        "code_bytes": library.stat().st_size,
    }


def prepare_by_rule(case: Case, clock: Clock) -> dict[str, Any]:
    """Compile with the command line, with nothing measured."""
    folder = case.path / "rules"
    library, nothing = folder / "library.so", f"tuner.workdir={folder / 'tuned'}"
    words = ["compile", *case.overrides, f"paths.store={folder / 'store'}", nothing]
    command([*words, "--to", str(library)], folder / "log.txt", clock)
    return {"code_bytes": library.stat().st_size}


def time_all(
    case: Case, prepared: Mapping[str, dict[str, Any]], cpus: Sequence[int]
) -> dict[str, Any]:
    """Time all arms that are there in turn, and compare their outputs."""
    rows = {arm: dict(values) for arm, values in prepared.items()}
    before, after = time_arms(case, rows, cpus, TURN_S)
    network = compose(case.plain)[0].network
    return {
        "network": case.name,
        "plain_name": network.name,
        "via": case.via,
        "batch": network.batch,
        "size": network.size or None,
        "cores": case.cores,
        "hardware": case.hardware,
        "settings": list(case.settings),
        "timestamp": round(time.time()),
        "host": host_facts(cpus) | {"name": host_name()},
        "versions": versions(),
        "load_before": before,
        "load_after": after,
        "busy": is_busy(before) or is_busy(after) or "",
        "arms": rows,
    }


def versions() -> dict[str, str]:
    """Return versions of the engines."""
    tvm, torch = version("apache-tvm"), version("torch")
    return {
        **{"pytorch": torch, "torch.compile": torch, "onnxruntime": version("onnxruntime")},
        **{"tvm": tvm, "metaschedule": tvm, "tencost": version("tencost")},
    }


if __name__ == "__main__":
    sys.exit(main())
