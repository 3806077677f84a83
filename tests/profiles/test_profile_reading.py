"""Files of hardware counters: every layout, every unit, every damage."""

from __future__ import annotations

import gzip
import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import exports
import numpy as np
import pytest

from tencost.errors import ProfileError
from tencost.records.counters.launches import Reject
from tencost.records.counters.reading import ReadProfiles, read_files, read_profiles
from tencost.records.counters.table import Profiles

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
COUNTERS = "needs ../shared/data/{}, real counters of other projects that are not ours to pass on"


def read(path: Path, **keywords: Any) -> tuple[ReadProfiles, list[Reject]]:
    rejects: list[Reject] = []
    found = read_files([path], on_reject=rejects.append, **keywords)
    assert len(rejects) == found.rejects
    return found, rejects


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def row(profiles: Profiles) -> dict[str, float]:
    assert len(profiles) == 1
    return dict(zip(profiles.metrics, profiles.values[0].tolist(), strict=True))


def same(found: dict[str, float], wanted: dict[str, float]) -> None:
    assert set(found) >= set(wanted)
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-6), name


BASE = {name: value for name, (_, value) in exports.PLAIN.items()}


# Nsight Compute 2025.3


def test_both_pages_of_one_profile_say_the_same() -> None:
    """Two kernels of a layer norm on an NVIDIA H100, as `--page raw --csv` and `--csv` print one report."""
    folder = Path(__file__).parent / "ncu-2025.3"
    vectors = []
    for name in ("raw", "details"):
        found, rejects = read(folder / f"{name}.csv.gz")
        assert [reject.reason for reject in rejects] == []
        vectors.append(row(found.profiles))
    raw, details = vectors
    assert raw["launch__grid_size"] == 8, "that of the slower kernel"
    assert "derived__lts__lts2xbar_bytes.sum.per_second" in raw
    common = [name for name in details if name in raw]
    assert len(common) > 50
    for name in common:
        assert details[name] == pytest.approx(raw[name], rel=1e-2, abs=6e-3), name


# Units


@pytest.mark.parametrize("choice", range(8))
def test_all_metrics_in_other_units_are_the_same_vector(tmp_path: Path, choice: int) -> None:
    """475 columns, each in another unit that a profiler may choose."""
    draw = random.Random(choice)
    metrics: dict[str, tuple[str, float]] = dict(exports.PLAIN)
    for number in range(475 - len(metrics)):
        unit = draw.choice(["byte", "byte/second", "hertz", "%", "inst"])
        end = {"byte": "_bytes.sum", "byte/second": "_bytes.sum.per_second", "hertz": "_cycles_elapsed.avg.per_second",
               "%": ".avg.pct_of_peak_sustained_active", "inst": "_inst.sum"}[unit]  # fmt: skip
        metrics[f"unit{number}__made_up{end}"] = (unit, draw.uniform(1, 1e12))
    units, cells = {}, {}
    for name, (unit, value) in metrics.items():
        units[name], factor = draw.choice(list(exports.SCALED.get(unit, {unit: 1.0}).items()))
        cells[name] = draw.choice([f"{value / factor:,.12f}", repr(value / factor)])
    base = {name: unit for name, (unit, _) in metrics.items()}
    plain = {name: repr(value) for name, (_, value) in metrics.items()}
    other, rejects = read(
        write(tmp_path / "other.csv", exports.wide([(exports.who(0), cells)], units))
    )
    reference, _ = read(write(tmp_path / "base.csv", exports.wide([(exports.who(0), plain)], base)))
    assert not rejects
    assert other.profiles.metrics == reference.profiles.metrics == tuple(metrics)
    np.testing.assert_allclose(other.profiles.values, reference.profiles.values, rtol=1e-6)
    np.testing.assert_allclose(
        other.profiles.values[0], [value for _, value in metrics.values()], rtol=1e-6
    )
    assert other.units == reference.units


def test_units_may_differ_from_file_to_file(tmp_path: Path) -> None:
    for number, (unit, value) in enumerate([("ns", 5_000.0), ("usecond", 5.0), ("msecond", 0.005)]):
        text = exports.wide(
            [(exports.who(number, f"kernel{number}"), {exports.TIME: value})], {exports.TIME: unit}
        )
        write(tmp_path / f"{number}.csv", text)
    found, _ = read(tmp_path)
    assert found.profiles.time_ns.tolist() == pytest.approx([5_000.0] * 3)
    assert found.units[exports.TIME] == "ns"


def test_without_a_row_of_units_values_are_in_base_units_and_that_is_told(tmp_path: Path) -> None:
    units = {name: unit for name, (unit, _) in exports.PLAIN.items()}
    text = exports.wide([(exports.who(0), BASE)], units, with_units=False)
    found, rejects = read(write(tmp_path / "a.csv", text))
    same(row(found.profiles), BASE)
    assert not rejects
    assert any("no row of units" in note for note in found.notes)


def test_a_damaged_unit_costs_its_metric_and_no_other(tmp_path: Path) -> None:
    text = exports.plain().replace('"ns"', '"nX"').replace('"byte"', '"bXte"')
    found, rejects = read(write(tmp_path / "a.csv", text))
    assert exports.TIME not in found.profiles.metrics
    assert math.isnan(found.profiles.time_ns[0])
    same(row(found.profiles), {"smsp__inst_executed.sum": 987_654.0})
    assert [item.line for item in rejects] == [2, 2]
    assert exports.TIME in rejects[0].reason


def test_units_that_are_not_one_anothers_are_kept_apart_and_told(tmp_path: Path) -> None:
    for name, unit in (("a", "inst"), ("b", "Kbyte")):
        text = exports.wide([(exports.who(0), {"x__y.sum": 3})], {"x__y.sum": unit})
        write(tmp_path / f"{name}.csv", text)
    found, _ = read(tmp_path)
    np.testing.assert_array_equal(found.profiles.column("x__y.sum"), [3.0, np.nan])
    np.testing.assert_array_equal(found.profiles.column("x__y.sum [byte]"), [np.nan, 3000.0])
    assert any("x__y.sum (inst, byte)" in note for note in found.notes)


# Layouts of the wide table


def test_the_details_page_says_what_the_raw_page_says(tmp_path: Path) -> None:
    metrics = {
        ("GPU Speed Of Light", "Duration"): ("usecond", "12.7"),
        ("GPU Speed Of Light", "DRAM Frequency"): ("cycle/nsecond", "0.877"),
        ("GPU Speed Of Light", "SM [%]"): ("%", "43.25"),
        ("Memory Workload Analysis", "Memory Throughput"): ("Gbyte/second", "812.3456"),
        ("Instruction Statistics", "Executed Instructions"): ("inst", "987,654"),
        ("Launch Statistics", "Registers Per Thread"): ("register/thread", "40"),
        ("Launch Statistics", "Grid Size"): ("", "128"),
        ("Launch Statistics", "Block Size"): ("", "256"),
        ("Occupancy", "Block Limit Warps"): ("block", "8"),
    }
    found, rejects = read(write(tmp_path / "a.log", exports.long([(0, "fused", metrics)])))
    assert not rejects
    same(
        row(found.profiles),
        {name: value for name, value in BASE.items() if name != "dram__bytes_read.sum"},
    )


@pytest.mark.parametrize(
    "damage", ["bom", "gzip", "semicolon", "crlf", "noise", "utf16", "instances"]
)
def test_layouts_that_spreadsheets_and_shells_make(tmp_path: Path, damage: str) -> None:
    text = exports.plain()
    path = tmp_path / "a.csv"
    if damage == "bom":
        path.write_text(text, encoding="utf-8-sig")
    elif damage == "gzip":
        path = tmp_path / "a.csv.gz"
        path.write_bytes(gzip.compress(text.encode()))
    elif damage == "semicolon":
        units = {name: unit for name, (unit, _) in exports.PLAIN.items()}
        comma = {
            name: f"{value:,.3f}".translate(str.maketrans(",.", ".,"))
            for name, value in BASE.items()
        }
        write(path, exports.wide([(exports.who(0), comma)], units, separator=";"))
    elif damage == "crlf":
        path.write_bytes(text.replace("\n", "\r\n").encode())
    elif damage == "noise":
        head, *rows = text.splitlines()
        noise = ["Reading File", "==PROF== Connected to process 1", "1 result, 2 results"]
        write(path, "\n".join([*noise, head, rows[0], "==PROF== done", *rows[1:], *noise, ""]))
    elif damage == "utf16":
        path.write_bytes(text.encode("utf-16"))
    elif damage == "instances":
        write(path, text.replace('"987654.0"', '"987654 (1: 500000; 2: 487654)"'))
    found, rejects = read(path)
    assert not rejects
    same(row(found.profiles), BASE)


def test_a_sheet_says_what_its_csv_says(tmp_path: Path) -> None:
    import csv

    import openpyxl

    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    for number, cells in enumerate(csv.reader(exports.plain(3).splitlines())):
        sheet.append(
            [float(cell) if number > 1 and place > 10 else cell for place, cell in enumerate(cells)]
        )
    book.save(tmp_path / "a.xlsx")
    found, rejects = read(tmp_path / "a.xlsx")
    assert not rejects
    assert found.launches == 3
    same(row(found.profiles), BASE)
    whole = (tmp_path / "a.xlsx").read_bytes()
    (tmp_path / "half.xlsx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ProfileError, match=r"half\.xlsx"):
        read(tmp_path / "half.xlsx")


def more_columns(*cells: str) -> str:
    """An export with columns behind its own: titles, units, and the cells of its one launch."""
    return "\n".join(map("".join, zip(exports.plain().splitlines(), cells, strict=True))) + "\n"


def test_columns_that_come_twice_count_once_and_differences_are_told(tmp_path: Path) -> None:
    text = more_columns(f',"{exports.TIME}"', ',"ns"', ',"99"')
    found, _ = read(write(tmp_path / "a.csv", text))
    same(row(found.profiles), BASE)
    assert any("twice" in note for note in found.notes)
    assert any("differ" in note for note in found.notes)


def test_columns_that_somebody_added_cost_nothing(tmp_path: Path) -> None:
    text = more_columns(',"device","time_ns"', ',"",""', ',"mine","5"')
    found, rejects = read(write(tmp_path / "a.csv", text))
    assert not rejects
    same(row(found.profiles), BASE)
    assert not {"device", "time_ns"} & set(found.profiles.metrics)
    assert sum("is no metric" in note for note in found.notes) == 2


def test_an_older_name_gives_way_to_todays(tmp_path: Path) -> None:
    units = {"dram__read_bytes.sum": "byte", "dram__bytes_read.sum": "Kbyte", exports.TIME: "ns"}
    values = {"dram__read_bytes.sum": 1.0, "dram__bytes_read.sum": 2.0, exports.TIME: 9.0}
    found, _ = read(write(tmp_path / "a.csv", exports.wide([(exports.who(0), values)], units)))
    assert row(found.profiles)["dram__bytes_read.sum"] == 2000.0
    del units["dram__bytes_read.sum"], values["dram__bytes_read.sum"]
    found, _ = read(write(tmp_path / "b.csv", exports.wide([(exports.who(0), values)], units)))
    assert row(found.profiles)["dram__bytes_read.sum"] == 1.0


def test_nothing_measured_is_nan_and_text_is_no_metric(tmp_path: Path) -> None:
    units = {
        exports.TIME: "us",
        "a__x.sum": "inst",
        "launch__func_cache_config": "",
        "constant__y.sum": "inst",
    }
    launches = [
        (exports.who(0, "k0"), [1.5, "n/a", "CachePreferNone", 0]),
        (exports.who(1, "k1"), [2.5, "nan", "CachePreferNone", 0]),
        (exports.who(2, "k2"), [3.5, 7, "CachePreferNone", 0]),
    ]
    text = exports.wide(
        [(about, dict(zip(units, values, strict=True))) for about, values in launches], units
    )
    found, rejects = read(write(tmp_path / "a.csv", text))
    assert not rejects
    column = found.profiles.column("a__x.sum")
    assert np.isnan(column).tolist() == [True, True, False]
    assert found.profiles.column("constant__y.sum").tolist() == [0.0] * 3
    assert np.isnan(found.profiles.column("launch__func_cache_config")).all()
    assert any("launch__func_cache_config" in note for note in found.notes)


def test_devices_of_a_file_are_kept_and_told(tmp_path: Path) -> None:
    units = {exports.TIME: "ns", "device__attribute_display_name": ""}
    launches = [
        (exports.who(number), {exports.TIME: 10.0 + number, "device__attribute_display_name": name})
        for number, name in enumerate(["NVIDIA H100", "NVIDIA A100"])
    ]
    found, _ = read(write(tmp_path / "a.csv", exports.wide(launches, units)))
    assert found.profiles.device.tolist() == ["NVIDIA H100", "NVIDIA A100"]
    assert found.profiles.time_ns.tolist() == [10.0, 11.0]
    assert any("2 devices" in note for note in found.notes)
    found, _ = read(write(tmp_path / "b.csv", exports.plain()))
    assert found.profiles.device.tolist() == ["sm_90"]
    text = exports.wide([(exports.who(0, CC=""), {exports.TIME: 1.0})], {exports.TIME: "ns"})
    found, _ = read(write(tmp_path / "c.csv", text), hardware="my-gpu")
    assert found.profiles.device.tolist() == ["my-gpu"]


# Damage


def test_bad_rows_are_rejects_with_their_line_and_good_ones_stay(tmp_path: Path) -> None:
    lines = exports.plain(6).splitlines()
    lines[3] = lines[3].replace('"12700.0"', '"12x00"')
    lines[4] = lines[4].rsplit(",", 2)[0]
    lines[5] = lines[5][:-3]
    lines[6] = lines[6].replace('"12700.0"', '"-4"')
    found, rejects = read(write(tmp_path / "a.csv", "\n".join(lines) + "\n"))
    assert found.launches == 2
    assert [item.line for item in rejects] == [4, 5, 6, 7]
    assert all(item.file.endswith("a.csv") for item in rejects)
    same(row(found.profiles), BASE)


def test_half_a_download_keeps_the_first_half(tmp_path: Path) -> None:
    packed = gzip.compress(exports.plain(400).encode())
    (tmp_path / "a.csv.gz").write_bytes(packed[: len(packed) // 2])
    found, rejects = read(tmp_path / "a.csv.gz")
    assert 0 < found.launches < 400
    assert "ends early" in rejects[-1].reason
    same(row(found.profiles), BASE)


def test_a_row_that_a_program_wrote_into_is_found(tmp_path: Path) -> None:
    metrics = {("S", "a__x.sum"): ("inst", "3"), ("S", exports.TIME): ("ns", "5")}
    lines = exports.long([(0, "k", metrics)]).splitlines()
    lines[2] = "progress 50%" + lines[2]
    found, rejects = read(write(tmp_path / "a.log", "\n".join(["hello", *lines, "bye"])))
    assert not rejects
    same(row(found.profiles), {"a__x.sum": 3.0, exports.TIME: 5.0})


def test_a_wrong_number_between_the_rows_of_a_launch_costs_its_row(tmp_path: Path) -> None:
    metrics = {("S", f"a__x{place}.sum"): ("inst", str(place)) for place in range(4)}
    lines = exports.long([(5, "k", metrics), (6, "k", metrics)]).splitlines()
    lines[2] = lines[2].replace('"5"', '"8"', 1)
    found, rejects = read(write(tmp_path / "a.log", "\n".join(lines)))
    assert found.launches == 2
    assert [item.line for item in rejects] == [3]
    lines[2] = lines[2].replace('"8"', '"5"', 1).replace('"k"', '"q"')
    found, rejects = read(write(tmp_path / "b.log", "\n".join(lines)))
    assert (found.launches, [item.line for item in rejects]) == (2, [3])


def test_a_forbidden_profile_says_what_to_do(tmp_path: Path) -> None:
    log = "==PROF== Connected to process 7\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n"
    for name, text in (
        ("a.log", log),
        ("b.csv", log + exports.rows_text([[*exports.IDENTITY, exports.TIME]])),
    ):
        with pytest.raises(
            ProfileError, match=r"NVreg_RestrictProfilingToAdminUsers=0, or run ncu as root"
        ) as error:
            read(write(tmp_path / name, text))
        assert str(error.value).count("\n") == 0
    found, _ = read(write(tmp_path / "c.csv", exports.plain() + log))
    assert any("NVreg_RestrictProfilingToAdminUsers" in note for note in found.notes)


@pytest.mark.parametrize(
    "content", [b"", b"\n\n\n", b"\x00" * 100, b"\x1f\x8b", b"PK\x03\x04", b"{}", b"a,b,c\n1,2,3\n", b'{"Results": ['],
)  # fmt: skip
@pytest.mark.parametrize("name", ["a.csv", "a.xlsx", "a.json"])
def test_what_holds_no_counters_is_one_sentence(tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ProfileError, match=rf"expected launches .*{re.escape(name)}"):
        read(tmp_path / name)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="found nothing"):
        read_profiles(tmp_path / "nothing.csv")


def ktt_text(count: int = 12, failed: int = 3) -> str:
    return json.dumps(exports.ktt(count, failed), indent=2)


def test_ktts_configurations_are_programs_and_the_failed_ones_rejects(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", ktt_text())
    found, rejects = read(path)
    assert (len(found.profiles), found.launches, len(rejects)) == (9, 9, 3)
    assert found.profiles.time_ns.tolist() == [1000.0 * (10 + number) for number in range(3, 12)]
    assert found.profiles.column("dram__sectors_read.sum").tolist() == [
        100.0 * number for number in range(3, 12)
    ]
    assert set(found.profiles.column("launch__block_size")) == {128.0}
    assert set(found.profiles.column("launch__grid_size")) == {128.0}
    assert found.parameters["TILE"].to_list() == list(range(3, 12))
    assert found.parameters["program_id"].to_list() == found.profiles.program_id.tolist()
    assert set(found.profiles.workload) == {"Convolution"}
    assert any("3 ComputationFailed" in note for note in found.notes)
    assert [path.read_text().splitlines()[item.line - 1].strip() for item in rejects] == ["{"] * 3


def test_a_damaged_result_of_ktt_costs_itself(tmp_path: Path) -> None:
    whole = ktt_text(failed=0)
    assert whole.count('"Duration": 15.0') == 1
    found, rejects = read(
        write(tmp_path / "a.json", whole.replace('"Duration": 15.0', '"Duration": 15.0.'))
    )
    assert (found.launches, len(rejects)) == (11, 1)
    found, rejects = read(write(tmp_path / "b.json", whole[: len(whole) // 2]))
    assert 3 <= found.launches <= 6
    assert "cut off" in rejects[-1].reason or "damage" in rejects[-1].reason


def by_program(profiles: Profiles) -> dict[str, dict[str, float]]:
    return {
        program: dict(zip(profiles.metrics, profiles.values[at].tolist(), strict=True))
        for at, program in enumerate(profiles.program_id.tolist())
    }


LONG = exports.long(
    [
        (
            number,
            f"kernel{number % 2}",
            {("S", exports.TIME): ("us", "1,234.5"), ("S", "a__x.sum"): ("inst", "7")},
        )
        for number in range(12)
    ]
)


@pytest.mark.parametrize(
    "make", [lambda: exports.plain(12), lambda: LONG, ktt_text], ids=["wide", "long", "ktt"]
)
@pytest.mark.parametrize("how", ["cut", "bytes", "lines", "gzip"])
def test_no_damage_is_a_traceback_and_no_good_row_is_another(
    tmp_path: Path, make: Callable[[], str], how: str
) -> None:
    whole = make().encode()
    draw = random.Random(how)
    path = tmp_path / "a"
    path.write_bytes(whole)
    sound = by_program(read(path)[0].profiles)
    for _ in range(40):
        content = bytearray(whole)
        if how == "cut":
            del content[draw.randrange(len(content)) :]
        elif how == "bytes":
            for _ in range(draw.choice([1, 3, 30])):
                content[draw.randrange(len(content))] = draw.randrange(256)
        elif how == "lines":
            lines = bytes(content).split(b"\n")
            for _ in range(draw.choice([1, 3])):
                del lines[draw.randrange(len(lines))]
            draw.shuffle(lines) if draw.random() < 0.3 else None
            content = bytearray(b"\n".join(lines))
        else:
            content = bytearray(gzip.compress(bytes(content)))
            content[draw.randrange(10, len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        try:
            found, rejects = read(path)
        except ProfileError:
            continue
        assert len(found.profiles) <= 24
        assert all(item.line >= 0 and len(item.reason) < 1000 for item in rejects)
        assert not np.isinf(found.profiles.values).any()
        if how == "cut":  # what is left is as it was
            for program, values in by_program(found.profiles).items():
                for name, value in values.items():
                    assert math.isnan(value) or value == pytest.approx(sound[program][name])


# Real counters


@pytest.mark.skipif(not (SHARED / "ncu").is_dir(), reason=COUNTERS.format("ncu"))
def test_all_of_xplacers_logs() -> None:
    folder = SHARED / "ncu"
    found, rejects = read(folder, hardware="v100")
    assert (found.launches, found.kernels, len(rejects)) == (1_629, 12, 0)
    assert len(found.profiles.metrics) == len({*found.profiles.metrics}) == 52
    assert all("__" in name for name in found.profiles.metrics)
    assert set(found.profiles.device) == {"v100"}
    assert np.isfinite(found.profiles.time_ns).all()
    duration = found.profiles.column(exports.TIME)
    np.testing.assert_allclose(duration, found.profiles.time_ns)
    assert found.units["dram__bytes.sum.per_second"] == "byte/second"
    # 1,629 launches have a time each, and no metric is lost among 67,782 rows.
    text = "".join(
        (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    )
    assert text.count('"Duration","nsecond"') == found.launches


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "ktt").is_dir(), reason=COUNTERS.format("ktt"))
@pytest.mark.parametrize(
    ("name", "programs", "failed", "metrics"),
    [
        ("KTConvolutionOutput_2080Ti", 5_280, 1_488, 33 + 4),
        ("KTPnpolyOutput_2080Ti", 3_815, 277, 33 + 4),
        ("KTConvolutionOutput_3090", 5_240, 1_528, 4),
        ("KTPnpolyOutput_3090", 3_818, 274, 4),
    ],
)
def test_all_of_ktts_results(name: str, programs: int, failed: int, metrics: int) -> None:
    profiles, parameters, rejects = read_profiles(SHARED / "ktt" / "ktt_data" / f"{name}.json.gz")
    assert (len(profiles), len(rejects), len(profiles.metrics)) == (programs, failed, metrics)
    assert parameters.height == programs
    assert len(set(profiles.program_id.tolist())) == programs
    assert np.isfinite(profiles.values).all()
    assert (profiles.time_ns > 0).all()
