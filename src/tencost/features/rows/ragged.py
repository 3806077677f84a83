"""Ragged feature arrays: one variable-length block of rows a program.

Legend: N programs, R rows in total, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """Rows of N programs laid end to end.

    Attributes:
        values: float32 [R, C]; the rows of program i are ``values[offsets[i]:offsets[i + 1]]``.
        offsets: int64 [N + 1]; starts at 0, ends at R, never decreases. A program may have no rows.
    """

    values: FloatArray
    offsets: IntArray

    def __post_init__(self) -> None:
        assert self.values.ndim == 2, f"values must be [R, C], found shape {self.values.shape}"
        assert self.values.dtype == np.float32, f"values must be float32, found {self.values.dtype}"
        assert self.offsets.ndim == 1, f"offsets must be [N + 1], found {self.offsets.shape}"
        assert self.offsets[0] == 0, f"offsets must start at 0, found {self.offsets[0]}"
        assert self.offsets[-1] == len(self.values), "offsets must end at the number of rows"

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> FloatArray:
        """Return the rows of one program, float32 [rows, C]."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    @property
    def num_columns(self) -> int:
        return int(self.values.shape[1])

    @property
    def lengths(self) -> IntArray:
        """Rows per program, int64 [N]."""
        return np.diff(self.offsets)

    @property
    def segment_ids(self) -> IntArray:
        """The program that each row belongs to, int64 [R]."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.lengths)

    @classmethod
    def from_blocks(cls, blocks: Sequence[FloatArray], num_columns: int) -> Ragged:
        """Lay blocks of shape [rows_i, C] end to end."""
        lengths = np.fromiter((len(block) for block in blocks), dtype=np.int64, count=len(blocks))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        if offsets[-1] == 0:
            return cls(np.zeros((0, num_columns), np.float32), offsets)
        return cls(np.concatenate(list(blocks)).astype(np.float32, copy=False), offsets)

    def take(self, indices: IntArray) -> Ragged:
        """Select programs, in the order given (repetition allowed)."""
        indices = np.asarray(indices, dtype=np.int64)
        starts, lengths = self.offsets[indices], self.lengths[indices]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        rows = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - starts, lengths)
        return Ragged(self.values[rows], offsets)

    def with_columns(self, per_program: FloatArray) -> Ragged:
        """Append per-program columns, float32 [N, D], to every row of the program."""
        extra = np.repeat(per_program.astype(np.float32, copy=False), self.lengths, axis=0)
        return Ragged(np.concatenate([self.values, extra], axis=1), self.offsets)

    def segment_sum(self) -> FloatArray:
        """Sum the rows of each program: float32 [N, C]; a program without rows sums to 0."""
        totals = np.zeros((len(self), self.num_columns), np.float32)
        nonempty = self.lengths > 0
        if nonempty.any():
            totals[nonempty] = np.add.reduceat(self.values, self.offsets[:-1][nonempty], axis=0)
        return totals
