"""Counters of a CPU, by Linux's perf_event_open: of this process in user space, and of the threads that it starts.

Events have perf's names. The kernel shares few counters among many events in turn; a count is scaled by the time that
its event was on (:class:`Count`). What a host allows differs: a virtual machine often has no counters of the CPU,
``kernel.perf_event_paranoid`` above 2 (some distributions) and a container's seccomp filter forbid them. Events of the
system (task-clock, page-faults) need no hardware and mostly work; :func:`usable` says which do, :func:`available` why
the CPU's do not.

Source: perf_event_open(2), linux/perf_event.h.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import os
import platform
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tencost.errors import ProfileError

_HARDWARE, _SOFTWARE, _CACHE = 0, 1, 3
_LOADS_L1, _LOADS_LLC, _MISS = 0, 2, 1 << 16
CPU_EVENTS = {
    "cycles": (_HARDWARE, 0),
    "instructions": (_HARDWARE, 1),
    "cache-references": (_HARDWARE, 2),
    "cache-misses": (_HARDWARE, 3),
    "branches": (_HARDWARE, 4),
    "branch-misses": (_HARDWARE, 5),
    "L1-dcache-loads": (_CACHE, _LOADS_L1),
    "L1-dcache-load-misses": (_CACHE, _LOADS_L1 | _MISS),
    "LLC-loads": (_CACHE, _LOADS_LLC),
    "LLC-load-misses": (_CACHE, _LOADS_LLC | _MISS),
}
"""Counters of the CPU: name -> (type, config)."""
SYSTEM_EVENTS = {
    "task-clock": (_SOFTWARE, 1),
    "page-faults": (_SOFTWARE, 2),
    "context-switches": (_SOFTWARE, 3),
    "cpu-migrations": (_SOFTWARE, 4),
}
"""Counts of the kernel's; task-clock is ns on a CPU."""
_IN_THE_KERNEL = frozenset(("context-switches", "cpu-migrations"))
"""They happen there only, so that it cannot be left out; perf_event_paranoid above 1 keeps them for root."""
EVENTS = {**CPU_EVENTS, **SYSTEM_EVENTS}
_SYSTEM_CALLS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
_ATTRIBUTES_BYTES = 64
_DISABLED, _INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 0, 1 << 1, 1 << 5, 1 << 6
_TIMES = 3
"""Of a read: the count, then the ns that the event was wanted and on."""
_CLOSE_ON_EXEC = 8
_ENABLE, _DISABLE = 0x2400, 0x2401
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


@dataclass(frozen=True)
class Count:
    """How often an event came.

    Attributes:
        value: scaled to all the time that was asked for; NaN where the event was never on.
        share: of that time in which it was counted; below 1 where events took turns.
    """

    value: float
    share: float


def scaled(value: int, wanted_ns: int, on_ns: int) -> Count:
    """Return what a count would be had its event been on all the time."""
    if on_ns <= 0:
        return Count(math.nan, 0.0)
    return Count(value * wanted_ns / on_ns, on_ns / wanted_ns if wanted_ns else 1.0)


def available() -> str:
    """Say in a sentence why the CPU's counters cannot be read; "" where they can."""
    return _why("cycles") or _why("instructions")


def usable() -> dict[str, str]:
    """Return each event with "" where it can be counted here, or a sentence why not."""
    return {name: _why(name) for name in EVENTS}


def count(function: Callable[[], object], events: Sequence[str]) -> dict[str, Count]:
    """Call a function and return how often each event came meanwhile.

    Raises:
        ProfileError: an event that is not known or not allowed.
    """
    with counting(events) as counts:
        function()
    return counts


@contextmanager
def counting(events: Sequence[str]) -> Iterator[dict[str, Count]]:
    """Count events while the block runs; the mapping is filled at its end.

    Raises:
        ProfileError: an event that is not known or not allowed.
    """
    counts: dict[str, Count] = {}
    with ExitStack() as stack:
        opened = {}
        for name in events:
            if name not in EVENTS:
                raise ProfileError(f"expected events of {', '.join(EVENTS)}, found {name!r}")
            descriptor, failed = _open(name)
            if failed:
                raise ProfileError(f"expected to count {name}: {_told(name, failed)}")
            stack.callback(os.close, descriptor)
            opened[name] = descriptor
        for descriptor in opened.values():
            fcntl.ioctl(descriptor, _ENABLE, 0)
        try:
            yield counts
        finally:
            for descriptor in opened.values():
                fcntl.ioctl(descriptor, _DISABLE, 0)
            for name, descriptor in opened.items():
                counts[name] = scaled(*struct.unpack("QQQ", os.read(descriptor, 24)))


def _why(name: str) -> str:
    descriptor, failed = _open(name)
    if failed:
        return _told(name, failed)
    os.close(descriptor)
    return ""


def _open(name: str) -> tuple[int, int]:
    """Return (a descriptor, 0), or (-1, the error's number)."""
    call = _SYSTEM_CALLS.get(platform.machine())
    if platform.system() != "Linux" or call is None:
        return -1, errno.ENOSYS
    kind, config = EVENTS[name]
    flags = _DISABLED | _INHERIT | _EXCLUDE_HYPERVISOR
    flags |= 0 if name in _IN_THE_KERNEL else _EXCLUDE_KERNEL
    attributes = struct.pack("IIQQQQQ16x", kind, _ATTRIBUTES_BYTES, config, 0, 0, _TIMES, flags)
    library = ctypes.CDLL(None, use_errno=True)
    # Of this process, on any CPU, in no group.
    descriptor = library.syscall(
        ctypes.c_long(call), ctypes.c_char_p(attributes), ctypes.c_int(0), ctypes.c_int(-1), ctypes.c_int(-1),
        ctypes.c_ulong(_CLOSE_ON_EXEC),
    )  # fmt: skip
    return (descriptor, 0) if descriptor >= 0 else (-1, ctypes.get_errno())


def _told(name: str, failed: int) -> str:
    """Return why an event cannot be counted, in a sentence."""
    code = errno.errorcode.get(failed, str(failed))
    if failed in (errno.EACCES, errno.EPERM):
        level = _PARANOID.read_text().strip() if _PARANOID.exists() else "not there"
        return (
            f"the kernel does not allow to count {name} ({code}; kernel.perf_event_paranoid is {level}): "
            "run `sysctl kernel.perf_event_paranoid=1` as root, or in a container allow perf_event_open"
        )
    if failed in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL, errno.ENXIO):
        return (
            f"this host has no counter for {name} ({code}): a virtual machine that is given no performance counters "
            "(PMU) has none, and no setting inside it helps; run on the metal, or let its owner pass them on"
        )
    if failed == errno.ENOSYS:
        return f"perf_event_open is not there ({code}): it needs Linux with CONFIG_PERF_EVENTS"
    return f"{name} cannot be counted ({code}: {os.strerror(failed)})"
