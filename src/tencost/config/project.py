"""A project of one's own (`tencost init`): conf/, params.yaml and dvc.yaml, made from those that come with tencost.

The repository keeps each of them once; the wheel carries them as `tencost.conf` and `tencost.project`. What is
different in a project of one's own is said here: no archives beside it, so no datasets that are made of them; no source
of tencost, so its stages depend on the version of tencost that `params.yaml` names, not on modules; few small models.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from tencost.config.pipeline import write_items
from tencost.errors import ConfigError

DATASET = "measured"
"""What `tencost measure` calls a collection, and so its dataset."""
_PACKAGE = Path(__file__).resolve().parents[1]
NO_DEVICE = {"all": "every CPU of the project", "local": "whatever host a command runs on"}
"""Names of `conf/hardware/` that records cannot be of, and what they stand for."""
ARCHIVES = {
    ".tar.zst": b"\x28\xb5\x2f\xfd",
    ".tar.gz": b"\x1f\x8b",
    ".tgz": b"\x1f\x8b",
    ".zip": b"PK\x03\x04",
}
"""How a file that `fetch` unpacks ends (`fetch.unpack.SUFFIXES`; a test compares), and the bytes it begins with."""
_CODE = "src/tencost/"
_MODELS = {"per_store": ["random", "tvm_xgb"], "per_store_tiles": ["xgb"]}
_IGNORED = """\
# Outputs of the pipeline are in DVC's cache; of them only the metrics are in git, so that `dvc metrics diff` works.
/data/*
!/data/reports/
/data/reports/**
!/data/reports/**/
!/data/reports/**/metrics.json
/mlruns/
/measured/
/tuned/
/compiled/
"""
_README = """\
# A tencost project

    tencost measure hardware hardware.name={hardware}             # once: conf/hardware/{hardware}.yaml
    tencost measure networks network=bert_tiny hardware={hardware}
    tencost measure programs hardware={hardware}
    tencost measure run hardware={hardware}                       # or bring logs: source in conf/dataset/{dataset}.yaml
    tencost pipeline                                      # dvc repro: records, features, models, reports, registry
    tencost leaderboard && tencost ui
    tencost tune network=bert_tiny hardware={hardware}            # with the champion
What is built stands in params.yaml; definitions of its words in conf/. `tencost measure run` ends with the lines for
params.yaml that fit what was measured: one small network has too few tasks to hold some out (`split: within_task`).
"""


def templates() -> tuple[Path, Path]:
    """Return the folder of the configuration that comes with tencost, and that of its dvc.yaml and params.yaml.

    Raises:
        ConfigError: neither an installed wheel nor a source tree is around this module.
    """
    tree = _PACKAGE.parents[1]
    for conf, project in (
        (_PACKAGE / "conf", _PACKAGE / "project"),
        (tree / "conf", tree),
    ):
        if (conf / "config.yaml").is_file() and (project / "dvc.yaml").is_file():
            return conf, project
    raise ConfigError(
        f"expected conf/ and project/ in {_PACKAGE}, found none: install tencost again"
    )


def init(folder: Path, *, hardware: str, logs: Path | None, version: str) -> None:
    """Write a project.

    Args:
        folder: where; made if it is not there.
        hardware: name of the device, which `tencost measure hardware` describes.
        logs: measured programs that are there already, a folder or an archive; None: they will be measured.
        version: of tencost.

    Raises:
        ConfigError: the folder is not empty, it cannot be written, the name is no device's, or `logs` is neither a
            folder with files in it nor an archive.
    """
    if re.fullmatch(r"[A-Za-z0-9][\w.\-]*", hardware) is None:
        raise ConfigError(
            f"expected --hardware of letters, digits, '.', '_' and '-', found {hardware!r}"
        )
    if hardware in NO_DEVICE:
        raise ConfigError(
            f"expected --hardware to name one device, found {hardware!r}, which stands for {NO_DEVICE[hardware]}"
        )
    if logs is not None:
        _check_logs(logs)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(
                f"expected a new or an empty folder, found {folder} with something in it"
            )
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder.resolve(), hardware, logs, version)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror or error}") from error


def _check_logs(logs: Path) -> None:
    """Refuse what `fetch` would refuse, before anything is written.

    Raises:
        ConfigError: see there.
    """
    expected = f"expected --logs to name a folder of logs or an archive of one ({', '.join(ARCHIVES)}), found"
    try:
        if not logs.exists():
            raise ConfigError(f"{expected} nothing at {logs}")
        if logs.is_dir():
            if not any(path.is_file() for path in logs.rglob("*")):
                raise ConfigError(f"{expected} no file in the folder {logs}")
            return
        suffix = next((one for one in ARCHIVES if logs.name.endswith(one)), None)
        if suffix is None:
            raise ConfigError(
                f"{expected} the file {logs}. If it is a log, put it into a folder and name that."
            )
        with logs.open("rb") as file:
            head = file.read(len(ARCHIVES[suffix]))
    except OSError as error:
        raise ConfigError(f"{expected} {logs}: {error.strerror or error}") from error
    if head != ARCHIVES[suffix]:
        raise ConfigError(
            f"{expected} {logs}, which ends in {suffix} and is none: it begins with {head!r}. Copy or pack it again."
        )


def first_command(folder: Path, *, hardware: str, logs: Path | None) -> str:
    """Return what is to be typed first in the project in `folder`: the device, if nothing describes it, comes first."""
    if not (folder / "conf" / "hardware" / f"{hardware}.yaml").is_file():
        return f"tencost measure hardware hardware.name={hardware}"
    if logs is not None:
        return "tencost pipeline"
    return f"tencost measure networks network=bert_tiny hardware={hardware}"


def _write(root: Path, hardware: str, logs: Path | None, version: str) -> None:
    conf, project = templates()
    shutil.copytree(
        conf,
        root / "conf",
        ignore=lambda folder, names: [
            name for name in names if Path(folder) == conf / "dataset" or name == "__pycache__"
        ],
    )
    (root / "conf" / "dataset").mkdir(exist_ok=True)
    config = (conf / "config.yaml").read_text(encoding="utf-8")
    for group, choice in (("dataset", DATASET), ("hardware", "local"), ("split", "by_task")):
        config = re.sub(rf"(?m)^(  - {group}:) \S+", rf"\1 {choice}", config)
    _put(root / "conf" / "config.yaml", config)
    dataset = {
        "name": DATASET,
        "source": f"datasets/{DATASET}.tar.zst" if logs is None else str(logs.resolve()),
        "sha256": None,
        "description": "",
        "hardware": None if logs is None else hardware,
    }
    head = "# Written anew by `tencost measure run`; or give a folder, an archive or a URL of logs as source.\n"
    _put(root / "conf" / "dataset" / f"{DATASET}.yaml", head + _yaml(dataset))
    pipeline = OmegaConf.to_container(OmegaConf.load(project / "dvc.yaml"), resolve=False)
    head = (
        "# The map of the data flow. What is built stands in params.yaml. Made by `tencost init`.\n"
    )
    _put(root / "dvc.yaml", head + _yaml(own_pipeline(pipeline, hardware)))
    params = {
        "tencost": version,
        "dataset": DATASET,
        "split": "by_task",
        "hardware": [hardware],
        "features": ["per_store"],
        "models": _MODELS,
        "seeds": "0,1,2",
    }
    head = (
        "# What the pipeline builds. `tencost` is the version that it is built with: write the new one here after an\n"
        "# upgrade, and every stage runs again. Edit the lists, then `tencost pipeline`.\n"
    )
    _put(root / "params.yaml", head + _yaml(params))
    write_items(root)
    _put(root / ".gitignore", _IGNORED)
    _put(root / "README.md", _README.format(hardware=hardware, dataset=DATASET))
    _begin_dvc(root)


def own_pipeline(pipeline: Any, hardware: str) -> dict[str, Any]:
    """Return the content of dvc.yaml for a project of one's own: no dependency on code, but on tencost's version.

    Args:
        pipeline: that of the repository.
        hardware: whose plots are shown.
    """
    for stage in pipeline["stages"].values():
        inner = stage.get("do", stage)
        inner["deps"] = [one for one in inner["deps"] if not one.startswith(_CODE)]
        if not inner["deps"]:
            del inner["deps"]
        inner["params"] = ["tencost", *inner.get("params", [])]
    csv = f"data/reports/{DATASET}/{hardware}/plots/top_k.csv"
    lines = [f"{model}-{features}" for features, models in _MODELS.items() for model in models]
    pipeline["plots"] = [
        {
            f"top_k_{hardware}": {
                "title": f"Top-k score on held-out tasks, {hardware}",
                "x": {csv: "k"},
                "y": {csv: [*(line for line in lines if line != "random-per_store"), "random_floor"]},
                "x_label": "programs measured per task",
                "y_label": "top-k score",
            }
        }
    ]  # fmt: skip
    return {str(key): value for key, value in pipeline.items()}


def _begin_dvc(root: Path) -> None:
    """Make it a git repository, unless it is in one, and a DVC project; without git DVC is told so."""
    (root / ".dvc").mkdir()
    config = "[core]\n    analytics = false\n    autostage = false\n"
    if not _git(root, "rev-parse", "--git-dir") and not _git(root, "init", "--quiet"):
        config += "    no_scm = true\n"
    _put(root / ".dvc" / "config", config)
    _put(root / ".dvc" / ".gitignore", "/config.local\n/tmp\n/cache\n")
    _put(root / ".dvcignore", "__pycache__\n.venv\n")


def _put(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _git(root: Path, *arguments: str) -> bool:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


def _yaml(values: Any) -> str:
    import yaml

    return yaml.safe_dump(values, sort_keys=False, width=110, allow_unicode=True)
