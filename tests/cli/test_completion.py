"""What a shell is offered: commands, options, groups, choices, fields."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tencost import cli
from tencost.cli.completion import SHELLS

ROOT = Path(__file__).resolve().parents[2]
TENCOST = Path(sys.executable).with_name("tencost")


def offered(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """What the function of bash gets for a line with the cursor at its end."""
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    monkeypatch.setenv("_TENCOST_COMPLETE", "bash_complete")
    with pytest.raises(SystemExit) as stop:
        cli.main([])
    assert stop.value.code == 0
    return [row.partition(",")[2] for row in capsys.readouterr().out.split()]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tencost tr", ["train"]),
        ("tencost records q", ["query", "quarantine"]),
        ("tencost records query ", ["best", "history", "new", "compare", "stats", "sql"]),
        ("tencost records data", ["dataset="]),
        ("tencost train model", ["model="]),
        ("tencost train +model", ["+model="]),
        ("tencost train model=t", ["tlp", "tvm_mlp", "tvm_xgb"]),
        ("tencost train -m model=xgb,t", ["xgb,tlp", "xgb,tvm_mlp", "xgb,tvm_xgb"]),
        ("tencost train model=xgb hardware=epyc-s", ["epyc-sse42-1c"]),
        ("tencost train model.num_r", ["model.num_rounds="]),
        ("tencost train experiment=p", ["parallel"]),
        ("tencost train tuner", []),
        ("tencost tune tuner.trials_per_r", ["tuner.trials_per_round="]),
        ("tencost measure run --res", ["--resolve"]),
        ("tencost train --cfg ", ["job"]),
        ("tencost records query best --hardware xeon", ["xeon-avx2-1c", "xeon-avx512-1c"]),
        ("tencost records export rfc4304 x --layout c", ["columns"]),
        ("tencost completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_a_line_is_completed(
    line: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    completions = offered(line, monkeypatch, capsys)
    assert sorted(completions) == sorted(words)


def test_the_families_are_offered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {path.stem for path in (ROOT / "conf" / "model").glob("*.yaml")}
    programs = offered("tencost train model=", monkeypatch, capsys)
    networks = offered("tencost graphs train model=", monkeypatch, capsys)
    assert "xgb" in programs
    assert "gin" in networks
    assert not set(programs) & set(networks)
    assert set(programs) | set(networks) == files


def test_other_shells_get_whole_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMP_WORDS", "tencost train model=ml")
    monkeypatch.setenv("COMP_CWORD", "2")
    monkeypatch.setenv("_TENCOST_COMPLETE", "zsh_complete")
    with pytest.raises(SystemExit):
        cli.main([])
    assert "model=mlp" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_what_click_prints(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["completion", shell])
    printed = capsys.readouterr().out
    monkeypatch.setenv("_TENCOST_COMPLETE", f"{shell}_source")
    with pytest.raises(SystemExit):
        cli.main([])
    assert capsys.readouterr().out == printed
    assert f"{shell}_complete" in printed


@pytest.mark.skipif(not TENCOST.is_file(), reason="no console script tencost beside this Python")
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_after_an_equals_sign() -> None:
    """Bash's own splitting at = is what breaks this: the real shell, its function and the real command."""
    script = """
eval "$(tencost completion bash)"
COMP_LINE="tencost train model=ml" COMP_POINT=22
COMP_WORDS=(tencost train model = ml) COMP_CWORD=4
compopt() { :; }
_tencost_completion tencost
printf '%s\n' "${COMPREPLY[@]}"
"""
    environment = {**os.environ, "PATH": f"{TENCOST.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("mlp\n", "")
