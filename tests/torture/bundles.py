"""Bundles damaged everywhere: every file, every region, with and without hashes that were written again."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from random import Random
from typing import Any

from torture.forked import run
from torture.logs import exploit
from torture.mutations import mutated_file, mutated_json, mutated_json_text
from torture.verdict import Case

MANIFEST = "bundle.json"
SAFETENSORS = ".safetensors"


class Bundles:
    """The part `bundles`."""

    name = "bundles"

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train"))
        import onnxruntime  # noqa: F401 - imported before forking
        import torch  # noqa: F401
        import xgboost  # noqa: F401
        from test_damaged_bundles import CONFIGS, save_whole

        self._folder = folder
        self._families = sorted(CONFIGS)

        def train() -> None:
            for family in self._families:
                save_whole(family, folder / family)

        made = run(train, folder)
        assert made.status == 0, made.errors

    def case(self, rng: Random, folder: Path) -> Case:
        from test_damaged_bundles import hash_again

        family = rng.choice(self._families)
        bundle = folder / "bundle"
        shutil.copytree(self._folder / family, bundle)
        names = sorted(path.name for path in bundle.iterdir() if path.name != MANIFEST)
        kind = rng.randrange(10)
        name = rng.choice(names)
        path = bundle / name
        before = path.read_bytes()
        refused = False
        if kind < 2:
            what = f"{name} damaged, hashes as they were"
            path.write_bytes(mutated_file(rng, before))
            refused = path.read_bytes() != before
        elif kind < 5:
            what = f"{name} damaged, hashed again"
            path.write_bytes(_inside(rng, name, before))
            hash_again(bundle)
        elif kind < 7:
            what = f"values of {MANIFEST}"
            manifest = json.loads((bundle / MANIFEST).read_text())
            (bundle / MANIFEST).write_text(
                json.dumps(mutated_json(rng, manifest)), errors="replace"
            )
        elif kind < 8:
            what = f"bytes of {MANIFEST}"
            (bundle / MANIFEST).write_bytes(mutated_file(rng, (bundle / MANIFEST).read_bytes()))
        else:
            what, refused = f"something else beside {name}", True
            _intrude(rng, bundle, name)
            if rng.random() < 0.5 and not any(
                item.is_dir() or item.is_symlink() for item in bundle.iterdir()
            ):
                hash_again(bundle)
                refused = False  # weights that are listed, and that nobody reads
        ends = (2,) if refused else (0, 2)
        return Case(f"{family}: {what}", lambda: _score(bundle), ends=ends)


def _inside(rng: Random, name: str, data: bytes) -> bytes:
    """Damage a file of weights as its format has it, or as any file."""
    if name.endswith(".json") and rng.random() < 0.6:
        return mutated_json_text(rng, data.decode()).encode("utf-8", "replace")
    if name.endswith(SAFETENSORS) and rng.random() < 0.4:
        size = int.from_bytes(data[:8], "little")
        header = mutated_json_text(rng, data[8 : 8 + size].decode()).encode("utf-8", "replace")
        claimed = rng.choice((len(header), len(header), len(header) + 8, 2**63, 0))
        return claimed.to_bytes(8, "little") + header + data[8 + size :]
    return mutated_file(rng, data)


def _intrude(rng: Random, bundle: Path, name: str) -> None:
    kind = rng.randrange(5)
    other = bundle / rng.choice(
        ("model.pkl", "more.json", "weights.ubj", "x.so", "__init__.py", "..x")
    )
    if kind == 0:
        other.write_bytes(exploit(rng))
    elif kind == 1:
        (bundle / name).write_bytes(exploit(rng))
    elif kind == 2:
        other.symlink_to("/etc/passwd")
    elif kind == 3:
        (bundle / name).unlink()
        (bundle / name).symlink_to(bundle / MANIFEST)
    else:
        other.mkdir()


def _score(bundle: Path) -> Any:
    import numpy as np
    from test_damaged_bundles import SAMPLES

    from tencost.models.programs.bundle import load_bundle

    scores = load_bundle(bundle, tvm_version="0.27.0").scores(SAMPLES.features)
    assert np.isfinite(scores).all(), "scores that are not finite"
    assert ((scores > 0) & (scores <= 1)).all(), "scores beyond (0, 1]"
