"""Programs that run a compiled network with TVM's runtime alone: what lies beside its library, in Python and C++."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tencost.errors import TuneError
from tencost.networks.network import Array
from tencost.workers import threads

DLPACK_CODES = {"int": "kDLInt", "uint": "kDLUInt", "float": "kDLFloat", "bool": "kDLBool"}
"""NumPy's kinds of numbers in C++."""


def python_runner(name: str, cores: int) -> str:
    """Return a program in Python that runs a library, without its suffix, on so many cores."""
    wanted = ", ".join(map(str, threads.variables(cores).items()))
    return _PYTHON.replace("@name@", name).replace("@environment@", wanted)


_PYTHON = '''\
"""Runs @name@.so: python @name@.py [inputs.npz [outputs.npz]]; arrays input_0, input_1, ... as @name@.json says."""
import os, pathlib, sys
for variable in (@environment@): os.environ.setdefault(*variable)
import numpy, tvm
from tvm import relax
here = pathlib.Path(__file__).resolve().with_suffix("")
arrays = numpy.load(sys.argv[1] if sys.argv[1:] else f"{here}.npz")
machine = relax.VirtualMachine(tvm.runtime.load_module(f"{here}.so"), tvm.cpu())
inputs = [tvm.runtime.tensor(arrays[f"input_{number}"]) for number in range(sum("input" in name for name in arrays))]
outputs = [output.numpy() for output in machine["main"](*inputs)]
if sys.argv[2:]: numpy.savez(sys.argv[2], **{f"output_{number}": output for number, output in enumerate(outputs)})
for number, output in enumerate(outputs):
    expected = arrays[f"expected_{number}"] if f"expected_{number}" in arrays else None
    told = "" if expected is None else f", {abs(output.astype(float) - expected).max():.2g} from what is expected"
    print(f"output {number}: {output.dtype} {output.shape}{told}")
'''


def cpp_runner(name: str, inputs: Sequence[Array], cores: int = 1) -> str:
    """Return a program in C++ that runs a library on files of raw values, one an input, and writes its outputs so.

    Args:
        name: of the library.
        inputs: arrays whose shapes and types its inputs have.
        cores: that it runs on.

    Raises:
        TuneError: an input of a type that C++ has no word for here.
    """
    lines = []
    wanted = "\n".join(
        f'  setenv("{key}", "{value}", 0);' for key, value in threads.variables(cores).items()
    )
    for number, array in enumerate(inputs):
        kind = "bool" if array.dtype == np.bool_ else array.dtype.name.rstrip("0123456789")
        if kind not in DLPACK_CODES:
            raise TuneError(
                f"input {number} of {name}: expected numbers of {', '.join(DLPACK_CODES)}, found {array.dtype}"
            )
        shape = ", ".join(map(str, array.shape))
        bits = 8 * array.dtype.itemsize
        lines.append(
            f"  inputs.push_back(read(argv[{number + 1}], {{{shape}}}, {{{DLPACK_CODES[kind]}, {bits}, 1}}));"
        )
    return (
        _CPP.replace("@stem@", name.removesuffix(".so"))
        .replace("@count@", str(len(inputs)))
        .replace("@files@", "".join(f" input_{number}.bin" for number in range(len(inputs))))
        .replace("@inputs@", "\n".join(lines))
        .replace("@environment@", wanted)
    )


_CPP = """\
/*
P=$(python -c 'import tvm; print(tvm.__path__[0])')
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
@environment@
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
