"""Installs tencost[tuner] into empty environments and tunes an operator with a packaged champion, offline.

    python benchmarks/tuner_versions.py                        the lowest versions that pyproject.toml allows, those of
                                                               requirements.lock, and the newest that pip finds
    python benchmarks/tuner_versions.py newest --python python3.12

Builds the wheel, and for each row makes a virtual environment outside the repository, installs the wheel with its extra
(pip's own index, cache and configuration), and runs `tencost tune` in an empty folder on an ONNX file of one matrix
product, without a network where the kernel lets a process give its network up (`unshare --net`). Prints a row of a
Markdown table for each; a row that fails ends with the error.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
ROWS = ("lowest", "locked", "newest")
SOURCES = ("src", "conf", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "dvc.yaml")
"""What a wheel is made of."""
SHOWN = ("xgboost-cpu", "mlflow-skinny", "onnxruntime", "onnx", "onnxscript", "scipy", "numpy")
"""Packages whose versions the table has."""
TRIALS = 16
MAKE_OPERATOR = """
import numpy as np, onnx
from onnx import TensorProto, helper, numpy_helper
weights = np.random.default_rng(0).normal(size=(256, 512)).astype("float32")
x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", (128, 256)), ("y", (128, 512))))
nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
graph = helper.make_graph(nodes, "matmul", [x], [y], [numpy_helper.from_array(weights, "w")])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "matmul.onnx")
"""
SCORES = """
import hashlib, numpy as np
from tencost.features.rows.ragged import Ragged
from tencost.models.programs.bundle import load_bundle
from tencost.register.champions import packaged_champions
digest = hashlib.sha256()
for champion in packaged_champions():
    bundle = load_bundle(champion.folder)
    columns = len(bundle.info.feature_spec.columns)
    rows = np.random.default_rng(0).gamma(0.5, 4.0, (3000, columns)).astype("float32")
    scores = bundle.scores(Ragged(rows, np.arange(0, 3001, 3)))
    digest.update(np.ascontiguousarray(np.round(scores, 6)).tobytes())
print(digest.hexdigest()[:8])
"""
"""Prints a digest of both packaged champions' scores, rounded to 6 digits: all versions should score alike."""
VERSIONS = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"


def requirements() -> list[Requirement]:
    """Return what tencost[tuner] asks for by itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [
        Requirement(text)
        for text in (*project["dependencies"], *project["optional-dependencies"]["tuner"])
    ]


def constraints(row: str) -> list[str]:
    """Return pip's constraints of a row of the table: ``name==version`` lines."""
    if row == "newest":
        return []
    if row == "lowest":
        bounds = {
            item.name: spec.version
            for item in requirements()
            for spec in item.specifier
            if spec.operator in (">=", "==")
        }
        return [f"{name}=={version}" for name, version in bounds.items()]
    names = {item.name for item in requirements()}
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = (re.match(r"([a-z0-9-]+)==([^ ;]+)", line) for line in lines)
    return [pin[0] for pin in pins if pin is not None and pin[1] in names]


def offline() -> list[str]:
    """Return the words before a command that take its network away; none where the kernel refuses."""
    words = ["unshare", "--map-root-user", "--net"]
    if shutil.which(words[0]) is None:
        return []
    done = subprocess.run([*words, "true"], capture_output=True, check=False)
    return words if done.returncode == 0 else []


def build(folder: Path) -> Path:
    """Build tencost's wheel into a new folder, without an index and from a copy of the sources.

    A `build/` in the repository would put files of earlier builds into the wheel.
    """
    tree = folder / "tree"
    tree.mkdir(parents=True)
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, tree / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tree / name)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
         "-w", str(folder), str(tree)],
        check=True,
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    return wheel


def attempt(row: str, python: str, wheel: Path, folder: Path) -> str:
    """Install, tune and return the table's row."""
    started = time.monotonic()
    environment = folder / "venv"
    subprocess.run([python, "-m", "venv", str(environment)], check=True)
    limits = folder / "constraints.txt"
    limits.write_text("\n".join(constraints(row)), encoding="utf-8")
    run_python = str(environment / "bin" / "python")
    clean = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("PYTHON", "MLFLOW_", "TENCOST_", "VIRTUAL_ENV"))
    }
    install = subprocess.run(
        [run_python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         "--constraint", str(limits), f"{wheel}[tuner]"],
        env=clean, capture_output=True, text=True, check=False,
    )  # fmt: skip
    clean |= {"XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder)}
    installed_s = time.monotonic() - started
    if install.returncode:
        return f"| {row} | pip: {install.stderr.strip().splitlines()[-1][:200]} |"
    versions = subprocess.run(
        [run_python, "-c", VERSIONS, *SHOWN], capture_output=True, text=True, check=True
    ).stdout.split()
    number = subprocess.run([run_python, "--version"], capture_output=True, text=True, check=True)
    place = folder / "empty"
    place.mkdir()
    subprocess.run([run_python, "-c", MAKE_OPERATOR], cwd=place, env=clean, check=True)
    scores = subprocess.run(
        [run_python, "-c", SCORES],
        cwd=place,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    digest = scores.stdout.strip() or scores.stderr.strip().splitlines()[-1][:200]
    started = time.monotonic()
    tune = subprocess.run(
        [*offline(), str(environment / "bin" / "tencost"), "tune", "network=onnx", "network.path=matmul.onnx",
         "hardware=local", f"tuner.trials={TRIALS}"],
        cwd=place, env=clean, capture_output=True, text=True, check=False,
    )  # fmt: skip
    tuned_s = time.monotonic() - started
    (folder.parent / f"{folder.name}.log").write_text(tune.stdout + tune.stderr, encoding="utf-8")
    database = place / "tuned" / "matmul-local" / "database_tuning_record.json"
    programs = len(database.read_text().splitlines()) if database.is_file() else 0
    packaged = "packaged:/" in tune.stderr
    if tune.returncode or not packaged or programs < TRIALS:
        end = "; ".join(tune.stderr.strip().splitlines()[-2:])
        outcome = f"fails (exit {tune.returncode}, {programs} programs): {end[:300]}"
    else:
        outcome = f"{programs} programs"
    cells = [
        row,
        number.stdout.split()[1],
        *versions,
        digest,
        f"{installed_s:.0f} s",
        f"{tuned_s:.0f} s",
        outcome,
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", default=ROWS, metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environments")
    parser.add_argument("--keep", type=Path, help="folder for environments and logs; else removed")
    arguments = parser.parse_args()
    if unknown := set(arguments.rows) - set(ROWS):
        parser.error(f"expected rows of {', '.join(ROWS)}, found {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as scratch:
        base = arguments.keep or Path(scratch)
        wheel = build(Path(scratch) / "wheel")
        print(
            f"offline: {'yes' if offline() else 'no'}; wheel: {wheel.stat().st_size / 1e6:.1f} MB\n"
        )
        print(f"| versions | Python | {' | '.join(SHOWN)} | scores | install | tune | outcome |")
        print("|---" * (len(SHOWN) + 6) + "|")
        for row in arguments.rows:
            folder = base / row
            folder.mkdir(parents=True)
            print(attempt(row, arguments.python, wheel, folder), flush=True)


if __name__ == "__main__":
    main()
