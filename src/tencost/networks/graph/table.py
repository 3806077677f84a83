"""Labelled graphs on disk, a folder.

``graphs.parquet``: a row a graph: graph_id, family, name string; position int32; nodes, edges int32, how many it has.
``nodes.parquet``: a row a node, graph by graph: operator uint8, and the sixteen columns of
tencost.networks.graph.operators.COLUMNS, int32. ``edges.parquet``: a row an edge: source, target int32, counted within
the graph. ``records.parquet``: a row for each graph on each device, by graph: record_id, graph_id string; row int32, of
the graph in graphs.parquet; family, name, hardware string; latency float64, seconds, null where status is ``missing``
and not ``ok``; source struct<file, line>, null where nobody knows. ``rejects.jsonl``: an object a line for what was
left out. ``graphs.json``: the version of this layout, the devices and the vocabulary of operators.

The same graphs give the same bytes. Latencies come back as milliseconds, off by a rounding of the last digit at most.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tencost.errors import GraphError
from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs
from tencost.networks.graph.operators import COLUMNS, OPERATORS
from tencost.store.rejects import GraphReject, Places
from tencost.writing import whole_folder

VERSION = 1
ABOUT, GRAPHS, NODES, EDGES, RECORDS, REJECTS = (
    "graphs.json", "graphs.parquet", "nodes.parquet", "edges.parquet", "records.parquet", "rejects.jsonl",
)  # fmt: skip
OK, MISSING = "ok", "missing"
"""Statuses of a record."""
_MS = 1000.0
_SOURCE = pa.struct([("file", pa.string()), ("line", pa.int32())])
_SCHEMAS = {
    GRAPHS: pa.schema(
        {
            "graph_id": "string", "family": "string", "name": "string", "position": "int32",
            "nodes": "int32", "edges": "int32",
        }
    ),
    NODES: pa.schema({"operator": "uint8"} | dict.fromkeys(COLUMNS, "int32")),
    EDGES: pa.schema({"source": "int32", "target": "int32"}),
    RECORDS: pa.schema(
        {
            "record_id": "string", "graph_id": "string", "row": "int32", "family": "string", "name": "string",
            "hardware": "string", "latency": "float64", "status": "string", "source": _SOURCE,
        }
    ),
}  # fmt: skip


def measurement_id(graph_id: str, hardware: str, family: str, position: int) -> str:
    """Return the id of a measurement: of what was measured on which device, and of which row it is in its family."""
    content = orjson.dumps([graph_id, hardware, family, position])
    return hashlib.sha256(content).hexdigest()[:32]


def save_graphs(
    folder: Path,
    labelled: LabelledGraphs,
    *,
    sources: Places | None = None,
    rejects: Sequence[GraphReject] = (),
) -> None:
    """Write graphs; the folder appears complete or not at all.

    Args:
        folder: to write; an older one there goes.
        labelled: graphs with their ids.
        sources: where they were read.
        rejects: what was left out.
    """
    graphs = labelled.graphs
    about = {
        "version": VERSION,
        "hardware": list(labelled.hardware),
        "operators": list(OPERATORS),
        "graphs": len(graphs),
        "nodes": len(graphs.operator),
        "edges": graphs.edges.shape[1],
    }
    tables: dict[str, list[Any]] = {
        GRAPHS: [
            graphs.graph_id, graphs.family, graphs.name, graphs.position, np.diff(graphs.node_start),
            np.diff(graphs.edge_start),
        ],
        NODES: [graphs.operator, *graphs.columns.T],
        EDGES: list(graphs.edges),
        RECORDS: _records(labelled, sources),
    }  # fmt: skip
    with whole_folder(folder) as partial:
        for name, columns in tables.items():
            pairs = zip(columns, _SCHEMAS[name].types, strict=True)
            arrays = [pa.array(values, column_type) for values, column_type in pairs]
            table = pa.Table.from_arrays(arrays, schema=_SCHEMAS[name])
            pq.write_table(table, partial / name, compression="zstd", write_page_checksum=True)
        lines = (orjson.dumps(asdict(reject)) + b"\n" for reject in rejects)
        (partial / REJECTS).write_bytes(b"".join(lines))
        (partial / ABOUT).write_bytes(orjson.dumps(about, option=orjson.OPT_INDENT_2) + b"\n")


def load_graphs(folder: Path) -> LabelledGraphs:
    """Read what `save_graphs` wrote.

    Raises:
        GraphError: nothing there, another version, or files that are damaged or do not belong together.
    """
    about = _about(folder)
    hardware = tuple(about["hardware"])
    table, nodes, edges, records = (_table(folder, name) for name in _SCHEMAS)
    lengths = [len(table), len(nodes), len(edges), len(records)]
    expected = [about["graphs"], about["nodes"], about["edges"], about["graphs"] * len(hardware)]
    node_counts, edge_counts = (
        table[name].to_numpy().astype(np.int64) for name in ("nodes", "edges")
    )
    sums = [int(node_counts.sum()), int(edge_counts.sum())]
    if lengths != expected or sums != expected[1:3] or min(0, *node_counts, *edge_counts) < 0:
        raise _damaged(
            folder, f"expected {expected} graphs, nodes, edges and records, found {lengths}"
        )
    source, target = np.asarray(edges["source"]), np.asarray(edges["target"])
    limits = np.repeat(node_counts, edge_counts)
    if (source < 0).any() or (source >= target).any() or (target >= limits).any():
        raise _damaged(folder, "expected edges to later nodes of their graph, found others")
    operator = np.asarray(nodes["operator"])
    if operator.size and operator.max() >= len(OPERATORS):
        raise _damaged(folder, f"expected operators below {len(OPERATORS)}, found {operator.max()}")
    rows = np.repeat(np.arange(len(table)), len(hardware))
    devices = records["hardware"].to_pylist()
    if (np.asarray(records["row"]) != rows).any() or devices != [*hardware] * len(table):
        raise _damaged(
            folder, "expected a record for each graph on each device, by graph; found others"
        )
    seconds = records["latency"].to_numpy(zero_copy_only=False).reshape(len(table), len(hardware))
    texts = {
        name: np.array(table[name].to_pylist(), dtype=np.str_)
        for name in ("graph_id", "family", "name")
    }
    graphs = GraphSet(
        **texts,
        position=np.asarray(table["position"]),
        operator=operator,
        columns=np.stack([nodes[name].to_numpy() for name in COLUMNS], axis=1),
        node_start=np.concatenate([[0], np.cumsum(node_counts)]),
        edges=np.stack([source, target]),
        edge_start=np.concatenate([[0], np.cumsum(edge_counts)]),
    )
    return LabelledGraphs(graphs, hardware, seconds * _MS)


def _records(labelled: LabelledGraphs, sources: Places | None) -> list[Any]:
    """Return the columns of records.parquet."""
    graphs, devices = labelled.graphs, len(labelled.hardware)
    rows = np.repeat(np.arange(len(graphs)), devices)
    hardware = [*labelled.hardware] * len(graphs)
    seconds = (labelled.latency_ms / _MS).reshape(-1)
    missing = np.isnan(seconds)
    columns = [graphs.graph_id[rows], hardware, graphs.family[rows], graphs.position[rows]]
    keys = zip(*(np.asarray(column).tolist() for column in columns), strict=True)
    source: Any = pa.nulls(len(rows), _SOURCE)
    if sources is not None:
        file = pa.array(sources.file[rows], pa.string())
        line = pa.array(sources.line[rows].astype(np.int32), pa.int32())
        source = pa.StructArray.from_arrays([file, line], fields=list(_SOURCE))
    return [
        [measurement_id(*key) for key in keys], graphs.graph_id[rows], rows, graphs.family[rows], graphs.name[rows],
        hardware, pa.array(seconds, pa.float64(), mask=missing), np.where(missing, MISSING, OK), source,
    ]  # fmt: skip


def _about(folder: Path) -> dict[str, Any]:
    path = folder / ABOUT
    if not path.is_file():
        raise GraphError(
            f"expected {path}, found nothing. Read the networks first: tencost graphs records"
        )
    try:
        about = orjson.loads(path.read_bytes())
        version, operators = about["version"], about["operators"]
        numbers = [about[name] for name in ("graphs", "nodes", "edges")]
        whole = all(isinstance(name, str) for name in about["hardware"])
        same = list(operators) == list(OPERATORS[: len(operators)])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise _damaged(
            folder, f"expected the version and counts in {ABOUT}, found {error!r}"
        ) from error
    if version != VERSION:
        raise _damaged(folder, f"expected version {VERSION} of the table, found {version}")
    if not same:
        raise _damaged(folder, "expected the operators of this version of tencost, found others")
    if not whole or not all(isinstance(number, int) for number in numbers):
        raise _damaged(folder, f"expected names of devices and counts in {ABOUT}, found others")
    return about


def _table(folder: Path, name: str) -> pa.Table:
    path = folder / name
    if not path.is_file():
        raise _damaged(folder, f"expected {name}, found nothing")
    try:
        table = pq.read_table(path, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(folder, f"expected {name} to be whole, found {error}") from error
    if not table.schema.equals(_SCHEMAS[name]):
        columns = ", ".join(f"{field.name} {field.type}" for field in table.schema)
        raise _damaged(folder, f"expected other columns in {name}, found {columns}")
    filled = [field for field in table.schema.names if field not in ("latency", "source")]
    if any(table[field].null_count for field in filled):
        raise _damaged(folder, f"expected no nulls in {name}, found some")
    return table


def _damaged(folder: Path, reason: str) -> GraphError:
    return GraphError(f"{folder}: {reason}. Read the networks again: tencost graphs records")
