"""The layout of the CG benchmark (DGRL-Hardware, data of nn-Meter): a folder a family, with CSV files without a header.

Each file may be gzipped (``.csv.gz``); of both, the plain one is read. In ``<family>/``::

    num-node-list.csv    a line a graph: how many nodes it has
    num-edge-list.csv    a line a graph: how many edges it has
    node-feat.csv        a line a node:  operator,in_0..in_4,kernel_h,kernel_w,channels_in,channels_out,
                                         stride_h,stride_w,out_0..out_4
    edge.csv             a line an edge: source,target; nodes counted from 0 within their graph
    label-<device>.csv   a line a graph: milliseconds; "" or nothing where nobody measured
    position.csv         a line a graph, increasing: where it stood in the file that a sample was taken from;
                         only where that is not its line

Graph g owns the lines behind those of the graphs before it. Operators are tencost.networks.graph.operators.OPERATORS,
numbers whole. The devices of the benchmark are cortex (cortex-a76), 630gpu (adreno-630), 640gpu (adreno-640) and vpu
(myriad-vpu); any other is named as it stands. A folder that holds such files itself is one family of its name.

Where a file has a line too few or too many, the graphs from the first such place to the last are lost, and no others: a
graph counts that begins where a graph can begin, ends where the next can, and in which no other begins. Nodes of a
graph begin with its one ``Placeholder``, edges where their targets, which increase within a graph, fall back. This
needs files like the benchmark's; of others all graphs behind the damage are rejected. Lines lost and gained that
cancel out are not noticed.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tencost.errors import GraphError
from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs
from tencost.networks.graph.operators import COLUMNS, OPERATOR_CODES, OPERATORS
from tencost.records.network_graphs.csv_rows import Rows, Spans, find_spans, read_rows, rows_of
from tencost.records.network_graphs.reading import (
    GraphFormat,
    GraphReject,
    ReadGraphs,
    bad_latency,
    join_graph_sets,
    places,
    plain_or_gzipped,
)
from tencost.records.reading.protocol import About
from tencost.writing import whole_folder

DEVICES = {
    "cortex": "cortex-a76",
    "630gpu": "adreno-630",
    "640gpu": "adreno-640",
    "vpu": "myriad-vpu",
}
"""The benchmark's names of devices -> hardware, in the benchmark's order."""
NODE_COUNTS, EDGE_COUNTS, NODES, EDGES = (
    "num-node-list.csv", "num-edge-list.csv", "node-feat.csv", "edge.csv",
)  # fmt: skip
POSITIONS = "position.csv"
_STRUCTURE = (NODE_COUNTS, EDGE_COUNTS, NODES, EDGES)
_PLACEHOLDER = OPERATOR_CODES["Placeholder"]


class _FamilyError(Exception):
    """A family that cannot be read: file, line and reason."""

    def __init__(self, file: str, line: int, reason: str) -> None:
        super().__init__(reason)
        self.reject = (file, line, reason)


@dataclass(eq=False)
class _Family:
    """A family as it was read, and what was left out; nothing is read of one that cannot be."""

    read: LabelledGraphs
    node_line: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    edge_line: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    rejects: list[GraphReject] = field(default_factory=list)


def read(folder: Path) -> ReadGraphs:
    """Read all families of a folder.

    Raises:
        GraphError: no family has a file of latencies.
    """
    families = {each.name: each for each in _folders(folder) if _structure(each)}
    if _structure(folder):
        families = {folder.name: folder}
    hardware = _devices(list(families.values()))
    if not hardware:
        raise GraphError(
            f"expected label-<device>.csv of at least one device in {folder}, found none"
        )
    contents = {name: _read_family(name, path, hardware) for name, path in sorted(families.items())}
    parts = list(contents.values())
    nodes = [f"{name}/{NODES}" for name, family in contents.items() for _ in family.node_line]
    edges = [f"{name}/{EDGES}" for name, family in contents.items() for _ in family.edge_line]
    return ReadGraphs(
        LabelledGraphs(
            join_graph_sets([family.read.graphs for family in parts]),
            hardware,
            np.concatenate([family.read.latency_ms for family in parts]),
        ),
        places(nodes, np.concatenate([family.node_line for family in parts]), 1),
        places(edges, np.concatenate([family.edge_line for family in parts]), 1),
        tuple(reject for family in parts for reject in family.rejects),
    )


def write(folder: Path, labelled: LabelledGraphs) -> None:
    """Write graphs as a folder of this layout, whole or not at all; names are not part of it.

    Args:
        folder: to write; an older one there goes.
        labelled: graphs; those of a family are written in the order of their positions.

    Raises:
        GraphError: a family's name is no name of a folder, or two graphs of a family have the same position.
    """
    graphs = labelled.graphs
    labels = {hardware: device for device, hardware in DEVICES.items()}
    with whole_folder(folder) as content:
        for family in np.unique(graphs.family).tolist():
            rows = np.flatnonzero(graphs.family == family)
            part = labelled.take(rows[np.argsort(graphs.position[rows], kind="stable")])
            if family != Path(family).name or family.startswith("."):
                raise GraphError(f"expected families that can name a folder, found {family!r}")
            if (np.diff(part.graphs.position) <= 0).any():
                raise GraphError(
                    f"expected a position of its own for each graph of {family}, found one twice"
                )
            family_folder = content / family
            family_folder.mkdir()
            _write_structure(family_folder, part.graphs)
            for device, hardware in enumerate(labelled.hardware):
                values = part.latency_ms[:, device].tolist()
                lines = ['""' if value != value else repr(value) for value in values]
                name = f"label-{labels.get(hardware, hardware)}.csv"
                (family_folder / name).write_text("".join(f"{line}\n" for line in lines))


def _write_structure(folder: Path, graphs: GraphSet) -> None:
    def put(name: str, frame: pl.DataFrame) -> None:
        frame.write_csv(folder / name, include_header=False)

    names = pl.Series("operator", np.array(OPERATORS)[graphs.operator])
    columns = {name: graphs.columns[:, place] for place, name in enumerate(COLUMNS)}
    put(NODES, pl.DataFrame({"operator": names, **columns}))
    put(EDGES, pl.DataFrame({"source": graphs.edges[0], "target": graphs.edges[1]}))
    put(NODE_COUNTS, pl.DataFrame({"nodes": np.diff(graphs.node_start)}))
    put(EDGE_COUNTS, pl.DataFrame({"edges": np.diff(graphs.edge_start)}))
    if (graphs.position != np.arange(len(graphs))).any():
        put(POSITIONS, pl.DataFrame({"position": graphs.position}))


def _folders(folder: Path) -> list[Path]:
    return sorted(
        each for each in folder.iterdir() if each.is_dir() and not each.name.startswith(".")
    )


def _structure(folder: Path) -> bool:
    return any(plain_or_gzipped(folder, name) for name in _STRUCTURE)


def _devices(families: list[Path]) -> tuple[str, ...]:
    """Return the hardware that at least one family has a file for: the benchmark's first, others sorted."""
    devices = {
        path.name.removeprefix("label-").split(".csv")[0]
        for family in families
        for path in family.iterdir()
        if path.name.startswith("label-") and path.name.endswith((".csv", ".csv.gz"))
    }
    others = sorted(devices - DEVICES.keys() - set(DEVICES.values()))
    benchmarked = (hardware for name, hardware in DEVICES.items() if {name, hardware} & devices)
    return (*benchmarked, *others)


def _read_family(family: str, folder: Path, hardware: tuple[str, ...]) -> _Family:
    nothing = LabelledGraphs(join_graph_sets([]), hardware, np.zeros((0, len(hardware))))
    content = _Family(nothing)

    def reject(file: str, line: int, reason: str, graph: int = -1) -> None:
        content.rejects.append(GraphReject(f"{family}/{file}", line, reason, family, graph))

    try:
        node_counts, edge_counts = _counts(folder, NODE_COUNTS), _counts(folder, EDGE_COUNTS)
        if len(node_counts) != len(edge_counts):
            reason = (
                f"expected {len(node_counts)} lines as in {NODE_COUNTS}, found {len(edge_counts)}"
            )
            raise _FamilyError(EDGE_COUNTS, 0, f"{reason}; whose they are cannot be told")  # noqa: TRY301
        nodes = read_rows(_lines(folder, NODES), len(COLUMNS), with_operator=True)
        edges = read_rows(_lines(folder, EDGES), 2)
        position = _positions(folder, len(node_counts))
    except _FamilyError as error:
        reject(*error.reject)
        return content
    begins = nodes.operator == _PLACEHOLDER
    node_spans = find_spans(node_counts, begins, len(nodes))
    targets = edges.numbers[:, 1]
    begins = np.append(True, targets[1:] < targets[:-1])[: len(edges)]
    edge_spans = find_spans(edge_counts, begins, len(edges))
    good = np.ones(len(node_counts), dtype=bool)
    for file, rows, spans, counts in (
        (NODES, nodes, node_spans, node_counts),
        (EDGES, edges, edge_spans, edge_counts),
    ):
        for graph, line, reason in _bad_graphs(file, rows, spans, counts):
            if graph < 0 or good[graph]:
                reject(file, line, reason, graph if graph < 0 else int(position[graph]))
            if graph >= 0:
                good[graph] = False
    usable = np.flatnonzero(good)
    latency, bad = _latencies(family, folder, hardware, position)
    content.rejects += bad
    node_rows = rows_of(node_spans, usable)
    edge_rows = rows_of(edge_spans, usable)
    numbers = nodes.numbers if len(node_rows) == len(nodes) else nodes.numbers[node_rows]
    graphs = GraphSet(
        np.full(len(usable), "", dtype="<U1"),
        np.full(len(usable), family),
        np.array([f"{family}/{place}" for place in position[usable].tolist()], dtype=np.str_),
        position[usable],
        nodes.operator[node_rows],
        numbers,
        np.concatenate([[0], np.cumsum(node_spans.count[usable])]),
        np.ascontiguousarray(edges.numbers[edge_rows].T),
        np.concatenate([[0], np.cumsum(edge_spans.count[usable])]),
    )
    content.read = LabelledGraphs(graphs, hardware, latency[usable])
    content.node_line = node_spans.start[usable] + 1
    content.edge_line = edge_spans.start[usable] + 1
    return content


def _text(folder: Path, name: str) -> bytes:
    path = plain_or_gzipped(folder, name)
    if path is None:
        raise _FamilyError(name, 0, f"expected {name} or {name}.gz, found neither")
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise _FamilyError(
            path.name, 0, f"expected a whole file, found a damaged one ({error})"
        ) from error


def _lines(folder: Path, name: str) -> bytes:
    """Return a file's text without empty lines at its end."""
    return _text(folder, name).rstrip()


def _counts(folder: Path, name: str) -> NDArray[np.int64]:
    """Return how many rows each graph has; -1 where that cannot be read."""
    rows = read_rows(_lines(folder, name), 1)
    if not len(rows):
        raise _FamilyError(name, 0, "expected a line a graph, found an empty file")
    counts = rows.numbers[:, 0].astype(np.int64)
    return np.where(rows.bad | (counts < 0), -1, counts)


def _positions(folder: Path, count: int) -> NDArray[np.int32]:
    if plain_or_gzipped(folder, POSITIONS) is None:
        return np.arange(count, dtype=np.int32)
    rows = read_rows(_lines(folder, POSITIONS), 1)
    position = rows.numbers[:, 0]
    if len(rows) != count or rows.bad.any() or position.min() < 0 or (np.diff(position) <= 0).any():
        reason = f"expected {count} lines, whole numbers from 0 that increase, found others"
        raise _FamilyError(POSITIONS, 0, reason)
    return position


def _bad_graphs(
    file: str, rows: Rows, spans: Spans, counts: NDArray[np.int64]
) -> Iterator[tuple[int, int, str]]:
    """Yield (graph, line, reason), and graph -1 for lines that are nobody's."""
    expected = f"{counts.sum()} lines" if (counts >= 0).all() else "as many lines"
    lost = np.flatnonzero(~spans.certain).tolist()
    around = int(np.append(0, np.cumsum(spans.count))[lost[0]]) + 1 if lost else 0
    for graph in lost:
        source = NODE_COUNTS if file == NODES else EDGE_COUNTS
        reason = f"expected {expected} as {source} says, found {len(rows)}; which are this graph's cannot be told"
        if counts[graph] < 0:
            reason = f"expected a whole number in line {graph + 1} of {source}, found none"
        yield graph, min(around, len(rows)), reason
    if not lost and spans.count.sum() < len(rows):
        line = int(spans.count.sum()) + 1
        yield -1, line, f"expected {expected}, found {len(rows)}; those from here on are no graph's"
    if not rows.bad.any():
        return
    certain = np.flatnonzero(spans.certain & (spans.count > 0))
    wrong = np.flatnonzero(rows.bad)
    which = np.searchsorted(spans.start[certain], wrong, side="right") - 1
    for row, place in zip(wrong.tolist(), which.tolist(), strict=True):
        graph = int(certain[place]) if place >= 0 else -1
        if graph >= 0 and row < spans.start[graph] + spans.count[graph]:
            yield graph, row + 1, rows.reason(row)


def _latencies(
    family: str, folder: Path, hardware: tuple[str, ...], position: NDArray[np.int32]
) -> tuple[NDArray[np.float64], list[GraphReject]]:
    """Return milliseconds [G, D], NaN where there are none, and what was no latency."""
    latency = np.full((len(position), len(hardware)), np.nan)
    rejects = []
    labels = {name: device for device, name in DEVICES.items()}
    for device, name in enumerate(hardware):
        file_names = (f"label-{labels.get(name, name)}.csv", f"label-{name}.csv")
        file = next((each for each in file_names if plain_or_gzipped(folder, each)), None)
        if file is None:
            continue
        where = f"{family}/{file}"
        try:
            text = _text(folder, file).decode("utf-8", errors="replace")
        except _FamilyError as error:
            rejects.append(GraphReject(where, 0, error.reject[2], family, -1))
            continue
        lines = text.removesuffix("\n").split("\n")
        while len(lines) > len(position) and not lines[-1].strip():
            lines.pop()
        if len(lines) != len(position):
            reason = f"expected {len(position)} lines, one a graph, found {len(lines)}; none of them is used"
            rejects.append(GraphReject(where, 0, reason, family, -1))
            continue
        words = pl.Series(lines, dtype=pl.String).str.strip_chars(' "\t\r')
        values = words.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
        good = np.isfinite(values) & (values > 0)
        for graph in np.flatnonzero(~good & (words != "").to_numpy()).tolist():
            reason = bad_latency(name, words[graph])
            rejects.append(GraphReject(where, graph + 1, reason, family, int(position[graph])))
        latency[good, device] = values[good]
    return latency, rejects


class CgFormat(GraphFormat):
    """Reads folders of the CG benchmark."""

    layout = f"folders of families with {NODES} (CG)"

    def recognizes(self, path: Path, _head: bytes) -> bool:
        """Say whether the folder, or one in it, has a file of a graph's structure."""
        return any(_structure(each) for each in (path, *_folders(path)))

    def read(self, path: Path, _about: About) -> Iterator[ReadGraphs]:
        yield read(path)


FORMAT = CgFormat()
