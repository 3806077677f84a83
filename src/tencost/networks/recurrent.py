"""LSTM, GRU and RNN layers as one function with the loop over time inside, whichever frontend reads them.

A layer is two calls: one matrix product of all steps with the input weights of all directions, and a function that
goes through the steps. Each step multiplies the hidden state by the recurrent weights, 64 columns in registers at a
time, and then computes gates and states number by number. Directions, and four items of the batch at a time, go through
all steps by themselves, so that cores share them. The size of the code, and the time to compile it, do not depend on
the number of steps. The function has a schedule: rules and programs of a database leave it as it is.

Letters: T steps, B batch, D directions (1 or 2), I inputs, H hidden, G gates (LSTM 4, GRU 3, RNN 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tencost.programs.codegen.blocks import AMONG_CORES, number_like

MARK = "tencost.recurrent"
"""Attribute of the functions that are made here: the layer's name, such as LSTM."""
GATES = {"LSTM": "iofc", "GRU": "zrh", "RNN": "h"}
"""Cell -> its gates in the order in which ONNX stores their weights.

LSTM: input, output, forget, cell; GRU: update, reset, hidden."""
_COLUMNS, _ROWS, _SHARED_COLUMNS = 64, 4, 32
"""Sums in registers at a time: 64 columns of one row, or 32 columns of four rows."""
_VECTOR_BYTES = 64


@dataclass(frozen=True)
class Activation:
    """An activation function by its name in ONNX in lower case, with its numbers."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0

    def __call__(self, x: Any) -> Any:
        """Return the function of a TIR expression."""
        return ACTIVATIONS[self.name](
            x, *(number_like(value, x) for value in (self.alpha, self.beta))
        )


def _tirx() -> Any:
    from tvm import tirx

    return tirx


def _above(x: Any) -> Any:
    return _tirx().Max(x, number_like(0.0, x))


def _below(x: Any) -> Any:
    return _tirx().Min(x, number_like(0.0, x))


ACTIVATIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "affine": lambda x, alpha, beta: alpha * x + beta,
    "elu": lambda x, alpha, _: _above(x) + alpha * (_tirx().exp(_below(x)) - number_like(1.0, x)),
    "hardsigmoid": lambda x, alpha, beta: _tirx().Max(
        _tirx().Min(alpha * x + beta, number_like(1.0, x)), number_like(0.0, x)
    ),
    "leakyrelu": lambda x, alpha, _: _above(x) + alpha * _below(x),
    "relu": lambda x, *_: _above(x),
    "scaledtanh": lambda x, alpha, beta: alpha * _tirx().tanh(beta * x),
    "sigmoid": lambda x, *_: _tirx().sigmoid(x),
    "softplus": lambda x, *_: (
        _above(x) + _tirx().log(number_like(1.0, x) + _tirx().exp(_below(x) - _above(x)))
    ),
    "softsign": lambda x, *_: x / (number_like(1.0, x) + _above(x) - _below(x)),
    "tanh": lambda x, *_: _tirx().tanh(x),
    "thresholdedrelu": lambda x, alpha, _: _tirx().Select(x > alpha, x, number_like(0.0, x)),
}
"""Name -> function of (x, alpha, beta)."""


@dataclass(frozen=True)
class RecurrentTensors:
    """What a layer reads, Relax expressions of one floating-point type.

    Attributes:
        data: [T, B, I].
        weights: [D, G * H, I].
        recurrent: [D, G * H, H].
        bias: [D, G * H], or None.
        recurrent_bias: [D, G * H], or None where there is no bias.
        hidden: the states before the first step, [D, B, H]; None for zeros.
        cell: as `hidden`, of an LSTM.
        peepholes: [D, 3 * H] of the gates i, o, f, or None.
        lengths: int32 [B], how many steps of each item of the batch count; None for all.
    """

    data: Any
    weights: Any
    recurrent: Any
    bias: Any = None
    recurrent_bias: Any = None
    hidden: Any = None
    cell: Any = None
    peepholes: Any = None
    lengths: Any = None


@dataclass(frozen=True)
class RecurrentLayer:
    """A recurrent layer as ONNX defines it.

    Attributes:
        kind: LSTM, GRU or RNN.
        gates: the order of the gates in its weights, letters of GATES.
        reverse: for each direction, whether it begins at the last step.
        activations: for each direction, those of the gates, the cell and the state, in ONNX's order.
        clip: bound of what goes into an activation; None for none.
        linear_before_reset: whether a GRU multiplies the state by its weights before it is reset.
        input_forget: whether the forget gate of an LSTM is what the input gate leaves.
    """

    kind: str
    gates: str
    reverse: tuple[bool, ...]
    activations: tuple[tuple[Activation, ...], ...]
    clip: float | None = None
    linear_before_reset: bool = False
    input_forget: bool = False

    def emit(self, builder: Any, tensors: RecurrentTensors) -> tuple[Any, ...]:
        """Write the layer with a relax.BlockBuilder.

        Returns:
            Y [T, D, B, H], the last hidden states [D, B, H] and, of an LSTM, the last cell states [D, B, H].
        """
        from tvm import relax

        op = relax.op
        steps, batch, _ = sizes(tensors.data)
        directions, columns, inputs = sizes(tensors.weights)
        hidden, dtype = sizes(tensors.recurrent)[2], str(tensors.data.ty.dtype)
        rows = op.reshape(tensors.data, (steps * batch, inputs))
        weights = op.reshape(
            op.permute_dims(tensors.weights, [2, 0, 1]), (inputs, directions * columns)
        )
        product = op.matmul(builder.emit(rows), builder.emit(weights))
        if tensors.bias is not None:
            bias = tensors.bias
            if not self.linear_before_reset:
                bias = op.add(bias, tensors.recurrent_bias)
            product = op.add(
                builder.emit(product), builder.emit(op.reshape(bias, (directions * columns,)))
            )
        read = {
            "product": product,
            "recurrent": op.permute_dims(tensors.recurrent, [0, 2, 1]),
            "bias": tensors.recurrent_bias if self.linear_before_reset else None,
            "hidden": tensors.hidden,
            "cell": tensors.cell,
            "peepholes": tensors.peepholes,
            "lengths": tensors.lengths,
        }
        arguments = {name: builder.emit(value) for name, value in read.items() if value is not None}
        computed = dtype if dtype in ("float32", "float64") else "float32"
        if dtype != computed:
            arguments = {
                name: builder.emit(op.astype(value, computed)) if name != "lengths" else value
                for name, value in arguments.items()
            }
        states = 2 if self.kind == "LSTM" else 1
        shapes = [(steps, directions, batch, hidden), *[(directions, batch, hidden)] * states]
        writer = _Writer(self, steps, batch, hidden, computed)
        function = builder.add_func(
            writer.function({name: sizes(value) for name, value in arguments.items()}, shapes),
            self.kind.lower(),
        )
        types = [relax.TensorType(shape, computed) for shape in shapes]
        outputs = builder.emit(
            relax.call_tir(function, relax.Tuple(list(arguments.values())), types)
        )
        parts = [builder.emit(relax.TupleGetItem(outputs, index)) for index in range(len(shapes))]
        if dtype != computed:
            parts = [builder.emit(op.astype(part, dtype)) for part in parts]
        return tuple(parts)


def recurrent_layers(mod: Any) -> list[str]:
    """Return the kinds of the recurrent layers in a Relax module that were written here."""
    attributes = (dict(function.attrs or {}) for function in mod.functions.values())
    return sorted({str(values[MARK]) for values in attributes if MARK in values})


def sizes(tensor: Any) -> tuple[int, ...]:
    """Return the shape of a Relax expression, which has to be constant."""
    return tuple(int(size) for size in tensor.ty.shape)


class _Writer:
    """Writes the function that goes through a layer's steps, with TVM's IRBuilder."""

    def __init__(
        self, layer: RecurrentLayer, steps: int, batch: int, hidden: int, dtype: str
    ) -> None:
        from tvm.script.ir_builder import tirx

        self.layer, self.steps, self.batch, self.hidden = layer, steps, batch, hidden
        self.dtype, self.t = dtype, tirx
        self.columns = hidden * len(layer.gates)
        self.rows, self.first = min(batch, _ROWS), 0  # of the batch, that are written now
        self.lanes = _VECTOR_BYTES // (8 if dtype == "float64" else 4)
        self.arguments: dict[str, Any] = {}
        self.outputs: list[Any] = []

    def function(
        self, arguments: dict[str, tuple[int, ...]], outputs: list[tuple[int, ...]]
    ) -> Any:
        """Return the PrimFunc that reads arguments of these names and shapes and writes outputs of these shapes."""
        from tvm.script.ir_builder import IRBuilder

        t = self.t
        with IRBuilder() as builder:
            with t.prim_func(private=True, s_tir=True):
                t.func_attr(
                    {"tirx.is_scheduled": True, "tirx.noalias": True, MARK: self.layer.kind}
                )
                for name, shape in arguments.items():
                    dtype = "int32" if name == "lengths" else self.dtype
                    self.arguments[name] = t.arg(name, t.buffer(shape, dtype))
                for index, shape in enumerate(outputs):
                    self.outputs.append(t.arg(f"output{index}", t.buffer(shape, self.dtype)))
                directions = range(len(self.layer.reverse))
                blocks = self.batch // self.rows
                extent = len(directions) * blocks
                notes = {AMONG_CORES: True} if extent > 1 else {}
                with t.serial(0, extent, annotations=notes) as block:
                    for direction in directions:
                        self.first = (block - direction * blocks) * self.rows
                        self._write_where(block // blocks == direction, direction)
                rest = self.batch % self.rows
                self.first, self.rows = self.batch - rest, rest
                for direction in directions if rest else ():
                    self._write_direction(direction)
            return builder.get()

    def _write_where(self, condition: Any, direction: int) -> None:
        """Write a direction's steps where a condition holds, which is known where there is one direction."""
        if len(self.layer.reverse) == 1:
            self._write_direction(direction)
            return
        with self.t.If(condition), self.t.Then():
            self._write_direction(direction)

    def _zero(self) -> Any:
        return _tirx().const(0.0, self.dtype)

    def _store(self, buffer: Any, value: Any, *indices: Any) -> None:
        self.t.buffer_store(buffer, value, list(indices))

    def _write_direction(self, direction: int) -> None:
        t, layer = self.t, self.layer
        shape = (self.rows, self.hidden)
        hidden = t.alloc_buffer(shape, self.dtype)
        cell = t.alloc_buffer(shape, self.dtype) if layer.kind == "LSTM" else None
        gates = t.alloc_buffer((self.rows, self.columns), self.dtype)
        reset = None
        if layer.kind == "GRU" and not layer.linear_before_reset:
            reset = t.alloc_buffer(shape, self.dtype)
        for name, state in (("hidden", hidden), ("cell", cell)):
            if state is not None:
                with t.grid(*shape) as (b, j):
                    initial = self.arguments.get(name)
                    value = (
                        self._zero() if initial is None else initial[direction, self.first + b, j]
                    )
                    self._store(state, value, b, j)
        with t.serial(0, self.steps) as step:
            time = self.steps - 1 - step if layer.reverse[direction] else step
            write = {"LSTM": self._write_lstm, "GRU": self._write_gru, "RNN": self._write_rnn}
            write[layer.kind](direction, time, gates, hidden, cell if cell is not None else reset)
        lengths = self.arguments.get("lengths")
        for output, state in zip(self.outputs[1:], (hidden, cell), strict=False):
            with t.grid(*shape) as (b, j):
                value = state[b, j]
                if lengths is not None:  # ONNX Runtime has zeros where there is no step
                    value = _tirx().if_then_else(lengths[self.first + b] > 0, value, self._zero())
                self._store(output, value, direction, self.first + b, j)

    def _write_product(
        self, direction: int, gates: Any, source: Any, first: int, last: int, start: Any
    ) -> None:
        """Write gates[b, first:last] = start(b, j) + source[b] @ recurrent."""
        t, rows = self.t, self.rows
        width = _COLUMNS if rows == 1 else _SHARED_COLUMNS

        def vectors(width: int, write: Callable[[Any, Any], None]) -> None:
            whole = width // self.lanes
            if whole:
                with t.unroll(0, whole) as vector, t.vectorized(0, self.lanes) as lane:
                    write(vector * self.lanes, lane)
            if width % self.lanes:
                with t.vectorized(0, width % self.lanes) as lane:
                    write(whole * self.lanes, lane)

        def write_tile(j0: Any, width: int) -> None:
            sums = t.alloc_buffer((rows, width), self.dtype, scope="local")
            recurrent = self.arguments["recurrent"]
            with t.unroll(0, rows) as row:
                vectors(
                    width,
                    lambda at, lane: self._store(sums, start(row, j0 + at + lane), row, at + lane),
                )
            with t.serial(0, self.hidden) as k, t.unroll(0, rows) as row:
                vectors(
                    width,
                    lambda at, lane: self._store(
                        sums,
                        sums[row, at + lane]
                        + source[row, k] * recurrent[direction, k, j0 + at + lane],
                        row, at + lane,
                    ),
                )  # fmt: skip
            with t.unroll(0, rows) as row:
                vectors(
                    width,
                    lambda at, lane: self._store(gates, sums[row, at + lane], row, j0 + at + lane),
                )

        whole = (last - first) // width
        if whole:
            with t.serial(0, whole) as chunk:
                write_tile(first + chunk * width, width)
        if first + whole * width < last:
            write_tile(first + whole * width, last - first - whole * width)

    def _input(self, direction: int, time: Any) -> Callable[[Any, Any], Any]:
        product, columns = self.arguments["product"], self.columns
        return lambda b, j: product[time * self.batch + self.first + b, direction * columns + j]

    def _gate(self, gates: Any, letter: str, b: Any, j: Any) -> Any:
        return gates[b, self.layer.gates.index(letter) * self.hidden + j]

    def _activated(self, direction: int, index: int, value: Any, *, clips: bool = True) -> Any:
        """Return an activation of a value, which is clipped before."""
        clip = self.layer.clip if clips else None
        if clip is not None:
            high, low = number_like(clip, value), number_like(-clip, value)
            value = _tirx().Max(_tirx().Min(value, high), low)
        return self.layer.activations[direction][index](value)

    def _write_state(
        self, direction: int, time: Any, b: Any, j: Any, states: list[tuple[Any, Any]]
    ) -> None:
        """Write the new states and Y, except where an item's steps have ended: there states stay and Y is 0."""
        lengths = self.arguments.get("lengths")
        runs = None if lengths is None else time < lengths[self.first + b]
        for buffer, value in states:
            if runs is not None:
                value = _tirx().if_then_else(runs, value, buffer[b, j])
            self._store(buffer, value, b, j)
        hidden = states[-1][0][b, j]
        output = hidden if runs is None else _tirx().if_then_else(runs, hidden, self._zero())
        self._store(self.outputs[0], output, time, direction, self.first + b, j)

    def _write_rnn(self, direction: int, time: Any, gates: Any, hidden: Any, _: Any) -> None:
        self._write_product(direction, gates, hidden, 0, self.columns, self._input(direction, time))
        with self.t.grid(self.rows, self.hidden) as (b, j):
            value = self._activated(direction, 0, gates[b, j])
            self._write_state(direction, time, b, j, [(hidden, value)])

    def _write_lstm(self, direction: int, time: Any, gates: Any, hidden: Any, cell: Any) -> None:
        self._write_product(direction, gates, hidden, 0, self.columns, self._input(direction, time))
        peepholes = self.arguments.get("peepholes")

        def gate(letter: str, b: Any, j: Any, index: int) -> Any:
            value = self._gate(gates, letter, b, j)
            if peepholes is not None and letter in "iof":
                place = "iof".index(letter) * self.hidden + j
                value = value + peepholes[direction, place] * cell[b, j]
            return self._activated(direction, index, value)

        with self.t.grid(self.rows, self.hidden) as (b, j):
            lengths = self.arguments.get("lengths")
            entered = gate("i", b, j, 0)
            retained = (
                number_like(1.0, cell[b, j]) - entered
                if self.layer.input_forget
                else gate("f", b, j, 0)
            )
            value = retained * cell[b, j] + entered * gate("c", b, j, 1)
            if lengths is not None:
                value = _tirx().if_then_else(time < lengths[self.first + b], value, cell[b, j])
            self._store(cell, value, b, j)
            # As ONNX Runtime does: clip bounds what the gates take, not the state.
            output = self._activated(direction, 2, cell[b, j], clips=False)
            value = gate("o", b, j, 0) * output
            self._write_state(direction, time, b, j, [(hidden, value)])

    def _write_gru(self, direction: int, time: Any, gates: Any, hidden: Any, reset: Any) -> None:
        start, at = self._input(direction, time), self.layer.gates.index("h") * self.hidden
        bias = self.arguments.get("bias")
        if bias is not None:
            plain = start
            start = lambda b, j: plain(b, j) + bias[direction, j]  # noqa: E731
        self._write_product(direction, gates, hidden, 0, at, start)
        if reset is None:
            zero = self._zero()
            self._write_product(
                direction, gates, hidden, at, self.columns,
                lambda _, j: zero if bias is None else bias[direction, j],
            )  # fmt: skip
        else:
            with self.t.grid(self.rows, self.hidden) as (b, j):
                value = self._activated(direction, 0, self._gate(gates, "r", b, j))
                self._store(reset, value * hidden[b, j], b, j)
            self._write_product(direction, gates, reset, at, self.columns, start)
        with self.t.grid(self.rows, self.hidden) as (b, j):
            value = self._gate(gates, "h", b, j)
            if reset is None:
                ratio = self._activated(direction, 0, self._gate(gates, "r", b, j))
                value = self._input(direction, time)(b, at + j) + ratio * value
            update = self._activated(direction, 0, self._gate(gates, "z", b, j))
            value = self._activated(direction, 1, value)
            value = (number_like(1.0, value) - update) * value + update * hidden[b, j]
            self._write_state(direction, time, b, j, [(hidden, value)])
