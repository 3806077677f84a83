"""A compiled network as one library with its weights, and programs that run it with TVM's runtime alone.

Beside <name>.so lie, for somebody who has nothing of tencost:

    <name>.json   {"network", "hardware", "target", "cores", "database", "tasks", "tuned_tasks", "tvm", "sha256",
                   "own_threads": whether the library has those of workers/loop_threads.c (of several cores),
                   "inputs": [{"name", "shape", "dtype"}, ...], "outputs": [...],
                   "buckets": {"sizes", "inputs", "outputs", "padded"}, of network.buckets: functions main_<size>, the
                   largest main, whose shapes are the above; the axes of that size in each input and output}
    <name>.npz    the inputs that the network was imported with, and what PyTorch or ONNX Runtime computes for them:
                  input_<number> and expected_<number>
    <name>.py     runs it on the arrays of an .npz; without one on those of <name>.npz, and tells the difference
    <name>.cc     the same in C++: raw values in, raw values out; its first lines say how it is compiled
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from rich.console import Console
from tvm.support.cc import get_cc

from tencost import signals
from tencost.config import HardwareConfig, RunnerKind
from tencost.errors import ConfigError, HardwareError, TuneError
from tencost.networks.network import Array, Network
from tencost.networks.source import first_sentence
from tencost.tune.buckets import Buckets
from tencost.tune.reporting import native_messages_to, say
from tencost.workers.remote import linking
from tencost.workers.threads import threads_of_library
from tencost.writing import scratch_beside, whole_files

DLPACK_CODES = {"int": "kDLInt", "uint": "kDLUInt", "float": "kDLFloat", "bool": "kDLBool"}
"""NumPy's kinds of numbers in C++."""
_CODE_BYTES = 1 << 18
"""Room for the machine code of a function, most of which have a fifth of it."""


@dataclass(frozen=True)
class LibraryOrigin:
    """Where a library's programs are from: a database, the network's workloads, those with a program of it."""

    database: str
    tasks: int
    tuned: int

    def __str__(self) -> str:
        if not self.tuned:
            return f"all {self.tasks} tasks by rule"
        if self.tuned == self.tasks:
            return f"all {self.tasks} tasks tuned"
        return f"{self.tuned} of {self.tasks} tasks tuned, the others by rule"


class LibraryExport:
    """`tencost tune --to model.so`: the best network so far, written at the end and wherever Ctrl-C ends a run.

    Args:
        to: the library; None: nowhere.
        console: gets the messages.

    Attributes:
        is_written: whether this run has written it.
        given_up: whether a second Ctrl-C kept it from being written.
    """

    def __init__(self, to: Path | None, console: Console) -> None:
        self.to = to
        self.is_written = self.given_up = False
        self._console = console

    def write(
        self, network: Network, hardware: HardwareConfig, built: Any, origin: LibraryOrigin
    ) -> None:
        """Write a compiled network, whose output agreed, with its runners; raises TuneError as `write_library`."""
        if self.to is None:
            return
        write_library(self.to, network, hardware, built, origin)
        self.is_written = True
        runner = self.to.with_suffix(".py")
        say(self._console, f"{self.to}: {origin}; run it: python {runner}")

    def say_why_not(self, why: str) -> None:
        """Say why nothing was written, where something should have been."""
        if self.to is not None and not self.is_written:
            say(self._console, f"{self.to} is not written: {why}")

    @contextmanager
    def holding_interrupts(self) -> Iterator[None]:
        """Hold the first Ctrl-C back until the library is written; the second gives it up. Without one, hold nothing.

        TVM makes a RuntimeError of what is raised in a function that it calls: see :func:`signals.not_swallowed`.

        Raises:
            KeyboardInterrupt: at the block's end for the first, at once for the second.
        """
        if self.to is None:
            with signals.not_swallowed():
                yield
            return
        pressed: list[bool] = []

        def handle() -> None:
            if pressed:
                self.given_up = True
                raise KeyboardInterrupt
            pressed.append(True)
            say(self._console, f"writing {self.to} first; {signals.name()} again gives it up")

        with signals.handled(handle):
            try:
                yield
            except Exception:
                if self.given_up:
                    raise KeyboardInterrupt from None
                raise
        if pressed:
            raise KeyboardInterrupt


def check_place(library: Path) -> None:
    """Refuse, before minutes of compiling, a place where nothing can be written."""
    if library.suffix != ".so" or library.is_dir():
        place = f"the folder {library}" if library.is_dir() else library
        raise ConfigError(f"--to: expected the name of a shared library, model.so, found {place}")
    try:
        with scratch_beside(library):
            pass
    except OSError as error:
        raise ConfigError(
            f"--to: expected a folder that can be written to at {library.parent}, found another: {error}"
        ) from error


def check_linker(hardware: HardwareConfig) -> None:
    """Refuse hardware that the runners cannot run on, and a host that cannot link."""
    kind = hardware.target.get("kind")
    if kind != "llvm":
        raise HardwareError(
            f"expected a CPU (target kind llvm), as the runners are for CPUs; found {kind!r} as that of hardware "
            f"{hardware.name!r}. Choose another: hardware=local"
        )
    cc, triple = _cc(hardware), str(hardware.target.get("mtriple", ""))
    if cc:
        linking(cc)
        return
    is_remote = hardware.runner is RunnerKind.rpc
    if is_remote and triple and not triple.startswith(platform.machine()):
        raise HardwareError(
            f"expected a compiler that links for {triple}, found hardware.cc empty, and this host is "
            f"{platform.machine()}. Name a cross compiler: hardware.cc={triple}-g++"
        )
    compiler = get_cc()
    if not compiler or shutil.which(compiler) is None:
        raise HardwareError(
            f"expected a C++ compiler that links the library, found {compiler or 'none'}. Install g++ or clang, or "
            "name one: CXX=..."
        )


def _cc(hardware: HardwareConfig) -> str:
    """Return what links for a device elsewhere; on the device itself its own compiler does, whatever is described."""
    return hardware.cc if hardware.runner is RunnerKind.rpc else ""


def write_library(
    library: Path,
    network: Network,
    hardware: HardwareConfig,
    built: Any,
    origin: LibraryOrigin,
    buckets: Buckets | None = None,
) -> None:
    """Write a compiled network as a library with its runners; raises TuneError, and what was there stays.

    Args:
        library: the .so.
        network: the largest size, where it was compiled for several.
        hardware: that it was compiled for.
        built: TVM's executable.
        origin: of its programs.
        buckets: the sizes, where there are several.
    """
    try:
        with native_messages_to(Path(os.devnull)):
            _write(library, network, hardware, built, origin, buckets)
    except (OSError, RuntimeError) as error:  # TVM's linker raises the latter
        said = str(error).removeprefix("Compilation error:")
        reason = first_sentence(TuneError(said))
        raise TuneError(
            f"expected to write {library} and its runners, found {reason}. What was there is kept; mend that, or write "
            "elsewhere: --to"
        ) from error


def _write(
    library: Path,
    network: Network,
    hardware: HardwareConfig,
    built: Any,
    origin: LibraryOrigin,
    buckets: Buckets | None,
) -> None:
    """Write all files, the library last: where it is, the others are of it."""
    inputs = list(network.inputs.values())
    for name, array in zip(network.outputs, network.expected, strict=True):
        _dlpack_kind(array, f"output {name} of {library.name}")
    about = {
        "network": network.name,
        "hardware": hardware.name,
        "target": hardware.target,
        "cores": hardware.cores,
        "own_threads": bool(threads_of_library(hardware.cores)),
        "database": origin.database,
        "tasks": origin.tasks,
        "tuned_tasks": origin.tuned,
        "tvm": tvm.__version__,
        "inputs": _signature(list(network.inputs), inputs),
        "outputs": _signature(network.outputs, network.expected),
    }
    if buckets is not None:
        about["buckets"] = asdict(buckets)
    samples = {f"input_{number}": array for number, array in enumerate(inputs)}
    samples |= {f"expected_{number}": array for number, array in enumerate(network.expected)}
    _check_room(built)
    with library_files(library, inputs) as partial:
        with partial[".npz"].open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **samples)
        built.export_library(str(partial[".so"]), **linking(_cc(hardware), hardware.cores))
        with partial[".so"].open("rb") as file:
            about["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
        partial[".json"].write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _check_room(built: Any) -> None:
    """Refuse a temporary folder that may not hold the object files: LLVM ends the process where it cannot write."""
    weights, _, functions = built.stats().partition("Globals")
    shapes = re.findall(r"(?<!shapetuple)\[([\d, ]+)\]", weights)
    size = 4 * sum(math.prod(map(int, shape.split(", "))) for shape in shapes)
    size += _CODE_BYTES * (1 + functions.count(","))
    try:
        with tempfile.TemporaryFile() as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        raise TuneError(
            f"expected room for {size / 1e6:.1f} MB of the library's parts in {tempfile.gettempdir()}, found {error}. "
            "Make room there, or name another folder: TMPDIR=..."
        ) from error


@contextmanager
def library_files(library: Path, inputs: Sequence[Array]) -> Iterator[dict[str, Path]]:
    """Yield, by suffix, paths to write a library, its .json and .npz to; its runners are written, too.

    All is written beside what is there, which stays where the block raises. At the end the older library goes, then the
    files take their places, the library last: where it is, the others are of it.

    Args:
        library: the .so.
        inputs: arrays whose shapes and types its inputs have.
    """
    suffixes = (".so", ".json", ".npz", ".py", ".cc")
    with whole_files(*map(library.with_suffix, suffixes)) as paths:
        partial = dict(zip(suffixes, paths, strict=True))
        partial[".py"].write_text(python_runner(library.stem), encoding="utf-8")
        partial[".cc"].write_text(cpp_runner(library.stem, inputs), encoding="utf-8")
        yield partial
        library.unlink(missing_ok=True)


def _signature(names: Sequence[str], arrays: Sequence[Array]) -> list[dict[str, Any]]:
    return [
        {"name": name, "shape": list(array.shape), "dtype": array.dtype.name}
        for name, array in zip(names, arrays, strict=True)
    ]


def _dlpack_kind(array: Array, where: str) -> str:
    """Return the word that DLPACK_CODES has for an array's type; raises TuneError where it has none."""
    kind = "bool" if array.dtype == np.bool_ else array.dtype.name.rstrip("0123456789")
    if kind not in DLPACK_CODES:
        raise TuneError(
            f"{where}: expected numbers of {', '.join(DLPACK_CODES)}, which NumPy's arrays and C++ have, found "
            f"{array.dtype}. Export the network with a Cast from and to float32 at its ends; what is between them may "
            f"be {array.dtype}"
        )
    return kind


def python_runner(name: str) -> str:
    """Return a program in Python that runs a library, without its suffix."""
    return _PYTHON.replace("@name@", name)


def cpp_runner(name: str, inputs: Sequence[Array]) -> str:
    """Return a program in C++ that runs a library on files of raw values, one an input, and writes its outputs so.

    Args:
        name: of the library, without its suffix.
        inputs: arrays whose shapes and types its inputs have.

    Raises:
        TuneError: an input of a type that C++ has no word for here.
    """
    lines = []
    for number, array in enumerate(inputs):
        kind = _dlpack_kind(array, f"input {number} of {name}.so")
        shape, bits = ", ".join(map(str, array.shape)), 8 * array.dtype.itemsize
        lines.append(
            f"  inputs.push_back(read(argv[{number + 1}], {{{shape}}}, {{{DLPACK_CODES[kind]}, {bits}, 1}}));"
        )
    parts = {
        "@stem@": name,
        "@count@": str(len(inputs)),
        "@files@": "".join(f" input_{number}.bin" for number in range(len(inputs))),
        "@inputs@": "\n".join(lines),
    }
    program = _CPP
    for placeholder, text in parts.items():
        program = program.replace(placeholder, text)
    return program


_PYTHON = '''\
"""Runs @name@.so: python @name@.py [inputs.npz [outputs.npz]]; arrays input_0, input_1, ... as @name@.json says."""
import os, pathlib, sys
sys.modules.setdefault("torch", None)  # TVM would import PyTorch, if there is one: two thirds of the start
import numpy, tvm
from tvm import relax
if sys.modules["torch"] is None: del sys.modules["torch"]
here = pathlib.Path(__file__).resolve().with_suffix("")
arrays = numpy.load(sys.argv[1] if sys.argv[1:] else f"{here}.npz")
terminal = os.dup(2)
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # TVM's runtime warns of all that it loads
try: machine = relax.VirtualMachine(tvm.runtime.load_module(f"{here}.so"), tvm.cpu())
finally: os.dup2(terminal, 2)
inputs = [tvm.runtime.tensor(arrays[f"input_{number}"]) for number in range(sum("input" in name for name in arrays))]
outputs = [output.numpy() for output in machine["main"](*inputs)]
if sys.argv[2:]: numpy.savez(sys.argv[2], **{f"output_{number}": output for number, output in enumerate(outputs)})
for number, output in enumerate(outputs):
    expected = arrays[f"expected_{number}"] if f"expected_{number}" in arrays else None
    difference = "" if expected is None else f", {abs(output.astype(float) - expected).max():.2g} from what is expected"
    print(f"output {number}: {output.dtype} {output.shape}{difference}")
'''

_CPP = """\
/*
P=$(python -c 'from importlib.util import find_spec as f; print(f("tvm").submodule_search_locations[0])')
g++ -std=c++17 -O2 @stem@.cc -o @stem@ -I$P/include -I${P}_ffi/include -L$P/lib -L${P}_ffi/lib \\
    -ltvm_runtime -ltvm_ffi -Wl,-rpath,$P/lib:${P}_ffi/lib
python -c "import numpy; [a.tofile(f'{n}.bin') for n, a in numpy.load('@stem@.npz').items()]"
./@stem@@files@

It reads raw values (C order; @stem@.json has shapes and types) and writes output_0.bin, ... into the working folder.
*/
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>
namespace ffi = tvm::ffi;
struct Memory {
  void AllocData(DLTensor* t) { t->data = std::aligned_alloc(64, (ffi::GetDataSize(*t) / 64 + 1) * 64); }
  void FreeData(DLTensor* t) { std::free(t->data); }
};
ffi::Any read(const char* path, ffi::Shape shape, DLDataType type) {
  ffi::Tensor tensor = ffi::Tensor::FromNDAlloc(Memory(), shape, type, DLDevice{kDLCPU, 0});
  long size = ffi::GetDataSize(tensor);
  std::ifstream file(path, std::ios::binary);
  if (!file.read(static_cast<char*>(tensor.data_ptr()), size) || file.peek() != EOF) {
    std::fprintf(stderr, "%s: expected %ld bytes\\n", path, size);
    std::exit(2);
  }
  return tensor;
}
int main(int argc, char** argv) {
  if (argc != @count@ + 1) return std::fprintf(stderr, "expected @count@ files of raw values\\n"), 2;
  std::string here = argv[0];
  here = here.find('/') == std::string::npos ? "./" : here.substr(0, here.rfind('/') + 1);
  ffi::Module machine =
      ffi::Module::LoadFromFile(here + "@stem@.so")->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
  machine->GetFunction("vm_initialization").value()(static_cast<int>(kDLCPU), 0, 2);
  std::vector<ffi::Any> inputs;
@inputs@
  std::vector<ffi::AnyView> views(inputs.begin(), inputs.end());
  ffi::Any found;
  machine->GetFunction("main").value().CallPacked(views.data(), views.size(), &found);
  int number = 0;
  for (ffi::Tensor output : found.cast<ffi::Array<ffi::Tensor>>())
    std::ofstream("output_" + std::to_string(number++) + ".bin", std::ios::binary)
        .write(static_cast<char*>(output.data_ptr()), ffi::GetDataSize(output));
}
"""
