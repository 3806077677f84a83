"""measure networks --listed: TenSet's networks, and lists that say something wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tencost.config.composition import compose
from tencost.errors import ConfigError, MeasureError
from tencost.measure.network_list import listed_networks
from tencost.measure.stage import collect_networks
from tencost.networks.network import variant_name

TENSET = {
    "resnet_18": 9, "resnet_50": 9, "mobilenet_v2": 9, "mobilenet_v3": 9, "wide_resnet_50": 9, "resnext_50": 9,
    "inception_v3": 3, "densenet_121": 9, "resnet3d_18": 9, "dcgan": 9,
    "bert_tiny_512": 9, "bert_base": 9, "bert_medium": 9, "bert_large": 9,
}  # fmt: skip
"""Network -> how many of TenSet's 120 (build_network_keys) it has."""


def test_tenset_has_120_networks() -> None:
    config, _ = compose(["measure=tenset"])
    definitions = list(listed_networks(config.measure.networks))
    assert Counter(definition.name for definition in definitions) == TENSET
    by_name = {variant_name(definition): definition for definition in definitions}
    assert len(by_name) == 120
    shapes = {
        "resnext_50-b8-s256-nhwc": [8, 3, 256, 256],
        "inception_v3-b4-nhwc": [4, 3, 299, 299],
        "resnet3d_18-b2-s144-nhwc": [2, 3, 144, 144, 16],
        "dcgan-b8-s96": [8, 100],
        "bert_large-b4-s64": [4, 64],
    }
    for name, shape in shapes.items():
        assert [item.shape for item in by_name[name].inputs.values()] == [shape]
    large = by_name["bert_large-b4-s64"].config
    assert [large[key] for key in ("hidden_size", "num_attention_heads")] == [1024, 16]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "expected a list of networks for --listed, found none. Choose one: measure=tenset"),
        ([{"batch": 2}], r"networks\[0\]: expected network, .* found only batch"),
        ([{"network": "resnet_19"}], "resnet_18"),
        ([{"network": "bert_tiny", "batches": [1, 2]}], "batches"),
    ],
)
def test_a_wrong_list_is_refused(entries: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list(listed_networks(entries))


@pytest.mark.tvm
def test_a_list_goes_on_where_it_was(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config, _ = compose(["hardware=local", "measure.name=small"])
    entries = [{"network": "bert_tiny", "size": [8, 16]}]
    config = replace(config, measure=replace(config.measure, networks=entries[:]))
    collect_networks(config, tmp_path, listed=True, dry_run=True)
    assert (
        capfd.readouterr().out
        == "bert_tiny-s8: input_ids [1, 8]\nbert_tiny-s16: input_ids [1, 16]\n"
    )
    folder = collect_networks(replace(config, network=next(listed_networks(entries))), tmp_path)
    assert [path.stem for path in (folder / "network_info").glob("*.json")] == ["bert_tiny-s8"]
    capfd.readouterr()
    collect_networks(config, tmp_path, listed=True)
    printed = capfd.readouterr().err
    assert "bert_tiny-s16: " in printed
    assert "bert_tiny-s8: " not in printed
    assert "1 networks of the list are in the collection by name and stay as they were" in printed
    collect_networks(config, tmp_path, listed=True)
    assert "tasks" not in capfd.readouterr().err


@pytest.mark.tvm
def test_a_network_that_cannot_be_imported_does_not_end_a_list(tmp_path: Path) -> None:
    config, _ = compose(["hardware=local", "measure.name=small"])
    entries = [
        {"network": "bert_tiny", "size": 8, "name": "few_words", "config.vocab_size": 2},
        {"network": "bert_tiny", "size": 8},
    ]
    config = replace(config, measure=replace(config.measure, networks=entries))
    with pytest.raises(
        MeasureError, match=r"(?s)found 1 that cannot; .*few_words-s8: .*index out of range"
    ):
        collect_networks(config, tmp_path, listed=True)
    written = tmp_path.rglob("network_info/*.json")
    assert [path.stem for path in written] == ["bert_tiny-s8"]


def test_networks_as_they_are_compiled_have_names_of_their_own() -> None:
    config, _ = compose(["measure=compiled"])
    names = [variant_name(definition) for definition in listed_networks(config.measure.networks)]
    assert len(names) == len(set(names))
    assert {"resnet_18-b8-s160", "bert_base-s16", "dlrm-b4096"} <= set(names)
