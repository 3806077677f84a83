"""One contract for every source of networks: what measure and tune may rely on, and what a mistake looks like."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from tencost.config import NetworkConfig
from tencost.config.parts import NETWORK_SOURCES
from tencost.errors import ConfigError
from tencost.networks.network import Network, load_network
from tencost.networks.source import NetworkSource
from tencost.tune.deploy import compile_network, output_agreement
from tencost.tune.hosts import Deployed

pytestmark = pytest.mark.tvm

SOURCES: dict[str, NetworkSource] = NETWORK_SOURCES.all()
every_source = pytest.mark.parametrize("name", SOURCES)
every_file = pytest.mark.parametrize("name", [name for name in SOURCES if SOURCES[name].extension])


@dataclass(frozen=True)
class Tiny:
    """A source's tiny network, and the folder that its file is in."""

    folder: Path
    config: NetworkConfig
    network: Network


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tiny]:
    """Import each source's tiny network once for all tests of this module."""
    cache: dict[str, Tiny] = {}

    def get(name: str) -> Tiny:
        if name not in cache:
            folder = tmp_path_factory.mktemp(name)
            config = SOURCES[name].example(folder)
            cache[name] = Tiny(folder, config, load_network(config, folder))
        return cache[name]

    return get


@every_source
def test_it_describes_itself(name: str, tiny: Callable[[str], Tiny]) -> None:
    source = SOURCES[name]
    assert isinstance(source, NetworkSource)
    assert source.extension == source.extension.lower()
    assert not source.extension or source.extension.startswith(".")
    assert [one.extension for one in SOURCES.values()].count(source.extension) == 1
    assert tiny(name).config.source == name


@every_source
def test_it_is_imported_without_what_it_reads_with(name: str) -> None:
    code = (
        "import sys; from tencost.config.parts import NETWORK_SOURCES; "
        f"NETWORK_SOURCES.load({name!r}); "
        "heavy = {'torch', 'tvm', 'onnx', 'onnxruntime', 'transformers'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@every_source
def test_a_network_has_weights_inputs_outputs_and_tasks(
    name: str, tiny: Callable[[str], Tiny], target: dict[str, Any]
) -> None:
    network = tiny(name).network
    main = network.mod["main"]
    arguments = [*network.inputs.values(), *(param.numpy() for param in network.params)]
    taken = [(str(param.ty.dtype), tuple(map(int, param.ty.shape))) for param in main.params]
    assert taken == [(array.dtype.name, array.shape) for array in arguments]
    assert network.inputs
    assert network.params
    returned = [tuple(map(int, item.shape)) for item in main.ret_ty.fields]
    assert returned == [array.shape for array in network.expected]
    assert len(set(network.outputs)) == len(network.expected) > network.output >= 0
    tasks = network.tasks(target)
    assert tasks[0].flop > 0
    assert all(task.weight >= 1 for task in tasks)


@every_source
def test_it_says_what_the_network_computes(
    name: str, tiny: Callable[[str], Tiny], target: dict[str, Any]
) -> None:
    network = tiny(name).network
    outputs = Deployed(compile_network(network, target, None), network).outputs()
    for found, expected in zip(outputs, network.expected, strict=True):
        assert np.isfinite(expected).all()
        assert np.std(expected) > 1e-3, "a constant would agree with anything"
        assert output_agreement(found, expected).accepted


@every_source
def test_the_same_network_twice(name: str, tiny: Callable[[str], Tiny]) -> None:
    one = tiny(name)
    two = load_network(one.config, one.folder)
    assert tvm_ffi.structural_equal(one.network.mod, two.mod)
    assert one.network.outputs == two.outputs
    assert list(one.network.inputs) == list(two.inputs)
    pairs = [
        *zip(one.network.inputs.values(), two.inputs.values(), strict=True),
        *zip(one.network.expected, two.expected, strict=True),
        *((a.numpy(), b.numpy()) for a, b in zip(one.network.params, two.params, strict=True)),
    ]
    for first, second in pairs:
        np.testing.assert_array_equal(first, second)


@every_source
def test_another_output_is_refused_with_the_names(name: str, tiny: Callable[[str], Tiny]) -> None:
    one = tiny(name)
    names = ", ".join(one.network.outputs)
    with pytest.raises(ConfigError, match=f"output must be one of {names}; found 'no_such_output'"):
        load_network(replace(one.config, output="no_such_output"), one.folder)


@every_file
def test_a_file_that_is_missing_is_named(name: str, tiny: Callable[[str], Tiny]) -> None:
    one, end = tiny(name), SOURCES[name].extension
    (one.folder / f"folder{end}").mkdir()
    for path, told in (
        ("", f"expected a {end} file, found none. Give one: network={name} network.path="),
        (f"nowhere{end}", f"expected a {end} file at .*nowhere{end}, found nothing"),
        (f"folder{end}", "found a folder"),
        (f"tiny{end}.txt", f"source {name} expected a {end} file, found .*tiny{end}.txt"),
    ):
        with pytest.raises(ConfigError, match=told):
            load_network(replace(one.config, path=path), one.folder)


@every_file
def test_a_file_of_another_source_is_told_which(name: str, tiny: Callable[[str], Tiny]) -> None:
    one = tiny(name)
    for other, source in SOURCES.items():
        if source.extension and other != name:
            with pytest.raises(ConfigError, match=f"Read it with network={other}"):
                load_network(replace(one.config, path=f"tiny{source.extension}"), one.folder)


@every_file
@pytest.mark.parametrize("damage", ["empty", "text", "zeros", "cut"])
def test_a_damaged_file_is_named(
    name: str,
    damage: str,
    tiny: Callable[[str], Tiny],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    one = tiny(name)
    whole = (one.folder / one.config.path).read_bytes()
    content = {
        "empty": b"",
        "text": b"no network at all\n",
        "zeros": bytes(len(whole)),
        "cut": whole[: len(whole) // 2],
    }
    (tmp_path / one.config.path).write_bytes(content[damage])
    with pytest.raises(ConfigError, match=f"expected .*{one.config.path}"):
        load_network(one.config, tmp_path)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("name", [name for name in SOURCES if not SOURCES[name].extension])
def test_a_source_without_a_file_refuses_one(name: str, tiny: Callable[[str], Tiny]) -> None:
    one = tiny(name)
    with pytest.raises(ConfigError, match=r"reads no file, found network\.path=mine\.onnx"):
        load_network(replace(one.config, path="mine.onnx"), one.folder)


def test_a_source_that_there_is_not_is_told_which_there_are() -> None:
    listed = ", ".join(SOURCES)
    with pytest.raises(ConfigError, match=f"network.source must be one of {listed}, found 'caffe'"):
        NetworkConfig(name="mine", source="caffe")


ADDED = '''
"""Networks from matrices that numpy.save wrote (.npy): x @ matrix, rectified."""

from pathlib import Path

import numpy as np

from tencost.config import NetworkConfig
from tencost.errors import ConfigError
from tencost.networks.source import Imported, NetworkSource


def read(config, path):
    import tvm
    from tvm import relax

    try:
        matrix = np.load(path)
    except (ValueError, EOFError) as error:
        raise ConfigError(f"network.path: expected a matrix in {path}, found something else") from error
    x = np.random.default_rng(config.seed).standard_normal((config.batch, len(matrix)), np.float32)
    taken = [relax.Var(name, relax.TensorType(array.shape, "float32")) for name, array in (("x", x), ("w", matrix))]
    builder = relax.BlockBuilder()
    with builder.function("main", taken):
        with builder.dataflow():
            product = builder.emit(relax.op.nn.relu(relax.op.matmul(*taken)))
            outputs = builder.emit_output(relax.Tuple([product]))
        builder.emit_func_output(outputs)
    weights = [tvm.runtime.tensor(matrix)]
    return Imported(builder.get(), weights, {"x": x}, [np.maximum(x @ matrix, 0)], ["y"], compared="y")


def example(folder: Path) -> NetworkConfig:
    np.save(folder / "tiny.npy", np.random.default_rng(0).standard_normal((8, 4), np.float32))
    return NetworkConfig(name="tiny", source="matrix", path="tiny.npy")


SOURCE = NetworkSource(read=read, example=example, extension=".npy")
'''


@pytest.fixture
def added(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that sees an installed package with one more source."""
    site = tmp_path / "site"
    for file, text in {
        "my_networks/__init__.py": "",
        "my_networks/matrix.py": ADDED,
        "my_networks-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: my-networks\nVersion: 1.0\n",
        "my_networks-1.0.dist-info/entry_points.txt": "[tencost.network_sources]\nmatrix = my_networks.matrix\n",
    }.items():
        path = site / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.skipif("matrix" in SOURCES, reason="runs in the process that has the source already")
def test_a_package_adds_a_source(added: dict[str, str], tmp_path: Path) -> None:
    """It keeps the contract, and the command line knows it."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            env=added, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip

    contract = [str(Path(__file__)), "-k", "matrix", "-q", "-p", "no:cacheprovider"]
    checked = run("-m", "pytest", "--rootdir", str(Path(__file__).parents[2]), *contract)
    assert checked.returncode == 0, checked.stdout

    np.save(tmp_path / "mine.npy", np.ones((8, 4), np.float32))
    export = ["-m", "tencost.cli", "measure", "export", "network=onnx", "to=mine.npz"]
    export += ["network.path=mine.npy"]
    exported = run(*export, "network.source=matrix")
    assert exported.returncode == 0, exported.stderr
    assert load_network(
        NetworkConfig(name="", source="saved", path="mine.npz"), tmp_path
    ).outputs == ["y"]
    told = run(*export)
    assert told.returncode == 2
    assert "source onnx expected a .onnx file" in told.stderr
    assert "Read it with network=matrix" in told.stderr
