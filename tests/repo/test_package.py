"""What is released: the version and the tag, the workflow, what the wheel holds."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import tencost
from tencost.models.trees.booster import XGBOOST_RANGE

ROOT = Path(__file__).resolve().parents[2]


def test_a_tagged_commit_has_its_tags_version() -> None:
    asked = ["git", "tag", "--points-at", "HEAD", "--list", "v*"]
    try:
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no git here")
    if done.returncode or not done.stdout.split():
        pytest.skip("this commit has no tag of a version")
    assert f"v{tencost.__version__}" in done.stdout.split()


def test_the_changelog_has_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"(?m)^## (\S+)(?: \((\d{4}-\d\d-\d\d)\))?$", text)
    assert headings[0] == ("Unreleased", "")
    assert headings[1][0] == tencost.__version__
    assert all(date for _, date in headings[1:])


def test_files_that_code_reads_beside_it_are_in_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    data = settings["package-data"]
    for path in (ROOT / "src" / "tencost").rglob("*"):
        if not path.is_file() or path.suffix in (".py", ".pyc"):
            continue
        packages = [".".join(folder.parts) for folder in path.relative_to(ROOT / "src").parents]
        patterns = chain(data.get("*", ()), *(data.get(package, ()) for package in packages))
        assert any(path.match(pattern) for pattern in patterns), path


def requirements(extra: str) -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = map(Requirement, project["optional-dependencies"][extra])
    return {requirement.name: requirement for requirement in asked}


def test_tvm_is_exact_and_the_rest_of_the_tuner_are_ranges() -> None:
    for name, requirement in requirements("tuner").items():
        operators = sorted(item.operator for item in requirement.specifier)
        assert operators == (["=="] if name.startswith("apache-tvm") else ["<", ">="]), requirement


def test_the_extras_bring_an_xgboost_that_loads_trees() -> None:
    low, high = XGBOOST_RANGE
    for extra in ("tuner", "latency"):
        asked = requirements(extra)["xgboost-cpu"].specifier
        assert {str(item) for item in asked} == {f">={low}", f"<{high}"}, extra


def test_the_lowest_versions_were_tried() -> None:
    """`python benchmarks/tuner_versions.py` anew where a range of the tuner has changed."""
    page = max((ROOT / "docs" / "results").glob("tuner-versions-*.md")).read_text()
    head, lowest = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith(("| versions |", "| lowest |"))
    )
    tried = dict(zip(head, lowest, strict=True))
    ranges = requirements("tuner")
    for name in ranges.keys() & tried.keys():
        lower = next(item for item in ranges[name].specifier if item.operator == ">=")
        assert Version(tried[name]) == Version(lower.version), name
    assert {"xgboost-cpu", "mlflow-skinny", "onnxruntime"} <= tried.keys()
    digests = re.findall(r"\| ([0-9a-f]{8}) \|", page)
    assert len(digests) > 1
    assert len(set(digests)) == 1, "all versions score alike"


def test_the_workflow_runs_what_ci_runs() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    assert {"run": ".ci/run"} in jobs["check"]["steps"]
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    for name in ("check", "package"):
        versions = [
            step["with"]["python-version"]
            for step in jobs[name]["steps"]
            if "python-version" in step.get("with", {})
        ]
        assert versions == [asked.removeprefix(">=")]
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}, "nothing unchecked is released"


def test_croissant_describes_the_archives_in_git() -> None:
    """The hubs of datasets read it; `python datasets/make_croissant.py` writes it anew.

    `tencost measure run` packs a user's dataset into the same folder.
    """
    written = json.loads((ROOT / "datasets" / "croissant.json").read_text())
    tracked = subprocess.run(
        ["git", "ls-files", "datasets/*.tar.zst"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if tracked.returncode:
        pytest.skip(f"no checkout of git: {tracked.stderr.strip()}")
    archives = {Path(name).name: ROOT / name for name in tracked.stdout.split()}
    listed = {file["name"]: file for file in written["distribution"]}
    assert listed.keys() == archives.keys()
    for name, path in archives.items():
        assert listed[name]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest(), name
