from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tencost import cli
from tencost.config import HardwareConfig, Isa, RunnerKind, composition
from tencost.errors import ConfigError, HardwareError
from tencost.measure.describe import (
    LEVELS,
    describe_host,
    gpu_hardware,
    hardware_yaml,
    slug,
    write_hardware,
)
from tencost.workers import hardware
from tencost.workers.hardware import check_runnable, host_flags, llvm_features

pytestmark = pytest.mark.tvm

ROOT = Path(__file__).resolve().parents[2]
HERE = [isa for isa, level in LEVELS.items() if set(level.requires) <= host_flags()]
REGISTERS = {Isa.avx512: "zmm", Isa.avx2: "ymm", Isa.sse42: "xmm"}
H100 = {
    "device_name": "NVIDIA H100 80GB HBM3",
    "compute_version": "9.0",
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "warp_size": 32,
    "multi_processor_count": 132,
    "l2_cache_size_bytes": 52428800,
    "max_clock_rate": 1980000,
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the repository's choices; the current folder."""
    root = tmp_path / "project"
    shutil.copytree(ROOT / "conf", root / "conf")
    monkeypatch.chdir(root)
    return root


def composed(name: str) -> HardwareConfig:
    config, _ = composition.compose([f"hardware={name}"])
    return config.hardware


def assembly(target: dict[str, Any], *, vectorized: bool) -> str:
    """Return the code of a matrix product: one row of 16 lanes at a time, or loops for LLVM to vectorize."""
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule
    from tvm.target import Target

    a = te.placeholder((96, 96), name="A")
    b = te.placeholder((96, 96), name="B")
    k = te.reduce_axis((0, 96), name="k")
    c = te.compute((96, 96), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    schedule = Schedule(tvm.IRModule({"main": te.create_prim_func([a, b, c])}))
    block = schedule.get_sblock("C")
    row, column, inner = schedule.get_loops(block)
    outer, lanes = schedule.split(column, [None, 16])
    schedule.reorder(row, outer, inner, lanes)
    if vectorized:
        schedule.vectorize(lanes)
    schedule.decompose_reduction(block, inner)
    executable = tvm.compile(schedule.mod, target=Target(target))
    module = executable.mod.imports[0] if executable.mod.imports else executable.mod
    return str(module.inspect_source("s"))


@pytest.mark.parametrize("isa", HERE, ids=lambda isa: isa.value)
def test_a_level_uses_its_registers_and_nothing_beyond(isa: Isa) -> None:
    described = describe_host(isa=isa)
    check_runnable(described)
    assert set(described.requires) <= host_flags()
    assert described.simd_bits == LEVELS[isa].bits
    assert described.name.endswith(f"-{isa.value}-1c")
    wider = [name for other, name in REGISTERS.items() if LEVELS[other].bits > described.simd_bits]
    for vectorized in (True, False):
        code = assembly(described.target, vectorized=vectorized)
        assert f"%{REGISTERS[isa]}" in code, (isa, vectorized)
        assert not any(f"%{name}" in code for name in wider)
        assert ("vfmadd" in code) == (isa is not Isa.sse42)


@pytest.mark.parametrize("isa", HERE, ids=lambda isa: isa.value)
def test_all_that_llvm_may_use_for_a_level_is_required(isa: Isa) -> None:
    described = describe_host("x", isa)
    spelled = {re.sub(r"[._-]", "", flag) for flag in described.requires}
    spelled |= {"sse3", "bmi", "lzcnt", "sahf"}  # pni, bmi1, abm and lahf_lm in LLVM's words
    checked = re.compile(r"^(avx|amx|sse[34]|ssse3|fma$|f16c|bmi|popcnt|lzcnt|movbe|sahf|cx16)")
    promised = {re.sub(r"[._-]", "", name) for name in llvm_features(described.target)}
    assert {name for name in promised if checked.match(name)} <= spelled


def test_the_whole_host_by_default() -> None:
    described = describe_host()
    check_runnable(described)
    assert described.cores == described.target["num-cores"] == 1
    mcpu = described.target["mcpu"]
    brand = described.model.removesuffix(f" ({mcpu})")
    assert described.name == f"{slug(brand)}-{slug(mcpu)}-1c"
    assert not described.detect


def test_each_description_composes_to_the_same_values(project: Path) -> None:
    odd = HardwareConfig(
        name="odd",
        description='A "quoted": name, with {braces}, $ and # signs',
        target={"kind": "llvm", "mcpu": "no", "mattr": ["-a", "+b.c"], "num-cores": 3, "tag": ""},
        model="null",
        cores=3,
        l1d_kib=32.5,
        clock_ghz=None,
        runner=RunnerKind.rpc,
        host="10.0.0.1",
        port=9000,
        key="1e3",
    )
    found = [describe_host(isa=isa) for isa in (Isa.native, *HERE)]
    for item in (*found, gpu_hardware(H100), odd):
        path = write_hardware(item, project / "conf" / "hardware")
        assert path.name == f"{item.name}.yaml"
        assert composed(item.name) == item
        assert max(len(line) for line in path.read_text().splitlines()) <= 120


def test_a_file_that_says_something_else_is_kept(tmp_path: Path) -> None:
    first = HardwareConfig(name="board", target={"kind": "llvm"}, model="one", clock_ghz=2.0)
    path = write_hardware(first, tmp_path)
    path.write_text("# what a person knows\n" + path.read_text())
    written = path.read_text()
    again = replace(first, clock_ghz=2.1, description="now")
    assert write_hardware(again, tmp_path) == path
    assert path.read_text() == written
    other = replace(first, cores=2, target={"kind": "llvm", "num-cores": 2})
    with pytest.raises(ConfigError, match=r"differs in target, cores.*measure\.overwrite=true"):
        write_hardware(other, tmp_path)
    assert path.read_text() == written
    write_hardware(other, tmp_path, overwrite=True)
    assert "num-cores: 2" in path.read_text()
    assert [item.name for item in tmp_path.iterdir()] == ["board.yaml"]


def test_a_damaged_file_is_not_taken_for_a_description(tmp_path: Path) -> None:
    for text in ("name: [", "- a list\n", "name: x\nunknown: 1\n", ""):
        (tmp_path / "x.yaml").write_text(text)
        with pytest.raises(ConfigError, match=r"differs in"):
            write_hardware(HardwareConfig(name="x", cores=7), tmp_path)


@pytest.mark.parametrize("name", ["../up", "a/b", "", "with space", "-x", ".hidden"])
def test_names_that_no_file_can_have_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"hardware\.name must be"):
        write_hardware(HardwareConfig(name=name), tmp_path)


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "conf").write_text("a file")
    with pytest.raises(ConfigError, match=r"cannot write .*board\.yaml"):
        write_hardware(HardwareConfig(name="board"), tmp_path / "conf" / "hardware")


def test_what_the_host_lacks_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    flags = " ".join(LEVELS[Isa.avx2].requires)
    cpuinfo.write_text(f"model name\t: Pretended CPU\nflags\t\t: {flags}\n")
    monkeypatch.setattr(hardware, "CPUINFO", cpuinfo)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(
        HardwareError,
        match=r"AVX-512, found Pretended CPU .*without avx512bw.*native, avx2, sse42",
    ):
        describe_host("x", Isa.avx512)


def test_x86_levels_are_refused_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(HardwareError, match=r"x86 CPU for AVX2, found .*aarch64.*isa=native"):
        describe_host("x", Isa.avx2)


def test_more_cores_than_the_host_has_are_refused() -> None:
    for cores in (0, 100_000):
        with pytest.raises(ConfigError, match=r"hardware\.cores must be between 1 and"):
            describe_host("x", cores=cores)


def test_a_gpu_from_its_attributes() -> None:
    from tvm.target import Target

    gpu = gpu_hardware(H100)
    assert gpu.name == "nvidia-h100-80gb-hbm3-sm-90"
    assert (gpu.cores, gpu.simd_bits, gpu.l1d_kib, gpu.l2_kib) == (132, 1024, 48.0, 51200.0)
    assert gpu.clock_ghz == 1.98
    assert gpu.requires == []
    target = Target(gpu.target)
    assert str(target.kind) == "cuda"
    assert str(target.attrs["arch"]) == "sm_90"
    for key in ("max_threads_per_block", "max_shared_memory_per_block", "thread_warp_size"):
        assert int(target.attrs[key]) == gpu.target[key]
    assert "multiprocessors" in hardware_yaml(gpu)
    assert gpu_hardware({**H100, "max_clock_rate": None}, "mine").clock_ghz is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"warp_size": None}, "warp_size"),
        ({"multi_processor_count": 0}, "multi_processor_count"),
        ({"compute_version": None}, "compute version"),
    ],
)
def test_a_gpu_that_does_not_tell_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(HardwareError, match=message):
        gpu_hardware({**H100, **change})


def test_cuda_describes_the_gpu_or_says_that_there_is_none() -> None:
    import tvm

    if tvm.cuda().exist:
        assert describe_host(isa=Isa.cuda).target["kind"] == "cuda"
    else:
        with pytest.raises(HardwareError, match="NVIDIA GPU"):
            describe_host(isa=Isa.cuda)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("AMD EPYC", "amd-epyc"),
        ("Intel(R) Xeon(R) Platinum 8488C CPU @ 2.40GHz", "intel-xeon-platinum-8488c"),
        ("AMD Ryzen 9 7950X 16-Core Processor", "amd-ryzen-9-7950x-16-core"),
        ("", "unknown"),
    ],
)
def test_names_are_made_of_models(model: str, words: str) -> None:
    assert slug(model) == words


def test_the_command(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["measure", "hardware", "hardware.name=desk", "hardware.cores=1"])
    path = project / "conf" / "hardware" / "desk.yaml"
    assert "hardware=desk" in capsys.readouterr().err
    assert composed("desk") == describe_host("desk")
    check_runnable(composed("desk"))
    before = path.read_text()
    cli.main(["measure", "hardware", "hardware=local", "hardware.name=desk"])
    assert path.read_text() == before
    for word, told in (
        ("hardware=xeon-avx2-1c", "described already"),
        ("measure.isa=mmx", "native"),
    ):
        with pytest.raises(SystemExit) as stop:
            cli.main(["measure", "hardware", word])
        assert stop.value.code == 2
        assert told in capsys.readouterr().err


@pytest.mark.parametrize("isa", LEVELS, ids=lambda isa: isa.value)
def test_the_committed_levels_are_what_the_command_writes(isa: Isa) -> None:
    committed = composed(f"epyc-{isa.value}-1c")
    level = LEVELS[isa]
    assert committed.target["mcpu"] == level.mcpu
    assert committed.target.get("mattr", []) == list(level.mattr)
    assert committed.simd_bits == level.bits
    assert sorted(committed.requires) == sorted(level.requires)
    text = (ROOT / "conf" / "hardware" / f"epyc-{isa.value}-1c.yaml").read_text()
    assert text == hardware_yaml(committed)
