"""A command that needs an extra which is not installed says which, and nothing is a traceback."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import click
import pytest
from packaging.utils import canonicalize_name

from installed import distributions, environment_of
from tencost.cli import extras
from tencost.cli.main import TENCOST
from tencost.cli.overrides import StageGroup
from tencost.errors import MissingDependencyError

ROOT = Path(__file__).resolve().parents[2]
WORDS = {
    "init": ["own"],
    "measure export": ["--to", "x.npz"],
    "records import": ["conf"],
    "profiles import": ["conf"],
    "records rename": ["--hardware", "v100", "k80"],
    "records delete": ["--hardware", "v100"],
    "records regress": ["--since", "2026-11-22"],
    "records query best": ["--hardware", "v100"],
    "records query history": ["--hardware", "v100", "--workload", "a"],
    "records query compare": ["--hardware", "v100", "--other", "k80"],
    "records query sql": ["SELECT 1"],
    "records export metaschedule": ["out", "--hardware", "v100"],
    "register export": ["models:/nobody/1", "out"],
    "register promote": ["nobody", "--to", "staging"],
    "register hook": ["https://tuner.example.org"],
    "register listen": ["--network", "bert_tiny"],
    "register rollback": ["nobody"],
    "tune report": ["nothing"],
    "serve": ["models:/nobody/1"],
    "completion": ["bash"],
    **{
        f"records export {name}": ["out"]
        for name in ("ansor", "autotvm", "t4", "tenset", "rfc4304", "table")
    },
}
"""What a command needs to be told before it starts."""
SCRIPT = """
import contextlib, io, json, sys
from tencost import cli
told = {}
for path, words in json.loads(sys.argv[1]).items():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main([*path.split(), *words])
            code = 0
        except SystemExit as stop:
            code = stop.code
    told[path] = [code, err.getvalue()]
json.dump(told, open(sys.argv[2], "w"))
"""


def paths(command: click.Command, path: tuple[str, ...] = ()) -> list[str]:
    if not isinstance(command, click.Group):
        return [" ".join(path)]
    stage = [" ".join(path)] if isinstance(command, StageGroup) else []
    return stage + [
        inner_path
        for name, inner in command.commands.items()
        for inner_path in paths(inner, (*path, name))
    ]


COMMANDS = paths(TENCOST)


def answers_of_all(folder: Path, *installed: str) -> dict[str, tuple[int, str]]:
    """Run every command where only some extras are installed: path -> (exit code, standard error)."""
    (folder / "hidden").mkdir()
    environment = environment_of(folder / "hidden", *installed)
    shutil.copytree(ROOT / "conf", folder / "project" / "conf")
    words = json.dumps({path: WORDS.get(path, []) for path in COMMANDS})
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, words, str(folder / "told.json")],
        cwd=folder / "project", env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return {
        path: (code, err)
        for path, (code, err) in json.loads((folder / "told.json").read_text()).items()
    }


def test_a_bare_install_names_the_extra_of_every_command(tmp_path: Path) -> None:
    for path, (code, err) in answers_of_all(tmp_path).items():
        if path in ("completion", "init"):
            assert (code, err) == (0, "")
            continue
        if path == "params":
            assert (code, "params.yaml: it says what the pipeline builds" in err) == (2, True)
            continue
        assert code == 2, path
        assert err.startswith(f"tencost: `tencost {path}` needs "), err
        extra = next(name for name in extras.EXTRAS if f"tencost[{name}]" in err)
        assert err.endswith(f"not installed: pip install 'tencost[{extra}]'\n"), err


@pytest.mark.tvm
def test_tencost_tuner_names_what_it_lacks(tmp_path: Path) -> None:
    answers = answers_of_all(tmp_path, "tuner")
    for path, (code, err) in answers.items():
        assert code in (0, 2), path
        assert "Traceback" not in err
        assert "No module named" not in err
    for path in (
        "leaderboard",
        "train",
        "records",
        "records query best",
        "fetch",
        "ui",
        "register",
    ):
        assert answers[path][0] == 2
        assert "pip install 'tencost[pipeline]'" in answers[path][1]
    assert answers["measure hardware"][0] == 0, answers["measure hardware"]
    assert "pip install" not in answers["register export"][1]


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_says_what_it_needs(path: str) -> None:
    words = path.split()
    assert any(" ".join(words[:count]) in extras.NEEDS for count in range(len(words), 0, -1))


def test_the_table_is_what_the_extras_install() -> None:
    owners = {
        module: {canonicalize_name(name) for name in names}
        for module, names in packages_distributions().items()
    }
    bare, tuner, pipeline = distributions(), distributions("tuner"), distributions("pipeline")
    latency = distributions("latency")
    for module in extras.EXTRAS["tuner"]:
        assert owners[module] & tuner, module
        assert not owners[module] & bare, module
    for module in extras.EXTRAS["latency"]:
        assert owners[module] & latency, module
        assert not owners[module] & bare, module
    for module in extras.EXTRAS["pipeline"]:
        assert owners[module] & pipeline, module
        assert not owners[module] & (tuner | latency), module
    brought = {module for modules in extras.EXTRAS.values() for module in modules}
    assert brought >= {module for needs in extras.NEEDS.values() for module in needs}


def test_an_import_that_fails_in_the_middle_names_the_extra() -> None:
    lost = ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")
    error = extras.missing("tencost train", lost)
    assert isinstance(error, MissingDependencyError)
    assert "`tencost train` needs torch" in str(error)
    assert "tencost[pipeline]" in str(error)
    assert "tencost[tuner]" in str(extras.missing("tencost tune", ModuleNotFoundError(name="tvm")))
    without_onnx = extras.missing("tencost graphs latency", ModuleNotFoundError(name="onnx"))
    assert "tencost[latency]" in str(without_onnx)
    to_tune = extras.missing("tencost tune", ModuleNotFoundError(name="onnx"))
    assert "tencost[tuner]" in str(to_tune)
    assert extras.missing("tencost train", ModuleNotFoundError("x", name="tencost.lost")) is None
