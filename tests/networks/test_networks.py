from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from tencost.config import NetworkConfig, NetworkInput
from tencost.config.composition import compose
from tencost.errors import ConfigError, TuneError
from tencost.networks.network import Network, load_network, variant_name
from tencost.networks.sources.saved import save_network
from tencost.tune.deploy import (
    OutputAgreement,
    compare_outputs,
    compile_network,
    output_agreement,
    worst,
)
from tencost.tune.hosts import Deployed

pytestmark = pytest.mark.tvm


def tiny_bert(**changes: Any) -> NetworkConfig:
    values: dict[str, Any] = {
        "name": "tiny",
        "architecture": "BertModel",
        "config_class": "BertConfig",
        "config": {
            "num_hidden_layers": 1,
            "hidden_size": 16,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "vocab_size": 50,
            "attn_implementation": "eager",
        },
        "inputs": {"input_ids": NetworkInput(shape=[1, 8], dtype="int64", high=50)},
    }
    return NetworkConfig(**{**values, **changes})


@pytest.fixture(scope="module")
def network() -> Network:
    return load_network(tiny_bert())


def test_tasks_are_sorted_and_filtered(network: Network, target: dict[str, Any]) -> None:
    every = network.tasks(target)
    assert len(every) > 5
    costs = [task.flop * task.weight for task in every]
    assert costs == sorted(costs, reverse=True)
    some = network.tasks(target, min_mflop=0.005)
    assert 0 < len(some) < len(every)
    assert all(task.flop >= 5e3 for task in some)


def test_the_compiled_network_computes_what_pytorch_does(
    network: Network, target: dict[str, Any]
) -> None:
    deployed = Deployed(compile_network(network, target, None), network)
    outputs = deployed.outputs()
    assert deployed.seconds() > 0
    assert [output.shape for output in outputs] == [(1, 8, 16), (1, 16)]
    for found, expected in zip(outputs, network.expected, strict=True):
        assert output_agreement(found, expected).accepted


def test_a_saved_network_is_the_same_one_without_pytorch(
    network: Network, target: dict[str, Any], tmp_path: Path
) -> None:
    save_network(network, tmp_path / "tiny.npz")
    saved = NetworkConfig(name="tiny", source="saved", path="tiny.npz", output="")
    found = load_network(saved, tmp_path)
    assert tvm_ffi.structural_equal(found.mod, network.mod)
    assert found.outputs == network.outputs == ["last_hidden_state", "pooler_output"]
    outputs = Deployed(compile_network(found, target, None), found).outputs()
    for output, expected in zip(outputs, network.expected, strict=True):
        assert output_agreement(output, expected).accepted
    assert load_network(replace(saved, output="pooler_output"), tmp_path).output == 1


def test_same_seed_same_network(network: Network) -> None:
    again, other = (load_network(tiny_bert(seed=seed, output="pooler_output")) for seed in (0, 1))
    np.testing.assert_array_equal(network.expected[0], again.expected[0])
    assert not np.array_equal(network.expected[0], other.expected[0])
    assert (network.output, again.output) == (0, 1), "the other one is chosen by its name"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "NoSuchModel"}, "has no NoSuchModel"),
        ({"config": {"hidden_size": 16, "num_attention_heads": 3}}, "refuses its configuration"),
        ({"output": "logits"}, "must be one of last_hidden_state, pooler_output; found 'logits'"),
        ({"inputs": {}}, "has no inputs"),
        ({"architecture": ""}, "expected network.architecture, for example BertModel; found none"),
        ({"config_class": ""}, "expected network.config_class, for example BertConfig; found none"),
        ({"path": "bert.onnx"}, "reads no file, found network.path=bert.onnx. Use network=onnx"),
        ({"inputs": {"input_ids": NetworkInput(shape=[1, 8], dtype="int8")}}, "float32 or int64"),
        (
            {"inputs": {"pixel_values": NetworkInput(shape=[1, 8])}},
            "does not run on its configured inputs",
        ),
    ],
)
def test_mistakes_in_a_definition_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_network(tiny_bert(**change))


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, "tiny"),
        ({"batch": 4}, "tiny-b4"),
        ({"size": 128}, "tiny-s128"),
        ({"size": 128, "default_size": 128}, "tiny"),
        ({"batch": 2, "size": 64, "default_size": 128}, "tiny-b2-s64"),
        ({"default_size": 128}, "tiny"),
        ({"pack_weights": False}, "tiny-unpacked"),
    ],
)
def test_variants_have_names_of_their_own(values: dict[str, Any], name: str) -> None:
    assert variant_name(tiny_bert(**values)) == name


def test_batch_and_size_are_checked() -> None:
    for values in ({"batch": 0}, {"size": -1}):
        with pytest.raises(ConfigError, match="must be at least"):
            tiny_bert(**values)


@pytest.mark.parametrize("choice", ["onnx", "torch_export"])
def test_a_network_of_a_file_is_named_after_it(choice: str) -> None:
    path = "my nets/Mobile Net (v2).x"
    overrides = [f"network={choice}", f"network.path='{path}'", "network.inputs.x.shape=[1,3]"]
    config, _ = compose(overrides)
    assert config.network.source == choice
    assert config.network.name == "Mobile_Net_v2_"
    assert config.network.inputs == {"x": NetworkInput(shape=[1, 3])}
    named, _ = compose([*overrides, "network.name=mine", "network.batch=2"])
    assert variant_name(named.network) == "mine-b2"


def test_a_wrong_output_is_an_error(network: Network) -> None:
    expected = network.expected[0]
    near = output_agreement(expected + np.float32(1e-6), expected)
    assert near.accepted
    for wrong in (expected + 0.01, np.full_like(expected, np.nan)):
        assert not output_agreement(wrong, expected).accepted
    with pytest.raises(TuneError, match="expected an output of shape"):
        output_agreement(expected[:, :2], expected)
    assert not OutputAgreement(max_abs=1e-6, max_rel=1e-3).accepted
    assert OutputAgreement(max_abs=1e-6, max_rel=0.9e-4).accepted
    assert OutputAgreement(max_abs=1e-6, max_rel=1.1e-4).differs, "a ten-thousandth is accepted"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda x: x * 0, "all zeros"),
        (lambda x: x * 3e-27, "at most 2e-26"),
        (lambda x: np.full_like(x, 2.5), "2.5 throughout"),
        (lambda x: 100 + x * 1e-7, "100 throughout"),
        (lambda x: x * np.nan, "not finite"),
        (lambda x: np.where(x > 0, -np.inf, np.inf), "not finite"),
        (lambda x: np.where(x > 0, -np.inf, 0), "all zeros"),
        (lambda x: x > 9, "all zeros"),
    ],
)
def test_an_output_that_says_nothing_is_not_called_equal(make: Any, why: str) -> None:
    x = np.random.default_rng(0).standard_normal((4, 8)) * 3
    expected = make(x)
    same = output_agreement(expected.copy(), expected)
    assert (same.max_abs, same.max_rel) == (0.0, 0.0)
    assert same.degenerate == why
    assert not same.accepted
    assert not same.differs, "nor is it called wrong"
    finite = np.where(np.isfinite(expected), expected, 0)
    other = (finite + np.ones(())).astype(expected.dtype)
    assert output_agreement(other, expected).differs, "something else is wrong all the same"
    assert output_agreement(np.full(x.shape, np.nan), np.zeros(x.shape)).differs


@pytest.mark.parametrize(
    "expected", [np.array([0.3]), np.array([7]), np.array([True, False]), np.eye(3) * 1e-5]
)
def test_an_output_that_says_something_is(expected: Any) -> None:
    assert output_agreement(expected.copy(), expected).accepted


def test_what_is_not_finite_has_to_agree_in_place_and_sign() -> None:
    expected = np.array([1.0, np.inf, -np.inf, np.nan, 2.0])
    assert output_agreement(expected.copy(), expected).accepted
    for place, value in [(1, -np.inf), (1, 3e38), (2, np.nan), (3, 0.0), (0, np.inf), (4, np.nan)]:
        found = expected.copy()
        found[place] = value
        assert output_agreement(found, expected).differs, (place, value)


def test_an_output_of_another_type_is_an_error(network: Network) -> None:
    outputs = [*network.expected[:1], network.expected[1].astype(np.float64)]
    with pytest.raises(TuneError, match="output pooler_output: expected an output of float32"):
        compare_outputs(network, outputs)


def test_all_outputs_are_compared(network: Network) -> None:
    assert network.compared == {"last_hidden_state": 0, "pooler_output": 1}
    chosen = load_network(tiny_bert(output="pooler_output"))
    assert list(chosen.compared.items()) == [("pooler_output", 1), ("last_hidden_state", 0)]
    outputs = [output.copy() for output in network.expected]
    assert all(one.accepted for one in compare_outputs(network, outputs).values())
    outputs[1][0, 3] += 0.01
    compared = compare_outputs(network, outputs)
    assert compared["last_hidden_state"].accepted
    assert worst(compared) == ("pooler_output", compared["pooler_output"])
    assert worst(compared)[1].differs
    outputs[0][:] = np.nan
    assert worst(compare_outputs(network, outputs))[1].max_abs != 0
    assert np.isnan(worst(compare_outputs(network, outputs))[1].max_rel)
