"""Words on the command line of `tencost records <word>`: paths and names, key=value, and --flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tencost.errors import RecordError


@dataclass(frozen=True)
class Words:
    """What a person wrote, taken apart."""

    plain: tuple[str, ...]
    keys: dict[str, str]
    flags: frozenset[str]

    def number(self, key: str) -> int | None:
        """Return a key's value as a positive whole number; None where it is not given.

        Raises:
            RecordError: it is something else.
        """
        text = self.keys.get(key)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            raise RecordError(f"expected {key} as a positive whole number, found {text!r}")
        return int(text)


def read_words(
    arguments: Sequence[str], usage: str, *, keys: Sequence[str] = (), flags: Sequence[str] = ()
) -> Words:
    """Take arguments apart; a word with `=` whose key is not a path is key=value.

    Raises:
        RecordError: a key or flag that is not among those named.
    """
    plain: list[str] = []
    given: dict[str, str] = {}
    found: set[str] = set()
    for word in arguments:
        key, equals, value = word.partition("=")
        if word.startswith("--"):
            if word not in flags:
                raise RecordError(
                    f"expected one of {', '.join(flags) or 'no flag'}, found {word}. Usage: {usage}"
                )
            found.add(word)
        elif equals and "/" not in key:
            if key not in keys:
                raise RecordError(
                    f"expected one of {'=, '.join(keys)}=, found {key}=. Usage: {usage}"
                )
            given[key] = value
        else:
            plain.append(word)
    return Words(tuple(plain), given, frozenset(found))
