from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tencost.config import HardwareConfig
from tencost.errors import HardwareError
from tencost.workers import hardware as module
from tencost.workers.hardware import (
    another_machine,
    check_cores,
    check_described,
    check_runnable,
    cpu_product_name,
    detect_host,
    host_flags,
    one_core,
    resolve_hardware,
)

pytestmark = pytest.mark.tvm

AVX2 = "fpu sse sse2 pni ssse3 sse4_1 sse4_2 avx avx2 fma f16c bmi1 bmi2 popcnt"
AVX512 = AVX2 + " avx512f avx512cd avx512bw avx512dq avx512vl"


Pretend = Callable[[str, str, str], None]
NAME = "Pretended CPU"


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pretend:
    """Make the host an x86 machine with these instruction sets, LLVM's name of the CPU, the kernel's name."""

    def be(flags: str, cpu: str, name: str) -> None:
        cpuinfo = tmp_path / "cpuinfo"
        cpuinfo.write_text(f"processor : 0\nmodel name\t: {name}\nflags\t\t: {flags}\n")
        names = {"llvm_get_system_cpu": cpu}
        monkeypatch.setattr(module, "CPUINFO", cpuinfo)
        monkeypatch.setattr("platform.machine", lambda: "x86_64")
        monkeypatch.setattr(module, "_llvm", lambda name: names.get(name, "x86_64-linux-gnu"))

    return be


def test_the_host_can_run_what_is_compiled_for_it() -> None:
    host = detect_host()
    assert host.name == "local"
    assert host.target["kind"] == "llvm"
    assert host.target["num-cores"] == host.cores == 1
    assert host.simd_bits in (128, 256, 512)
    assert host.l1d_kib > 0
    check_runnable(host)
    assert set(host.requires) <= host_flags() or not host_flags()


def test_more_cores_on_request() -> None:
    host = resolve_hardware(HardwareConfig(name="mine", detect=True, cores=4))
    assert host.name == "mine"
    assert host.cores == host.target["num-cores"] == 4


def test_other_cores_than_the_description_s_are_another_hardware() -> None:
    host = resolve_hardware(HardwareConfig(name="local", detect=True, cores=2))
    assert (host.name, host.cores, host.target["num-cores"]) == ("local-2c", 2, 2)
    target = {"kind": "llvm", "num-cores": 1}
    for name, renamed in (("epyc-1c", "epyc-2c"), ("mine", "mine-2c")):
        host = resolve_hardware(HardwareConfig(name=name, target=target, cores=2))
        assert (host.name, host.cores, host.target["num-cores"]) == (renamed, 2, 2)
    assert target["num-cores"] == 1
    names = [hardware.name for hardware in one_core(host)]
    assert names == ["mine-1c", "mine"]
    assert {(single.cores, single.target["num-cores"]) for single in one_core(host)} == {(1, 1)}
    assert not one_core(HardwareConfig(name="local", target=target))


def test_more_cores_than_there_are_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: {2, 3})
    two = HardwareConfig(name="two", target={"kind": "llvm"}, cores=2)
    check_cores(two)
    with pytest.raises(HardwareError, match=r"expected 3 cores, found 4 .* may use 2 .*cores=2"):
        check_cores(replace(two, cores=3))
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: {0, 1, 2, 3})
    with pytest.raises(HardwareError, match=r"expected 9 cores, found 4 in this host\. .*cores=4"):
        check_cores(replace(two, cores=9))


def test_what_logs_do_not_say_of_a_cpu_is_what_metaschedule_asks_for() -> None:
    hardware = HardwareConfig(name="mylogs-llvm", target={"kind": "llvm"}, cores=2)
    complete = replace(hardware, target={"kind": "llvm", "num-cores": 2})
    assert resolve_hardware(hardware) == complete
    assert resolve_hardware(complete) is complete, "configured hardware is left alone"


def test_instruction_sets_that_a_virtual_machine_masks_are_switched_off(pretend: Pretend) -> None:
    pretend(AVX2, "skylake-avx512", NAME)
    host = detect_host()
    assert host.model == "Pretended CPU (skylake-avx512)"
    assert host.simd_bits == 256
    assert "-avx512f" in host.target["mattr"]
    assert not any(flag.startswith("avx512") for flag in host.requires)
    check_runnable(host)


def test_names_of_llvm_and_cpuinfo_are_matched(pretend: Pretend) -> None:
    pretend(AVX512, "skylake-avx512", NAME)
    host = detect_host()
    assert "mattr" not in host.target
    assert {"pni", "sse4_1", "bmi1", "avx512f"} <= set(host.requires)


def test_programs_for_missing_instructions_are_refused(pretend: Pretend) -> None:
    pretend(AVX2, "core-avx2", NAME)
    hardware = HardwareConfig(
        name="xeon-avx512-1c",
        target={"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 1},
        requires=["avx512f", "amx_tile"],
    )
    with pytest.raises(HardwareError, match=r"Pretended CPU.*amx_tile, avx512f.*hardware=local"):
        check_runnable(hardware)


def test_a_list_that_is_not_kept_does_not_hide_a_crash(pretend: Pretend) -> None:
    pretend(AVX2, "core-avx2", NAME)
    careless = HardwareConfig(name="x", target={"kind": "llvm", "mcpu": "skylake-avx512"})
    with pytest.raises(HardwareError, match="avx512bw"):
        check_runnable(careless)


def test_other_kinds_of_target_are_refused() -> None:
    with pytest.raises(HardwareError, match="kind 'cuda'"):
        check_runnable(HardwareConfig(name="gpu", target={"kind": "cuda"}))


def test_where_there_is_no_cpuinfo_llvm_decides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "CPUINFO", tmp_path / "none")
    assert host_flags() == frozenset()
    host = detect_host()
    assert host.requires == []
    check_runnable(host)


def test_a_hardware_that_stands_for_several_runs_nothing() -> None:
    several = HardwareConfig(name="cpu", target={"kind": "llvm"}, members=["all"])
    with pytest.raises(HardwareError, match=r"'cpu' stands for several.*hardware=local"):
        resolve_hardware(several)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("AMD EPYC", "AMD EPYC (znver4)"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "Intel(R) Xeon(R) CPU @ 2.20GHz (znver4)"),
        ("AMD EPYC 9654 96-Core Processor", "AMD EPYC 9654 96-Core Processor"),
        ("Apple M2", "Apple M2"),
    ],
)
def test_a_brand_alone_gets_its_generation(pretend: Pretend, kernel: str, name: str) -> None:
    pretend(AVX2, "znver4", kernel)
    assert cpu_product_name() == name


def test_times_of_another_machine_are_refused(
    pretend: Pretend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two generations with the same instruction sets: programs run on both, and not in the same time."""
    pretend(AVX2, "znver4", "AMD EPYC")
    monkeypatch.setattr(module, "caches_kib", lambda: {"1d": 32.0, "2": 1024.0, "3": 32768.0})
    here = detect_host("here")
    check_described(here)
    check_described(replace(here, l3_kib=1.0))  # shared: a virtual machine's share varies
    check_described(replace(here, model="AMD EPYC"))  # written before models had generations
    other = replace(here, name="there", model="AMD EPYC (znver5)", l1d_kib=48.0)
    assert another_machine(other) == (
        "AMD EPYC (znver4) instead of AMD EPYC (znver5), a level-1 cache of 32 KiB instead of 48 KiB"
    )
    with pytest.raises(HardwareError, match=r"'there'.*znver4.*32 KiB.*tencost measure hardware"):
        check_described(other)
    with pytest.raises(HardwareError, match="level-2 cache"):
        check_described(replace(here, l2_kib=512.0))


def test_a_host_that_tells_no_caches_is_taken_by_its_name(
    pretend: Pretend, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(AVX2, "znver4", "AMD EPYC")
    monkeypatch.setattr(module, "caches_kib", dict)
    assert another_machine(replace(detect_host(), l1d_kib=4.0)) == ""
    assert (
        another_machine(replace(detect_host(), model="NVIDIA H100", target={"kind": "cuda"})) == ""
    )
