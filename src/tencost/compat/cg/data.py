"""The benchmark's data: its CSV folders as datasets of torch-geometric.

A graph is a `Data` with x, int64 [N, 17]: the operator's code in tencost.networks.graph.operators.OPERATORS, then the
sixteen columns, of which `in_0` and `out_0` are one more than in the files (an unknown batch, -1, is 0); edge_index,
int64 [2, E]; y_cpu, y_gpu630, y_gpu640 and y_vpu, float32 [1], milliseconds, NaN where nobody measured.

With the pe_type `lap` it has lap_pe, float32 [N, k], and Lambda, float32 [1, k], the eigenvalues; with `maglap` mag_pe,
complex64 [N, 1, k], and Lambda, float32 [1, 1, k]; with both, where se_pe_dim_input is above 0, rw_se, float32 [N,
steps].
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data, InMemoryDataset

from tencost.compat.cg.settings import TARGETS, CGConfig, Source, checked
from tencost.config.checking import one_of
from tencost.config.graphs import GraphSplitConfig, GraphSplitPolicy
from tencost.features.graph.encodings import (
    at_nodes,
    laplacian,
    magnetic_laplacian,
    random_walk,
    spectrum,
)
from tencost.features.graph.topology import topologies
from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs, concatenate
from tencost.networks.graph.operators import COLUMNS
from tencost.records.network_graphs.reading import read_folder
from tencost.splits.networks import divide_graphs

ID_FAMILIES = ("densenets", "mnasnets", "mobilenetv2s", "mobilenetv3s", "nasbench201s")
OOD_FAMILIES = ("proxylessnass", "resnets", "squeezenets")
MODES = {"train": "train", "valid": "val", "test": "test", "test_ood": "test_ood"}
"""Mode -> how its file's name begins; the modes are the parts of the split."""
SHIFTED = (1 + COLUMNS.index("in_0"), 1 + COLUMNS.index("out_0"))
"""Columns of x that are one more than in the files."""

_log = logging.getLogger(__name__)


class CGDataProcessor(InMemoryDataset):
    """The graphs of a part of the benchmark's split, in the order of its files, families sorted.

    Args:
        config: the benchmark's configuration, or the path of its file.
        mode: train, valid, test or test_ood.

    Attributes:
        families: str [G]; the family of each graph.

    Raises:
        ConfigError: a wrong configuration or mode.
        GraphError: a family that is not there or of which nothing can be used.
    """

    def __init__(self, config: Source | CGConfig, mode: str) -> None:
        one_of("mode", mode, tuple(MODES))
        self.config = config if isinstance(config, CGConfig) else checked(config)
        self.mode = mode
        super().__init__(str(self.config.data_folder), log=False)
        self.load(self.processed_paths[list(MODES).index(mode)])
        families = orjson.loads(Path(self._families_file).read_bytes())
        self.families: NDArray[np.str_] = np.array(families[mode])

    @property
    def raw_file_names(self) -> list[str]:
        """None: the raw folder is looked at where there is something to process, only."""
        return []

    @property
    def processed_dir(self) -> str:
        """The folder of the configured positional encoding."""
        return str(self.config.processed_folder)

    @property
    def processed_file_names(self) -> list[str]:
        """A file a mode, and the families of their graphs."""
        seed = self.config.task.divide_seed
        return [f"{name}_{seed}.pt" for name in MODES.values()] + [f"families_{seed}.json"]

    @property
    def _families_file(self) -> str:
        return self.processed_paths[-1]

    def process(self) -> None:
        """Read, divide and encode the graphs, and write the files of all modes."""
        families = [
            _read(self.config.raw_folder / name) for name in sorted(ID_FAMILIES + OOD_FAMILIES)
        ]
        labelled = LabelledGraphs(
            concatenate([family.graphs for family in families]),
            families[0].hardware,
            np.concatenate([family.latency_ms for family in families]),
        )
        policy = GraphSplitConfig(
            policy=GraphSplitPolicy.cg,
            families=list(ID_FAMILIES),
            test_families=list(OOD_FAMILIES),
        )
        parts = dict(divide_graphs(labelled.graphs, policy).items())
        for mode, path in zip(MODES, self.processed_paths, strict=False):
            part = labelled.take(parts[mode])
            pairs = zip(_graphs(part), _encodings(self.config, part.graphs), strict=True)
            self.save([Data(**_tensors(graph), **fields) for graph, fields in pairs], path)
        names = {mode: labelled.graphs.family[parts[mode]].tolist() for mode in MODES}
        Path(self._families_file).write_bytes(orjson.dumps(names))

    def read_csv_graph_raw(
        self, raw_dir: str | Path, check_repeat_edge: bool = False
    ) -> list[dict[str, NDArray[Any]]]:
        """Read a family's folder.

        Args:
            raw_dir: the folder.
            check_repeat_edge: leave out edges that an earlier one, either way, connects the same nodes with.

        Returns:
            For each graph node_feat, int64 [N, 17], as `x` above; edge_index, int64 [2, E]; y_cpu, y_gpu630, y_gpu640
            and y_vpu, float64 [1], milliseconds.

        Raises:
            GraphError: nothing there that can be used. What else is wrong is left out with a warning.
        """
        graphs = _graphs(_read(Path(raw_dir).expanduser()))
        if check_repeat_edge:
            for graph in graphs:
                pairs = np.sort(graph["edge_index"], axis=0)
                _, first = np.unique(pairs, axis=1, return_index=True)
                graph["edge_index"] = graph["edge_index"][:, np.sort(first)]
        return graphs


def graph_set(data: Data) -> GraphSet:
    """Return the graphs of a `Data` or of a batch of them, without ids and names."""
    x = data.x.numpy().astype(np.int32)
    x[:, list(SHIFTED)] -= 1
    edges = data.edge_index.numpy()
    batch = getattr(data, "batch", None)
    of_node = np.zeros(len(x), np.int64) if batch is None else batch.numpy()
    count = int(of_node[-1]) + 1 if len(of_node) else 0
    node_start = np.concatenate([[0], np.cumsum(np.bincount(of_node, minlength=count))])
    of_edge = of_node[edges[0]]
    edge_counts = np.bincount(of_edge, minlength=count)
    text = np.full(count, "", dtype="<U1")
    return GraphSet(
        text,
        text,
        text,
        np.zeros(count, np.int32),
        x[:, 0].astype(np.uint8),
        x[:, 1:],
        node_start,
        (edges - node_start[of_edge]).astype(np.int32),
        np.concatenate([[0], np.cumsum(edge_counts)]),
    )


def _read(folder: Path) -> LabelledGraphs:
    """Read a family, with a column for each of the benchmark's devices."""
    contents = read_folder(folder)
    if contents.rejects:
        first = contents.rejects[0]
        text = "%d rejects in %s; the first: %s:%d: %s"
        _log.warning(text, len(contents.rejects), folder, first.file, first.line, first.reason)
    labelled = contents.labelled
    latency = np.full((len(labelled), len(TARGETS)), np.nan)
    for column, hardware in enumerate(TARGETS.values()):
        if hardware in labelled.hardware:
            latency[:, column] = labelled.latency_ms[:, labelled.hardware.index(hardware)]
    return LabelledGraphs(labelled.graphs, tuple(TARGETS.values()), latency)


def _graphs(labelled: LabelledGraphs) -> list[dict[str, NDArray[Any]]]:
    graphs = labelled.graphs
    features = np.concatenate([graphs.operator[:, None], graphs.columns], axis=1, dtype=np.int64)
    features[:, list(SHIFTED)] += 1
    node_start, edge_start = graphs.node_start.tolist(), graphs.edge_start.tolist()
    return [
        {
            "node_feat": features[node_start[index] : node_start[index + 1]],
            "edge_index": graphs.edges[:, edge_start[index] : edge_start[index + 1]].astype(
                np.int64
            ),
            **{
                f"y_{target}": labelled.latency_ms[index, column : column + 1]
                for column, target in enumerate(TARGETS)
            },
        }
        for index in range(len(labelled))
    ]


def _tensors(graph: dict[str, NDArray[Any]]) -> dict[str, Any]:
    labels = {name: graph[name].astype(np.float32) for name in graph if name.startswith("y_")}
    arrays = {"x": graph["node_feat"], "edge_index": graph["edge_index"], **labels}
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def _encodings(config: CGConfig, graphs: GraphSet) -> list[dict[str, Any]]:
    """Return the fields of the positional encoding for each graph; equal topologies share them."""
    distinct, of_graph = topologies(graphs)
    model = config.model
    if model.pe_type is None:
        return [{} for _ in range(len(graphs))]
    encodings: list[dict[str, Any]] = []
    for topology in distinct:
        magnetic = model.pe_type == "maglap"
        size = model.mag_pe_dim_input if magnetic else model.lap_pe_dim_input
        matrix = magnetic_laplacian(topology, model.q) if magnetic else laplacian(topology)
        encoded = spectrum(matrix, size)
        vectors, values = torch.from_numpy(at_nodes(encoded)), encoded.values.astype(np.float32)
        eigenvalues = torch.from_numpy(values)
        if magnetic:
            encoding = torch.complex(*vectors.chunk(2, dim=1))[:, None]
            fields = {"mag_pe": encoding, "Lambda": eigenvalues[None, None]}
        else:
            fields = {"lap_pe": vectors, "Lambda": eigenvalues[None]}
        if model.se_pe_dim_input:
            fields["rw_se"] = torch.from_numpy(random_walk(topology, model.se_pe_dim_input))
        encodings.append(fields)
    return [encodings[which] for which in of_graph.tolist()]
