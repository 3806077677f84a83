"""``tencost.compile``: from a network's file, or a module of PyTorch, to a library that is compiled once.

Libraries lie in the user's cache, a folder each, named by a digest of all that decides what is compiled. Processes that
ask for the same one at once wait for the one that compiles it; of several threads one compiles at a time, as Hydra,
and what keeps others' messages from the terminal, are of the whole process.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tencost.config.parts import NETWORK_FILES
from tencost.errors import ConfigError, TuneError
from tencost.networks.source import first_sentence
from tencost.tune.library import CompiledNetwork, absolute_path, file_digest
from tencost.workers.parallel.sources import code

if TYPE_CHECKING:
    from rich.console import Console

    from tencost.config import Config

_compiling = threading.RLock()


def compile(
    network: Any,
    inputs: Sequence[Any] = (),
    *,
    overrides: Sequence[str] = (),
    trusted: bool = False,
) -> CompiledNetwork:
    """Compile a network for this host, as `tencost compile` does by default, and return it ready to be called.

    A library that was compiled before comes from the user's cache, where the composed configuration of network and
    hardware, the content of the network's file and of its tuned programs, tencost's code and the versions of TVM and of
    the packages that read networks are the same. A file may lie elsewhere; a module counts as its exported program.

    Args:
        network: path of an ONNX file, of a file of torch.export.save or of `tencost measure export`; or an nn.Module.
        inputs: example inputs of an nn.Module, which is exported with torch.export in evaluation mode.
        overrides: settings of `tencost compile`, as ``network.batch=8`` or ``hardware.cores=2``.
        trusted: opening a file of torch.export can run code: whether you know who made it.

    Raises:
        TencostError: what `tencost compile` refuses.
    """
    if isinstance(overrides, str) or not (
        isinstance(overrides, Sequence) and all(isinstance(word, str) for word in overrides)
    ):
        raise ConfigError(
            f"expected a list of overrides, found {overrides!r}. Write overrides=['network.batch=8']"
        )
    if not isinstance(network, str | Path):
        with tempfile.TemporaryDirectory(prefix="tencost-compile-") as scratch:
            with _compiling:
                path = _exported(network, inputs, Path(scratch))
            return compile(path, overrides=overrides, trusted=True)
    path = absolute_path(network)
    source = NETWORK_FILES.get(path.suffix)
    if source is None:
        raise ConfigError(f"expected a file that ends in {', '.join(NETWORK_FILES)}, found {path}")
    trust = ["network.trusted=true"] if trusted and source == "torch_export" else []
    with _compiling:
        return _compiled([f"network={source}", "hardware=local", *trust, *overrides], path)


def _compiled(words: list[str], path: Path) -> CompiledNetwork:
    """Return a compiled network, from the cache where it is there and can be loaded."""
    from filelock import FileLock
    from platformdirs import user_cache_path
    from rich.console import Console

    from tencost.config.composition import compose
    from tencost.tune import compiled

    # Not as a word: Hydra's grammar has no way to write every path.
    cfg, root = compose(words)
    cfg = replace(cfg, network=replace(cfg.network, path=str(path)))
    key = _key(cfg, path, root)
    library = user_cache_path("tencost") / "compiled" / key / f"{cfg.network.name}.so"
    console = Console(stderr=True)
    with ExitStack() as stack:
        unwritable: OSError | None = None
        try:
            library.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(
                FileLock(library.parent / ".lock")
            )  # another process may compile it
        except OSError as error:
            unwritable = error
        network = _cached(library, console)
        if network is not None:
            return network
        if unwritable is not None:
            raise ConfigError(
                f"expected a cache that can be written to at {library.parent}, found {unwritable}. Name another "
                "folder: XDG_CACHE_HOME=..."
            ) from unwritable
        _clear(library.parent)
        is_project = (root / "conf" / "config.yaml").is_file()
        written = compiled.run(cfg, root, to=library, records=is_project)
        return CompiledNetwork(written.library)


def _cached(library: Path, console: Console) -> CompiledNetwork | None:
    """Return a library of the cache; None where it is not there, or with a line where its files are damaged."""
    from tencost.tune.reporting import say

    if not library.exists():
        return None
    try:
        network = CompiledNetwork(library)
        network.sample_inputs()
    except TuneError as error:
        say(console, f"{error}: compiling it again")
        return None
    say(console, f"{library}: compiled before")
    return network


def _clear(folder: Path) -> None:
    """Remove what is left of a library in the cache, whatever it is, but for the lock that is held."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()


def _key(cfg: Config, path: Path, root: Path) -> str:
    """Return the name of a cached library: a digest of the configuration, all files that are read, code and versions.

    Args:
        cfg: the composed configuration; its network and hardware decide the library, all else only how it is recorded.
        path: the network's file.
        root: the project, which may have programs of the network.
    """
    import tvm

    from tencost.workers.hardware import resolve_hardware

    digest = hashlib.sha256()
    hardware = resolve_hardware(cfg.hardware)
    # The clock is that of the moment where the system does not tell the nominal one; nothing is compiled by it.
    unread = dict.fromkeys(("path", "clock_ghz", "peak_gflops", "bandwidth_gbs"))
    settings = [{**asdict(group), **unread} for group in (cfg.network, hardware)]
    facts = [*settings, code(), tvm.__version__, _importers()]
    digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    programs = (root / cfg.tuner.workdir).glob(f"{cfg.network.name}*-{hardware.name}/*.json")
    for file in [*_files(path), *sorted(programs)]:
        name = file.name if file.parent == path.parent else f"{file.parent.name}/{file.name}"
        digest.update(json.dumps([name, file_digest(file).hex()]).encode())
    return digest.hexdigest()[:32]


def _importers() -> dict[str, str]:
    """Return the installed versions of the packages that read networks and compute what is expected of them."""
    versions = {}
    for name in ("numpy", "onnx", "onnxruntime", "torch"):
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _files(path: Path) -> list[Path]:
    """Return the files of a network: an ONNX model may have its weights beside it."""
    if path.suffix != ".onnx" or not path.is_file():
        return [path] if path.is_file() else []
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
    except Exception:  # noqa: BLE001 - protobuf's own; the compiler says what is wrong with the file
        return [path]
    names = {
        item.value
        for tensor in _tensors(model)
        for item in tensor.external_data
        if item.key == "location"
    }
    beside = (path.parent / name for name in sorted(names))
    return [path, *(file for file in beside if file.is_file())]


def _tensors(message: Any) -> Iterator[Any]:
    """Yield the tensors of an ONNX model: initializers, constants, and those of subgraphs and functions."""
    import onnx

    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for part in value if isinstance(value, Sequence) else [value]:
                yield from _tensors(part)


def _exported(module: Any, inputs: Sequence[Any], folder: Path) -> Path:
    """Export an nn.Module with torch.export into a folder; return the file."""
    import torch

    if not isinstance(module, torch.nn.Module):
        raise ConfigError(
            f"expected the path of a network's file or an nn.Module, found {type(module).__name__}"
        )
    name = type(module).__name__
    if isinstance(inputs, torch.Tensor) or not inputs:
        raise ConfigError(
            f"expected a tuple of example inputs to export {name} with, found "
            f"{type(inputs).__name__ if len(inputs) else 'none'}: compile(module, (x,))"
        )
    # Not the module itself: leaving training, and a run of its forward, may write to it.
    module = _copied(module, name)
    try:
        program = torch.export.export(module.eval(), tuple(inputs))
    except Exception as error:  # whatever the module raises, and torch.export's own
        raise ConfigError(
            f"expected {name} and example inputs that torch.export takes, found {first_sentence(error)}"
        ) from error
    path = folder / f"{re.sub(r'[^A-Za-z0-9_]', '_', name)}.pt2"
    torch.export.save(program, path)
    return path


def _copied(module: Any, name: str) -> Any:
    """Return a copy of an nn.Module that shares nothing with it; raises ConfigError where Python cannot copy it."""
    import torch

    results = {  # of autograd, as a normalized weight after a run, which deepcopy refuses
        id(value): value.detach().clone()
        for part in module.modules()
        for value in vars(part).values()
        if isinstance(value, torch.Tensor) and not value.is_leaf
    }
    try:
        return copy.deepcopy(module, results)
    except Exception as error:  # whatever the module's attributes raise
        raise ConfigError(
            f"expected {name} to be a module that copy.deepcopy takes, as a copy is exported, found "
            f"{first_sentence(error)}. Leave that attribute out, or export the module and compile the file: "
            "torch.export.save(torch.export.export(module.eval(), inputs), 'network.pt2')"
        ) from error
