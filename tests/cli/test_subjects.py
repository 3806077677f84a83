"""Programs, networks and hardware counters choose from the same folders of conf/, each its own files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tencost.cli.main import main
from tencost.config import composition

ROOT = Path(__file__).resolve().parents[2]
SHADOWS = {"graph_model": "constant", "graph_split": "by_graph", "profile_features": "ncu"}
"""Groups that a project of an earlier version has, and their first choices."""


def composed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main([*words, "--cfg", "job"])
    values = yaml.safe_load(capsys.readouterr().out)
    assert isinstance(values, dict)
    return values


@pytest.fixture
def earlier_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose conf/ has a folder for each subject, as `tencost init` made it before."""
    conf = Path(shutil.copytree(ROOT / "conf", tmp_path / "conf"))
    text = (conf / "config.yaml").read_text()
    lines = [line for line in text.splitlines() if "@" not in line]
    place = lines.index("  - network: bert_tiny")
    lines[place:place] = [f"  - {group}: {choice}" for group, choice in SHADOWS.items()]
    choices = composition.group_choices()
    for group in SHADOWS:
        (conf / group).mkdir()
        for choice in choices[group]:
            shutil.move(conf / composition.SHARED[group] / f"{choice}.yaml", conf / group)
    (conf / "config.yaml").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_choices_of_one_group_need_no_file_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write to a store asks for the names of hardware, whatever stands in conf/model."""
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    monkeypatch.chdir(tmp_path)
    every = composition.group_choices()
    assert {group: composition.choice_names(group) for group in every} == every
    (tmp_path / "conf" / "model" / "broken.yaml").write_text("[")
    assert composition.choice_names("hardware") == every["hardware"]
    with pytest.raises(yaml.YAMLError):
        composition.choice_names("model")


@pytest.mark.parametrize("prefix", ["", "graph_"])
def test_a_network_command_has_its_own_choices_by_either_word(
    prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (f"{prefix}model=gin", f"{prefix}model.hidden=64", f"{prefix}split=cg")
    values = composed(capsys, "graphs", "train", *words)
    assert values["graph_model"]["hidden"] == 64
    assert values["graph_split"]["policy"] == "cg"
    assert (values["graph_model_name"], values["graph_split_name"]) == ("gin", "cg")
    assert values["split"]["policy"] == "by_network"


@pytest.mark.parametrize("words", [(), ("model=gat",), ("graph_model=gat",)])
def test_a_commands_own_default_is_of_its_subject(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    values = composed(capsys, "graphs", "tune", *words)
    assert values["graph_model_name"] == ("gat" if words else "gin")


def test_a_project_of_an_earlier_version_has_the_same_choices(
    earlier_project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = composition.group_choices()
    assert before["graph_model"][0] == "constant"
    assert "gin" in before["graph_model"]
    assert "gin" not in before["model"]
    for words in (("model=gin", "split=cg"), ("graph_model=gin", "graph_split=cg")):
        values = composed(capsys, "graphs", "train", *words)
        assert (values["graph_model_name"], values["graph_split_name"]) == ("gin", "cg")
        assert values["graph_model"]["family"] == "gnn"
    values = composed(capsys, "profiles", "transfer", "profile_features=device")
    assert values["profile_features"]["name"] == "device"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("graphs", "train", "model=xgb"),
            r"model must be one of constant, .* which is for programs",
        ),
        (("train", "model=gin"), r"model must be one of xgb, .* which is for whole networks"),
        (("splits", "split=cg"), r"split must be one of by_network, .* whole networks"),
        (("features", "features=ncu"), r"features must be one of .* hardware counters"),
        (
            ("graphs", "train", "model=nothing"),
            r"model must be one of constant, additive, .*'nothing'",
        ),
    ],
)
def test_a_choice_of_another_subject_is_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 2
    assert re.search(message, capsys.readouterr().err)
