"""What `tencost graphs register` offers: the best graph model of a device, see :mod:`tencost.register.stage`.

The registered model is ``tencost-graph-<hardware>``. In a project with the pipeline of whole networks, DVC keeps a copy
of the mark, graphs/data/registered/<dataset>/<hardware>.json.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import orjson
from numpy.typing import NDArray

from tencost.config import Config
from tencost.config.graph_outputs import graph_mark
from tencost.errors import BundleError, RegistryError
from tencost.evaluate.networks import left_out, report
from tencost.evaluate.networks.board import OTHER, GraphBoard, GraphRow
from tencost.evaluate.networks.left_out import left_out_errors
from tencost.evaluate.networks.stage import JudgedGraphModel, load_models, predict_all, test_parts
from tencost.models.networks import bundle as bundles
from tencost.models.networks.bundle import GRAPH_ABI, load_graph_bundle
from tencost.models.networks.bundle.pyfunc_model import save_graph_pyfunc
from tencost.networks.graph.graph_set import LabelledGraphs
from tencost.register import registry, stage
from tencost.register.networks.promotion import Errors, Opponent, judge
from tencost.register.pull import pull
from tencost.register.registry import Offer, Version
from tencost.register.stage import RegistrationSubject
from tencost.register.verdict import PromotionVerdict, of_another_split, unusable
from tencost.train.networks.data import GraphData


def run(cfg: Config, root: Path) -> PromotionVerdict:
    """Register the winner on cfg.hardware, see `stage.run`.

    Raises:
        RegistryError: the dataset has no latency on that hardware, too.
    """
    return stage.run(cfg, root, GraphSubject)


@dataclass
class GraphSubject(RegistrationSubject[GraphRow, PromotionVerdict]):
    """The winner among the graph models of a device."""

    COMMAND: ClassVar = "graphs register"
    TRAIN: ClassVar = "tencost graphs train model=additive, then tencost graphs evaluate"

    def __post_init__(self) -> None:
        if self.cfg.hardware.name not in self.data.labelled.hardware:
            raise RegistryError(
                f"expected one of {', '.join(self.data.labelled.hardware)}, which {self.cfg.dataset.name} has "
                f"latencies of; found hardware={self.cfg.hardware.name}"
            )

    @property
    def model_name(self) -> str:
        return f"tencost-graph-{self.cfg.hardware.name}"

    @property
    def report(self) -> Path:
        return self.data.folders.report(self.cfg.hardware.name)

    @cached_property
    def board(self) -> GraphBoard:
        return GraphBoard.load(self.report / GraphBoard.FILE)

    @cached_property
    def data(self) -> GraphData:
        """The graphs of the dataset, as the split has them."""
        return GraphData(self.cfg, self.root)

    @property
    def column(self) -> int:
        """Of the device in latencies and predictions."""
        return self.data.labelled.hardware.index(self.cfg.hardware.name)

    @cached_property
    def parts(self) -> dict[str, LabelledGraphs]:
        """The test parts."""
        return test_parts(self.data)

    @cached_property
    def models(self) -> dict[str, JudgedGraphModel]:
        """All trained models with their predictions for the test parts, by name."""
        return {model.name: model for model in load_models(self.data, self.parts)}

    @property
    def model(self) -> JudgedGraphModel:
        """The winner."""
        return self.models[self.row.model]

    def training(self) -> tuple[Path, str]:
        folder = self.data.folders.models / self.row.model
        return folder, bundles.graph_training_digest(folder)

    def offer(self) -> Offer:
        """Return the bundle of the seed that did best on the validation part, for this device."""
        hardware, folder = self.cfg.hardware.name, self.work / "bundle"
        index = int(np.argmin(self.row.valid_mape))
        chosen = self.model.bundles[index]
        extra = _left_out(self.parts, self.model, index, self.column)
        info = bundles.register_for(chosen.folder, hardware, folder, extra)
        return Offer(
            name=self.model_name,
            bundle=folder,
            content_digest=bundles.content_digest(info),
            major=GRAPH_ABI,
            tags=registry.origin_tags(info, hardware, "graph"),
            model_text=_model_text(self.model_name, self.cfg),
            save=save_graph_pyfunc,
        )

    def judge(self, client: Any, version: Version, champion: Version | None) -> PromotionVerdict:
        del client
        parts = {
            name: part
            for name, part in self.parts.items()
            if np.isfinite(part.latency_ms[:, self.column]).any()
        }

        def errors_of(
            predicted_ms: dict[str, NDArray[np.float64]], device: int
        ) -> dict[str, Errors]:
            return {
                name: _relative_errors(part, predicted_ms[name][:, :, device], self.column)
                for name, part in parts.items()
            }

        opponent, notes = None, []
        if champion is not None:
            name = f"champion {champion.semver}"
            try:
                with tempfile.TemporaryDirectory(prefix="tencost-") as cache:
                    bundle = load_graph_bundle(pull(champion.uri, Path(cache), root=self.root))
                    device = bundles.device_index(bundle.info, self.cfg.hardware.name)
                    predicted = {key: predict_all((bundle,), part) for key, part in parts.items()}
                    opponent = Opponent(name, errors_of(predicted, device))
                if bundle.info.split_hash != self.model.bundles[0].info.split_hash:
                    notes.append(of_another_split(name))
            except (BundleError, RegistryError) as error:
                notes.append(unusable(name, error))
        references = [
            Opponent(model.name, errors_of(model.predicted_ms, self.column))
            for model in self.models.values()
            if model.reference
        ]
        verdict = judge(
            errors_of(self.model.predicted_ms, self.column),
            references,
            opponent,
            rolled_back=version.tags.get(registry.ROLLED_BACK_TAG, ""),
        )
        return verdict.with_notes(notes)

    def description(self, version: Version) -> str:
        """Return the leaderboard."""
        del version
        return report.graph_board_markdown(self.board)

    def tags(self, verdict: PromotionVerdict) -> dict[str, str]:
        del verdict
        figures = {metric: f"{self.row.mean(metric):.4f}" for metric in ("acc10", "mape")}
        return {"num_seeds": str(len(self.row.seeds)), **figures}

    def note(
        self,
        client: Any,
        version: Version,
        champion: Version | None,
        verdict: PromotionVerdict,
        text: str,
    ) -> None:
        """Write under the name of the registered model: one run trains the models of all devices."""
        del champion
        name, run_id = version.name, version.run_id
        client.set_tag(run_id, f"register.{name}", f"{version.semver} {verdict.word}")
        client.log_text(run_id, text, f"register/{name}.md")

    def marks(self) -> list[Path]:
        copy = graph_mark(self.root, self.cfg.dataset.name, self.cfg.hardware.name)
        return [*super().marks(), *([] if copy is None else [copy])]


def _left_out(
    parts: dict[str, LabelledGraphs], model: JudgedGraphModel, index: int, column: int
) -> dict[str, bytes]:
    """Return the file of a bundle's errors on the families held out; nothing where there are too few families."""
    part = parts.get(OTHER)
    if part is None:
        return {}
    bounds = left_out_errors(
        part.graphs.family, part.latency_ms[:, column], model.predicted_ms[OTHER][index, :, column]
    )
    if bounds is None:
        return {}
    return {left_out.FILE: orjson.dumps(bounds, option=orjson.OPT_INDENT_2)}


def _relative_errors(
    part: LabelledGraphs, predicted_ms: NDArray[np.float64], column: int
) -> Errors:
    """Return the relative errors of a model on the graphs of a part that have a latency.

    Args:
        part: G graphs.
        predicted_ms: float64 [S, G], of the device.
        column: of the device in the part's latencies.
    """
    latency_ms = part.latency_ms[:, column]
    measured = np.isfinite(latency_ms)
    error = np.abs(predicted_ms[:, measured] - latency_ms[measured]) / latency_ms[measured]
    _, family = np.unique(part.graphs.family[measured], return_inverse=True)
    return Errors(error, family.astype(np.int64))


def _model_text(name: str, cfg: Config) -> str:
    hardware = cfg.hardware.name
    return (
        f"Latency of whole networks on {cfg.hardware.description or hardware}, predicted from their graphs.\n\n"
        f"Ask it: `tencost graphs latency hardware={hardware} network=onnx network.path=model.onnx`, or in a script "
        f"`tencost.load_graph_model('models:/{name}@champion')`."
    )
