"""Writes the small inputs of the examples: ``python examples.py KIND FOLDER``. It imports nothing of tencost."""

from __future__ import annotations

import csv
import json
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Row = Sequence[object]
OPERATORS = {"input": "Placeholder", "conv": "Conv2D", "relu": "Relu"}
TARGET = "cuda -keys=cuda,gpu -model=v100"
COUNTERS = (
    "dram__bytes_read.sum",
    "dram__sectors_read.sum",
    "dram__sectors_write.sum",
    "smsp__inst_executed.sum",
    "launch__grid_size",
    "launch__block_size",
    "launch__registers_per_thread",
)
NCU_COUNTERS = (
    *(f"launch__occupancy_limit_{name}" for name in ("blocks", "registers", "shared_mem", "warps")),
    "device__attribute_multiprocessor_count",
    "device__attribute_l2_cache_size",
    "launch__waves_per_multiprocessor",
    *(f"sass__inst_executed_{kind}_{way}" for kind in ("shared", "global") for way in ("loads", "stores")),
    "smsp__inst_executed_op_ldsm.sum",
    "smsp__inst_executed_op_shared_atom.sum",
    "smsp__inst_executed_op_global_red.sum",
    *(f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared{way}.sum" for way in ("", "_op_atom", "_op_ld", "_op_st")),
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    *(f"smsp__sass_inst_executed_op_memory_{bits}b.sum" for bits in (8, 16, 32, 64, 128)),
    "sm__sass_inst_executed_op_ldgsts_cache_bypass.sum",
    *(f"lts__t_sectors_srcunit_tex_op_read_lookup_{way}.sum" for way in ("hit", "miss")),
)  # fmt: skip


def write_ansor(folder: Path) -> None:
    """Write logs of auto_scheduler: 8 layers, 20 programs each; one fails, two devices."""
    chance = random.Random(0)
    for model, factor in (("v100", 1.0), ("k80", 4.0)):
        for layer in range(8):
            lines = [_ansor_line(layer, number, factor, model, chance) for number in range(20)]
            path = folder / model / f"layer{layer}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines) + "\n")


def _ansor_line(layer: int, number: int, factor: float, model: str, chance: random.Random) -> str:
    size, threads = 64 << layer % 4, 1 << number % 7
    cost = factor * 1e-6 * size * (number // 7 + 3) / threads * chance.uniform(0.98, 1.02)
    key = json.dumps([f"layer{'abcdefgh'[layer]}", size, size, 3 + layer])
    steps: list[Any] = [
        ["SP", 2, 0, size * 16, [threads, number // 7 + 1], 1],
        ["AN", 2, 1, 6],
        ["PR", 2, 0, f"auto_unroll_max_step${number}"],
    ]
    hardware = [80, 16, 64, 49152, 2147483647, 1024, 8, 32]
    task = [key, f"cuda -keys=cuda,gpu -model={model}", hardware, "", 0, []]
    failed = number == 19
    result = [
        [1e10] if failed else [cost, cost * 1.01],
        7 if failed else 0,
        1.0,
        1637575039 + 1000 * layer + number,
    ]
    return json.dumps({"i": [task, [[], steps]], "r": result, "v": "v0.6"})


def write_autotvm(folder: Path) -> None:
    """Write logs of AutoTVM: 6 dense layers, 12 configurations each, and a convolution with layouts."""
    folder.mkdir(parents=True)
    for layer in range(6):
        tensors = [["TENSOR", [32 << layer, 64], "float32"], ["TENSOR", [64, 64], "float32"]]
        lines = []
        for number in range(12):
            entity = [["tile_x", "sp", [-1, number + 1]], ["unroll", "ot", number % 2]]
            lines.append(
                _autotvm_line("dense_small.gpu", tensors, entity, 1e-4 * (number + 1), TARGET)
            )
        (folder / f"{layer}.log").write_text("\n".join(lines) + "\n")


def _autotvm_line(
    task: str, arguments: list[Any], entity: list[Any], cost: float, target: str
) -> str:
    entry = {
        "input": [target, task, arguments, {}],
        "config": {"index": round(cost * 1e4), "code_hash": None, "entity": entity},
        "result": [[cost], 0, 1.0, 1649992289.5],
        "version": 0.2,
        "tvm_version": "0.8.0",
    }
    return json.dumps(entry)


def write_t4(folder: Path) -> None:
    """Write T4 results of two GPUs: one kernel, 60 configurations each, one of which does not run."""
    folder.mkdir(parents=True)
    for gpu, factor in (("a100", 1.0), ("a4000", 2.0)):
        results = []
        for number in range(60):
            threads, layout = 1 << number % 10, ("NCHW", "NHWC")[number // 10 % 2]
            time = factor * (1 + 64 / threads + number // 20) * (2 if layout == "NHWC" else 1)
            configuration = {"threads": threads, "layout": layout, "unroll": number // 20}
            results.append(
                {
                    "timestamp": f"2023-12-22 09:54:{number:02}+00:00",
                    "configuration": configuration,
                    "times": {"compilation": 918.6, "runtimes": [time, time * 1.01]},
                    "invalidity": "correct" if number < 59 else "runtime",
                    "correctness": 1,
                }
            )
        document = {"metadata": {"timeunit": "milliseconds"}, "results": results}
        (folder / f"blur_{gpu}_T4.json").write_text(json.dumps(document))


def write_tenset_tasks(folder: Path) -> None:
    """Write one log of TenSet's folders of programs that were not measured: cost 0.0."""
    lines = []
    for number in range(3):
        entry = json.loads(_ansor_line(0, number, 1.0, "v100", random.Random(1)))
        entry["r"] = [[0.0], 0, 0, 0]
        lines.append(json.dumps(entry))
    folder.mkdir(parents=True)
    (folder / "programs.json").write_text("\n".join(lines) + "\n")


def write_onnx(folder: Path) -> None:
    """Write three small networks as ONNX files and one as a torch.export program."""
    import torch

    folder.mkdir(parents=True)
    for name, width in (("small", 32), ("medium", 48), ("large", 64)):
        layers = [torch.nn.Linear(32, width), torch.nn.ReLU(), torch.nn.Linear(width, 32)]
        network = torch.nn.Sequential(*layers).eval()
        example = (torch.zeros(16, 32),)
        torch.onnx.export(
            network, example, str(folder / f"{name}.onnx"), dynamo=True, verbose=False
        )
    torch.export.save(torch.export.export(network, example), str(folder / "large.pt2"))
    image = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3)
    ).eval()
    example = (torch.zeros(1, 3, 16, 16),)
    torch.onnx.export(image, example, str(folder / "image.onnx"), dynamo=True, verbose=False)
    torch.onnx.export(
        image, (torch.zeros(2, 3, 16, 16),), str(folder / "images.onnx"), dynamo=True, verbose=False,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )  # fmt: skip


Graph = list[tuple[str, list[int]]]
"""Operators of a chain with their 16 numbers, as CG writes them."""


def _graphs(families: Iterable[str], count: int) -> dict[str, list[tuple[Graph, list[float]]]]:
    """Return chains of convolutions of each family with latencies in ms on four devices."""
    chance = random.Random(0)
    graphs = {}
    for at, family in enumerate(families):
        graphs[family] = [_chain(chance, at) for _ in range(count)]
    return graphs


def _chain(chance: random.Random, at: int) -> tuple[Graph, list[float]]:
    before, weights = 3, 0
    graph: Graph = [("input", [0] * 11 + [1, 8, 8, 3, 0])]
    for _ in range(chance.randint(2, 5)):
        width = chance.randint(4, 12 + 4 * at)
        read, written = [1, 8, 8, before, 0], [1, 8, 8, width, 0]
        graph.append(("conv", [*read, 3, 3, before, width, 1, 1, *written]))
        graph.append(("relu", [*written, *[0] * 6, *written]))
        weights, before = weights + 9 * before * width, width
    return graph, [scale * weights + 0.1 * len(graph) for scale in (1e-3, 2e-4, 3e-4, 4e-4)]


CG_FAMILIES = (
    "densenets", "mnasnets", "mobilenetv2s", "mobilenetv3s", "nasbench201s", "proxylessnass", "resnets", "squeezenets",
)  # fmt: skip


def write_cg(folder: Path) -> None:
    """Write CG's CSV folders: the eight families of the benchmark, 20 small networks each."""
    for family, networks in _graphs(CG_FAMILIES, 20).items():
        place = folder / "CG" / family
        place.mkdir(parents=True)
        tables: dict[str, list[Row]] = {
            "edge": [],
            "node-feat": [],
            "num-node-list": [],
            "num-edge-list": [],
        }
        devices = ("cortex", "630gpu", "640gpu", "vpu")
        tables |= {f"label-{device}": [] for device in devices}
        for graph, latencies in networks:
            tables["num-node-list"].append([len(graph)])
            tables["num-edge-list"].append([len(graph) - 1])
            tables["edge"] += [[node, node + 1] for node in range(len(graph) - 1)]
            tables["node-feat"] += [[OPERATORS[kind], *numbers] for kind, numbers in graph]
            for device, latency in zip(devices, latencies, strict=True):
                tables[f"label-{device}"].append([latency])
        for name, rows in tables.items():
            with (place / f"{name}.csv").open("w", newline="") as file:
                csv.writer(file).writerows(rows)
    (folder / "cg.yaml").write_text(CG_CONFIG)


CG_CONFIG = """
utils: {seed: 123, torch_num_threads: 1}
task: {name: CG, type: CG, target: cpu, processed_folder: processed/, divide_seed: default, raw_data_path: CG/,
  data_processor: CGDataProcessor}
train: {batch_size: 16, epoch: 2, optimizer: Adam, scheduler: {name: StepLR, step_size: 100, gamma: 0.95}, lr: 0.0095,
  criterion: MSE, wandb: 0, train_files: train_files/, directed: 1}
model: {name: BIGIN, hidden_dim: 34, num_layers: 2, node_input_dim: 7, edge_input_dim: 2, dropout: 0,
  mlp_out: {num_layer: 2}}
"""


def write_nn_meter(folder: Path) -> None:
    """Write nn-Meter's lines: three families, 12 networks each."""
    folder.mkdir(parents=True)
    keys = (
        "cortexA76cpu_tflite21", "adreno630gpu_tflite21", "adreno640gpu_tflite21", "myriadvpu_openvino2019r2",
    )  # fmt: skip
    for family, networks in _graphs(("alexnets", "googlenets", "vggs"), 12).items():
        lines = []
        for place, (graph, latencies) in enumerate(networks):
            nodes = {f"layer{at}": _nn_meter_node(graph, at) for at in range(len(graph))}
            entry = {
                "id": f"{family}_{place}",
                **dict(zip(keys, latencies, strict=True)),
                "graph": nodes,
            }
            lines.append(json.dumps(entry))
        (folder / f"{family}.jsonl").write_text("\n".join(lines) + "\n")


def _nn_meter_node(graph: Graph, at: int) -> dict[str, Any]:
    kind, numbers = graph[at]
    attributes = {}
    if kind == "conv":
        attributes = {
            "kernel_shape": numbers[5:7],
            "weight_shape": numbers[5:9],
            "strides": numbers[9:11],
        }
    return {
        "inbounds": [f"layer{at - 1}"] if at else [],
        "outbounds": [f"layer{at + 1}"] if at + 1 < len(graph) else [],
        "attr": {
            "name": f"layer{at}",
            "type": OPERATORS[kind],
            "output_shape": [numbers[11:15]],
            "input_shape": [numbers[0:4]] if at else [],
            "attr": attributes,
        },
    }


def write_profiles(folder: Path) -> None:
    """Write Nsight Compute's raw pages of two workloads, what `ncu --csv` prints, and KTT's results."""
    folder.mkdir(parents=True)
    metrics = (*COUNTERS, *NCU_COUNTERS)
    manifest: list[Row] = [["file", "kernel", "record_id", "workload"]]
    rows: list[Row] = [["ID", "Kernel Name", "Device", "gpu__time_duration.sum", *metrics]]
    rows.append(["", "", "", "us", "byte", *[""] * (len(metrics) - 1)])
    chance = random.Random(0)
    for workload in ("dense", "conv"):
        for number in range(40):
            effort = chance.uniform(1.0, 10.0)
            values = [round(1000 * effort * chance.uniform(0.9, 1.1)) for _ in metrics]
            rows.append([str(len(rows)), f"{workload}_{number}", "0", f"{effort:.2f}", *values])
            manifest.append(["", f"{workload}_{number}", f"{len(rows):032x}", workload])
    _write_csv(folder / "raw.csv", rows)
    _write_csv(folder / "manifest.csv", manifest)
    names = ["ID", "Kernel Name", "Section Name", "Metric Name", "Metric Unit", "Metric Value"]
    _write_csv(
        folder / "long.csv", [names, ["0", "k", "GPU Speed Of Light", "Duration", "us", "1.5"]]
    )
    dimensions = {"X": 1, "Y": 1, "Z": 1}
    launch = {
        "Duration": 1.5,
        "GlobalSize": dimensions,
        "KernelFunction": "k",
        "LocalSize": dimensions,
    }
    result = {
        "ComputationResults": [launch],
        "Configuration": [],
        "KernelName": "k",
        "Status": "Ok",
    }
    about = {"Device": "GPU", "KttVersion": "2.1.0", "TimeUnit": "Microseconds"}
    (folder / "ktt.json").write_text(json.dumps({"Metadata": about, "Results": [result]}))
    import openpyxl

    book = openpyxl.Workbook()
    for row in rows[:12]:
        book.active.append(list(row))
    book.save(folder / "sheet.xlsx")


def _write_csv(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)


KINDS: dict[str, Callable[[Path], None]] = {
    "ansor": write_ansor,
    "autotvm": write_autotvm,
    "t4": write_t4,
    "programs": write_tenset_tasks,
    "onnx": write_onnx,
    "cg": write_cg,
    "nn-meter": write_nn_meter,
    "profiles": write_profiles,
}

if __name__ == "__main__":
    KINDS[sys.argv[1]](Path(sys.argv[2]))
