"""For which Python versions every package of requirements.lock has a wheel, or is a source that any version builds.

    python benchmarks/wheels.py                   3.11, 3.12, 3.13 and 3.14 on Linux, x86_64
    python benchmarks/wheels.py 3.12 --platform manylinux_2_28_aarch64

Asks the index that pip is configured for, in dry runs: pip reads metadata and installs nothing. It answers whether
`make setup` finds its packages, not whether the tests pass there; PyTorch's CPU build has an index of its own.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = [
    *(f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17, 12, 5)),
    *("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"),
]
"""What glibc 2.28 runs."""
MISSING = re.compile(r"No matching distribution found for ([^\s=]+)==")


def locked(version: str, machine: str) -> list[str]:
    """Return `name==version` of all packages that the lock file has for a Python version on Linux."""
    where = {
        "python_version": version,
        "python_full_version": f"{version}.9",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": machine,
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    lines = re.findall(r"(?m)^([a-z][^\\\n]*?)\s*\\?$", text)
    found = [Requirement(line) for line in lines]
    return sorted(
        f"{item.name}{item.specifier}"
        for item in found
        if item.marker is None or item.marker.evaluate(where)
    )


def without_wheel(version: str, packages: list[str], platforms: list[str]) -> list[str]:
    """Return the packages that pip finds no wheel of.

    Raises:
        RuntimeError: pip failed for another reason.
    """
    missing: list[str] = []
    left = list(packages)
    asked = [word for one in platforms for word in ("--platform", one)]
    while True:
        with tempfile.TemporaryDirectory() as scratch:
            wanted = Path(scratch) / "wanted.txt"
            wanted.write_text("\n".join(left), encoding="utf-8")
            done = subprocess.run(
                [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed",
                 "--only-binary=:all:", "--python-version", f"{version}.9", *asked,
                 "--target", scratch, "-r", str(wanted)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        if done.returncode == 0:
            return missing
        found = MISSING.search(done.stderr)
        if found is None:
            raise RuntimeError(done.stderr[-2000:])
        name = found[1].lower()
        missing += [item for item in left if item.partition("==")[0].lower() == name]
        left = [item for item in left if item.partition("==")[0].lower() != name]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--platform", nargs="+", default=PLATFORMS)
    arguments = parser.parse_args()
    machine = "aarch64" if arguments.platform[0].endswith("aarch64") else "x86_64"
    packages = {version: locked(version, machine) for version in arguments.versions}
    missing = {
        version: without_wheel(version, packages[version], arguments.platform)
        for version in arguments.versions
    }
    sources = set.intersection(*(set(found) for found in missing.values()))
    print("| Python | packages | wheels | sources, on every version | no wheel here |")
    print("|---|---|---|---|---|")
    for version, found in missing.items():
        here = ", ".join(sorted(set(found) - sources)) or "none"
        count = len(packages[version])
        print(f"| {version} | {count} | {count - len(found)} | {len(sources)} | {here} |")
    print(f"\nsources: {', '.join(sorted(sources)) or 'none'}")


if __name__ == "__main__":
    main()
