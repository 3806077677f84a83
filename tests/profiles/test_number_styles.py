"""Nsight Compute's numbers in the styles of many locales: read in one way, or refused with both readings."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import exports
import numpy as np
import pytest

from tencost.errors import ProfileError
from tencost.records.counters.cells import number, numbers
from tencost.records.counters.launches import Reject
from tencost.records.counters.reading import ReadProfiles, read_files

PCT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
RATE = "dram__bytes.sum.per_second"
STYLES = {
    "english": (",", "."),
    "german": (".", ","),
    "space": (" ", ","),
    "nbsp": ("\xa0", ","),
    "narrow": ("\u202f", ","),
    "swiss": ("\u2019", "."),
    "apostrophe": ("'", ","),
    "plain point": ("", "."),
    "plain comma": ("", ","),
}
"""Name -> mark between thousands, decimal mark."""
LAUNCHES = (
    {exports.TIME: 211_968, "dram__bytes_read.sum": 48_234_496, PCT: 71.25, RATE: 1536.5},
    {exports.TIME: 9_728, "dram__bytes_read.sum": 1_048_576, PCT: 5.5, RATE: 12.75},
)
UNITS = {exports.TIME: "ns", "dram__bytes_read.sum": "byte", PCT: "%", RATE: "Mbyte/s"}


def styled(value: float, group: str, decimal: str) -> str:
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
    return "".join({",": group, ".": decimal}.get(sign, sign) for sign in text)


def export(layout: str, style: str, separator: str, units: dict[str, str] = UNITS) -> str:
    cells = [{name: styled(row[name], *STYLES[style]) for name in units} for row in LAUNCHES]
    if layout == "wide":
        rows = [(exports.who(place, f"k{place}"), row) for place, row in enumerate(cells)]
        return exports.wide(rows, units, separator=separator)
    launches = [
        (place, f"k{place}", {("Command line profiler metrics", name): (units[name], cell)})
        for place, row in enumerate(cells)
        for name, cell in row.items()
    ]
    return exports.long(launches).replace('","', f'"{separator}"')


def read(path: Path, **keywords: str) -> tuple[ReadProfiles, list[Reject]]:
    rejects: list[Reject] = []
    return read_files([path], on_reject=rejects.append, **keywords), rejects  # type: ignore[arg-type]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("layout", ["wide", "long"])
def test_a_number_style_is_found_whatever_separates_the_cells(
    tmp_path: Path, layout: str, style: str, separator: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(export(layout, style, separator), encoding="utf-8")
    found, rejects = read(path)
    assert not rejects
    assert found.profiles.column(exports.TIME).sum() == 211_968 + 9_728
    assert found.profiles.column("dram__bytes_read.sum").sum() == 48_234_496 + 1_048_576
    rates = found.profiles.column(RATE)
    assert rates.min() >= 12.75e6
    assert rates.max() <= 1536.5e6
    assert 5.5 <= found.profiles.column(PCT).min() <= 71.25


@pytest.mark.parametrize("style", ["english", "german"])
def test_a_count_is_a_whole_number_where_no_other_cell_tells(tmp_path: Path, style: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(export("wide", style, ",", {exports.TIME: "ns"}), encoding="utf-8")
    found, rejects = read(path)
    assert not rejects
    assert found.profiles.time_ns.sum() == 211_968 + 9_728


@pytest.mark.parametrize("layout", ["wide", "long"])
@pytest.mark.parametrize(
    ("style", "factor"),
    [("english", {"point": 1, "comma": 1e-3}), ("german", {"point": 1e-3, "comma": 1})],
)
def test_a_file_that_two_styles_read_is_refused_with_both_readings(
    tmp_path: Path, layout: str, style: str, factor: dict[str, float]
) -> None:
    """Microseconds may have decimals: 211.968 us is either."""
    path = tmp_path / "a.csv"
    path.write_text(export(layout, style, ",", {exports.TIME: "us"}), encoding="utf-8")
    with pytest.raises(ProfileError, match="--decimal") as error:
        read(path)
    assert {"211.968", "211968"} <= set(str(error.value).split())
    for decimal, scale in factor.items():
        found, rejects = read(path, decimal=decimal)
        assert not rejects
        assert found.profiles.time_ns.sum() == pytest.approx((211_968 + 9_728) * 1e3 * scale)


def test_a_refused_file_costs_itself_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(export("wide", "german", ",", {exports.TIME: "us"}))
    (tmp_path / "b.csv").write_text(export("wide", "english", ","))
    found, rejects = read(tmp_path)
    assert found.launches == 2
    assert [Path(reject.file).name for reject in rejects] == ["a.csv"]


def test_cells_of_two_styles_in_one_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(export("wide", "german", ",") + export("wide", "english", ","))
    with pytest.raises(ProfileError, match=r"decimal points \(\d+\) and with decimal commas"):
        read(path)


def test_one_damaged_cell_does_not_change_the_style(tmp_path: Path) -> None:
    rows = [(exports.who(place), {PCT: "71.25", exports.TIME: "211,968"}) for place in range(20)]
    rows.append((exports.who(20), {PCT: "71,2", exports.TIME: "211,968"}))
    path = tmp_path / "a.csv"
    path.write_text(exports.wide(rows, {PCT: "%", exports.TIME: "ns"}))
    found, rejects = read(path)
    assert found.launches == 20
    assert [reject.line for reject in rejects] == [23]


@pytest.mark.parametrize(
    ("encoding", "micro"),
    [
        *itertools.product(("utf-8", "utf-8-sig", "utf-16"), ("\xb5s", "\u03bcs")),
        ("latin-1", "\xb5s"),
        ("cp1252", "\xb5s"),
    ],
)
def test_microseconds_in_any_encoding(tmp_path: Path, encoding: str, micro: str) -> None:
    units = {exports.TIME: micro, PCT: "%"}
    path = tmp_path / "a.csv"
    text = export("wide", "nbsp", ";", units).replace("python", "Pr\xfcfstand")
    path.write_bytes(text.encode(encoding))
    found, rejects = read(path)
    assert not rejects
    assert found.profiles.time_ns.sum() == pytest.approx((211_968 + 9_728) * 1e3)


def test_a_number_of_any_size_is_read_as_it_was_written_and_the_other_mark_never_misreads() -> None:
    """With its own decimal mark a cell gives its value; with the other one, only three-digit ends read, otherwise."""
    draw = random.Random(0)
    for digits, places, (group, decimal) in itertools.product(
        range(1, 13), range(5), STYLES.values()
    ):
        whole = draw.randrange(10 ** (digits - 1), 10**digits)
        fraction = "".join(draw.choices("0123456789", k=places))
        grouped = f"{whole:,}".replace(",", group)
        cell = grouped + (decimal + fraction if places else "")
        value = float(f"{whole}.{fraction or 0}")
        assert number(cell, decimal == ",") == value, cell
        try:
            other = number(cell, decimal != ",")
        except ValueError:
            continue
        if other != value:
            assert re.fullmatch(r"\d{1,3}[.,]\d{3}", cell), cell


@pytest.mark.parametrize(
    "cell",
    [
        "0,123", "1,23", "12,34,567", "1234,567", "1,234,56", "1 23", "1'2345", "1 234'567", "1,2 3", ",", ".", "1.2.3",
        "01,234",
    ],
)  # fmt: skip
def test_marks_that_separate_no_thousands_are_no_number(cell: str) -> None:
    with pytest.raises(ValueError, match=re.escape(cell)):
        number(cell)
    assert numbers([cell]) is None


def test_a_sheets_numbers_have_points_whatever_its_texts_have(tmp_path: Path) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.append([*exports.IDENTITY, exports.TIME])
    sheet.append([*([""] * len(exports.IDENTITY)), "us"])
    for place, time_us in enumerate((211.968, 9.728)):
        sheet.append([*exports.who(place, f"k{place}"), time_us])
    book.save(tmp_path / "a.xlsx")
    found, rejects = read(tmp_path / "a.xlsx")
    assert not rejects
    np.testing.assert_allclose(np.nansum(found.profiles.time_ns), 221_696, rtol=1e-9)
