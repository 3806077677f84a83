"""Networks compiled to libraries, as Python objects: ``tencost.compile`` and ``tencost.load``.

    fast = tencost.compile("model.onnx")    what `tencost compile network=onnx network.path=model.onnx` writes, cached
    y = fast(x)                             NumPy arrays or PyTorch tensors, by position or by the inputs' names
    fast.save("model.so")                   the library, its description, samples and runners
    fast = tencost.load("model.so")

A call returns PyTorch tensors where one of its arguments is one, else NumPy arrays: one, or a tuple where the network
has several outputs. Arguments that lie at an address divisible by 64 are not copied (DLPack), nor are outputs, but for
those that are an input or a constant of the network, perhaps reshaped: to know them, the first call computes twice.
Several threads may call one object: a Relax VM may not be shared, so each thread has its own over the same executable.
A library of several sizes (``network.buckets``) runs the least that holds its inputs, and returns what is theirs. A
forked process may call it, too. Libraries of earlier versions for several cores have TVM's pool of threads, which is
not there after a fork: such a process calls them in threads of their own.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tencost.config import HardwareConfig
from tencost.errors import ConfigError, TuneError
from tencost.networks.inputs import Array
from tencost.tune.buckets import Buckets, entry, front, pad_array
from tencost.tune.library_export import library_files
from tencost.tune.reporting import native_messages_to
from tencost.workers import threads
from tencost.workers.hardware import check_runnable

_ALIGNMENT = 64
"""Bytes. TVM's code loads vectors from addresses that it takes to be divisible by it."""
_DESCRIBED = {"inputs", "outputs", "cores", "tvm"}
_NO_SAMPLES = (
    OSError, ValueError, KeyError, TypeError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What NumPy raises for a file that is not there, or no .npz any more."""
_PROCESS = os.getpid()
"""The process that imported this module; another one was forked from it."""


@dataclass(frozen=True)
class TensorSignature:
    """An input or output.

    Attributes:
        name: as the network's source calls it.
        shape: sizes; "n" where the library has several (network.buckets).
        dtype: NumPy's name of the type of its numbers.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype} [{', '.join(map(str, self.shape))}]"

    @classmethod
    def of(cls, described: Mapping[str, Any], axes: Sequence[int]) -> TensorSignature:
        """Return what a library's description says of a tensor, some of whose axes have a size of its buckets."""
        shape = [int(size) for size in described["shape"]]
        sizes = ("n" if axis in axes else size for axis, size in enumerate(shape))
        return cls(str(described["name"]), tuple(sizes), np.dtype(described["dtype"]).name)


class CompiledNetwork:
    """A library of `tencost compile`, ready to be called; see the module's text.

    Attributes:
        path: the library.
        inputs, outputs: in the order of arguments and results.
        buckets: the sizes that it was compiled for, where there are several.
    """

    def __init__(self, path: Path) -> None:
        """Load a library and its description.

        Raises:
            TuneError: one of them is missing or damaged, or the library is for another kind of CPU or another TVM.
            HardwareError: its programs use instruction sets that this host lacks.
        """
        import tvm

        self.path = path
        description = _description(path)
        self._identity = _identity(path)
        self.inputs, self.outputs, self.buckets, self._cores = _signatures(description, path)
        # The dynamic linker maps a library that was cut off, and the process crashes where it reads on.
        if "sha256" in description and description["sha256"] != file_digest(path).hex():
            raise TuneError(
                f"{path}: expected the library that {path.with_suffix('.json').name} describes, found another or a "
                "part of it. Copy both again, or compile again"
            )
        self._has_pool_of_tvm = self._cores > 1 and not description.get("own_threads")
        if self._has_pool_of_tvm:
            for variable, count in threads.variables(self._cores).items():
                os.environ.setdefault(variable, str(count))
        try:
            if target := description.get("target"):
                check_runnable(HardwareConfig(name=str(description.get("hardware")), target=target))
            self._executable = _executable(path)
        except (OSError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise TuneError(
                f"{path}: expected a library that `tencost compile` wrote for TVM {description['tvm']}, found what TVM "
                f"{tvm.__version__} cannot load ({str(error).partition(chr(10))[0]}). Compile it again"
            ) from error
        self._of_thread = threading.local()
        self._borrowed: dict[str, list[bool]] = {}

    def __call__(self, /, *arrays: Any, **named: Any) -> Any:
        """Run the network once.

        Args:
            arrays: the first inputs, in their order.
            named: the others, by name.

        Raises:
            TypeError: an input is missing, unknown, of another type of numbers, or a PyTorch tensor that is not dense.
            ValueError: an input of another shape, or of a size that the library cannot run.
            IndexError: an id lies outside the table that it is looked up in.
        """
        arguments = dict(zip((signature.name for signature in self.inputs), arrays, strict=False))
        unknown = sorted(named.keys() - {signature.name for signature in self.inputs})
        if len(arrays) > len(self.inputs) or unknown or arguments.keys() & named.keys():
            expected = ", ".join(f"{signature.name}: {signature}" for signature in self.inputs)
            raise TypeError(
                f"{self.path.name}: expected the inputs {expected}, each once; found {len(arrays)} by position and "
                f"{', '.join(named) or 'none'} by name"
            )
        arguments |= named
        values = [self._array(signature, arguments) for signature in self.inputs]
        if self._has_pool_of_tvm and os.getpid() != _PROCESS:
            results = _threads_of_fork(os.getpid()).submit(self._run, values).result()
        else:
            results = self._run(values)
        if any(
            type(argument).__module__.partition(".")[0] == "torch"
            for argument in arguments.values()
        ):
            from torch.utils.dlpack import from_dlpack

            outputs: tuple[Any, ...] = tuple(map(from_dlpack, results))
        else:
            outputs = tuple(map(np.from_dlpack, results))
        if self.buckets is not None:
            size = self._size(values)
            if size not in self.buckets.sizes:  # padded
                outputs = tuple(
                    front(output, axes, size)
                    for output, axes in zip(outputs, self.buckets.outputs, strict=True)
                )
        return outputs[0] if len(outputs) == 1 else outputs

    def save(self, to: str | Path) -> Path:
        """Write the library, with its description, samples and runners beside it; return its absolute path.

        Where that fails, a library that was there stays.

        Raises:
            ConfigError: the name does not end in .so.
            TuneError: the files that were loaded are not there any more.
            OSError: the files cannot be written.
        """
        library = Path(to).expanduser().resolve()
        if library.suffix != ".so":
            raise ConfigError(f"expected the name of a library, which ends in .so; found {to}")
        inputs = self.sample_inputs()
        if _identity(self.path) != self._identity:
            raise TuneError(
                f"expected {self.path} as it was loaded, found another library in its place. Load that: "
                f"tencost.load({str(self.path)!r})"
            )
        with library_files(library, inputs) as partial:
            for suffix in (".json", ".npz", ".so"):
                shutil.copyfile(self.path.with_suffix(suffix), partial[suffix])
        return library

    def sample_inputs(self) -> list[Array]:
        """Return the inputs that it was compared with, from its .npz; raises TuneError where that is not whole."""
        try:
            path = self.path.with_suffix(".npz")
            # NumPy leaves a file open that is no archive.
            with zipfile.ZipFile(path), np.load(path) as samples:
                arrays = dict(samples)
            self.path.stat()
            return [arrays[f"input_{number}"] for number in range(len(self.inputs))]
        except _NO_SAMPLES as error:
            raise TuneError(
                f"expected {self.path.name} and its samples as they were loaded from {self.path.parent}, found "
                f"{error}. Load it from where it is"
            ) from error

    def __repr__(self) -> str:
        inputs = ", ".join(f"{signature.name}: {signature}" for signature in self.inputs)
        outputs = ", ".join(map(str, self.outputs))
        return f"<CompiledNetwork {self.path.name} ({inputs}) -> {outputs}>"

    def __reduce__(self) -> Any:
        return load, (self.path,)

    def _machine(self) -> Any:
        import tvm
        from tvm import relax

        if not hasattr(self._of_thread, "machine"):
            self._of_thread.machine = relax.VirtualMachine(self._executable, tvm.cpu())
        return self._of_thread.machine

    def _run(self, arrays: Sequence[Array]) -> Any:
        """Call the function of the least size that holds the inputs; return TVM's tensors."""
        function = "main"
        if self.buckets is not None:
            size = self._size(arrays)
            bucket = self.buckets.bucket(size)
            if bucket is None:
                expected = f"at most {self.buckets.sizes[-1]}" if self.buckets.padded else "one of"
                raise ValueError(
                    f"{self.path.name}: expected inputs of a size that it was compiled for, {expected} "
                    f"({', '.join(map(str, self.buckets.sizes))}), found {size}. Compile it for that, too: "
                    f"network.buckets=[...]"
                )
            function = entry(bucket, self.buckets.sizes)
            arrays = [
                pad_array(array, axes, bucket)
                for array, axes in zip(arrays, self.buckets.inputs, strict=True)
            ]
        return self._own(function, list(map(runtime_tensor, arrays)))

    def _own(self, function: str, arguments: Sequence[Any]) -> list[Any]:
        """Call a function; copy the outputs that lie in the memory of an input or of the library's constants.

        These are the ones that a second call gives in the same place though the first one's are still there.
        """
        import tvm

        call = self._machine()[function]
        results = list(call(*arguments))
        if function not in self._borrowed:
            pairs = zip(results, call(*arguments), strict=True)
            self._borrowed[function] = [_address(one) == _address(other) for one, other in pairs]
        borrowed = zip(results, self._borrowed[function], strict=True)
        return [
            tensor.copyto(tvm.cpu()) if is_not_ours else tensor for tensor, is_not_ours in borrowed
        ]

    def _size(self, arrays: Sequence[Array]) -> int:
        """Return the size of the inputs along the axes that the buckets are of."""
        assert self.buckets is not None
        sizes = [
            (signature.name, array.shape[axis])
            for signature, array, axes in zip(self.inputs, arrays, self.buckets.inputs, strict=True)
            for axis in axes
        ]
        if len({size for _, size in sizes}) != 1:
            listed = ", ".join(f"{name} {size}" for name, size in sizes)
            raise ValueError(f"{self.path.name}: expected one size n of all inputs, found {listed}")
        return sizes[0][1]

    def _array(self, signature: TensorSignature, arguments: dict[str, Any]) -> Array:
        """Return an argument as an array, once it is the input that is expected."""
        if signature.name not in arguments:
            raise TypeError(
                f"{self.path.name}: expected the input {signature.name}, {signature}; found none"
            )
        argument = arguments[signature.name]
        if isinstance(argument, np.ndarray) or not hasattr(argument, "resolve_neg"):
            array = np.asarray(argument)
        else:
            try:
                array = argument.detach().cpu().resolve_conj().resolve_neg().numpy()
            except (TypeError, RuntimeError) as error:  # bfloat16, sparse, quantized, without data
                raise TypeError(
                    f"{self.path.name}, input {signature.name}: expected a dense tensor of {signature.dtype}, found "
                    f"{argument.dtype}, {argument.layout}, on {argument.device} ({error})"
                ) from error
        if array.dtype != np.dtype(signature.dtype):
            raise TypeError(
                f"{self.path.name}, input {signature.name}: expected numbers of {signature.dtype}, found {array.dtype}"
            )
        fits = len(array.shape) == len(signature.shape) and all(
            expected in ("n", size)
            for size, expected in zip(array.shape, signature.shape, strict=True)
        )
        if not fits or ("n" in signature.shape and not array.size):
            raise ValueError(
                f"{self.path.name}, input {signature.name}: expected the shape "
                f"[{', '.join(map(str, signature.shape))}], found {list(array.shape)}"
            )
        return array


def runtime_tensor(array: Array) -> Any:
    """Return an array as TVM's tensor: the same memory where it is aligned and contiguous, else a copy."""
    import tvm

    is_shared = array.flags.c_contiguous and array.flags.writeable
    if is_shared and array.ctypes.data % _ALIGNMENT == 0:
        return tvm.runtime.from_dlpack(array)
    # Unlike ascontiguousarray, it leaves a single number without axes.
    return tvm.runtime.tensor(np.asarray(array, order="C"))


def load(path: str | Path) -> CompiledNetwork:
    """Return a library that `tencost compile`, `tencost tune --to` or :meth:`CompiledNetwork.save` wrote.

    Raises:
        TuneError, HardwareError: see :class:`CompiledNetwork`.
    """
    return CompiledNetwork(absolute_path(path))


def _address(tensor: Any) -> int:
    """Return where a tensor of TVM lies."""
    return int(np.from_dlpack(tensor).ctypes.data)


@cache
def _threads_of_fork(_process: int) -> ThreadPoolExecutor:
    """Return threads of a forked process: each has a pool of TVM of its own."""
    return ThreadPoolExecutor(thread_name_prefix="tencost-fork")


def absolute_path(path: str | Path) -> Path:
    """Return where a path of a user leads; raises ConfigError for links in a circle."""
    try:
        return Path(path).expanduser().resolve()
    except (OSError, RuntimeError) as error:  # links in a circle, ~ of nobody
        raise ConfigError(f"expected a file at {path}, found none: {error}") from error


def _identity(path: Path) -> tuple[int, int]:
    """Return device and inode of a file."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino


def file_digest(path: Path) -> bytes:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


_loaded: dict[Path, tuple[int, int]] = {}
"""Library that this process has loaded -> device and inode of the file that it was then."""
_loading = threading.Lock()
"""Held while stderr, which all threads share, is turned to a file."""


@contextmanager
def _without_scope_messages() -> Iterator[None]:
    """Drop the line "Scope Loaded" that TVM warns with for each tensor of weights; print all other lines afterwards."""
    try:
        os.fstat(2)
    except OSError:  # a daemon may have closed stderr
        has_stderr = False
    else:
        has_stderr = True
    if not has_stderr:
        yield
        return
    with _loading, tempfile.TemporaryDirectory(prefix="tencost-load-") as scratch:
        messages = Path(scratch) / "stderr"
        try:
            with native_messages_to(messages):
                yield
        finally:
            lines = messages.read_bytes().splitlines(keepends=True)
            os.write(2, b"".join(line for line in lines if b"Scope Loaded" not in line))


def _executable(path: Path) -> Any:
    """Load a library, a copy of it where another file was loaded by its name: dlopen would give that one again."""
    import tvm

    identity = _identity(path)
    if _loaded.setdefault(path, identity) == identity:
        with _without_scope_messages():
            return tvm.runtime.load_module(str(path))
    with tempfile.TemporaryDirectory(prefix="tencost-load-") as scratch:
        copy = shutil.copy(path, scratch)
        with _without_scope_messages():
            return tvm.runtime.load_module(copy)


def _description(path: Path) -> dict[str, Any]:
    """Return what a library's .json says.

    Raises:
        TuneError: there is no library, or no such file beside it.
    """
    if not path.is_file():
        raise TuneError(f"expected a library that `tencost compile` wrote at {path}, found none")
    reason = ""
    description: Any = {}
    try:
        description = json.loads(path.with_suffix(".json").read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error)
    if not isinstance(description, dict) or not description.keys() >= _DESCRIBED:
        raise TuneError(
            f"{path.with_suffix('.json')}: expected the description that `tencost compile` wrote beside the library, "
            f"found {reason or 'something else'}. Copy it with the library, or compile again"
        )
    return description


def _signatures(
    description: dict[str, Any], path: Path
) -> tuple[tuple[TensorSignature, ...], tuple[TensorSignature, ...], Buckets | None, int]:
    """Return the inputs, the outputs, the buckets and the number of cores that a description says; raises TuneError."""
    try:
        tensors = [description[which] for which in ("inputs", "outputs")]
        shapes = [[tensor["shape"] for tensor in each] for each in tensors]
        buckets = (
            Buckets.read(description["buckets"], *shapes) if "buckets" in description else None
        )
        axes = (
            [((),) * len(each) for each in tensors]
            if buckets is None
            else [buckets.inputs, buckets.outputs]
        )
        inputs, outputs = (
            tuple(
                TensorSignature.of(tensor, axes_of_tensor)
                for tensor, axes_of_tensor in zip(each, of_each, strict=True)
            )
            for each, of_each in zip(tensors, axes, strict=True)
        )
        return inputs, outputs, buckets, int(description["cores"])
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        raise TuneError(
            f"{path.with_suffix('.json')}: expected name, shape and dtype of each input and output and a number of "
            f"cores, found something else ({error}). Copy it with the library, or compile again"
        ) from error
