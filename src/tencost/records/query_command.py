"""`tencost records query ...`: a question to a record store on the command line.

    tencost records query best    hardware= [target=] [workload=] [n=]
                          history hardware= [target=] workload=
                          new     [since=] [hardware=]
                          compare hardware= other= [target=] [other_target=] [workload=]
                          stats   [by=hardware,format] [hardware=] [workload=]
                          sql     "SELECT ..."

    and for all of them [store=URI | dataset=NAME] [version=N] [--json | --csv] [--limit N]

`workload` is an id, the beginning of one, or a task name. `target` is JSON or the text of an older TVM; it may be left
out where a hardware has records for one target only. The store is the live one, `data/store`, which imports and tuning
write to, unless named: `dataset=NAME` is what a build made, `data/records/<name>`.

A table shows 20 rows, ids shortened, times with their unit. JSON (a list of objects) and CSV hold everything, times in
seconds; nested values in CSV are JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tencost.config import PathsConfig, project_root
from tencost.errors import ConfigError, RecordError
from tencost.records.answers import show

if TYPE_CHECKING:
    import polars as pl

    from tencost.store.reading import Records

_PLACE = ("store", "dataset", "version")


@dataclass(frozen=True)
class Words:
    """Words of a command line: `key=value` pairs, options, and what is neither.

    Attributes:
        values: the pairs.
        rest: words that are neither pair nor option, in order.
        form: table, json or csv.
        limit: rows at most; None: as many as the form shows.
    """

    values: dict[str, str]
    rest: tuple[str, ...] = ()
    form: str = "table"
    limit: int | None = None

    def number(self, key: str) -> int | None:
        """Return a value as a number, None where it is not given.

        Raises:
            RecordError: it is no whole number.
        """
        text = self.values.get(key)
        return None if text is None else _whole(f"{key}=", text)

    def require(self, key: str, meaning: str) -> str:
        """Return a value that must be given.

        Raises:
            RecordError: it is not.
        """
        if not self.values.get(key):
            given = ", ".join(f"{name}={value}" for name, value in self.values.items())
            raise RecordError(f"expected {key}={meaning}, found {given or 'nothing'}")
        return self.values[key]


@dataclass(frozen=True)
class _Question:
    """A kind of question: the keys that it takes, how it is asked, what is said below the answer."""

    keys: tuple[str, ...]
    usage: str
    ask: Callable[[Records, Words], pl.DataFrame]
    hidden: tuple[str, ...] = ()
    below: Callable[[Records, Words], str] | None = field(default=None)


def run(arguments: list[str]) -> None:
    """Answer one question and print the answer to standard output.

    Raises:
        RecordError: a word that is not understood, no store, or nothing in it that is asked for.
    """
    word = arguments[0] if arguments else None
    question = QUESTIONS.get(word or "")
    if question is None:
        lines = "\n".join(
            f"  tencost records query {name} {item.usage}" for name, item in QUESTIONS.items()
        )
        raise RecordError(
            f"expected `tencost records query` and one of {', '.join(QUESTIONS)}, found "
            f"{word or 'nothing'}.\n{lines}\n"
            "  each with [store=URI | dataset=NAME] [version=N] [--json | --csv] [--limit N]"
        )
    words = parse(arguments[1:], (*question.keys, *_PLACE), text=word == "sql")
    if words.rest and word != "sql":
        raise RecordError(
            f"expected words of the form key=value, found {words.rest[0]!r}. "
            f"Valid: tencost records query {word} {question.usage}"
        )
    if "store" in words.values and "dataset" in words.values:
        raise RecordError("expected one of store= and dataset=, found both")
    store = open_store(words)
    show(question.ask(store, words), words.form, words.limit, question.hidden)
    if question.below is not None and words.form == "table":
        sys.stdout.write(question.below(store, words) + "\n")


def parse(arguments: Sequence[str], keys: Sequence[str], *, text: bool = False) -> Words:
    """Sort the words of a command line.

    Args:
        arguments: the words.
        keys: keys that are valid.
        text: whether a word with = whose key is not valid is text (SQL) rather than a mistake.

    Raises:
        RecordError: an unknown key or option, a key given twice, or --limit without a number.
    """
    values: dict[str, str] = {}
    rest: list[str] = []
    forms: list[str] = []
    limit: int | None = None
    words = list(arguments)
    while words:
        word = words.pop(0)
        key, equals, value = word.partition("=")
        if word in ("--json", "--csv"):
            forms.append(word.removeprefix("--"))
        elif key == "--limit":
            given = value if equals else (words.pop(0) if words else "")
            limit = _whole("--limit", given)
        elif equals and key in keys:
            if key in values:
                raise RecordError(f"expected {key}= once, found {values[key]!r} and {value!r}")
            values[key] = value
        elif word.startswith("--") and not text:
            raise RecordError(f"expected --json, --csv or --limit N, found {word!r}")
        elif equals and not text:
            raise RecordError(f"expected keys of {', '.join(keys)}, found {key!r} in {word!r}")
        else:
            rest.append(word)
    if len(set(forms)) > 1:
        raise RecordError("expected one of --json and --csv, found both")
    return Words(values, tuple(rest), forms[0] if forms else "table", limit)


def open_store(words: Words) -> Records:
    """Return the store that `store=` names, or that of `dataset=`, or the live one.

    Raises:
        RecordError: no store there.
    """
    from tencost.store.tables import open_records

    uri = words.values.get("store")
    if uri is None:
        live = project_folder() / PathsConfig().store
        dataset = words.values.get("dataset")
        uri = str(live if dataset is None else dataset_folder(dataset))
    store = open_records(uri, words.number("version"))
    if not store.exists():
        raise RecordError(
            f"expected a record store at {uri}, found none. Fill it: tencost records import <logs> hardware=<name> "
            "dataset=<name>. Or name another: store=URI or dataset=NAME"
        )
    return store


def dataset_folder(name: str) -> Path:
    """Return the folder of a dataset's records, `data/records/<name>`.

    Raises:
        RecordError: no such folder.
    """
    records = project_folder() / PathsConfig().records
    folder = records / name
    if not (name and folder.is_dir()):
        there = sorted(path.name for path in records.iterdir()) if records.is_dir() else []
        raise RecordError(
            f"expected the records of dataset {name!r} in {folder}, found nothing. There are: "
            f"{', '.join(there) or 'none'}. Build them: tencost records dataset={name}"
        )
    return folder


def project_folder() -> Path:
    """Return the project's root; outside a project the current folder."""
    try:
        return project_root()
    except ConfigError:
        return Path.cwd()


def target_of(store: Records, words: Words, key: str, hardware: str) -> str:
    """Return the target that a word names, canonical JSON; where it is left out, a hardware's only one.

    Raises:
        RecordError: no target, or left out where a hardware has several.
    """
    from tencost.records import query

    given = words.values.get(key)
    if given is not None:
        return query.canonical(given)
    return query.only_target(store, hardware)


def _best(store: Records, words: Words) -> pl.DataFrame:
    from tencost.records import query

    hardware = words.require("hardware", "<a device of the store>")
    n = words.number("n")
    return query.best(
        store,
        hardware=hardware,
        target=target_of(store, words, "target", hardware),
        workload=_workload(store, words, hardware),
        n=1 if n is None else n,
    )


def _history(store: Records, words: Words) -> pl.DataFrame:
    from tencost.records import query

    hardware = words.require("hardware", "<a device of the store>")
    words.require("workload", "<id, beginning of an id, or task name>")
    identity = _workload(store, words, hardware)
    assert identity is not None
    target = target_of(store, words, "target", hardware)
    return query.history(store, identity, hardware=hardware, target=target)


def _new(store: Records, words: Words) -> pl.DataFrame:
    from tencost.records import query

    return query.new(
        store,
        words.number("since"),
        hardware=words.values.get("hardware"),
    )


def _next_version(store: Records, words: Words) -> str:
    from tencost.records import query

    now = query.current_version(store)
    if now is None:
        return "A build has no versions: what is new there is what another build makes."
    place = "".join(
        f" {key}={words.values[key]}" for key in ("store", "dataset") if key in words.values
    )
    return f"Version {now}. What comes after it: tencost records query new since={now}{place}"


def _compare(store: Records, words: Words) -> pl.DataFrame:
    from tencost.records import query

    first = words.require("hardware", "<a device of the store>")
    second = words.require("other", "<another device of the store>")
    return query.compare(
        store,
        hardware=(first, second),
        target=(
            target_of(store, words, "target", first),
            target_of(store, words, "other_target", second),
        ),
        workload=_workload(store, words, None),
    )


def _statistics(store: Records, words: Words) -> pl.DataFrame:
    from tencost.records import query

    hardware = words.values.get("hardware")
    by = words.values.get("by", "hardware,format")
    return query.statistics(
        store,
        by=[name.strip() for name in by.split(",") if name.strip()],
        hardware=hardware,
        workload=_workload(store, words, hardware),
    )


def _sql(store: Records, words: Words) -> pl.DataFrame:
    from tencost.records import query

    if not words.rest:
        raise RecordError(
            "expected a query, for example: tencost records query sql "
            '"SELECT hardware, status, count(*) FROM records GROUP BY ALL", found nothing'
        )
    return query.sql(store, " ".join(words.rest))


QUESTIONS: dict[str, _Question] = {
    "best": _Question(
        ("hardware", "target", "workload", "n"),
        "hardware= [target=] [workload=] [n=]",
        _best,
        ("hardware", "target", "program_format", "timestamp", "record_id", "file", "line"),
    ),
    "history": _Question(
        ("hardware", "target", "workload"),
        "hardware= [target=] workload=",
        _history,
        ("timestamp", "record_id", "file", "line"),
    ),
    "new": _Question(
        ("since", "hardware"),
        "[since=] [hardware=]",
        _new,
        ("target", "record_id", "file", "line"),
        _next_version,
    ),
    "compare": _Question(
        ("hardware", "other", "target", "other_target", "workload"),
        "hardware= other= [target=] [other_target=] [workload=]",
        _compare,
    ),
    "stats": _Question(
        ("by", "hardware", "workload"),
        "[by=hardware,format] [hardware=] [workload=]",
        _statistics,
    ),
    "sql": _Question((), '"SELECT ..."', _sql),
}
"""What can be asked."""


def _workload(store: Records, words: Words, hardware: str | None) -> str | None:
    from tencost.records import query

    text = words.values.get("workload")
    if text is None:
        return None
    return query.find_workload(store, text, hardware=hardware)


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise RecordError(f"expected {name} with a whole number, found {text!r}")
    return int(text)
