"""From words on the command line to a checked configuration, once or as a sweep. Hydra composes, config.py checks."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from tencost.config import Config, lockfile, project_root, resolve
from tencost.errors import ConfigError

GROUPS = (
    "dataset",
    "hardware",
    "features",
    "split",
    "model",
    "network",
    "tuner",
    "measure",
    "experiment",
)

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


def group_choices() -> dict[str, list[str]]:
    """Return the choices of each configuration group, the default one first."""
    from omegaconf import OmegaConf

    _, conf = config_folder()
    listed = OmegaConf.to_container(OmegaConf.load(conf / "config.yaml"))
    assert isinstance(listed, dict)
    defaults: dict[str, str] = {}
    for entry in listed["defaults"]:
        if isinstance(entry, dict):
            defaults.update(entry)
    choices = {}
    for group in GROUPS:
        names = sorted(path.stem for path in (conf / group).glob("*.yaml"))
        choices[group] = sorted(names, key=lambda name: (name != defaults.get(group), name))
    return choices


def compose(overrides: list[str]) -> tuple[Config, Path]:
    """Compose conf/ with overrides and check the result.

    Returns:
        The configuration and the project's root.

    Raises:
        ConfigError: unknown choice, unknown key or wrong type; the message lists the valid ones.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    root, conf = config_folder()
    GlobalHydra.instance().clear()
    with _explained(), initialize_config_dir(version_base="1.3", config_dir=str(conf)):
        composed = hydra_compose("config", overrides=_free(overrides), return_hydra_config=True)
        return _checked(composed, composed.hydra.runtime.choices), root


def run_stage(function: StageFunction, name: str, arguments: list[str]) -> Any:
    """Run a stage once, or as a Hydra sweep where the arguments hold -m."""
    if any(word in ("-m", "--multirun") for word in arguments):
        return run_sweep(function, name, arguments)
    config, root = compose(_overrides_only(name, arguments))
    if "DVC_STAGE" in os.environ:
        lockfile.keep(root)
    return function(config, root)


def run_sweep(function: StageFunction, name: str, arguments: list[str]) -> Any:
    """Run a stage over every combination of the comma-separated choices, through Hydra's launcher and sweeper.

    A combination that cannot work (a family that does not read the feature set) is skipped with its reason; the
    sweep goes on. The function's return value is what an optimizing sweeper sees.
    """
    import hydra
    from hydra.core.hydra_config import HydraConfig

    root, conf = config_folder()
    overrides = _free([word for word in arguments if word not in ("-m", "--multirun")])
    if not any(word.startswith("hydra.sweep.dir=") for word in overrides):
        overrides.append(f"hydra.sweep.dir={root}/mlruns/sweeps/${{now:%Y-%m-%d_%H-%M-%S}}")

    def job(composed: DictConfig) -> Any:
        config = _checked(composed, HydraConfig.get().runtime.choices)
        return function(config, root)

    os.environ["HYDRA_FULL_ERROR"] = "1"
    saved = sys.argv
    sys.argv = [f"tencost {name}", "--multirun", *overrides]
    try:
        with _explained():
            hydra.main(version_base="1.3", config_path=str(conf), config_name="config")(job)()
    finally:
        sys.argv = saved


def _checked(composed: DictConfig, choices: Any) -> Config:
    from omegaconf import OmegaConf, open_dict

    values = OmegaConf.create(OmegaConf.to_container(composed, resolve=False))
    assert isinstance(values, DictConfig)
    with open_dict(values):
        values.pop("hydra", None)
        values.pop("experiment", None)
        values["split_name"] = choices["split"]
        values["model_name"] = choices["model"]
    return resolve(values)


def _overrides_only(name: str, arguments: list[str]) -> list[str]:
    for word in arguments:
        if "=" not in word and not word.startswith("~"):
            raise ConfigError(
                f"tencost {name}: expected overrides of the form key=value, found {word!r}. "
                f"See `tencost {name} --help`."
            )
    return arguments


def _free(overrides: list[str]) -> list[str]:
    """Let every plain value override through to our own schema, which knows all fields and names the valid ones."""
    freed = []
    for word in overrides:
        key = word.split("=", 1)[0]
        plain = re.fullmatch(r"[A-Za-z_][\w.\-]*", key) is not None
        is_group = key in GROUPS
        freed.append(word if not plain or is_group or key.startswith("hydra") else f"++{word}")
    return freed


@contextmanager
def _explained() -> Iterator[None]:
    """Turn Hydra's exceptions into one ConfigError that lists the valid choices."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        text = str(error)
        missing = re.search(r"Could not find '(\w+)/([^']+)'", text)
        if missing:
            group, choice = missing.groups()
            valid = ", ".join(group_choices().get(group, []))
            raise ConfigError(f"{group} must be one of {valid}; found {choice!r}") from error
        raise ConfigError(f"configuration: {' '.join(text.split())}") from error
