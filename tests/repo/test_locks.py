"""The lock files: every requirement pinned with hashes, and nothing asked for that is not in them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def locked(name: str) -> dict[str, tuple[str, int]]:
    """Return package -> (version, number of hashes); of several versions the last."""
    found: dict[str, tuple[str, int]] = {}
    package = ""
    for line in (ROOT / name).read_text().splitlines():
        if (pin := re.match(r"([a-z0-9-]+)==(\S+)", line)) is not None:
            package = pin[1]
            assert found.get(package, ("", 1))[1], f"{package} of {name} has no hash"
            found[package] = (pin[2], 0)
        elif re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line):
            version, count = found[package]
            found[package] = (version, count + 1)
        else:
            assert re.match(r" *#", line), (
                f"expected pins, hashes and comments in {name}, found {line!r}"
            )
    return found


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-cuda.lock"])
def test_every_pin_has_hashes(name: str) -> None:
    pins = locked(name)
    assert pins
    assert not [package for package, (_, hashes) in pins.items() if not hashes]


def test_the_lock_has_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = locked("requirements.lock")
    extras = project["optional-dependencies"].values()
    asked = [*project["dependencies"], *(one for extra in extras for one in extra)]
    for requirement in map(Requirement, asked):
        name = canonicalize_name(requirement.name)
        if name == "tencost":
            continue
        assert name in pins, f"{requirement} is not in requirements.lock: make lock"
        assert requirement.specifier.contains(pins[name][0]), (
            f"expected {requirement}, found {pins[name][0]} in requirements.lock: make lock"
        )


def test_only_the_cuda_build_needs_the_cuda_lock() -> None:
    """The lock of CUDA's libraries adds, it never gives a package of the first lock another version."""
    assert not locked("requirements.lock").keys() & locked("requirements-cuda.lock").keys()
