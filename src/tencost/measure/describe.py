"""The host as a file conf/hardware/<name>.yaml: `tencost measure hardware`.

A host may stand for several hardware: with all that its CPU has (`native`), limited to an x86 level (`avx512`,
`avx2`, `sse42`), its GPU (`cuda`), each with one core or more. The levels are LLVM's own (x86-64-v4, -v3, -v2): a
program compiled for one uses nothing beyond it and runs on every CPU that has it.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import yaml
from rich.console import Console

from tencost.config import Config, HardwareConfig, Isa
from tencost.config.checking import instantiate
from tencost.errors import ConfigError, HardwareError, TencostError
from tencost.workers.hardware import (
    bandwidth_gbs,
    check_runnable,
    cpu_product_name,
    detect_host,
    host_flags,
    peak_gflops,
)
from tencost.writing import whole_file

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_ALWAYS = {"name", "description", "target", "model", "cores", "simd_bits", "clock_ghz"}
_ALWAYS |= {"l1d_kib", "l2_kib", "l3_kib"}
"""Fields that are written whatever they are; others only where they are not the default."""
_LOOSE = ("description", "clock_ghz", "peak_gflops", "bandwidth_gbs")
"""Fields that may differ between two descriptions of one hardware: a clock may be the momentary one."""
_GPU_AMOUNTS = (
    "max_threads_per_block",
    "max_shared_memory_per_block",
    "warp_size",
    "multi_processor_count",
    "l2_cache_size_bytes",
)


@dataclass(frozen=True)
class X86Level:
    """A level of x86: what its programs may use.

    Attributes:
        title: its name in a sentence.
        mcpu: LLVM's name of it.
        bits: width of its vector registers.
        requires: instruction sets in /proc/cpuinfo's spelling.
        mattr: what is switched on or off besides.
        about: lines of comment for its file.
    """

    title: str
    mcpu: str
    bits: int
    requires: tuple[str, ...]
    mattr: tuple[str, ...] = ()
    about: tuple[str, ...] = ()


_V2 = ("cx16", "lahf_lm", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3")
_V3 = ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave", *_V2)
_V4 = ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl", *_V3)

LEVELS = {
    Isa.avx512: X86Level(
        "AVX-512",
        "x86-64-v4",
        512,
        _V4,
        ("-prefer-256-bit",),
        (
            "Programs are compiled for LLVM's level x86-64-v4: AVX-512. LLVM tunes that name for CPUs that slow down",
            "with 512-bit registers and vectorizes plain loops for 256 bits (as it does for sapphirerapids);",
            "-prefer-256-bit undoes that: 512 bits wherever a program can use them, as for znver5.",
        ),
    ),
    Isa.avx2: X86Level(
        "AVX2",
        "x86-64-v3",
        256,
        _V3,
        about=(
            "Programs are compiled for LLVM's level x86-64-v3: AVX2 and FMA, 256-bit registers.",
        ),
    ),
    Isa.sse42: X86Level(
        "SSE4.2",
        "x86-64-v2",
        128,
        _V2,
        about=(
            "Programs are compiled for LLVM's level x86-64-v2: SSE4.2, 128-bit registers, no fused multiply-add.",
        ),
    ),
}
"""The x86 levels that a host can be limited to, the widest first."""


def run(cfg: Config, root: Path) -> Path:
    """Describe the host as conf/hardware/<name>.yaml of a project; return that file.

    `hardware.name` and `hardware.cores` of hardware=local, `measure.isa` and `measure.overwrite` choose.

    Raises:
        ConfigError: other hardware than the host was chosen, a name that no file can have, or the file exists and
            says something else.
        HardwareError: the host lacks what was asked for.
    """
    configured = cfg.hardware
    if not configured.detect:
        raise ConfigError(
            f"expected hardware=local, whose values are read from the host, found hardware={configured.name}, which is "
            "described already. Run: tencost measure hardware hardware=local hardware.name=<name>"
        )
    name = None if configured.name == "local" else configured.name
    hardware = describe_host(name, cfg.measure.isa, configured.cores)
    path = write_hardware(hardware, root / "conf" / "hardware", overwrite=cfg.measure.overwrite)
    Console(stderr=True).print(
        f"{hardware.description}: conf/hardware/{path.name}. Measure on it: "
        f"tencost measure run hardware={hardware.name}",
        soft_wrap=True,
    )
    return path


def describe_host(name: str | None = None, isa: Isa = Isa.native, cores: int = 1) -> HardwareConfig:
    """Describe the host, or a part of it, as hardware.

    Args:
        name: its name; None makes one of model, instruction set and cores: ``amd-epyc-avx512-1c``.
        isa: what its programs may use.
        cores: cores that a program may use. A GPU is always described whole.

    Raises:
        ConfigError: the host has not so many cores.
        HardwareError: the host lacks what was asked for.
    """
    if isa is Isa.cuda:
        return gpu_hardware(_gpu_attributes(), name)
    present = psutil.cpu_count() or 1
    if not 1 <= cores <= present:
        raise ConfigError(
            f"hardware.cores must be between 1 and {present}, the cores of this host, found {cores}"
        )
    host, level = detect_host(name or "", cores), LEVELS.get(isa)
    described = _limited(host, level) if level else host
    family = str(host.target["mcpu"])
    limit = f" limited to {level.title}" if level else ""
    share = f"{cores} of {present} cores" if present > 1 else "its only core"
    machine = " of a virtual machine" if "hypervisor" in host_flags() else ""
    # A brand alone is followed by the family already.
    model = host.model.removesuffix(f" ({family})")
    words = dict.fromkeys(f"{slug(host.model)}-{slug(isa.value if level else family)}".split("-"))
    return replace(
        described,
        name=name or f"{'-'.join(words)}-{cores}c",
        description=f"{model} ({family}){limit}, {share}{machine}",
        # As TVM's logs spell it, so that it compares equal to theirs.
        target={"kind": "llvm", "keys": ["cpu"], **described.target, "tag": ""},
    )


def gpu_hardware(attributes: Mapping[str, Any], name: str | None = None) -> HardwareConfig:
    """Return a CUDA GPU as hardware.

    Its `cores` are multiprocessors, `simd_bits` a warp of 32-bit lanes, `l1d_kib` the shared memory of a block.

    Args:
        attributes: what the device says: device_name, compute_version ("9.0"), max_threads_per_block,
            max_shared_memory_per_block (bytes), warp_size, multi_processor_count, l2_cache_size_bytes and
            max_clock_rate (kHz, may be None).
        name: its name; None makes one of model and architecture.

    Raises:
        HardwareError: an attribute is missing or not a number above 0.
    """
    for key in _GPU_AMOUNTS:
        amount = attributes.get(key)
        if not isinstance(amount, int) or amount <= 0:
            raise HardwareError(
                f"expected the GPU's {key} to be a number above 0, found {amount!r}. Check its driver (nvidia-smi), or "
                "write conf/hardware/<name>.yaml by hand: docs/how-to/adding-hardware.md"
            )
    threads, shared, warp, processors, l2 = (attributes[key] for key in _GPU_AMOUNTS)
    version = str(attributes.get("compute_version"))
    if not re.fullmatch(r"\d+\.\d", version):
        raise HardwareError(
            f"expected the GPU's compute version as 9.0, found {version!r}. Check its driver (nvidia-smi)"
        )
    arch = f"sm_{version.replace('.', '')}"
    model = str(attributes.get("device_name") or "NVIDIA GPU")
    clock = attributes.get("max_clock_rate")
    return HardwareConfig(
        name=name or f"{slug(model)}-{slug(arch)}",
        description=f"{model}, compute capability {version}",
        target={
            "kind": "cuda",
            "keys": ["cuda", "gpu"],
            "arch": arch,
            "max_threads_per_block": threads,
            "max_num_threads": threads,
            "max_shared_memory_per_block": shared,
            "thread_warp_size": warp,
            "l2_cache_size_bytes": l2,
            "tag": "",
        },
        model=model,
        cores=processors,
        simd_bits=32 * warp,
        l1d_kib=shared / 1024,
        l2_kib=l2 / 1024,
        l3_kib=0.0,
        clock_ghz=round(clock / 1e6, 3) if clock else None,
    )


def write_hardware(hardware: HardwareConfig, folder: Path, *, overwrite: bool = False) -> Path:
    """Write hardware as `<name>.yaml` into a folder of choices; return the file.

    A file that says the same is left as it is, with whatever comments a person has added.

    Raises:
        ConfigError: the name cannot be a file's, the file exists and says something else, or it cannot be written.
    """
    if not _NAME.fullmatch(hardware.name):
        raise ConfigError(
            f"hardware.name must be letters, digits, '_', '-' and '.', found {hardware.name!r}: it names the file, "
            "the records' folder and the model"
        )
    path = folder / f"{hardware.name}.yaml"
    if path.exists() and not overwrite:
        differing = _differing(path, hardware)
        if not differing:
            return path
        # Who replaced a GPU by the CPU beside it would lose the description that the records need.
        other_kind = "target" in differing and _kind(path) != hardware.target["kind"]
        replacement = "" if other_kind else ", or replace it: measure.overwrite=true"
        raise ConfigError(
            f"expected to write {path.name} anew, found one in conf/hardware that differs in {', '.join(differing)}. "
            f"Records of that name belong to it. Choose another name (hardware.name=...){replacement}"
        )
    try:
        with whole_file(path) as scratch:
            scratch.write_text(hardware_yaml(hardware), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror or error}. Make room or check its permissions, then run again"
        ) from error
    return path


def hardware_yaml(hardware: HardwareConfig) -> str:
    """Return hardware as YAML with comments; Hydra composes it to the same values."""
    is_gpu = hardware.target.get("kind") == "cuda"
    mcpu = hardware.target.get("mcpu")
    about = next((level.about for level in LEVELS.values() if level.mcpu == mcpu), ())
    remarks = {
        "cores": "multiprocessors" if is_gpu else "",
        "simd_bits": "a warp of 32-bit lanes" if is_gpu else "",
        "l1d_kib": "shared memory of a block" if is_gpu else "",
        "l3_kib": "shared by cores" if hardware.l3_kib else "",
        "clock_ghz": "cannot be read" if hardware.clock_ghz is None else "as the system reports it",
    }
    lines = [
        f"# {' '.join(hardware.description.split())}.",
        *(f"# {line}" for line in about),
        "# Written by `tencost measure hardware`; fields: HardwareConfig in src/tencost/config/schema.py.",
    ]
    defaults = asdict(HardwareConfig(name=""))
    fields: dict[str, Any] = {}
    for key, setting in asdict(hardware).items():
        if key in _ALWAYS or setting != defaults[key]:
            is_whole = isinstance(setting, float) and setting.is_integer()
            fields[key] = int(setting) if is_whole else getattr(setting, "value", setting)
    layout: dict[str, Any] = {"default_flow_style": None, "sort_keys": False, "width": 112}
    for line in yaml.dump(fields, Dumper=_Dumper, allow_unicode=True, **layout).splitlines():
        key = line.partition(":")[0]
        if key == "requires":
            lines.append("# Instruction sets that programs may use, in /proc/cpuinfo's spelling.")
        lines.append(f"{line}  # {remarks[key]}" if remarks.get(key) else line)
    return "\n".join(lines) + "\n"


class _Dumper(yaml.SafeDumper):
    """Quotes texts that are numbers to OmegaConf alone, such as `1e3`."""


_NUMBER = re.compile(r"[-+]?\d[\d_]*(\.[\d_]*)?[eE][-+]?\d+$")
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789"))


def slug(text: str) -> str:
    """Return text as lower-case words joined by '-', without trademarks and what follows '@'."""
    plain = re.sub(r"\((r|tm|c)\)|\bcpu\b|\bprocessor\b|@.*$", " ", text.lower())
    return "-".join(re.findall(r"[a-z0-9]+", plain)) or "unknown"


def _limited(host: HardwareConfig, level: X86Level) -> HardwareConfig:
    machine = platform.machine().lower()
    if machine not in ("x86_64", "amd64"):
        raise HardwareError(
            f"expected an x86 CPU for {level.title}, found {cpu_product_name()} ({machine}). Choose measure.isa=native"
        )
    flags = host_flags()
    missing = sorted(set(level.requires) - flags) if flags else []
    if missing:
        able = [isa.value for isa, other in LEVELS.items() if set(other.requires) <= flags]
        raise HardwareError(
            f"expected a CPU with {level.title}, found {cpu_product_name()} without {', '.join(missing)}. Choose "
            f"measure.isa from {', '.join(['native', *able])}"
        )
    target: dict[str, Any] = {"kind": "llvm", "mcpu": level.mcpu}
    if level.mattr:
        target["mattr"] = list(level.mattr)
    target["num-cores"] = host.cores
    limited = replace(
        host,
        target=target,
        simd_bits=level.bits,
        peak_gflops=peak_gflops(host.clock_ghz, level.bits),
        bandwidth_gbs=bandwidth_gbs(host.clock_ghz, level.bits),
        requires=sorted(
            level.requires, key=lambda flag: (flag[:6] != "avx512", flag[:3] != "avx", flag)
        ),
    )
    check_runnable(limited)
    return limited


def _gpu_attributes() -> dict[str, Any]:
    import tvm

    device = tvm.cuda()
    if not device.exist:
        raise HardwareError(
            "expected an NVIDIA GPU and a TVM that was built with CUDA, found none. Describe the CPU: "
            "measure.isa=native; for a GPU elsewhere write its file by hand: docs/how-to/adding-hardware.md"
        )
    names = ("device_name", "compute_version", "max_clock_rate", *_GPU_AMOUNTS)
    return {name: getattr(device, name) for name in names}


def _kind(path: Path) -> Any:
    """Return the kind of TVM target that a file describes, which `_differing` has read."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))["target"]["kind"]


def _differing(path: Path, hardware: HardwareConfig) -> list[str]:
    """Return the fields in which a file says something else; _LOOSE does not count."""
    from omegaconf import OmegaConf

    try:
        fields = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
        if not isinstance(fields, dict):
            raise ConfigError(f"expected a mapping in {path}")
        plain = {str(key): setting for key, setting in fields.items()}
        present = asdict(instantiate(HardwareConfig, plain, "hardware."))
    except (TencostError, yaml.YAMLError, OSError, ValueError):
        return ["everything: it is no description of hardware"]
    expected = asdict(hardware)
    for description in (present, expected):
        description["requires"] = sorted(description["requires"])
    return [name for name in expected if name not in _LOOSE and present[name] != expected[name]]
