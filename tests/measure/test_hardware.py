from __future__ import annotations

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
    detect_host,
    host_flags,
    model_name,
    one_core,
    resolve_hardware,
)

pytestmark = pytest.mark.tvm

AVX2 = "fpu sse sse2 pni ssse3 sse4_1 sse4_2 avx avx2 fma f16c bmi1 bmi2 popcnt"
AVX512 = AVX2 + " avx512f avx512cd avx512bw avx512dq avx512vl"


def pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: str, cpu: str) -> None:
    """Make the host an x86 machine with these instruction sets and this LLVM name."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nmodel name\t: Pretended CPU\nflags\t\t: {flags}\n")
    monkeypatch.setattr(module, "CPUINFO", cpuinfo)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(
        module, "_llvm", lambda name: cpu if name == "llvm_get_system_cpu" else "x86_64-linux-gnu"
    )


def test_the_host_can_run_what_is_compiled_for_it() -> None:
    found = detect_host()
    assert found.name == "local"
    assert found.target["kind"] == "llvm"
    assert found.target["num-cores"] == found.cores == 1
    assert found.simd_bits in (128, 256, 512)
    assert found.l1d_kib > 0
    check_runnable(found)
    assert set(found.requires) <= host_flags() or not host_flags()


def test_more_cores_on_request() -> None:
    found = resolve_hardware(HardwareConfig(name="mine", detect=True, cores=4))
    assert found.name == "mine"
    assert found.cores == found.target["num-cores"] == 4


def test_other_cores_than_the_description_s_are_another_hardware() -> None:
    found = resolve_hardware(HardwareConfig(name="local", detect=True, cores=2))
    assert (found.name, found.cores, found.target["num-cores"]) == ("local-2c", 2, 2)
    target = {"kind": "llvm", "num-cores": 1}
    for name, told in (("epyc-1c", "epyc-2c"), ("mine", "mine-2c")):
        found = resolve_hardware(HardwareConfig(name=name, target=target, cores=2))
        assert (found.name, found.cores, found.target["num-cores"]) == (told, 2, 2)
    assert target["num-cores"] == 1
    names = [one.name for one in one_core(found)]
    assert names == ["mine-1c", "mine"]
    assert {(one.cores, one.target["num-cores"]) for one in one_core(found)} == {(1, 1)}
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


def test_configured_hardware_is_left_alone() -> None:
    given = HardwareConfig(name="x", target={"kind": "llvm", "num-cores": 1})
    assert resolve_hardware(given) is given


def test_what_logs_do_not_say_of_a_cpu_is_what_metaschedule_asks_for() -> None:
    given = HardwareConfig(name="mylogs-llvm", target={"kind": "llvm"}, cores=2)
    found = resolve_hardware(given)
    assert found == replace(given, target={"kind": "llvm", "num-cores": 2})


def test_instruction_sets_that_a_virtual_machine_masks_are_switched_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, tmp_path, AVX2, "skylake-avx512")
    found = detect_host()
    assert found.model == "Pretended CPU (skylake-avx512)"
    assert found.simd_bits == 256
    assert "-avx512f" in found.target["mattr"]
    assert not any(flag.startswith("avx512") for flag in found.requires)
    check_runnable(found)


def test_names_of_llvm_and_cpuinfo_are_matched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, tmp_path, AVX512, "skylake-avx512")
    found = detect_host()
    assert "mattr" not in found.target
    assert {"pni", "sse4_1", "bmi1", "avx512f"} <= set(found.requires)


def test_programs_for_missing_instructions_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, tmp_path, AVX2, "core-avx2")
    wanted = HardwareConfig(
        name="xeon-avx512-1c",
        target={"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 1},
        requires=["avx512f", "amx_tile"],
    )
    with pytest.raises(HardwareError, match=r"Pretended CPU.*amx_tile, avx512f.*hardware=local"):
        check_runnable(wanted)


def test_a_list_that_is_not_kept_does_not_hide_a_crash(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, tmp_path, AVX2, "core-avx2")
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
    found = detect_host()
    assert found.requires == []
    check_runnable(found)


def test_a_hardware_that_stands_for_several_runs_nothing() -> None:
    several = HardwareConfig(name="cpu", target={"kind": "llvm"}, members=["all"])
    with pytest.raises(HardwareError, match=r"'cpu' stands for several.*hardware=local"):
        resolve_hardware(several)


def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, cpu: str) -> None:
    """Make the kernel tell this name of the CPU, and LLVM that one."""
    pretend(monkeypatch, tmp_path, AVX2, cpu)
    module.CPUINFO.write_text(f"model name\t: {name}\nflags\t\t: {AVX2}\n")


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("AMD EPYC", "AMD EPYC (znver4)"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "Intel(R) Xeon(R) CPU @ 2.20GHz (znver4)"),
        ("AMD EPYC 9654 96-Core Processor", "AMD EPYC 9654 96-Core Processor"),
        ("Apple M2", "Apple M2"),
    ],
)
def test_a_brand_alone_gets_its_generation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kernel: str, name: str
) -> None:
    told(monkeypatch, tmp_path, kernel, "znver4")
    assert model_name() == name


def test_times_of_another_machine_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two generations with the same instruction sets: programs run on both, and not in the same time."""
    told(monkeypatch, tmp_path, "AMD EPYC", "znver4")
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
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told(monkeypatch, tmp_path, "AMD EPYC", "znver4")
    monkeypatch.setattr(module, "caches_kib", dict)
    assert another_machine(replace(detect_host(), l1d_kib=4.0)) == ""
    assert (
        another_machine(replace(detect_host(), model="NVIDIA H100", target={"kind": "cuda"})) == ""
    )
