"""What the host is, and whether a program compiled for some hardware may run on it.

Sources: LLVM (through TVM) for the CPU's name and what its name stands for, /proc/cpuinfo for the instruction sets
that the kernel really offers, sysfs for caches. A virtual machine may mask instruction sets that the CPU's name
promises; those are switched off in the target (`mattr`), because using one is an illegal-instruction crash.
"""

from __future__ import annotations

import difflib
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from tencost.config import HardwareConfig, RunnerKind
from tencost.errors import HardwareError

CPUINFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")

_X86_CHECKED = re.compile(r"^(avx|amx|sse|ssse3|fma|f16c|bmi|popcnt)")
_DETECTED = "local"
"""Name of what is detected, unless the user gives another."""
_CORES_OF_NAME = re.compile(r"-\d+c$")
_PRODUCT = re.compile(r"\d{3}|\b[A-Z]\d\b")
"""In a CPU's name: the number of a product, or a letter and a number; a brand alone has neither."""
_LLVM_TO_CPUINFO = {"sse3": "pni", "bmi": "bmi1"}
_TUNING = re.compile(
    r"^(fast-|slow-|prefer-|false-deps|no-|fuse-|tuning-|use-|allow-|disable-|enable-|macrofusion)"
)


def describe_hardware(hardware: HardwareConfig) -> str:
    """Return for what hardware programs are, in words: name, CPU, what LLVM calls it, cores."""
    target = hardware.target
    kind = target.get("mcpu") or target.get("arch") or target.get("kind")
    cores = f"{hardware.cores} core{'s' if hardware.cores > 1 else ''}"
    parts = [part for part in (hardware.model, str(kind), cores) if part]
    return f"for hardware={hardware.name} ({', '.join(parts)})"


def resolve_hardware(hardware: HardwareConfig) -> HardwareConfig:
    """Return the hardware as it is configured, or the host's where `detect` is set.

    Cores are kept, and where the programs run: remote devices may be like this host. Other cores than those of the
    description (hardware.cores=2) are another hardware, compiled for so many and with a name of its own: local-2c,
    epyc-avx512-2c. A name that the user gave to hardware=local stays.

    Raises:
        HardwareError: it is no device but stands for several (hardware=all).
    """
    if hardware.members:
        raise HardwareError(
            f"hardware {hardware.name!r} stands for several, which one model can be for; programs run on one. Take "
            "hardware=local or another of conf/hardware/"
        )
    if not hardware.detect:
        described = hardware.target.get("num-cores")
        if hardware.target.get("kind") != "llvm" or described == hardware.cores:
            return hardware
        # MetaSchedule asks for the number of cores; logs may not say it.
        target = {**hardware.target, "num-cores": hardware.cores}
        name = hardware.name if described is None else _of_cores(hardware)
        return replace(hardware, name=name, target=target)
    is_renamed = hardware.cores > 1 and hardware.name == _DETECTED
    host = detect_host(_of_cores(hardware) if is_renamed else hardware.name, hardware.cores)
    reached_by = ("runner", "host", "port", "key", "cc")
    return replace(host, **{name: getattr(hardware, name) for name in reached_by})


def _of_cores(hardware: HardwareConfig) -> str:
    """Return what a hardware is called with its present cores."""
    return f"{_CORES_OF_NAME.sub('', hardware.name)}-{hardware.cores}c"


def one_core(hardware: HardwareConfig) -> Sequence[HardwareConfig]:
    """Return what one core of a hardware of several may be called, with its target; nothing for one core."""
    if hardware.target.get("kind") != "llvm" or hardware.cores == 1:
        return ()
    stem = _CORES_OF_NAME.sub("", hardware.name)
    target = {**hardware.target, "num-cores": 1}
    return [
        replace(hardware, name=name, cores=1, target=target)
        for name in dict.fromkeys((f"{stem}-1c", stem))
        if name != hardware.name
    ]


def check_cores(hardware: HardwareConfig) -> None:
    """Refuse hardware of more cores than this process may use.

    Raises:
        HardwareError: the message says how many there are.
    """
    if hardware.target.get("kind") != "llvm":
        return
    total = os.cpu_count() or 1
    free = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    if hardware.cores > free:
        note = f", of which this process may use {free} (its CPU affinity)" if free < total else ""
        raise HardwareError(
            f"hardware {hardware.name!r}: expected {hardware.cores} cores, found {total} in this host{note}. Take what "
            f"there is: hardware.cores={free}"
        )


def detect_host(name: str = "local", cores: int = 1) -> HardwareConfig:
    """Describe the machine at hand.

    Args:
        name: the name that its records get.
        cores: cores that a program may use. One by default, not all: a registered model ranks programs for the
            number of cores it was trained on, the sample's for one, and a parallel program needs other schedules.

    Raises:
        HardwareError: TVM was built without LLVM.
    """
    cpu, triple = _llvm("llvm_get_system_cpu"), _llvm("llvm_get_system_triple")
    flags = host_flags()
    target: dict[str, Any] = {"kind": "llvm", "mcpu": cpu, "num-cores": cores}
    promised = llvm_features(target)
    if missing := _missing(promised, flags):
        target["mattr"] = [f"-{feature}" for feature in missing]
        promised -= set(missing)
    caches = caches_kib()
    simd_bits, clock = _simd_bits(promised), clock_ghz()
    return HardwareConfig(
        name=name,
        description=f"the host: {cpu}, {triple}",
        target=target,
        model=cpu_product_name(),
        cores=cores,
        simd_bits=simd_bits,
        l1d_kib=caches.get("1d", 32.0),
        l2_kib=caches.get("2", 256.0),
        l3_kib=caches.get("3", 0.0),
        clock_ghz=clock,
        peak_gflops=peak_gflops(clock, simd_bits),
        bandwidth_gbs=bandwidth_gbs(clock, simd_bits),
        requires=sorted(_flag(feature, flags) for feature in promised if _is_checked(feature))
        if flags
        else [],
        detect=False,
    )


def check_target(hardware: HardwareConfig) -> None:
    """Refuse a target that TVM would not compile for, or would silently replace by a generic one.

    Raises:
        HardwareError: TVM refuses the target, or LLVM does not know its mcpu.
    """
    from tvm.target import Target
    from tvm.target.codegen import llvm_get_cpu_archlist

    try:
        target = Target(hardware.target)
    except Exception as error:  # TVM raises whatever its C++ side says, under many types
        raise HardwareError(
            f"hardware {hardware.name!r}: TVM refuses its target {hardware.target}: {str(error).splitlines()[-1]}"
        ) from error
    cpu = hardware.target.get("mcpu")
    if hardware.target.get("kind") != "llvm" or not cpu:
        return
    cpus = sorted({str(name) for name in llvm_get_cpu_archlist(target)})
    if cpus and cpu not in cpus:
        near = ", ".join(difflib.get_close_matches(str(cpu), cpus, n=5, cutoff=0.5))
        raise HardwareError(
            f"hardware {hardware.name!r}: LLVM {_llvm('llvm_version_major')} does not know the CPU {cpu!r} (mcpu)"
            f"{f'; near it: {near}' if near else ''}. To describe this host: tencost measure hardware"
        )


def check_device(hardware: HardwareConfig) -> None:
    """Refuse hardware whose programs cannot run in this process: another CPU, a GPU that is not there.

    Raises:
        HardwareError: as :func:`check_runnable`, or there is no device of the target's kind.
    """
    check_target(hardware)
    kind = str(hardware.target.get("kind"))
    if kind == "llvm":
        check_runnable(hardware)
        return
    import tvm

    if not tvm.device(kind).exist:
        raise HardwareError(
            f"hardware {hardware.name!r}: expected a {kind} device on this host, found none that TVM can use. Run the "
            "command where the device is, or reach it through an RPC tracker: hardware.runner=rpc "
            "(docs/how-to/remote-devices.md)"
        )


def check_runnable(hardware: HardwareConfig) -> None:
    """Refuse hardware whose programs would crash on the host.

    Raises:
        HardwareError: the target is not compiled by LLVM for this architecture, or asks for instruction sets that
            the host lacks; the message names them.
    """
    kind = hardware.target.get("kind")
    if kind != "llvm":
        raise HardwareError(
            f"hardware {hardware.name!r} has target kind {kind!r}; this command runs programs on the host's CPU "
            "(kind llvm). Use hardware=local, or tune on the device itself."
        )
    flags, promised = host_flags(), llvm_features(hardware.target)
    if flags:
        missing = sorted(set(hardware.requires) - flags) or _missing(promised, flags)
    else:
        host = llvm_features({"kind": "llvm", "mcpu": _llvm("llvm_get_system_cpu")})
        missing = sorted(name for name in promised - host if not _TUNING.match(name))
    if missing:
        raise HardwareError(
            f"programs for hardware {hardware.name!r} (mcpu {hardware.target.get('mcpu')}) use instruction sets that "
            f"this host ({cpu_product_name()}) lacks: {', '.join(missing)}; they would crash. Use hardware=local, "
            "which compiles for this host, or run the command on that hardware."
        )


def host_flags() -> frozenset[str]:
    """Return the instruction sets in /proc/cpuinfo's spelling; empty on other systems than x86 Linux."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return frozenset()
    return frozenset((cpuinfo("flags") or "").split())


def cpuinfo(key: str) -> str | None:
    """Return the first CPU's entry of that name in /proc/cpuinfo; None where there is none."""
    text = CPUINFO.read_text(encoding="utf-8", errors="replace") if CPUINFO.is_file() else ""
    line = re.search(rf"^{key}[ \t]*:(.*)$", text, re.MULTILINE)
    return line.group(1).strip() if line else None


def llvm_features(target: dict[str, Any]) -> set[str]:
    """Return the names of LLVM's CPU features that are on for a target (kind llvm)."""
    from tvm.target import Target
    from tvm.target.codegen import llvm_get_cpu_features

    return {str(feature) for feature in llvm_get_cpu_features(Target(target))}


def _llvm(function: str) -> str:
    from tvm.target import codegen

    try:
        return str(getattr(codegen, function)())
    except (AttributeError, RuntimeError) as error:
        raise HardwareError(
            f"expected a TVM with LLVM, found one without ({error}). Install apache-tvm from its wheel: "
            "pip install 'tencost[tuner]'."
        ) from error


def _is_checked(feature: str) -> bool:
    """Say whether TVM's code generator emits instructions of this x86 feature by itself."""
    return _X86_CHECKED.match(feature) is not None and not feature.startswith("avx10")


def _plain(name: str) -> str:
    return re.sub(r"[._-]", "", name)


def _flag(feature: str, flags: frozenset[str]) -> str:
    spelling = _plain(_LLVM_TO_CPUINFO.get(feature, feature))
    return next((flag for flag in flags if _plain(flag) == spelling), feature)


def _missing(features: set[str], flags: frozenset[str]) -> list[str]:
    """Return the features whose instructions the host's flags lack; none where it has no flags."""
    checked = (feature for feature in features if flags and _is_checked(feature))
    return sorted(feature for feature in checked if _flag(feature, flags) not in flags)


def _simd_bits(features: set[str]) -> int:
    for bits, names in ((512, ("avx512f",)), (256, ("avx", "avx2")), (128, ("sse2", "neon"))):
        if any(name in features for name in names):
            return bits
    return 128


def cpu_product_name() -> str:
    """Return the CPU's product name, as the kernel or else the platform gives it.

    Where that is no more than a brand, as hypervisors tell it, LLVM's name of the generation follows: "AMD EPYC" is
    "AMD EPYC (znver4)" on one host, "AMD EPYC (znver5)" on another, which do not run programs alike.
    """
    name = cpuinfo("model name") or platform.processor() or platform.machine() or "unknown"
    if _PRODUCT.search(name.partition("@")[0]):
        return name
    return f"{name} ({_llvm('llvm_get_system_cpu')})"


def another_machine(hardware: HardwareConfig) -> str:
    """Return in what the host is not the machine that a hardware describes, as words; empty where it may be that one.

    Compared are the model, as far as both are told, and the caches of a core. Instruction sets are not: programs of a
    hardware run on every host that has them, but not in the same time. A device behind a tracker is another host.
    """
    if hardware.target.get("kind") != "llvm" or hardware.runner is RunnerKind.rpc:
        return ""
    differences = []
    model = cpu_product_name()
    if hardware.model not in ("", "unknown", model, re.sub(r" \([^()]*\)$", "", model)):
        differences.append(f"{model} instead of {hardware.model}")
    caches = caches_kib()
    for level, expected in (("1d", hardware.l1d_kib), ("2", hardware.l2_kib)):
        present = caches.get(level)
        if expected and present and expected != present:
            differences.append(
                f"a level-{level[0]} cache of {present:g} KiB instead of {expected:g} KiB"
            )
    return ", ".join(differences)


def check_described(hardware: HardwareConfig) -> None:
    """Refuse to measure for a hardware on a host that is another machine: its times would be another's.

    Raises:
        HardwareError: with what differs.
    """
    different = another_machine(hardware)
    if different:
        raise HardwareError(
            f"hardware {hardware.name!r}: expected the machine that it describes, found {different}. Times of two "
            "machines do not belong together. Describe this host under a name of its own: tencost measure hardware "
            "hardware.name=..., or correct the description if it is this host's"
        )


def clock_ghz() -> float | None:
    """Return the highest clock in GHz, else the present one; None where neither can be read."""
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError, RuntimeError):
        frequency = None
    mhz = (frequency.max or frequency.current) if frequency else None
    return round(mhz / 1000.0, 2) if mhz else None


def peak_gflops(clock: float | None, simd_bits: int) -> float | None:
    """Return a CPU core's limit: two fused multiply-adds on each 32-bit lane and cycle, or as many others."""
    return None if clock is None else round(4 * clock * simd_bits / 32, 1)


def bandwidth_gbs(clock: float | None, simd_bits: int) -> float | None:
    """Return what a CPU's core can write at most: two vectors a cycle."""
    return None if clock is None else round(2 * clock * simd_bits / 8, 1)


def caches_kib() -> dict[str, float]:
    """Return KiB by level: "1d", "2", "3"; levels that sysfs does not list are absent."""
    sizes: dict[str, float] = {}
    for index in sorted(CACHES.glob("index*")):
        try:
            level, kind, size = (
                (index / name).read_text(encoding="utf-8").strip()
                for name in ("level", "type", "size")
            )
        except OSError:
            continue
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if match and kind != "Instruction":
            scale = {"": 1 / 1024, "K": 1.0, "M": 1024.0, "G": 1024.0**2}[match.group(2)]
            sizes["1d" if level == "1" else level] = float(match.group(1)) * scale
    return sizes
