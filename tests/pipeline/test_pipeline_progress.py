"""`tencost pipeline` says how much there is to do and which stage it is at: a real pipeline of DVC, of two commands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tencost.cli.main import main
from tencost.cli.pipeline_plan import PipelinePlan, plan_pipeline, read_seconds, told_seconds
from tencost.cli.pipeline_run import PipelineProgress, minutes, repro, repro_plan

pytestmark = pytest.mark.filterwarnings("ignore:_NoneStep.value:DeprecationWarning")

PIPELINE = """
stages:
  first:
    cmd: echo 1 > first
    deps: [source]
    outs: [first]
    meta: {seconds: 120}
  second:
    cmd: cat first > second
    deps: [first]
    outs: [second]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from dvc.repo import Repo

    Repo.init(str(tmp_path), no_scm=True)
    (tmp_path / "dvc.yaml").write_text(PIPELINE)
    (tmp_path / "source").write_text("0")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(folder: Path) -> int:
    planned = plan_pipeline(folder)
    assert planned is not None
    with PipelineProgress(folder, planned) as progress:
        code = repro(())
        progress.end_stage()
    return code


def test_it_counts_and_learns_how_long_stages_take(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    planned = plan_pipeline(project)
    assert planned is not None
    assert planned.stages == {"first": 120, "second": None}
    assert run(project) == 0
    lines = capfd.readouterr().err.splitlines()
    assert "2 of 2 stages are out of date" in lines, "of the second nobody knows how long it takes"
    told = [re.sub(r"\d+ s so", "N s so", line) for line in lines if line.startswith("[")]
    assert told == ["[1/2] first: N s so far", "[2/2] second: N s so far"]
    timed = read_seconds(project)
    assert set(timed) == {"first", "second"}

    assert run(project) == 0
    assert "0 of 2 stages are out of date" in capfd.readouterr().err
    (project / "source").write_text("another")
    planned = plan_pipeline(project)
    assert planned is not None
    assert planned.stages == timed, "the second follows the first"


def test_a_pipeline_that_dvc_refuses_is_left_to_dvc(project: Path) -> None:
    (project / "dvc.yaml").write_text("stages: [")
    assert plan_pipeline(project) is None


def test_durations_are_for_people() -> None:
    assert [minutes(seconds) for seconds in (0.2, 89, 90, 601)] == [
        "0 s",
        "89 s",
        "2 min",
        "10 min",
    ]


def test_stages_run_this_installation_wherever_its_scripts_are(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `.venv/bin/tencost pipeline`, in an environment that nobody has activated."""
    (project / "conf").mkdir()
    (project / "conf" / "config.yaml").write_text("defaults: []\n")
    (project / "params.yaml").write_text("hardware: []\nfeatures: []\nmodels: {}\n")
    (project / "dvc.yaml").write_text(
        "stages: {one: {cmd: command -v tencost > where, outs: [where]}}\n"
    )
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(SystemExit) as ended:
        main(["pipeline"])
    assert ended.value.code == 0
    assert (project / "where").read_text().strip() == str(Path(sys.executable).parent / "tencost")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{{{", "expected YAML, found something else: while parsing a flow node"),
        (b"\xff\xfe", "expected YAML, found something else"),
        (
            b"hardware: [a]\nfeatures: [x]\nmodels: {x: xgb}",
            "models: expected x: [...], found 'xgb'",
        ),
    ],
)
def test_a_damaged_params_file_is_named(
    project: Path, content: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "conf").mkdir()
    (project / "conf" / "config.yaml").write_text("defaults: []\n")
    (project / "params.yaml").write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        main(["pipeline"])
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert f"{project / 'params.yaml'}: {message}" in printed


WAITS = "touch {own}.began; timeout 30 sh -c 'until test -f {other}.began; do sleep .05; done'"
PARALLEL = f"""
stages:
  data:
    cmd: cat source > data
    deps: [source]
    outs: [data]
  left:
    cmd: {WAITS.format(own="left", other="right")} && cat data > left
    deps: [data]
    outs: [left]
  right:
    cmd: {WAITS.format(own="right", other="left")} && cat data > right
    deps: [data]
    outs: [right]
"""


NEEDS = {"data": frozenset[str](), "left": {"data"}, "right": {"data"}}


def two_at_a_time() -> PipelinePlan:
    return PipelinePlan({"data": 1, "left": 1, "right": 1}, 3, NEEDS, workers=2)


def test_stages_run_side_by_side(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each waits until the other has begun; one after the other they would fail."""
    (project / "dvc.yaml").write_text(PARALLEL)
    planned = plan_pipeline(project)
    assert planned is not None
    assert planned.needs == NEEDS
    planned = replace(planned, workers=2)
    with PipelineProgress(project, planned) as progress:
        assert repro_plan(planned, progress) == 0
    assert [(project / name).read_text() for name in ("left", "right")] == ["0", "0"]
    assert set(read_seconds(project)) == {"data", "left", "right"}
    lines = capfd.readouterr().err.splitlines()
    assert "left | Running stage 'left':" in lines
    assert "right | Running stage 'right':" in lines
    after = plan_pipeline(project)
    assert after is not None
    assert after.stages == {}, "both are in the lock"


def test_a_stage_that_fails_lets_the_other_end(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The other prints for minutes: why the pipeline failed stands in the last line, too."""
    (project / "dvc.yaml").write_text(
        PARALLEL.replace("&& cat data > left", "&& echo $PPID > left.pid && exit 3").replace(
            "&& cat data > right",
            "&& while ! test -s left.pid || kill -0 $(cat left.pid); do sleep .05; done; cat data > right",
        )
    )
    planned = two_at_a_time()
    with PipelineProgress(project, planned) as progress:
        assert repro_plan(planned, progress) != 0
    assert (project / "right").read_text() == "0"
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == "left | failed: its lines above say why. Then run the command again"
    after = plan_pipeline(project)
    assert after is not None
    assert set(after.stages) == {"left"}


def test_a_stage_that_is_killed_is_reported(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As by the kernel where memory runs out: DVC itself has no time to say so."""
    kill = "$(ps -o ppid= -p $$)"  # the process that DVC runs in
    (project / "dvc.yaml").write_text(PARALLEL.replace("&& cat data > left", f"&& kill -9 {kill}"))
    planned = two_at_a_time()
    with PipelineProgress(project, planned) as progress:
        assert repro_plan(planned, progress) == 137
    assert "left | ended by signal 9 (Killed)" in capfd.readouterr().err


def test_items_of_a_stage_may_take_longer_than_others() -> None:
    meta = {"seconds": 7, "longer": {"tvm_xgb": 15, "xgb": 65}}
    names = ("train@xgb-tiles", "train@tvm_xgb-tiles", "train@knn-tiles", "train")
    assert [told_seconds(name, meta) for name in names] == [65, 15, 7, 7]
    assert told_seconds("train", {}) is None


def test_the_longest_chain_begins_first() -> None:
    needs = {
        "data": frozenset[str](),
        "train@a": {"data"},
        "train@b": {"data"},
        "more@b": {"data"},
        "register@a": {"train@a"},
        "register@b": {"train@b", "more@b"},
    }
    seconds: dict[str, float | None] = {
        "data": 5, "train@b": 20, "train@a": 60, "more@b": 30, "register@a": 10, "register@b": 1,
    }  # fmt: skip
    planned = PipelinePlan(seconds, 6, needs, frozenset({"data"}), 2)
    assert planned.ready() == ["data"]
    assert planned.ready({"data"}) == ["train@a", "more@b", "train@b"]
    assert planned.ready({"data", "train@a", "more@b"}) == ["train@b", "register@a"]
    assert planned.ready(seconds.keys()) == []
    assert planned.seconds() == 75, "data, train and register of a, one after the other"
    assert replace(planned, workers=1).seconds() == 126
    assert planned.seconds({"data", "train@a"}) == 31, "more and register of b"
    assert planned.seconds({"data", "more@b"}) == 70
    assert replace(planned, stages={**seconds, "train@a": None}).seconds() is None


ALONE = """
stages:
  first: {cmd: test ! -f other.began && sleep 1 && touch first, outs: [first], meta: {seconds: 9, alone: true}}
  other: {cmd: touch other.began && cp other.began other, outs: [other], meta: {seconds: 1}}
  third: {cmd: test -f first && touch third, outs: [third]}
"""


def test_a_stage_that_uses_all_cores_runs_alone(project: Path) -> None:
    (project / "dvc.yaml").write_text(ALONE)
    planned = plan_pipeline(project)
    assert planned is not None
    assert planned.alone == {"first"}
    with PipelineProgress(project, planned) as progress:
        assert repro_plan(replace(planned, workers=3), progress) == 0


def test_what_is_always_out_of_date_runs_once(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "dvc.yaml").write_text(
        "stages:\n"
        "  a: {cmd: echo a >> log && date +%N > a, outs: [a], always_changed: true}\n"
        "  b: {cmd: echo b >> log && cat a > b, deps: [a], outs: [b]}\n"
        "  report: {cmd: echo report >> log}\n"
    )
    planned = plan_pipeline(project)
    assert planned is not None
    with PipelineProgress(project, planned) as progress:
        assert repro_plan(replace(planned, workers=2), progress) == 0
    assert sorted((project / "log").read_text().split()) == ["a", "b", "report"]
    assert "[4/" not in capfd.readouterr().err


@pytest.mark.parametrize("meta", ["[1, 2]", "slow", "{seconds: ten}", "{seconds: .nan, longer: 3}"])
def test_meta_that_tells_nothing_is_no_failure(project: Path, meta: str) -> None:
    (project / "dvc.yaml").write_text(f"stages: {{a: {{cmd: echo > a, outs: [a], meta: {meta}}}}}")
    (project / ".dvc" / "tmp").mkdir(exist_ok=True)
    (project / ".dvc" / "tmp" / "tencost_seconds.json").write_text('{"b": null, "c": NaN}')
    planned = plan_pipeline(project)
    assert planned is not None
    assert planned.stages == {"a": None}


@pytest.mark.parametrize(
    "how", ["SIGTERM", "Ctrl-C twice", "SIGINT to it alone, twice", "kill -9", "| head"]
)
def test_no_stage_outlives_the_command(project: Path, how: str) -> None:
    """Whatever ends the command, no stage goes on behind its back, and DVC's paths are free again."""
    (project / "dvc.yaml").write_text(
        PARALLEL.replace(
            "&& cat data", "&& for i in $(seq 300); do echo $i; sleep 1; done; cat data"
        )
    )
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from pathlib import Path; from tencost import signals\n"
        "from tencost.cli.pipeline_plan import PipelinePlan\n"
        "from tencost.cli.pipeline_run import PipelineProgress, repro_plan\n"
        "needs = {'left': {'data'}, 'right': {'data'}}\n"
        "planned = PipelinePlan({'data': 1, 'left': 1, 'right': 1}, 3, needs, workers=2)\n"
        "with signals.listening(), PipelineProgress(Path(), planned) as progress: repro_plan(planned, progress)\n"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=project,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stderr is not None
    counts: set[str] = set()
    while len(counts) < 2 and (line := running.stderr.readline()):
        counts |= {line} & {"left | 1\n", "right | 1\n"}
    assert len(counts) == 2, "both run"
    descendants = psutil.Process(running.pid).children(recursive=True)
    match how:
        case "| head":
            running.stderr.close()
        case "SIGTERM":
            running.terminate()
        case "kill -9":
            running.kill()
        case "SIGINT to it alone, twice":
            for _ in range(2):
                running.send_signal(signal.SIGINT)
                time.sleep(0.2)
        case "Ctrl-C twice":  # a terminal sends it to the whole group
            for _ in range(2):
                os.killpg(running.pid, signal.SIGINT)
                time.sleep(0.2)
    try:
        assert running.wait(timeout=60) != 0
        _, alive = psutil.wait_procs(descendants, timeout=60)
        assert not alive
    finally:
        running.stderr.close()
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    assert not (project / "left").exists()
