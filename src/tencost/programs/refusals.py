"""Tells what TVM refuses from a mistake in tencost's own code, which is to be seen and not to become a fallback.

TVM raises RuntimeError and ValueError, and types of its own below them, for what it cannot schedule or compile. Python
code raises the same types: an error is TVM's only where it was raised inside of TVM. TypeError is none of them: TVM
raises it where it is called with arguments of a wrong type.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class StepRefusal(ValueError):
    """A step of a schedule that a rule of tencost does not take for this function; the text says why."""


class TvmRefusal(RuntimeError):
    """TVM cannot do what it was asked for; the text is TVM's, and so is the cause."""


@contextmanager
def tvm_call() -> Iterator[None]:
    """Turn what TVM raises in this block into TvmRefusal; errors of tencost's own code pass unchanged.

    Raises:
        TvmRefusal: TVM raised a RuntimeError or ValueError.
    """
    try:
        yield
    except TvmRefusal:
        raise
    except (RuntimeError, ValueError) as error:
        if not _is_from_tvm(error):
            raise
        raise TvmRefusal(str(error)) from error


def _is_from_tvm(error: BaseException) -> bool:
    """Say whether an error was raised by TVM's C++ or Python code, not by Python code of ours that TVM called.

    TVM's bindings mark what crosses them, and write the C++ frames into the traceback: the innermost one tells.
    """
    import tvm

    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    file = "" if place is None else place.tb_frame.f_code.co_filename
    if file.endswith(".py"):
        return Path(tvm.__file__).parent in Path(file).parents
    return hasattr(error, "__tvm_ffi_error__")
