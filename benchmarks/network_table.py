"""What networks.py found: tables, plots, rows for records."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tencost.store.record_store import Added

PEER = "onnxruntime"
"""Ratios are to this arm."""
ORDER = (
    *("eager", "compile", "compile-frozen", PEER, "untuned"),
    *("stock-warm", "stock", "rules", "tencost"),
)
TOLERANCE = 1e-4
"""Largest difference from PyTorch's output, relative to its largest value, that is not told apart."""
ENGINES = {
    "eager": "pytorch",
    "compile": "torch.compile",
    PEER: "onnxruntime",
    "untuned": "tvm",
    "stock": "metaschedule",
    "rules": "tencost-rules",
    "tencost": "tencost",
}
"""What an arm's engine is called in records; `compile-frozen` is `torch.compile-frozen`, `stock-x10` is
`metaschedule-x10`: one name would put their times together."""
UNNAMED = "unknown"
"""The host of results that do not say where they were taken: not the one that stores them."""

Result = dict[str, Any]


def record_rows(result: Result) -> Iterator[dict[str, Any]]:
    """Yield for each arm of a result what a record of its timing holds; without an error or without seconds.

    The one place where results become records: names are those of a network's timing in the store.
    """
    versions = result["versions"]
    for arm, row in result["arms"].items():
        plain, dash, kind = arm.partition("-")
        engine = ENGINES[plain]
        tuned = "programs" in row
        prepared_s = None if plain == "eager" else row.get("seconds")
        around = (
            ("tencost", "tvm")
            if engine in ("tencost", "tencost-rules", "tvm", "metaschedule")
            else ("tencost",)
        )
        yield {
            "network": result["plain_name"],
            "variant": result["via"],
            "batch": result["batch"],
            "size": result["size"],
            "engine": f"{engine}{dash}{kind}",
            "engine_version": versions["tencost" if plain == "rules" else engine],
            "engine_config": {"arm": arm, "overrides": result["settings"]}
            | ({"model": row["model"]} if "model" in row else {}),
            "hardware": result["hardware"],
            "cores": result["cores"],
            "host": result["host"].get("name", UNNAMED),
            "hw_model": result["host"]["cpu"],
            "timestamp": result["timestamp"],
            "seconds": () if "error" in row else tuple(row["times_s"]),
            "error": row.get("error", ""),
            "code_size": row.get("code_bytes"),
            "compile_seconds": None if tuned else prepared_s,
            "tuning_seconds": prepared_s if tuned else None,
            "tuning_programs": row.get("programs"),
            "max_rel_error": row.get("max_rel_error"),
            "info": {
                "busy": result["busy"],
                "versions": {name: versions[name] for name in around if name in versions},
            },
            "source": "benchmarks/networks.py",
        }


def store(results: Sequence[Result], store_uri: str) -> Added:
    """Write every arm of results as a record beside a record store, those that are not there; return what was added.

    Raises:
        RecordError: the table cannot be written, what is there is none, or a result has times that are none.
    """
    from tencost.records.network_times.timing import NetworkTiming, write_timings

    rows = [row for result in results for row in record_rows(result)]
    return write_timings(store_uri, [NetworkTiming(**row) for row in rows])


def read_results(folder: Path) -> list[Result]:
    files = sorted(folder.glob("*.json"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def quartiles_ms(row: dict[str, Any]) -> tuple[float, float, float]:
    """Return an arm's (lower quartile, median, upper quartile) in milliseconds."""
    lower, median, upper = 1e3 * np.quantile(row["times_s"], (0.25, 0.5, 0.75))
    return float(lower), float(median), float(upper)


def timed(result: Result) -> dict[str, dict[str, Any]]:
    """Return the arms of a result that were timed to their end."""
    rows = result["arms"].items()
    return {arm: row for arm, row in rows if "times_s" in row and "error" not in row}


def ratios(result: Result) -> dict[str, float]:
    """Return each arm's time over ONNX Runtime's of the same turn, the median of all turns; empty without that arm."""
    rows = timed(result)
    if PEER not in rows:
        return {}
    peer = np.array(rows[PEER]["times_s"])
    return {arm: float(np.median(np.array(row["times_s"]) / peer)) for arm, row in rows.items()}


def arms_of(results: Sequence[Result]) -> list[str]:
    found = {arm for result in results for arm in result["arms"]}
    rest = sorted(found - set(ORDER))  # stock-x10
    at = ORDER.index("rules")
    return [arm for arm in (*ORDER[:at], *rest, *ORDER[at:]) if arm in found]


def report(folder: Path) -> str:
    """Return the tables as Markdown, and draw a plot for each number of cores beside the results."""
    results = read_results(folder)
    if not results:
        return f"no results in {folder} yet"
    parts = []
    for cores in sorted({result["cores"] for result in results}):
        here = [result for result in results if result["cores"] == cores]
        parts += [latencies(here, cores), ways(here), remarks(here)]
        plot(here, folder / f"networks-{cores}c.png", cores)
    return "\n\n".join(part for part in parts if part)


def latencies(results: Sequence[Result], cores: int) -> str:
    """Return the table of latencies."""
    arms = arms_of(results)
    lines = [
        f"{cores} core{'s' * (cores > 1)}: median [quartiles] of a call in ms (over {PEER}'s, median of all turns)",
        "",
        f"| network | {' | '.join(arms)} |",
        f"|---|{'---|' * len(arms)}",
    ]
    found: dict[str, list[float]] = {arm: [] for arm in arms}
    for result in results:
        rows, ratio = timed(result), ratios(result)
        for arm, value in ratio.items():
            found[arm].append(value)
        cells = [cell(rows.get(arm), ratio.get(arm), arm in result["arms"]) for arm in arms]
        lines.append(f"| {result['network']} | {' | '.join(cells)} |")
    for name, of in (("median ratio", statistics.median), ("worst ratio", max)):
        told = [f"{of(found[arm]):.2f} ({len(found[arm])})" if found[arm] else "" for arm in arms]
        lines.append(f"| {name} (of so many) | {' | '.join(told)} |")
    return "\n".join(lines)


def cell(row: dict[str, Any] | None, ratio: float | None, is_there: bool) -> str:
    if row is None:
        return "failed" if is_there else ""
    lower, median, upper = quartiles_ms(row)
    told = "" if ratio is None else f" ({ratio:.2f})"
    return f"{median:.3g} [{lower:.3g}, {upper:.3g}]{told}"


def ways(results: Sequence[Result]) -> str:
    """Return the table of what each arm took to get there."""
    lines = [
        "| network | arm | seconds | programs | tasks tuned | difference from PyTorch | code, MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        for arm in arms_of([result]):
            row = result["arms"][arm]
            if arm == "eager" or "seconds" not in row:
                continue
            tasks = f"{row['tasks_tuned']} of {row['tasks']}" if "tasks_tuned" in row else ""
            error = f"{row['max_rel_error']:.0e}" if "max_rel_error" in row else ""
            size = f"{row['code_bytes'] / 1e6:.1f}" if "code_bytes" in row else ""
            lines.append(
                f"| {result['network']} | {arm} | {row['seconds']:.0f} | {row.get('programs', '')} | {tasks} | {error} "
                f"| {size} |"
            )
    return "\n".join(lines)


def remarks(results: Sequence[Result]) -> str:
    """Return what failed and why, outputs that differ, and under what load arms were timed or tuned."""
    models = {result["arms"].get("tencost", {}).get("model") for result in results} - {None}
    lines = [f"- tencost with {', '.join(sorted(models))}"] if models else []
    for result in results:
        for arm, row in result["arms"].items():
            where = f"{result['network']}, {arm}"
            if "error" in row:
                lines.append(f"- {where}: failed: {row['error']}")
            elif not row.get("max_rel_error", 0.0) <= TOLERANCE:  # a NaN is not
                lines.append(f"- {where}: its output differs by {row['max_rel_error']:.1e}")
            if row.get("sittings", 1) > 1:
                lines.append(f"- {where}: made in {row['sittings']} sittings, as it was stopped")
        if result["busy"]:
            lines.append(
                f"- {result['network']}: the host was busy when it was timed: {result['busy']}"
            )
    return "\n".join(lines)


def plot(results: Sequence[Result], file: Path, cores: int) -> None:
    """Draw each arm's ratio to ONNX Runtime as bars, a group a network."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    results = [result for result in results if ratios(result)]
    arms = [arm for arm in arms_of(results) if arm != PEER]
    if not results or not arms:
        return
    figure, axis = plt.subplots(figsize=(max(6.0, 1.3 * len(results) + 2), 4))
    width = 0.8 / len(arms)
    for number, arm in enumerate(arms):
        places = [place + (number - (len(arms) - 1) / 2) * width for place in range(len(results))]
        heights = [ratios(result).get(arm, float("nan")) for result in results]
        color = "tab:red" if arm == "tencost" else f"C{[0, 1, 2, 4, 5, 6, 7, 8, 9][number % 9]}"
        axis.bar(places, heights, width, label=arm, color=color)
    axis.axhline(1.0, color="black", linewidth=1)
    axis.set_xticks(range(len(results)), [result["network"] for result in results], rotation=20)
    said = f"{cores} core{'s' * (cores > 1)}: time over {PEER}'s"
    axis.set(yscale="log", ylabel=said)
    axis.grid(axis="y", alpha=0.3, which="both")
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(arms), fontsize="small")
    figure.tight_layout()
    figure.savefig(file, dpi=100)
    plt.close(figure)
