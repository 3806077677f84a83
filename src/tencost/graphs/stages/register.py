"""The stage `graphs register`: the winner on a device becomes a version, and champion if the rule allows it.

The registered model is ``tencost-graph-<hardware>``. The digest of what was offered is written to
mlruns/registered/<dataset>/<hardware>.json, beside the registry; DVC keeps a copy of it,
graphs/data/registered/<dataset>/<hardware>.json.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tencost.config import Config
from tencost.config.graph_outputs import graph_mark
from tencost.errors import BundleError, RegistryError
from tencost.graphs import bundle as bundles
from tencost.graphs import left_out, report
from tencost.graphs.board import OTHER, GraphBoard, GraphRow
from tencost.graphs.bundle import GRAPH_ABI, GraphBundle, load_graph_bundle
from tencost.graphs.graph_set import LabelledGraphs
from tencost.graphs.left_out import left_out_errors
from tencost.graphs.promotion import Errors, Opponent, Rule, judge
from tencost.graphs.pyfunc_model import save_graph_pyfunc
from tencost.graphs.stages.data import GraphData
from tencost.graphs.stages.evaluate import Model, load_models, predict_all, test_parts
from tencost.register import offering, registry
from tencost.register.promotion import YES, Verdict
from tencost.register.pull import pull
from tencost.register.registry import Offer, Version
from tencost.train import tracking


def model_name(hardware: str) -> str:
    """Return the name of a device's registered graph model."""
    return f"tencost-graph-{hardware}"


def run(cfg: Config, root: Path) -> Verdict:
    """Register the winner on cfg.hardware and promote it if the rule allows.

    Raises:
        ConfigError: nothing was evaluated.
        RegistryError: only references were trained, or the dataset has no latency on that hardware.
    """
    root = root.resolve()
    data = GraphData(cfg, root)
    hardware = cfg.hardware.name
    if hardware not in data.labelled.hardware:
        raise RegistryError(
            f"expected one of {', '.join(data.labelled.hardware)}, which {cfg.dataset.name} has latencies of; found "
            f"hardware={hardware}"
        )
    board = GraphBoard.load(data.folders.report(hardware) / GraphBoard.FILE)
    best = board.winner()
    if best is None:
        raise RegistryError(
            f"expected a model to register in {data.folders.report(hardware) / GraphBoard.FILE}, found only "
            "references. Train one: tencost graphs train graph_model=additive, then tencost graphs evaluate"
        )
    column = data.labelled.hardware.index(hardware)
    parts = test_parts(data)
    models = {model.name: model for model in load_models(data, parts)}
    own = models[best.model]
    client = registry.connect(tracking.setup(root, cfg.experiment_name))
    champion = registry.find_champion(client, model_name(hardware))
    with tempfile.TemporaryDirectory(prefix="tencost-") as work:
        index = int(np.argmin(best.valid_mape))
        chosen = own.bundles[index]
        folder = Path(work) / "bundle"
        extra = _left_out(parts, own, index, column)
        info = bundles.register_for(chosen.folder, hardware, folder, extra)
        offer = Offer(
            name=model_name(hardware),
            bundle=folder,
            content_digest=bundles.graph_digest(info),
            major=GRAPH_ABI,
            tags={
                "family": info.family,
                "features": "graph",
                "hardware": hardware,
                "dataset": info.dataset,
                "split_hash": info.split_hash,
                "seed": str(info.seed),
            },
            model_text=_model_text(cfg, hardware),
            save=save_graph_pyfunc,
        )
        trained = data.folders.models / best.model
        digest = bundles.training_digest(trained)
        run_id = offering.run_of(client, cfg, "graphs register", trained, digest, best.seeds)
        version, new = registry.register_offer(client, offer, run_id=run_id, description="")
    if champion is not None and champion.number == version.number:
        verdict = Verdict(False, (f"{YES}version {version.number} is the champion already",))
    else:
        verdict = _judged(root, column, parts, models, own, champion, version)
        _note(client, version, board, best, verdict)
        if verdict.promote:  # last: a run killed before it judges and writes again
            registry.check_unchanged(client, version.name, champion)
            registry.promote(client, version)
            champion = version
    offering.mark(root, cfg, version)
    copy = graph_mark(root, cfg.dataset.name, hardware)
    if copy is not None:
        offering.write_mark(copy, version)
    offering.say(version, new, champion, verdict)
    return verdict


def _left_out(
    parts: dict[str, LabelledGraphs], model: Model, index: int, column: int
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
    return {left_out.FILE: orjson.dumps(bounds.to_json(), option=orjson.OPT_INDENT_2)}


def errors(
    part: LabelledGraphs, predicted_ms: np.ndarray[Any, np.dtype[np.float64]], column: int
) -> Errors:
    """Return the relative errors of a model on the graphs of a part that have a latency.

    Args:
        part: G graphs.
        predicted_ms: float64 [S, G, D].
        column: of the device.
    """
    measured = part.latency_ms[:, column]
    known = np.isfinite(measured)
    error = np.abs(predicted_ms[:, known, column] - measured[known]) / measured[known]
    _, family = np.unique(part.graphs.family[known], return_inverse=True)
    return Errors(error, family.astype(np.int64))


def _judged(
    root: Path,
    column: int,
    parts: dict[str, LabelledGraphs],
    models: dict[str, Model],
    own: Model,
    champion: Version | None,
    version: Version,
) -> Verdict:
    known = {
        name: part for name, part in parts.items() if np.isfinite(part.latency_ms[:, column]).any()
    }

    def met(model: Model) -> dict[str, Errors]:
        return {
            name: errors(part, model.predicted_ms[name], column) for name, part in known.items()
        }

    references = [Opponent(model.name, met(model)) for model in models.values() if model.reference]
    notes: list[str] = []
    opponent = None
    if champion is not None:
        try:
            with tempfile.TemporaryDirectory(prefix="tencost-") as cache:
                bundle = load_graph_bundle(pull(champion.uri, Path(cache), root=root))
                opponent = _champion(bundle, champion, known)
                if bundle.info.split_hash != own.bundles[0].info.split_hash:
                    notes.append(
                        f"champion {champion.semver} was trained on another split, so it may have learnt from what is "
                        "tested here, which favours it"
                    )
        except (BundleError, RegistryError) as error:
            notes.append(
                f"champion {champion.semver} cannot be used here any more, so it is not compared: {error}"
            )
    judged = judge(
        met(own),
        references,
        opponent,
        rolled_back=version.tags.get(registry.ROLLED_BACK_TAG, ""),
        rule=Rule(),
    )
    told = tuple(f"{YES}note that {note}" for note in notes)
    return replace(judged, reasons=(*told, *judged.reasons))


def _champion(bundle: GraphBundle, champion: Version, parts: dict[str, LabelledGraphs]) -> Opponent:
    index = bundles.device_index(bundle.info, bundle.info.hardware)
    found = {}
    for name, part in parts.items():
        column = part.hardware.index(bundle.info.hardware)
        own = predict_all((bundle,), part)[:, :, [index]]
        only = LabelledGraphs(part.graphs, (bundle.info.hardware,), part.latency_ms[:, [column]])
        found[name] = errors(only, own, 0)
    return Opponent(f"champion {champion.semver}", found)


def _note(
    client: Any, version: Version, board: GraphBoard, best: GraphRow, verdict: Verdict
) -> None:
    """Write the verdict to the version and to its run."""
    word = "promoted" if verdict.promote else "refused"
    number = str(version.number)
    text = "\n".join(
        [
            report.markdown(board),
            "Promoted:" if verdict.promote else "Not promoted:",
            *(f"- {reason}" for reason in verdict.reasons),
        ]
    )
    client.update_model_version(version.name, number, description=text)
    tags = {
        registry.VERDICT_TAG: word,
        "reasons": "\n".join(verdict.reasons),
        "num_seeds": str(len(best.seeds)),
        "acc10": f"{best.mean('acc10'):.4f}",
        "mape": f"{best.mean('mape'):.4f}",
    }
    for name, value in tags.items():
        client.set_model_version_tag(version.name, number, name, value)
    client.set_tag(version.run_id, f"register.{version.name}", f"{version.semver} {word}")
    client.log_text(version.run_id, text, f"register/{version.name}.md")


def _model_text(cfg: Config, hardware: str) -> str:
    name = model_name(hardware)
    return (
        f"Latency of whole networks on {cfg.hardware.description or hardware}, predicted from their graphs.\n\n"
        f"Ask it: `tencost graphs latency hardware={hardware} network=onnx network.path=model.onnx`, or in a script "
        f"`tencost.load_graph_model('models:/{name}@champion')`."
    )
