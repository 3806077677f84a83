"""Modules that people import are found under their old names, with a warning."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import warnings
from importlib.machinery import PathFinder

import pytest

from tencost import old_names


@pytest.mark.parametrize(
    ("line", "old", "new"),
    [
        (
            "from tencost.measure.runner import WarmBuilder, WarmRunner",
            "tencost.measure.runner",
            "tencost.workers.runner",
        ),
        (
            "from tencost.records.store import RecordStore",
            "tencost.records.store",
            "tencost.store.record_store",
        ),
        (
            "from tencost.records.lorien import AutoTVMRecords, commit, query",
            "tencost.records.lorien",
            "tencost.compat.lorien.api",
        ),
        (
            "from tencost.lorien.api import AutoTVMRecords, AutoTVMTuneResult, commit, query",
            "tencost.lorien",
            "tencost.compat.lorien",
        ),
        ("import tencost.lorien.knobs", "tencost.lorien", "tencost.compat.lorien"),
        ("from tencost.lorien import dialects", "tencost.lorien", "tencost.compat.lorien"),
        (
            "from tencost.graphs.cg import CGDataProcessor, CGRunner, load_config",
            "tencost.graphs.cg",
            "tencost.compat.cg",
        ),
        (
            "from tencost.train.bundle import load_bundle",
            "tencost.train.bundle",
            "tencost.models.programs.bundle",
        ),
        (
            "from tencost.graphs import graph_set",
            "tencost.graphs.graph_set",
            "tencost.networks.graph.graph_set",
        ),
        (
            "import tencost.profiles.perf",
            "tencost.profiles.perf",
            "tencost.tune.roofline.perf",
        ),
        (
            "from tencost.records import store",
            "tencost.records.store",
            "tencost.store.record_store",
        ),
    ],
)
def test_an_old_import_works_and_warns_once(line: str, old: str, new: str) -> None:
    if "cg" in line and importlib.util.find_spec("torch_geometric") is None:
        pytest.skip("torch_geometric is not installed")
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    warned = [text for text in done.stderr.splitlines() if "DeprecationWarning" in text]
    assert warned == [f"<string>:1: DeprecationWarning: {old} is {new} now: import it from there"]


def test_a_module_is_the_same_by_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second copy would have classes of its own, which `isinstance` tells apart."""
    for name in ("tencost.lorien", "tencost.lorien.containers"):  # another test may have asked
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.warns(DeprecationWarning, match=r"^tencost\.lorien is tencost\.compat\.lorien now"):
        old = importlib.import_module("tencost.lorien.containers")
    new = importlib.import_module("tencost.compat.lorien.containers")
    assert old is new
    assert new.__spec__ is not None
    assert new.__spec__.name == "tencost.compat.lorien.containers"


def test_every_old_name_leads_to_a_module() -> None:
    for old, new in old_names.MOVED.items():
        assert importlib.util.find_spec(new) is not None
        path = importlib.import_module(old.rpartition(".")[0]).__path__
        assert PathFinder.find_spec(old, path) is None, f"{old} is a module, too"


def test_another_missing_module_is_missing() -> None:
    for name in ("tencost.lorien_of_mine", "tencost.lorien.no_such_module"):
        assert old_names.new_name(name) != "tencost.compat.lorien_of_mine"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            with pytest.raises(ModuleNotFoundError, match="No module named"):
                importlib.import_module(name)


def test_the_rpc_server_starts_under_its_old_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tencost.measure.server", "--help"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--tracker" in done.stdout
