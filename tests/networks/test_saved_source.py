"""Networks in our own file: what is read is what was written, and anything else is refused without running it."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from relax_networks import two_layers
from tencost import cli
from tencost.config import NetworkConfig, NetworkInput
from tencost.errors import ConfigError, MeasureError, MissingDependencyError, UntrustedError
from tencost.networks.network import Network, load_network
from tencost.networks.source import require_module
from tencost.networks.sources.saved import save_network

pytestmark = pytest.mark.tvm


def config(path: str = "small.npz", **values: Any) -> NetworkConfig:
    values = {"name": "", "source": "saved", "path": path, "output": "", **values}
    return NetworkConfig(**values)


@pytest.fixture(scope="module")
def network() -> Network:
    return two_layers()


@pytest.fixture(scope="module")
def saved(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "small.npz"
    save_network(network, path)
    return path


@pytest.fixture
def rewrite(saved: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write the file again with some of its arrays, or fields of its header, changed; None leaves one out."""

    def make(header: dict[str, Any] | None = None, **arrays: Any) -> Path:
        with np.load(saved) as file:
            content = dict(file)
        told = {**orjson.loads(content["header"].tobytes()), **(header or {})}
        content["header"] = np.frombuffer(orjson.dumps(told), np.uint8)
        content |= {name.replace("_", "/"): value for name, value in arrays.items()}
        path = tmp_path / "small.npz"
        np.savez(path, **{name: value for name, value in content.items() if value is not None})
        return path

    return make


def test_what_is_read_is_what_was_written(
    network: Network, saved: Path, target: dict[str, Any]
) -> None:
    import tvm_ffi

    from tencost.tune.deploy import compile_network, output_agreement
    from tencost.tune.hosts import Deployed

    found = load_network(config(), saved.parent)
    assert (found.name, found.outputs, found.output) == ("small", ["first", "second"], 1)
    assert tvm_ffi.structural_equal(found.mod, network.mod)
    pairs = [
        *zip(found.inputs.values(), network.inputs.values(), strict=True),
        *zip(found.expected, network.expected, strict=True),
        *(
            (one.numpy(), two.numpy())
            for one, two in zip(found.params, network.params, strict=True)
        ),
    ]
    assert list(found.inputs) == ["x", "index"]
    assert len(pairs) == 7
    for one, two in pairs:
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)
    tasks = [(task.name, task.weight, task.flop) for task in found.tasks(target)]
    packed = replace(network, packed=True)  # as network.pack_weights says
    assert tasks == [(task.name, task.weight, task.flop) for task in packed.tasks(target)]
    deployed = Deployed(compile_network(found, target, None), found)
    for output, expected in zip(deployed.outputs(), found.expected, strict=True):
        assert output_agreement(output, expected).accepted


def test_another_output_is_chosen_by_name(saved: Path) -> None:
    assert load_network(config(output="first"), saved.parent).output == 0
    with pytest.raises(ConfigError, match="must be one of first, second; found 'third'"):
        load_network(config(output="third"), saved.parent)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"path": ""}, r"expected a \.npz file, found none.*network=saved network\.path="),
        ({"path": "nowhere.npz"}, "found nothing"),
        ({"path": "small.onnx"}, "Read it with network=onnx"),
        ({"batch": 4}, r"found network\.batch=4.*tencost measure export"),
        ({"size": 64}, r"found network\.size=64"),
        (
            {"inputs": {"x": NetworkInput(shape=[1, 4])}},
            r"found network\.inputs\.x\.shape=\[1, 4\]",
        ),
    ],
)
def test_mistakes_in_a_definition_are_named(saved: Path, values: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_network(config(**values), saved.parent)


class Trap:
    """Unpickling this makes a file: none may appear."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_in_a_file_runs(rewrite: Callable[..., Path], tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists()
    sprung.unlink()
    inside = rewrite(param_0=np.array([Trap(sprung)], dtype=object))
    plain = tmp_path / "plain.npz"
    plain.write_bytes(pickle.dumps(Trap(sprung)))
    for path in (inside, plain):
        with pytest.raises(ConfigError, match="found something else"):
            load_network(config(path.name), tmp_path)
    assert not sprung.exists()


def test_a_file_of_something_else_is_refused(saved: Path, tmp_path: Path) -> None:
    whole = saved.read_bytes()
    middle = len(whole) // 2
    other, array = tmp_path / "other.npz", tmp_path / "array.npz"
    np.savez(other, x=np.ones(3))
    with array.open("wb") as file:
        np.save(file, np.ones(3))
    (tmp_path / "empty.npz").touch()
    (tmp_path / "cut.npz").write_bytes(whole[:middle])
    (tmp_path / "flipped.npz").write_bytes(whole[:middle] + b"\xff" + whole[middle + 1 :])
    for name in ("other", "array", "empty", "cut", "flipped"):
        with pytest.raises(ConfigError, match=r"found something else.*tencost measure export"):
            load_network(config(f"{name}.npz"), tmp_path)


@pytest.mark.parametrize(
    ("header", "arrays", "told"),
    [
        ({"version": 9}, {}, "of version 1 in .*, found version 9"),
        ({"format": "mine"}, {}, "found something else"),
        ({"outputs": ["one"]}, {}, "1 outputs named, 2 stored"),
        ({"output": 2}, {}, "found something else"),
        ({"inputs": ["x"]}, {}, "found something else"),
        ({}, {"param_1": None}, "found something else"),
        ({}, {"param_0": np.ones((4, 4), np.float32)}, "takes and returns"),
        ({}, {"expected_0": np.ones((9, 9), np.float32)}, "takes and returns"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    rewrite: Callable[..., Path], header: dict[str, Any], arrays: dict[str, Any], told: str
) -> None:
    path = rewrite(header, **arrays)
    with pytest.raises(ConfigError, match=told):
        load_network(config(), path.parent)


def test_a_module_of_another_tvm_is_named(rewrite: Callable[..., Path]) -> None:
    path = rewrite({"tvm": "0.1.2"}, module=np.frombuffer(b'{"root": 1}', np.uint8))
    with pytest.raises(MeasureError, match=r"does not read the module.*TVM 0\.1\.2 wrote"):
        load_network(config(), path.parent)


def test_a_full_disk_is_an_error_and_leaves_nothing(network: Network, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MeasureError, match="cannot write"):
        save_network(network, tmp_path / "file" / "small.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_export_writes_one_file_and_replaces_its_own_only(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(saved, "small.npz")

    def export(*words: str) -> None:
        cli.main(["measure", "export", "network=saved", "network.path=small.npz", *words])

    export("--to", "out/")
    assert "network=saved network.path=small.npz" in capsys.readouterr().err
    export("to=out/small.npz")
    assert "old spelling: to=out/small.npz; write --to out/small.npz" in capsys.readouterr().err
    assert (tmp_path / "out" / "small.npz").read_bytes() == saved.read_bytes()
    (tmp_path / "mine.npz").write_text("mine")
    for words, told in (
        (["--to", "mine.npz"], "expected no file or a saved network at mine.npz"),
        (["--to=small.onnx"], "ends in .npz"),
        ([], "expected --to FILE.npz"),
        (["--to", "a.npz", "--to", "b.npz"], "expected --to once"),
        (["--to="], "expected"),
    ):
        with pytest.raises(SystemExit) as stop:
            export(*words)
        assert stop.value.code == 2
        assert told in capsys.readouterr().err
    assert (tmp_path / "mine.npz").read_text() == "mine"


def test_a_missing_package_is_named_with_both_ways_out() -> None:
    with pytest.raises(MissingDependencyError, match=r"no_such_package.*network=saved"):
        require_module("json", "no_such_package")


def test_a_saved_network_is_saved_again_under_its_output(
    network: Network, saved: Path, tmp_path: Path
) -> None:
    save_network(replace(network, output=0), tmp_path / "small.npz")
    assert load_network(config(), tmp_path).output == 0
    assert load_network(config(), saved.parent).output == 1


def test_a_module_that_calls_what_is_not_its_own(
    rewrite: Callable[..., Path], saved: Path, tmp_path: Path
) -> None:
    """An operator that names a C function, written into the file's module: refused before TVM reads it."""
    with np.load(saved) as file:
        graph = orjson.loads(file["module"].tobytes())
    operator = next(node for node in graph["nodes"] if node["type"] == "ir.Op")
    operator["data"] = "tirx.call_extern"
    rewrite(module=np.frombuffer(orjson.dumps(graph), np.uint8))
    with pytest.raises(UntrustedError, match=r"found the operator 'tirx\.call_extern'"):
        load_network(config(), tmp_path)
