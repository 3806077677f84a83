"""Options and overrides: in any order, old spellings, and what is printed instead of running."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import yaml

from tencost import cli
from tencost.cli import stages
from tencost.config import Config
from tencost.errors import ConfigError


def failing(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    captured = capsys.readouterr()
    assert (stop.value.code, captured.out) == (2, "")
    assert captured.err.startswith("tencost: ")
    return captured.err


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    cli.main(list(words))
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_cfg_prints_all_defaults_of_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    composed = yaml.safe_load(printed(capsys, "train", "model=mlp", "--cfg", "job"))
    assert set(composed) == set(Config.__dataclass_fields__)
    assert composed["measure"]["max_cv"] == 0.1  # set by no file
    assert composed["rule"] == {"min_seeds": 5, "refit": True}
    assert (composed["model"]["family"], composed["model"]["pool"]) == ("mlp", "own")
    assert composed["paths"]["store"] == "data/store"
    assert (composed["split_name"], composed["model_name"]) == ("by_network", "mlp")


def test_options_stand_before_and_after_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=xgb", "model.eta=0.5", "seeds=[0,1]", "+jobs=3", "~experiment"]
    before = printed(capsys, "train", "--cfg", "job", *words)
    assert printed(capsys, "train", *words, "--cfg", "job") == before
    assert printed(capsys, "train", *words[:2], "--cfg=job", *words[2:]) == before
    assert printed(capsys, "train", "-c", "job", "--", *words) == before
    assert "eta: 0.5" in before
    assert "jobs: 3" in before


def test_references_are_kept_or_resolved(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tune", "network=bert_tiny", "network.batch=3", "--cfg", "job"]
    unresolved = yaml.safe_load(printed(capsys, *words))
    resolved = yaml.safe_load(printed(capsys, *words, "--resolve"))
    assert "${network.batch}" in str(unresolved["network"]["inputs"])
    assert "${" not in str(resolved)
    assert next(item["shape"][0] for item in resolved["network"]["inputs"].values()) == 3


def test_info_says_where_the_configuration_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "train", "model=tlp", "--info")
    assert "/conf" in text.split("Search path")[1]
    assert "model=tlp " in text
    assert "features=trace " in text  # the family's own
    assert "tvm_xgb" in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "--cfg", "job", "-m", "model=xgb,mlp"], "one of --multirun, --cfg and --info"),
        (["train", "--resolve"], "expected --cfg job with --resolve"),
        (["train", "--cfg", "everything"], "'everything' is not 'job'"),
        (["train", "--cfg"], "expected a value after --cfg"),
        (["train", "--model", "xgb"], "expected an option of -m, --multirun"),
        (["train", "-x"], "found '-x'"),
        (["train", "-3"], "overrides of the form key=value, found '-3'"),
        (["fetch", "sample"], "overrides of the form key=value, found 'sample'"),
        (["measure"], "expected `tencost measure` and one of networks, programs"),
        (["measure", "nothing"], "found 'nothing'"),
        (["records", "query"], "one of best, history, new"),
        (["ui", "--port", "web"], "expected a whole number of at least 0, found 'web'"),
        (["ui", "--port", "70000"], "from 0 to 65535, found 70000"),
        (["ui", "5000"], "expected no more words, found '5000'"),
        (["completion", "tcsh"], "'tcsh' is not one of"),
        (["--nothing"], "found '--nothing'"),
        (["trian"], "expected a command of init, pipeline, params"),
    ],
)
def test_what_is_not_understood(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = failing(words, capsys)
    assert expected in message
    assert "\nUsage: tencost" in message
    assert "--help`." in message


@pytest.mark.parametrize("name", ["model.onnx", "m o'de,l{ü}.onnx"])
def test_a_networks_file_alone_is_that_network(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command, word in (("compile", name), ("tune", name), ("tune", f"network={name}")):
        text = printed(capsys, command, word, "network.batch=2", "--cfg", "job")
        network = yaml.safe_load(text)["network"]
        assert (network["source"], network["path"]) == ("onnx", str(tmp_path / name))
        assert network["batch"] == 2


@pytest.mark.parametrize("command", ["compile", "tune"])
def test_a_network_is_named_or_asked_for(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([command], [command, "network.batch=2"]):
        message = failing(words, capsys)
        assert (
            f"expected a network, found none: tencost {command} model.onnx, or a name of" in message
        )
    message = failing([command, "README.md"], capsys)
    assert "expected a network's file (*.onnx, *.pt2, *.npz), " in message
    assert "found 'README.md'" in message
    message = failing([command, "network=model.pb"], capsys)
    assert message.endswith(
        "found 'model.pb'. A file's name ends in .onnx, .pt2, .npz: network=model.onnx\n"
    )


def test_a_value_that_hydra_cannot_read_is_to_be_quoted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    message = failing(["train", "dataset=a ü"], capsys)
    assert "quote a value with spaces or signs: \"dataset='...'\"" in message


def test_a_sweep_may_be_asked_for_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[list[str]] = []
    monkeypatch.setattr(stages.TRAIN, "_sweep", swept.append)
    words = ["model=xgb,mlp", "seeds=[0,1]"]
    cli.main(["train", "-m", *words])
    cli.main(["train", *words, "--multirun"])
    cli.main(["train", words[0], "-m", words[1]])
    assert swept == [words] * 3


def test_an_interruption_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stages.TRAIN, "_function", interrupted)
    with pytest.raises(SystemExit) as stop:
        cli.main(["train"])
    assert stop.value.code == 130
    assert "tencost: interrupted; what was finished is kept" in capsys.readouterr().err


def test_sigterm_exits_with_143(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stages.TRAIN, "_function", lambda *_: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as stop:
        cli.main(["train"])
    assert stop.value.code == 143
    assert "tencost: ended by SIGTERM; what was finished is kept" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_error_of_a_stage_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(*_: object) -> None:
        raise ConfigError("expected this, found that")

    monkeypatch.setattr(stages.FETCH, "_function", wrong)
    assert failing(["fetch"], capsys) == "tencost: expected this, found that\n"


def test_version_and_help_as_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "version") == printed(capsys, "--version") == printed(capsys, "-V")
    assert printed(capsys, "help") == printed(capsys, "-h") == printed(capsys)
