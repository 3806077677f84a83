"""benchmarks/wheels.py: which packages a Python version needs of the lock file, and what pip's answer means."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "wheels.py"


@pytest.fixture(scope="module")
def wheels() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wheels", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_package_is_asked_for_once(wheels: ModuleType) -> None:
    for version in ("3.11", "3.13"):
        names = [item.partition("==")[0] for item in wheels.locked(version, "x86_64")]
        assert len(names) == len(set(names))
        assert {"torch", "apache-tvm", "mlflow"} <= set(names)
        assert not {"pywin32", "appnope"} & set(names)


def test_what_pip_does_not_find_is_left_out_and_asked_for_no_more(
    wheels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def pip(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        wanted = Path(words[-1]).read_text().split()
        asked.append(wanted)
        missing = next((one for one in wanted if one.startswith(("a==", "B=="))), None)
        told = f"ERROR: No matching distribution found for {missing}\n" if missing else ""
        return subprocess.CompletedProcess(words, 1 if missing else 0, "", told)

    monkeypatch.setattr(subprocess, "run", pip)
    assert wheels.without_wheel("3.12", ["a==1", "B==2", "c==3"], ["any"]) == ["a==1", "B==2"]
    assert asked == [["a==1", "B==2", "c==3"], ["B==2", "c==3"], ["c==3"]]
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, "", "no network")
    )
    with pytest.raises(RuntimeError, match="no network"):
        wheels.without_wheel("3.12", ["a==1"], ["any"])
