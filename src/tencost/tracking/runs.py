"""MLflow: where runs go, and what every run of a stage says about itself.

Runs go to ``MLFLOW_TRACKING_URI``, or to ``<root>/mlruns/mlflow.db`` with artifacts in ``<root>/mlruns/artifacts``. The
database is created under a file lock: two processes that create it together crash; under it, the database of a
project that was copied or moved is made to point to where it lies now (:mod:`tencost.tracking.artifact_paths`). Nothing
here changes MLflow's global state; a run that ends with an exception is FAILED, not left RUNNING, and one whose process
was killed is made KILLED by whoever connects next (:mod:`tencost.tracking.orphaned_runs`).
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import orjson

from tencost import signals
from tencost.config import Config
from tencost.errors import RegistryError
from tencost.tracking import artifact_paths as moved
from tencost.tracking.orphaned_runs import close_ended, process_tags
from tencost.tracking.provenance import git_state, installed_versions
from tencost.tracking.server_check import MLFLOW_SETTINGS, explain_server_errors, reach_server

EXPERIMENT = "tencost"
"""Experiment of runs that have no configuration of their own."""

PARENT_VARIABLE = "TENCOST_PARENT_RUN_ID"
"""Environment variable with the run that runs started now belong to, as a sweep's jobs do."""

BUNDLES_TAG = "bundles"
"""Tag of a training run: the digest of the bundles that it wrote. By it a folder of bundles finds its run."""

CODE_TAG = "code"
"""Tag of a training run: the digest of the code that trained (`provenance.code_digest`)."""

_BATCH = 1000
_REFUSED = re.compile(r"[/:.%\"']")
"""What MLflow does not take in the name of a logged model."""
_MAX_VALUE = 5000
_LOCK_SECONDS = 120
_NEW = ".new-"
"""What the name of a folder begins with in which a database is made."""
_JOBS_END_S = 10.0
"""How long the end of an interrupted sweep's jobs is waited for."""


@dataclass(frozen=True)
class MetricPoint:
    """One value of a curve."""

    name: str
    value: float
    step: int


class TrackedRun:
    """A running MLflow run."""

    def __init__(self, client: Any, run_id: str) -> None:
        self.client = client
        self.run_id = run_id

    def log_metrics(
        self, values: Mapping[str, float], step: int = 0, *, model_id: str | None = None
    ) -> None:
        """Log metrics of one step, of a logged model, too, if one is named; NaN values are left out."""
        points = [MetricPoint(name, float(number), step) for name, number in values.items()]
        self.log_points(points, model_id=model_id)

    def log_points(self, points: Sequence[MetricPoint], *, model_id: str | None = None) -> None:
        """Log whole curves in a few requests; NaN values are left out.

        Metrics of a model name the dataset that the run has logged: MLflow's page of models compares by it. Without a
        model MLflow does not store it.
        """
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        dataset = {} if model_id is None else self._dataset()
        metrics = [
            Metric(point.name, point.value, now, point.step, model_id=model_id, **dataset)
            for point in points
            if point.value == point.value
        ]
        for start in range(0, len(metrics), _BATCH):
            self.client.log_batch(self.run_id, metrics=metrics[start : start + _BATCH])

    def _dataset(self) -> dict[str, str]:
        inputs = self.client.get_run(self.run_id).inputs
        if inputs is None or not inputs.dataset_inputs:
            return {}
        dataset = inputs.dataset_inputs[0].dataset
        return {"dataset_name": dataset.name, "dataset_digest": dataset.digest}

    def set_tag(self, name: str, value: str) -> None:
        """Set a tag."""
        self.client.set_tag(self.run_id, name, value)

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Log a file."""
        self.client.log_artifact(self.run_id, str(path), folder)

    def log_artifacts(self, path: Path, folder: str | None = None) -> None:
        """Log a folder's content, under a name if one is given."""
        self.client.log_artifacts(self.run_id, str(path), folder)

    def log_dataset(
        self, name: str, digest: str, source: Mapping[str, str], profile: Mapping[str, Any]
    ) -> None:
        """Log what the run learnt from.

        Args:
            name: name of the dataset.
            digest: its hash, at most 36 characters are kept.
            source: where it lies.
            profile: counts and hashes shown with it.
        """
        from mlflow.entities import Dataset, DatasetInput, InputTag

        dataset = Dataset(
            name=name,
            digest=digest[:36],
            source_type="dvc",
            source=orjson.dumps(dict(source)).decode(),
            profile=orjson.dumps(dict(profile)).decode(),
        )
        tags = [InputTag("mlflow.data.context", "training")]
        self.client.log_inputs(self.run_id, datasets=[DatasetInput(dataset, tags)])


def log_model(
    client: Any,
    run_id: str,
    folder: Path,
    *,
    name: str,
    model_type: str,
    parameters: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
) -> str:
    """Log a folder with MLflow's form of a model as what a run has made; return the id of the logged model.

    The page of models lists it with the metrics that are logged under its id, and leads to its run and its versions.

    Args:
        client: of the store.
        run_id: the run that made it, which may have ended.
        folder: the model as MLflow saves it.
        name: what the page calls it; characters that MLflow refuses become "-".
        model_type: the family.
        parameters: shown with it.
        tags: of it.
    """
    from mlflow.entities import LoggedModelOutput

    model = client.create_logged_model(
        client.get_run(run_id).info.experiment_id,
        name=_REFUSED.sub("-", name),
        source_run_id=run_id,
        params=dict(parameters or {}),
        tags=dict(tags or {}),
        model_type=model_type,
    )
    status = "FAILED"
    try:
        client.log_model_artifacts(model.model_id, str(folder))
        status = "READY"
    finally:
        client.finalize_logged_model(model.model_id, status)
    client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
    return str(model.model_id)


def logged_model(client: Any, run_id: str) -> str | None:
    """Return the id of the first model that a run has made; None of a run without one."""
    outputs = client.get_run(run_id).outputs
    return str(outputs.model_outputs[0].model_id) if outputs and outputs.model_outputs else None


def setup(root: Path, experiment: str = EXPERIMENT) -> str:
    """Make sure that the tracking store and an experiment are there; return the tracking URI."""
    return _connect(root, experiment)[0]


def check_tracking(cfg: Config, root: Path) -> None:
    """Ask the tracking server, where one is set, for the experiment: what is wrong is said before anything long begins.

    Raises:
        RegistryError: it does not answer, or refuses the user.
    """
    if os.environ.get("MLFLOW_TRACKING_URI"):
        _connect(root, cfg.experiment_name)


@contextmanager
def start_run(
    cfg: Config,
    root: Path,
    *,
    stage: str,
    name: str | None = None,
    tags: Mapping[str, str] | None = None,
    parameters: Mapping[str, str] | None = None,
) -> Iterator[TrackedRun]:
    """Start a run of a stage: tags, flat configuration, commit, versions, machine; end it with the block.

    Args:
        cfg: the configuration; logged as parameters and as config.yaml.
        root: the project's root.
        stage: name of the stage.
        name: name of the run; `<model> · <features> · <hardware>` if None.
        tags: further tags.
        parameters: what is logged as parameters; None: what of the configuration a stage about programs uses.
    """
    _, client, experiment_id = _connect(root, cfg.experiment_name)
    parent = os.environ.get(PARENT_VARIABLE)
    git = git_state(root)
    if parameters is None:
        parameters, tags = (
            flat_parameters(cfg, stage, root),
            {**_stage_tags(cfg, stage), **(tags or {})},
        )
    described = {
        **_source_tags(stage),
        "hardware": cfg.hardware.name,
        "dataset": cfg.dataset.name,
        "git_dirty": str(git.dirty).lower(),
        "host": f"{platform.machine()}, {os.cpu_count()} CPUs",
        **{f"version.{key}": value for key, value in installed_versions().items()},
        **({"mlflow.source.git.commit": git.commit} if git.commit else {}),
        **({"mlflow.parentRunId": parent} if parent else {}),
        **(tags or {}),
    }
    with _started(client, experiment_id, name or run_name(cfg), described) as run_id:
        tracked = TrackedRun(client, run_id)
        _log_config(tracked, cfg, parameters)
        yield tracked


@contextmanager
def parent_run(root: Path, name: str, experiment: str = EXPERIMENT) -> Iterator[str]:
    """Start a run that the runs of a sweep are nested in, worker processes included; gives its id."""
    _, client, experiment_id = _connect(root, experiment)
    before = os.environ.get(PARENT_VARIABLE)
    started = None
    try:
        with _started(client, experiment_id, name, _source_tags("sweep")) as started:
            os.environ[PARENT_VARIABLE] = started
            yield started
    except KeyboardInterrupt:
        if started is not None:
            _close_jobs(client, experiment_id, started, root)
        raise
    finally:
        if before is None:
            os.environ.pop(PARENT_VARIABLE, None)
        else:
            os.environ[PARENT_VARIABLE] = before


def training_run(client: Any, experiment: str, digest: str) -> str | None:
    """Return the id of the run that wrote a folder of bundles, the latest one; None if this store has none.

    Args:
        client: of the store.
        experiment: its name.
        digest: of the folder's bundles, as BUNDLES_TAG has it.
    """
    stored = client.get_experiment_by_name(experiment)
    if stored is None:
        return None
    runs = client.search_runs(
        [stored.experiment_id],
        f"tags.{BUNDLES_TAG} = '{digest}'",
        max_results=1,
        order_by=["attributes.start_time DESC"],
    )
    return str(runs[0].info.run_id) if runs else None


def run_name(cfg: Config) -> str:
    """Return what a person looks for in the table of runs."""
    pooled = " · all hardware" if cfg.model.pool.value == "all" else ""
    return f"{cfg.model_name} · {cfg.features.name} · {cfg.hardware.name}{pooled}"


def flat_parameters(cfg: Config, stage: str, root: Path) -> dict[str, str]:
    """Return what a person chose, as dotted names and text values: the columns in which runs differ.

    Of the stage's own group (`model`; of tuning `tuner`) that is every field; of the others the name, and fields that
    are not as conf/ has them. config.yaml among the run's artifacts has all.
    """
    whole, groups = "model", ["dataset", "hardware", "features", "split"]
    if stage == "tune":
        whole, groups = "tuner", ["dataset", "hardware", "network"]
    flat: dict[str, str] = {}
    flatten(whole, asdict(getattr(cfg, whole)), flat)
    for constant in ("model.reads", "model.reference"):
        flat.pop(constant, None)
    for group in groups:
        choice = getattr(cfg, group)
        name = cfg.split_name if group == "split" else str(choice.name)
        fields: dict[str, str] = {}
        flatten(group, asdict(choice), fields)
        defined = _defined(root, group, name, choice)
        changed = {key: text for key, text in fields.items() if defined.get(key) != text}
        flat |= {**changed, f"{group}.name": name}
    if stage != "tune":
        flat["model.name"] = cfg.model_name
        flat["seeds"] = ",".join(str(seed) for seed in cfg.seeds)
    return flat


def _defined(root: Path, group: str, name: str, choice: Any) -> dict[str, str]:
    """Return the fields of a choice as its file in conf/ and the schema's defaults have them; {} without a file."""
    path = root / "conf" / group / f"{name}.yaml"
    if not path.is_file():
        return {}
    from omegaconf import OmegaConf

    merged = OmegaConf.merge(OmegaConf.structured(type(choice)), OmegaConf.load(path))
    fields: dict[str, str] = {}
    flatten(group, OmegaConf.to_container(merged, resolve=False), fields)
    return fields


def _connect(root: Path, experiment: str) -> tuple[str, Any, str]:
    """Return (tracking URI, client, experiment id), creating what is missing under a lock."""
    for variable, setting in MLFLOW_SETTINGS.items():
        os.environ.setdefault(variable, setting)
    from filelock import FileLock
    from mlflow import MlflowClient

    folder = (root / "mlruns").resolve()
    chosen = os.environ.get("MLFLOW_TRACKING_URI")
    uri = chosen or f"sqlite:///{folder / 'mlflow.db'}"
    location = None if chosen else (folder / "artifacts").as_uri()
    folder.mkdir(parents=True, exist_ok=True)
    reach_server(uri)
    with FileLock(folder / ".lock", timeout=_LOCK_SECONDS), explain_server_errors(uri):
        if not chosen:
            _check_writable(folder / "mlflow.db")
            _create(folder / "mlflow.db")
            moved.follow(folder / "mlflow.db")
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        stored = client.get_experiment_by_name(experiment)
        if stored is not None:
            experiment_id = str(stored.experiment_id)
        else:  # with the UI's page for training
            experiment_id = client.create_experiment(
                experiment,
                artifact_location=location,
                tags={"mlflow.experimentKind": "custom_model_development"},
            )
        close_ended(client, experiment_id, None if chosen else folder / "mlflow.db")
    return uri, client, experiment_id


def _create(database: Path) -> None:
    """Write MLflow's tables, where there is no database yet, into a file that then takes its name.

    It takes seconds; of one that was left in the middle MLflow finds some tables, and refuses it for ever.
    """
    from mlflow import MlflowClient

    if database.exists():
        return
    for left in database.parent.glob(f"{_NEW}*"):  # by a command that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_NEW, dir=database.parent) as folder:
        partial = Path(folder) / database.name
        MlflowClient(tracking_uri=f"sqlite:///{partial}").search_experiments(max_results=1)
        partial.replace(database)


def _check_writable(database: Path) -> None:
    """Refuse a database that this account may not write; SQLite also writes a journal into its folder."""
    for path in (database.parent, database):
        if path.exists() and not os.access(path, os.W_OK):
            raise RegistryError(
                f"cannot write {path}: Permission denied. Give this account the right to write there, or set "
                "MLFLOW_TRACKING_URI to a server's address"
            )


@contextmanager
def _started(client: Any, experiment_id: str, name: str, tags: Mapping[str, str]) -> Iterator[str]:
    """Start a run and end it with the block: FINISHED, KILLED by Ctrl-C or SIGTERM, FAILED by another exception."""
    with signals.hold_signals() as release:
        # Without this a signal between the server's answer and the next line left the run RUNNING.
        run_id = client.create_run(experiment_id, run_name=name, tags=dict(tags)).info.run_id
        try:
            release()
            yield run_id
            client.set_terminated(run_id, "FINISHED")
        except BaseException as error:
            killed = isinstance(error, KeyboardInterrupt)
            # A query that was interrupted keeps SQLite's file locked, for us too, as long as its frames live.
            traceback.clear_frames(error.__traceback__)
            client.set_tag(run_id, "error", f"{type(error).__name__}: {error}"[:_MAX_VALUE])
            client.set_terminated(run_id, "KILLED" if killed else "FAILED")
            raise


def _close_jobs(client: Any, experiment_id: str, parent: str, root: Path) -> None:
    """Make the runs of an interrupted sweep's jobs KILLED as their processes end, which launchers kill."""
    chosen = os.environ.get("MLFLOW_TRACKING_URI")
    database = None if chosen else (root / "mlruns").resolve() / "mlflow.db"
    end = time.monotonic() + _JOBS_END_S
    while True:
        close_ended(client, experiment_id, database)
        nested = f"attributes.status = 'RUNNING' AND tags.`mlflow.parentRunId` = '{parent}'"
        if not client.search_runs([experiment_id], nested) or time.monotonic() > end:
            return
        time.sleep(0.2)


def _stage_tags(cfg: Config, stage: str) -> dict[str, str]:
    if stage == "tune":
        return {"network": cfg.network.name}
    return {
        "family": cfg.model.family,
        "model": cfg.model_name,
        "features": cfg.features.name,
        "split": cfg.split_name,
        "pool": cfg.model.pool.value,
        "reference": str(cfg.model.reference).lower(),
    }


def _source_tags(stage: str) -> dict[str, str]:
    return {
        "tencost.stage": stage,
        "mlflow.source.name": f"tencost {stage}",
        "mlflow.source.type": "LOCAL",
        **process_tags(),
    }


def _log_config(tracked: TrackedRun, cfg: Config, parameters: Mapping[str, str]) -> None:
    from mlflow.entities import Param
    from omegaconf import OmegaConf

    params = [Param(key, text[:_MAX_VALUE]) for key, text in parameters.items()]
    for start in range(0, len(params), 100):
        tracked.client.log_batch(tracked.run_id, params=params[start : start + 100])
    with tempfile.TemporaryDirectory(prefix="tencost-") as scratch:
        path = Path(scratch) / "config.yaml"
        path.write_text(OmegaConf.to_yaml(OmegaConf.create(asdict(cfg))))
        tracked.log_artifact(path)


def flatten(prefix: str, setting: Any, out: dict[str, str]) -> None:
    """Add a setting to `out` as dotted names and text values, one for each field.

    Dictionaries are opened, and so are lists of dictionaries: an element is called by its family where each has
    another one, as a blend's members have, and by its place otherwise.
    """
    if isinstance(setting, (list, tuple)) and setting and all(isinstance(x, dict) for x in setting):
        families = [member.get("family") for member in setting]
        by_family = None not in families and len(set(families)) == len(families)
        setting = dict(zip(families if by_family else range(len(setting)), setting, strict=True))
    if isinstance(setting, dict) and setting:
        for key, inner in setting.items():
            flatten(f"{prefix}.{key}", inner, out)
    elif isinstance(setting, (list, tuple)):
        out[prefix] = ",".join(map(str, setting))
    else:
        out[prefix] = str(setting.value if isinstance(setting, Enum) else setting)
