"""The folder that `tencost graphs measure` writes (module measuring says what is in it): one hardware.

`measured.ndjson` may be gzipped (`.ndjson.gz`). A network that failed, and a line that cannot be read, are rejects.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tencost.errors import GraphError
from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs, concatenate
from tencost.networks.graph.operators import COLUMNS, OPERATOR_CODES
from tencost.records.network_graphs.reading import (
    GraphFormat,
    GraphReject,
    ReadGraphs,
    one_graph,
    places,
    plain_or_gzipped,
)
from tencost.records.reading.protocol import About

HARDWARE_FILE = "hardware.json"
MEASURED_FILE = "measured.ndjson"


def read(folder: Path) -> ReadGraphs:
    """Read all networks that were measured, each with the latency of its quietest round.

    Positions count a family's networks.

    Raises:
        GraphError: it is not said what was measured on, or no line is one of a measured network.
    """
    hardware = _hardware(folder / HARDWARE_FILE)
    path = plain_or_gzipped(folder, MEASURED_FILE)
    assert path is not None
    graphs: list[GraphSet] = []
    latencies: list[float] = []
    lines: list[int] = []
    rejects: list[GraphReject] = []
    families: Counter[str] = Counter()
    numbers: dict[tuple[str, str], int] = {}
    for number, text in enumerate(_content(path).splitlines(), start=1):
        family, position = "", -1
        try:
            line = orjson.loads(text)
            family, name = str(line["family"]), str(line["name"])
            key = family, name
            if key in numbers:  # another round: the quietest counts, one that failed does not
                place = numbers[key]
                latencies[place] = min(latencies[place], float(line.get("latency_ms", np.inf)))
                continue
            position = families[family]
            families[family] += 1
            graph = _graph(line, position)
            latency = float(line["latency_ms"])
        except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            rejects.append(GraphReject(path.name, number, _reason(error), family, position))
            continue
        numbers[key] = len(graphs)
        graphs.append(graph)
        latencies.append(latency)
        lines.append(number)
    if not graphs:
        raise GraphError(
            f"expected networks that were measured in {path}, found none of {len(rejects)} lines"
            f"{f': {rejects[0].reason}' if rejects else ''}. Measure some: tencost graphs measure"
        )
    order = sorted(range(len(graphs)), key=lambda place: str(graphs[place].family[0]))
    where = places([path.name] * len(graphs), [lines[place] for place in order], 0)
    labelled = LabelledGraphs(
        concatenate([graphs[place] for place in order]),
        (hardware,),
        np.array([latencies[place] for place in order])[:, None],
    )
    return ReadGraphs(labelled, where, where, tuple(rejects))


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise GraphError(
            f"expected a whole gzip file at {path}, found a damaged one ({error}). Copy it again"
        ) from error


def _hardware(path: Path) -> str:
    try:
        return str(orjson.loads(path.read_bytes())["hardware"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise GraphError(
            f'expected {{"hardware": name, ...}} in {path}, found {_reason(error)}. Copy the folder whole'
        ) from error


def _graph(line: dict[str, Any], position: int) -> GraphSet:
    """Return a line's graph; its id is the gate's affair. Raises ValueError and the like for a line without one."""
    if line["status"] != "ok":
        raise ValueError(f"{line['name']} {line['status']}: {line['error']}")
    unknown = [name for name in line["operators"] if name not in OPERATOR_CODES]
    if unknown:
        raise ValueError(f"expected operators of tencost, found {str(unknown[0])[:40]!r}")
    operator = np.array([OPERATOR_CODES[name] for name in line["operators"]], np.uint8)
    columns = np.array(line["columns"], np.int32).reshape(-1, len(COLUMNS))
    edges = np.array(line["edges"], np.int32).reshape(2, -1)
    if len(columns) != len(operator):
        raise ValueError(
            f"expected columns of {len(operator)} nodes, found those of {len(columns)}"
        )
    return one_graph(str(line["family"]), str(line["name"]), position, operator, columns, edges)


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"expected the key {error}, found none"
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


class MeasuredFormat(GraphFormat):
    """Reads what `tencost graphs measure` wrote."""

    layout = f"a folder of tencost graphs measure ({HARDWARE_FILE}, {MEASURED_FILE})"

    def recognizes(self, path: Path, _head: bytes) -> bool:
        """Say whether the folder has lines of measured networks and says of what hardware."""
        measured = plain_or_gzipped(path, MEASURED_FILE)
        return (path / HARDWARE_FILE).is_file() and measured is not None

    def read(self, path: Path, _about: About) -> Iterator[ReadGraphs]:
        yield read(path)


FORMAT = MeasuredFormat()
