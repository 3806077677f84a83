from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from tencost.config import Pool
from tencost.errors import BundleError
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FEATURE_ABI, FeatureSpec
from tencost.models.manifest import MANIFEST
from tencost.models.programs.bundle import (
    BundleInfo,
    load_bundle,
    plain_config,
    read_info,
    save_bundle,
    version_in_range,
)
from tencost.models.programs.bundle.calibration import Calibration
from tencost.models.programs.families.random import RandomConfig
from tencost.models.programs.families.xgb import XgbConfig
from tencost.models.programs.ranker import make_ranker

GOLDEN = Path(__file__).parent / "golden" / "bundle"
SPEC = FeatureSpec(name="toy", kind="trace", columns=("speed", "noise"))
FEATURES = Ragged.from_blocks([np.full((2, 2), index, np.float32) for index in range(5)], 2)


def make_info(**changes: Any) -> BundleInfo:
    values: dict[str, Any] = {
        "family": "random",
        "model_config": plain_config(RandomConfig(family="random", reads=["toy"])),
        "feature_spec": SPEC,
        "hardware": "toy-1c",
        "target_kind": "llvm",
        "label": "fastest / latency",
        "calibration": Calibration(center=0.5, scale=0.1),
        "tvm_range": ("0.27.0", "0.28.0"),
        "dataset": "toy",
        "dataset_hash": "d" * 32,
        "split": "by_task",
        "split_hash": "5" * 32,
        "seed": 7,
    }
    return BundleInfo(**{**values, **changes})


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    ranker = make_ranker(RandomConfig(family="random"), SPEC)
    save_bundle(tmp_path / "bundle", ranker, make_info())
    return tmp_path / "bundle"


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = orjson.loads((folder / MANIFEST).read_bytes())
    change(values)
    (folder / MANIFEST).write_bytes(orjson.dumps(values))


@pytest.mark.parametrize("name", ["bundle", "bundle-with-commit"])
def test_golden_bundle_is_read(name: str) -> None:
    """Also one made when commit and time stood in the manifest."""
    loaded = load_bundle(GOLDEN.with_name(name), target_kind="llvm", tvm_version="0.27.0.post1")
    info = loaded.info
    assert info.calibration == Calibration(center=0.25, scale=2.0)
    assert info.feature_spec.device_columns == ("device_log2_cores",)
    assert info.device == {"device_log2_cores": 1.0}
    assert info.tvm_range == ("0.27.0", "0.28.0")
    three = Ragged(np.zeros((1, 3), np.float32), np.array([0, 1]))
    assert 0 < loaded.scores(three)[0] <= 1


def test_golden_bundle_is_what_is_written(tmp_path: Path) -> None:
    golden = load_bundle(GOLDEN)
    save_bundle(tmp_path / "again", golden.ranker, golden.info)
    for path in GOLDEN.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


def test_round_trip(bundle: Path) -> None:
    loaded = load_bundle(bundle, target_kind="llvm", tvm_version="0.27.3")
    assert loaded.info == make_info(files=loaded.info.files)
    assert set(loaded.info.files) == {"random.json"}
    assert loaded.info == read_info(bundle)


def test_saving_replaces_an_older_bundle_and_leaves_nothing_beside_it(bundle: Path) -> None:
    save_bundle(bundle, make_ranker(RandomConfig(family="random"), SPEC), make_info(seed=8))
    assert read_info(bundle).seed == 8
    assert [path.name for path in bundle.parent.iterdir()] == ["bundle"]


def test_a_save_that_fails_leaves_the_older_bundle(bundle: Path) -> None:
    class Failing:
        def save(self, folder: Path) -> None:
            (folder / "half.json").write_bytes(b"{}")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        save_bundle(bundle, Failing(), make_info())
    load_bundle(bundle)
    assert [path.name for path in bundle.parent.iterdir()] == ["bundle"]


def test_model_configuration_round_trips(tmp_path: Path) -> None:
    config = XgbConfig(family="xgb", reads=["toy"], pool=Pool.all)
    assert orjson.loads(orjson.dumps(plain_config(config)))["pool"] == "all"


def test_other_number_of_columns(bundle: Path) -> None:
    three = Ragged(np.zeros((1, 3), np.float32), np.array([0, 1]))
    with pytest.raises(BundleError, match=r"expected 2 feature columns \(toy\), found 3"):
        load_bundle(bundle).scores(three)


def test_other_target_kind(bundle: Path) -> None:
    with pytest.raises(BundleError, match="target kind 'llvm', found target kind 'cuda'"):
        load_bundle(bundle, target_kind="cuda")


@pytest.mark.parametrize("version", ["0.26.9", "0.28.0", "1.0", "0.28.0.post1"])
def test_other_tvm(bundle: Path, version: str) -> None:
    with pytest.raises(
        BundleError, match=rf"expected TVM >= 0\.27\.0 and < 0\.28\.0, found {version}"
    ):
        load_bundle(bundle, tvm_version=version)


def test_version_ranges() -> None:
    bounds = ("0.27.0", "0.28.0")
    assert all(
        version_in_range(version, bounds) for version in ("0.27", "0.27.0.post1", "v0.27.9+cpu")
    )
    assert not version_in_range("0.9.0", bounds)
    with pytest.raises(BundleError, match="expected a version such as"):
        version_in_range("unknown", bounds)


def test_other_feature_abi(bundle: Path) -> None:
    rewrite(bundle, lambda values: values["feature_spec"].update(abi=FEATURE_ABI + 1))
    with pytest.raises(BundleError, match=f"feature ABI {FEATURE_ABI + 1} does not fit"):
        load_bundle(bundle)


def test_unknown_format_version(bundle: Path) -> None:
    rewrite(bundle, lambda values: values.update(format_version=99))
    with pytest.raises(BundleError, match="expected format_version 1, found 99"):
        load_bundle(bundle)


@pytest.mark.parametrize("content", [b"", b"{", b"not json", b"\x80\x04."])
def test_manifest_is_not_json(bundle: Path, content: bytes) -> None:
    (bundle / MANIFEST).write_bytes(content)
    with pytest.raises(BundleError, match=r"bundle\.json is not JSON"):
        load_bundle(bundle)


@pytest.mark.parametrize("content", [b"[]", b"1", b'"x"', b"{}"])
def test_manifest_is_something_else(bundle: Path, content: bytes) -> None:
    (bundle / MANIFEST).write_bytes(content)
    with pytest.raises(BundleError, match="expected format_version 1, found None"):
        load_bundle(bundle)


@pytest.mark.parametrize("name", ["family", "feature_spec", "calibration", "files", "tvm_range"])
def test_manifest_lacks_a_field(bundle: Path, name: str) -> None:
    rewrite(bundle, lambda values: values.pop(name))
    if name == "files":  # then the weights are files that nobody listed
        with pytest.raises(BundleError, match=r"unexpected file random\.json"):
            load_bundle(bundle)
    else:
        with pytest.raises(BundleError, match=r"lacks or misspells a field"):
            load_bundle(bundle)


def test_manifest_has_a_field_that_nobody_knows(bundle: Path) -> None:
    rewrite(bundle, lambda values: values.update(surprise=1))
    with pytest.raises(BundleError, match=r"lacks or misspells a field: .*surprise"):
        load_bundle(bundle)


def test_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"expected bundle\.json, found none"):
        load_bundle(tmp_path)


def test_unknown_family(bundle: Path) -> None:
    rewrite(bundle, lambda values: values.update(family="oracle"))
    with pytest.raises(BundleError, match=r"expected a family of .*, found 'oracle'"):
        load_bundle(bundle)


@pytest.mark.parametrize("change", [{"depth": 3}, {"pool": "none"}])
def test_model_configuration_of_another_release(bundle: Path, change: dict[str, Any]) -> None:
    rewrite(bundle, lambda values: values["model_config"].update(change))
    with pytest.raises(BundleError, match="model_config does not fit this tencost"):
        load_bundle(bundle)


def test_tampered_weights(bundle: Path) -> None:
    path = bundle / "random.json"
    content = bytearray(path.read_bytes())
    for position in range(len(content)):
        broken = bytearray(content)
        broken[position] ^= 1
        path.write_bytes(bytes(broken))
        with pytest.raises(BundleError, match=r"random\.json was changed after training"):
            load_bundle(bundle)


def test_missing_weights(bundle: Path) -> None:
    (bundle / "random.json").unlink()
    with pytest.raises(BundleError, match=r"expected the file random\.json, found none"):
        load_bundle(bundle)


def test_unexpected_file(bundle: Path) -> None:
    (bundle / "extra.json").write_bytes(b"{}")
    with pytest.raises(BundleError, match=r"unexpected file extra\.json"):
        load_bundle(bundle)


def test_unexpected_folder_and_link(bundle: Path, tmp_path: Path) -> None:
    (bundle / "inside").mkdir()
    with pytest.raises(BundleError, match="'inside' is not a plain file"):
        load_bundle(bundle)
    (bundle / "inside").rmdir()
    (bundle / "random.json").rename(tmp_path / "elsewhere.json")
    (bundle / "random.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(BundleError, match=r"'random\.json' is not a plain file"):
        load_bundle(bundle)


@pytest.mark.parametrize("name", ["../outside.json", "/etc/passwd", "a/b.json"])
def test_a_listed_path_that_leaves_the_folder(bundle: Path, name: str) -> None:
    rewrite(bundle, lambda values: values["files"].update({name: "0" * 64}))
    with pytest.raises(BundleError, match="is not a plain file in the bundle's folder"):
        load_bundle(bundle)


def _zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", pickle.dumps([1]))


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("model.pkl", lambda path: path.write_bytes(b"anything")),
        ("model.bin", lambda path: path.write_bytes(b"anything")),
        ("model.json", lambda path: path.write_bytes(pickle.dumps({"a": 1}, protocol=4))),
        ("model.ubj", lambda path: path.write_bytes(pickle.dumps([1], protocol=2))),
        ("model.safetensors", lambda path: path.write_bytes(pickle.dumps([1], protocol=5))),
        ("model.onnx", _zipped),
        ("model.pt", _zipped),
        ("array.npy", lambda path: np.save(path, np.array([{}], dtype=object))),
    ],
)
def test_pickles_are_refused_whatever_their_name(
    bundle: Path, name: str, write: Callable[[Path], object], listed: bool
) -> None:
    write(bundle / name)
    if listed:
        rewrite(bundle, lambda values: values["files"].update({name: "0" * 64}))
    with pytest.raises(BundleError, match=rf"{name} is a pickle or may hold one"):
        load_bundle(bundle)


def test_a_long_safetensors_header_is_no_pickle(bundle: Path) -> None:
    """The header's length may begin with the two bytes that a pickle begins with."""
    path = bundle / "weights.safetensors"
    path.write_bytes((0x0480).to_bytes(8, "little") + b"{" + b" " * 0x0480)
    with pytest.raises(BundleError, match=r"unexpected file weights\.safetensors"):
        load_bundle(bundle)


def test_other_suffixes_are_refused(bundle: Path) -> None:
    (bundle / "run.py").write_text("print(1)")
    rewrite(bundle, lambda values: values["files"].update({"run.py": "0" * 64}))
    with pytest.raises(BundleError, match=r"run\.py: weights must be"):
        load_bundle(bundle)
