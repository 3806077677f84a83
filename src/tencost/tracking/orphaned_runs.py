"""Runs whose process was killed: MLflow shows them as RUNNING for ever, unless a later command closes them.

A run carries in the tag PROCESS_TAG which process it belongs to, as one JSON object:

    host    digest of what tells this machine from others: machine id, addresses of its network devices; no name
    boot    the kernel's random id of this boot
    space   the namespace that pid is counted in: a container has its own
    pid, start  the process, and when it began, in clock ticks since the boot: a pid alone may be given again

Such a process is gone if its host has booted since, or has no process of that pid and start. Of other hosts and
namespaces nothing can be known from here, and nothing is assumed. Only Linux tells all this; elsewhere runs carry no
such tag.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

PROCESS_TAG = "tencost.process"

_QUERY = """
    SELECT runs.run_uuid, tags.value FROM runs JOIN tags ON tags.run_uuid = runs.run_uuid
    WHERE runs.status = 'RUNNING' AND runs.lifecycle_stage = 'active' AND tags.key = ?
"""


def process_tags() -> dict[str, str]:
    """Return the tag for runs of this process; nothing where the system cannot tell processes apart."""
    try:
        about = {**_machine(), "pid": os.getpid(), "start": _start(os.getpid())}
    except OSError:
        return {}
    return {PROCESS_TAG: json.dumps(about)}


def close_ended(client: Any, experiment_id: str, database: Path | None) -> list[str]:
    """Make runs KILLED that are RUNNING though their process is gone.

    Args:
        client: an MlflowClient.
        experiment_id: whose runs are looked at, if `database` is None.
        database: the client's SQLite file: a look into it takes a millisecond, and all its experiments are seen.

    Returns:
        The ids of the runs that were closed.
    """
    if database is not None:
        with closing(sqlite3.connect(database)) as store:
            running = store.execute(_QUERY, (PROCESS_TAG,)).fetchall()
    else:
        runs = client.search_runs([experiment_id], "attributes.status = 'RUNNING'")
        running = [(run.info.run_id, run.data.tags.get(PROCESS_TAG, "")) for run in runs]
    orphans = [str(run_id) for run_id, tag in running if is_gone(tag)]
    # A process may have ended its run after the look and before its own end; now it can no more.
    orphans = [run_id for run_id in orphans if client.get_run(run_id).info.status == "RUNNING"]
    for run_id in orphans:
        client.set_tag(run_id, "error", "its process ended without closing it")
        client.set_terminated(run_id, "KILLED")
    return orphans


def is_gone(tag: str) -> bool:
    """Say whether the process of this tag has certainly ended."""
    try:
        about, here = json.loads(tag), _machine()
        if about["host"] != here["host"]:
            return False
        if about["boot"] != here["boot"]:
            return True
        if about["space"] != here["space"]:
            return False
        pid, start = int(about["pid"]), int(about["start"])
    except (ValueError, KeyError, TypeError, OSError):
        return False
    try:
        return _start(pid) != start
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False


@cache
def _machine() -> dict[str, str]:
    """Return host, boot and space; raises OSError where the system does not tell."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    space = str(Path("/proc/self/ns/pid").readlink())
    devices = sorted(Path("/sys/class/net").glob("*/device"))
    marks = [device.with_name("address").read_text().strip() for device in devices]
    try:
        marks.append(Path("/etc/machine-id").read_text().strip())
    except OSError:
        marks.append(boot)  # as good as another host after the next boot
    host = hashlib.sha256("\n".join(["tencost", *marks]).encode()).hexdigest()[:16]
    return {"host": host, "boot": boot, "space": space}


def _start(pid: int) -> int:
    """Return when a process began, clock ticks since the boot; a zombie has ended."""
    state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if state == "Z":
        raise ProcessLookupError(pid)
    return int(fields[18])
