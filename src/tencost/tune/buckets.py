"""A network of several sizes in one library: the batches, or lengths, for which it is compiled.

A file may leave a dimension open: ONNX calls it by a name, torch.export by a symbol. A compiled network has fixed
shapes, so it is compiled once for each size of ``network.buckets``, and a call runs the least of them that holds its
inputs, padded behind. That is sound where no value depends on others along that dimension, as in a batch, or where a
mask says what is padding; whether it is, :mod:`tencost.networks.padding` proves from the graph. Where it is not proved,
only the sizes themselves can be run.

The functions of the sizes share a library and its weights, where their layouts agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tencost.config import NetworkConfig
from tencost.config.parts import NETWORK_SOURCES
from tencost.errors import ConfigError, TuneError
from tencost.networks.inputs import Array, open_dimension
from tencost.networks.network import Network
from tencost.networks.padding import padding_objection
from tencost.networks.source import Imported, NetworkSource, read_network, source_file
from tencost.tune.deploy import output_agreement

Run = Callable[[Network], Sequence[Array]]
Shape = Sequence[int]
Axes = tuple[tuple[int, ...], ...]
"""Of each tensor, the axes along which its sizes differ: none, one, or two, as of a mask of all pairs of tokens."""


@dataclass(frozen=True)
class Buckets:
    """The sizes that a library was compiled for.

    Attributes:
        dimension: the setting of the network that chooses the size: batch or size.
        sizes: ascending; the network's function of each is :func:`entry`.
        inputs, outputs: their axes of that size.
        padded: whether calls of other sizes may be padded.
    """

    dimension: str
    sizes: tuple[int, ...]
    inputs: Axes
    outputs: Axes
    padded: bool

    @classmethod
    def of(
        cls,
        dimension: str,
        sizes: Sequence[int],
        network: Network,
        other: Network | Imported,
    ) -> Buckets:
        """Return the axes that a size decides; not yet padded.

        Args:
            dimension: see the attributes.
            sizes: ascending.
            network: of one of them.
            other: the same of another size, whichever.
        """
        inputs = _axes(network.inputs.values(), other.inputs.values())
        return cls(
            dimension, tuple(sizes), inputs, _axes(network.expected, other.expected), padded=False
        )

    @classmethod
    def read(
        cls,
        values: Mapping[str, Any],
        inputs_shapes: Sequence[Shape],
        outputs_shapes: Sequence[Shape],
    ) -> Buckets:
        """Return what the description of a library has, its fields, where its tensors have these shapes.

        Raises:
            KeyError, TypeError, ValueError: it is something else, or does not fit the shapes.
        """
        inputs, outputs = (tuple(map(tuple, values[name])) for name in ("inputs", "outputs"))
        sizes = tuple(values["sizes"])
        of_inputs, _ = (
            {
                dict(enumerate(shape))[axis]
                for shape, axes in zip(shapes, each, strict=True)
                for axis in axes
            }
            for shapes, each in ((inputs_shapes, inputs), (outputs_shapes, outputs))
        )
        ascending = sizes == tuple(sorted({int(size) for size in sizes if size > 0}))
        if not ascending or of_inputs != {max(sizes)}:
            raise ValueError(f"buckets {sizes} along axes {inputs}")
        return cls(str(values["dimension"]), sizes, inputs, outputs, bool(values["padded"]))

    @property
    def between(self) -> int | None:
        """A size that is none of these, though one of them holds it; None where there is none."""
        other = other_size(self.sizes)
        return other if other < self.sizes[-1] else None

    @property
    def compared(self) -> list[tuple[int, int]]:
        """Pairs of sizes whose graphs are compared: the least and the most that are padded, each with the largest.

        A number that the graph computes from the size differs in one of them. One is no such size: every axis of one
        number could be that of the size. A file computes the same of it.
        """
        largest = self.sizes[-1]
        padded = [size for size in range(2, largest) if size not in self.sizes]
        if not padded:
            return [(max(largest, 2), max(largest, 2) + 1)]
        return [(size, largest) for size in sorted({padded[0], padded[-1]})]

    def bucket(self, size: int) -> int | None:
        """Return the least compiled size that holds one; None where there is none."""
        if not self.padded:
            return size if size in self.sizes else None
        return next((bucket for bucket in self.sizes if bucket >= size), None)


def entry(size: int, sizes: Sequence[int]) -> str:
    """Return the name of the function of a size: that of the largest is ``main``, as of every network."""
    return "main" if size == max(sizes) else f"main_{size}"


def dimension_of(config: NetworkConfig, root: Path) -> str:
    """Return the setting that chooses the dimension which a network's file leaves open: batch or size.

    Raises:
        ConfigError: the source has no open dimensions, or the file has none, or several.
    """
    source: NetworkSource = NETWORK_SOURCES.load(config.source, "network.source")
    if source.declared is None:
        raise ConfigError(
            "network.buckets: expected a network from a file that leaves a dimension open, network=onnx or "
            f"network=torch_export; found network.source={config.source}"
        )
    path = source_file(config, source, root)
    assert path is not None
    return open_dimension(config, source.declared(config, path))


def other_size(buckets: Sequence[int]) -> int:
    """Return the size that a library is tried with beside its own: between them, else one more than the largest."""
    for before, size in zip((0, *buckets), buckets, strict=False):
        if size - before > 1:
            return (before + size) // 2
    return buckets[-1] + 1


def of_size(config: NetworkConfig, dimension: str, size: int) -> NetworkConfig:
    """Return the network's settings for one size."""
    if dimension == "batch":
        return replace(config, batch=size)
    return replace(config, size=size)


def try_padding(buckets: Buckets, network: Network, smaller: Imported, run: Run) -> str:
    """Return why a padded call computes something else than the network's file; empty where it does not, once.

    Args:
        buckets: the sizes.
        network: of the least size that holds :attr:`Buckets.between`.
        smaller: the file's, of that size between.
        run: calls the library's function of a network with the network's inputs; all outputs.
    """
    between = buckets.between
    assert between is not None
    bucket = next(size for size in buckets.sizes if size > between)
    named = zip(smaller.inputs.items(), buckets.inputs, strict=True)
    inputs = {name: pad_array(array, axes, bucket) for (name, array), axes in named}
    outputs = run(replace(network, inputs=inputs))
    for name, output, axes, expected, precision in zip(
        network.outputs, outputs, buckets.outputs, smaller.expected, network.precisions, strict=True
    ):
        try:
            agreement = output_agreement(front(output, axes, between), expected, precision)
        except TuneError as error:
            return f"output {name}: {error}"
        if agreement.differs:
            return f"output {name} differs by {agreement.max_rel:.0e} of such values"
    return ""


def prove_padding(buckets: Buckets, config: NetworkConfig, root: Path) -> str:
    """Return why padded calls may compute something else than the network's file; empty where that is proved.

    Args:
        buckets: the sizes.
        config: the network's settings.
        root: the project's root.

    Raises:
        TencostError: the file itself cannot be read at one of the sizes.
    """
    read: dict[int, Imported] = {}
    for small, large in buckets.compared:
        for size in {small, large} - set(read):
            read[size] = read_network(of_size(config, buckets.dimension, size), root)
        if reason := padding_objection(read[small], read[large], (small, large)):
            return reason
    return ""


def pad_array(array: Array, axes: Sequence[int], size: int) -> Array:
    """Return an array with zeros behind it, up to a size of some axes."""
    behind = [(0, size - count if axis in axes else 0) for axis, count in enumerate(array.shape)]
    return np.pad(array, behind) if any(more for _, more in behind) else array


def front(array: Any, axes: Sequence[int], size: int) -> Any:
    """Return the first values along some axes, of an array or tensor, without a copy."""
    return array[tuple(slice(size if axis in axes else None) for axis in range(array.ndim))]


def _axes(arrays: Iterable[Array], others: Iterable[Array]) -> Axes:
    """Return for each tensor the axes that differ between two sizes."""
    return tuple(
        tuple(axis for axis in range(one.ndim) if one.shape[axis] != other.shape[axis])
        for one, other in zip(arrays, others, strict=True)
    )
