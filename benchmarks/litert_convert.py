"""Convert a network of file_networks.py for LiteRT; run by the Python of an environment that has its converter.

    python litert_convert.py NAME BATCH FILE.tflite

The converter asks for other versions of packages than the project does, so it gets an environment of its own, whose
Python files.py is given by --litert-python: `pip install torch==2.13.0 litert-torch==0.10.0 transformers==5.23.0`. The
weights are drawn by a seed and so are those of model.onnx; a difference would show in the outputs.
"""

from __future__ import annotations

import sys

import litert_torch
from file_networks import FILES


def main() -> None:
    name, batch, file = sys.argv[1:]
    network = FILES[name]
    tensors = network.tensors(int(batch), seed=0)
    litert_torch.convert(network.module(), tensors).export(file)


if __name__ == "__main__":
    main()
