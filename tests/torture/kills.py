"""Commands killed at their writes, run again, and compared with a run that nobody killed.

killer.c counts the writes of a process and of what it starts. A first run lists them; then each case kills at one of
them, every kind of write first, some in the middle of a write, some with all processes. What is there in between must
be readable and true; afterwards everything is there, once.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from torture.forked import LIMIT_S, Outcome, run
from torture.verdict import Case, Result, faults

TESTS = Path(__file__).resolve().parents[1]
LOADED = "TORTURE_KILLER"
_CONTROL = struct.Struct("5q512s")


def load_killer() -> None:
    """Start this process again with killer.c loaded, unless it is."""
    if LOADED in os.environ:
        return
    source = Path(__file__).with_name("killer.c")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    built = source.parent / "__pycache__" / f"killer-{digest}.so"
    if not built.exists():
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise SystemExit("kills need a C compiler (cc), found none; the other parts do without")
        built.parent.mkdir(exist_ok=True)
        partial = built.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-o", partial, source, "-ldl"], check=True
        )
        partial.rename(built)
    environment = {**os.environ, "LD_PRELOAD": str(built), LOADED: str(built)}
    os.execve(sys.executable, [sys.executable, "-m", "torture", *sys.argv[1:]], environment)


class Scenario:
    """A command, and what must be there when it has ended."""

    name = ""
    ends: tuple[int, ...] = (0,)
    limit_s = LIMIT_S

    def prepare(self, root: Path) -> None:
        """Write what the command is run on."""

    def command(self, root: Path) -> None:
        """Run the command."""
        raise NotImplementedError

    def state(self, root: Path) -> Any:
        """Return what the command has made, as far as it is the same each time, as JSON."""
        raise NotImplementedError

    def between(self, root: Path) -> Any:
        """Return what is there after a kill."""
        return self.state(root)

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        """Say what is wrong."""
        return [] if after == clean else [f"another end: {_difference(clean, after)}"]


def _difference(expected: Any, found: Any) -> str:
    if isinstance(expected, dict) and isinstance(found, dict):
        names = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
        told = [f"{name}: {_difference(expected.get(name), found.get(name))}" for name in names]
        return "; ".join(told)[:600]
    return f"expected {str(expected)[:200]}, found {str(found)[:200]}"


class Kills:
    """A part: scenarios in turn."""

    scenarios: tuple[type[Scenario], ...] = ()
    modules: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        for name in self.modules:
            __import__(name)
        self._folder = folder
        self._scenarios = [kind() for kind in self.scenarios]
        self._clean: dict[str, Any] = {}
        self._points: dict[str, list[tuple[int, str]]] = {}
        self.said = ""
        told = []
        for scenario in self._scenarios:
            template = folder / scenario.name / "template"
            template.mkdir(parents=True)
            self._need(
                run(
                    lambda scenario=scenario, to=template: scenario.prepare(to),
                    template,
                    home=folder / "home",
                    limit_s=600,
                )
            )  # type: ignore[misc]
            root = folder / scenario.name / "clean"
            shutil.copytree(template, root, symlinks=True)
            control = folder / scenario.name / "control"
            outcome = self._run(scenario, root, folder / "home", control, at=0, listing=True)
            self._need(outcome)
            listed = control.with_name("control.list").read_text(errors="replace").splitlines()
            self._points[scenario.name] = list(enumerate(listed, start=1))
            found = run(
                lambda scenario=scenario, root=root: scenario.state(root),
                root,
                home=folder / "home",
            )  # type: ignore[misc]
            self._need(found)
            self._clean[scenario.name] = found.told
            told.append(f"{scenario.name} {len(listed)} writes")
        self._order: dict[str, list[tuple[int, str]]] = {}
        self._told = told
        self._done: Counter[str] = Counter()

    @staticmethod
    def _need(outcome: Outcome) -> None:
        if outcome.status != 0:
            raise SystemExit(
                f"the run that nobody kills ended with {outcome.status}: {outcome.errors[-2000:]}"
            )

    def _run(
        self, scenario: Scenario, root: Path, home: Path, control: Path, *, at: int, listing: bool = False,
        torn: bool = False, group: bool = False,
    ) -> Outcome:  # fmt: skip
        control.write_bytes(_CONTROL.pack(0, at, torn, group, listing, b""))
        below = str(root.resolve())

        def arm() -> None:
            os.environ.update(TORTURE_CONTROL=str(control), TORTURE_BELOW=below)
            ctypes.CDLL(None).torture_arm(str(control).encode(), below.encode())

        return run(
            lambda: scenario.command(root), root, ready=arm, home=home, limit_s=scenario.limit_s
        )

    def order(self, name: str, seed: str) -> list[tuple[int, str]]:
        """Return the writes to kill at: one of every kind first, then the others, both in random order."""
        if name not in self._order:
            rng = Random(seed)
            points = list(self._points[name])
            rng.shuffle(points)
            kinds: dict[str, tuple[int, str]] = {}
            for point in points:
                kinds.setdefault(_kind(point[1]), point)
            first = list(kinds.values())
            self._order[name] = first + [point for point in points if point not in set(first)]
        return self._order[name]

    def run(self, rng: Random, number: int, seed: int, folder: Path) -> tuple[str, Result] | None:
        """Kill at a write, run again and compare."""
        scenario = self._scenarios[number % len(self._scenarios)]
        turn = number // len(self._scenarios)
        order = self.order(scenario.name, f"{seed} {scenario.name}")
        if turn >= len(order):
            return (
                None
                if all(
                    number // len(self._scenarios) >= len(points)
                    for points in self._points.values()
                )
                else (f"{scenario.name}: every write was had", Result(0))
            )
        at, _ = order[turn]
        torn, group = rng.random() < 0.5, rng.random() < 0.5
        root, home, control = folder / "root", folder / "home", folder / "control"
        shutil.copytree(self._folder / scenario.name / "template", root, symlinks=True)
        killed = self._run(scenario, root, home, control, at=at, torn=torn, group=group)
        where = _CONTROL.unpack(control.read_bytes())[5].split(b"\0")[0].decode("utf-8", "replace")
        what = f"{scenario.name}: killed at write {at}{', half done' if torn else ''}: {where or 'not reached'}"
        wrong = []
        if killed.status not in (-9, 0):
            wrong.append(f"the killed run ended with {killed.status}: {_last(killed.errors)}")
        between = run(lambda: scenario.between(root), root, home=home)
        if between.status != 0:
            wrong.append(f"in between it cannot be read: {_last(between.errors)}")
        again = run(lambda: scenario.command(root), root, home=home, limit_s=scenario.limit_s)
        case = Case(what, lambda: None, ends=scenario.ends, events=("",), limit_s=scenario.limit_s)
        wrong += [f"run again: {one}" for one in faults(case, again, again.status, folder)]
        after = run(lambda: scenario.state(root), root, home=home)
        if after.status != 0:
            wrong.append(f"afterwards it cannot be read: {_last(after.errors)}")
        elif again.status in scenario.ends:
            wrong += scenario.compare(self._clean[scenario.name], between.told, after.told)
        self._done[scenario.name] += 1
        self.said = ", ".join(
            f"{name} {count} of {len(self._points[name])} writes"
            for name, count in self._done.items()
        )
        return what, Result(again.status, wrong, f"{killed.errors}\n--- again\n{again.errors}")


def _kind(told: str) -> str:
    """Return a write without what differs from run to run."""
    return re.sub(r"[0-9a-f]{6,}|\d+", "*", told)


def _last(errors: str) -> str:
    lines = [line for line in errors.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


# --- stores ----------------------------------------------------------------------------------


def store_state(uri: str) -> dict[str, Any]:
    """Return all rows of a store and its modules, without what a run alone knows."""
    from tencost.store.modules import read_modules
    from tencost.store.record_store import RecordStore

    store = RecordStore(uri)
    rows = []
    if store.exists():
        for row in store.read(None, quarantined=True).to_dicts():
            source = row["source"] or {"file": "", "line": 0}
            row["source"] = [source["file"].split("/")[-1], source["line"]]
            rows.append(json.dumps(row, sort_keys=True, default=str))
    modules = read_modules(uri)["workload_id"].to_list()
    return {"rows": sorted(rows), "modules": sorted(modules)}


class Import(Kills):
    """The part `kill-import`: what writes to a record store."""

    name = "kill-import"
    modules = (
        "deltalake",
        "polars",
        "duckdb",
        "tencost.records.import_command",
        "tencost.records.databases",
    )


class ImportLogs(Scenario):
    """`tencost records import` into a store that is not there."""

    name = "import"

    def prepare(self, root: Path) -> None:
        from tencost.config.parts import LOG_FORMATS

        for name, known in LOG_FORMATS.all().items():
            (root / "logs" / name).mkdir(parents=True)
            for file, text in known.example.items():
                (root / "logs" / name / file).write_text(text)
        shutil.copytree(TESTS / "records" / "golden", root / "logs" / "golden")
        with (root / "logs" / "ansor" / "ansor.json").open("a") as file:
            file.write("a bad line\n")

    def command(self, root: Path) -> None:
        from torture.logs import import_it

        import_it(root / "logs", root)

    def state(self, root: Path) -> Any:
        rejects = root / "data" / "rejects" / "set.jsonl"
        listed = rejects.read_text() if rejects.exists() else ""
        return {**store_state(str(root / "store")), "rejects": listed}

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        wrong = super().compare(clean, between, after)
        if between is not None and not set(between["rows"]) <= set(clean["rows"]):
            wrong.append("in between there are rows that nobody measured")
        return wrong


class ImportMore(ImportLogs):
    """The same into a store that has some of the rows, of many small commits."""

    name = "import more"

    def prepare(self, root: Path) -> None:
        from torture.logs import import_it

        super().prepare(root)
        for name in ("ansor", "golden", "metaschedule"):
            import_it(root / "logs" / name, root)


class Compact(ImportMore):
    """`tencost records compact`."""

    name = "compact"

    def command(self, root: Path) -> None:
        from tencost import cli

        cli.main(["records", "compact", "--store", str(root / "store")])

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        wrong = Scenario.compare(self, clean, between, after)
        if between is not None and between["rows"] != clean["rows"]:
            wrong.append("in between rows are missing or twice")
        return wrong


class Rename(ImportMore):
    """`tencost records rename`; once it is done there is nothing left to rename."""

    name = "rename"
    ends = (0, 2)

    def command(self, root: Path) -> None:
        from tencost import cli

        cli.main(
            ["records", "rename", "--hardware", "a100", "b100", "--store", str(root / "store")]
        )

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        wrong = Scenario.compare(self, clean, between, after)
        if between is not None and len(between["rows"]) != len(clean["rows"]):
            wrong.append(
                f"in between there are {len(between['rows'])} rows of {len(clean['rows'])}"
            )
        return wrong


class Delete(Rename):
    """`tencost records delete`."""

    name = "delete"

    def command(self, root: Path) -> None:
        from tencost import cli

        cli.main(["records", "delete", "--hardware", "a100", "--store", str(root / "store")])

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        return Scenario.compare(self, clean, between, after)


Import.scenarios = (ImportLogs, ImportMore, Compact, Rename, Delete)


# --- stages ----------------------------------------------------------------------------------


class Toy(Scenario):
    """A stage of the toy project."""

    def prepare(self, root: Path) -> None:
        from toy_project import make_mlflow_database, make_toy_project

        make_toy_project(root / "project", make_mlflow_database(root))
        (root / "mlflow.db").unlink()

    def config(self) -> Any:
        from toy_project import toy_config

        from tencost.train.families.xgb import XgbConfig

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


def tree(folder: Path) -> dict[str, str]:
    """Return the digest of each file below a folder."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


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
        return Scenario.compare(self, _shown(clean), None, _shown(after))


def _shown(files: dict[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in files.items() if ".partial" not in name}


class Train(Toy):
    """The stage train."""

    name = "train"

    def command(self, root: Path) -> None:
        from tencost.train.data import Data
        from tencost.train.stage import run as train

        config = self.config()
        train(config, root / "project", Data(config, root / "project"))

    def state(self, root: Path) -> Any:
        from tencost.train.bundle import content_digest, load_bundle

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
            wrong.append(f"other bundles: {_difference(clean['bundles'], after['bundles'])}")
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
        from toy_project import train_toy

        from tencost.register import registry
        from tencost.train import tracking
        from tencost.train.families.random import RandomConfig
        from tencost.train.families.xgb import XgbConfig

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
            for name, digest in _shown(tree(folder) if folder.exists() else {}).items()
            if name.endswith((".csv", ".parquet"))
        }
        for path in folder.rglob("metrics.json"):
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
        "deltalake", "polars", "xgboost", "mlflow", "tencost.evaluate.stage", "tencost.train.stage",
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
        from tencost.register import stage

        stage.run(self.config(), root / "project", required=("random",))

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
        from tencost.register.pull import pull
        from tencost.train.bundle import load_bundle

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
        "deltalake", "polars", "xgboost", "mlflow", "tencost.evaluate.stage", "tencost.register.stage",
        "mlflow.store.tracking.sqlalchemy_store", "mlflow.store.model_registry.sqlalchemy_store",
    )  # fmt: skip
    scenarios = (RegisterStage, RegisterAgain)


# --- measuring and tuning --------------------------------------------------------------------


class MeasureRun(Scenario):
    """`tencost measure run` of two matmuls."""

    name = "measure run"
    limit_s = 300.0

    def configured(self) -> Any:
        from tencost.config.composition import compose

        words = [
            "name=small",
            "min_mflop=0",
            "programs=6",
            "evolved_share=0",
            "min_repeat_ms=0",
            "repeat=2",
        ]
        words += ["max_repeat=2", "pack=false", "overlap=false", "population=16", "generations=1"]
        return compose([*(f"measure.{word}" for word in words), "hardware=local"])[0]

    def prepare(self, root: Path) -> None:
        from small_collection import make_small_collection

        make_small_collection(root)

    def command(self, root: Path) -> None:
        from tencost.measure import stage

        stage.run(self.configured(), root)

    def state(self, root: Path) -> Any:
        from tencost.records.databases import import_dataset
        from tencost.store.record_store import RecordStore

        imported = import_dataset(root / "measured" / "small", "small")
        store = RecordStore(str(root / "data" / "store"))
        stored = (
            store.read(None, ["record_id"], quarantined=True)["record_id"].to_list()
            if store.exists()
            else []
        )
        return {
            "measured": sorted(record.record_id for record in imported.records),
            "rejects": len(imported.rejects),
            "stored": sorted(stored),
            "lines": sorted(
                line
                for path in (root / "measured" / "small").glob(
                    "measure_records/*/*/measurements.jsonl"
                )
                for line in path.read_text().splitlines(keepends=True)
                if line.endswith("\n")
            ),
        }

    def between(self, root: Path) -> Any:
        from tencost.measure.collection import Collection
        from tencost.measure.journal import mend

        collection = Collection(root / "measured" / "small")
        for task in collection.tasks(0.0):
            mend(collection.records_folder("local", task, (0, 1)))
        return self.state(root)

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        wrong = [
            f"{name}: {_difference(clean[name], after[name])}"
            for name in ("measured", "rejects", "stored")
            if clean[name] != after[name]
        ]
        if between is not None:
            again = set(between["lines"]) - set(after["lines"])
            if again:
                wrong.append(
                    f"{len(again)} measurements that were there are gone or were made again"
                )
            if not set(between["stored"]) <= set(clean["stored"]):
                wrong.append("in between there are rows that nobody measured")
        return wrong


class MeasurePrograms(MeasureRun):
    """`tencost measure programs`: more of them for tasks that have some."""

    name = "measure programs"

    def command(self, root: Path) -> None:
        from tencost.measure import stage

        config = self.configured()
        config.measure.programs = 9
        stage.programs(config, root)

    def state(self, root: Path) -> Any:
        from tencost.measure.collection import Collection

        collection = Collection(root / "measured" / "small")
        found = {}
        for task in collection.tasks(0.0):
            origin = collection.origin(task)
            programs = [json.dumps(program.trace) for program in collection.programs(task)]
            found[task.task_name] = [programs, len(origin.origins) if origin else 0]
        return found

    between = state

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        wrong = []
        for name, (programs, origins) in after.items():
            if (
                len(programs) != len(set(programs))
                or len(programs) != len(clean[name][0])
                or origins != len(programs)
            ):
                wrong.append(
                    f"{name}: {len(programs)} programs, {len(set(programs))} of them distinct, {origins} origins"
                )
            kept = between[name][0] if between else []
            if programs[: len(kept)] != kept:
                wrong.append(f"{name}: programs that were there are others now")
        return wrong


class Measure(Kills):
    """The part `kill-measure`."""

    name = "kill-measure"
    modules = (
        "tvm",
        "tencost.measure.stage",
        "tencost.measure.run",
        "deltalake",
        "polars",
        "tencost.records.databases",
    )
    scenarios = (MeasureRun, MeasurePrograms)


class TuneMatmul(Scenario):
    """Tuning a matmul of which a store knows programs, as tests/tune/killed_tuning.py does it."""

    name = "tune"

    def prepare(self, root: Path) -> None:
        from killed_tuning import HARDWARE, TARGET
        from known_programs import records_of

        from matmuls import make_matmul
        from tencost.store.record_store import RecordStore

        RecordStore(str(root / "store")).write(records_of(make_matmul(32), TARGET, HARDWARE.name))

    def command(self, root: Path) -> None:
        from killed_tuning import tune

        tune(root / "run", 0)

    def state(self, root: Path) -> Any:
        from killed_tuning import measured, state

        return {**state(root / "run"), "measured": measured(root / "run")}

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        from killed_tuning import TRIALS

        wrong = []
        programs, adopted = after["programs"], after["adopted"]
        known = sum(clean["adopted"])
        if not len(programs) == len(set(programs)) == TRIALS + known:
            wrong.append(
                f"{len(programs)} programs, {len(set(programs))} distinct, of {TRIALS + known}"
            )
        if sum(adopted) != known:
            wrong.append(f"{sum(adopted)} adopted of {known}")
        if after["curve"] != sorted(set(after["curve"])):
            wrong.append(f"the curve: {after['curve']}")
        if between is not None:
            kept = len(between["programs"])
            if programs[:kept] != between["programs"] or adopted[:kept] != between["adopted"]:
                wrong.append("what was there is not there now")
            there = kept - sum(between["adopted"])
            more = len(after["measured"]) - len(between["measured"])
            if more != TRIALS - there:
                wrong.append(f"{more} measured again, {TRIALS - there} were left")
        return wrong


class Tune(Kills):
    """The part `kill-tune`."""

    name = "kill-tune"
    modules = ("tvm", "deltalake", "polars", "xgboost", "killed_tuning")
    scenarios = (TuneMatmul,)

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(TESTS / "tune"))
        from tencost.features.intrinsics import register_cpu_intrinsics

        register_cpu_intrinsics()
        super().__init__(folder)


# --- the pipeline ----------------------------------------------------------------------------


class DvcPipeline(Scenario):
    """`tencost pipeline splits`: fetch, records and splits by DVC, in a project of its own."""

    name = "pipeline"
    limit_s = 300.0

    def prepare(self, root: Path) -> None:
        import yaml

        sys.path.insert(0, str(TESTS / "pipeline"))
        from test_pipeline import HARDWARE, ROOT, edit, slice_sample

        from tencost.fetch.pack import pack_folder

        (root / "raw").mkdir()
        slice_sample(root / "raw")
        (root / "datasets").mkdir()
        digest = pack_folder(root / "raw", root / "datasets" / "slice.tar.zst")
        shutil.rmtree(root / "raw")
        shutil.copytree(ROOT / "conf", root / "conf")
        shutil.copy(ROOT / "dvc.yaml", root)
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / "src", root / "src", ignore=ignore)
        dataset = {
            "name": "slice",
            "source": "datasets/slice.tar.zst",
            "sha256": digest,
            "description": "a slice",
        }
        (root / "conf" / "dataset" / "slice.yaml").write_text(yaml.safe_dump(dataset))
        edit(root / "conf" / "split" / "by_network.yaml", "valid_fraction", 0.3)
        params = {
            "dataset": "slice", "split": "by_network", "hardware": [HARDWARE], "features": ["trace"],
            "models": {"trace": ["random"]}, "seeds": "0",
        }  # fmt: skip
        (root / "params.yaml").write_text(yaml.safe_dump(params))
        self._start(root, sys.executable, "-m", "tencost.cli", "params")
        self._start(root, sys.executable, "-m", "dvc", "init", "--no-scm")

    def command(self, root: Path) -> None:
        self._start(root, sys.executable, "-m", "tencost.cli", "pipeline", "splits")

    @staticmethod
    def _start(root: Path, *words: str) -> None:
        quiet = {
            "DVC_NO_ANALYTICS": "1",
            "XDG_CACHE_HOME": str(Path.home() / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            words, cwd=root, env={**os.environ, **quiet, "PATH": path}, check=False
        )
        if done.returncode < 0:
            os.kill(os.getpid(), -done.returncode)
        raise_for = done.returncode
        if raise_for:
            raise SystemExit(raise_for)

    def state(self, root: Path) -> Any:
        import yaml

        lock = root / "dvc.lock"
        stages = yaml.safe_load(lock.read_text())["stages"] if lock.exists() else {}
        found = {
            f"{name} {out['path']}": out["md5"]
            for name, stage in stages.items()
            for out in stage["outs"]
        }
        return {
            **found,
            "files": _shown(tree(root / "data" / "splits"))
            if (root / "data" / "splits").exists()
            else {},
        }

    def between(self, root: Path) -> Any:
        return None  # a dvc.lock cut off is `tencost pipeline`'s to mend

    def compare(self, clean: Any, between: Any, after: Any) -> list[str]:
        def of(state: dict[str, Any]) -> dict[str, Any]:
            return {name: one for name, one in state.items() if "records" not in name}

        return Scenario.compare(self, of(clean), None, of(after))


class Pipeline(Kills):
    """The part `kill-pipeline`."""

    name = "kill-pipeline"
    scenarios = (DvcPipeline,)
