from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relax_modules import compiled

pytestmark = pytest.mark.tvm

Function = Callable[..., Any]


class Called(nn.Module):
    """A function as a module; its outputs in one tuple."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = self.function(*tensors)
        return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def written(x: Tensor, places: Any, value: Any) -> Tensor:
    changed = x.clone()
    changed[places] = value
    return changed


def scattered(x: Tensor, source: Tensor, index: Tensor) -> list[Tensor]:
    return [
        x.scatter_reduce(1, index, source, name, include_self=include)
        for name in ("sum", "mean", "prod", "amax", "amin")
        for include in (True, False)
    ]


torch.manual_seed(0)
X, Y = torch.randn(2, 4, 5, 6), torch.randn(2, 4, 5, 6)
SIGNS = Y.clone()
SIGNS[0, 0, 0, :4] = torch.tensor([0.0, -0.0, float("inf"), -float("inf")])
WHOLE = torch.randint(-9, 9, (2, 4, 5, 6))
FEW = torch.randint(0, 4, (1, 3, 4, 6))
ROWS, COLUMNS = torch.tensor([0, 1, 1]), torch.tensor([1, 0, 0])

CASES: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "amax": (
        lambda x: (x.amax(1), x.amin((1, 2), keepdim=True), x.amax(()), (x > 0).amax(1)), (X,),
    ),
    "max": (
        lambda x, n: (*x.max(1), *x.min(-1, keepdim=True), *torch.aminmax(x, dim=1), *n.max(1)), (X, WHOLE),
    ),
    "prod": (lambda x, n: (x.prod(1), n.int().prod(2, keepdim=True)), (X, WHOLE % 3)),
    "group_norm": (
        lambda x: (F.group_norm(x, 2), F.group_norm(x[..., 0, 0], 2),
                   F.group_norm(x, 2, torch.ones(4) * 2, torch.ones(4))),
        (X,),
    ),
    "rrelu_and_shifts": (lambda x, n: (F.rrelu(x), n << 2, n >> 1), (X, WHOLE)),
    "multiples": (
        lambda x, y, n: (torch.add(x, y, alpha=2), torch.sub(x, y, alpha=0.5), torch.rsub(x, y, alpha=3),
                         torch.rsub(x, 2, alpha=3), n.add(n, alpha=2),
                         7 - n, 7 - n.int(), 1.5 - n, 1 - x, torch.rsub(n, n, alpha=2),
                         torch.add(x, 1, alpha=2), x.sub(2, alpha=3)),
        (X, Y, WHOLE),
    ),
    "norms": (
        lambda x: (*(torch.linalg.vector_norm(x, p, 1) for p in (0, 1, 2, 3, float("inf"), -float("inf"))),
                   x.logsumexp(-1), F.normalize(x)), (X,),
    ),
    "variances": (lambda x: (*torch.var_mean(x, 1), *torch.std_mean(x, (2, 3)), (x > 9).any()), (X,)),
    "scatter": (
        lambda x, y, few: (x.scatter_add(1, few, y), x.scatter_add(-1, few % 5, y), x.scatter(1, few, 0.5)),
        (X, Y, FEW),
    ),
    "scatter_source": (
        lambda x, y, places: x.scatter(1, places, y), (X, Y, torch.arange(3).reshape(1, 3, 1, 1).repeat(1, 1, 4, 5)),
    ),
    "scatter_reduce": (scattered, (X, Y, FEW)),
    "scatter_reduce_integers": (scattered, (WHOLE, WHOLE.flip(0).contiguous(), FEW)),
    "index_add": (lambda x, y, i: (x.index_add(1, i, y[:, :3]), x.index_copy(1, i[:2], y[:, :2])), (X, Y, ROWS)),
    "index": (
        lambda x, i, j: (x[:, i, j], x[i, :, j], x[i, ..., j], x[:, i[:, None], j], x[i, j, j, i], x[:, i, None, j]),
        (X, ROWS, COLUMNS),
    ),
    "index_put": (
        lambda x, i: (written(x, i[:2], 7.0), written(x, (slice(None), i, slice(None), i), 7.0),
                      written(x, x > 0, 0.0), written(x, (slice(None), slice(1, 3), 2), 3.0)), (X, ROWS),
    ),
    "unfold": (lambda x: (x.unfold(2, 3, 2), x.unfold(-1, 4, 1).unfold(1, 2, 2)), (X,)),
    "cdist": (lambda x, y: [torch.cdist(x, y, p=p) for p in (0, 1, 2, 3, float("inf"))], (X, Y[..., :3, :])),
    "cdist_of_many": (torch.cdist, (torch.randn(40, 7), torch.randn(50, 7))),
    "cummax": (lambda x, n: (*x.cummax(1), *x.cummin(-1), *n.cummax(2)), (X, WHOLE)),
    "kthvalue": (lambda x: (*x.kthvalue(3, 1), *x.kthvalue(2, -1, keepdim=True)), (X,)),
    "searchsorted": (
        lambda b, x, rows: (torch.searchsorted(b, x), torch.searchsorted(b, x, right=True),
                            torch.searchsorted(rows, x, side="right", out_int32=True), torch.searchsorted(b, 0.3)),
        (torch.arange(-2.0, 2.0, 0.25), (X * 4).round() / 4, Y.sort(-1)[0]),
    ),
    "adaptive_max_pool": (
        lambda x: (*F.adaptive_max_pool2d(x, (3, 4), return_indices=True), F.adaptive_max_pool2d(x, 1),
                   F.adaptive_max_pool1d(x[0], 5), *F.adaptive_max_pool3d(x, (3, 2, 4), return_indices=True)), (X,),
    ),
    "max_pool_indices": (
        lambda x: (*F.max_pool2d(x, 3, 2, 1, return_indices=True), *F.max_pool3d(x, 2, return_indices=True),
                   *F.max_pool2d(x, 2, 2, 0, 2, True, return_indices=True), F.max_pool3d(x, 2, ceil_mode=True),
                   F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), (2, 2), output_size=x.shape)), (X,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operators_that_the_frontend_lacks(name: str) -> None:
    function, tensors = CASES[name]
    module = Called(function)
    for place, (output, expected) in enumerate(
        zip(compiled(module, *tensors), module(*tensors), strict=True)
    ):
        torch.testing.assert_close(
            output, expected, rtol=1e-4, atol=1e-5, msg=f"output {place} of {name}"
        )


def test_the_sign_of_zero_is_copied() -> None:
    module = Called(
        lambda x, y, n: (torch.copysign(x, y), torch.copysign(x, -2.0), torch.copysign(n, y))
    )
    tensors = (X, SIGNS, WHOLE)
    for output, expected in zip(compiled(module, *tensors), module(*tensors), strict=True):
        assert torch.equal(output, expected)
        assert torch.equal(output.signbit(), expected.signbit())
