"""Every command has a help with examples that work, fast, and the fields of the configuration that it reads."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tencost import cli
from tencost.cli.grammar import Command
from tencost.cli.main import TENCOST
from tencost.cli.overrides import StageCommand, StageGroup, sections
from tencost.config import Config, TunerConfig, composition
from tencost.config.parts import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "tencost"


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    yield " ".join(path), command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from walk(inner, (*path, name))


COMMANDS = dict(walk(TENCOST))
STAGES = {
    path: command.stage if isinstance(command, StageGroup) else command
    for path, command in COMMANDS.items()
    if isinstance(command, StageCommand | StageGroup)
}


def printed_help(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    cli.main(list(words))
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_no_help_imports_what_is_heavy() -> None:
    """One process asks for every help: one process each would take half a minute."""
    code = f"""
import contextlib, io, json, sys
from tencost import cli
shown = {{}}
for path in {list(COMMANDS)!r}:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        cli.main([*path.split(), "--help"])
    shown[path] = out.getvalue()
heavy = {{"torch", "tvm", "mlflow", "polars", "pandas", "xgboost", "transformers", "matplotlib"}}
print(json.dumps([shown, sorted(heavy & set(sys.modules))]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    helps, heavy = json.loads(done.stdout)
    assert heavy == []
    assert done.stderr == ""
    for path, text in helps.items():
        assert text.startswith(f"Usage: tencost {path}".rstrip()), path
        assert re.search(r"^Examples:\n  tencost ", text, re.MULTILINE), path
        assert "src/" not in text, path


@pytest.mark.parametrize("path", COMMANDS)
def test_examples_parse(path: str) -> None:
    """The options of each are declared, and its overrides compose."""
    for example in COMMANDS[path].examples:
        program, *words = shlex.split(example)
        assert program == "tencost"
        parsed = parse(words)
        assert parsed.command_path.strip().startswith(f"tencost {path}".strip())
        if "overrides" in parsed.params and not parsed.params.get("multirun"):
            overrides = list(parsed.params["overrides"])
            if isinstance(parsed.command, StageCommand):
                overrides = parsed.command.of_groups(overrides)
            composition.compose(overrides)


def parse(words: list[str]) -> click.Context:
    """Return the context of the innermost command, which is parsed and not run."""
    command: click.Command = TENCOST
    ctx = TENCOST.make_context("tencost", words)
    while isinstance(command, click.Group):
        name, inner, rest = command.resolve_command(ctx, [*ctx._protected_args, *ctx.args])
        assert inner is not None
        ctx = inner.make_context(name, rest, parent=ctx)
        command = inner
    return ctx


@pytest.mark.parametrize(
    "path", [path for path, command in COMMANDS.items() if type(command) is Command]
)
def test_options_are_parameters_of_the_function_that_a_command_calls(path: str) -> None:
    """Rows name it as text, so that no type checker sees it."""
    command = COMMANDS[path]
    function, parameters = command.function, [str(param.name) for param in command.params]
    if isinstance(function, str):
        module, _, name = function.partition(":")
        function, parameters = getattr(import_module(module), name or "run"), [*parameters, "root"]
    signature(function).bind(**dict.fromkeys(parameters))


@pytest.mark.parametrize(
    "path", [path for path, command in COMMANDS.items() if isinstance(command, StageCommand)]
)
def test_a_stage_runs_a_function_of_configuration_root_and_its_options(path: str) -> None:
    command = COMMANDS[path]
    function = command.function
    if isinstance(function, str):
        module, _, name = function.partition(":")
        function = getattr(import_module(module), name or "run")
    signature(function).bind("configuration", "root", **dict.fromkeys(command.options))


def test_an_example_that_does_not_work_would_be_found() -> None:
    with pytest.raises(click.UsageError):
        parse(["records", "query", "best", "--hardwar", "v100"])


def test_train_lists_every_field_with_type_default_and_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = " ".join(printed_help(capsys, "train", "--help").split())
    assert "model.eta Learning rate. [float; default: 0.06]" in text
    assert (
        "model.num_models Boosters averaged in one model, each from its own seed. [int; default: 1]"
        in text
    )
    assert "model.pool Whose records it is trained on. [own|all; default: own]" in text
    assert "jobs Worker processes; None uses every core. [int|null; default: null]" in text
    assert (
        "split.test by_network: networks held out; by_hardware: hardware held out. [list of str;"
        in text
    )
    assert set(FAMILIES.names()) - set(composition.group_choices()["model"]) == {
        "corrected"  # which `tencost adapt` makes, and nobody chooses
    }
    for name in FAMILIES.names():
        for item in fields(FAMILIES.load(name).config) if name != "corrected" else ():
            assert f" model.{item.name} " in text
    for name in ("tuner.", "network.", "measure."):
        assert f" {name}" not in text


def test_tune_lists_its_own_fields_only(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed_help(capsys, "tune", "--help")
    for item in fields(TunerConfig):
        assert f"\n  tuner.{item.name} " in text
    assert "network.inputs.<name>.shape" in text
    assert "model_uri " in text
    assert "model.eta" not in text
    assert "split" not in text.split("Examples")[0].split("Choices")[1].split("Fields of")[0]


def test_fields_have_the_defaults_of_the_commands_own_choice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    titles = [title for title, _ in sections(["hardware", "network"], {"hardware": "local"})]
    assert titles[0] == "Fields of hardware (defaults of hardware=local)"
    text = " ".join(printed_help(capsys, "compile", "--help").split())
    assert "(defaults of hardware=local)" in text
    assert "hardware=epyc-avx512-1c)" not in text


@pytest.mark.parametrize("path", STAGES)
def test_every_field_has_its_sentence(path: str) -> None:
    for title, described in sections(STAGES[path].uses):
        for item in described:
            assert item.sentence, (title, item.name)


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("fetch", "records/fetch/*.py"),
        ("records", "records/*.py"),
        ("features", "features/*.py"),
        ("splits", "splits/[!n]*.py"),
        ("train", "train/*.py"),
        ("evaluate", "evaluate/*.py"),
        ("register", "register/*.py"),
        ("tune", "tune/*.py"),
    ],
)
def test_a_stage_says_what_it_reads(command: str, files: str) -> None:
    """What a room takes out of the configuration is what its command's help lists."""
    text = "".join(path.read_text() for path in sorted(SOURCE.glob(files)))
    names = {item.name for item in fields(Config)}
    read = set(re.findall(r"\b(?:cfg|config)\.(\w+)", text)) & names
    groups = {"split_name": "split", "model_name": "model"}
    uses = {name.partition(".")[0] for name in STAGES[command].uses}
    assert {groups.get(name, name) for name in read} - {"network"} <= uses | {"network"}
    assert set(re.findall(r"\b(?:cfg|config)\.paths\.(?:live_)?(\w+)", text)) <= {
        name.partition(".")[2] for name in STAGES[command].uses
    }


def test_make_help_shows_an_example_for_the_default_dataset() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if "/tencost train" in line]
    ctx = parse(shlex.split(line)[1:])
    (hardware,) = [word for word in ctx.params["overrides"] if word.startswith("hardware=")]
    dataset = composition.compose([])[0].dataset.name
    listed = (ROOT / "datasets" / f"{dataset}.md").read_text()
    for name in hardware.removeprefix("hardware=").split(","):
        assert f"hardware/{name}" in listed or name in listed, f"{dataset} has no records of {name}"
        composition.compose([f"hardware={name}"])


def test_defaults_of_networks_times_are_those_of_their_room() -> None:
    """Helps do not import the room, so that they are written there and in the command line."""
    from tencost.records.network_times.compare import COLUMNS, DEFAULT_BY
    from tencost.records.network_times.regress import BEFORE, MARGIN
    from tencost.records.network_times.timing import Granularity

    compare, regress = (
        {item.name: item for item in COMMANDS[f"records {name}"].params}
        for name in ("compare", "regress")
    )
    assert compare["by"].default == ",".join(DEFAULT_BY)
    assert f": {', '.join(COLUMNS)}." in compare["by"].help
    assert (regress["margin"].default / 100, regress["runs"].default) == (MARGIN, BEFORE)
    for command in (compare, regress):
        assert list(command["granularity"].type.choices) == [
            hardware_config.value for hardware_config in Granularity
        ]
        assert command["granularity"].default == Granularity.end_to_end


@pytest.mark.parametrize("command", ["compile", "tune"])
def test_a_network_is_compiled_for_this_host_unless_another_is_named(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was built for epyc-avx512-1c, unannounced; stages keep the dataset's hardware."""
    choices = printed_help(capsys, command, "--help").split("Choices")[1]
    assert re.search(r"hardware +local, ", choices)
    assert re.search(
        r"hardware +(?!local)", printed_help(capsys, "train", "--help").split("Choices")[1]
    )
    chosen = {
        words: composed(capsys, command, *words)
        for words in ((), ("hardware.cores=2",), ("hardware=epyc-avx512-1c",))
    }
    assert [hardware_config["name"] for hardware_config in chosen.values()] == [
        "local",
        "local",
        "epyc-avx512-1c",
    ]
    assert composed(capsys, "train")["name"] == "epyc-avx512-1c"


def composed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Return the hardware of a command's configuration."""
    capsys.readouterr()
    cli.main([*words, "--cfg", "job"])
    return dict(yaml.safe_load(capsys.readouterr().out)["hardware"])
