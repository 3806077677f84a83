"""ONNX's Resize along one axis as a table of places, or as a matrix: https://onnx.ai/onnx/operators/onnx__Resize.html."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tencost.networks.inputs import Array


@dataclass(frozen=True, kw_only=True)
class ResizeAxis:
    """What Resize does along one axis.

    Attributes:
        size_in: its size before.
        size_out: its size afterwards.
        scale: size_out / size_in before size_out was rounded.
        mode: nearest, linear or cubic.
        coordinates: coordinate_transformation_mode; not tf_crop_and_resize.
        nearest: nearest_mode.
        cubic: cubic_coeff_a.
        exclude_outside: values outside the axis do not count; else they are those at its ends.
        antialias: linear and cubic windows are widened when the axis shrinks.
    """

    size_in: int
    size_out: int
    scale: float
    mode: str
    coordinates: str
    nearest: str
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False

    def places(self) -> Array:
        """Return which value each new place takes in mode nearest, int64 [size_out]."""
        roundings: dict[str, Callable[[Array], Array]] = {
            "round_prefer_floor": lambda place: np.ceil(place - 0.5),
            "round_prefer_ceil": lambda place: np.floor(place + 0.5),
            "floor": np.floor,
            "ceil": np.ceil,
        }
        rounded = roundings[self.nearest](self._origins())
        return np.clip(rounded, 0, self.size_in - 1).astype(np.int64)

    def matrix(self) -> Array:
        """Return the weight of each old value in each new one in mode linear or cubic, float64 [size_out, size_in]."""
        origins = self._origins()
        shrunk = min(self.scale, 1.0) if self.antialias else 1.0
        reach = 2.0 if self.mode == "cubic" else 1.0
        first = int(np.floor(-reach / shrunk)) + 1
        offsets = np.arange(first, 2 - first)  # as many on either side
        base = np.floor(origins)
        distance = (offsets[None, :] - (origins - base)[:, None]) * shrunk
        weights = self._kernel(distance)
        places = (base[:, None] + offsets[None, :]).astype(np.int64)
        if self.exclude_outside:
            weights = np.where((places < 0) | (places >= self.size_in), 0.0, weights)
        weights /= weights.sum(axis=1, keepdims=True)
        matrix = np.zeros((self.size_out, self.size_in))
        rows = np.broadcast_to(np.arange(self.size_out)[:, None], places.shape)
        np.add.at(matrix, (rows, np.clip(places, 0, self.size_in - 1)), weights)
        return matrix

    def _kernel(self, distance: Array) -> Array:
        size = np.abs(distance)
        if self.mode == "linear":
            return np.clip(1.0 - size, 0.0, 1.0)
        a = self.cubic
        near = (a + 2) * size**3 - (a + 3) * size**2 + 1
        far = a * size**3 - 5 * a * size**2 + 8 * a * size - 4 * a
        return np.where(size <= 1, near, np.where(size < 2, far, 0.0))

    def _origins(self) -> Array:
        """Return where each new place was before, float64 [size_out]."""
        place = np.arange(self.size_out, dtype=np.float64)
        whole = self.scale * self.size_in
        if self.coordinates == "asymmetric":
            return place / self.scale
        if self.coordinates == "align_corners":
            return place * ((self.size_in - 1) / (whole - 1)) if whole > 1 else 0 * place
        origins = (place + 0.5) / self.scale - 0.5
        if self.coordinates == "half_pixel_symmetric":
            center = self.size_in / 2
            return origins + center * (1 - self.size_out / whole)
        if self.coordinates == "pytorch_half_pixel" and self.size_out == 1:
            return 0 * place
        return origins
