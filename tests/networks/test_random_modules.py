"""Random modules, compiled and compared with PyTorch on inputs that compiling did not see.

As a script it lists refusals by operator: python tests/networks/test_random_modules.py --seeds 60
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tencost
from tencost.errors import TencostError

pytestmark = [pytest.mark.tvm]

SEEDS = int(os.environ.get("TENCOST_RANDOM_MODULES", "10"))
"""Modules that `make test` compiles; TENCOST_RANDOM_MODULES=60 takes a quarter of an hour."""
TOLERANCES = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Relative and absolute tolerance by an output's type; 1e-4 for others. Integers and truth values have to be equal."""


class Step(nn.Module):
    """A named function of the value before it, with the layers that it calls."""

    def __init__(self, name: str, function: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.name, self.function, self.layers = name, function, nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.layers)


class RandomModule(nn.Module):
    """Steps one after the other; some keep their value as an output of its own."""

    def __init__(self, steps: list[Step], outputs: set[int]) -> None:
        super().__init__()
        self.steps, self.outputs = nn.ModuleList(steps), outputs

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        returned = []
        for place, step in enumerate(self.steps):
            x = step(x)
            if place in self.outputs:
                returned.append(x)
        return (*returned, x)


def activations(rng: random.Random) -> list[nn.Module]:
    return [
        nn.ELU(rng.choice([1.0, 0.7])), nn.Hardshrink(), nn.Hardsigmoid(), nn.Hardswish(),
        nn.Hardtanh(-rng.uniform(0.2, 2), rng.uniform(0.2, 2)), nn.LeakyReLU(0.2), nn.LogSigmoid(),
        nn.PReLU(), nn.ReLU(), nn.ReLU6(), nn.RReLU(), nn.SELU(), nn.CELU(rng.choice([1.0, 0.5])),
        nn.GELU(), nn.GELU("tanh"), nn.Sigmoid(), nn.SiLU(), nn.Mish(), nn.Softplus(rng.choice([1, 3])),
        nn.Softshrink(), nn.Softsign(), nn.Tanh(), nn.Tanhshrink(), nn.Threshold(0.1, -0.3),
        nn.Softmin(-1), nn.Softmax(-1), nn.LogSoftmax(-1), nn.Dropout(0.5),
    ]  # fmt: skip


def layer(name: str, *layers: nn.Module) -> Step:
    return Step(name, lambda x, *called: nn.Sequential(*called)(x), *layers)


def activation(x: Tensor, rng: random.Random) -> Step:
    chosen = rng.choice(activations(rng))
    return layer(type(chosen).__name__, chosen)


def gate(x: Tensor, rng: random.Random) -> Step:
    axis = rng.choice([axis for axis in range(x.dim()) if x.shape[axis] % 2 == 0])
    return layer("GLU", nn.GLU(axis))


def dense(x: Tensor, rng: random.Random) -> Step:
    return layer("Linear", nn.Linear(x.shape[-1], rng.choice([3, 8, 16]), bias=rng.random() < 0.7))


def convolution(x: Tensor, rng: random.Random) -> Step:
    rank = x.dim() - 2
    kinds = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
    channels = x.shape[1]
    groups = rng.choice([1, 1, channels])
    made = kinds[rank](
        channels, channels * rng.choice([1, 2]), rng.choice([1, 2, 3]), stride=rng.choice([1, 1, 2]),
        padding=rng.choice([0, 1, 2]), dilation=rng.choice([1, 1, 2]), groups=groups,
        bias=rng.random() < 0.7, padding_mode=rng.choice(["zeros", "zeros", "reflect", "replicate", "circular"]),
    )  # fmt: skip
    return layer(kinds[rank].__name__, made)


def transposed_convolution(x: Tensor, rng: random.Random) -> Step:
    kinds = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d}
    channels, stride = x.shape[1], rng.choice([1, 2])
    made = kinds[x.dim() - 2](
        channels, rng.choice([2, 4]), rng.choice([2, 3]), stride=stride, padding=rng.choice([0, 1]),
        output_padding=rng.choice([0, stride - 1]), dilation=rng.choice([1, 1, 2]),
    )  # fmt: skip
    return layer(type(made).__name__, made)


def norm(x: Tensor, rng: random.Random) -> Step:
    channels, affine = x.shape[1], rng.random() < 0.5
    rank = x.dim()
    kinds: list[nn.Module] = [
        nn.LayerNorm(x.shape[-rng.randint(1, rank - 1) :], elementwise_affine=affine),
        nn.GroupNorm(rng.choice([1, channels]), channels, affine=affine),
        nn.RMSNorm(x.shape[-1:], elementwise_affine=affine, eps=1e-5),
        nn.LocalResponseNorm(rng.choice([2, 3])),
    ]
    batch = {3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    instance = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}
    if rank in batch:
        tracked = rng.random() < 0.5
        kinds += [
            batch[rank](channels, affine=affine),
            instance[rank](channels, affine=affine, track_running_stats=tracked),
        ]
    chosen = rng.choice(kinds)
    for name, values in [*chosen.named_parameters(), *chosen.named_buffers()]:
        if values.is_floating_point():
            values.data.uniform_(0.5, 1.5)
            values.data.mul_(-1 if name == "bias" else 1)
    return layer(type(chosen).__name__, chosen)


def pool(x: Tensor, rng: random.Random) -> Step:
    count = x.dim() - 2
    ceil, size, stride = rng.random() < 0.4, rng.choice([2, 3]), rng.choice([None, 1, 2])
    pad = rng.choice([0, 1])
    kinds = [
        getattr(nn, f"MaxPool{count}d")(size, stride, pad, rng.choice([1, 1, 2]), ceil_mode=ceil),
        getattr(nn, f"AvgPool{count}d")(
            size, stride, pad, ceil_mode=ceil, count_include_pad=rng.random() < 0.5
        ),
        getattr(nn, f"AdaptiveAvgPool{count}d")(rng.choice([1, 2, 3])),
        getattr(nn, f"AdaptiveMaxPool{count}d")(rng.choice([1, 2, 3])),
    ]
    if count < 3:
        kinds.append(getattr(nn, f"LPPool{count}d")(2, size, stride, ceil))
    chosen = rng.choice(kinds)
    return layer(type(chosen).__name__, chosen)


def interpolation(x: Tensor, rng: random.Random) -> Step:
    modes = {3: ["linear"], 4: ["bilinear", "bicubic"], 5: ["trilinear"]}[x.dim()]
    mode = rng.choice(["nearest", "nearest-exact", *modes])
    told: dict[str, Any] = {"mode": mode}
    if rng.random() < 0.5:
        told["size"] = tuple(rng.randint(2, 11) for _ in x.shape[2:])
    else:
        told["scale_factor"] = rng.choice([0.6, 1.5, 2.0, 1.7])
    if "nearest" not in mode:
        told["antialias"] = x.dim() == 4 and rng.random() < 0.4
        told["align_corners"] = not told["antialias"] and rng.random() < 0.5
    return Step(f"interpolate {mode}", lambda x: F.interpolate(x, **told))


def padding(x: Tensor, rng: random.Random) -> Step:
    mode = rng.choice(["constant", "reflect", "replicate", "circular"])
    axes = rng.randint(1, x.dim() - 1) if mode == "constant" else x.dim() - 2
    least = -1 if mode == "constant" else 0
    widths = [rng.randint(least, 2) for _ in range(2 * axes)]
    if mode == "constant":
        return Step("pad constant", lambda x: F.pad(x, widths, value=0.5))
    return Step(f"pad {mode}", lambda x: F.pad(x, widths, mode=mode))


def reduction(x: Tensor, rng: random.Random) -> Step:
    axis, keep = rng.randrange(-1, x.dim()), rng.random() < 0.7
    kinds: dict[str, Callable[[Tensor], Tensor]] = {
        "sum": lambda x: x.sum(axis, keepdim=keep),
        "mean": lambda x: x.mean((axis, 0), keepdim=keep) if axis > 0 else x.mean(axis, keepdim=keep),
        "amax": lambda x: x.amax(axis, keepdim=keep),
        "amin": lambda x: x.amin(axis, keepdim=keep),
        "max": lambda x: x.max(axis, keepdim=keep)[0],
        "min": lambda x: x.min(axis, keepdim=keep).values,
        "median": lambda x: x.median(axis, keepdim=keep)[0],
        "prod": lambda x: x.clamp(-1.5, 1.5).prod(axis, keepdim=keep),
        "std": lambda x: x.std(axis, keepdim=keep, unbiased=False),
        "var": lambda x: x.var(axis, keepdim=keep, correction=0),
        "logsumexp": lambda x: x.logsumexp(axis, keepdim=keep),
        "norm 1": lambda x: x.norm(1, axis, keepdim=keep),
        "norm 2": lambda x: x.norm(2, axis, keepdim=keep),
        "norm inf": lambda x: x.norm(float("inf"), axis, keepdim=keep),
        "aminmax": lambda x: torch.stack([*torch.aminmax(x, dim=axis, keepdim=keep)], -1),
        "quantile": lambda x: torch.quantile(x, 0.3, dim=axis, keepdim=keep),
        "any": lambda x: (x > 0.5).any(axis, keepdim=keep).to(x.dtype),
        "all": lambda x: (x > -0.5).all(axis, keepdim=keep).to(x.dtype),
        "count_nonzero": lambda x: F.relu(x).count_nonzero(axis).to(x.dtype),
    }  # fmt: skip
    name = rng.choice(sorted(kinds))
    return Step(name, kinds[name])


def shape(x: Tensor, rng: random.Random) -> Step:
    rank = x.dim()
    axis = rng.randrange(rank)
    order = rng.sample(range(rank), rank)
    size = x.shape[axis]
    kinds: dict[str, Callable[[Tensor], Tensor]] = {
        "permute": lambda x: x.permute(order),
        "flip": lambda x: x.flip(sorted({axis, order[0]})),
        "roll": lambda x: x.roll((2, -1), (axis, order[0])),
        "roll flat": lambda x: x.roll(3),
        "unfold": lambda x: x.unfold(axis, min(2, size), 1),
        "chunk": lambda x: torch.cat(x.chunk(3, axis)[::-1], axis),
        "split": lambda x: torch.cat([torch.split(x, 2, axis)[-1], x], axis),
        "stack": lambda x: torch.stack([x, x * 2], axis),
        "unbind": lambda x: sum(x.unbind(axis)[1:], x.unbind(axis)[0]),
        "slice": lambda x: x[(slice(None),) * axis + (slice(size // 3, None, 2),)],
        "negative slice": lambda x: x.narrow(axis, 0, size)[..., -2:],
        "select": lambda x: x.select(axis, -1),
        "expand": lambda x: x.unsqueeze(axis).expand(*x.shape[:axis], 2, *x.shape[axis:]),
        "repeat": lambda x: x.repeat(*[1] * axis, 2, *[1] * (rank - axis - 1)),
        "repeat_interleave": lambda x: x.repeat_interleave(2, axis),
        "tile": lambda x: x.tile(2),
        "flatten": lambda x: x.flatten(max(axis - 1, 0), axis),
        "transpose": lambda x: x.transpose(0, -1) + 0 * x.transpose(0, -1),
        "reshape": lambda x: x.reshape(x.shape[0], -1),
        "squeeze": lambda x: x[:1].squeeze(0),
        "movedim": lambda x: x.movedim(0, -1),
        "rot90": lambda x: x.rot90(1, (axis, (axis + 1) % rank)),
        "tril": lambda x: x.tril(rng_offset),
        "triu": lambda x: x.triu(rng_offset),
        "diagonal": lambda x: torch.diagonal(x, rng_offset, -2, -1),
        "diff": lambda x: x.diff(dim=axis),
        "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
        "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
        "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
        "im2col": lambda x: F.unfold(x, 2, padding=1, stride=2),
        "kron": lambda x: torch.kron(x, torch.ones(1, 2, dtype=x.dtype)),
        "meshgrid": lambda x: torch.meshgrid(x.flatten()[:3], x.flatten()[-2:], indexing="ij")[0],
    }
    rng_offset = rng.choice([-1, 0, 1])
    name = rng.choice(sorted(kinds))
    return Step(name, kinds[name])


def cast(x: Tensor, rng: random.Random) -> Step:
    kinds: dict[str, Callable[[Tensor], Tensor]] = {
        "float16": lambda x: x.to(torch.float16).to(x.dtype),
        "bfloat16": lambda x: x.to(torch.bfloat16).to(x.dtype),
        "bfloat16 abs": lambda x: x.to(torch.bfloat16).abs().to(x.dtype),
        "int32": lambda x: (x * 3).to(torch.int32).to(x.dtype),
        "int8": lambda x: (x * 3).clamp(-100, 100).to(torch.int8).to(x.dtype),
        "uint8": lambda x: (x * 3).clamp(0, 200).to(torch.uint8).to(x.dtype),
        "bool": lambda x: x.relu().to(torch.bool).to(x.dtype) + x,
    }
    name = rng.choice(sorted(kinds))
    return Step(f"cast {name}", kinds[name])


def integers(x: Tensor, rng: random.Random) -> Step:
    kind = rng.choice([torch.int32, torch.int64])
    divisor = rng.choice([-3, 2, 3, 7])
    kinds: dict[str, Callable[[Tensor], Tensor]] = {
        "floor_divide": lambda n: n // divisor,
        "trunc_divide": lambda n: torch.div(n, divisor, rounding_mode="trunc"),
        "remainder": lambda n: n % divisor,
        "fmod": lambda n: torch.fmod(n, divisor),
        "true_divide": lambda n: n / divisor,
        "power": lambda n: n**2,
        "bitwise": lambda n: (n & 6) ^ (n | 3),
        "invert": lambda n: ~n,
        "shift": lambda n: (n << 2) + (n >> 1),
        "sum": lambda n: n.sum(-1, keepdim=True),
        "mean": lambda n: n.to(torch.float32).mean(-1, keepdim=True),
        "clamp": lambda n: n.clamp(max=2) - n.clamp(min=-2, max=3),
        "abs sign": lambda n: n.abs() * n.sign(),
        "maximum": lambda n: torch.maximum(n, n.flip(-1)) * n.amax(),
        "compare": lambda n: (n < 1.5).to(n.dtype) + (n == 2) * 3,
        "cumsum": lambda n: n.cumsum(-1),
        "sort": lambda n: n.sort(-1)[0],
        "argmax": lambda n: (n * 64 + torch.arange(n.shape[-1])).argmax(-1),
        "one_hot": lambda n: F.one_hot(n.clamp(0, 3).long(), 4),
        "multiply float": lambda n: n * 0.3,
    }
    name = rng.choice(sorted(kinds))
    return Step(
        f"integer {name}", lambda x: kinds[name]((x * 4).clamp(-60, 60).to(kind)).to(x.dtype)
    )


def elementwise(x: Tensor, rng: random.Random) -> Step:
    number = rng.choice([-1.5, 0.5, 2.0])
    kinds: dict[str, Callable[[Tensor], Tensor]] = {
        "clamp": lambda x: x.clamp(-0.5, 1.5),
        "clamp one bound": lambda x: x.clamp(max=1.0) + x.clamp_min(0.3),
        "clamp tensor": lambda x: x.clamp(-x.abs() / 2, torch.ones(1, dtype=x.dtype)),
        "where": lambda x: torch.where(x > number, x, x * 0.1),
        "where scalar": lambda x: torch.where(x < number, x, 2.0),
        "masked_fill": lambda x: x.masked_fill(x > 1, number),
        "masked_fill -1e9": lambda x: x.masked_fill(x < 0, -1e9).softmax(-1),
        "masked_fill -inf": lambda x: F.pad(x.masked_fill(x < 0, float("-inf")), (1, 0)).softmax(-1),
        "exp": lambda x: x.clamp(max=4).exp(),
        "expm1": lambda x: x.clamp(max=4).expm1(),
        "log": lambda x: (x.abs() + 0.1).log(),
        "log1p": lambda x: x.abs().log1p(),
        "log2": lambda x: (x.abs() + 0.1).log2() + (x.abs() + 0.1).log10(),
        "sqrt": lambda x: (x.abs() + 0.01).sqrt() + (x.abs() + 0.5).rsqrt(),
        "sin": lambda x: x.sin() + x.cos(),
        "atan": lambda x: x.atan() + torch.atan2(x, x.abs() + 1),
        "sinh": lambda x: x.clamp(-2, 2).sinh() + x.asinh(),
        "tan": lambda x: x.tanh().tan() + (x.tanh() * 0.9).atanh() + (x.tanh() * 0.9).acos(),
        "erf": lambda x: x.erf() + torch.special.expit(x),
        "erfc": lambda x: x.erfc(),
        "lgamma": lambda x: (x.abs() + 0.5).lgamma(),
        "pow": lambda x: x.abs() ** 1.7 + x.clamp(-3, 3) ** 3,
        "float_pow": lambda x: 2.0 ** x.clamp(-4, 4),
        "remainder": lambda x: (x * 8).round() % 3.0,
        "fmod": lambda x: torch.fmod((x * 8).round(), 3.0),
        "floor": lambda x: x.floor() + x.ceil() * 0.5 + x.trunc() * 0.25,
        "round": lambda x: (x * 2).round() + x.frac(),
        "sign": lambda x: x.sign() * x.abs().clamp(min=0.2),
        "copysign": lambda x: torch.copysign(x.abs() + 1, x.flip(-1)),
        "maximum": lambda x: torch.maximum(x, x.flip(0)) - torch.minimum(x, x.roll(1, -1)),
        "lerp": lambda x: torch.lerp(x, x.flip(-1), 0.3),
        "addcmul": lambda x: torch.addcmul(x, x, x.flip(-1), value=0.2),
        "logaddexp": lambda x: torch.logaddexp(x, x.flip(-1)),
        "hypot": lambda x: torch.hypot(x, x.flip(-1)),
        "nan_to_num": lambda x: (x / x.relu().floor()).nan_to_num(1.0, 2.0, -2.0),
        "isfinite": lambda x: (1 / x.round()).isfinite().to(x.dtype),
        "logit": lambda x: torch.logit(x.sigmoid(), 1e-3),
        "xlogy": lambda x: torch.xlogy(x, x.abs() + 0.5),
        "sinc": lambda x: torch.sinc(x),
        "heaviside": lambda x: torch.heaviside(x, x * 0 + 0.5),
        "residual": lambda x: x + x.mean(-1, keepdim=True) * 0.5,
        "broadcast": lambda x: x * x.select(0, 0) - x.sum(),
        "softmax first": lambda x: x.softmax(0) + x.log_softmax(0),
        "logical": lambda x: ((x > 0) & (x < 1) | ~(x > -1)).to(x.dtype),
        "rsub": lambda x: 1 - x + torch.rsub(x, 2, alpha=3),
        "divide": lambda x: x / (x.abs() + 1) + 1 / (x.abs() + 1),
        "normalize": lambda x: F.normalize(x, dim=-1),
        "cosine": lambda x: F.cosine_similarity(x, x.flip(-1), -1),
    }  # fmt: skip
    name = rng.choice(sorted(kinds))
    return Step(name, kinds[name])


def ordered(x: Tensor, rng: random.Random) -> Step:
    axis, last = rng.randrange(x.dim()), x.shape[-1]
    table = nn.Embedding(7, 4)
    ids = torch.tensor([rng.randrange(last) for _ in range(3)])
    first = torch.tensor([rng.randrange(x.shape[0]) for _ in range(3)])
    most = min(2, x.shape[axis])
    kinds: dict[str, Callable[[Tensor], Tensor]] = {
        "cumsum": lambda x: x.cumsum(axis),
        "cumprod": lambda x: x.clamp(-1.3, 1.3).cumprod(axis),
        "cummax": lambda x: x.cummax(axis)[0],
        "logcumsumexp": lambda x: x.logcumsumexp(axis),
        "topk": lambda x: x.topk(most, axis, largest=axis != 0)[0],
        "sort": lambda x: x.sort(axis, descending=True)[0],
        "argsort": lambda x: x.gather(axis, x.argsort(axis)),
        "argmax": lambda x: x.argmax(axis).to(x.dtype),
        "kthvalue": lambda x: x.kthvalue(most, axis)[0],
        "bucketize": lambda x: torch.bucketize(x, torch.tensor([-1.1, 0.23, 0.71])).to(x.dtype),
        "searchsorted": lambda x: torch.searchsorted(
            x.sort(-1)[0].contiguous(), x.contiguous()
        ).to(x.dtype),
        "index": lambda x: x[..., ids],
        "index first": lambda x: x[first],
        "index two": lambda x: x[first, ..., ids],
        "index_select": lambda x: x.index_select(-1, ids),
        "take": lambda x: x.take(ids),
        "gather": lambda x: x.gather(-1, ids[:2].expand(*x.shape[:-1], 2)),
        "scatter": lambda x: x.scatter(-1, ids[:1].expand(*x.shape[:-1], 1), 0.5),
        "scatter_add": lambda x: x.scatter_add(-1, ids.expand(*x.shape[:-1], 3), x[..., ids]),
        "scatter_reduce": lambda x: x.scatter_reduce(-1, ids.expand(*x.shape[:-1], 3), x[..., ids], "amax"),
        "index_add": lambda x: x.index_add(-1, ids, x[..., ids]),
        "set slice": lambda x: _with_slice(x, 0.25),
        "set mask": lambda x: torch.where(x > 0, x, x.mean()).masked_fill(x > 1, 0.5),
    }  # fmt: skip
    name = rng.choice([*sorted(kinds), "embedding", "embedding_bag"])
    if name == "embedding":
        return Step(name, lambda x, called: called((x * 2).clamp(0, 6).long()), table)
    if name == "embedding_bag":
        bag = nn.EmbeddingBag.from_pretrained(table.weight)
        return Step(name, lambda x, called: called((x * 2).clamp(0, 6).long().reshape(2, -1)), bag)
    return Step(name, kinds[name])


def _with_slice(x: Tensor, value: float) -> Tensor:
    changed = x.clone()
    changed[..., ::2] = value
    changed[:1] += 1
    return changed


def products(x: Tensor, rng: random.Random) -> Step:
    kinds: dict[str, Callable[[Tensor], Tensor]] = {
        "matmul": lambda x: x @ x.transpose(-1, -2),
        "einsum outer": lambda x: torch.einsum("...i,...j->...ij", x, x)[..., :3],
        "einsum": lambda x: torch.einsum("...ij,...kj->...ik", x, x),
        "einsum sum": lambda x: torch.einsum("...ij->...j", x),
        "cdist": lambda x: torch.cdist(x, x.flip(-2) + 0.5),
        "pairwise": lambda x: F.pairwise_distance(x, x.flip(-1)),
        "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
        "attention mask": lambda x: F.scaled_dot_product_attention(
            x, x, x, attn_mask=torch.ones(x.shape[-2], x.shape[-2]).tril().bool()
        ),
        "tensordot": lambda x: torch.tensordot(x, x, ([-1], [-1])),
        "baddbmm": lambda x: torch.baddbmm(
            x.flatten(0, -3)[..., :1], x.flatten(0, -3), x.flatten(0, -3).transpose(1, 2), beta=0.5
        ),
    }  # fmt: skip
    name = rng.choice(sorted(kinds))
    return Step(name, kinds[name])


def sequence(x: Tensor, rng: random.Random) -> Step:
    width, both = x.shape[-1], rng.random() < 0.5
    recurrent = rng.choice([nn.LSTM, nn.GRU, nn.RNN])
    if rng.random() < 0.6:
        made = recurrent(
            width, 4, rng.choice([1, 2]), batch_first=rng.random() < 0.5, bidirectional=both
        )
        return Step(recurrent.__name__, lambda x, called: called(x)[0], made)
    if rng.random() < 0.5:
        attention = nn.MultiheadAttention(width, 1, batch_first=True)
        return Step("MultiheadAttention", lambda x, called: called(x, x, x)[0], attention)
    return layer(
        "TransformerEncoderLayer", nn.TransformerEncoderLayer(width, 1, 8, batch_first=True)
    )


KINDS: list[tuple[Callable[[Tensor, random.Random], Step], set[int]]] = [
    (activation, {2, 3, 4, 5}), (activation, {2, 3, 4, 5}), (elementwise, {2, 3, 4, 5}),
    (elementwise, {2, 3, 4, 5}), (gate, {2, 3, 4}), (dense, {2, 3, 4}), (convolution, {3, 4, 5}),
    (convolution, {4}), (transposed_convolution, {3, 4}), (norm, {2, 3, 4, 5}), (pool, {3, 4, 5}),
    (interpolation, {3, 4, 5}), (padding, {3, 4, 5}), (reduction, {2, 3, 4, 5}),
    (shape, {2, 3, 4, 5}), (shape, {2, 3, 4}), (cast, {2, 3, 4}), (integers, {2, 3, 4}), (ordered, {2, 3, 4}),
    (products, {3, 4}), (sequence, {3}),
]  # fmt: skip
"""What makes a step, and for values of how many axes."""


def drawn(shape: tuple[int, ...]) -> Tensor:
    """Return normal numbers among which are zeros, ties and large ones."""
    x = torch.randn(shape) * 1.5
    kind = torch.rand(shape)
    x[kind < 0.05] = 0.0
    x[(kind > 0.05) & (kind < 0.1)] = 0.5
    x[(kind > 0.1) & (kind < 0.12)] = 12.0
    x[(kind > 0.12) & (kind < 0.14)] = -12.0
    return x


def random_module(seed: int) -> tuple[RandomModule, tuple[int, ...]]:
    """Return a module in evaluation mode and the shape of its input."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    shape = rng.choice([(2, 8), (2, 5, 8), (1, 4, 7, 8), (2, 4, 6, 6), (1, 2, 4, 5, 6)])
    x = drawn(shape)
    steps: list[Step] = []
    length = rng.randint(4, 9)
    for _ in range(20 * length):
        makes, ranks = rng.choice(KINDS)
        if len(steps) == length or x.dim() < 2:
            break
        if x.dim() not in ranks:
            continue
        try:
            step = makes(x, rng).eval()
            with torch.no_grad():
                result = step(x)
        except (RuntimeError, ValueError, IndexError, AssertionError, TypeError):
            continue  # it does not fit this shape
        if 0 < result.numel() <= 20_000 and not result.isnan().any() and result.abs().max() < 1e6:
            steps.append(step)
            x = result
    outputs = {place for place in range(len(steps) - 1) if rng.random() < 0.25}
    return RandomModule(steps, outputs).eval(), shape


@dataclass(frozen=True)
class Verdict:
    """Outcome of one module.

    Attributes:
        kind: ok, refused, differs (refused, as an output differs) or wrong.
        reason: of a refusal, the operator where it is named.
        steps: names of the module's steps.
    """

    kind: str
    reason: str
    steps: str


def verdict_of(seed: int) -> Verdict:
    module, shape = random_module(seed)
    steps = ", ".join(step.name for step in module.steps)  # type: ignore[misc]
    torch.manual_seed(1000 + seed)
    try:
        compiled = tencost.compile(module, (drawn(shape),))
    except TencostError as error:
        text = " ".join(str(error).split())
        kind = "differs" if "differs from" in text else "refused"
        named = re.search(r"has no operator (.*?)\. Write", text)
        return Verdict(kind, named.group(1) if named else text, steps)
    double = copy.deepcopy(module).double()
    for _ in range(3):
        x = drawn(shape)
        with torch.no_grad():
            expected, exact = module(x), double(x.double())
        outputs = compiled(x)
        outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
        for place, (output, eager, truth) in enumerate(zip(outputs, expected, exact, strict=True)):
            found = difference(torch.as_tensor(output), eager, truth)
            if found:
                return Verdict("wrong", f"output {place}: {found}", steps)
    return Verdict("ok", "", steps)


def difference(output: Tensor, eager: Tensor, exact: Tensor) -> str:
    """Return how an output differs from PyTorch's; "" if within rounding of either its or of the exact numbers."""
    if output.shape != eager.shape or output.dtype != eager.dtype:
        return f"{tuple(output.shape)} {output.dtype} for {tuple(eager.shape)} {eager.dtype}"
    if not eager.is_floating_point():
        count = int((output != eager).sum())
        return f"{count} of {eager.numel()} differ" if count else ""
    tolerance = TOLERANCES.get(eager.dtype, 1e-4)
    ours, theirs, exact = output.double(), eager.double(), exact.double()
    finite = theirs.isfinite()
    if not torch.equal(ours.isnan(), theirs.isnan()) or not torch.equal(
        ours[~finite & ~theirs.isnan()], theirs[~finite & ~theirs.isnan()]
    ):
        return "other values are not finite"
    # PyTorch's own rounding error shows how far sums of large values may lie from the exact result.
    rounding = torch.where(finite & exact.isfinite(), (theirs - exact).abs(), 0.0)
    allowed = tolerance * (1 + theirs.abs()) + 10 * rounding
    off = finite & ((ours - theirs).abs() > allowed)
    if not off.any():
        return ""
    worst = torch.where(off, (ours - theirs).abs(), 0.0).flatten().argmax()
    values = [float(values.flatten()[worst]) for values in (ours, theirs, exact)]
    return f"{int(off.sum())} of {off.numel()} differ: {values[0]:.7g} for {values[1]:.7g}, exactly {values[2]:.7g}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_module_computes_what_pytorch_does_or_is_refused(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    verdict = verdict_of(seed)
    assert verdict.kind in ("ok", "refused"), f"{verdict.reason} [{verdict.steps}]"


def write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    kinds: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            verdict = verdict_of(seed)
            kinds[verdict.kind] += 1
            write(f"{seed} {verdict.kind} {verdict.reason} [{verdict.steps}]")
            if verdict.kind == "refused":
                refusals.update(verdict.reason.split(", "))
    write(str(dict(kinds)))
    for operator, count in refusals.most_common():
        write(f"  refused {count}: {operator}")
    return int(bool(kinds["wrong"] + kinds["differs"]))


if __name__ == "__main__":
    sys.exit(main())
