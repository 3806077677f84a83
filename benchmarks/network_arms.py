"""The arms of networks.py: what each makes of a network, and the process that holds it while arms are timed in turn.

    python network_arms.py '<settings as JSON>'

`do` of the settings says what: "network" writes what all arms start from, "prepare" makes an arm (compiles, tunes),
"serve" loads what was made and answers requests, a line of JSON each: {"ask": "outputs", "to": file} and
{"ask": "seconds", "number": calls}. Answers are lines of JSON on standard output; what libraries print goes to standard
error. It ends when its input does, whatever it is doing then.

In the folder of a network:

    inputs.npz, expected.npz   its inputs by name, and what PyTorch computes for them: 0, 1, ...
    weights.pt, model.onnx     of the PyTorch module; the latter as the project's own exporter makes it
    network.onnx, network.pt2  what TVM reads where the network goes through a file
    <arm>/                     what the arm keeps: library.so, a database, a cache
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

ROUND = 64
"""Programs of a round of stock MetaSchedule, at most."""
LEAST_ROUND = 8
BATCH_S = 10
"""Seconds that stock's builder and runner take for a batch beyond its programs: their processes import TVM anew."""
BUILD_S = 120
"""Time limit of stock's builder and runner; its own 30 s are too few for its workers' imports on a busy machine."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network on a number of cores.

    Attributes:
        network: its name in conf/network.
        via: "onnx" or "torch_export": the file through which TVM reads it; "" for none.
        cores: threads of every arm.
        hardware: its name in conf/hardware.
        settings: further overrides of the configuration.
        folder: what its arms keep.
    """

    network: str
    via: str
    cores: int
    hardware: str
    settings: tuple[str, ...]
    folder: str

    @property
    def name(self) -> str:
        return f"{self.network}-{self.via}" if self.via else self.network

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def plain(self) -> list[str]:
        """Overrides of the network as it is defined."""
        return [f"network={self.network}", *self.settings]

    @property
    def overrides(self) -> list[str]:
        """Overrides of the network as TVM reads it, and of the hardware."""
        hardware = [
            f"hardware={self.hardware}",
            f"hardware.cores={self.cores}",
            f"++hardware.target.num-cores={self.cores}",
        ]
        if not self.via:
            return [*self.plain, *hardware]
        file = self.path / ("network.onnx" if self.via == "onnx" else "network.pt2")
        trusted = ["network.trusted=true"] if self.via == "torch_export" else []
        found = [f"network={self.via}", f"network.path={file}", f"network.name={self.name}"]
        kept = [one for one in self.settings if not one.lstrip("+").startswith("network.")]
        return [*found, *trusted, f"network.graph={self.graph}", *kept, *hardware]

    @property
    def graph(self) -> str:
        """How TVM writes the graph: as it does the network that the file is of."""
        from tencost.config.composition import compose

        return str(compose(self.plain)[0].network.graph.value)


class Arm(Protocol):
    """A network that can be called."""

    def outputs(self) -> list[Any]: ...

    def call(self) -> None: ...


def torch_module(case: Case, *, calibrated: bool) -> tuple[Any, tuple[Any, ...], Any]:
    """Return (the module, its inputs as tensors, the network's configuration)."""
    from tencost.config.composition import compose
    from tencost.networks.sources.transformers import positional_network

    cfg, _ = compose(case.plain)
    module, tensors = positional_network(cfg.network, calibrated=calibrated)
    return module, tensors, cfg.network


def write_network(case: Case) -> dict[str, Any]:
    """Write what all arms start from."""
    import onnx
    import torch

    from tencost.networks.torch_modules import module_to_onnx

    module, tensors, config = torch_module(case, calibrated=True)
    inputs = {name: tensor.numpy() for name, tensor in zip(config.inputs, tensors, strict=True)}
    with torch.inference_mode():
        expected = [array.numpy() for array in module(*tensors)]
    np.savez(case.path / "inputs.npz", **inputs)
    np.savez(case.path / "expected.npz", **{str(n): array for n, array in enumerate(expected)})
    torch.save(module.state_dict(), case.path / "weights.pt")
    started = time.perf_counter()
    model = module_to_onnx(config.name, module, tensors)
    exported_s = time.perf_counter() - started
    onnx.save(model, case.path / "model.onnx")
    if case.via == "onnx":
        onnx.save(model, case.path / "network.onnx")
    elif case.via == "torch_export":
        with torch.no_grad():
            torch.export.save(torch.export.export(module, tensors), case.path / "network.pt2")
    return {"onnx_export_s": exported_s}


def given_inputs(case: Case) -> dict[str, Any]:
    with np.load(case.path / "inputs.npz") as arrays:
        return dict(arrays)


class Torch:
    """PyTorch, eager or compiled by Inductor."""

    def __init__(self, case: Case, options: Mapping[str, Any] | None) -> None:
        import torch

        torch.set_num_threads(case.cores)
        module, self._tensors, _ = torch_module(case, calibrated=False)
        module.load_state_dict(torch.load(case.path / "weights.pt", weights_only=True))
        self._torch = torch
        self._module = module
        if options is not None:
            torch._inductor.config.freezing = bool(options.get("freezing", False))
            self._module = torch.compile(module, dynamic=False)

    def outputs(self) -> list[Any]:
        with self._torch.no_grad():
            return [array.numpy() for array in self._module(*self._tensors)]

    def call(self) -> None:
        with self._torch.no_grad():
            self._module(*self._tensors)


class OnnxRuntime:
    """ONNX Runtime on its CPU provider, all of its graph optimizations on, as it is by default."""

    def __init__(self, case: Case) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = case.cores
        options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            str(case.path / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        # Names may be others in the file; the order is the same.
        names = [item.name for item in self._session.get_inputs()]
        self._feeds = dict(zip(names, given_inputs(case).values(), strict=True))

    def outputs(self) -> list[Any]:
        return [np.asarray(array) for array in self._session.run(None, self._feeds)]

    def call(self) -> None:
        self._session.run(None, self._feeds)


class OpenVino:
    """OpenVINO on the CPU, tuned for the latency of single calls: one stream, float32 as everywhere else here."""

    def __init__(self, case: Case) -> None:
        import openvino

        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": str(case.cores),
            "INFERENCE_PRECISION_HINT": "f32",
        }
        compiled = openvino.Core().compile_model(str(case.path / "model.onnx"), "CPU", settings)
        self._request = compiled.create_infer_request()
        for number, array in enumerate(given_inputs(case).values()):
            self._request.set_input_tensor(number, openvino.Tensor(array))
        self._count = len(compiled.outputs)

    def outputs(self) -> list[Any]:
        self._request.infer()
        return [self._request.get_output_tensor(n).data.copy() for n in range(self._count)]

    def call(self) -> None:
        self._request.infer()


class LiteRt:
    """LiteRT's interpreter on the CPU, with XNNPACK as it is by default, of what its converter makes of the module."""

    def __init__(self, case: Case) -> None:
        from ai_edge_litert.interpreter import Interpreter

        file = case.path / "litert" / "model.tflite"
        self._interpreter = Interpreter(str(file), num_threads=case.cores)
        self._interpreter.allocate_tensors()
        signature = self._interpreter.get_signature_runner()  # says which argument is which tensor
        arrays = list(given_inputs(case).values())
        for name, tensor in signature.get_input_details().items():  # args_0, ...; int64 is int32
            array = arrays[int(name.removeprefix("args_"))].astype(tensor["dtype"])
            self._interpreter.set_tensor(tensor["index"], np.ascontiguousarray(array))
        outputs = signature.get_output_details()
        self._outputs = [outputs[f"output_{number}"]["index"] for number in range(len(outputs))]

    def outputs(self) -> list[Any]:
        self._interpreter.invoke()
        return [self._interpreter.get_tensor(index) for index in self._outputs]

    def call(self) -> None:
        self._interpreter.invoke()


class Library:
    """A library that TVM made."""

    def __init__(self, case: Case, file: Path) -> None:
        import tvm
        from tvm import relax

        self._machine = relax.VirtualMachine(tvm.runtime.load_module(str(file)), tvm.cpu())
        self._main = self._machine["main"]
        self._inputs = [tvm.runtime.tensor(array) for array in given_inputs(case).values()]

    def outputs(self) -> list[Any]:
        return [array.numpy() for array in self._main(*self._inputs)]

    def call(self) -> None:
        self._main(*self._inputs)


def load(case: Case, arm: str) -> Arm:
    """Load what was prepared."""
    if arm == "eager":
        return Torch(case, None)
    if arm in ("compile", "compile-frozen"):
        return Torch(case, {"freezing": arm == "compile-frozen"})
    if arm == "onnxruntime":
        return OnnxRuntime(case)
    if arm == "openvino":
        return OpenVino(case)
    if arm == "litert":
        return LiteRt(case)
    return Library(case, case.path / arm / "library.so")


def prepare(case: Case, arm: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Make an arm; returns figures of it."""
    if arm == "untuned":
        return compile_stock(case, arm, None)
    if arm.startswith("stock"):
        size = tune_stock(case, arm, settings)
        return compile_stock(case, arm, case.path / arm / "database") | size
    made = load(case, arm)
    made.call()
    del made
    return {}


def stock_network(case: Case) -> tuple[Any, dict[str, Any]]:
    """Return (the network as TVM's static_shape_tuning pipeline has it before it tunes, the target).

    Weights are bound and folded before it is compiled, which that pipeline leaves to the user.
    """
    from tencost.config.composition import compose
    from tencost.config.parts import NETWORK_SOURCES
    from tencost.networks.lowering import compilable, fuse
    from tencost.networks.network import Network
    from tencost.networks.source import source_file
    from tencost.programs.trace.intrinsics import register_cpu_intrinsics
    from tencost.workers.hardware import resolve_hardware

    register_cpu_intrinsics()
    cfg, root = compose(case.overrides)
    source = NETWORK_SOURCES.load(cfg.network.source, "network.source")
    found = source.read(cfg.network, source_file(cfg.network, source, root))
    mod = compilable(fuse(found.mod))
    network = Network(
        case.name, mod, found.params, found.inputs, found.expected, 0, list(found.outputs)
    )
    return network, resolve_hardware(cfg.hardware).target


def compile_stock(case: Case, arm: str, database: Path | None) -> dict[str, Any]:
    """Compile as any user of TVM would, with the best programs of a database."""
    import tvm
    from tvm import relax
    from tvm.s_tir.meta_schedule.relax_integration import extract_tasks

    network, target = stock_network(case)
    tvm_target = tvm.target.Target(target)
    mod = network.deployable(target)
    tasks = extract_tasks(network.mod, tvm_target, {})
    figures: dict[str, Any] = {"tasks": len(tasks)}
    if database is not None:
        from tencost.tune.deploy import open_database

        opened = open_database(database, target, "stock's database")
        known = [
            opened.query_tuning_record(task.dispatched[0], tvm_target, "main") is not None
            for task in tasks
        ]
        figures |= {"tasks_tuned": sum(known), "programs": len(opened)}
        with tvm_target, opened:
            mod = relax.transform.MetaScheduleApplyDatabase(enable_warning=False)(mod)
    built = tvm.compile(mod, target=tvm_target)
    file = case.path / arm / "library.so"
    built.export_library(str(file.with_suffix(".new.so")))
    file.with_suffix(".new.so").rename(file)
    return figures | {"code_bytes": file.stat().st_size}


def tune_stock(case: Case, arm: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Tune all tasks with stock MetaSchedule for so many seconds; the rounds that have begun by then are finished.

    What ms.relax_integration.tune_relax does by default: XGBModel, LocalBuilder, LocalRunner, the gradient scheduler,
    rounds of 64; of fewer, where a turn through all tasks would not fit into its seconds, at a program a second.
    stock-warm has warm workers in place of builder and runner.
    """
    from tvm.s_tir import meta_schedule as ms

    from tencost.tune.workfolder import open_folder

    deadline = time.monotonic() + settings["left_s"]
    if settings["left_s"] <= 0:
        return {}
    network, target = stock_network(case)
    tasks = len(network.tasks(target))
    fitting = int(settings["budget_s"] / tasks - BATCH_S)
    size = settings["round"] or min(ROUND, max(LEAST_ROUND, fitting))
    with open_folder(
        case.path / arm / "database", case.name, case.hardware, target
    ) as folder:  # one writer; what a killed one left half written is cut off
        if arm.startswith("stock-warm"):
            from tencost.workers.pool import WorkerPool
            from tencost.workers.runner import MeasureOptions, WarmBuilder, WarmRunner

            pool = WorkerPool(MeasureOptions(), case.cores)
            workers = {"builder": WarmBuilder(), "runner": WarmRunner(pool)}
        else:
            cpus = len(os.sched_getaffinity(0))
            workers = {
                "builder": ms.builder.LocalBuilder(max_workers=cpus, timeout_sec=BUILD_S),
                "runner": ms.runner.LocalRunner(timeout_sec=BUILD_S),
            }
        ms.relax_integration.tune_relax(
            network.mod,
            {},
            target,
            str(folder.path),
            max_trials_global=1_000_000,
            num_trials_per_iter=size,
            strategy=until(deadline),
            seed=settings["seed"],
            **workers,
        )
    return {"round": size}


def until(deadline: float) -> Any:
    """Return stock's evolutionary search that proposes nothing more after a moment of the monotonic clock."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    @derived_object
    class Until(ms.search_strategy.PySearchStrategy):
        def __init__(self, search: Any) -> None:
            super().__init__()
            self.search = search

        def _initialize_with_tune_context(self, context: Any) -> None:
            self.search._initialize_with_tune_context(context)

        def pre_tuning(
            self, trials: int, batch: int, spaces: Any, database: Any = None, model: Any = None
        ) -> None:
            self.search.pre_tuning(trials, batch, spaces, database, model)

        def post_tuning(self) -> None:
            self.search.post_tuning()

        def generate_measure_candidates(self) -> Any:
            if time.monotonic() >= deadline:
                return None
            return self.search.generate_measure_candidates()

        def notify_runner_results(self, candidates: Any, results: Any) -> None:
            self.search.notify_runner_results(candidates, results)

        def clone(self) -> Any:
            return Until(self.search.clone())

    return Until(ms.search_strategy.EvolutionarySearch())


def serve(
    case: Case, arm: str, answer: Callable[[dict[str, Any]], None], lines: Iterator[str]
) -> None:
    """Load an arm and answer requests about it."""
    made = load(case, arm)
    made.call()
    answer({"ready": True})
    for line in lines:
        request = json.loads(line)
        if request["ask"] == "outputs":
            found = made.outputs()
            np.savez(request["to"], **{str(n): array for n, array in enumerate(found)})
            answer({"outputs": len(found)})
        else:
            made.call()  # it has been idle: what others have driven out of the caches comes back
            number = int(request["number"])
            started = time.perf_counter()
            for _ in range(number):
                made.call()
            answer({"seconds": (time.perf_counter() - started) / number})


def lines_of_input() -> Iterator[str]:
    """Return the lines of standard input as they come; its end ends the process."""
    lines: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    return iter(lines.get, "")


def main() -> None:
    settings = json.loads(sys.argv[1])
    os.sched_setaffinity(0, settings["cpus"])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(values: dict[str, Any]) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    lines = lines_of_input()
    given = settings["case"]
    case = Case(**{**given, "settings": tuple(given["settings"])})
    try:
        if settings["do"] == "network":
            answer(write_network(case))
        elif settings["do"] == "prepare":
            answer(prepare(case, settings["arm"], settings))
        else:
            serve(case, settings["arm"], answer, lines)
    except Exception as error:  # noqa: BLE001 - whatever a framework raises is the arm's result
        import traceback

        traceback.print_exc()
        said = next((line for line in str(error).splitlines() if line.strip()), "")
        answer({"error": f"{type(error).__name__}: {said.strip()[:300]}"})
    answers.flush()
    os._exit(0)  # TVM's and Inductor's threads and pools are not waited for


if __name__ == "__main__":
    main()
