from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tencost.errors import BundleError
from tencost.models.neural.weights import read_weights, write_weights

GOLDEN = Path(__file__).parent / "golden" / "weights.safetensors"
GOLDEN_VALUES = {
    "bias": np.array([0.5], np.float32),
    "layer": np.array([[1.0, -2.0], [3.0, 4.5]], np.float32),
}


def test_golden_file() -> None:
    found = read_weights(GOLDEN)
    assert sorted(found) == sorted(GOLDEN_VALUES)
    for name, array in GOLDEN_VALUES.items():
        assert np.array_equal(found[name], array)


def test_written_bytes_do_not_change(tmp_path: Path) -> None:
    write_weights(tmp_path / "w.safetensors", GOLDEN_VALUES)
    assert (tmp_path / "w.safetensors").read_bytes() == GOLDEN.read_bytes()


def test_the_reference_library_reads_ours_and_we_read_its(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    theirs = safetensors.load_file(str(GOLDEN))
    assert all(np.array_equal(theirs[name], array) for name, array in GOLDEN_VALUES.items())
    safetensors.save_file(GOLDEN_VALUES, str(tmp_path / "w.safetensors"), metadata={"by": "them"})
    ours = read_weights(tmp_path / "w.safetensors")
    assert all(np.array_equal(ours[name], array) for name, array in GOLDEN_VALUES.items())


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1).filter(
            lambda name: name != "__metadata__"
        ),
        arrays(np.float32, st.lists(st.integers(0, 4), max_size=3).map(tuple)),
        max_size=4,
    )
)
def test_round_trip(weights: dict[str, np.ndarray]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w.safetensors"
        write_weights(path, weights)
        found = read_weights(path)
    assert sorted(found) == sorted(weights)
    for name, array in weights.items():
        assert found[name].shape == array.shape
        assert np.array_equal(found[name], array, equal_nan=True)


def test_a_file_broken_anywhere_is_refused_or_reads_as_arrays(tmp_path: Path) -> None:
    content = GOLDEN.read_bytes()
    path = tmp_path / "w.safetensors"
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(BundleError, match=r"w\.safetensors"):
            read_weights(path)


def test_other_types_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(GOLDEN.read_bytes().replace(b'"F32"', b'"I32"'))
    with pytest.raises(BundleError, match="expected float32 weights, bias is I32"):
        read_weights(path)
