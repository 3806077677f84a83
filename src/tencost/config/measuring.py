"""How programs are collected and measured: settings, a sentence under each field. Part of config.py's schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tencost.config.checking import plain_name, within
from tencost.errors import ConfigError


class Isa(Enum):
    """What `tencost measure hardware` describes the host for."""

    native = "native"
    """The CPU with all its instruction sets."""
    avx512 = "avx512"
    """x86 with AVX-512 (LLVM's x86-64-v4)."""
    avx2 = "avx2"
    """x86 with AVX2 and FMA, nothing newer (x86-64-v3)."""
    sse42 = "sse42"
    """x86 with SSE4.2, nothing newer (x86-64-v2)."""
    cuda = "cuda"
    """The host's first NVIDIA GPU."""


@dataclass(kw_only=True)
class MeasureConfig:
    """How programs are collected and measured: from networks to a raw dataset."""

    name: str = "measured"
    """Name of the dataset that is collected: a folder under `workdir`, then datasets/<name>.tar.zst."""
    workdir: str = "measured"
    """Where collections grow, one folder each."""
    networks: list[dict[str, Any]] = field(default_factory=list)
    """measure networks --listed: the collection's networks. An entry has `network` and other fields of a network, each
    with a value or a list of values; all combinations are meant."""
    min_mflop: float = 0.5
    """Tasks with fewer MFLOP are listed, not measured."""
    programs: int = 64
    """Distinct programs a task; more than before adds to those that are there."""
    evolved_share: float = 1 / 3
    """Share of them that an evolutionary search picks."""
    near_share: float = 1 / 3
    """Share of them that are known to be good, or mutations of such, as far as `evolved_share` leaves room; the others
    are random samples of the design spaces."""
    population: int = 256
    """Programs in a generation of that search; with no model to rank them at most twice those wanted."""
    generations: int = 3
    """Generations of that search."""
    repeat: int = 3
    """Times a program at first."""
    max_repeat: int = 12
    """Times a program at most, when they scatter."""
    max_cv: float = 0.1
    """Coefficient of variation (standard deviation over mean) that asks for more times."""
    min_repeat_ms: float = 10.0
    """Least duration of one time, milliseconds: short programs run several times in it."""
    slow_ms: float = 150.0
    """A program slower than this is timed once: repeating it would cost more than it tells."""
    cache_flush: bool = False
    """Flush the CPU's caches before each run, as TenSet does; each time is then a single run."""
    build_timeout_s: float = 30.0
    """Longest time that the compiler gets for a program."""
    run_timeout_s: float = 10.0
    """Longest time that all runs of a program together get."""
    cpu: int | None = None
    """First CPU that programs run on; None takes the last ones of the host."""
    overlap: bool | None = None
    """Build the next programs on other CPUs while one runs; None: if the host has others; False: strictly in turn."""
    shard: str = "0/1"
    """Part i of n of the programs, as i/n, i from 0: for several hosts of one kind; merging is a plain import."""
    isa: Isa = Isa.native
    """measure hardware: what programs may use."""
    overwrite: bool = False
    """measure hardware: replace conf/hardware/<name>.yaml where it says something else."""
    pack: bool = True
    """Pack the dataset when `measure run` ends, ready for the pipeline; a shard alone is never packed."""
    seed: int = 0
    """Seed of the sampling."""

    def __post_init__(self) -> None:
        plain_name("measure.name", self.name)
        within("measure", self, min_mflop="[0, inf)", programs="[1, inf)")
        within("measure", self, evolved_share="[0, 1]", near_share="[0, 1]")
        within("measure", self, population="[1, inf)", generations="[0, inf)")
        within("measure", self, repeat="[1, inf)", max_repeat="[1, inf)", max_cv="[0, inf)")
        within("measure", self, min_repeat_ms="[0, inf)", slow_ms="[0, inf)", cpu="[0, inf)")
        within("measure", self, build_timeout_s="(0, inf)", run_timeout_s="(0, inf)")
        self.shard_of()

    def shard_of(self) -> tuple[int, int]:
        """Return (i, n) of `shard`.

        Raises:
            ConfigError: not i/n with 0 <= i < n.
        """
        index, slash, count = str(self.shard).partition("/")
        if not (slash and index.isdigit() and count.isdigit() and int(index) < int(count)):
            raise ConfigError(
                f"measure.shard must be i/n with 0 <= i < n, for example 0/4; found {self.shard!r}"
            )
        return int(index), int(count)
