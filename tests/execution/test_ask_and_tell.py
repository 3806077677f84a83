"""The search for settings: how trials may end, workers that die, commands that are interrupted, storages."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from optuna.trial import TrialState

import works
from searches import a_search
from tencost.errors import ConfigError, TrainError
from tencost.workers.parallel.search import best_trial, ended_trials, opened, run

pytestmark = pytest.mark.slow


def test_every_combination_is_tried_once(tmp_path: Path) -> None:
    search = a_search(tmp_path)
    with opened(search) as study:
        for _ in range(2):  # the second finds nothing to do
            run(search, study, works.trial, None)
            assert sorted(trial.params["x"] for trial in study.trials) == [1, 2, 3, 4]
        assert best_trial(study).params == {"x": 4}


def test_how_trials_may_end(tmp_path: Path) -> None:
    search = a_search(tmp_path)
    with opened(search) as study:
        run(search, study, works.failing, TrainError("first\nno graphs"))
        ends = {
            trial.params["x"]: (trial.state, trial.value, trial.user_attrs["note"])
            for trial in ended_trials(study)
        }
    assert ends == {
        1: (TrialState.FAIL, None, "no graphs"),
        2: (TrialState.FAIL, None, "its value is nan"),
        3: (TrialState.PRUNED, 3.0, "pruned"),
        4: (TrialState.COMPLETE, 4.0, ""),
    }


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_trials_that_fail(tmp_path: Path, rate: float) -> None:
    """One is enough where none may fail; else the search fails when all have."""
    search = a_search(tmp_path, trials=2, failure_rate=rate)
    message = "out of luck" if rate == 0.0 else "expected a trial that trains, found 2 that failed"
    with opened(search) as study:
        for x in (1, 1):
            study.enqueue_trial({"x": x})
        with pytest.raises((TrainError, OSError), match=message):
            run(search, study, works.failing, OSError("out of luck"))


def test_a_trial_that_ends_its_workers(tmp_path: Path) -> None:
    """It takes the trial beside it along, in whose place others are tried."""
    search = a_search(tmp_path, trials=4, jobs=2)
    with opened(search) as study:
        run(search, study, works.deadly, None)
        notes = {trial.user_attrs["note"] for trial in ended_trials(study)}
        assert notes == {"", "its worker died"}
        assert not study.get_trials(states=(TrialState.RUNNING,))


def test_trials_of_an_interrupted_command_come_first(tmp_path: Path) -> None:
    search = a_search(tmp_path, trials=2)
    with opened(search) as study:
        interrupted = study.ask(dict(search.space))
    with search.journal.open("a") as file:
        file.write('{"op_code":4,"wor')
    Path(f"{search.journal}.lock").symlink_to(search.journal)  # both as a kill leaves them
    with opened(search) as study:
        run(search, study, works.trial, None)
        first, again, other = study.trials
    assert (first.state, again.params) == (TrialState.FAIL, interrupted.params)
    assert again.user_attrs["folder"] == first.number
    assert other.params != again.params


def test_two_commands_do_not_run_one_search(tmp_path: Path) -> None:
    search = a_search(tmp_path)
    with (
        opened(search),
        pytest.raises(ConfigError, match="no other command runs"),
        opened(search),
    ):
        pass


def test_storages(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    search = a_search(tmp_path, trials=1, storage=url)
    with opened(search) as study:
        run(search, study, works.trial, None)
    with opened(search) as study:
        assert len(study.trials) == 1
    with closing(sqlite3.connect(tmp_path / "study.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = 'v2.6.0.a'")
        database.execute("UPDATE version_info SET library_version = '2.10.1'")
    for storage, message in (
        (url, f"optuna storage upgrade --storage {url}"),
        (f"sqlite:///{tmp_path / 'nowhere' / 'study.db'}", "expected a database of Optuna"),
    ):
        with (
            pytest.raises(ConfigError, match=message),
            opened(a_search(tmp_path, storage=storage)),
        ):
            pass
