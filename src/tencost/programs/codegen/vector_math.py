"""exp, erf, tanh, sigmoid and powers of vectors, written out in single precision, for what LLVM compiles.

TVM 0.27 leaves these functions to libm, one number at a time: a GELU takes 16 ns a number and a softmax's exp 3 ns,
where a core adds sixteen numbers in one. :func:`register_vector_math` gives TVM expressions in their place, which LLVM
vectorizes like any sum. What is within a fraction of 1e-6 of libm's answer, infinities and NaN included, is:

    exp      2^n times a polynomial of the rest (Cephes, S. Moshier), 2 units in the last place
    erf      a quotient of two polynomials of x^2 (as Eigen and XLA have it), beyond 4 it is 1
    tanh     a quotient of two polynomials of x^2 (Eigen), beyond 7.9 it is 1
    sigmoid  1 / (1 + exp(-x))
    pow      products and square roots where the exponent is a small constant; else libm's

Numbers of half precision (float16, bfloat16) are computed in single precision and rounded once. Doubles keep libm, a
vector of them number by number; so do other powers. Other targets than llvm keep what TVM has.
"""

from __future__ import annotations

import math
from functools import cache
from importlib.metadata import version as tvm_version
from typing import Any

from tencost.programs.codegen.blocks import number_like
from tencost.store.generator import generator

_LEVEL = 90
"""TVM's own rules have lower ones."""
_LARGEST = 88.722839
"""exp of more is infinite in single precision."""
_SMALLEST = -87.336544
"""exp of less is no normal number; it is taken for 0."""
_EXP = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
_ERF_ABOVE = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
_ERF_BELOW = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
    -1.42647390514189e-02,
)  # fmt: skip
_TANH_ABOVE = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
    1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
)  # fmt: skip
_TANH_BELOW = (
    1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03,
)  # fmt: skip
_HALVES = ("float16", "bfloat16")
_WHOLE_POWERS = 8
"""Whole exponents up to this are products."""


VERSION = 2
"""Raise it where machine code changes: times of programs that use these functions are of another code generator then.

2: erf of a vector stays a vector. Before, TVM made a loop over its numbers: an erf behind a depthwise convolution, of
vectors of eight, took up to four times as long. Add the time of the commit to MATH_SINCE of store/generator.py, too.
"""


@cache
def current_generator(target_kind: str) -> str:
    """Return the code generator of the programs that this process's workers build, see store/generator.py.

    Args:
        target_kind: kind of their target.
    """
    from tvm.target.codegen import llvm_version_major

    llvm = llvm_version_major(allow_none=True)
    math = VERSION if target_kind == "llvm" else 0
    return generator(math, tvm_version("apache-tvm"), None if llvm is None else int(llvm))


@cache
def register_vector_math() -> None:
    """Have TVM write these functions out in every module that this process compiles for llvm."""
    from tvm.ir import register_op_attr
    from tvm.tirx import register_intrin_lowering

    # TVM would make a loop over the numbers of a vector. LLVM unrolls one over 8 before it looks for loops to
    # vectorize, then takes the next one out, over pixels or rows: a GELU took up to four times as long.
    register_op_attr("tirx.erf", "TVectorizable", True)
    rules = {"exp": _exp, "erf": _erf, "tanh": _tanh, "sigmoid": _sigmoid, "pow": _pow}
    for name, rule in rules.items():
        register_intrin_lowering(f"tirx.{name}", target="llvm", f=_by_type(rule), level=_LEVEL)


def _by_type(rule: Any) -> Any:
    """Return the rule for calls of any type, from one for single precision.

    What no rule fits is returned as it is, and TVM's default calls libm. It has none for half precision or vectors.
    """

    def lowered(call: Any) -> Any:
        kind, _, lanes = str(call.ty.dtype).partition("x")
        if kind in _HALVES:
            return _in_single_precision(call, lanes)
        written = rule(call) if kind == "float32" else call
        return _number_by_number(call, int(lanes)) if lanes and written is call else written

    return lowered


def _in_single_precision(call: Any, lanes: str) -> Any:
    from tvm import tirx

    single = f"float32x{lanes}" if lanes else "float32"
    numbers = [tirx.Cast(single, argument) for argument in call.args]
    return tirx.Cast(str(call.ty.dtype), tirx.call_intrin(single, call.op, *numbers))


def _number_by_number(call: Any, lanes: int) -> Any:
    """Return a vector of calls, each with one number of the arguments' vectors."""
    from tvm import tirx

    kind = str(call.ty.dtype).partition("x")[0]
    calls = [
        tirx.call_intrin(
            kind, call.op, *(tirx.Shuffle([argument], [lane]) for argument in call.args)
        )
        for lane in range(lanes)
    ]
    return tirx.Shuffle(calls, list(range(lanes)))


def _polynomial(x: Any, coefficients: tuple[float, ...]) -> Any:
    """Horner's scheme, the highest power first."""
    value = number_like(coefficients[0], x)
    for coefficient in coefficients[1:]:
        value = value * x + number_like(coefficient, x)
    return value


def _within(x: Any, limit: float) -> Any:
    """Return x, at most `limit` from 0; NaN stays."""
    from tvm import tirx

    high, low = number_like(limit, x), number_like(-limit, x)
    return tirx.Select(x > high, high, tirx.Select(x < low, low, x))


def _exp(call: Any) -> Any:
    return _exp_of(call.args[0])


def _exp_of(x: Any) -> Any:
    from tvm import tirx

    # What is beyond both ends is chosen at the end; NaN must not become a whole number.
    bounded = tirx.Max(tirx.Min(x, number_like(_LARGEST, x)), number_like(_SMALLEST, x))
    whole = whole_power(bounded)
    rest = x - whole * number_like(0.693359375, x) - whole * number_like(-2.12194440e-4, x)
    value = _polynomial(rest, _EXP) * rest * rest + rest + number_like(1.0, x)
    lanes = str(x.ty.dtype).removeprefix("float32")
    # 2^n in two factors: n may be 128 where the result is still finite.
    number = tirx.Cast(f"int32{lanes}", whole)
    half = number >> tirx.const(1, f"int32{lanes}")
    for part in (half, number - half):
        bits = (part + tirx.const(127, f"int32{lanes}")) << tirx.const(23, f"int32{lanes}")
        value = value * tirx.reinterpret(str(x.ty.dtype), bits)
    value = tirx.Select(x > number_like(_LARGEST, x), number_like(math.inf, x), value)
    return tirx.Select(x < number_like(_SMALLEST, x), number_like(0.0, x), value)


def whole_power(x: Any) -> Any:
    """Return the whole number n for which 2^n is nearest to exp(x), as a float; the next one serves as well."""
    from tvm import tirx

    return tirx.floor(x * number_like(math.log2(math.e), x) + number_like(0.5, x))


def exp_at_most_one(x: Any, halvings: int = 0) -> Any:
    """Return exp of what is at most 0, as of a row's distances from its maximum; NaN stays.

    It takes two thirds of the operations that any number's exp takes: it has one end, and 2^n is one factor.

    Args:
        x: the numbers.
        halvings: how often the result is halved, which costs nothing.
    """
    from tvm import tirx

    lanes = str(x.ty.dtype).removeprefix("float32")
    smallest = number_like(_SMALLEST + halvings * math.log(2), x)
    whole = whole_power(tirx.Max(x, smallest))
    rest = x - whole * number_like(0.693359375, x) - whole * number_like(-2.12194440e-4, x)
    value = _polynomial(rest, _EXP) * (rest * rest) + rest + number_like(1.0, x)
    exponent = tirx.Cast(f"int32{lanes}", whole) + tirx.const(127 - halvings, f"int32{lanes}")
    bits = exponent << tirx.const(23, f"int32{lanes}")
    value = value * tirx.reinterpret(str(x.ty.dtype), bits)
    return tirx.Select(x < smallest, number_like(0.0, x), value)


def jumps_of_exp_at_most_one(select: Any) -> list[Any]:
    """Return the comparison and the whole number in an expression of :func:`exp_at_most_one`; of any other, nothing.

    Neither is seen in the result: a value near 2^-126 is 0 as well, and the polynomial's argument moves with the power.
    """
    from tvm import tirx
    from tvm_ffi import structural_equal

    end = select.condition
    smallest = getattr(end, "b", None)
    smallest = smallest.value if isinstance(smallest, tirx.Broadcast) else smallest
    if not isinstance(end, tirx.LT) or not isinstance(smallest, tirx.FloatImm):
        return []
    halvings = round((float(smallest.value) - _SMALLEST) / math.log(2))
    if halvings < 0 or not structural_equal(select, exp_at_most_one(end.a, halvings)):
        return []
    whole = whole_power(tirx.Max(end.a, end.b))
    return [end, whole, tirx.Cast(f"int32{str(end.a.ty.dtype).removeprefix('float32')}", whole)]


def _erf(call: Any) -> Any:
    x = _within(call.args[0], 4.0)
    square = x * x
    return x * _polynomial(square, _ERF_ABOVE) / _polynomial(square, _ERF_BELOW)


def _tanh(call: Any) -> Any:
    x = _within(call.args[0], 7.90531110763549805)
    square = x * x
    return x * _polynomial(square, _TANH_ABOVE) / _polynomial(square, _TANH_BELOW)


def _sigmoid(call: Any) -> Any:
    x = call.args[0]
    unit = number_like(1.0, x)
    return unit / (unit + _exp_of(number_like(0.0, x) - x))


def _pow(call: Any) -> Any:
    from tvm import tirx

    base, exponent = call.args
    constant = exponent.value if isinstance(exponent, tirx.Broadcast) else exponent
    if not isinstance(constant, tirx.FloatImm):
        return call
    value = float(constant.value)
    if value == 0.5:
        return tirx.sqrt(base)
    if value != int(value) or not 1 <= value <= _WHOLE_POWERS:
        return call
    product, square, power = None, base, int(value)
    while power:
        if power & 1:
            product = square if product is None else product * square
        power >>= 1
        square = square * square
    return product
