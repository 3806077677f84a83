"""A restricted unpickler: what a pickle of TVM's task objects holds, with nothing in it executed.

A pickle is a program for a stack machine. Python's own machine imports what the program names and calls it; this one
runs the operations that build data, and where one would make an object or call something, it makes a :class:`StandIn`:
the dotted name of the class, the arguments, the state. Refused are

- a name outside :data:`NAMES`, whatever is done with it;
- an operation that TVM's objects do not need (extension codes, persistent ids, sets, byte arrays, old-style instances);
- more than :data:`MAX_BYTES` or :data:`MAX_OPERATIONS`.

Every operation costs a bounded amount of memory and time: the memo is a mapping, so a huge number in it reserves
nothing; lengths are checked against the bytes that are there; keys are text, so nothing nested is hashed; nothing is
compared, copied or printed.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

MAX_BYTES = 1 << 30
"""Of a pickle; TenSet's largest, all_tasks.pkl, holds 2,308 tasks with their graphs."""
MAX_OPERATIONS = 2_000_000
"""Of a pickle; a task takes some 150."""

NEW_OBJECT = "tvm.runtime.object._new_object"
RECONSTRUCTOR = "copyreg._reconstructor"
SEARCH_TASK = "tvm.auto_scheduler.search_task.SearchTask"
HARDWARE = "tvm.auto_scheduler.search_task.HardwareParams"
LAYOUT = "tvm.auto_scheduler.compute_dag.LayoutRewriteOption"
TARGETS = frozenset({"tvm.target.target.Target", "tvm.target.Target"})
STRINGS = frozenset({"tvm.runtime.container.String", "tvm.runtime.String"})
ARRAYS = frozenset({"tvm.ir.container.Array", "tvm.ir.Array"})
_UNREAD = frozenset(
    {
        "tvm.auto_scheduler.compute_dag.ComputeDAG",
        "tvm.runtime.object.Object",
        "tvm.runtime.Object",
    }
)
_CLASSES = frozenset({SEARCH_TASK, HARDWARE, LAYOUT}) | TARGETS | STRINGS | ARRAYS | _UNREAD
_BASES = frozenset({"builtins.object", "builtins.str"})
_FUNCTIONS = frozenset({NEW_OBJECT, RECONSTRUCTOR})
NAMES = _CLASSES | _BASES | _FUNCTIONS
"""All that a pickle may name; none of them is imported or called."""

_OLD_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}


@dataclass(slots=True, eq=False)
class StandIn:
    """An object that was not made: the dotted name of its class, arguments, state."""

    name: str
    args: tuple[Any, ...] = ()
    state: Any = None


@dataclass(frozen=True, slots=True)
class _Name:
    dotted: str


class RefusedError(ValueError):
    """A pickle that is damaged, too large, or not one of TVM's task objects."""


def unpickle(data: bytes) -> Any:
    """Return what a pickle holds: None, numbers, text, lists, tuples, dicts with text as keys, and StandIns.

    Raises:
        RefusedError: it is damaged, too large, or refused; the message says why and at which byte.
    """
    if len(data) > MAX_BYTES:
        raise RefusedError(f"expected at most {MAX_BYTES} bytes, found {len(data)}")
    return _Machine().run(data)


def name_of(value: Any) -> str:
    """Return what a message calls an unpickled value."""
    if isinstance(value, StandIn):
        return f"a {value.name}"
    return value.dotted if isinstance(value, _Name) else f"a {type(value).__name__}"


class _Machine:
    """The stack machine: one run, one pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        position = 0
        try:
            for operation, argument, at in _operations(data):
                position = at
                if operation == "STOP":
                    return self._pop()
                self._step(operation, argument)
        except IndexError as error:
            raise RefusedError(f"byte {position}: takes more than there is") from error
        except RefusedError as error:
            raise RefusedError(f"byte {position}: {error}") from error
        raise RefusedError("ends without a value")

    def _step(self, operation: str, argument: Any) -> None:
        if operation in _CONSTANTS:
            self.stack.append(_CONSTANTS[operation])
        elif operation in _PUSHES:
            self.stack.append(argument)
        elif operation in ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[len(self.memo) if argument is None else argument] = self._top()
        elif operation in ("GET", "BINGET", "LONG_BINGET"):
            if argument not in self.memo:
                raise RefusedError(f"refers to value {argument}, which was not stored")
            self.stack.append(self.memo[argument])
        elif operation in _TUPLES:
            self.stack.append(tuple(self._pops(_TUPLES[operation])))
        elif operation not in _IGNORED:
            method = _METHODS.get(operation)
            if method is None:
                raise RefusedError(f"operation {operation} is not one that TVM's objects need")
            method(self, argument)

    def _top(self) -> Any:
        self._check(1)
        return self.stack[-1]

    def _pop(self) -> Any:
        self._check(1)
        return self.stack.pop()

    def _pops(self, count: int) -> list[Any]:
        self._check(count)
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return items

    def _check(self, count: int) -> None:
        """Refuse to take what lies below the last mark."""
        if len(self.stack) - count < (self.marks[-1] if self.marks else 0):
            raise RefusedError("takes more than there is")

    def _since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _mark(self, _: Any) -> None:
        self.marks.append(len(self.stack))

    def _empty_list(self, _: Any) -> None:
        self.stack.append([])

    def _empty_dict(self, _: Any) -> None:
        self.stack.append({})

    def _discard(self, _: Any) -> None:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self._pop()

    def _discard_mark(self, _: Any) -> None:
        self._since_mark()

    def _tuple(self, _: Any) -> None:
        self.stack.append(tuple(self._since_mark()))

    def _list(self, _: Any) -> None:
        self.stack.append(self._since_mark())

    def _dict(self, _: Any) -> None:
        items = self._since_mark()
        self.stack.append({})
        self._put(items)

    def _append(self, _: Any) -> None:
        self._extend(self._pops(1))

    def _appends(self, _: Any) -> None:
        self._extend(self._since_mark())

    def _extend(self, items: list[Any]) -> None:
        target = self._top()
        if not isinstance(target, list):
            raise RefusedError(f"appends to {name_of(target)}")
        target.extend(items)

    def _set_item(self, _: Any) -> None:
        self._put(self._pops(2))

    def _set_items(self, _: Any) -> None:
        self._put(self._since_mark())

    def _put(self, items: list[Any]) -> None:
        target = self._top()
        if not isinstance(target, dict) or len(items) % 2:
            raise RefusedError(f"sets {len(items)} keys and values in {name_of(target)}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str):
                raise RefusedError(f"expected text as a key, found {name_of(key)}")
            target[key] = value

    def _global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._named(module, name)

    def _stack_global(self, _: Any) -> None:
        module, name = self._pops(2)
        self._named(module, name)

    def _named(self, module: Any, name: Any) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise RefusedError("names something by what is no text")
        dotted = f"{_OLD_MODULES.get(module, module)}.{name}"
        if dotted not in NAMES:
            raise RefusedError(f"names {dotted[:100]!r}, which is none of TVM's task objects")
        self.stack.append(_Name(dotted))

    def _reduce(self, _: Any) -> None:
        function, args = self._pops(2)
        self.stack.append(_stand_in_for_call(function, args))

    def _new(self, _: Any) -> None:
        made, args = self._pops(2)
        self.stack.append(_stand_in(made, args))

    def _build(self, _: Any) -> None:
        target, state = self._pops(2)
        if not isinstance(target, StandIn):
            raise RefusedError(f"sets the state of {name_of(target)}")
        target.state = state
        self.stack.append(target)


_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_NUMBERS = frozenset({"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT"})
_PUSHES = _NUMBERS | {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = frozenset({"PROTO", "FRAME"})
_METHODS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine._mark,
    "EMPTY_LIST": _Machine._empty_list,
    "EMPTY_DICT": _Machine._empty_dict,
    "POP": _Machine._discard,
    "POP_MARK": _Machine._discard_mark,
    "TUPLE": _Machine._tuple,
    "LIST": _Machine._list,
    "DICT": _Machine._dict,
    "APPEND": _Machine._append,
    "APPENDS": _Machine._appends,
    "SETITEM": _Machine._set_item,
    "SETITEMS": _Machine._set_items,
    "GLOBAL": _Machine._global,
    "STACK_GLOBAL": _Machine._stack_global,
    "REDUCE": _Machine._reduce,
    "NEWOBJ": _Machine._new,
    "BUILD": _Machine._build,
}


def _operations(data: bytes) -> Iterator[tuple[str, Any, int]]:
    try:
        for count, (operation, argument, position) in enumerate(pickletools.genops(data)):
            name = operation.name if count < MAX_OPERATIONS else f"number {MAX_OPERATIONS}"
            yield name, argument, position or 0
    except ValueError as error:
        raise RefusedError(f"damaged or no pickle ({error})") from error


def _stand_in_for_call(function: Any, args: Any) -> StandIn:
    """Return what stands for `function(*args)`; nothing is called."""
    if not (isinstance(function, _Name) and isinstance(args, tuple)):
        raise RefusedError(f"calls {name_of(function)}")
    if function.dotted == NEW_OBJECT and len(args) == 1:
        return _stand_in(args[0], ())
    if function.dotted == RECONSTRUCTOR and len(args) == 3:
        return _stand_in(args[0], args[2:])
    if function.dotted == LAYOUT and len(args) == 1:
        return _stand_in(function, args)
    raise RefusedError(f"calls {function.dotted} with {len(args)} arguments")


def _stand_in(made: Any, args: Any) -> StandIn:
    if not (isinstance(made, _Name) and made.dotted in _CLASSES and isinstance(args, tuple)):
        raise RefusedError(f"makes an object of {name_of(made)}")
    return StandIn(made.dotted, args)
