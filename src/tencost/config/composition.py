"""From words on the command line to a checked configuration, once or as a sweep. Hydra composes, config.py checks."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from tencost.config import Config, lockfile, project_root, resolve, search_words
from tencost.config.parts import NETWORK_FILES
from tencost.errors import ConfigError, MissingDependencyError

GROUPS = (
    "dataset",
    "hardware",
    "features",
    "split",
    "model",
    "graph_model",
    "graph_split",
    "profile_features",
    "network",
    "tuner",
    "measure",
    "adapt",
    "execution",
    "experiment",
)

SHARED = {"graph_model": "model", "graph_split": "split", "profile_features": "features"}
"""Fields that are chosen from the files of another field's group, those that are of their own subject: networks,
hardware counters. A project of an earlier version has a folder of conf/ for each of them."""

_SUBJECTS = {
    "": "programs",
    "graph_model": "whole networks (tencost graphs)",
    "graph_split": "whole networks (tencost graphs)",
    "profile_features": "hardware counters (tencost profiles)",
}

StageFunction = Callable[[Config, Path], Any]


def config_folder() -> tuple[Path, Path]:
    """Return (project root, its conf/); outside a project the current folder and the copy shipped with tencost."""
    try:
        root = project_root()
    except ConfigError:
        here = Path(__file__).resolve()
        for folder in (here.parents[1] / "conf", here.parents[3] / "conf"):
            if (folder / "config.yaml").is_file():
                return Path.cwd(), folder
        raise
    return root, root / "conf"


def choice_names(group: str) -> list[str]:
    """Return the choices of one configuration group, the default one first."""
    _, conf = config_folder()
    return _names(conf, group, _default_choices(conf / "config.yaml"))


def group_choices() -> dict[str, list[str]]:
    """Return the choices of each configuration group, the default one first."""
    _, conf = config_folder()
    defaults = _default_choices(conf / "config.yaml")
    return {group: _names(conf, group, defaults) for group in GROUPS}


def _names(conf: Path, group: str, defaults: dict[str, str]) -> list[str]:
    names = sorted(path.stem for path in choice_files(conf, group))
    return sorted(names, key=lambda name: (name != defaults.get(group), name))


def choice_files(conf: Path, group: str) -> list[Path]:
    """Return the files that a group's choices are, of a shared folder those of the group's own subject."""
    folder = _folder_of(conf, group)
    files = list((conf / folder).glob("*.yaml"))
    if folder not in SHARED.values():
        return files
    return [path for path in files if _subject(path) == ("" if folder == group else group)]


def _subject(path: Path) -> str:
    """Return the field of SHARED that a file's settings are of; "" if it is none of them."""
    from tencost.config.graphs import GraphSplitPolicy
    from tencost.config.parts import GRAPH_FAMILIES
    from tencost.config.profiles import CounterKind

    values = load_yaml(path)
    if values.get("family") in GRAPH_FAMILIES.names():
        return "graph_model"
    if values.get("policy") in GraphSplitPolicy.__members__:
        return "graph_split"
    return "profile_features" if values.get("kind") in CounterKind.__members__ else ""


def choice_values(group: str, choice: str) -> dict[str, Any]:
    """Return what the file of a choice sets, before anything is resolved; {} where there is no such file."""
    conf = config_folder()[1]
    path = conf / _folder_of(conf, group) / f"{choice}.yaml"
    return load_yaml(path) if path.is_file() else {}


def load_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a file of conf/, nothing resolved; {} where it holds none."""
    from omegaconf import OmegaConf

    settings = OmegaConf.to_container(OmegaConf.load(path))
    return (
        {str(key): setting for key, setting in settings.items()}
        if isinstance(settings, dict)
        else {}
    )


def _folder_of(conf: Path, group: str) -> str:
    """Return the folder of conf/ with a group's files."""
    return SHARED[group] if group in SHARED and not (conf / group).is_dir() else group


def _default_choices(path: Path) -> dict[str, str]:
    defaults = [default for default in load_yaml(path).get("defaults", []) if default != "_self_"]
    return {
        group.rpartition("@")[2]: choice
        for default in defaults
        for group, choice in default.items()
    }


def compose(overrides: list[str]) -> tuple[Config, Path]:
    """Compose conf/ with overrides and check the result.

    Returns:
        The configuration and the project's root.

    Raises:
        ConfigError: unknown choice, unknown key or wrong type; the message lists the valid ones.
    """
    composed, root = _compose(overrides)
    return _checked(composed, composed.hydra.runtime.choices), root


@dataclass(frozen=True)
class ComposedConfig:
    """What Hydra made of a command line.

    Attributes:
        root: the project's root.
        sources: the folders and packages that configuration files are looked for in, in order, with who named each.
        chosen: the choice of each group of conf/, None where there is none.
    """

    root: Path
    sources: tuple[tuple[str, str], ...]
    chosen: dict[str, str | None]


def explain(overrides: list[str]) -> ComposedConfig:
    """Say where a configuration comes from.

    Raises:
        ConfigError: as `compose`.
    """
    composed, root = _compose(overrides)
    runtime = composed.hydra.runtime
    sources = [(str(source.provider), str(source.path)) for source in runtime.config_sources]
    choices = {group: _chosen(runtime.choices, group) for group in GROUPS}
    return ComposedConfig(root, tuple(source for source in sources if source[1]), choices)


def as_yaml(overrides: list[str], *, resolve: bool = False) -> str:
    """Return the whole configuration as YAML, with every default of the schema, which no file needs to set.

    Args:
        overrides: words of a command line.
        resolve: whether references (``${network.batch}``) are replaced with what they stand for.

    Raises:
        ConfigError: as `compose`.
    """
    from omegaconf import OmegaConf

    composed, _ = _compose(overrides)
    choices = composed.hydra.runtime.choices
    checked = _checked(composed, choices)
    values = _values(composed, choices)
    families = {name: values.pop(name, None) for name in ("model", "graph_model")}
    whole = OmegaConf.merge(OmegaConf.structured(Config), values)
    for name, settings in families.items():
        if settings is not None:
            schema = OmegaConf.structured(type(getattr(checked, name)))
            OmegaConf.update(whole, name, OmegaConf.merge(schema, settings))
    container = OmegaConf.to_container(whole, resolve=resolve, enum_to_str=True)
    return OmegaConf.to_yaml(OmegaConf.create(container))


def sweeper(overrides: list[str]) -> dict[str, Any]:
    """Return what the sweeper of a command line is set to.

    Raises:
        ConfigError: as `compose`.
    """
    from omegaconf import OmegaConf

    composed, _ = _compose(overrides)
    with _explained():
        words = OmegaConf.to_container(composed.hydra.sweeper, resolve=True, enum_to_str=True)
    return {str(key): value for key, value in words.items()} if isinstance(words, dict) else {}


def run_stage(
    function: StageFunction, name: str, overrides: list[str], *, multirun: bool = False
) -> Any:
    """Run a stage once, or as a Hydra sweep over every combination of the comma-separated choices."""
    if multirun:
        return run_sweep(function, name, overrides)
    config, root = compose(overrides)
    if "DVC_STAGE" in os.environ:
        lockfile.copy_lockfiles(root)
    return function(config, root)


def run_sweep(function: StageFunction, name: str, overrides: list[str]) -> Any:
    """Run a stage over every combination of the comma-separated choices, through Hydra's launcher and sweeper.

    A combination that cannot work (a family that does not read the feature set) is skipped with its reason; the
    sweep goes on. The function's return value is what an optimizing sweeper sees.
    """
    import hydra
    from hydra.core.hydra_config import HydraConfig

    root, conf = config_folder()
    search_words.register_words()
    overrides = _free(overrides)
    if not any(word.startswith("hydra.sweep.dir=") for word in overrides):
        overrides.append(f"hydra.sweep.dir={root}/mlruns/sweeps/${{now:%Y-%m-%d_%H-%M-%S}}")

    def job(composed: DictConfig) -> Any:
        config = _checked(composed, HydraConfig.get().runtime.choices)
        return function(config, root)

    os.environ["HYDRA_FULL_ERROR"] = "1"
    saved = sys.argv
    sys.argv = [f"tencost {name}", "--multirun", *overrides]
    try:
        with _explained(overrides):
            hydra.main(version_base="1.3", config_path=str(conf), config_name="config")(job)()
    finally:
        sys.argv = saved


def _compose(overrides: list[str]) -> tuple[DictConfig, Path]:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    root, conf = config_folder()
    search_words.register_words()
    GlobalHydra.instance().clear()
    words = _free(overrides)
    with _explained(words), initialize_config_dir(version_base="1.3", config_dir=str(conf)):
        return hydra_compose("config", overrides=words, return_hydra_config=True), root


def _checked(composed: DictConfig, choices: Any) -> Config:
    with _explained():
        return resolve(_values(composed, choices))


def _values(composed: DictConfig, choices: Any) -> DictConfig:
    """Return what was composed without what is Hydra's, and with the names of choices that folders are named after."""
    from omegaconf import OmegaConf, open_dict

    plain = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(plain, dict)
    values = OmegaConf.create(
        {key: value for key, value in plain.items() if key not in ("hydra", "experiment")}
    )
    with open_dict(values):
        values["split_name"] = choices["split"]
        values["model_name"] = choices["model"]
        for group in ("graph_split", "graph_model"):
            if (choice := _chosen(choices, group)) is not None:  # earlier projects may have neither
                values[f"{group}_name"] = choice
    return values


def _chosen(choices: Any, group: str) -> str | None:
    """Return what Hydra chose for a group; None where nothing was."""
    chosen = choices.get(group)
    shared = f"{SHARED[group]}@{group}" if group in SHARED else group
    return choices.get(shared) if chosen is None else chosen


def _free(overrides: list[str]) -> list[str]:
    """Return overrides as Hydra has them: a choice from a shared folder names it, a plain value passes to our schema.

    Our own schema knows all fields and names the valid ones.
    """
    _, conf = config_folder()
    freed = []
    for word in overrides:
        key = word.split("=", 1)[0]
        plain = re.fullmatch(r"[A-Za-z_][\w.\-]*", key) is not None
        _check_subject(conf, key, word.partition("=")[2])
        if key in SHARED and _folder_of(conf, key) != key:
            freed.append(f"{SHARED[key]}@{word}")
        else:
            schemaless = key.startswith(("hydra.sweeper.sampler.", "hydra.sweeper.pruner."))
            free = plain and key not in GROUPS and (schemaless or not key.startswith("hydra"))
            freed.append(f"++{word}" if free else word)
    return freed


def _check_subject(conf: Path, group: str, choices: str) -> None:
    """Refuse a choice whose file is of another subject.

    Raises:
        ConfigError: it is, with the valid ones.
    """
    if group not in SHARED and group not in SHARED.values():
        return
    for choice in choices.split(","):
        path = conf / _folder_of(conf, group) / f"{choice}.yaml"
        if path.is_file() and path not in choice_files(conf, group):
            word = SHARED.get(group, group)
            valid = ", ".join(group_choices()[group])
            raise ConfigError(
                f"{word} must be one of {valid} here; found {choice!r}, which is for {_SUBJECTS[_subject(path)]}"
            )


@contextmanager
def _explained(words: Sequence[str] = ()) -> Iterator[None]:
    """Turn Hydra's exceptions into one ConfigError that lists the valid choices; `words` are what Hydra was given."""
    from hydra.errors import HydraException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        text = str(error)
        plugin = re.search(r"Could not find 'hydra/(launcher|sweeper)/(\w+)'", text)
        if plugin:
            kind, name = plugin.groups()
            raise MissingDependencyError(
                f"expected Hydra's {kind} {name}, found none that is installed; joblib comes with "
                "pip install 'tencost[pipeline]'"
            ) from error
        method = re.search(r"Could not find 'hydra/sweeper/(sampler|pruner)/(\w+)'", text)
        if method:
            kind, name = method.groups()
            valid = ", ".join(search_words.CHOICES[kind])
            raise ConfigError(
                f"hydra/sweeper/{kind} must be one of {valid}; found {name!r}"
            ) from error
        missing = re.search(r"Could not find '(\w+)/([^']+)'", text)
        if missing:
            group, choice = missing.groups()
            fields = [
                key.partition("@")[2]
                for key, _, choices in (word.partition("=") for word in words)
                if key.startswith(f"{group}@") and choice in choices.split(",")
            ]
            valid = ", ".join(group_choices().get(fields[0] if fields else group, []))
            message = f"{group} must be one of {valid}; found {choice!r}"
            if group == "network":
                message += f". A file's name ends in {', '.join(NETWORK_FILES)}: network=model.onnx"
            if group == "hardware":
                message += f". To describe this host under that name: tencost measure hardware hardware.name={choice}"
            raise ConfigError(message) from error
        if isinstance(error, OverrideParseException):
            key = error.override.partition("=")[0].lstrip("+")
            text = f"{text.splitlines()[0]}; quote a value with spaces or signs: \"{key}='...'\""
        raise ConfigError(f"configuration: {' '.join(text.split())}") from error
