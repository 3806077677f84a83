"""Where Optuna's trials are kept: one JSON object a line, appended when a trial is over.

    {"number": 3, "state": "COMPLETE", "values": [0.93], "params": {"model.eta": 0.1}, "distributions": {...}}

Optuna 2.10, the latest that Hydra's sweeper works with, keeps studies in a database only with SQLAlchemy 1, and MLflow
needs 2. A line that a kill cut off is left out.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from optuna.distributions import distribution_to_json, json_to_distribution
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState


class Journal(InMemoryStorage):
    """Optuna's storage in memory, with a file that has every trial that is over."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = Path(path)

    def create_new_study(self, study_name: str | None = None) -> int:
        study: int = super().create_new_study(study_name)
        for trial in read_trials(self._path):
            self.create_new_trial(study, trial)
        return study

    def set_trial_state(self, trial_id: int, state: TrialState) -> bool:
        changed: bool = super().set_trial_state(trial_id, state)
        if state.is_finished():
            self._append(self.get_trial(trial_id))
        return changed

    def _append(self, trial: FrozenTrial) -> None:
        line: dict[str, Any] = {
            "number": trial.number,
            "state": trial.state.name,
            "values": trial.values,
            "params": trial.params,
            "distributions": {
                name: orjson.loads(distribution_to_json(one))
                for name, one in trial.distributions.items()
            },
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            if file.tell() and not self._path.read_bytes().endswith(b"\n"):
                file.write(b"\n")  # after a line that was cut off
            file.write(orjson.dumps(line) + b"\n")


def read_trials(path: Path) -> list[FrozenTrial]:
    """Return the trials of a file, none where there is no file."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_bytes().splitlines():
        try:
            told = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        found.append(
            FrozenTrial(
                number=told["number"],
                state=TrialState[told["state"]],
                value=None,
                values=told["values"],
                datetime_start=datetime.fromtimestamp(0).astimezone(),
                datetime_complete=datetime.fromtimestamp(0).astimezone(),
                params=told["params"],
                distributions={
                    name: json_to_distribution(orjson.dumps(one).decode())
                    for name, one in told["distributions"].items()
                },
                user_attrs={},
                system_attrs={},
                intermediate_values={},
                trial_id=told["number"],
            )
        )
    return found
