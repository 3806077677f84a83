"""Bundles that were changed and hashed again: each is refused with a BundleError, none crashes, hangs or scores.

A process that dies here is the failure that these tests are about.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import xgboost

from tencost.config.parts import FAMILIES
from tencost.errors import BundleError
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.models.manifest import MANIFEST
from tencost.models.neural.weights import read_weights, write_weights
from tencost.models.programs.bundle import BundleInfo, load_bundle, plain_config, save_bundle
from tencost.models.programs.bundle.calibration import Calibration
from tencost.models.programs.ranker import Samples, make_ranker
from tencost.models.trees.booster import load_booster
from tencost.models.trees.ubjson import read_ubjson

SPEC = FeatureSpec(
    name="toy",
    kind="trace",
    columns=tuple(f"c{index}" for index in range(6)),
    options={"max_steps": 4},
)
CONFIGS: dict[str, dict[str, Any]] = {
    "xgb": {"num_rounds": 5, "max_depth": 3, "num_models": 2},
    "tvm_xgb": {"num_rounds": 4},
    "mlp": {"epochs": 1, "hidden": 8, "beside": "summary"},
    "tlp": {"epochs": 1, "hidden": 8, "heads": 2},
    "tvm_mlp": {"epochs": 1},
    "random": {},
    "blend": {"members": [{"family": "xgb", "num_rounds": 3}, {"family": "random"}]},
}
JUNK = [None, 0, -1, 2**70, 1.5, True, "x", [], [1], {}, {"x": [None]}]


def make_samples() -> Samples:
    rng = np.random.default_rng(0)
    blocks = [rng.uniform(0, 3, (1 + index % 4, 6)).astype(np.float32) for index in range(60)]
    label = np.array([np.exp(-block[:, 0].mean()) for block in blocks], np.float32)
    ids = np.array([f"r{index}" for index in range(60)])
    features = Ragged.from_blocks(blocks, 6)
    return Samples(features, label, np.arange(60) // 20, 1e-3 / label.astype(np.float64), ids)


SAMPLES = make_samples()


def save_whole(family: str, folder: Path) -> None:
    """Train a bundle of a family on the made-up samples."""
    config = FAMILIES.load(family).config(family=family, reads=["toy"], **CONFIGS[family])
    ranker = make_ranker(config, SPEC)
    ranker.fit(SAMPLES, SAMPLES, seed=0, log=lambda *_: None)
    info = BundleInfo(
        family=family,
        model_config=plain_config(config),
        feature_spec=SPEC,
        hardware="toy-1c",
        target_kind="llvm",
        label="made up",
        calibration=Calibration(),
        tvm_range=("0.27.0", "0.28.0"),
        dataset="toy",
        dataset_hash="d",
        split="s",
        split_hash="5",
        seed=0,
        device={},
    )
    save_bundle(folder, ranker, info)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A bundle of a family that nobody changed."""
    root = tmp_path_factory.mktemp("whole")

    def make(family: str) -> Path:
        if not (root / family).exists():
            save_whole(family, root / family)
        return root / family

    return make


@pytest.fixture
def copy(whole: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of such a bundle, to change."""

    def make(family: str) -> Path:
        return Path(shutil.copytree(whole(family), tmp_path / family))

    return make


def hash_again(folder: Path) -> None:
    manifest = orjson.loads((folder / MANIFEST).read_bytes())
    manifest["files"] = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != MANIFEST
    }
    (folder / MANIFEST).write_bytes(orjson.dumps(manifest))


def replace_file(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    hash_again(folder)


def patched(content: bytes, name: str, node: int, value: float, tree: int = 0) -> bytes:
    """Overwrite one node's value in a tree's typed array."""
    mark = struct.pack(">cq", b"L", len(name)) + name.encode() + b"[$"
    at = -1
    for _ in range(tree + 1):
        at = content.index(mark, at + 1)
    kind = content[at + len(mark) : at + len(mark) + 1]
    letter = {b"l": "i", b"d": "f", b"U": "B"}[kind]
    place = at + len(mark) + 11 + node * struct.calcsize(letter)
    packed = struct.pack(">" + letter, value)
    return content[:place] + packed + content[place + len(packed) :]


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_whole_bundles_load(family: str, whole: Callable[[str], Path]) -> None:
    assert np.isfinite(load_bundle(whole(family)).ranker.predict(SAMPLES.features)).all()


@pytest.mark.parametrize(
    ("name", "node", "value", "told"),
    [
        ("left_children", 0, 2_000_000_000, "a child is none of the tree's nodes"),
        ("right_children", 0, 2_000_000_000, "a child is none of the tree's nodes"),
        ("left_children", 0, -5, "a child is none of the tree's nodes"),
        ("left_children", 0, -1, "a child is none of the tree's nodes"),
        ("left_children", 0, 0, "a child is none of the tree's nodes"),
        ("left_children", 1, 1, "a child has another parent"),
        ("left_children", 1, 2, "a child has another parent"),
        ("left_children", 0, 2, "it is reached twice"),
        ("split_indices", 0, 2_000_000_000, "it splits on none of 19 columns"),
        ("split_indices", 0, -1, "it splits on none of 19 columns"),
        ("split_indices", 0, 19, "it splits on none of 19 columns"),
        ("split_conditions", 0, np.nan, "a [a-z ]+ is not finite"),
        ("split_conditions", 0, np.inf, "a [a-z ]+ is not finite"),
        ("base_weights", 0, np.nan, "a [a-z ]+ is not finite"),
        ("split_type", 0, 1, "it splits on categories"),
        ("default_left", 0, 7, "default_left is neither 0 nor 1"),
        ("parents", 0, 1, "the root has a parent"),
        ("parents", 1, 2, "a child has another parent"),
    ],
)
def test_a_node_that_cannot_be(
    copy: Callable[[str], Path], name: str, node: int, value: float, told: str
) -> None:
    folder = copy("xgb")
    content = (folder / "model_1.ubj").read_bytes()
    replace_file(folder, "model_1.ubj", patched(content, name, node, value, tree=2))
    with pytest.raises(BundleError, match=rf"model_1\.ubj.*tree 2, node \d+: {told}"):
        load_bundle(folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"SL\x00\x00\x00\x00\x00\x00\x00\x06gbtree", b"SL\x00\x00\x00\x00\x00\x00\x00\x06gbtrex"),
        (b"reg:squarederror", b"reg:squaredlogis"),
        (
            b"\x0bnum_featureSL\x00\x00\x00\x00\x00\x00\x00\x0219",
            b"\x0bnum_featureSL\x00\x00\x00\x00\x00\x00\x00\x0299",
        ),
        (
            b"num_treesSL\x00\x00\x00\x00\x00\x00\x00\x015",
            b"num_treesSL\x00\x00\x00\x00\x00\x00\x00\x019",
        ),
        (b"\x05[0E0]", b"\x05[inf]"),
        (b"categories[$l", b"categories[$L"),
    ],
)
def test_a_model_of_another_kind(copy: Callable[[str], Path], old: bytes, new: bytes) -> None:
    folder = copy("xgb")
    content = (folder / "model_0.ubj").read_bytes()
    assert old in content
    replace_file(folder, "model_0.ubj", content.replace(old, new))
    with pytest.raises(BundleError, match=r"model_0\.ubj"):
        load_bundle(folder)


@pytest.mark.parametrize("family", ["xgb", "tvm_xgb", "mlp", "tlp"])
def test_weights_broken_anywhere_are_refused_or_score(
    family: str, copy: Callable[[str], Path], whole: Callable[[str], Path]
) -> None:
    """Bytes changed and files cut at random, hashed again: a BundleError or finite scores, no crash."""
    folder = copy(family)
    names = [path.name for path in sorted(folder.iterdir()) if path.name != MANIFEST]
    rng = np.random.default_rng(1)
    refused = 0
    for _ in range(150):
        name = names[rng.integers(len(names))]
        content = bytearray((whole(family) / name).read_bytes())
        if rng.integers(5) == 0:
            del content[rng.integers(len(content)) :]
        else:
            for _ in range(rng.integers(1, 4)):
                content[rng.integers(len(content))] = rng.integers(256)
        replace_file(folder, name, bytes(content))
        try:
            scores = load_bundle(folder).scores(SAMPLES.features)
        except BundleError:
            refused += 1
        else:
            assert ((scores > 0) & (scores <= 1)).all()
        shutil.copy(whole(family) / name, folder / name)
    assert refused > 30


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "it ends or breaks at byte 0"),
        (b"{", "it ends or breaks at byte 1"),
        (b"i\x01", "one object"),
        (b"{}{}", "one object that ends at byte 4, not at 2"),
        (b"{" + struct.pack(">cq", b"L", 2**62) + b"a}", "a length of 4611686018427387904"),
        (b"{" + struct.pack(">cq", b"L", -1) + b"a}", "a length of -1"),
        (b"{" + (struct.pack(">cq", b"L", 1) + b"aT") * 2 + b"}", "the key 'a' twice"),
        (b"{" + struct.pack(">cq", b"L", 1) + b"a" + b"[#" * 2 + b"}", "expected 'L'"),
        (b"{" + (struct.pack(">cq", b"L", 1) + b"a{") * 99, "more than 16 levels"),
        (
            b"{" + struct.pack(">cq", b"L", 1) + b"a[$S#" + struct.pack(">cq", b"L", 0) + b"}",
            "an array of type",
        ),
        (
            b"{" + struct.pack(">cq", b"L", 1) + b"a[$D#" + struct.pack(">cq", b"L", 8) + b"0" * 20,
            "64 bytes from",
        ),
        (b"{" + struct.pack(">cq", b"L", 1) + b"\xff", "it ends or breaks"),
        (b"{" + struct.pack(">cq", b"L", 1) + b"aN}", "no value begins with"),
    ],
)
def test_ubjson_is_read_strictly(content: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_ubjson(content)


@pytest.mark.parametrize("version", ["2.1.4", "3.0.5", "4.0.0"])
@pytest.mark.parametrize("family", ["xgb", "tvm_xgb", "blend"])
def test_trees_are_not_scored_by_an_xgboost_that_may_read_other_values(
    whole: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, family: str, version: str
) -> None:
    """XGBoost 2.1.4 and 3.0.5 read another base_score from a file of 3.2 without an error."""
    folder = whole(family)
    monkeypatch.setattr(xgboost, "__version__", version)
    command = re.escape("pip uninstall -y xgboost xgboost-cpu; pip install 'xgboost-cpu>=3.1,<4'")
    with pytest.raises(
        BundleError, match=rf"expected XGBoost >= 3.1 and < 4 .* found {version}.*{command}"
    ):
        load_bundle(folder)


@pytest.mark.parametrize("major", [2, 4])
def test_trees_of_another_major_release_are_refused(
    whole: Callable[[str], Path], tmp_path: Path, major: int
) -> None:
    content = (whole("xgb") / "model_0.ubj").read_bytes()
    head, _, version = content.rpartition(b"version")
    other = version.replace(b"i\x03", b"i" + bytes([major]), 1)
    (tmp_path / "model.ubj").write_bytes(head + b"version" + other)
    with pytest.raises(BundleError, match=rf"for trees of XGBoost {major}, found 3\."):
        load_booster(tmp_path / "model.ubj")


def test_ubjson_is_what_xgboost_says_as_json(whole: Callable[[str], Path]) -> None:
    booster: Any = load_bundle(whole("tvm_xgb")).ranker
    told = orjson.loads(bytes(booster._booster.save_raw("json")))
    found = read_ubjson((whole("tvm_xgb") / "model_0.ubj").read_bytes())
    assert set(found) == set(told)
    for ours, theirs in zip(
        found["learner"]["gradient_booster"]["model"]["trees"],
        told["learner"]["gradient_booster"]["model"]["trees"],
        strict=True,
    ):
        assert set(ours) == set(theirs)
        assert ours["left_children"].tolist() == theirs["left_children"]
        assert ours["tree_param"] == theirs["tree_param"]
        conditions = np.asarray(theirs["split_conditions"], np.float32)
        assert np.array_equal(ours["split_conditions"], conditions)


def _without(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda weights: weights.pop(name)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_without("head1.bias"), r"expected head1\.bias of shape \(8,\) as configured, found none"),
        (lambda w: w.update(more=np.zeros(1)), "expected more of shape none as configured"),
        (lambda w: w.update({"head1.bias": np.zeros((8, 1))}), r"found \(8, 1\)"),
        (
            lambda w: w["rows1.weight"].fill(np.nan),
            r"expected finite weights, rows1\.weight has others",
        ),
        (lambda w: w["rows2.bias"].__setitem__(3, np.inf), r"rows2\.bias has others"),
        (lambda w: [array.fill(0) for array in w.values()], "scores 64 made-up programs alike"),
        (
            lambda w: [array.fill(3e38) for array in w.values()],
            "expected finite scores of made-up programs",
        ),
    ],
)
def test_weights_that_are_not_the_networks(
    copy: Callable[[str], Path], change: Callable[[dict[str, Any]], object], told: str
) -> None:
    folder = copy("mlp")
    weights = read_weights(folder / "network_0.safetensors")
    change(weights)
    write_weights(folder / "network_0.safetensors", weights)
    hash_again(folder)
    with pytest.raises(BundleError, match=told):
        load_bundle(folder)


@pytest.mark.parametrize("family", ["mlp", "tlp", "tvm_mlp"])
def test_every_tensor_is_needed(family: str, copy: Callable[[str], Path]) -> None:
    folder = copy(family)
    for path in folder.glob("*.safetensors"):
        whole = read_weights(path)
        for name in whole:
            write_weights(path, {other: array for other, array in whole.items() if other != name})
            hash_again(folder)
            with pytest.raises(BundleError, match=path.name):
                load_bundle(folder)
        write_weights(path, whole)


def _safetensors(header: Any, body: bytes = b"\0" * 8) -> bytes:
    text = orjson.dumps(header)
    return len(text).to_bytes(8, "little") + text + body


@pytest.mark.parametrize(
    "content",
    [
        b"",
        (2**60).to_bytes(8, "little") + b"{}",
        (2**64 - 1).to_bytes(8, "little") + b"{}",
        _safetensors([]),
        _safetensors({"a": 1}),
        _safetensors({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 4),
        _safetensors({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 12),
        _safetensors({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}}),
        _safetensors({"a": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}}),
        _safetensors({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}),
        _safetensors({"a": {"dtype": "F32", "shape": [2], "data_offsets": ["0", 8]}}),
        _safetensors({"a": {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]}}),
        _safetensors({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}}),
        _safetensors({"a": {"shape": [2], "data_offsets": [0, 8]}}),
        _safetensors(
            {
                "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                "b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            }
        ),
    ],
)
def test_safetensors_that_lie_about_themselves(copy: Callable[[str], Path], content: bytes) -> None:
    folder = copy("mlp")
    replace_file(folder, "network_0.safetensors", content)
    with pytest.raises(BundleError, match=r"network_0\.safetensors"):
        load_bundle(folder)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("xgb", "xgb.json"),
        ("mlp", "network.json"),
        ("blend", "blend.json"),
        ("random", "random.json"),
    ],
)
@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"1", b"null", b"{}", b'{"divisors": 1, "seed": "x"}', b'{"divisors": [null], "seed": null}',
        b'{"divisors": [1, 0], "seed": 1e400}', b'{"divisors": [1, -1], "seed": 36893488147419103232}',
        b'{"divisors": [1, 2, 3], "seed": []}', b'{"divisors": [], "seed": {}}', b'{"divisors": {}, "seed": 1.5}',
        b'{"divisors": [[1], [2]], "seed": false, "x":', b"[" * 100_000,
    ],
)  # fmt: skip
def test_malformed_json(
    family: str, name: str, content: bytes, copy: Callable[[str], Path]
) -> None:
    folder = copy(family)
    replace_file(folder, name, content)
    with pytest.raises(BundleError, match=name.replace(".", r"\.")):
        load_bundle(folder)


@pytest.mark.parametrize("family", ["xgb", "tlp", "blend"])
def test_junk_in_the_manifest(family: str, copy: Callable[[str], Path]) -> None:
    """Any JSON value in any field: a BundleError, or a bundle that scores."""
    folder = copy(family)
    whole = orjson.loads((folder / MANIFEST).read_bytes())
    places: list[tuple[str, ...]] = [(name,) for name in whole]
    for part in ("model_config", "feature_spec", "calibration", "files"):
        places += [(part, name) for name in whole[part]]
    refused = 0
    for place in places:
        for junk in JUNK:
            values = orjson.loads((folder / MANIFEST).read_bytes())
            inside = values
            for name in place[:-1]:
                inside = inside[name]
            if junk == 2**70:
                inside[place[-1]] = orjson.Fragment(b"1180591620717411303424")
            else:
                inside[place[-1]] = junk
            (folder / MANIFEST).write_bytes(orjson.dumps(values))
            try:
                scores = load_bundle(folder, tvm_version="0.27.0").scores(SAMPLES.features)
            except BundleError:
                refused += 1
            else:
                assert ((scores > 0) & (scores <= 1)).all(), (place, junk)
            (folder / MANIFEST).write_bytes(orjson.dumps(whole))
    assert refused > len(places) * len(JUNK) / 2


def test_settings_of_other_sizes_than_the_weights(copy: Callable[[str], Path]) -> None:
    folder = copy("tlp")
    values = orjson.loads((folder / MANIFEST).read_bytes())
    for name, value in (
        ("hidden", 16),
        ("layers", 10**9),
        ("num_models", 10**9),
        ("hidden", 10**12),
    ):
        changed = {**values, "model_config": {**values["model_config"], name: value}}
        (folder / MANIFEST).write_bytes(orjson.dumps(changed))
        with pytest.raises(BundleError, match="as configured"):
            load_bundle(folder)


def test_a_calibration_that_flattens_everything(copy: Callable[[str], Path]) -> None:
    folder = copy("random")
    values = orjson.loads((folder / MANIFEST).read_bytes())
    values["calibration"] = {"center": 1e300, "scale": 1e-300}
    (folder / MANIFEST).write_bytes(orjson.dumps(values))
    with pytest.raises(BundleError, match="made-up programs alike"):
        load_bundle(folder)
