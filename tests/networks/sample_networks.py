"""Small PyTorch networks, saved in the ways that a person would save hers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn


class ConvNet(nn.Module):
    """Convolutions with batch norms, an addition, a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.stem_norm = nn.BatchNorm2d(8)
        self.block = nn.Conv2d(8, 8, 3, padding=1)
        self.block_norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 10)
        for norm in (self.stem_norm, self.block_norm):
            mean, variance = norm.running_mean, norm.running_var
            assert mean is not None
            assert variance is not None
            nn.init.normal_(mean)
            nn.init.uniform_(variance, 0.5, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.stem_norm(self.stem(x)))
        y = torch.relu(self.block_norm(self.block(y)) + y)
        return self.head(y.mean((2, 3)))


class Block(nn.Module):
    """A transformer's layer: attention over tokens with a mask, and an MLP; two outputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 16)
        self.norms = nn.ModuleList([nn.LayerNorm(16), nn.LayerNorm(16)])
        self.qkv = nn.Linear(16, 48)
        self.wide = nn.Linear(16, 32)
        self.narrow = nn.Linear(32, 16)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.tokens(ids)
        batch, length, width = x.shape
        heads = self.qkv(self.norms[0](x)).view(batch, length, 3, 2, width // 2)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(2, 3) / 8**0.5 + (1 - mask[:, None, None, :]) * -1e4
        mixed = (torch.softmax(scores, -1) @ value).transpose(1, 2).reshape(batch, length, width)
        x = x + mixed
        x = x + self.narrow(nn.functional.gelu(self.wide(self.norms[1](x))))
        return {"hidden": x, "pooled": torch.tanh(x[:, 0])}


def conv_net() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, Any]]:
    """Return (network in evaluation mode, inputs, dynamic shapes)."""
    torch.manual_seed(0)
    dims = {0: torch.export.Dim("batch"), 2: torch.export.Dim("height", min=4)}
    return ConvNet().eval(), {"x": torch.randn(2, 3, 16, 16)}, {"x": dims}


def block() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, Any]]:
    """Return (network in evaluation mode, inputs, dynamic shapes)."""
    torch.manual_seed(0)
    dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=64)}
    inputs = {
        "ids": torch.randint(0, 50, (2, 8)),
        "mask": torch.ones(2, 8, dtype=torch.int64),
    }
    return Block().eval(), inputs, {"ids": dims, "mask": dims}


def save_onnx(
    path: Path,
    network: nn.Module,
    inputs: dict[str, torch.Tensor],
    dynamic: dict[str, Any] | None,
    **options: Any,
) -> None:
    """Export with torch.onnx.export."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        program = torch.onnx.export(
            network,
            (),
            kwargs=inputs,
            dynamo=True,
            dynamic_shapes=dynamic,
            verbose=False,
            **options,
        )
    assert program is not None
    program.save(str(path))


def save_pt2(
    path: Path,
    network: nn.Module,
    inputs: dict[str, torch.Tensor],
    dynamic: dict[str, Any] | None,
) -> None:
    """Export with torch.export and save."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own
        torch.export.save(torch.export.export(network, (), inputs, dynamic_shapes=dynamic), path)
