"""Spectra of signals: DFT and STFT as products with constant matrices; windows and mel matrices of constant size."""

from __future__ import annotations

import numpy as np

from tencost.networks.inputs import Array
from tencost.networks.operators.functions import evaluate
from tencost.networks.operators.node import Node, Refused


def _dft(node: Node) -> None:
    data = node.proto.input[0]
    shape = node.shape(0)
    axis = node.attribute("axis", 1)
    if node.opset >= 20:
        axis = -2
        if node.has_input(2):
            axis = _number(node, 2, "axis")
    axis %= len(shape)
    inverse, onesided = (bool(node.attribute(key, 0)) for key in ("inverse", "onesided"))
    size = shape[axis]
    length = 2 * (size - 1) if inverse and onesided else size
    if node.has_input(1):
        length = _number(node, 1, "dft_length")
    order = [place for place in range(len(shape) - 1) if place != axis]
    order += [axis, len(shape) - 1]
    matrix = spectrum_matrix(size, length, parts=shape[-1], inverse=inverse, onesided=onesided)
    moved = node.write("Transpose", data, perm=order)
    spectrum = _transform(node, moved, [shape[place] for place in order], matrix)
    node.finish("Transpose", spectrum, perm=[order.index(place) for place in range(len(shape))])


def _stft(node: Node) -> None:
    """Gather the frames, then multiply each with the window and the matrix of a DFT."""
    batch, size, parts = node.shape(0)
    step, window = _number(node, 1, "frame_step"), node.constant(2)
    length = node.shape(2)[0] if node.has_input(2) else size
    if node.has_input(3):
        length = _number(node, 3, "frame_length")
    if node.has_input(2) and node.shape(2)[0] != length:
        raise Refused(f"STFT with frames of {length} values and a window of {node.shape(2)[0]}")
    count = 1 + (size - length) // step
    places = step * np.arange(count)[:, None] + np.arange(length)
    frames = node.write("Gather", node.proto.input[0], node.write_constant(places), axis=1)
    matrix = spectrum_matrix(
        length, length, parts=parts, onesided=bool(node.attribute("onesided", 1))
    )
    if window is not None:
        matrix = matrix * window.astype(np.float64)[:, None, None, None]
    elif node.has_input(2):
        frames = node.write("Mul", frames, node.reshape(node.proto.input[2], [length, 1]))
    spectrum = _transform(node, frames, [batch, count, length, parts], matrix)
    node.finish("Identity", spectrum)


def spectrum_matrix(
    size: int, length: int, *, parts: int, inverse: bool = False, onesided: bool = False
) -> Array:
    """Return what a DFT multiplies a signal with.

    Args:
        size: of the signal; what is beyond `length` is cut off, what lacks is 0.
        length: of the transform.
        parts: 1 of a real signal, 2 of a complex one: its real part, then its imaginary part.
        inverse: whether it transforms back.
        onesided: of a real signal only length // 2 + 1 values are made or, inverse, taken.

    Returns:
        float64 [size, parts, values, parts of a value]; the parts of a value are 1 where a real signal comes back.
    """
    to_real = inverse and onesided
    bins = length // 2 + 1 if onesided else length
    values = bins if onesided and not inverse else length
    taken = min(size, bins if to_real else length)
    # Reduced before it is multiplied: the angle of a long signal keeps its digits.
    turns = np.outer(np.arange(taken), np.arange(values)) % length / length
    angles = 2 * np.pi * turns * (1 if inverse else -1)
    cos, sin = np.cos(angles), np.sin(angles)
    weights = np.ones((taken, 1)) / (length if inverse else 1)
    if to_real:  # the half that is not there is the conjugate of the half that is
        middle = (np.arange(taken) > 0) & (2 * np.arange(taken) != length)
        weights[middle] *= 2
    matrix = np.zeros((size, parts, values, 1 if to_real else 2))
    matrix[:taken, 0, :, 0] = cos * weights
    if parts == 2:
        matrix[:taken, 1, :, 0] = -sin * weights
    if not to_real:
        matrix[:taken, 0, :, 1] = sin * weights
        if parts == 2:
            matrix[:taken, 1, :, 1] = cos * weights
    return matrix


def _transform(node: Node, data: str, shape: list[int], matrix: Array) -> str:
    """Write the product of the last two axes of data with a matrix of :func:`spectrum_matrix`."""
    *others, size, parts = shape
    values, parts_out = matrix.shape[2:]
    flat = node.reshape(data, [*others, size * parts])
    weights = matrix.reshape(size * parts, values * parts_out)
    product = node.write("MatMul", flat, node.write_constant(weights, node.dtype(0)))
    return node.reshape(product, [*others, values, parts_out])


def _number(node: Node, index: int, name: str) -> int:
    value = node.constant(index)
    if value is None:
        raise Refused(f"{node.proto.op_type} whose {name} is no constant")
    return int(value.item())


def _of_constants(node: Node) -> None:
    """Compute a window or a matrix of weights here."""
    if not evaluate(node):
        raise Refused(f"{node.proto.op_type} whose size is no constant")


WRITERS = {"DFT": _dft, "STFT": _stft} | dict.fromkeys(
    ("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix"), _of_constants
)
