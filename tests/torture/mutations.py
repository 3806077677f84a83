"""Damage: of bytes, of lines, and of JSON values, each drawn from a random.Random."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

PIECES = [
    *(bytes([value]) for value in (0, 9, 13, 27, 34, 44, 58, 91, 92, 93, 123, 125, 127, 128, 255)),
    *b'null true -1 0.5 0 -0.0 1e999 -1e999 NaN Infinity {} [] "" "x" 1e-320 \\ud800 \\u0000 \\" #'.split(),
    *(b"99999999999999999999", b"-9223372036854775809", b"18446744073709551616", b"1e400"),
    *(
        b"[" * 5000,
        b'{"i":' * 5000,
        b"9" * 5000,
        b"\\u202e",
        "é☃𝄞".encode(),
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
    ),
    *(
        b", ",
        b": ",
        b"\x1b[31m",
        b"../../../../x",
        b"/etc/passwd",
        b"%s%n",
        b"'",
        b";",
        b"\t",
        b"=cmd|' /C x'!A0",
    ),
]
JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64, 10**400, -(2**63) - 1, 0.5, -0.0, 1e308, 5e-324,
    float("inf"), float("-inf"), float("nan"), "", "x", "\0", "\x1b[31mred", "\ud800", "../../x", "/etc/passwd", "nan",
    "1e400", "x" * 70_000, [], [None], [[]], [[[[]]]], {}, {"": None}, {"a": {"a": {}}}, [0] * 3000,
]  # fmt: skip


def mutated_bytes(rng: Random, data: bytes, most: int = 4, *, keep: bytes = b"") -> bytes:
    """Cut out, replace, repeat, put in or flip some pieces.

    Args:
        rng: the source of chance.
        data: what is damaged.
        most: changes at most.
        keep: bytes that are neither taken nor put in (a newline, where other lines are to stay).
    """
    for _ in range(rng.randint(1, most)):
        start = rng.randint(0, len(data))
        end = min(len(data), start + rng.choice((0, 1, 1, 2, 4, 12, 40)))
        kind = rng.randrange(6)
        if kind == 0:
            middle = b""
        elif kind == 1:
            middle = data[start:end] * rng.choice((2, 2, 3, 50))
        elif kind == 2:
            middle = bytes(byte ^ 1 << rng.randrange(8) for byte in data[start:end])
        elif kind == 3:
            other = rng.randint(0, len(data))
            middle = data[other : other + rng.choice((1, 4, 12, 60))]
        else:
            middle = rng.choice(PIECES)
        for byte in keep:
            middle = middle.replace(bytes([byte]), b"")
        if any(byte in data[start:end] for byte in keep):
            end = start
        data = data[:start] + middle + data[end:]
    return data


def mutated_file(rng: Random, data: bytes) -> bytes:
    """Damage a file of any kind: cut it, empty it, flip, overwrite or repeat a region."""
    if not data:
        return rng.choice(PIECES)
    at = rng.randrange(len(data))
    kind = rng.randrange(8)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[at:]
    if kind == 2:
        return rng.choice((b"", b"\0", b"\n", b"\0" * len(data), rng.randbytes(len(data) % 5000)))
    if kind == 3:
        region = rng.choice((1, 4, 8, 64))
        return data[:at] + rng.randbytes(region) + data[at + region :]
    if kind == 4:
        value = rng.choice((0, 0xFF, 0x7F, 0x80))
        region = rng.choice((1, 4, 8, 64))
        return data[:at] + bytes([value]) * region + data[at + region :]
    if kind == 5:
        return data + data[at : at + 100_000]
    return mutated_bytes(rng, data, 3)


def mutated_json(rng: Random, value: Any, most: int = 3) -> Any:
    """Put something else in the place of some values, of any depth; keys are renamed, left out, added."""
    copy = json.loads(json.dumps(value))
    for _ in range(rng.randint(1, most)):
        places = list(_places(copy))
        if not places:
            return _junk(rng)
        inside, key = rng.choice(places)
        _change(rng, inside, key, copy)
    return copy


def _change(rng: Random, inside: Any, key: Any, whole: Any) -> None:
    kind = rng.randrange(8)
    if kind == 0:
        del inside[key]
    elif kind == 1 and isinstance(inside, dict):
        inside[rng.choice(("x", "", "\0", "__class__", "type", "e" * 300))] = inside.pop(key)
    elif kind == 2 and isinstance(inside, list):
        inside.insert(key, _junk(rng))
    elif kind == 3:
        others = list(_places(whole))
        one, other = rng.choice(others)
        inside[key] = json.loads(json.dumps(one[other]))
    elif kind == 4 and isinstance(inside[key], int | float):
        old = inside[key]
        inside[key] = rng.choice((-old, old + 1, old - 1, old * 10**9, str(old), [old], bool(old)))
    elif kind == 5 and isinstance(inside[key], str):
        text = inside[key].encode("utf-8", "surrogatepass")
        inside[key] = mutated_bytes(rng, text, 2).decode("utf-8", "replace")
    else:
        inside[key] = _junk(rng)


def _junk(rng: Random) -> Any:
    """Return a value of its own, that may be damaged in its turn."""
    return deepcopy(rng.choice(JUNK))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, dict | list):
            for key in one if isinstance(one, dict) else range(len(one)):
                yield one, key
                todo.append(one[key])


def json_text(value: Any) -> str:
    """Return JSON, of whatever Python's writer writes (NaN too)."""
    return json.dumps(value, separators=(",", ":"))


def is_json(data: bytes) -> bool:
    """Whether the whole of `data` is one JSON value: a line of T4's text is not, though it may begin like one."""
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


def mutated_json_text(
    rng: Random, text: str, wrap: Callable[[Any], Any] = lambda value: value
) -> str:
    """Damage the value of a JSON text."""
    return json_text(wrap(mutated_json(rng, json.loads(text))))
