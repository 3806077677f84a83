"""params.yaml: the lists that a person edits, and the items that dvc.yaml makes of them.

    dataset, split                   one choice each
    seeds, reference_seeds           training seeds, "0,1,2": of models, and of those whose file in conf/model/ says
                                     `reference: true`; the latter are the same as the former where they are left out
    hardware, features               lists of choices
    models                           feature set -> families trained on it
    train, blends                    written by `tencost params`: <model>-<features>-<hardware> -> {model, family,
                                     features, hardware, seeds}, one training each; `blends`: families made of others

DVC names a stage after the keys of a mapping but numbers the items of a list of mappings, and one matrix cannot say
which model reads which features. So the product stands in the file, under names that stay when a list changes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from tencost.config.composition import choice_files, load_yaml
from tencost.errors import ConfigError

FILE = "params.yaml"
ITEMS = ("train", "blends")
_MARK = "# Written by `tencost params` from the lists above."


def read_params(root: Path) -> dict[str, Any]:
    """Return params.yaml.

    Raises:
        ConfigError: there is none, it is no YAML, or a list is missing.
    """
    path = root / FILE
    if not path.is_file():
        raise ConfigError(f"expected {path}: it says what the pipeline builds")
    try:
        params = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(
            f"{path}: expected YAML, found something else: {' '.join(str(error).split())}. Correct it"
        ) from error
    if not isinstance(params, dict):
        raise ConfigError(f"{path}: expected a mapping, found {params!r}")
    for name, kind, expected in (
        ("hardware", list, "a list"),
        ("features", list, "a list"),
        ("models", dict, "a mapping of feature sets to lists of models"),
    ):
        if not isinstance(params.get(name), kind):
            raise ConfigError(f"{path}: expected {name}: {expected}, found {params.get(name)!r}")
    for features, models in params["models"].items():
        if not isinstance(models, list):
            raise ConfigError(f"{path}: models: expected {features}: [...], found {models!r}")
    return {str(name): setting for name, setting in params.items()}


def items(params: dict[str, Any], conf: Path) -> dict[str, dict[str, dict[str, str]]]:
    """Return what `train` and `blends` shall be: every model of every feature set on every hardware.

    Raises:
        ConfigError: a model that conf/model/ does not have.
    """
    trainings: dict[str, dict[str, dict[str, str]]] = {name: {} for name in ITEMS}
    seeds = str(params.get("seeds", "0"))
    reference_seeds = str(params.get("reference_seeds", seeds))
    for hardware in params["hardware"]:
        for features, models in params["models"].items():
            for model in models:
                settings = _settings(conf, model)
                group = "blends" if settings.get("members") else "train"
                trainings[group][f"{model}-{features}-{hardware}"] = {
                    "model": model,
                    "family": str(settings["family"]),
                    "features": features,
                    "hardware": hardware,
                    "seeds": reference_seeds if settings.get("reference") else seeds,
                }
    return trainings


def check_items(root: Path) -> None:
    """Compare the items of params.yaml with its lists.

    Raises:
        ConfigError: they differ: stages read the items, and would not notice an edited list.
    """
    params = read_params(root)
    trainings = items(params, root / "conf")
    differing = [name for name in ITEMS if params.get(name) != trainings[name]]
    if differing:
        raise ConfigError(
            f"{root / FILE}: expected {' and '.join(differing)} to be what its lists say (hardware, models, seeds), "
            "found others. Run `tencost params`, then the same command again"
        )


def write_items(root: Path) -> bool:
    """Bring the items of params.yaml up to date with its lists; the lists and their comments stay as they are.

    Returns:
        Whether anything changed.
    """
    params = read_params(root)
    trainings = items(params, root / "conf")
    if all(params.get(name) == trainings[name] for name in ITEMS):
        return False
    path = root / FILE
    lines = [path.read_text(encoding="utf-8").partition(_MARK)[0].rstrip(), "", _MARK]
    for name in ITEMS:
        lines.append(f"{name}:" if trainings[name] else f"{name}: {{}}")
        for key, fields in trainings[name].items():
            # Quotes: "0,1" is a word, but YAML ends a flow mapping's value at a comma.
            quoted = {**fields, "seeds": f'"{fields["seeds"]}"'}
            pairs = ", ".join(f"{field}: {text}" for field, text in quoted.items())
            lines.append(f"  {key}: {{{pairs}}}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return True


def _settings(conf: Path, model: str) -> dict[str, Any]:
    path = conf / "model" / f"{model}.yaml"
    choices = choice_files(conf, "model")
    if path not in choices:
        valid = ", ".join(sorted(choice.stem for choice in choices))
        raise ConfigError(f"{FILE}: models: expected one of {valid}, found {model!r}")
    return load_yaml(path)


def allow_no_git(root: Path) -> None:
    """Set DVC's local `core.no_scm` where the project is in no git repository; DVC refuses every command otherwise.

    An exported tree and the Docker image have no .git. Settings that are there stay.
    """
    from dvc.config import Config

    folder = root / ".dvc"
    # As DVC, which looks at the project's folder and those above it; .git is a file in a worktree.
    if not folder.is_dir() or any((parent / ".git").exists() for parent in (root, *root.parents)):
        return
    if "no_scm" not in Config(str(folder), validate=False).get("core", {}):
        with Config(str(folder), validate=False).edit("local") as settings:
            settings.setdefault("core", {})["no_scm"] = True
