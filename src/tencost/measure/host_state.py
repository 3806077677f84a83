"""What is written down with every measurement: the machine, the software, how it was timed.

Neither the user's nor the host's name, nor a path: collections are meant to be shared.
"""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from tencost.config import HardwareConfig, RunnerKind
from tencost.programs.codegen import vector_math
from tencost.store.record import container_image
from tencost.workers.hardware import caches_kib, clock_ghz, cpu_product_name, cpuinfo

CPUS = Path("/sys/devices/system/cpu")
DMI = Path("/sys/class/dmi/id")
OS_RELEASE = Path("/etc/os-release")

_CONTAINERS = (Path("/.dockerenv"), Path("/run/.containerenv"))
_VENDORS = {
    "qemu": "QEMU/KVM",
    "amazon ec2": "Amazon EC2",
    "google": "Google Compute Engine",
    "microsoft corporation": "Microsoft Hyper-V",
    "vmware, inc.": "VMware",
    "xen": "Xen",
    "innotek gmbh": "VirtualBox",
}


def collect(
    hardware: HardwareConfig, evaluator: Mapping[str, Any], pinned: Sequence[int] | None = None
) -> dict[str, Any]:
    """Return what holds for all measurements of a run, as plain JSON that `provenance_from_json` reads.

    `additional_info.host` is the machine that this command runs on: the one that builds, and runs the programs
    unless `runtime_config.runner` is rpc.

    Args:
        hardware: what is measured on.
        evaluator: how programs are timed, plain JSON.
        pinned: CPUs that programs run on; None where they are not pinned.
    """
    from tvm.target.codegen import llvm_version_major

    cpus = sorted(pinned) if pinned else None
    return {
        "timestamp": round(time.time(), 3),
        "engine_version": _version("apache-tvm"),
        "env_name": f"{_os_name() or platform.system()}, {_kernel()} {platform.machine()}, "
        f"{_virtualization() or 'no hypervisor reported'}",
        "hw_model": hardware.model,
        "engine_config": {
            "apache-tvm-ffi": _version("apache-tvm-ffi"),
            "tencost": _version("tencost"),
            "llvm": llvm_version_major(allow_none=True),
            "python": platform.python_version(),
            "vector_math": vector_math.VERSION if _is_cpu(hardware) else 0,
        },
        "build_config": {"target": dict(hardware.target)},
        "runtime_config": {
            "runner": RunnerKind(hardware.runner).value,
            "num_cpu_threads": hardware.cores if _is_cpu(hardware) else 1,
            "cpus": cpus,
            "pinned": cpus is not None,
        },
        "execution_config": dict(evaluator),
        "additional_info": {"host": host_facts(cpus), **container_image()},
    }


def host_facts(cpus: Sequence[int] | None = None) -> dict[str, Any]:
    """Return what the system tells about the machine; None for what it does not tell.

    Args:
        cpus: CPUs whose clock and governor are meant; None means CPU 0's.
    """
    first = CPUS / f"cpu{cpus[0] if cpus else 0}" / "cpufreq"
    caches = caches_kib()
    return {
        "cpu": cpu_product_name(),
        "cpu_signature": _signature(),
        "architecture": platform.machine(),
        "cores_online": psutil.cpu_count(),
        "threads_per_core": _threads_per_core(),
        "l1d_kib": caches.get("1d"),
        "l2_kib": caches.get("2"),
        "l3_kib": caches.get("3"),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "clock_ghz": clock_ghz(),
        "governor": _read(first / "scaling_governor"),
        "clock_driver": _read(first / "scaling_driver"),
        "boost": _boost(),
        "kernel": _kernel(),
        "os": _os_name(),
        "virtualization": _virtualization(),
        "container": any(path.exists() for path in _CONTAINERS),
    }


def _kernel() -> str:
    """Return name and version; what a distributor or owner appended to the version says nothing about times."""
    release = re.match(r"\d+(\.\d+)*", platform.release())
    return f"{platform.system()} {release.group() if release else platform.release()}"


def _os_name() -> str | None:
    name = re.search(r"^PRETTY_NAME=(.*)$", _read(OS_RELEASE) or "", re.MULTILINE)
    return name.group(1).strip().strip("\"'") if name else None


def _virtualization() -> str | None:
    """Return what the machine is virtualized by, None where it seems to be a real one."""
    vendor = (_read(DMI / "sys_vendor") or "").lower()
    if vendor in _VENDORS:
        return _VENDORS[vendor]
    kind = _read(Path("/sys/hypervisor/type"))
    if kind:
        return kind
    flags = cpuinfo("flags")
    return "unnamed hypervisor" if flags and "hypervisor" in flags.split() else None


def _signature() -> str | None:
    """Return vendor, family, model and stepping of an x86 CPU: a hypervisor that hides the name often leaves them."""
    words = [cpuinfo(key) for key in ("vendor_id", "cpu family", "model", "stepping")]
    if None in words:
        return None
    return "{} family {} model {} stepping {}".format(*words)


def _threads_per_core() -> int | None:
    cores, threads = psutil.cpu_count(logical=False), psutil.cpu_count()
    return threads // cores if cores and threads else None


def _boost() -> bool | None:
    """Say whether the CPU may exceed its nominal clock, None where the system does not tell."""
    for path, allowed in (("cpufreq/boost", "1"), ("intel_pstate/no_turbo", "0")):
        if (switch := _read(CPUS / path)) is not None:
            return switch == allowed
    return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _is_cpu(hardware: HardwareConfig) -> bool:
    return hardware.target.get("kind") == "llvm"


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None
