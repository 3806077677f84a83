"""A project of one's own (`tencost init`): conf/, params.yaml and dvc.yaml, made from those that come with tencost.

The repository keeps each of them once; the wheel carries them as `tencost.conf` and `tencost.project`. What is
different in a project of one's own is said here: no archives beside it, so no datasets that are made of them; no source
of tencost, so its stages depend on the version of tencost that `params.yaml` names, not on modules; few small models.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tencost.config.composition import choice_files, load_yaml
from tencost.config.lockfile import git
from tencost.config.pipeline import write_items
from tencost.errors import ConfigError, system_failure
from tencost.writing import scratch_beside

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
_NO_GIT = "    no_scm = true\n"
"""Line of .dvc/config in a project without git."""
_NAME = "project"
"""Name of the hidden folder that a project grows in, see :func:`tencost.writing.scratch_beside`."""
_JOINED = "features_joined"
"""The stage of dvc.yaml that joins feature sets that are there."""
SEEDS = "0,1,2,3,4"
"""As many as the rule of promotion asks for."""
REFERENCE_SEEDS = "0"
"""One of models that are only compared with: of all models TVM's own recipe trains longest."""
_LEARNT = "xgb"
"""The model of a new project that is to become champion, beside the references."""
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
dvc_plots/
"""
_README = """\
# A tencost project

{steps}
What is built stands in params.yaml; definitions of its words in conf/. {hint}
"""
_MEASURED_HINT = """\
`tencost measure run` ends with the lines for
params.yaml that fit what was measured: one small network has too few tasks to hold some out (`split: within_task`).\
"""
_LOGS_HINT = "The logs are `source` in conf/dataset/measured.yaml."
_TUNING_FEATURES = ("per_store", "per_store_tiles", "tiles", "trace")
"""Feature sets that are computed of MetaSchedule's programs, which `tencost tune` draws."""


@dataclass(frozen=True)
class Brought:
    """What the logs that somebody brings are of, and what can be built of them; see tencost.measure.brought.

    Attributes:
        hardware: devices that have enough programs to learn from.
        described: of those that conf/hardware/ does not have: what the logs say of them, fields of HardwareConfig.
        devices: file or folder below the logs -> its device, where they are of several that they do not name.
        features: the feature set that is learnt from, one of conf/features/.
        base: the set that references read: its first part, or the set itself.
        split: a split of conf/split/ that the records fill.
        valid_fraction: what that split needs to be filled; None: its own.
        notes: what a person should know, a sentence or two each.
    """

    hardware: Sequence[str]
    features: str
    base: str
    split: str
    valid_fraction: float | None = None
    described: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


def templates() -> tuple[Path, Path]:
    """Return the folder of the configuration that comes with tencost, and that of its dvc.yaml and params.yaml.

    Raises:
        ConfigError: neither an installed wheel nor a source tree is around this module.
    """
    tree = _PACKAGE.parents[1]
    for conf, project in ((_PACKAGE / "conf", _PACKAGE / "project"), (tree / "conf", tree)):
        if (conf / "config.yaml").is_file() and (project / "dvc.yaml").is_file():
            return conf, project
    raise ConfigError(
        f"expected conf/ and project/ in {_PACKAGE}, found none: install tencost again"
    )


def check(folder: Path, *, hardware: str, logs: Path | None) -> None:
    """Refuse what no project can be made of, before logs are read and before anything is written.

    Args:
        folder: where it is to be.
        hardware: name of the device, which `tencost measure hardware` describes.
        logs: measured programs that are there already, a folder or an archive; None: they will be measured.

    Raises:
        ConfigError: the folder is not empty or cannot be read, the name is no device's, or `logs` is neither a folder
            with files in it nor an archive.
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
        if folder.exists() and (not folder.is_dir() or any(map(_is_foreign, folder.iterdir()))):
            raise ConfigError(
                f"expected a new or an empty folder, found {folder} with something in it"
            )
    except OSError as error:
        raise ConfigError(f"cannot read {folder}: {error.strerror or error}") from error


def init(
    folder: Path,
    *,
    hardware: str,
    logs: Path | None,
    version: str,
    brought: Brought | None = None,
) -> None:
    """Write a project.

    Args:
        folder: where; made if it is not there.
        hardware: name of the device, which `tencost measure hardware` describes.
        logs: measured programs that are there already, a folder or an archive; None: they will be measured.
        version: of tencost.
        brought: what those logs are of; None: what `tencost measure` will make.

    Raises:
        ConfigError: as `check`, or the folder cannot be written.
    """
    check(folder, hardware=hardware, logs=logs)
    if brought is None:
        brought = Brought((hardware,), "per_store_tiles", "per_store", "by_task")
    parents = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with scratch_beside(folder / _NAME) as scratch:  # renaming needs no room on the disk
            _write(scratch, hardware, logs, version, brought)
            for path in scratch.iterdir():
                path.rename(folder / path.name)
    except OSError as error:
        if parents:
            shutil.rmtree(parents[-1], ignore_errors=True)
        cause = system_failure(error)
        raise ConfigError(
            f"cannot write {folder}: {cause.strerror or cause}; nothing was left there. Make room or name another "
            "folder"
        ) from error


def lacks_git(folder: Path) -> bool:
    """Say whether `init` wrote a project that is no git repository, as git is not installed or refused."""
    return _NO_GIT in (folder / ".dvc" / "config").read_text(encoding="utf-8")


def _is_foreign(path: Path) -> bool:
    """Say whether a path in the project's folder is no leftover of an `init` that was killed."""
    return not (path.name.startswith(f".{_NAME}.") and path.name.endswith(".partial"))


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
        suffix = next((suffix for suffix in ARCHIVES if logs.name.endswith(suffix)), None)
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
    return _steps(folder, hardware, logs, tuned=True)[0][0]


def _steps(root: Path, hardware: str, logs: Path | None, *, tuned: bool) -> list[tuple[str, str]]:
    """Return the commands from a new project to a tuned network, each with a remark.

    Args:
        root: of the project, with conf/.
        hardware: the first device that the pipeline builds models for.
        logs: as `init` takes them: they are read in place of measurements, of hardware that may not be this host.
        tuned: whether the models rank programs that `tencost tune` draws.
    """
    device = f"hardware={hardware}"
    steps = []
    if logs is None:
        if not (root / "conf" / "hardware" / f"{hardware}.yaml").is_file():
            command = f"tencost measure hardware hardware.name={hardware}"
            steps.append((command, f"once: conf/hardware/{hardware}.yaml"))
        steps += [
            (f"tencost measure networks network=bert_tiny {device}", ""),
            (f"tencost measure programs {device}", ""),
            (
                f"tencost measure run {device}",
                f"or bring logs: source in conf/dataset/{DATASET}.yaml",
            ),
        ]
    steps += [
        ("tencost pipeline", "dvc repro: records, features, models, reports, registry"),
        ("tencost leaderboard && tencost ui", ""),
    ]
    if tuned:
        place = "" if logs is None else ", on a host that has this device"
        steps.append((f"tencost tune network=bert_tiny {device}", f"with the champion{place}"))
    return steps


def models_of(conf: Path, brought: Brought) -> dict[str, list[str]]:
    """Return the models of a new project by the feature set they read: references, and what is to beat them.

    Args:
        conf: the folder of choices.
        brought: which feature sets its records allow.
    """
    files = {path.stem: load_yaml(path) for path in sorted(choice_files(conf, "model"))}
    references = [
        name
        for name, settings in files.items()
        if settings.get("reference") and brought.base in settings["reads"]
    ]
    if brought.base == brought.features:
        return {brought.base: [*references, _LEARNT]}
    return {brought.base: references, brought.features: [_LEARNT]}


def _write(root: Path, hardware: str, logs: Path | None, version: str, brought: Brought) -> None:
    conf, project = templates()
    shutil.copytree(
        conf,
        root / "conf",
        ignore=lambda folder, names: [
            name for name in names if Path(folder) == conf / "dataset" or name == "__pycache__"
        ],
    )
    (root / "conf" / "dataset").mkdir(exist_ok=True)
    for group, choice in (("dataset", DATASET), ("hardware", "local"), ("split", brought.split)):
        _edit(root / "conf" / "config.yaml", rf"^(  - {group}:) \S+", rf"\1 {choice}")
    dataset = {
        "name": DATASET,
        "source": f"datasets/{DATASET}.tar.zst" if logs is None else str(logs.resolve()),
        "sha256": None,
        "description": "",
        "hardware": None if logs is None else hardware,
        **({"devices": dict(brought.devices)} if brought.devices else {}),
    }
    head = "# Written anew by `tencost measure run`; or give a folder, an archive or a URL of logs as source.\n"
    _put(root / "conf" / "dataset" / f"{DATASET}.yaml", head + _yaml(dataset))
    _describe(root, brought)
    models = models_of(root / "conf", brought)
    pipeline = load_yaml(project / "dvc.yaml")
    head = (
        "# The map of the data flow. What is built stands in params.yaml. Made by `tencost init`.\n"
    )
    _put(root / "dvc.yaml", head + _yaml(own_pipeline(pipeline, brought.hardware, models)))
    params = {
        "tencost": version,
        "dataset": DATASET,
        "split": brought.split,
        "hardware": list(brought.hardware),
        "features": [features for features in models if not _is_joined(pipeline, features)],
        "models": models,
        "seeds": SEEDS,
        "reference_seeds": REFERENCE_SEEDS,
    }
    head = (
        "# What the pipeline builds. `tencost` is the version that it is built with: write the new one here after an\n"
        "# upgrade, and every stage runs again. Edit the lists, then `tencost pipeline`.\n"
    )
    _put(root / "params.yaml", head + _yaml(params))
    write_items(root)
    _put(root / ".gitignore", _IGNORED)
    tuned = brought.features in _TUNING_FEATURES
    steps = _steps(root, brought.hardware[0], logs, tuned=tuned)
    lines = [
        f"    {command:<54}# {remark}" if remark else f"    {command}" for command, remark in steps
    ]
    hint = _MEASURED_HINT if logs is None else _LOGS_HINT
    _put(root / "README.md", _README.format(steps="\n".join(lines), hint=hint))
    _begin_dvc(root)


def _describe(root: Path, brought: Brought) -> None:
    """Write what the logs say into the project's choices: their devices, and what splits and features need to fit."""
    head = (
        "# What the logs say of the device, written by `tencost init`; what they do not say stands in `unknown`.\n"
        "# Correct it from a data sheet: cores (a GPU's multiprocessors), simd_bits (32 times a warp), caches in KiB.\n"
    )
    for name, fields in brought.described.items():
        _put(root / "conf" / "hardware" / f"{name}.yaml", head + _yaml(dict(fields)))
    if brought.valid_fraction is not None:
        line = f"valid_fraction: {brought.valid_fraction}"
        _edit(root / "conf" / "split" / f"{brought.split}.yaml", r"^valid_fraction: .*$", line)
    if any(fields.get("unknown") for fields in brought.described.values()):
        line = "relations: false  # conf/hardware/ does not say enough of the device; true once it does"
        _edit(root / "conf" / "features" / f"{brought.features}.yaml", "^relations: true$", line)


def _is_joined(pipeline: Any, features: str) -> bool:
    """Say whether the pipeline has a stage that joins this feature set of others."""
    joined = pipeline["stages"].get(_JOINED)
    return joined is not None and joined["cmd"].endswith(f" features={features}")


def own_pipeline(
    pipeline: Any, hardware: Sequence[str], models: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Return the content of dvc.yaml for a project of one's own: no dependency on code, but on tencost's version.

    How long the repository's stages take (`meta`) says nothing of a project's own.

    Args:
        pipeline: that of the repository; the stage that joins features is taken from it where no model reads them.
        hardware: whose plots are shown.
        models: feature set -> models that read it.
    """
    if not any(_is_joined(pipeline, features) for features in models):
        pipeline["stages"].pop(_JOINED, None)
    for stage in pipeline["stages"].values():
        inner = stage.get("do", stage)
        if inner.pop("meta", {}).get("alone"):
            inner["meta"] = {"alone": True}
        inner["deps"] = [path for path in inner.get("deps", ()) if not path.startswith(_CODE)]
        if not inner["deps"]:
            del inner["deps"]
        inner["params"] = ["tencost", *inner.get("params", [])]
    lines = [f"{model}-{features}" for features, read_by in models.items() for model in read_by]
    lines = [*(line for line in lines if not line.startswith("random-")), "random_floor"]
    pipeline["plots"] = []
    for name in hardware:
        csv = f"data/reports/{DATASET}/{name}/plots/top_k.csv"
        plot = {
            "title": f"Top-k score on held-out tasks, {name}",
            "x": {csv: "k"},
            "y": {csv: list(lines)},
            "x_label": "programs measured per task",
            "y_label": "top-k score",
        }
        pipeline["plots"].append({f"top_k_{name}": plot})
    return dict(pipeline)


def _begin_dvc(root: Path) -> None:
    """Make it a git repository, unless it is in one, and a DVC project; without git DVC is told so."""
    (root / ".dvc").mkdir()
    config = "[core]\n    analytics = false\n    autostage = false\n"
    if git(root, "rev-parse", "--git-dir") is None and git(root, "init", "--quiet") is None:
        config += _NO_GIT
    _put(root / ".dvc" / "config", config)
    _put(root / ".dvc" / ".gitignore", "/config.local\n/tmp\n/cache\n")
    _put(root / ".dvcignore", "__pycache__\n.venv\n")


def _put(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _edit(path: Path, line: str, replacement: str) -> None:
    _put(path, re.sub(line, replacement, path.read_text(encoding="utf-8"), flags=re.MULTILINE))


def _yaml(values: Any) -> str:
    import yaml

    return yaml.safe_dump(values, sort_keys=False, width=110, allow_unicode=True)
