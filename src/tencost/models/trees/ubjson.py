"""UBJSON as XGBoost writes it, read strictly, before XGBoost's own reader sees the bytes: that one trusts them.

Grammar (ubjson.org, draft 12, the part that XGBoost's writer uses)::

    object  {  key value ...  }        key: L, 8 bytes of length, UTF-8; no key twice
    array   [  #L, 8 bytes of length, values
    typed   [  $ type #L, 8 bytes of length, numbers
    string  S  L, 8 bytes of length, UTF-8
    number  i int8, U uint8, I int16, l int32, L int64, d float32, D float64
    others  T true, F false, Z null, C a character

All numbers are big-endian. Anything else is refused, and so is whatever stands after the outermost object.
"""

from __future__ import annotations

from typing import Any

import numpy as np

NUMBERS: dict[int, np.dtype[Any]] = {
    b"i"[0]: np.dtype(">i1"),
    b"U"[0]: np.dtype(">u1"),
    b"I"[0]: np.dtype(">i2"),
    b"l"[0]: np.dtype(">i4"),
    b"L"[0]: np.dtype(">i8"),
    b"d"[0]: np.dtype(">f4"),
    b"D"[0]: np.dtype(">f8"),
}
_CONSTANTS = {b"T"[0]: True, b"F"[0]: False, b"Z"[0]: None}
_OPEN, _CLOSE, _ARRAY, _TYPE, _COUNT, _TEXT, _LENGTH = b"{}[$#SL"
_DEPTH = 16
"""Levels that are read: more than XGBoost writes, and few enough that a damaged file cannot exhaust the stack."""


def read_ubjson(content: bytes) -> dict[str, Any]:
    """Read one object: values of Python, typed arrays as NumPy arrays that look into `content`.

    Raises:
        ValueError: something else; the message says what and at which byte.
    """
    reader = _Reader(content)
    try:
        value = reader.value(_DEPTH)
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"it ends or breaks at byte {reader.at}") from error
    if not isinstance(value, dict) or reader.at != len(content):
        raise ValueError(f"one object that ends at byte {len(content)}, not at {reader.at}")
    return value


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self.at = 0

    def value(self, depth: int) -> Any:
        kind = self._content[self.at]
        self.at += 1
        if kind == _OPEN:
            return self._object(self._deeper(depth))
        if kind == _ARRAY:
            return self._array(self._deeper(depth))
        if kind == _TEXT:
            return self._text()
        if kind in NUMBERS:
            return self._numbers(NUMBERS[kind], 1)[0].item()
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if kind == b"C"[0]:
            return self._take(1).decode("ascii")
        raise ValueError(f"no value begins with {bytes([kind])!r}, at byte {self.at - 1}")

    def _deeper(self, depth: int) -> int:
        if depth == 0:
            raise ValueError(f"more than {_DEPTH} levels, at byte {self.at}")
        return depth - 1

    def _object(self, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while self._content[self.at] != _CLOSE:
            key = self._text()
            if key in members:
                raise ValueError(f"the key {key!r} twice, at byte {self.at}")
            members[key] = self.value(depth)
        self.at += 1
        return members

    def _array(self, depth: int) -> Any:
        if self._content[self.at] == _TYPE:
            kind = self._content[self.at + 1]
            if kind not in NUMBERS:
                raise ValueError(f"an array of type {bytes([kind])!r}, at byte {self.at}")
            self.at += 2
            self._expect(_COUNT)
            return self._numbers(NUMBERS[kind], self._length())
        self._expect(_COUNT)
        return [self.value(depth) for _ in range(self._length())]

    def _text(self) -> str:
        return self._take(self._length()).decode()

    def _length(self) -> int:
        self._expect(_LENGTH)
        length = int.from_bytes(self._take(8), "big", signed=True)
        if not 0 <= length <= len(self._content) - self.at:
            raise ValueError(f"a length of {length} at byte {self.at}, {len(self._content)} in all")
        return length

    def _numbers(self, kind: np.dtype[Any], count: int) -> Any:
        return np.frombuffer(self._take(count * kind.itemsize), kind)

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self._content):
            raise ValueError(f"{size} bytes from byte {self.at}, {len(self._content)} in all")
        content = self._content[self.at : end]
        self.at = end
        return content

    def _expect(self, mark: int) -> None:
        if self._content[self.at] != mark:
            raise ValueError(f"expected {chr(mark)!r} at byte {self.at}")
        self.at += 1
