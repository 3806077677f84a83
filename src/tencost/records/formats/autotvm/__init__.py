"""AutoTVM logs into the store and back; lines.py has the grammar."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

from tencost.records.formats.autotvm.lines import format_line, looks_alike, parse_line
from tencost.records.formats.autotvm.rows import AutotvmRows
from tencost.records.formats.autotvm.writing import from_row, write_lines
from tencost.records.reading.protocol import BATCH_ROWS, About, Batch, LogFormat, read_lines

__all__ = ["FORMAT", "AutotvmFormat", "format_line", "from_row", "parse_line", "write_lines"]

_EXAMPLE = """\
{"input": ["cuda -model=v100", "dense.cuda", [["TENSOR", [1, 64], "float32"], ["TENSOR", [8, 64], "float32"]], {}], \
"config": {"index": 3, "code_hash": null, "entity": [["tile_k", "sp", [-1, 8]], ["unroll", "ot", 0]]}, \
"result": [[1.5e-05, 1.6e-05], 0, 0.2, 1638857347.4], "version": 0.2, "tvm_version": "0.8.dev0"}
{"input": ["cuda -model=v100", "dense.cuda", [["TENSOR", [1, 64], "float32"], ["TENSOR", [8, 64], "float32"]], {}], \
"config": {"index": 5, "code_hash": null, "entity": [["tile_k", "sp", [-1, 16]], ["unroll", "ot", 0]]}, \
"result": [[1000000000.0], 4, 10.0, 1638857349.1], "version": 0.2, "tvm_version": "0.8.dev0"}
{"i": ["cuda -model=v100", "topi_nn_dense", [["TENSOR", [1, 64], "float32"]], {}, ["dense", [1, 64, "float32"]], \
{"i": 7, "t": "direct", "c": null, "e": [["tile_k", "sp", [64, 1]]]}], "r": [[2e-05], 0, 0.3, 1538857347.0], "v": 0.1}
"""


class AutotvmFormat(LogFormat):
    """Reads AutoTVM logs of version 0.1 and 0.2."""

    example = MappingProxyType({"autotvm.log": _EXAMPLE})

    def recognizes(self, _path: Path, head: bytes) -> bool:
        """Say whether one of the head's lines has the keys and the task of an AutoTVM line."""
        return any(looks_alike(line) for line in head.split(b"\n"))

    def read(self, path: Path, about: About, batch_rows: int = BATCH_ROWS) -> Iterator[Batch]:
        return read_lines(path, about, batch_rows, AutotvmRows)


FORMAT = AutotvmFormat()
