"""Target texts of older TVMs, ``cuda -keys=cuda,gpu -max_num_threads=1024``, as the mapping of today's.

    text    kind {" -" name "=" value | " -" name value}
    value   an integer, a comma-separated list (of keys, libs, mattr, ...), or text

A text that is a JSON object already (TVM 0.8 and later write both) is read as JSON.
"""

from __future__ import annotations

import json
import shlex
from functools import lru_cache
from typing import Any

from tencost.errors import RecordError
from tencost.records.reading.protocol import About

LISTS = frozenset({"keys", "libs", "mattr"})
"""Attributes that hold a list, one item or many."""


class NoDeviceError(RecordError):
    """Neither a record nor the person who imports it names its device; the whole command is to be given again."""


def parse_target(text: str) -> dict[str, Any]:
    """Return a target text as a mapping with its kind; attributes in the text's order.

    Raises:
        ValueError: no kind, or something that is no attribute.
    """
    return dict(_parse(text))


@lru_cache(maxsize=4096)
def _parse(text: str) -> tuple[tuple[str, Any], ...]:
    if text.lstrip().startswith("{"):
        attributes = json.loads(text)
        if not isinstance(attributes, dict) or not isinstance(attributes.get("kind"), str):
            raise ValueError(f"expected a target with a kind, found {text[:60]!r}")
        return tuple(attributes.items())
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"expected a target, found {text[:60]!r}: {error}") from error
    if not words or words[0].startswith("-"):
        raise ValueError(f"expected a target that begins with its kind, found {text[:60]!r}")
    attributes = {"kind": words.pop(0)}
    while words:
        word = words.pop(0)
        name, equals, setting = word.lstrip("-").partition("=")
        if not word.startswith("-") or not name:
            raise ValueError(f"expected -name=value in a target, found {word!r} in {text[:60]!r}")
        if not equals and words and not words[0].startswith("-"):
            setting = words.pop(0)
        digits = setting.removeprefix("-")
        is_integer = digits.isascii() and digits.isdigit()
        integer_or_text = int(setting) if is_integer else setting
        attributes[name] = setting.split(",") if name in LISTS else integer_or_text
    return tuple(attributes.items())


def named_device(target: dict[str, Any]) -> str | None:
    """Return the device that a target names by -model; TVM writes `unknown` for none."""
    model = target.get("model")
    if isinstance(model, bool) or not isinstance(model, (str, int)) or model in ("", "unknown"):
        return None
    return str(model)


def device_of(target: dict[str, Any], about: About) -> str:
    """Return the device of a record: what its target names or the reader was told; `about.default` says which first.

    Raises:
        NoDeviceError: nobody names it.
    """
    devices = [about.hardware, named_device(target)]
    for device in devices[::-1] if about.default else devices:
        if device:
            return device
    raise NoDeviceError(
        f"expected a target that names its device by -model, found {str(target)[:80]} in {about.file}: say which "
        "device was measured with --hardware NAME (from Python: hardware=<name>)"
    )
