"""Networks of CG's families in PyTorch, written as one writes them today: a row says kernels, channels and strides.

Rows have no padding: convolutions and poolings keep the size, divided by the stride, unless a row says a smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from tencost.networks.graph.graph_set import GraphSet
from tencost.networks.graph.operators import INPUT, OPERATORS, OUTPUT, STRIDES, WEIGHT

_CONVOLUTIONS = ("Conv2D", "DepthwiseConv2dNative")


class Row:
    """A row's nodes, read from the first to the last.

    Attributes:
        at: the next node.
    """

    def __init__(self, graph: GraphSet) -> None:
        self.operators = [OPERATORS[code] for code in graph.operator]
        self._columns = graph.columns.tolist()
        self._edges = graph.edges.T.tolist()
        self.at = 1  # behind the Placeholder

    @property
    def image(self) -> list[int]:
        """Shape of the input: batch (-1: not known), height, width, channels."""
        return list(self._columns[0][OUTPUT][:4])

    def next(self, ahead: int = 0) -> str:
        """Return the operator of a node to come."""
        return self.operators[self.at + ahead] if self.at + ahead < len(self.operators) else ""

    def skip(self, *operators: str) -> None:
        """Go on behind nodes of these operators."""
        assert tuple(self.operators[self.at : self.at + len(operators)]) == operators
        self.at += len(operators)

    def conv(self, *, bias: bool = False) -> nn.Conv2d:
        """Take a convolution."""
        assert self.next() in _CONVOLUTIONS, (self.at, self.next())
        size, _, given, out = self._columns[self.at][WEIGHT]
        stride = self._columns[self.at][STRIDES][0]
        groups = 1
        if self.next() == "DepthwiseConv2dNative":
            groups, out = given, given * out
        self.at += 1
        if bias:
            self.skip("BiasAdd")
        return nn.Conv2d(given, out, size, stride, size // 2, groups=groups, bias=bias)

    def conv_norm(self) -> list[nn.Module]:
        """Take a convolution and a batch norm."""
        conv = self.conv()
        return [conv, self.norm(conv.out_channels)]

    def norm(self, channels: int | None = None) -> nn.Module:
        """Take a batch norm."""
        found = channels or self._columns[self.at][INPUT][3]
        self.skip("FusedBatchNorm")
        return nn.BatchNorm2d(found)

    def conv_norm_relu(self) -> nn.Module:
        """Take a convolution, a batch norm and a ReLU."""
        layers = self.conv_norm()
        self.skip("Relu")
        return nn.Sequential(*layers, nn.ReLU())

    def conv_relu(self) -> nn.Module:
        """Take a convolution and a ReLU."""
        conv = self.conv()
        self.skip("Relu")
        return nn.Sequential(conv, nn.ReLU())

    def pool(self) -> nn.Module:
        """Take a pooling."""
        columns = self._columns[self.at]
        size, stride = columns[WEIGHT][0], columns[STRIDES][0]
        given, out = columns[INPUT][1], columns[OUTPUT][1]
        kind = nn.MaxPool2d if self.next() == "MaxPool" else nn.AvgPool2d
        self.skip("MaxPool" if kind is nn.MaxPool2d else "AvgPool")
        exact = (given - size) // stride + 1 == out or size == stride
        return kind(size, stride, 0 if exact else size // 2)

    def stride(self) -> int:
        """Return the next node's stride."""
        return int(self._columns[self.at][STRIDES][0])

    def sources(self, node: int) -> list[str]:
        """Return the operators of the nodes that a node takes."""
        return [self.operators[source] for source in self.source_nodes(node)]

    def source_nodes(self, node: int) -> list[int]:
        """Return the nodes that a node takes."""
        return [source for source, target in self._edges if target == node]

    def head(self) -> list[nn.Module]:
        """Take the global pooling and the dense layers."""
        self.skip("Mean", "Reshape")
        layers: list[nn.Module] = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        while self.next():
            columns = self._columns[self.at]
            self.skip("MatMul")
            layers.append(nn.Linear(columns[INPUT][1], columns[OUTPUT][1], bias=False))
            if self.next() == "Relu":
                self.skip("Relu")
                layers.append(nn.ReLU())
        return layers


class Residual(nn.Module):
    """What is added to what a body makes of it, or to what a shortcut does."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(x) + (x if self.shortcut is None else self.shortcut(x))


class Joined(nn.Module):
    """The channels of some branches behind each other."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class SqueezeExcite(nn.Module):
    """Channels weighted by what two small convolutions make of their means."""

    def __init__(self, squeeze: nn.Module, expand: nn.Module) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), squeeze, nn.ReLU(), expand, nn.Hardsigmoid()
        )

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.gate(x)


class Shuffled(nn.Module):
    """What a body returns, its channels shuffled in two groups."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        batch, channels, height, width = x.shape
        x = x.view(batch, 2, channels // 2, height, width)
        return x.transpose(1, 2).reshape(batch, channels, height, width)


class HalfChanged(nn.Module):
    """The first half of the channels changed, the second as it is."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        changed, kept = x.chunk(2, dim=1)
        return torch.cat([self.body(changed), kept], dim=1)


def alexnet(row: Row) -> nn.Module:
    layers: list[nn.Module] = []
    while row.next() != "Mean":
        layers.append(row.pool() if row.next() == "MaxPool" else row.conv_relu())
    return nn.Sequential(*layers, *row.head())


def vgg(row: Row) -> nn.Module:
    layers: list[nn.Module] = []
    while row.next() != "Mean":
        layers.append(row.pool() if row.next() == "MaxPool" else row.conv_norm_relu())
    return nn.Sequential(*layers, *row.head())


def resnet(row: Row) -> nn.Module:
    layers: list[nn.Module] = [row.conv_norm_relu(), row.pool()]
    while row.next() != "Mean":
        parts: list[list[nn.Module]] = []
        while row.next() != "Add":
            parts.append(row.conv_norm())
            if row.next() == "Relu":
                row.skip("Relu")
                parts[-1].append(nn.ReLU())
        shortcut = None
        if row.sources(row.at) == ["FusedBatchNorm", "FusedBatchNorm"]:
            shortcut = nn.Sequential(*parts.pop())
        row.skip("Add", "Relu")
        body = nn.Sequential(*[layer for part in parts for layer in part])
        layers += [Residual(body, shortcut), nn.ReLU()]
    return nn.Sequential(*layers, *row.head())


def densenet(row: Row) -> nn.Module:
    layers: list[nn.Module] = [row.conv_norm_relu(), row.pool()]
    while row.next() != "Mean":
        norm = row.norm()
        row.skip("Relu")
        if row.next(1) == "FusedBatchNorm":
            body = nn.Sequential(norm, nn.ReLU(), row.conv_norm_relu(), row.conv())
            row.skip("ConcatV2")
            layers.append(Joined(nn.Identity(), body))
        else:
            layers += [norm, nn.ReLU(), row.conv(), row.pool()]
    return nn.Sequential(*layers, *row.head())


def googlenet(row: Row) -> nn.Module:
    layers: list[nn.Module] = [row.conv_norm_relu(), row.pool()]
    layers += [row.conv_norm_relu(), row.conv_norm_relu(), row.pool()]
    while row.next() != "Mean":
        if row.next() == "MaxPool":
            layers.append(row.pool())
        one = row.conv_norm_relu()
        three = nn.Sequential(row.conv_norm_relu(), row.conv_norm_relu())
        five = nn.Sequential(row.conv_norm_relu(), row.conv_norm_relu())
        pooled = nn.Sequential(row.pool(), row.conv_norm_relu())
        row.skip("ConcatV2")
        layers.append(Joined(one, three, five, pooled))
    return nn.Sequential(*layers, *row.head())


def squeezenet(row: Row) -> nn.Module:
    layers: list[nn.Module] = [row.conv_relu()]
    while row.next() != "Mean":
        if row.next() == "MaxPool":
            layers.append(row.pool())
            continue
        layers.append(row.conv_relu())
        if row.next() != "Mean":
            layers.append(Joined(row.conv_relu(), row.conv_relu()))
            row.skip("ConcatV2")
    return nn.Sequential(*layers, *row.head())


def mobilenet(row: Row) -> nn.Module:
    """MobileNet 1 to 3, MnasNet, ProxylessNAS: a linear layer ends a block, which may be added to its input."""
    layers: list[nn.Module] = [nn.Sequential(*row.conv_norm(), *_activation(row))]
    block: list[nn.Module] = []
    while row.next() != "Mean":
        block += row.conv_norm()
        if row.next() == "AvgPool":
            row.skip("AvgPool")
            squeeze = row.conv(bias=True)
            row.skip("Relu")
            expand = row.conv(bias=True)
            row.skip("Const", "Add", "Relu6", "Const", "Mul", "Mul")
            block.append(SqueezeExcite(squeeze, expand))
        if activation := _activation(row):
            block += activation
            continue
        body = nn.Sequential(*block)
        block = []
        if row.next() == "Add":
            row.skip("Add")
            layers.append(Residual(body))
        else:
            layers.append(body)
    return nn.Sequential(*layers, *block, *row.head())


def _activation(row: Row) -> list[nn.Module]:
    """Take an activation, if there is one."""
    if row.next() == "Const":
        row.skip("Const", "Add", "Relu6", "Const", "Mul", "Mul")
        return [nn.Hardswish()]
    if row.next() in ("Relu", "Relu6"):
        layer = nn.ReLU() if row.next() == "Relu" else nn.ReLU6()
        row.skip(row.next())
        return [layer]
    return []


def shufflenet(row: Row) -> nn.Module:
    layers: list[nn.Module] = [row.conv_norm_relu(), row.pool()]
    while row.next(3) != "Mean":
        if row.next() == "Split":
            row.skip("Split")
            unit: nn.Module = HalfChanged(_deep(row))
        else:
            unit = Joined(nn.Sequential(*row.conv_norm(), row.conv_norm_relu()), _deep(row))
        row.skip("ConcatV2")
        reshape = ["Const"] * 4 + ["StridedSlice"]
        row.skip(*reshape, *["Const"] * 4, "Pack", "Reshape", "Const", "Transpose")
        row.skip(*reshape, *["Const"] * 3, "Pack", "Reshape")
        layers.append(Shuffled(unit))
    return nn.Sequential(*layers, row.conv_norm_relu(), *row.head())


def _deep(row: Row) -> nn.Module:
    return nn.Sequential(row.conv_norm_relu(), *row.conv_norm(), row.conv_norm_relu())


class Cells(nn.Module):
    """NASBench201: cells of which no two need be alike, so every node of the row is looked up."""

    def __init__(self, row: Row) -> None:
        super().__init__()
        self.layers = nn.ModuleDict()
        self.sources: dict[int, list[int]] = {}
        while row.next() != "Mean":
            node, operator = row.at, row.next()
            self.sources[node] = row.source_nodes(node)
            if operator == "Relu":
                row.skip("Relu")
                self.layers[str(node)] = nn.ReLU()
            elif operator == "Conv2D":
                self.layers[str(node)] = row.conv()
            elif operator == "FusedBatchNorm":
                self.layers[str(node)] = row.norm()
            elif operator == "AvgPool":
                self.layers[str(node)] = row.pool()
            else:
                row.skip("Add")
        self.head = nn.Sequential(*row.head())

    def forward(self, x: torch.Tensor) -> Any:
        made = {0: x}
        last = x
        for node, sources in self.sources.items():
            given = [made[source] for source in sources]
            layer = str(node)
            added = layer not in self.layers
            last = given[0] + given[-1] if added else self.layers[layer](given[0])
            made[node] = last
        return self.head(last)


FAMILIES: dict[str, Callable[[Row], nn.Module]] = {
    "alexnets": alexnet,
    "densenets": densenet,
    "googlenets": googlenet,
    "mnasnets": mobilenet,
    "mobilenetv1s": mobilenet,
    "mobilenetv2s": mobilenet,
    "mobilenetv3s": mobilenet,
    "nasbench201s": Cells,
    "proxylessnass": mobilenet,
    "resnets": resnet,
    "shufflenetv2s": shufflenet,
    "squeezenets": squeezenet,
    "vggs": vgg,
}


def rebuilt(graph: GraphSet) -> tuple[nn.Module, Sequence[torch.Tensor]]:
    """Return (the network of a row with random weights, its input)."""
    torch.manual_seed(0)
    row = Row(graph)
    network = FAMILIES[str(graph.family[0])](row).eval()
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):  # as trained ones: what they fold to is not zero
            assert part.running_mean is not None
            nn.init.normal_(part.running_mean, 0.0, 0.1)
            nn.init.normal_(part.bias, 0.0, 0.1)
    batch, height, width, channels = row.image
    return network, (torch.randn(abs(batch), channels, height, width),)
