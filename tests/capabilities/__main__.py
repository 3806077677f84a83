"""``python -m capabilities``: run the examples; ``python -m capabilities page``: write the page."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from capabilities.rows import PAGE, page, read_lanes
from capabilities.runner import run_all


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m capabilities", description=__doc__)
    parser.add_argument("action", nargs="?", choices=["run", "page"], default="run")
    parser.add_argument("--lane", action="append", help="run this lane only; may be repeated")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--keep", type=Path, help="a new folder that keeps what the examples write")
    arguments = parser.parse_args()
    if arguments.action == "page":
        PAGE.write_text(page())
        return 0
    lanes = [lane for lane in read_lanes() if not arguments.lane or lane.name in arguments.lane]
    return run_all(lanes, arguments.jobs, arguments.keep and arguments.keep.resolve())


sys.exit(main())
