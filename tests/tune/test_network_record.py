from __future__ import annotations

from tencost.tune.curve import CurvePoint
from tencost.tune.network_record import tuning_seconds


def test_the_seconds_of_all_runs_of_a_work_folder_count() -> None:
    elapsed = [0.0, 4.0, 9.5, 3.0, 5.0, 5.0]  # two runs: 9.5 s, and 5 s
    points = [
        CurvePoint(trials=at, total_latency_s=1e-3, elapsed_s=one) for at, one in enumerate(elapsed)
    ]
    assert tuning_seconds(points) == 14.5
    assert tuning_seconds([]) == 0.0
