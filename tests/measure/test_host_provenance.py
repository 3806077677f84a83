from __future__ import annotations

import getpass
import json
import os
import platform
import socket
import time
from pathlib import Path

import pytest

from tencost.config import HardwareConfig, RunnerKind
from tencost.measure import host_state as provenance
from tencost.measure.host_state import collect, host_facts
from tencost.store.schema import provenance_from_json
from tencost.workers.evaluator import MeasureOptions

pytestmark = pytest.mark.tvm

HARDWARE = HardwareConfig(
    name="board",
    target={"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2},
    model="A board",
    cores=2,
)


def test_what_is_collected_is_a_provenance() -> None:
    settings = MeasureOptions().settings()
    values = collect(HARDWARE, settings, (3, 2))
    about = provenance_from_json(json.loads(json.dumps(values, allow_nan=False)))
    assert about.timestamp is not None
    assert abs(about.timestamp - time.time()) < 60
    assert about.engine_version is not None
    assert about.engine_version.startswith("0.")
    assert about.hw_model == "A board"
    assert about.execution_config == settings
    assert about.build_config == {"target": HARDWARE.target}
    assert about.engine_config is not None
    assert all(about.engine_config[key] for key in ("apache-tvm-ffi", "tencost", "llvm", "python"))
    assert about.runtime_config == {
        "runner": "local",
        "num_cpu_threads": 2,
        "cpus": [2, 3],
        "pinned": True,
    }
    assert about.additional_info is not None
    assert set(about.additional_info) == {"host"}
    assert about.additional_info["host"]["cores_online"] >= 1


def test_a_container_that_says_its_image_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 4304's docker_tag and docker_hash; an empty variable says nothing, as that of an image without a tag."""
    monkeypatch.setenv("TENCOST_DOCKER_TAG", "")
    assert set(collect(HARDWARE, {})["additional_info"]) == {"host"}
    monkeypatch.setenv("TENCOST_DOCKER_TAG", "lab/tencost:1.4")
    monkeypatch.setenv("TENCOST_DOCKER_HASH", "sha256:0a68")
    image = {"docker_tag": "lab/tencost:1.4", "docker_hash": "sha256:0a68"}
    assert collect(HARDWARE, {})["additional_info"].items() >= image.items()


def test_devices_and_hosts_without_pinning() -> None:
    remote = HardwareConfig(
        name="gpu", target={"kind": "cuda"}, cores=132, runner=RunnerKind.rpc, model="A GPU"
    )
    config = collect(remote, {})["runtime_config"]
    assert config == {"runner": "rpc", "num_cpu_threads": 1, "cpus": None, "pinned": False}


def test_neither_people_nor_places_are_named() -> None:
    text = json.dumps(collect(HARDWARE, MeasureOptions().settings(), (0,))).lower()
    host = socket.gethostname().lower()
    words = json.loads(text)["additional_info"]["host"].values()
    assert host not in {str(word) for word in words}
    assert f'"{getpass.getuser().lower()}"' not in text
    assert str(Path.home()).lower() not in text
    assert str(Path.cwd()).lower() not in text
    for value in text.split('"'):
        assert not value.startswith("/"), value


def test_the_facts_of_the_real_host() -> None:
    facts = host_facts((0,))
    assert facts["cpu"]
    assert facts["architecture"] == platform.machine()
    assert facts["cores_online"] == os.cpu_count()
    assert facts["memory_gib"] > 0
    assert facts["kernel"].startswith(platform.system())
    assert isinstance(facts["container"], bool)
    for key in ("governor", "virtualization", "os", "cpu_signature"):
        assert facts[key] is None or facts[key].strip() == facts[key] != ""


def test_governor_and_boost_where_the_system_tells(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(provenance, "CPUS", tmp_path)
    assert host_facts((1,))["governor"] is host_facts((1,))["boost"] is None
    (tmp_path / "cpu1" / "cpufreq").mkdir(parents=True)
    (tmp_path / "cpu1" / "cpufreq" / "scaling_governor").write_text("performance\n")
    (tmp_path / "cpu1" / "cpufreq" / "scaling_driver").write_text("amd-pstate\n")
    (tmp_path / "cpufreq").mkdir()
    (tmp_path / "cpufreq" / "boost").write_text("1\n")
    facts = host_facts((1, 2))
    assert (facts["governor"], facts["clock_driver"]) == ("performance", "amd-pstate")
    assert facts["boost"] is True
    (tmp_path / "cpufreq" / "boost").unlink()
    (tmp_path / "intel_pstate").mkdir()
    (tmp_path / "intel_pstate" / "no_turbo").write_text("1\n")
    assert host_facts((1,))["boost"] is False


def test_the_hypervisor_by_its_vendor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(provenance, "DMI", tmp_path)
    (tmp_path / "sys_vendor").write_text("QEMU\n")
    assert host_facts()["virtualization"] == "QEMU/KVM"
    assert "QEMU/KVM" in collect(HARDWARE, {})["env_name"]


def test_software_that_is_not_installed_is_none() -> None:
    assert provenance._version("no-such-package-at-all") is None
