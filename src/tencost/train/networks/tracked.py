"""The MLflow runs of the stages about whole networks: what they say about themselves."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

from tencost.config import Config
from tencost.tracking.runs import TrackedRun, flatten, start_run


def start_graph_run(
    cfg: Config, root: Path, stage: str, *, name: str, of_model: bool
) -> AbstractContextManager[TrackedRun]:
    """Start a run, see :func:`tencost.tracking.runs.start_run`.

    Args:
        cfg: the configuration.
        root: the project's root.
        stage: its words, "graphs train".
        name: of the run.
        of_model: whether it is about the chosen model, or about all of a split.
    """
    parameters: dict[str, str] = {"split.name": cfg.graph_split_name}
    flatten("dataset", asdict(cfg.dataset), parameters)
    flatten("graph_split", asdict(cfg.graph_split), parameters)
    tags = {"split": cfg.graph_split_name, "hardware": "all devices"}
    if of_model:
        flatten("graph_model", asdict(cfg.graph_model), parameters)
        parameters |= {
            "model.name": cfg.graph_model_name,
            "seeds": ",".join(str(seed) for seed in cfg.seeds),
        }
        tags |= {
            "family": cfg.graph_model.family,
            "model": cfg.graph_model_name,
            "reference": str(cfg.graph_model.reference).lower(),
        }
    return start_run(cfg, root, stage=stage, name=name, tags=tags, parameters=parameters)
