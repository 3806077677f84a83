"""Numbers out of their range are refused before data are read, for every numeric field that has a sensible one."""

from __future__ import annotations

import typing
from dataclasses import fields, replace

import pytest

from tencost import cli
from tencost.config import Config, composition
from tencost.config.parts import FAMILIES
from tencost.errors import ConfigError

ANY = {"split.seed", "measure.seed", "tuner.seed"}
"""Any whole number seeds these."""


def numeric(schema: type, prefix: str) -> list[str]:
    hints = typing.get_type_hints(schema)
    return [
        f"{prefix}{field.name}"
        for field in fields(schema)
        if {int, float} & {hints[field.name], *typing.get_args(hints[field.name])}
    ]


GROUPS = ("hardware", "features", "split", "network", "tuner", "measure", "rule")
FIELDS = [
    *(
        name
        for group in GROUPS
        for name in numeric(typing.get_type_hints(Config)[group], f"{group}.")
        if name not in ANY
    ),
    "jobs",
]
MODELS = [
    (family, name)
    for family in FAMILIES.names()
    for name in numeric(FAMILIES.load(family).config, "model.")
]


@pytest.fixture(scope="module")
def config() -> Config:
    return composition.compose([])[0]


@pytest.mark.parametrize("name", FIELDS)
def test_less_than_nothing_is_refused(name: str, config: Config) -> None:
    group, _, field = name.rpartition(".")
    with pytest.raises(ConfigError, match=rf"^{name} must be .*, found -3"):
        replace(getattr(config, group) if group else config, **{field: -3})


@pytest.mark.parametrize(("family", "name"), MODELS)
def test_a_family_refuses_it_too(family: str, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} must be .*, found -3"):
        replace(FAMILIES.load(family).for_tests, **{name.removeprefix("model."): -3})


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.eta=0", "model.eta must be in (0, 1], found 0.0"),
        ("model.subsample=7", "model.subsample must be in (0, 1], found 7.0"),
        ("model.gamma=nan", "model.gamma must be a finite number at least 0, found nan"),
        ("model.gamma=inf", "model.gamma must be a finite number at least 0, found inf"),
        ("model.max_bin=1", "model.max_bin must be at least 2, found 1"),
        ("tuner.trials=0", "tuner.trials must be at least 1, found 0"),
        ("tuner.trials_per_task=0", "tuner.trials_per_task must be at least 1, found 0"),
        ("split.valid_fraction=2", "split.valid_fraction must be in [0, 1), found 2.0"),
        ("split.test_fraction=1", "split.test_fraction must be in [0, 1), found 1.0"),
        ("measure.max_cv=-1", "measure.max_cv must be at least 0, found -1.0"),
        ("measure.run_timeout_s=0", "measure.run_timeout_s must be above 0, found 0.0"),
        ("hardware.port=65536", "hardware.port must be in [1, 65535], found 65536"),
        ("seeds=[0,-1]", "seeds must be at least 0, found -1"),
        ("seeds=[]", "seeds must name at least 1 seed, found []"),
        ("network.inputs.x.high=0", "network.inputs.high must be at least 1, found 0"),
    ],
)
def test_messages(word: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word, "++network.inputs.x.shape=[1]"] if "inputs" in word else [word]
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "model=xgb", *words])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"tencost: {message}\n"


def test_the_edges_are_allowed() -> None:
    words = [
        "model.eta=1",
        "model.gamma=0",
        "tuner.starts=0",
        "tuner.min_gain=0",
        "tuner.min_repeat_ms=0",
        "measure.slow_ms=0",
    ]
    config, _ = composition.compose(
        [*words, "split.valid_fraction=0", "seeds=[0]", "measure.max_cv=0"]
    )
    assert (config.model.eta, config.split.valid_fraction) == (1.0, 0.0)
    assert config.tuner.trials_per_task is None


def test_a_member_of_a_blend_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"^model\.members\.trees\.eta must be in \(0, 1\], found 4"
    ):
        composition.compose(["model=blend", "model.members.trees.eta=4"])


@pytest.mark.parametrize("override", ["network.buckets=8", "seeds=3"])
def test_one_value_in_place_of_a_list_is_answered_with_how_to_write_it(override: str) -> None:
    key = override.split("=")[0]
    with pytest.raises(ConfigError, match=rf"{key}: expected a list, found one .*: {key}=\[...\]"):
        composition.compose([override])
