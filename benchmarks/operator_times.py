"""Where the milliseconds of a file of files.py go: by function of ours, by operator of ONNX Runtime and of OpenVINO.

    python benchmarks/operator_times.py levit [--batch 1] [--cores 1] [--top 12] [--work FOLDER]

It reads what files.py left in its work folder (model.onnx, inputs, library), runs each engine with its own profiler and
prints the mean milliseconds of a call, the largest first. The engines fuse and name operators in their own ways, so the
columns are read by kind, not line by line. What a profiler itself costs is in the sums.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np

CALLS = 20
Times = dict[str, float]
"""Milliseconds a call, by name."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--top", type=int, default=12)
    root = Path(__file__).resolve().parents[1]
    parser.add_argument("--work", type=Path, default=root / "tuned" / "files-benchmark")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.cores :])
    os.environ |= {"TVM_NUM_THREADS": str(options.cores), "TVM_BIND_THREADS": "0"}
    folder = options.work / f"{options.file}-b{options.batch}"
    engines = {"tencost by default": of_library, "ONNX Runtime": of_onnxruntime}
    if find_spec("openvino"):
        engines["OpenVINO"] = of_openvino
    for engine, times in engines.items():
        by_name = times(folder, options.cores)
        print(f"\n{engine}: {sum(by_name.values()):.3f} ms")
        for name, value in sorted(by_name.items(), key=lambda item: -item[1])[: options.top]:
            print(f"  {value:8.3f}  {name}")
    return 0


def of_library(folder: Path, cores: int) -> Times:
    """Return the milliseconds of each function of the compiled library."""
    import tvm
    from network_arms import Case, given_inputs

    from tencost.tune.hosts import Deployed
    from tencost.tune.reporting import native_messages_to

    case = Case(network="", via="", cores=cores, hardware="", settings=(), folder=str(folder))
    network = SimpleNamespace(entry="main", inputs=given_inputs(case))
    with native_messages_to(Path(os.devnull)):
        library = tvm.runtime.load_module(str(folder / "rules" / "library.so"))
        deployed = Deployed(library, network)  # type: ignore[arg-type]
    times: Counter[str] = Counter()
    for _ in range(CALLS):
        for name, seconds in deployed.seconds_by_function().items():
            times[name] += 1e3 * seconds / CALLS
    return dict(times)


def of_onnxruntime(folder: Path, cores: int) -> Times:
    """Return the milliseconds of each kind of operator, with the shapes of its first output."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores
    with tempfile.TemporaryDirectory() as scratch:
        options.profile_file_prefix = f"{scratch}/profile"
        plain = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        feeds = _feeds(plain, folder)
        plain.run(None, feeds)
        options.enable_profiling = True
        session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        for _ in range(CALLS):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_bytes())
    times: Counter[str] = Counter()
    for event in events:
        about = event.get("args", {})
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            shapes = re.findall(r"\[[\d, ]*\]", str(about.get("output_type_shape", "")))
            shape = shapes[0] if shapes else ""
            times[f"{about['op_name']} {shape}"] += event["dur"] / 1e3 / CALLS
    return dict(times)


def of_openvino(folder: Path, cores: int) -> Times:
    """Return the milliseconds of each kind of node, with what executes it."""
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(cores),
        "INFERENCE_PRECISION_HINT": "f32",
        "PERF_COUNT": "YES",
    }
    compiled = openvino.Core().compile_model(str(folder / "model.onnx"), "CPU", settings)
    request = compiled.create_infer_request()
    with np.load(folder / "inputs.npz") as arrays:
        for number, array in enumerate(arrays.values()):
            request.set_input_tensor(number, openvino.Tensor(np.ascontiguousarray(array)))
    request.infer()
    times: Counter[str] = Counter()
    for _ in range(CALLS):
        request.infer()
        for node in request.get_profiling_info():
            if node.real_time.total_seconds():
                name = f"{node.node_type} ({node.exec_type})"
                times[name] += 1e3 * node.real_time.total_seconds() / CALLS
    return dict(times)


def _feeds(session: object, folder: Path) -> dict[str, np.ndarray]:
    names = [item.name for item in session.get_inputs()]  # type: ignore[attr-defined]
    with np.load(folder / "inputs.npz") as arrays:
        return dict(zip(names, arrays.values(), strict=True))


if __name__ == "__main__":
    sys.exit(main())
