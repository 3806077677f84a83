"""Calibration: raw scores of any sign and size into (0, 1], order kept.

MetaSchedule clamps negative scores to 0 and draws parents in proportion to their scores, so raw
ranking scores would silently turn its search into a random one. The map here is rational, not a
sigmoid: it does not saturate in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float64]

LOWEST_SCORE = 1e-30
"""Score of a candidate that cannot be featurized: positive, and below every calibrated score."""

_FLOOR = 2e-30


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The map: z = (raw - center) / scale; 1 - 0.5 / (1 + z) for z >= 0, 0.5 / (1 - z) below."""

    center: float = 0.0
    """Raw score that becomes 0.5."""
    scale: float = 1.0
    """Raw distance from the center to 0.75 and to 0.25; positive and finite."""

    def __post_init__(self) -> None:
        assert np.isfinite(self.center), f"center must be finite, found {self.center}"
        assert 0 < self.scale < np.inf, f"scale must be positive, found {self.scale}"

    def __call__(self, raw: Scores) -> Scores:
        """Map raw scores, float64 [N], to scores in (0, 1], higher is faster.

        Every step is a monotone rounding, so the order is never reversed; it is strict wherever two
        raw scores lie further apart than 3e-16 * (1 + |z|)**2 scales. NaN becomes LOWEST_SCORE,
        alone below all others.
        """
        raw = np.asarray(raw, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            z = (raw - self.center) / self.scale
            tail = 0.5 / (1.0 + np.abs(z))
        score = np.maximum(np.where(z >= 0, 1.0 - tail, tail), _FLOOR)
        return np.where(np.isnan(raw), LOWEST_SCORE, score)


def fit_calibration(raw: Scores, label: npt.NDArray[np.float32]) -> Calibration:
    """Choose the center and scale whose scores come nearest to the labels.

    Least squares over a fixed grid, deterministic. Constant or empty raw scores give a centre on them and a scale of 1.

    Args:
        raw: float64 [N], raw scores of validation programs; NaN ones are ignored.
        label: float32 [N] in [0, 1].
    """
    usable = np.isfinite(raw)
    raw, target = np.asarray(raw, np.float64)[usable], np.asarray(label, np.float64)[usable]
    if len(raw) == 0:
        return Calibration()
    spread = float(raw.std())
    if not spread > 1e-12 * max(1.0, float(np.abs(raw).max())):
        return Calibration(center=float(raw.mean()))
    if len(raw) > 20_000:
        keep = np.linspace(0, len(raw) - 1, 20_000).astype(np.int64)
        raw, target = raw[keep], target[keep]
    best, chosen = np.inf, Calibration(center=float(np.median(raw)), scale=spread)
    for center in np.unique(np.quantile(raw, np.linspace(0.05, 0.95, 19))):
        for scale in spread * np.geomspace(0.05, 5.0, 17):
            candidate = Calibration(center=float(center), scale=float(scale))
            error = float(np.mean((candidate(raw) - target) ** 2))
            if error < best:
                best, chosen = error, candidate
    return chosen
