"""ONNX Runtime beside a tuned network: it computes the network, and what it cannot run is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tencost.networks.network import load_network
from tencost.networks.sources.onnx import _example
from tencost.tune.hosts import OnnxRuntime, onnx_runtime


def test_onnx_runtime_runs_the_network(tmp_path: Path) -> None:
    config = _example(tmp_path)
    network = load_network(config, tmp_path)
    told: list[str] = []
    peer = onnx_runtime(config, tmp_path, network.inputs, 1, told.append)
    assert isinstance(peer, OnnxRuntime)
    assert not told
    assert 0 < peer.seconds(number=3) < 1
    (output,) = peer.outputs()
    assert np.allclose(output, network.expected[0], rtol=1e-5)


def test_what_it_cannot_run_is_said_in_one_line(tmp_path: Path) -> None:
    config = replace(_example(tmp_path), name="tiny")
    told: list[str] = []
    assert onnx_runtime(config, tmp_path, {}, 1, told.append) is None
    (line,) = told
    assert line.startswith("ONNX Runtime is not in the table: ")


def test_without_its_packages_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tencost.tune.hosts.ONNX_PACKAGES", ("no_such_package",))
    told: list[str] = []
    assert onnx_runtime(_example(tmp_path), tmp_path, {}, 1, told.append) is None
    assert not told
