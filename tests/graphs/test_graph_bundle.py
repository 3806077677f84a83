"""Bundles of graph models: what is saved comes back, what is damaged is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_up_graphs import DEVICES, networks
from tencost.config.parts import GRAPH_FAMILIES
from tencost.errors import BundleError
from tencost.models.networks.bundle import (
    GraphBundleInfo,
    content_digest,
    load_graph_bundle,
    plain_config,
    read_graph_info,
    register_for,
    save_bundle,
)
from tencost.models.programs.bundle import load_bundle


@pytest.fixture(scope="module", params=GRAPH_FAMILIES.names())
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any]:
    """A bundle of each family, and the model that was saved."""
    family = GRAPH_FAMILIES.load(request.param)
    data = networks(30)
    chosen = np.arange(len(data)) % 5 == 0
    train, valid = data.take(np.flatnonzero(~chosen)), data.take(np.flatnonzero(chosen))
    model = family.make(family.for_tests, len(DEVICES))
    model.fit(train, valid, seed=0, report=lambda name, value, step: None)
    info = GraphBundleInfo(
        family=request.param,
        model_config=plain_config(family.for_tests),
        devices=DEVICES,
        dataset="made_up",
        dataset_hash="0",
        split="by_graph",
        split_hash="0",
        seed=0,
        log_error={DEVICES[0]: [-0.1, 0.1], DEVICES[1]: []},
    )
    folder = tmp_path_factory.mktemp(request.param) / "bundle"
    save_bundle(folder, model, info)
    return folder, model


def test_what_is_saved_comes_back(trained: tuple[Path, Any], tmp_path: Path) -> None:
    folder, model = trained
    graphs = networks(5, seed=1).graphs
    bundle = load_graph_bundle(folder)
    expected = model.predict(graphs)
    assert expected.shape == (15, 2)
    np.testing.assert_array_equal(bundle.model.predict(graphs), expected)
    np.testing.assert_array_equal(bundle.predict_ms(graphs, "myriad-vpu"), expected[:, 1])
    register_for(folder, "myriad-vpu", tmp_path / "registered")
    registered = load_graph_bundle(tmp_path / "registered")
    np.testing.assert_array_equal(registered.predict_ms(graphs), expected[:, 1])
    assert content_digest(registered.info) != content_digest(bundle.info)


def test_a_network_is_predicted_alone_as_among_others(trained: tuple[Path, Any]) -> None:
    _, model = trained
    graphs = networks(4, seed=2).graphs
    together = model.predict(graphs)
    alone = np.concatenate([model.predict(one) for one in graphs.batches(1)])
    np.testing.assert_allclose(alone, together, rtol=1e-5)


def test_a_model_of_programs_is_asked_nothing(trained: tuple[Path, Any]) -> None:
    folder, _ = trained
    with pytest.raises(BundleError, match="expected a model of programs, found one of graphs"):
        load_bundle(folder)


def test_another_device_is_refused(trained: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = trained
    bundle = load_graph_bundle(folder)
    graphs = networks(1).graphs
    with pytest.raises(BundleError, match="cortex-a76, myriad-vpu"):
        bundle.predict_ms(graphs, "adreno-640")
    with pytest.raises(BundleError, match="cortex-a76, myriad-vpu"):
        register_for(folder, "adreno-640", tmp_path / "no")


def edited(**values: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda found: {**found, **values}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edited(kind="other"), "found one of other"),
        (edited(format_version=2), "format_version 1"),
        (edited(abi=9), "abi 1"),
        (edited(devices=[]), "misspells a field"),
        (edited(devices="cortex-a76"), "misspells a field"),
        (edited(hardware="elsewhere"), "misspells a field"),
        (edited(log_error={"cortex-a76": [1, 2, 3]}), "misspells a field"),
        (edited(files={}), "unexpected file"),
        (edited(files={"../escape.json": "0"}), "not a plain file"),
        (edited(files={"0" * 300 + ".json": "0"}), "not a plain file"),
        (edited(family="none"), "graph model family"),
        (edited(model_config={}), "do not fit together"),
        (lambda found: {name: one for name, one in found.items() if name != "seed"}, "seed"),
        (edited(surprise=1), "surprise"),
    ],
)
def test_a_changed_manifest_is_refused(
    trained: tuple[Path, Any],
    tmp_path: Path,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    message: str,
) -> None:
    folder = copy(trained[0], tmp_path)
    path = folder / "bundle.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(BundleError, match=message):
        load_graph_bundle(folder)


def test_changed_weights_are_refused(trained: tuple[Path, Any], tmp_path: Path) -> None:
    folder = copy(trained[0], tmp_path)
    for path in sorted(folder.iterdir()):
        if path.name == "bundle.json":
            continue
        before = path.read_bytes()
        path.write_bytes(before + b" ")
        with pytest.raises(BundleError, match="changed after training"):
            load_graph_bundle(folder)
        path.write_bytes(before)
        path.unlink()
        with pytest.raises(BundleError, match=f"expected the file {path.name}"):
            load_graph_bundle(folder)
        path.write_bytes(before)


def test_info_says_what_it_was_made_of(trained: tuple[Path, Any]) -> None:
    info = read_graph_info(trained[0])
    assert info.devices == DEVICES
    assert info == replace(info)


def copy(folder: Path, target: Path) -> Path:
    from shutil import copytree

    return Path(copytree(folder, target / "bundle"))
