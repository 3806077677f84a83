"""Kills of the stages train, evaluate, splits and register, on the toy project."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from torture.kills import Kills, Scenario, difference, shown, tree


class Toy(Scenario):
    """A stage of the toy project."""

    def prepare(self, root: Path) -> None:
        from toy_project import make_mlflow_database, make_toy_project

        make_toy_project(root / "project", make_mlflow_database(root))
        (root / "mlflow.db").unlink()

    def config(self) -> Any:
        from tencost.models.programs.families.xgb import XgbConfig
        from toy_project import toy_config

        config = toy_config()
        config.model = XgbConfig(family="xgb", reads=["toy"], num_rounds=8, num_threads=1)
        config.model_name = "xgb"
        config.seeds = [0, 1]
        return config


def mlflow_client(root: Path) -> Any:
    from mlflow import MlflowClient

    uri = f"sqlite:///{root / 'mlruns' / 'mlflow.db'}"
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def runs(root: Path) -> Counter[str]:
    """Return the runs of a project by status."""
    client = mlflow_client(root)
    experiments = [one.experiment_id for one in client.search_experiments()]
    return Counter(one.info.status for one in client.search_runs(experiments))


class Splits(Toy):
    """The stage splits."""

    name = "splits"

    def command(self, root: Path) -> None:
        from tencost.config import SplitPolicy
        from tencost.splits import stage

        config = self.config()
        config.split.policy, config.split.valid_fraction = SplitPolicy.within_task, 0.5
        stage.run(config, root / "project")

    def state(self, root: Path) -> Any:
        return tree(root / "project" / "data" / "splits")

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        return Scenario.compare(self, shown(clean), None, shown(after))


class Train(Toy):
    """The stage train."""

    name = "train"

    def command(self, root: Path) -> None:
        from tencost.train.data import Data
        from tencost.train.programs import run as train

        config = self.config()
        train(config, root / "project", Data(config, root / "project"))

    def state(self, root: Path) -> Any:
        from tencost.models.programs.bundle import content_digest, load_bundle

        top = root / "project" / "data" / "models" / "toy" / "toy-1c"
        bundles = {}
        for path in sorted(top.glob("*/seed*/bundle.json")):
            if ".partial" not in str(path):
                info = load_bundle(path.parent).info
                bundles[path.parent.relative_to(top).as_posix()] = content_digest(info)
        return {"bundles": bundles, "runs": dict(runs(root / "project"))}

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        wrong = []
        if after["bundles"] != clean["bundles"]:
            wrong.append(f"other bundles: {difference(clean['bundles'], after['bundles'])}")
        if after["runs"].get("RUNNING"):
            wrong.append(f"runs that stay open: {after['runs']}")
        if (
            not clean["runs"]["FINISHED"]
            <= after["runs"].get("FINISHED", 0)
            <= 2 * clean["runs"]["FINISHED"]
        ):
            wrong.append(f"runs: {after['runs']}")
        return wrong


class Evaluate(Toy):
    """The stage evaluate."""

    name = "evaluate"

    def prepare(self, root: Path) -> None:
        super().prepare(root)
        self.trained(root / "project")

    def trained(self, project: Path) -> None:
        from tencost.models.programs.families.random import RandomConfig
        from tencost.models.programs.families.xgb import XgbConfig
        from tencost.register import registry
        from tencost.tracking import runs as tracking
        from toy_project import train_toy

        client = registry.connect(tracking.setup(project))
        train_toy(project, "random", RandomConfig(family="random", reads=["toy"], reference=True))
        experiment = client.get_experiment_by_name("tencost").experiment_id
        made = str(client.create_run(experiment, run_name="xgb").info.run_id)
        trees = XgbConfig(family="xgb", reads=["toy"], num_rounds=30, num_threads=1)
        folder = train_toy(project, "xgb", trees, (0, 1, 2, 3, 4), made)
        client.log_param(made, "seeds", "0,1,2,3,4")
        client.log_artifacts(made, str(folder), "bundles")
        client.set_terminated(made)

    def command(self, root: Path) -> None:
        from tencost.evaluate import stage

        stage.run(self.config(), root / "project")

    def state(self, root: Path) -> Any:
        folder = root / "project" / "data" / "reports"
        found = {
            name: digest
            for name, digest in shown(tree(folder) if folder.exists() else {}).items()
            if name.endswith((".csv", ".parquet"))
        }
        for path in folder.rglob("models.json"):
            if ".partial" not in str(path):
                metrics = json.loads(path.read_text())
                found["metrics"] = json.dumps(
                    {name: {key: one for key, one in values.items() if "second" not in key and "time" not in key}
                     for name, values in metrics.items()}, sort_keys=True,
                )  # fmt: skip
        return {**found, "open": runs(root / "project")["RUNNING"]}


class Stages(Kills):
    """The part `kill-stages`."""

    name = "kill-stages"
    modules = (
        "deltalake", "polars", "xgboost", "mlflow", "tencost.evaluate.stage", "tencost.train.programs",
        "tencost.splits.stage", "mlflow.tracking._tracking_service.client", "mlflow.store.tracking.sqlalchemy_store",
    )  # fmt: skip
    scenarios = (Train, Evaluate, Splits)


class RegisterStage(Evaluate):
    """The stage register, after an evaluation."""

    name = "register"

    def prepare(self, root: Path) -> None:
        super().prepare(root)
        Evaluate.command(self, root)

    def command(self, root: Path) -> None:
        from tencost.register import programs

        programs.run(self.config(), root / "project", required=("random",))

    def state(self, root: Path) -> Any:
        project = root / "project"
        client = mlflow_client(project)
        found = []
        for model in client.search_registered_models():
            for version in client.search_model_versions(f"name = '{model.name}'"):
                full = client.get_model_version(model.name, version.version)
                tags = {
                    name: full.tags.get(name)
                    for name in ("verdict", "family", "semver", "champion")
                }
                found.append([model.name, full.version, sorted(full.aliases), full.status, tags])
        marks = sorted((project / "mlruns" / "registered").rglob("*.json"))
        told = [json.loads(path.read_text()) for path in marks if ".partial" not in str(path)]
        return {"versions": found, "marks": told, "open": runs(project)["RUNNING"]}

    def between(self, root: Path) -> Any:
        """Pull what is champion already: it is whole."""
        from tencost.models.programs.bundle import load_bundle
        from tencost.register.pull import pull

        found = self.state(root)
        for name, version, aliases, *_ in found["versions"]:
            if aliases:
                uri = f"models:/{name}/{version}"
                load_bundle(pull(uri, root / "cache", root=root / "project"))
        return found


class RegisterAgain(RegisterStage):
    """The stage register with a champion there, that is not beaten: everything was registered before."""

    name = "register again"

    def prepare(self, root: Path) -> None:
        super().prepare(root)
        RegisterStage.command(self, root)
        shutil.rmtree(root / "project" / "mlruns" / "registered")


class Register(Kills):
    """The part `kill-register`."""

    name = "kill-register"
    modules = (
        "deltalake", "polars", "xgboost", "mlflow", "tencost.evaluate.stage", "tencost.register.programs",
        "mlflow.store.tracking.sqlalchemy_store", "mlflow.store.model_registry.sqlalchemy_store",
    )  # fmt: skip
    scenarios = (RegisterStage, RegisterAgain)
