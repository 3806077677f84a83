"""What a feature kind says of itself, and where it is looked up.

A kind is one module of :mod:`tencost.features.kinds`, or of another package through an entry point, that describes
itself as ``KIND = FeatureKind(...)``; its name is the module's. The stage, the summaries, the tuner and the model
families ask this table and know no kind by name. Importing a kind loads neither TVM nor torch: its extractors import
what they need when they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tencost.config.parts import FEATURE_KINDS
from tencost.features.rows.ragged import FloatArray, Ragged
from tencost.features.rows.spec import FeatureSpec

Options = Mapping[str, Any]
"""Settings that change a set's columns or values, by field of FeaturesConfig; kept in the set's spec."""

Floats = npt.NDArray[np.float64]

Outcome = FloatArray | str
"""What became of a stored program: its rows, float32 [rows, columns], or the reason why it has none."""


@dataclass(frozen=True)
class Chunk:
    """Some stored programs of one workload."""

    workload_id: str
    mod_json: str
    """The workload: a module, or for a log without modules {"workload": name, "args": [...]}."""
    target: str
    """JSON text of one of the targets that the programs were measured for; only its kind matters to features."""
    program_ids: tuple[str, ...]
    programs: tuple[str, ...]

    def halves(self) -> list[Chunk]:
        """Return the first and the second half of two or more programs."""
        middle = len(self.program_ids) // 2
        return [
            Chunk(
                self.workload_id,
                self.mod_json,
                self.target,
                self.program_ids[part],
                self.programs[part],
            )
            for part in (slice(None, middle), slice(middle, None))
        ]


Stored = Callable[[Chunk], list[Outcome]]
"""Reads the programs of a chunk, one outcome each; a program that cannot be read stops nothing."""

Live = Callable[[Any, Sequence[Any]], list[FloatArray | None]]
"""Reads MeasureCandidates of a TuneContext: rows each, None for one that cannot be featurized."""


@dataclass(frozen=True)
class Summary:
    """How a program's rows become the one row that trees read."""

    names: Callable[[Sequence[str]], list[str]]
    """Columns of a set, device columns included -> names of the summary's columns."""
    rows: Callable[[Ragged], FloatArray]
    """N programs, each with at least one row -> float32 [N, names]; each depends on its own rows only."""


@dataclass(frozen=True)
class Relations:
    """Columns that relate a program to a device, see :mod:`tencost.features.device`."""

    names: tuple[str, ...]
    """Their names, `rel_` first."""
    needs: tuple[str, ...]
    """The device's attributes that they are made of."""
    columns: Callable[[Ragged, Options, Mapping[str, Floats]], Floats]
    """N programs, each with at least one row of the kind's own columns, the set's settings, and attributes, float64
    [N] each -> float64 [N, names]; each depends on its own program only, whatever else is in the batch."""


@dataclass(frozen=True, kw_only=True)
class FeatureKind:
    """A feature kind, described by its own module as ``KIND``."""

    columns: Callable[[Options], tuple[str, ...]]
    """The columns' names in order, without the device's."""
    one_row: bool
    """Whether a program has exactly one row."""
    program_format: str | tuple[str, ...]
    """Format of the stored programs that it reads, or formats, of tencost.store.record.PROGRAM_FORMATS."""
    stored: Callable[[FeatureSpec], Stored]
    """Makes the extractor of stored programs."""
    live: Callable[[FeatureSpec], Live] | None = None
    """Makes the extractor of a search's candidates; None where MetaSchedule has none of that kind."""
    lowers: bool = False
    """Whether it lowers programs with TVM, which takes milliseconds a program and is worth a process each core."""
    options: tuple[str, ...] = ()
    """Fields of FeaturesConfig that change its columns or values."""
    constant: tuple[str, ...] = ()
    """Trailing columns that are the same on every row of a program of many rows; what parts append is so anyway."""
    summary: Summary | None = None
    """None for the usual one: a single row is its own summary, of many the first, sum and maximum are taken."""
    derived: Callable[[Ragged], FloatArray] | None = None
    """Programs with rows -> amounts that networks read beside each row, float32 [R, amounts]; None for nothing."""
    relations: Relations | None = None
    """How its programs relate to a device; None for not at all."""
    parts: Mapping[str, FeatureKind] = field(default_factory=dict)
    """The kinds that a joined kind puts side by side, by name in order, see :mod:`tencost.features.rows.joined`."""
    preference: int = 0
    """Of the kinds that can be computed from somebody's records, a new project takes the one with the highest."""
    for_tests: Mapping[str, Any] = field(default_factory=dict)
    """Settings of FeaturesConfig with which tests make small rows."""

    @property
    def program_formats(self) -> tuple[str, ...]:
        """The formats of the stored programs that it reads."""
        return (
            (self.program_format,) if isinstance(self.program_format, str) else self.program_format
        )

    def constant_columns(self, options: Options) -> tuple[str, ...]:
        """Return the trailing columns that are the same on every row of a program, parts' included."""
        appended = list(self.parts.values())[1:]
        return (*self.constant, *(name for kind in appended for name in kind.columns(options)))


def kind_of(spec: FeatureSpec) -> FeatureKind:
    """Return the kind of a feature set."""
    kind: FeatureKind = FEATURE_KINDS.load(spec.kind)
    return kind
