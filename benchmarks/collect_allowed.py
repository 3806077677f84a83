"""What modules and traces contain that TVM itself makes: the evidence behind tencost.programs.trace.allowed.

    python benchmarks/collect_allowed.py network=bert_tiny network=gpt2 ...     fused modules and tasks of networks
    python benchmarks/collect_allowed.py <folder> ...       *workload*.json and *tuning_record*.json(.gz) below it

Prints JSON: every node type, operator, name of an attribute or annotation of the modules; every instruction kind,
annotation, tensor intrinsic of the traces; each sorted.
"""

from __future__ import annotations

import base64
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tencost.programs.trace.allowed import module_contents, trace_contents

Found = dict[str, set[str]]


def main(arguments: list[str]) -> None:
    found: Found = {}
    for argument in arguments:
        if argument.startswith("network="):
            for text in _network(argument):
                _add(found, module_contents(json.loads(text)))
            continue
        for path in sorted(Path(argument).rglob("*.json*")):
            if "workload" in path.name:
                for line in _lines(path):
                    _add(found, module_contents(json.loads(base64.b64decode(line[1])[8:])))
            elif "record" in path.name:
                for line in _lines(path):
                    _add(found, trace_contents(line[1][0]))
    sys.stdout.write(json.dumps({name: sorted(values) for name, values in found.items()}, indent=1))


def _add(found: Found, more: Found) -> None:
    for name, values in more.items():
        found.setdefault(name, set()).update(values)


def _lines(path: Path) -> Iterator[Any]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


def _network(override: str) -> Iterator[str]:
    from tvm.ir import save_json

    from tencost.config.composition import compose
    from tencost.networks.network import load_network

    network = load_network(compose([override])[0].network)
    yield str(save_json(network.mod))
    for task in network.tasks({"kind": "llvm", "num-cores": 1}):
        yield str(save_json(task.mod))


if __name__ == "__main__":
    main(sys.argv[1:])
