"""The front door: help, exit codes, and messages that list the valid words."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tencost import cli
from tencost.config import Pool, composition
from tencost.config.parts import FAMILIES
from tencost.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def in_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main([])
    text = capsys.readouterr().out
    assert all(name in text for name in cli.COMMANDS)


def test_help_of_a_stage_lists_choices(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["train", "--help"])
    text = "".join(capsys.readouterr().out.split())  # a line may end within a name, at a hyphen
    assert all(name in text for name in ("xgb", "mlp", "tlp", "per_store", "trace", "xeon-avx2-1c"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fetch", "dataset=nothing"], r"dataset must be one of .*tencost-xeon.*'nothing'"),
        (["train", "model=xgb", "model.etaa=0.1"], r"etaa.*Valid keys.*\beta\b"),
        (["train", "modle=xgb"], r"modle.*Valid keys.*\bmodel\b"),
        (["train", "model=xgb", "model.max_depth=deep"], r"max_depth.*deep"),
        (["splits", "split.valid_fraction=1.5"], r"split\.valid_fraction"),
        (["train", "-m", "model=xgb,nothing"], r"model must be one of"),
        (["train", "model.eta=-3"], r"model\.eta must be in \(0, 1\], found -3\.0"),
        (["train", "--", "model.eta=-3"], r"model\.eta must be in \(0, 1\], found -3\.0"),
        (["train", "model.eta=0.1", "model.max_depth=-2", "--cfg", "job"], r"at least 1, found -2"),
    ],
)
def test_what_the_configuration_refuses(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    captured = capsys.readouterr()
    assert (stop.value.code, captured.out) == (2, "")
    assert re.search("(?m)^tencost: ", captured.err)
    assert re.search(message, captured.err)
    assert "Traceback" not in captured.err


def test_outside_a_project_the_shipped_configuration_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root, conf = composition.config_folder()
    assert root == tmp_path
    assert (conf / "config.yaml").is_file()


@pytest.mark.parametrize(
    ("group", "choice"),
    [
        (group, choice)
        for group, choices in composition.group_choices().items()
        if group != "experiment"
        for choice in choices
    ],
)
def test_every_choice_composes(group: str, choice: str) -> None:
    config, root = composition.compose([f"{group}={choice}"])
    assert root == ROOT
    assert getattr(config, group) is not None


@pytest.mark.parametrize(
    "path",
    sorted(composition.choice_files(ROOT / "conf", "model")),
    ids=lambda path: path.stem,
)
def test_model_files_spell_out_every_field(path: Path) -> None:
    """DVC tracks what is in the file: a default that lives in code only would change a model without a re-run."""
    values = yaml.safe_load(path.read_text())
    values.pop("defaults", None)
    assert set(values) == set(FAMILIES.load(values["family"]).config.__dataclass_fields__)


def test_a_family_brings_its_feature_set_and_the_command_line_wins() -> None:
    config, _ = composition.compose(["model=tlp"])
    assert config.features.name == "trace"
    config, _ = composition.compose(["model=xgb", "features=trace"])
    assert config.features.name == "trace"
    assert config.model_name == "xgb"


def test_fields_that_no_file_sets_can_be_overridden() -> None:
    config, _ = composition.compose(["model.pool=all", "seeds=[3,4]", "jobs=1"])
    assert config.model.pool is Pool.all
    assert config.seeds == [3, 4]
    assert config.jobs == 1


def test_missing_conf_says_where_it_looked(tmp_path: Path) -> None:
    from tencost.config import project_root

    with pytest.raises(ConfigError, match=r"expected a folder conf/ with config\.yaml"):
        project_root(tmp_path)


def test_a_message_that_quotes_a_file_obeys_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A terminal's commands in a file's words are escaped, and a file says no more than some lines."""
    log = tmp_path / "a.json"
    log.write_text('{"format_version": 1}')
    for name in ("\x1b]0;title\x07\x1b[31mred", "x" * 100_000):
        with pytest.raises(SystemExit) as stop:
            cli.main(["records", "import", str(log), "--dataset", name])
        assert stop.value.code == 2
        message = capsys.readouterr().err
        assert message.startswith("tencost: ")
        assert len(message) < 4000
        assert not set(message) & {"\x1b", "\x07"}


def test_a_warning_of_tencost_is_one_sentence() -> None:
    """Python's way names a file and quotes a line of ours, which says nothing to a user; others' warnings keep it."""
    code = """
import sys, warnings
import tencost
from tencost.cli.main import main
sys.argv = ["tencost", "version"]
main()
warnings.warn_explicit("there is no registry", UserWarning, tencost.__file__, 1)
warnings.warn_explicit("of another package", UserWarning, "other.py", 1)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stderr == (
        "warning: there is no registry\nother.py:1: UserWarning: of another package\n"
    )
