"""What a pickle of TVM's task objects holds, with nothing in it executed: the standard library's unpickler, fenced in.

A pickle is a program that names functions and classes and calls them. Here every name resolves to one of this module's
own (:data:`NAMES`), or is refused. They are safe to call with anything: a class makes a :class:`StandIn`, which keeps
its arguments and its state and looks at neither; the two functions of TVM's and Python's that make objects return such
a stand-in, or refuse. No name gives a builtin, a module or an attribute of one, so nothing else can be called.

Refused are, too, operations that TVM's objects do not need (extension codes, persistent ids, sets, byte arrays,
old-style instances), more than :data:`MAX_BYTES` and more than :data:`MAX_OPERATIONS`.

The unpickler is the one written in Python: the one in C reserves its memo by the largest number in it, 64 GiB for five
bytes, and hashes a nested key until the stack ends. Keys are text here, so nothing nested is hashed.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
from typing import Any, ClassVar, NoReturn

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
_UNREAD = (
    "tvm.auto_scheduler.compute_dag.ComputeDAG",
    "tvm.runtime.object.Object",
    "tvm.runtime.Object",
)
_OLD_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}
_OPERATIONS = """
PROTO FRAME STOP MARK POP POP_MARK MEMOIZE PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET NONE NEWTRUE NEWFALSE INT
BININT BININT1 BININT2 LONG LONG1 FLOAT BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 EMPTY_TUPLE TUPLE
TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM SETITEMS GLOBAL STACK_GLOBAL REDUCE NEWOBJ
BUILD
"""


class RefusedError(ValueError):
    """A pickle that is damaged, too large, or not one of TVM's task objects."""


class StandIn:
    """An object that was not made: the dotted name of its class, arguments, state."""

    __slots__ = ("args", "state")
    name: ClassVar[str]
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> StandIn:
        made = super().__new__(cls)
        made.args, made.state = args, None
        return made

    def __init__(self, *args: Any) -> None:
        """Only a call comes here: the objects of TVM are made without one, but for LAYOUT, which is an enum."""
        if self.name != LAYOUT or len(args) != 1:
            raise RefusedError(f"calls {self.name} with {len(args)} arguments")

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Function:
    """What makes an object out of a class, or is a class's base and no more; its own state cannot be set."""

    __slots__ = ("counts", "name")

    def __init__(self, name: str, *counts: int) -> None:
        self.name, self.counts = name, counts

    def __call__(self, *args: Any) -> StandIn:
        if len(args) not in self.counts or not _is_class(args[0]):
            raise RefusedError(
                f"calls {self.name} with {', '.join(map(name_of, args)) or 'nothing'}"
            )
        made: StandIn = args[0].__new__(args[0], *args[2:])
        return made

    def __setstate__(self, _state: Any) -> NoReturn:
        raise RefusedError(f"sets the state of {self.name}")


_CLASSES = (SEARCH_TASK, HARDWARE, LAYOUT, *TARGETS, *STRINGS, *ARRAYS, *_UNREAD)
NAMES: dict[str, Any] = {
    "builtins.object": _Function("builtins.object"),
    "builtins.str": _Function("builtins.str"),
    "tvm.runtime.object._new_object": _Function("tvm.runtime.object._new_object", 1),
    "copyreg._reconstructor": _Function("copyreg._reconstructor", 3),
    **{name: type("StandIn", (StandIn,), {"__slots__": (), "name": name}) for name in _CLASSES},
}
"""All that a pickle may name, and what of this module it gets for it."""


_Base: Any = pickle._Unpickler


class _Unpickler(_Base):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.dispatch = _Operations(_Base.dispatch)
        for operation, method in (
            (pickle.NEWOBJ, _Unpickler.load_newobj),
            (pickle.SETITEM, _Unpickler.load_setitem),
            (pickle.SETITEMS, _Unpickler.load_setitems),
            (pickle.DICT, _Unpickler.load_dict),
        ):
            self.dispatch[operation[0]] = method

    def find_class(self, module: str, name: str) -> Any:
        dotted = f"{_OLD_MODULES.get(module, module)}.{name}"
        if dotted not in NAMES:
            raise RefusedError(f"names {dotted[:100]!r}, which is none of TVM's task objects")
        return NAMES[dotted]

    def persistent_load(self, _identity: Any) -> NoReturn:
        raise RefusedError("refers to an object outside of the pickle")

    def load_newobj(self) -> None:
        if not (isinstance(self.stack[-1], tuple) and _is_class(self.stack[-2])):
            raise RefusedError(f"makes an object of {name_of(self.stack[-2])}")
        super().load_newobj()

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
    """What the unpickler does for an operation, of those that are needed; counts down MAX_OPERATIONS."""

    def __init__(self, known: dict[int, Any]) -> None:
        codes = [getattr(pickle, name)[0] for name in _OPERATIONS.split()]
        super().__init__({code: known[code] for code in codes})
        self.left = MAX_OPERATIONS

    def __getitem__(self, code: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise RefusedError(
                f"operation number {MAX_OPERATIONS} is not one that TVM's objects need"
            )
        return super().__getitem__(code)

    def __missing__(self, code: int) -> NoReturn:
        names = {operation.code: operation.name for operation in pickletools.opcodes}
        name = names.get(chr(code), hex(code))
        raise RefusedError(f"operation {name} is not one that TVM's objects need")


def unpickle(data: bytes) -> Any:
    """Return what a pickle holds: None, numbers, text, lists, tuples, dicts with text as keys, and StandIns.

    Raises:
        RefusedError: it is damaged, too large, or refused; the message says why and up to which byte it was read.
    """
    if len(data) > MAX_BYTES:
        raise RefusedError(f"expected at most {MAX_BYTES} bytes, found {len(data)}")
    file = io.BytesIO(data)
    try:
        return _Unpickler(file).load()
    except RefusedError as error:
        reason = str(error)
    except IndexError:
        reason = "damaged or no pickle (takes more than there is)"
    except EOFError:
        reason = "damaged or no pickle (pickle exhausted before its end)"
    except (pickle.UnpicklingError, ValueError, TypeError, AttributeError, struct.error) as error:
        reason = f"damaged or no pickle ({error})"
    raise RefusedError(f"byte {file.tell()} or before: {reason}")


def name_of(value: Any) -> str:
    """Return what a message calls an unpickled value."""
    if isinstance(value, StandIn):
        return f"a {value.name}"
    if isinstance(value, _Function) or _is_class(value):
        return str(value.name)
    return f"a {type(value).__name__}"


def _check_keys(keys: list[Any]) -> None:
    for key in keys:
        if not isinstance(key, str):
            raise RefusedError(f"expected text as a key, found {name_of(key)}")


def _is_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, StandIn)
