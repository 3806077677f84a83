"""A process that builds networks, writes their graphs and times them with ONNX Runtime: one at a time, as asked.

    python -m tencost.measure.networks.timing '{"cpus": [3], "threads": 1}'

A request is a line of JSON on standard input, the answer a line on standard output (what libraries print goes to
standard error):

    {"name", "family", "definition", "warm_up", "min_runs", "max_runs", "seconds", "spread", "clock"}
    {"status": "ok", "runs_ms": [...], "cpu_ms": [...], "operators": [...], "columns": [[16 numbers], ...],
     "edges": [[...], [...]], "foreign": {...}, "other": {...}} or {"status": "failed", "error": "..."}

`definition` is a Variant's, or {"path": "network.onnx"} of a file whose shapes are fixed. It ends when its input does,
whatever it is doing then.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from tencost.errors import TencostError
from tencost.networks.graph.canonical import canonical_network
from tencost.networks.graph.operators import OPERATORS
from tencost.networks.inputs import draw_array
from tencost.networks.onnx_graph import read_model
from tencost.networks.variants.variants import Variant


def main() -> None:
    """Answer requests until standard input ends."""
    settings = json.loads(sys.argv[1])
    if settings["cpus"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, settings["cpus"])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    while True:
        answer = _answer(json.loads(requests.get()), settings["threads"])
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _listen(requests: queue.Queue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


def _answer(request: dict[str, Any], threads: int) -> dict[str, Any]:
    try:
        model = _model(request)
        network = canonical_network(model, name=request["name"], family=request["family"])
        wall, cpu = _time(model, threads, request)
    except TencostError as error:
        return {"status": "failed", "error": str(error)}
    except (RuntimeError, ValueError, TypeError, MemoryError) as error:
        # PyTorch's, transformers' and ONNX Runtime's errors derive from these.
        first_line = str(error).partition("\n")[0][:300]
        return {"status": "failed", "error": f"{type(error).__name__}: {first_line}"}
    graph = network.graphs
    return {
        "status": "ok",
        "runs_ms": [round(1e3 * seconds, 4) for seconds in wall],
        "cpu_ms": [round(1e3 * seconds, 4) for seconds in cpu],
        "operators": [OPERATORS[code] for code in graph.operator],
        "columns": graph.columns.tolist(),
        "edges": graph.edges.tolist(),
        "foreign": network.foreign,
        "other": network.other,
    }


def _model(request: dict[str, Any]) -> Any:
    import torch

    torch.set_num_threads(1)
    definition = request["definition"]
    if "path" in definition:
        return read_model(Path(definition["path"]))
    return Variant(request["name"], request["family"], definition).to_onnx()


def _time(model: Any, threads: int, request: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Return (seconds of each run, the CPU's seconds of each).

    At least so many runs, until the median of what the chosen clock says is known well enough or time is up.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # fatal: everything else is raised as well
    # Random weights may fade to numbers that take the CPU a hundred times as long.
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = _feeds(session)
    for _ in range(request["warm_up"]):
        session.run(None, feeds)
    wall: list[float] = []
    cpu: list[float] = []
    runs = cpu if request["clock"] == "cpu" else wall
    started = time.perf_counter()
    while len(runs) < request["max_runs"]:
        begun, begun_cpu = time.perf_counter(), time.process_time()
        session.run(None, feeds)
        cpu.append(time.process_time() - begun_cpu)
        wall.append(time.perf_counter() - begun)
        if len(runs) >= request["min_runs"]:
            if time.perf_counter() - started > request["seconds"]:
                break
            low, middle, high = np.quantile(runs, (0.25, 0.5, 0.75))
            if (high - low) / middle / len(runs) ** 0.5 < request["spread"]:
                break
    return wall, cpu


def _feeds(session: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    feeds = {}
    for node in session.get_inputs():
        name, shape = node.name, tuple(node.shape)
        if not all(isinstance(size, int) for size in shape):
            raise ValueError(f"expected inputs of fixed shape, found {name} of {node.shape}")
        kind = node.type.removeprefix("tensor(").removesuffix(")")
        dtype = {"float": "float32", "double": "float64"}.get(kind, kind)
        is_mask = dtype == "bool"
        feeds[name] = (
            np.ones(shape, bool) if is_mask else draw_array(rng, shape, dtype, 100, f"input {name}")
        )
    return feeds


if __name__ == "__main__":
    main()
