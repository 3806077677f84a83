"""The shared view of an experiment: which columns the table of runs opens with."""

from __future__ import annotations

import json
from pathlib import Path

from tencost.config import Config
from tencost.evaluate import runs_view
from tencost.evaluate.scoring import HEADLINE
from tencost.tracking import runs as tracking


def test_the_view_is_a_tag_of_the_experiment_and_names_what_runs_have(
    toy_project: Path, toy_config: Config
) -> None:
    from mlflow import MlflowClient

    with tracking.start_run(toy_config, toy_project, stage="train") as run:
        pass
    client = MlflowClient(tracking_uri=tracking.setup(toy_project))
    page = runs_view.write_view(client, toy_config.experiment_name)
    experiment = client.get_experiment_by_name(toy_config.experiment_name)
    assert page == (
        f"/#/experiments/{experiment.experiment_id}/runs?viewStateShareKey=tencost"
        "&workflowType=machine_learning"
    )
    view = json.loads(experiment.tags["mlflow.sharedViewState.tencost"])
    assert view["selectedColumns"][:5] == [f"metrics.`evaluate/{name}`" for name in HEADLINE]
    parameters = set(client.get_run(run.run_id).data.params)
    assert set(runs_view.PARAMETERS) <= parameters
    assert runs_view.write_view(client, "nothing there") is None
