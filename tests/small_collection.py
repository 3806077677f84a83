"""A small collection of matmuls: networks and programs as `tencost measure networks` and `programs` write them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from matmuls import make_matmul
from tencost.config import Config
from tencost.config.composition import compose
from tencost.measure.collection import Collection

HARDWARE = "hardware=local"


@pytest.fixture
def configured() -> Callable[..., Config]:
    """Compose the repository's conf/ for a collection `small` with quick settings; more overrides may follow."""

    def make(*overrides: str) -> Config:
        quick = [
            "measure.name=small",
            "measure.min_mflop=0",
            "measure.programs=6",
            "measure.evolved_share=0",
            "measure.near_share=0",
            "measure.population=16",
            "measure.generations=1",
            "measure.min_repeat_ms=0",
            "measure.repeat=2",
            "measure.max_repeat=2",
            HARDWARE,
        ]
        return compose([*quick, *overrides])[0]

    return make


def make_small_collection(root: Path) -> None:
    """Write measured/small below a root: two matmuls of two networks, 6 programs each, nothing measured."""
    from tvm.ir import save_json

    from tencost.measure import stage
    from tencost.store.ids import workload_id

    collection = Collection(root / "measured" / "small")
    for network, sizes in (("one", (16, 32)), ("two", (32,))):
        entries: list[dict[str, Any]] = []
        for size in sizes:
            text = str(save_json(make_matmul(size)))
            entry = {"task_name": f"matmul_{size}", "weight": 2, "flop": 2.0 * size**3}
            entries.append({**entry, "workload_id": workload_id(text), "mod": text})
        collection.add_network(network, "{}", entries)
    quick = ["measure.name=small", "measure.min_mflop=0", "measure.programs=6", HARDWARE]
    cfg, _ = compose([*quick, "measure.evolved_share=0", "measure.near_share=0"])
    stage.programs(cfg, root)


@pytest.fixture(scope="session")
def small_collection_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with measured/small."""
    root = tmp_path_factory.mktemp("collection")
    make_small_collection(root)
    return root


@pytest.fixture
def small_root(small_collection_template: Path, tmp_path: Path) -> Path:
    """A copy of that root."""
    return Path(shutil.copytree(small_collection_template, tmp_path / "root"))
