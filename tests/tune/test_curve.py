from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tencost.errors import TuneError
from tencost.tune import curve
from tencost.tune.curve import CurvePoint, append_point, plot_curve, read_points

GOLDEN = Path(__file__).parent / "golden" / "tuning_curve.csv"
POINTS = [
    CurvePoint(trials=0, total_latency_s=0.0471),
    CurvePoint(
        trials=16,
        total_latency_s=0.0213,
        task="fused_matmul_add2",
        task_latency_s=0.00021,
        spearman=-0.25,
        elapsed_s=9.8,
        model="models:/tencost-local/1",
    ),
    CurvePoint(
        trials=32, total_latency_s=0.0113, task="matmul", failed=16, elapsed_s=12.0, model="scratch"
    ),
]


def test_the_stored_format_has_not_changed(tmp_path: Path) -> None:
    for point in POINTS:
        append_point(tmp_path / "curve.csv", point)
    assert (tmp_path / "curve.csv").read_bytes() == GOLDEN.read_bytes()
    assert read_points(GOLDEN) == POINTS


@given(
    st.builds(
        CurvePoint,
        trials=st.integers(0, 10**6),
        total_latency_s=st.floats(0, 1e3, allow_nan=False),
        task=st.text(st.characters(categories=("L", "N"), include_characters='_,"')),
        task_latency_s=st.none() | st.floats(0, 1e3),
        spearman=st.none() | st.floats(-1, 1),
    )
)
def test_points_round_trip(tmp_path_factory: pytest.TempPathFactory, point: CurvePoint) -> None:
    path = tmp_path_factory.mktemp("curve") / "curve.csv"
    append_point(path, point)
    assert read_points(path) == [point]


def test_no_file_no_points(tmp_path: Path) -> None:
    assert read_points(tmp_path / "none.csv") == []


def test_a_half_written_last_row_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    path.write_text(GOLDEN.read_text() + "48,0.01,mat")
    assert read_points(path) == POINTS


def test_other_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "curve.csv").write_text("a,b\n1,2\n")
    with pytest.raises(TuneError, match="expected the columns trials"):
        read_points(tmp_path / "curve.csv")


@pytest.mark.parametrize("row", [b"two,0.1,,,0,,0.0,m\n", b"2,0.1,,,0,,0.0,\xff\n"])
def test_a_damaged_row_is_refused_by_its_file(tmp_path: Path, row: bytes) -> None:
    path = tmp_path / "curve.csv"
    append_point(path, CurvePoint(trials=0, total_latency_s=1.0))
    path.write_bytes(path.read_bytes() + row)
    with pytest.raises(TuneError, match=r"curve\.csv.*Move the file away"):
        read_points(path)


def test_it_is_drawn(tmp_path: Path) -> None:
    assert plot_curve(POINTS, tmp_path / "curve.png", "title")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["curve.png"]


@pytest.mark.parametrize("least_ms", [7.7, 0.77])
def test_its_latencies_can_be_read(least_ms: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As plain numbers: a logarithmic axis over 3 % has products with powers of ten, one over the other."""
    figure = Figure()
    FigureCanvasAgg(figure)
    monkeypatch.setattr(curve, "draw_chart", lambda _path, _size, draw: draw(figure))
    points = [
        CurvePoint(trials=0, total_latency_s=0.0079),
        CurvePoint(trials=16, total_latency_s=least_ms / 1e3),
    ]
    plot_curve(points, Path("unused"), "title")
    figure.canvas.draw()
    axis = figure.axes[0].yaxis
    low, high = axis.get_view_interval()
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    told = [tick.label1.get_text() for tick in ticks if low <= tick.get_loc() <= high]
    numbers = [float(text) for text in told if text]
    assert len(numbers) >= 3
    assert all(low <= number <= high for number in numbers)
