"""`tencost.compile`'s cache of libraries: libraries that compiling again would make the same."""

from __future__ import annotations

import copy
import os
import shutil
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
from onnx import TensorProto, helper

import tencost
from tencost.config.composition import compose, config_folder
from tencost.tune import compiled, library_cache

pytestmark = pytest.mark.tvm


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with its own conf/ and a network of any batch, and an empty cache."""
    shutil.copytree(config_folder()[1], tmp_path / "conf")
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "net",
        [tensor("x", TensorProto.FLOAT, ["N", 4])],
        [tensor("y", TensorProto.FLOAT, ["N", 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "net.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def key(project: Path, *overrides: str) -> str:
    cfg, root = compose(["network=onnx", "hardware=local", "network.path=net.onnx", *overrides])
    assert root == project
    return library_cache._key(cfg, project / "net.onnx", root)


def test_an_edited_configuration_file_is_compiled_anew(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = project / "conf" / "network" / "onnx.yaml"
    for batch in (4, 8):
        settings.write_text(settings.read_text().replace("batch: 1\n", f"batch: {batch}\n"))
        assert tencost.compile("net.onnx").inputs[0].shape == (batch, 4)
        assert "compiled before" not in capsys.readouterr().err
        settings.write_text(settings.read_text().replace(f"batch: {batch}\n", "batch: 1\n"))
    assert tencost.compile("net.onnx", overrides=["network.batch=8"]).inputs[0].shape == (8, 4)
    assert "compiled before" in capsys.readouterr().err, "the same by other words"


def test_every_setting_of_network_and_hardware_counts(project: Path) -> None:
    """Also those that no file of conf/ sets."""
    cfg, root = compose(["network=onnx", "hardware=epyc-avx512-1c", "network.path=net.onnx"])
    before = library_cache._key(cfg, project / "net.onnx", root)
    for group, unread in (("network", {"path"}), ("hardware", {"detect"})):
        settings = getattr(cfg, group)
        for item in fields(settings):
            value = getattr(settings, item.name)
            if item.name in unread or not isinstance(value, bool | int | str):
                continue
            other = copy.copy(
                settings
            )  # its fields depend on each other: the checks are of no interest here
            setattr(other, item.name, f"{value}x" if isinstance(value, str) else value + 1)
            found = library_cache._key(replace(cfg, **{group: other}), project / "net.onnx", root)
            assert found != before, f"{group}.{item.name}"


def test_compiling_reads_no_other_group_of_settings(project: Path) -> None:
    """A group that compiling begins to read has to enter the key."""
    cfg, root = compose(["network=onnx", "hardware=local", "network.path=net.onnx"])
    for item in fields(cfg):
        if item.name not in ("network", "hardware", "tuner") and is_dataclass(
            getattr(cfg, item.name)
        ):
            setattr(cfg, item.name, None)
    cfg.tuner = SimpleNamespace(workdir="tuned")  # type: ignore[assignment]
    assert compiled.run(cfg, root, to=project / "net.so", records=False).library.is_file()


def test_tuned_programs_count_by_their_content(project: Path) -> None:
    untuned = key(project)
    folder = project / "tuned" / "net-b8-local"
    folder.mkdir(parents=True)
    file = folder / "database_tuning_record.json"
    file.write_text("[1]\n")
    tuned = key(project)
    stat = file.stat()
    file.write_text("[2]\n")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert len({untuned, tuned, key(project)}) == 3
    file.write_text("[1]\n")
    os.utime(file)
    assert key(project) == tuned, "a copy of the programs, or a checkout, has other times"


def test_programs_of_other_networks_and_hardware_do_not_count(project: Path) -> None:
    before = key(project)
    for name in ("other-local", "net-epyc-avx512-1c"):
        folder = project / "tuned" / name
        folder.mkdir(parents=True)
        (folder / "database_tuning_record.json").write_text("[1]\n")
    assert key(project) == before


def test_another_version_of_an_importer_is_compiled_anew(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key(project)
    monkeypatch.setattr(library_cache, "version", lambda name: "99.0" if name == "onnx" else "1.0")
    assert key(project) != before
