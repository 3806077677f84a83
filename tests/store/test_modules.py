"""The modules beside a record store: where the store lies, and what is left when the table is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tencost.errors import RecordError
from tencost.store.modules import stored_modules, write_modules

ONE, OTHER = ("a", "{}", "task", "1"), ("b", "{}", "task", "2")


@pytest.mark.parametrize("name", ["plain", "with a space", "ü", "a#b?c"])
def test_a_store_in_a_folder_of_any_name(name: str, tmp_path: Path) -> None:
    uri = str(tmp_path / name / "store")
    assert stored_modules(uri).is_empty()
    assert write_modules(uri, [ONE]) == 1
    assert write_modules(uri, [ONE, OTHER]) == 1
    assert sorted(stored_modules(uri)["workload_id"]) == ["a", "b"]


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    uri = str(tmp_path / "store")
    write_modules(uri, [ONE])
    (part,) = (tmp_path / "store-modules").glob("*.parquet")
    whole = part.read_bytes()
    for content in (b"", whole[:40], b"\0" * len(whole)):
        part.write_bytes(content)
        with pytest.raises(RecordError, match=r"(?s)modules of a record store at .*records import"):
            stored_modules(uri)
    part.unlink()
    with pytest.raises(RecordError, match="modules of a record store"):
        stored_modules(uri)
    log = tmp_path / "store-modules" / "_delta_log" / "00000000000000000001.json"
    log.write_text("{")
    with pytest.raises(RecordError, match="modules of a record store"):
        stored_modules(uri)
