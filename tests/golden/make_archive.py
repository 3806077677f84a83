"""Makes golden.tar.zst: what a version of tencost left on disk, for later versions to read and to judge alike.

    cd tests && python golden/make_archive.py

    programs/project/    the toy project (toy_project.py) with bundles of every family and their leaderboard
    programs/scores.npz  <model>-seed<k> -> scores of all its programs
    graphs/project/      a project of small networks: tables, split, bundles of several families, leaderboards
    graphs/latency.npz   <family>-seed<k> -> predicted milliseconds of `networks(4, seed=3)`
    registered/<kind>/   MLflow's folder of a registered version: the bundle with its own copy of pyfunc.py
    store/               a record store
    logs/, own/          an Ansor log, and what `tencost init --logs` wrote for it

Run it only where a change of results is intended, in a commit of its own that shows both leaderboards.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import toy_project as toy  # noqa: E402
from made_up_graphs import networks  # noqa: E402

ARCHIVE = HERE / "golden.tar.zst"
PROGRAM_FAMILIES: dict[str, dict[str, Any]] = {
    "random": {},
    "knn": {},
    "xgb": {"num_rounds": 20},
    "tvm_xgb": {},
    "mlp": {"epochs": 3},
    "tvm_mlp": {"epochs": 2},
}
"""Model of conf/model/ -> what makes it small."""
GRAPH_FAMILIES: dict[str, tuple[str, ...]] = {
    "constant": (),
    "summed": ("graph_model.reference=false", "graph_model.num_rounds=20"),
    "additive": ("graph_model.steps=60",),
    "gcn": ("graph_model.epochs=2", "graph_model.hidden=16"),
}
SEEDS = (0, 1)


def main() -> int:
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    with tempfile.TemporaryDirectory(prefix="golden-") as scratch:
        home = Path(scratch)
        os.environ["XDG_CACHE_HOME"] = str(home / "cache")
        folder = home / "golden"
        (home / "mlflow").mkdir()
        database = toy.make_mlflow_database(home / "mlflow")
        make_programs(folder, database)
        make_graphs(folder, database)
        make_own(folder)
        for name in ("mlruns", "cache", "plots", ".git"):
            for path in [*folder.rglob(name)]:
                shutil.rmtree(path)
        for image in [*folder.rglob("*.png")]:
            image.unlink()
        from tencost.records.fetch.pack import pack_folder

        pack_folder(folder, ARCHIVE)
    sys.stdout.write(f"{ARCHIVE}: {ARCHIVE.stat().st_size / 1e3:.0f} KB\n")
    return 0


def make_programs(folder: Path, database: Path) -> None:
    """Write the toy project with models, their scores, leaderboard and registered version, and its store."""
    from tencost.config.composition import compose
    from tencost.evaluate import stage as evaluation
    from tencost.models.programs.bundle import load_bundle
    from tencost.register import programs as registration
    from tencost.register import registry
    from tencost.tracking import runs as tracking
    from tencost.train.data import Data

    project = folder / "programs" / "project"
    toy.make_toy_project(project, database)
    shutil.copytree(project / "data" / "records" / "toy" / "store", folder / "store")
    client = registry.connect(tracking.setup(project))
    experiment = client.get_experiment_by_name(tracking.EXPERIMENT).experiment_id
    scores: dict[str, Any] = {}
    config = toy.toy_config()
    for family, changes in PROGRAM_FAMILIES.items():
        model = replace(compose([f"model={family}"])[0].model, reads=["toy"], **changes)
        run = str(client.create_run(experiment, run_name=family).info.run_id)
        trained = toy.train_toy(project, family, model, SEEDS, run)
        client.log_param(run, "seeds", ",".join(map(str, SEEDS)))
        client.log_artifacts(run, str(trained), "bundles")
        for seed in SEEDS:
            bundle = load_bundle(trained / f"seed{seed}")
            scores[f"{family}-seed{seed}"] = bundle.scores(
                Data(config, project).features("toy").features
            )
    np.savez(folder / "programs" / "scores.npz", **scores)
    evaluation.run(config, project)
    registration.run(config, project, required=("random",))
    keep_registered(client, "tencost-toy-1c", folder / "registered" / "programs")


def make_graphs(folder: Path, database: Path) -> None:
    """Write a project of small networks, trained and evaluated with the command line, and its registered version."""
    from tencost.cli.main import main as tencost
    from tencost.models.networks.bundle import load_graph_bundle
    from tencost.records.network_graphs.formats import cg
    from tencost.register import registry

    project = folder / "graphs" / "project"
    shutil.copytree(HERE.parents[1] / "conf", project / "conf")
    (project / "mlruns").mkdir()
    shutil.copy(database, project / "mlruns" / "mlflow.db")
    (project / "conf" / "dataset" / "mine.yaml").write_text("name: mine\nsource: networks\n")
    (project / "conf" / "split" / "by_graph.yaml").write_text(
        "policy: by_graph\nfamilies: []\ntest_families: []\nper_family: null\n"
        "valid_fraction: 0.2\ntest_fraction: 0.2\nseed: 0\n"
    )
    cg.write(project / "data" / "raw" / "mine", networks())
    os.chdir(project)
    words = ("dataset=mine", "graph_split=by_graph")
    tencost(["graphs", "records", "dataset=mine"])
    tencost(["graphs", "splits", *words])
    latency: dict[str, Any] = {}
    asked = networks(4, seed=3).graphs
    for family, settings in GRAPH_FAMILIES.items():
        seeds = f"seeds=[{','.join(map(str, SEEDS))}]"
        tencost(["graphs", "train", *words, f"graph_model={family}", *settings, seeds])
        trained = project / "data" / "models" / "mine" / "by_graph" / family
        for seed in SEEDS:
            bundle = load_graph_bundle(trained / f"seed{seed}")
            latency[f"{family}-seed{seed}"] = bundle.predict_ms(asked, "myriad-vpu")
    np.savez(folder / "graphs" / "latency.npz", **latency)
    tencost(["graphs", "evaluate", *words])
    tencost(["graphs", "register", *words, "hardware=myriad-vpu"])
    client = registry.connect(f"sqlite:///{project / 'mlruns' / 'mlflow.db'}")
    keep_registered(client, "tencost-graph-myriad-vpu", folder / "registered" / "graphs")
    shutil.rmtree(project / "conf")
    os.chdir(HERE)


def keep_registered(client: Any, name: str, folder: Path) -> None:
    """Copy the artifact of a model's first version."""
    import mlflow

    mlflow.set_registry_uri(client._registry_uri)
    source = client.get_model_version_download_uri(name, "1")
    mlflow.artifacts.download_artifacts(
        source, dst_path=str(folder.parent), tracking_uri=client.tracking_uri
    )
    (folder.parent / Path(source).name).rename(folder)


def make_own(folder: Path) -> None:
    """Write an Ansor log and a project of one's own for it."""
    from cli.test_init import ansor_log
    from tencost.cli.main import main as tencost

    logs = ansor_log(folder / "logs" / "a.json")
    tencost(["init", str(folder / "own"), "--hardware", "a100", "--logs", str(logs)])


if __name__ == "__main__":
    sys.exit(main())
