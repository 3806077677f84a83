"""Search variants of MobileNetV2 for the fastest on a Cortex-A76 with at least 400 MFLOP: see search-variants.md."""

import random
from dataclasses import dataclass, field

import numpy as np
import onnx
from matplotlib.figure import Figure
from onnx import TensorProto, helper, numpy_helper

import tencost


@dataclass
class Network:
    """An ONNX graph that grows layer by layer; `flop` counts two a multiply-add."""

    size: int = 224
    channels: int = 3
    last: str = "image"
    flop: float = 0.0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def weight(self, *shape: int, value: float = 0.0) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.full(shape, value, np.float32), name))
        return name

    def add(self, kind: str, *inputs: str, **attributes: object) -> None:
        output = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, [self.last, *inputs], [output], **attributes))
        self.last = output

    def conv(
        self, channels: int, kernel: int = 1, stride: int = 1, *, depthwise: bool = False
    ) -> None:
        groups = self.channels if depthwise else 1
        shape = (channels, self.channels // groups, kernel, kernel)
        self.add(
            "Conv",
            self.weight(*shape),
            self.weight(channels),
            group=groups,
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[kernel // 2] * 4,
        )
        self.size, self.channels = -(-self.size // stride), channels
        self.flop += 2 * np.prod(shape) * self.size**2

    def relu6(self) -> None:
        self.add("Clip", self.weight(), self.weight(value=6.0))

    def block(self, channels: int, kernel: int, stride: int, expand: int) -> None:
        block_input, channels_in = self.last, self.channels
        if expand > 1:
            self.conv(expand * channels_in)
            self.relu6()
        self.conv(self.channels, kernel, stride, depthwise=True)
        self.relu6()
        self.conv(channels)
        if stride == 1 and channels == channels_in:
            self.add("Add", block_input)

    def model(self, size: int) -> onnx.ModelProto:
        image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, size, size])
        output = helper.make_tensor_value_info(self.last, TensorProto.FLOAT, [1, 1000])
        graph = helper.make_graph(self.nodes, "mobilenet", [image], [output], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def mobilenet(stages: list[tuple[int, int, int, int]]) -> tuple[onnx.ModelProto, float]:
    """Return (a network, its FLOP); a stage is channels, blocks, kernel, expansion."""
    network = Network()
    network.conv(32, 3, 2)
    network.relu6()
    for (channels, blocks, kernel, expand), stride in zip(
        stages, (1, 2, 2, 2, 1, 2, 1), strict=True
    ):
        for place in range(blocks):
            network.block(channels, kernel, stride if place == 0 else 1, expand)
    network.conv(1280)
    network.relu6()
    network.add("GlobalAveragePool")
    network.add("Flatten")
    network.add("Gemm", network.weight(1280, 1000))
    network.flop += 2 * 1280 * 1000
    return network.model(224), network.flop


random.seed(0)
model = tencost.load_graph_model("models:/tencost-graph-cortex-a76@champion")
LEAST = 400e6  # FLOP
ROUNDS = 8
BASE = (
    (16, 1, 3, 1),
    (24, 2, 3, 6),
    (32, 3, 3, 6),
    (64, 4, 3, 6),
    (96, 3, 3, 6),
    (160, 3, 3, 6),
    (320, 1, 3, 6),
)
predictions = {}  # stages -> (FLOP, milliseconds)


def scaled(width):
    """Return MobileNetV2 with all its channels times a width."""
    return tuple((max(8, 8 * round(channels * width / 8)), *rest) for channels, *rest in BASE)


def changed(stages):
    """Change one to four settings."""
    mutable = [list(stage) for stage in stages]
    for _ in range(random.randint(1, 4)):
        stage, setting = random.choice(mutable), random.randrange(4)
        if setting == 0:
            stage[0] = max(8, 8 * round(stage[0] * random.uniform(0.6, 1.6) / 8))
        elif setting == 1:
            stage[1] = max(1, stage[1] + random.choice((-1, 1)))
        elif setting == 2:
            stage[2] = random.choice((3, 5, 7))
        else:
            stage[3] = random.choice((1, 2, 3, 4, 6))
    return tuple(tuple(stage) for stage in mutable)


def ask(variants):
    """Predict the variants that have no prediction yet."""
    new = [stages for stages in dict.fromkeys(variants) if stages not in predictions]
    models_and_flop = [mobilenet(stages) for stages in new]
    graphs = tencost.graphs_of(*[network for network, _ in models_and_flop])
    for stages, (_, flop), ms in zip(new, models_and_flop, model.predict_ms(graphs), strict=True):
        predictions[stages] = flop, float(ms)


def fastest(among, count=1):
    """Return those with at least LEAST, the fastest first."""
    enough = [stages for stages in among if predictions[stages][0] >= LEAST]
    return sorted(enough, key=lambda stages: predictions[stages][1])[:count]


uniform = [scaled(width / 20) for width in range(10, 25, 2)]
ask(uniform)
for _ in range(ROUNDS):
    parents = fastest(predictions, 10)
    ask([changed(random.choice(parents)) for _ in range(40)])

for stages in [*fastest(uniform), *fastest(predictions, 5)]:
    flop, ms = predictions[stages]
    text = " ".join("{}x{}/{}/{}".format(*stage) for stage in stages)
    print(f"{ms:.2f} ms, {flop / 1e6:.0f} MFLOP: {text}")
onnx.save(mobilenet(fastest(predictions)[0])[0], "best.onnx")

front, best = [], float("inf")  # nothing with as much FLOP is faster
for stages in sorted(
    predictions, key=lambda stages: (-predictions[stages][0], predictions[stages][1])
):
    if predictions[stages][1] < best:
        best = predictions[stages][1]
        front.append(stages)
figure = Figure(figsize=(7, 4.2), layout="constrained")
axes = figure.subplots()
for label, among, style in (
    ("variants", list(predictions), ".c"),
    ("MobileNetV2 of one width", uniform, "s--k"),
    ("nothing with as much FLOP is faster", front, "o-r"),
):
    flop, ms = zip(*(predictions[stages] for stages in among), strict=True)
    axes.plot([value / 1e6 for value in flop], ms, style, label=label, markersize=4)
axes.axvline(LEAST / 1e6, color="grey", linewidth=0.8)
axes.set(xlim=(200, 700), ylim=(15, 65), xlabel="MFLOP", ylabel="Cortex-A76, predicted ms")
axes.legend()
figure.savefig("search-variants.png", dpi=100)
