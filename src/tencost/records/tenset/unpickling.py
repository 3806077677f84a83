"""Reads a pickle of TVM's task objects as data: Python's unpickler, which finds and calls nothing here.

A pickle is a program that names functions and classes and calls them. Here a name is a :class:`Name`, text that is
compared with :data:`NAMES`; all others are refused. To call one gives a :class:`StandIn`, which holds the name of the
class and the state, or the text or number that the call has. Refused are, too, operations that TVM's objects do not
need (extension codes, persistent ids, sets, byte arrays, old-style instances), more than :data:`MAX_BYTES` and more
than :data:`MAX_OPERATIONS`.

The unpickler is the one written in Python: the one in C reserves its memo by the largest number in it, 64 GiB for five
bytes, and hashes a nested key until the stack ends. Keys are text here, so nothing nested is hashed.
"""

from __future__ import annotations

import io
import pickle
import struct
from dataclasses import dataclass
from typing import Any

MAX_BYTES = 1 << 30
"""Of a pickle; TenSet's largest, all_tasks.pkl, holds 2,308 tasks with their graphs."""
MAX_OPERATIONS = 2_000_000
"""Of a pickle; a task takes some 150."""

SEARCH_TASK = "tvm.auto_scheduler.search_task.SearchTask"
HARDWARE = "tvm.auto_scheduler.search_task.HardwareParams"
LAYOUT = "tvm.auto_scheduler.compute_dag.LayoutRewriteOption"
TARGETS = frozenset({"tvm.target.target.Target", "tvm.target.Target"})
STRINGS = frozenset({"tvm.runtime.container.String", "tvm.runtime.String"})
ARRAYS = frozenset({"tvm.ir.container.Array", "tvm.ir.Array"})
_UNREAD = {
    "tvm.auto_scheduler.compute_dag.ComputeDAG",
    "tvm.runtime.object.Object",
    "tvm.runtime.Object",
}
CLASSES = TARGETS | STRINGS | ARRAYS | _UNREAD | {SEARCH_TASK, HARDWARE, LAYOUT}
FUNCTIONS = {
    "tvm.runtime.object._new_object": 1,
    "copyreg._reconstructor": 3,
    "copy_reg._reconstructor": 3,
    LAYOUT: 1,
}
"""Functions that a pickle may call -> number of arguments; all but LAYOUT, an enum, create an object of the first."""
_BASES = {"builtins.object", "builtins.str", "__builtin__.object", "__builtin__.str"}
NAMES = CLASSES | FUNCTIONS.keys() | _BASES
"""All that a pickle may name."""
_OPERATIONS = """
PROTO FRAME STOP MARK POP POP_MARK MEMOIZE PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET NONE NEWTRUE NEWFALSE INT
BININT BININT1 BININT2 LONG LONG1 FLOAT BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 EMPTY_TUPLE TUPLE
TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM SETITEMS GLOBAL STACK_GLOBAL REDUCE NEWOBJ
BUILD
"""
_Base: Any = pickle._Unpickler


class RefusedError(ValueError):
    """A pickle that is damaged, too large, or not one of TVM's task objects."""


@dataclass(frozen=True)
class Name:
    """A class or function that a pickle names."""

    dotted: str


@dataclass(eq=False)
class StandIn:
    """An object that was not made: the dotted name of its class, and its state."""

    dotted: str
    state: Any = None


def unpickle(pickled: bytes) -> Any:
    """Return what a pickle holds: None, numbers, text, lists, tuples, dicts with text as keys, and StandIns.

    Raises:
        RefusedError: it is damaged, too large, or refused; the message says why and up to which byte it was read.
    """
    if len(pickled) > MAX_BYTES:
        raise RefusedError(f"expected at most {MAX_BYTES} bytes, found {len(pickled)}")
    file = io.BytesIO(pickled)
    try:
        return _Unpickler(file).load()
    except RefusedError as error:
        reason = str(error)
    except KeyError as error:
        reason = f"operation {error} is not one that TVM's objects need"
    except IndexError:
        reason = "damaged or no pickle (takes more than there is)"
    except EOFError:
        reason = "damaged or no pickle (pickle exhausted before its end)"
    except (pickle.UnpicklingError, ValueError, TypeError, AttributeError, struct.error) as error:
        reason = f"damaged or no pickle ({error})"
    raise RefusedError(f"byte {file.tell()} or before: {reason}")


def name_of(unpickled: Any) -> str:
    """Return what a message calls an unpickled object."""
    if isinstance(unpickled, Name):
        return unpickled.dotted
    return f"a {unpickled.dotted if isinstance(unpickled, StandIn) else type(unpickled).__name__}"


class _Unpickler(_Base):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.dispatch = _Operations()

    def find_class(self, module: str, name: str) -> Name:
        dotted = f"{module}.{name}"
        if dotted not in NAMES:
            raise RefusedError(f"names {dotted[:100]!r}, which is none of TVM's task objects")
        return Name(dotted)

    def load_reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        name = function.dotted if isinstance(function, Name) else ""
        if not isinstance(arguments, tuple) or FUNCTIONS.get(name) != len(arguments):
            raise RefusedError(f"calls {name_of(function)} with {name_of(arguments)}")
        if name == LAYOUT:
            self.stack += function, arguments
        else:
            self.stack += arguments[0], arguments[2:]
        self.load_newobj()

    def load_newobj(self) -> None:
        arguments, cls = self.stack.pop(), self.stack.pop()
        name = cls.dotted if isinstance(cls, Name) else ""
        if name not in CLASSES or not isinstance(arguments, tuple):
            raise RefusedError(f"makes an object of {name_of(cls)} with {name_of(arguments)}")
        literal = str if name in STRINGS else int if name == LAYOUT else ()
        is_literal = bool(arguments) and isinstance(arguments[0], literal)
        self.stack.append(arguments[0] if is_literal else StandIn(name))

    def load_build(self) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], StandIn):
            self.stack[-1].state = state
        elif not isinstance(self.stack[-1], str):  # a String's state says its text once more
            raise RefusedError(f"sets the state of {name_of(self.stack[-1])}")

    def load_setitem(self) -> None:
        _check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        _check_keys(self.stack[::2])
        super().load_setitems()

    def load_dict(self) -> None:
        _check_keys(self.stack[::2])
        super().load_dict()


class _Operations(dict[int, Any]):
    """The unpickler's method for the code of each operation that is needed; counts down MAX_OPERATIONS."""

    def __init__(self) -> None:
        codes = [getattr(pickle, name)[0] for name in _OPERATIONS.split()]
        super().__init__(
            {code: getattr(_Unpickler, _Base.dispatch[code].__name__) for code in codes}
        )
        self.remaining = MAX_OPERATIONS

    def __getitem__(self, code: int) -> Any:
        self.remaining -= 1
        if self.remaining < 0:
            raise RefusedError(f"expected at most {MAX_OPERATIONS} operations")
        return super().__getitem__(code)


def _check_keys(keys: list[Any]) -> None:
    for key in keys:
        if not isinstance(key, str):
            raise RefusedError(f"expected text as a key, found {name_of(key)}")
