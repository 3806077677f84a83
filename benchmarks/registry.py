"""What a shared registry takes: readers that pull the champion at once while it changes, on servers of this host.

    PYTHONPATH=tests python benchmarks/registry.py [readers ...]        1 10 100 unless said otherwise

Starts an object store (moto), PostgreSQL and MLflow on loopback (tests/servers.py), registers two versions, and lets so
many readers begin at once: each pulls models:/<name>@champion into an empty cache, then again
with what it has, while the champion changes twice a second. Says how long a pull took, how many failed, and whether
one was not whole, or was of a version that had stopped being the champion before the pull began; and how many of the
MLflow server's own processes ended meanwhile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import servers
from tencost.features.rows.spec import FeatureSpec
from tencost.models.programs.bundle import BundleInfo, plain_config, save_bundle
from tencost.models.programs.bundle.calibration import Calibration
from tencost.models.programs.families.random import RandomConfig
from tencost.models.programs.ranker import make_ranker
from tencost.register import registry
from tencost.register.pull import manifest_digest

AGAIN = 2
"""Pulls of a reader with a cache."""
READER = """
import json, sys, tempfile, threading, time
from pathlib import Path
from tencost.errors import RegistryError
from tencost.register.pull import manifest_digest, pull
name, count, again = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
import mlflow, tencost.register.registry
from mlflow import MlflowClient
told, lock = [], threading.Lock()
print("ready", flush=True)
sys.stdin.readline()
def read():
    with tempfile.TemporaryDirectory() as cache:
        for number in range(1 + again):
            began = time.time()
            try:
                digest = manifest_digest(pull(f"models:/{name}@champion", Path(cache)))
            except RegistryError as error:
                print(error, file=sys.stderr)
                digest = None
            row = (number > 0, began, time.time(), digest)
            with lock:
                told.append(row)
threads = [threading.Thread(target=read) for _ in range(count)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(told))
"""
PER_PROCESS = 50
"""Readers of a process, threads: what is measured is the server, and a process takes 150 MB."""


def bundle(folder: Path, center: float) -> Path:
    """Write a bundle of the random family."""
    spec = FeatureSpec(name="toy", kind="per_store", columns=("a", "b"))
    config = RandomConfig(family="random", reads=["toy"])
    info = BundleInfo(
        family="random", model_config=plain_config(config), feature_spec=spec, hardware="toy", target_kind="llvm",
        label="fastest / latency", calibration=Calibration(center=center), tvm_range=("0.27.0", "0.28.0"),
        dataset="toy", dataset_hash="d" * 32, split="by_network", split_hash="5" * 32, seed=0,
    )  # fmt: skip
    save_bundle(folder, make_ranker(config, spec), info)
    return folder


def read_at_once(
    readers: int,
    name: str,
    client: Any,
    versions: Sequence[registry.Version],
    environment: dict[str, str],
) -> tuple[list[Any], list[tuple[float, float, str]]]:
    """Return (cached, began, ended, digest or None) of pulls, and (asked, answered, version) of promotions."""
    counts = [min(PER_PROCESS, readers - at) for at in range(0, readers, PER_PROCESS)]
    # A reader gives up late: what is measured is how long it takes, not whether it is patient.
    patient = {**os.environ, **environment, "TENCOST_REGISTRY_TIMEOUT": "600"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", READER, name, str(count), str(AGAIN)],
            env=patient, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for count in counts
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    done, promotions = threading.Event(), []

    def promote() -> None:
        turn = 0
        while not done.is_set():
            version = versions[turn % 2]
            asked = time.time()
            client.set_registered_model_alias(name, "champion", str(version.number))
            promotions.append((asked, time.time(), version.tags["bundle_sha256"]))
            turn += 1
            done.wait(0.5)

    promoting = threading.Thread(target=promote)
    promoting.start()
    pulls: list[Any] = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        pulls += json.loads(process.communicate()[0])
        assert process.returncode == 0
    done.set()
    promoting.join()
    return pulls, promotions


def stale(pulls: Sequence[Any], promotions: Sequence[tuple[float, float, str]]) -> int:
    """Count the pulls of a version that was not the champion at any moment of the pull."""
    wrong = 0
    for _, began, ended, digest in pulls:
        before = [item for item in promotions if item[1] <= began]
        meanwhile = {item[2] for item in promotions if item[1] > began and item[0] < ended}
        allowed = meanwhile | ({before[-1][2]} if before else {digest})
        wrong += digest not in allowed
    return wrong


def main() -> None:
    counts = [int(word) for word in sys.argv[1:]] or [1, 10, 100]
    if lacking := servers.missing():
        raise SystemExit(lacking)
    with tempfile.TemporaryDirectory() as scratch, servers.everything(Path(scratch)) as (_, served):
        folder = Path(scratch)
        os.environ |= served.environment()
        client = registry.connect(served.uri)
        run = client.create_run(client.create_experiment("tencost")).info.run_id
        made = [bundle(folder / f"b{number}", float(number)) for number in range(2)]
        versions = [
            registry.register_offer(
                client, registry.bundle_offer(one, "a toy"), run_id=run, description=""
            )[0]
            for one in made
        ]
        registry.promote(client, versions[0])
        whole = {manifest_digest(one) for one in made}
        print(
            "| readers at once | pull | pulls | median s | p90 s | slowest s | failed "
            "| not whole | stale |"
        )
        print("|---:|---|---:|---:|---:|---:|---:|---:|---:|")
        for readers in counts:
            pulls, promotions = read_at_once(
                readers, versions[0].name, client, versions, served.environment("reader")
            )
            for cached, name in ((False, "first"), (True, "again")):
                asked = [item for item in pulls if item[0] == cached]
                mine = [item for item in asked if item[3] is not None]
                seconds = np.array([ended - began for _, began, ended, _ in mine])
                failed = len(asked) - len(mine)
                broken = sum(digest not in whole for *_, digest in mine)
                late = stale(mine, promotions)
                print(
                    f"| {readers} | {name} | {len(asked)} | {np.median(seconds):.2f} | "
                    f"{np.quantile(seconds, 0.9):.2f} | {seconds.max():.2f} | {failed} | {broken} | {late} |",
                    flush=True,
                )
        log = (folder / "mlflow.log").read_text()
        print(f"{log.count('died')} processes of the MLflow server ended meanwhile")


if __name__ == "__main__":
    main()
