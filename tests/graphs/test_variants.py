"""Variants to measure: many, distinct, the same everywhere, and each a network that can be exported."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from tencost.config import NetworkConfig
from tencost.config.composition import compose
from tencost.errors import ConfigError
from tencost.networks.graph.canonical import canonical_network
from tencost.networks.graph.operators import OPERATORS
from tencost.networks.variants.builders import BUILDERS
from tencost.networks.variants.variants import (
    Variant,
    defined_variants,
    scaled_definition,
    standard_variants,
)

pytest.importorskip("torch")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def variants() -> list[Variant]:
    return standard_variants(compose)


def test_there_are_some_five_hundred_of_many_families_all_distinct(variants: list[Variant]) -> None:
    families = Counter(variant.family for variant in variants)
    assert len(variants) > 480
    assert len(families) == 18
    assert min(families.values()) >= 8
    assert len({variant.name for variant in variants}) == len(variants)
    assert len({json.dumps(variant.definition) for variant in variants}) == len(variants)


def test_the_list_is_the_same_each_time_and_begins_with_every_family(
    variants: list[Variant],
) -> None:
    assert standard_variants(compose) == variants
    assert len({variant.family for variant in variants[:18]}) == 18


def test_a_definition_survives_json(variants: list[Variant]) -> None:
    for variant in variants:
        assert json.loads(json.dumps(variant.definition)) == variant.definition


def test_the_first_variant_is_the_definition_itself() -> None:
    base = compose(["network=resnet_18"])[0].network
    first, second = defined_variants(base, 2, (96, 128))
    assert (first.name, second.name) == ("resnet_18-000", "resnet_18-001")
    assert first.definition["network"]["config"] == base.config
    assert second.definition["network"]["config"] != base.config


def test_widths_depths_and_size_are_scaled() -> None:
    base = compose(["network=resnet_50"])[0].network
    found = scaled_definition(base, 0.5, 0.5, 96)
    assert found.config["hidden_sizes"] == [128, 256, 512, 1024]
    assert found.config["depths"] == [2, 2, 3, 2]
    assert found.inputs["pixel_values"].shape == [1, 3, 96, 96]
    assert base.config["hidden_sizes"] == [256, 512, 1024, 2048]
    wide = scaled_definition(compose(["network=vit_s"])[0].network, 1.4, 2, 128)
    assert wide.config["hidden_size"] == 64 * wide.config["num_attention_heads"]
    assert wide.config["image_size"] == 128


def test_a_network_that_is_no_definition_has_no_variants() -> None:
    with pytest.raises(ConfigError, match="expected a transformers definition"):
        defined_variants(NetworkConfig(name="mine", source="onnx", path="mine.onnx"), 3, (96,))


@pytest.mark.parametrize("name", BUILDERS)
def test_a_built_network_has_only_operators_of_cg(name: str) -> None:
    definition = {"builder": name, "channels": [8, 12], "blocks": [1, 2], "kernel": 3, "size": 32}
    model = Variant(name, name, definition).to_onnx()
    found = canonical_network(model, name=name)
    assert found.foreign == {}
    words = Counter(OPERATORS[code] for code in found.graphs.operator)
    assert words["Placeholder"] == words["Mean"] == words["Reshape"] - 2 * words["Pack"] // 2 == 1
    assert words["Conv2D"] > 2


@pytest.mark.slow
def test_a_variant_of_every_family_is_exported(variants: list[Variant]) -> None:
    rng = np.random.default_rng(0)
    for family in sorted({variant.family for variant in variants}):
        chosen = [variant for variant in variants if variant.family == family]
        one = chosen[int(rng.integers(1, len(chosen)))]
        found = canonical_network(one.to_onnx(), name=one.name, family=family)
        assert found.other == {}, one.name
        assert len(found.graphs.operator) > 10
