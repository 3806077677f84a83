"""How MLflow's table of runs opens: headline figures first, then what a person chose, the best run on top.

MLflow keeps no default columns on the server, but views that people share: the tag ``mlflow.sharedViewState.<key>`` of
an experiment, opened by ``?viewStateShareKey=<key>``. Its value is the state of the page as JSON (seen in the UI of
MLflow 3.17.2). The chart view of the same page compares runs: headline figures as bars, then parallel coordinates of
settings, where a sweep is read.
"""

from __future__ import annotations

from typing import Any

import orjson

from tencost.evaluate.scoring import HEADLINE

KEY = "tencost"
WORKFLOW = "machine_learning"
"""Which of its two faces the page shows, models that are trained or generative AI; the latter unless it is asked."""
PARAMETERS = ("model.name", "features.name", "hardware.name", "split.name", "seeds")
ORDER = "metrics.`evaluate/pairwise`"
"""What decides the order: of the headline figures the one that scatters least over tasks."""
SETTINGS = ("model.num_rounds", "model.max_depth", "model.eta")
"""Of models, the settings that parallel coordinates begin with; the page offers all."""


def _state() -> dict[str, Any]:
    """Return the state of the page."""
    return {
        "selectedColumns": [
            *(f"metrics.`evaluate/{name}`" for name in HEADLINE),
            "metrics.`train/final_valid_pairwise`",
            "metrics.`train/fit_seconds`",
            *(f"params.`{name}`" for name in PARAMETERS),
        ],
        "orderByKey": ORDER,
        "orderByAsc": False,
        "searchFilter": "tags.`tencost.stage` = 'train'",
        "compareRunSections": [
            {"uuid": name, "name": heading, "display": True, "isReordered": False}
            for name, heading in (("headline", "Headline figures"), ("settings", "Settings"))
        ],
        "compareRunCharts": [*(_bars(f"evaluate/{name}") for name in HEADLINE), _coordinates()],
        "isAccordionReordered": True,
    }


def _chart(kind: str, section: str, name: str, **fields: Any) -> dict[str, Any]:
    """Return a chart that is the person's own, so that the page does not make others in its place."""
    chart = {"uuid": f"{section}/{name}", "type": kind, "metricSectionId": section}
    return {**chart, "deleted": False, "isGenerated": False, "runsCountToCompare": 20, **fields}


def _bars(metric: str) -> dict[str, Any]:
    return _chart("BAR", "headline", metric, metricKey=metric, dataAccessKey=None)


def _coordinates() -> dict[str, Any]:
    """Return parallel coordinates, which end with the figure that decides the order."""
    return _chart(
        "PARALLEL",
        "settings",
        "coordinates",
        selectedParams=[*SETTINGS, "features.name"],
        selectedMetrics=["evaluate/geo1", "evaluate/top1", "evaluate/pairwise"],
        showAllRuns=True,
    )


def write_view(client: Any, experiment: str) -> str | None:
    """Write the view into an experiment; return the page's path on an MLflow server, None if there is no such one."""
    stored = client.get_experiment_by_name(experiment)
    if stored is None:
        return None
    number, tag = stored.experiment_id, f"mlflow.sharedViewState.{KEY}"
    text = orjson.dumps(_state()).decode()
    if stored.tags.get(tag) != text:
        client.set_experiment_tag(number, tag, text)
    return f"/#/experiments/{number}/runs?viewStateShareKey={KEY}&workflowType={WORKFLOW}"
