"""Ranking losses as gradients over program scores, and metrics to watch a validation split.

Legend: N programs, L lists, M programs in the longest list. A list never holds programs of two
groups.

Losses (s score, y label in [0, 1], both higher is faster; n programs in the list):
    pairwise    sum over pairs y_i > y_j of (y_i - y_j) ** power * log(1 + exp(s_j - s_i)) / n
                (RankNet, Burges et al. 2005, weighted by how much a mistake costs)
    lambdarank  the same times |1 / log2(1 + rank_i) - 1 / log2(1 + rank_j)| * 4 (Burges 2010; the
                gain is the label)
    listwise    cross entropy between softmax(y / temperature) and softmax(s) (ListNet, Cao et al.
                2007), times n
    regression  (s - y) ** 2 / 2
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tencost.features.rows.ragged import IntArray

Floats = npt.NDArray[np.float64]

MAX_LIST = 256
"""Longer groups are cut into random lists of at most this many programs: pairs grow with the
square."""

_BLOCK_PAIRS = 1 << 18
"""Pairs that are worked on at a time: few enough to stay in a CPU's caches."""

_LANES, _BLOCK = 8, 128
"""How NumPy adds up a row: in so many running sums, in blocks of so many numbers. In a row of one block, zeros behind a
multiple of the former change no bit of the sum."""

OBJECTIVES = ("pairwise", "lambdarank", "listwise", "regression")


@dataclass(frozen=True)
class Lists:
    """Programs of each group side by side, padded.

    Attributes:
        index: int64 [L, M], program ids; 0 where padded.
        mask: bool [L, M], False where padded.
    """

    index: IntArray
    mask: npt.NDArray[np.bool_]

    @classmethod
    def from_groups(cls, group: IntArray, *, seed: int = 0, limit: int | None = MAX_LIST) -> Lists:
        """Make lists from group ids, int64 [N]; `limit=None` keeps every group whole."""
        rng = np.random.default_rng(seed)
        order = np.argsort(group, kind="stable")
        cuts = np.flatnonzero(np.diff(group[order])) + 1
        members = []
        for programs in np.split(order, cuts):
            if limit is None or len(programs) <= limit:
                members.append(programs)
            else:
                shuffled = rng.permutation(programs)
                members += np.array_split(shuffled, -(-len(programs) // limit))
        width = max((len(programs) for programs in members), default=0)
        index = np.zeros((len(members), width), np.int64)
        mask = np.zeros((len(members), width), bool)
        for row, programs in enumerate(members):
            index[row, : len(programs)] = programs
            mask[row, : len(programs)] = True
        return cls(index, mask)

    def gather(self, values: npt.NDArray[np.floating], fill: float) -> Floats:
        """Lay per-program values, [N], into the lists: float64 [L, M]."""
        return np.where(self.mask, values[self.index].astype(np.float64), fill)

    def scatter(self, values: Floats, size: int) -> Floats:
        """Undo `gather`: float64 [N]."""
        out = np.zeros(size)
        out[self.index[self.mask]] = values[self.mask]
        return out


class RankingLoss:
    """Gradient and hessian of a loss of this module with respect to program scores."""

    def __init__(
        self,
        objective: str,
        label: npt.NDArray[np.float32],
        group: IntArray,
        *,
        power: float = 1.0,
        temperature: float = 0.25,
        seed: int = 0,
    ) -> None:
        """Prepare what does not depend on the scores.

        Args:
            objective: one of OBJECTIVES.
            label: float32 [N].
            group: int64 [N].
            power: exponent of the label difference (pairwise, lambdarank).
            temperature: of the labels' softmax (listwise).
            seed: of the cuts of groups longer than MAX_LIST.
        """
        assert objective in OBJECTIVES, (
            f"objective must be one of {OBJECTIVES}, found {objective!r}"
        )
        self._objective = objective
        self._label = label.astype(np.float64)
        self._lists = Lists.from_groups(group, seed=seed)
        sizes = self._lists.mask.sum(axis=1, keepdims=True)
        if objective == "listwise":
            self._sizes = sizes
            self._wanted = _softmax(self._lists.gather(label / temperature, -np.inf))
        elif objective != "regression":
            gains = self._lists.gather(label, np.nan)
            self._parts = [
                (rows, width, _pair_weights(gains[rows, :width], power) / sizes[rows][:, :, None])
                for rows, width in _parts(sizes[:, 0], self._lists.mask.shape[1])
            ]

    def __call__(self, scores: npt.NDArray[np.floating]) -> tuple[Floats, Floats]:
        """Return (gradient, hessian), each float64 [N]; the hessian is at least 1e-6."""
        if self._objective == "regression":
            return scores - self._label, np.ones_like(self._label)
        if self._objective == "listwise":
            guess = _softmax(self._lists.gather(scores, -np.inf))
            gradient = (guess - self._wanted) * self._sizes
            hessian = guess * (1.0 - guess) * self._sizes
        else:
            gradient, hessian = self._pairs(self._lists.gather(scores, 0.0))
        size = len(self._label)
        return self._lists.scatter(gradient, size), np.maximum(
            self._lists.scatter(hessian, size), 1e-6
        )

    def _pairs(self, scores: Floats) -> tuple[Floats, Floats]:
        gradient, hessian = np.zeros_like(scores), np.zeros_like(scores)
        for rows, width, weight in self._parts:
            gradient[rows, :width], hessian[rows, :width] = self._part_pairs(
                scores[rows, :width], self._lists.mask[rows, :width], weight
            )
        return gradient, hessian

    def _part_pairs(
        self, scores: Floats, mask: npt.NDArray[np.bool_], weight: Floats
    ) -> tuple[Floats, Floats]:
        wrong = scores[:, :, None] - scores[:, None, :]
        np.clip(wrong, -50.0, 50.0, out=wrong)
        np.exp(wrong, out=wrong)
        wrong += 1.0
        np.divide(1.0, wrong, out=wrong)
        if self._objective == "lambdarank":
            padded = np.where(mask, -scores, np.inf)
            ranks = np.argsort(np.argsort(padded, axis=1, kind="stable"), axis=1, kind="stable")
            discount = 1.0 / np.log2(2.0 + ranks)
            weight = weight * np.abs(discount[:, :, None] - discount[:, None, :]) * 4.0
        pull = weight * wrong
        np.subtract(1.0, wrong, out=wrong)
        wrong *= pull
        return pull.sum(axis=1) - pull.sum(axis=2), wrong.sum(axis=1) + wrong.sum(axis=2)


def _pair_weights(gains: Floats, power: float) -> Floats:
    """Weigh the pairs whose first program is the faster, float64 [L, M, M]; 0 for others; NaN is no program."""
    ahead = gains[:, :, None] - gains[:, None, :]
    with np.errstate(invalid="ignore"):
        return np.where(ahead > 0, np.abs(ahead) ** power, 0.0)


def _parts(sizes: IntArray, longest: int) -> list[tuple[IntArray, int]]:
    """Divide lists into parts of about one length: (which lists, programs of the longest of them and a few).

    A part has `_BLOCK_PAIRS` pairs at most, unless it is one list. Most tasks have far fewer programs than the one
    with most, and pairs grow with the square. A list's sums have the same bits in any part.
    """
    widths = np.minimum(-(-sizes // _LANES) * _LANES, longest)
    if longest > _BLOCK:
        widths = np.full_like(sizes, longest)
    parts = []
    for width in np.unique(widths).tolist():
        rows = np.flatnonzero(widths == width)
        step = max(1, _BLOCK_PAIRS // max(1, width**2))
        parts += [(rows[start : start + step], width) for start in range(0, len(rows), step)]
    return parts


class RankingMetrics:
    """How well scores order the programs of each group: means over groups of two or more.

    pairwise    share of pairs with different labels whose scores are in the labels' order (ties
                count half)
    top1        label of the program scored highest / best label of the group
    top5        best label among the five scored highest / best label of the group
    choice      pairwise + (mean label of the top 3 / best + top5) / 4: what early stopping
                maximises. It is steadier than any one of them on a validation split of few tasks.
    """

    def __init__(self, label: npt.NDArray[np.float32], group: IntArray) -> None:
        lists = Lists.from_groups(group)
        enough = lists.mask.sum(axis=1) >= 2
        self._lists = Lists(lists.index[enough], lists.mask[enough])
        label_lists = self._lists.gather(label, np.nan)
        self._label = (
            label_lists / np.nanmax(label_lists, axis=1, keepdims=True)
            if enough.any()
            else label_lists
        )
        self._order = np.triu(_orders(self._label), 1) if enough.any() else None

    def __call__(self, scores: npt.NDArray[np.floating]) -> dict[str, float]:
        """Return the metrics by name (`choice` is at most 1.5); empty if no group can be compared."""
        if self._order is None:
            return {}
        guess, truth = self._lists.gather(scores, -np.inf), self._label
        pairs = np.count_nonzero(self._order, axis=(1, 2))
        agreed = (self._order * _orders(guess)).sum(axis=(1, 2), dtype=np.int64)
        right = 0.5 * (pairs + agreed)
        pairwise = float(np.mean(right[pairs > 0] / pairs[pairs > 0])) if (pairs > 0).any() else 0.5
        order = np.argsort(-guess, axis=1, kind="stable")
        ranked = np.take_along_axis(truth, order, axis=1)
        top1, top5 = float(ranked[:, 0].mean()), float(np.nanmax(ranked[:, :5], axis=1).mean())
        top3 = float(np.nanmean(ranked[:, :3], axis=1).mean())
        return {
            "pairwise": pairwise,
            "top1": top1,
            "top5": top5,
            "choice": pairwise + (top3 + top5) / 4.0,
        }


def _orders(values: Floats) -> npt.NDArray[np.int8]:
    """Compare the values of each list: int8 [L, M, M], 1 where the first is larger, -1 where the second is, else 0."""
    first, second = values[:, :, None], values[:, None, :]
    return (first > second).astype(np.int8) - (first < second).astype(np.int8)


def _softmax(values: Floats) -> Floats:
    """Softmax over the last axis; -inf entries get 0."""
    shifted = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True), dtype=np.float64)
