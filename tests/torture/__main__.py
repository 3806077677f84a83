"""The command: parts beside each other, a seed, a budget of minutes, a table at the end."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

from torture.verdict import judge

PARTS = {
    # name: (module, class, share of the time)
    "logs": ("torture.logs", "Logs", 2.0),
    "bundles": ("torture.bundles", "Bundles", 1.5),
    "modules": ("torture.modules", "Modules", 1.5),
    "traces": ("torture.modules", "Traces", 1.0),
    "stores": ("torture.stores", "Stores", 1.5),
    "kill-import": ("torture.killed_imports", "Import", 1.5),
    "kill-stages": ("torture.killed_stages", "Stages", 2.5),
    "kill-register": ("torture.killed_stages", "Register", 2.5),
    "kill-measure": ("torture.killed_measuring", "Measure", 3.0),
    "kill-tune": ("torture.killed_measuring", "Tune", 2.5),
    "kill-pipeline": ("torture.killed_measuring", "Pipeline", 2.5),
}
"""The parts; those whose names begin with `kill-` run commands again after a kill."""
LEAST = 2
"""Cases of a part, whatever its time."""


def run_part(
    name: str, seconds: float, seed: int, findings: Path, only: int | None, most: int
) -> dict[str, Any]:
    """Run cases of a part until its time is over; return what the table says of it."""
    module, kind, _ = PARTS[name]
    if name.startswith("kill-"):
        import_module("torture.kills").load_killer()
    started = time.monotonic()
    counts: Counter[str] = Counter()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix=f"torture-{name}-") as scratch:
        home = Path(scratch)
        (home / "part").mkdir()
        part = getattr(import_module(module), kind)(home / "part")
        ready = time.monotonic()
        number = only or 0
        while counts["cases"] < most and (only is None or number == only):
            if only is None and counts["cases"] >= LEAST and time.monotonic() - started > seconds:
                break
            folder = home / f"case{number}"
            folder.mkdir()
            rng = random.Random(f"{seed} {name} {number}")
            if name.startswith("kill-"):
                done = part.run(rng, number, seed, folder)
                if done is None:  # every write was had
                    break
                what, result = done
            else:
                case = part.case(rng, folder)
                what, result = case.what, judge(case, folder)
            counts["cases"] += 1
            counts[
                "refused" if result.status == 2 else "survived" if result.status == 0 else "failed"
            ] += 1
            if result.findings:
                counts["findings"] += 1
                kept = findings / f"{name}-{number}"
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(folder, kept, symlinks=True, ignore_dangling_symlinks=True)
                replay = f"PYTHONPATH=tests {sys.executable} -m torture {name} --seed {seed} --case {number}"
                told = [what, *result.findings, f"again: {replay}", "", result.errors]
                (kept / "finding.txt").write_text("\n".join(told), errors="replace")
                found.append({"case": number, "what": what, "findings": result.findings})
                sys.stderr.write(f"{name} {number}: {what}: {'; '.join(result.findings)}\n")
            shutil.rmtree(folder, ignore_errors=True)
            number += 1
    said = getattr(part, "said", "")
    return {
        "part": name, **counts, "found": found, "said": said,
        "prepare_s": ready - started, "seconds": time.monotonic() - started,
    }  # fmt: skip


def run_all(names: list[str], arguments: argparse.Namespace) -> int:
    """Run the parts in processes of their own, some at a time; print the table."""
    total = sum(PARTS[name][2] for name in names)
    waiting = sorted(names, key=lambda name: -PARTS[name][2])
    running: dict[str, subprocess.Popen[str]] = {}
    results = []
    failed = False
    while waiting or running:
        while waiting and len(running) < arguments.jobs:
            name = waiting.pop(0)
            minutes = arguments.minutes * arguments.jobs * PARTS[name][2] / total
            words = [name, "--inside", "--minutes", f"{minutes:.3f}", "--seed", str(arguments.seed)]
            words += ["--folder", str(arguments.folder), "--most", str(arguments.most)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "TENCOST_TORTURE": "1"}
            running[name] = subprocess.Popen(
                [sys.executable, "-m", "torture", *words],
                stdout=subprocess.PIPE, text=True, env=environment,
            )  # fmt: skip
        for name, process in list(running.items()):
            if process.poll() is not None:
                output, _ = process.communicate()
                del running[name]
                try:
                    results.append(json.loads(output.splitlines()[-1]))
                except (IndexError, ValueError):
                    failed = True
                    results.append({"part": name, "said": f"did not finish: {process.returncode}"})
        time.sleep(0.1)
    return _report(results, arguments) or int(failed)


def _report(results: list[dict[str, Any]], arguments: argparse.Namespace) -> int:
    out = sys.stdout
    out.write(
        f"\n{'part':14}{'cases':>7}{'refused':>9}{'survived':>10}{'findings':>10}{'seconds':>9}\n"
    )
    for one in sorted(results, key=lambda one: list(PARTS).index(one["part"])):
        numbers = [one.get(name, 0) for name in ("cases", "refused", "survived", "findings")]
        out.write(f"{one['part']:14}{numbers[0]:7}{numbers[1]:9}{numbers[2]:10}{numbers[3]:10}")
        out.write(f"{one.get('seconds', 0):9.0f}  {one['said']}\n")
    findings = sum(one.get("findings", 0) for one in results)
    cases = sum(one.get("cases", 0) for one in results)
    out.write(f"{cases} cases, {findings} findings, seed {arguments.seed}")
    out.write(f"; each in {arguments.folder} with the command to repeat it\n" if findings else "\n")
    return int(findings > 0)


def main(argv: list[str] | None = None) -> int:
    """Run what the arguments say; return 1 if there was a finding."""
    parser = argparse.ArgumentParser(prog="torture", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; none: all")
    parser.add_argument(
        "--minutes", type=float, default=float(os.environ.get("TORTURE_MINUTES", "10"))
    )
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TORTURE_SEED", "0")))
    parser.add_argument("--folder", type=Path, default=Path("torture-findings"))
    parser.add_argument("--jobs", type=int, default=2, help="parts at a time")
    parser.add_argument("--case", type=int, help="this one of the part")
    parser.add_argument("--most", type=int, default=10**9, help="cases of a part at most")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    names = arguments.parts or list(PARTS)
    for name in names:
        if name not in PARTS:
            parser.error(f"expected a part of {', '.join(PARTS)}, found {name}")
    if arguments.inside or arguments.case is not None:
        (name,) = names
        seconds = 60 * arguments.minutes
        result = run_part(
            name, seconds, arguments.seed, arguments.folder, arguments.case, arguments.most
        )
        sys.stdout.write(json.dumps(result) + "\n")
        return int(result.get("findings", 0) > 0) if arguments.case is not None else 0
    sys.stderr.write(f"seed {arguments.seed}, {arguments.minutes:g} minutes, {len(names)} parts\n")
    return run_all(names, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
