"""What the service counts, in the text format that Prometheus reads (version 0.0.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Upper ends, in seconds, of the histogram of answers' times."""


@dataclass
class Requests:
    """Requests for scores that were answered, and those whose client left."""

    by_status: Counter[int] = field(default_factory=Counter)
    departed: int = 0
    seconds: float = 0.0
    within: Counter[float] = field(default_factory=Counter)
    """Answers by the histogram's buckets, each with all that were faster."""

    def answered(self, status: int, seconds: float) -> None:
        """Count an answer: its status, and the seconds from the request's first byte to it."""
        self.by_status[status] += 1
        self.seconds += seconds
        self.within.update(end for end in BUCKETS if seconds <= end)


def text(requests: Requests, candidates: Mapping[str, int], now: Mapping[str, int]) -> str:
    """Return all metrics.

    Args:
        requests: what was answered.
        candidates: how many programs, by what was done with them.
        now: gauges by name, without the prefix.
    """
    total = requests.by_status.total()
    lines = [
        *_head("requests_total", "counter", "Requests for scores that were answered, by status."),
        *(
            _line(f'requests_total{{status="{status}"}}', count)
            for status, count in sorted(requests.by_status.items())
        ),
        *_head("clients_left_total", "counter", "Requests whose client left before the answer."),
        _line("clients_left_total", requests.departed),
        *_head("request_seconds", "histogram", "Seconds from a request to its answer."),
        *(
            _line(f'request_seconds_bucket{{le="{end:g}"}}', requests.within[end])
            for end in BUCKETS
        ),
        _line('request_seconds_bucket{le="+Inf"}', total),
        _line("request_seconds_sum", round(requests.seconds, 6)),
        _line("request_seconds_count", total),
        *_head("candidates_total", "counter", "Programs, by what was done with them."),
        *(
            _line(f'candidates_total{{how="{how}"}}', count)
            for how, count in sorted(candidates.items())
        ),
    ]
    for name, gauge in now.items():
        lines += _head(name, "gauge", f"{name.replace('_', ' ').capitalize()} at this moment.")
        lines.append(_line(name, gauge))
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP tencost_serve_{name} {about}", f"# TYPE tencost_serve_{name} {kind}"]


def _line(name: str, number: float) -> str:
    return f"tencost_serve_{name} {number}"
