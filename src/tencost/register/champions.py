"""The packaged champions: exported bundles that ship with tencost, so that tuning needs no registry.

    champions/<model>/      the bundle, as `tencost register export` wrote it
    champions/<model>.md    its card: YAML front matter, whose key `tencost` holds the fields of Champion, then text

The user's registry comes first. Where it has no model for a CPU, or where there is none, the CPU's instruction sets
choose a packaged champion, and a line says which and why. `make champions` writes the folder from the registry.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from tencost.errors import BundleError, RegistryError

FOLDER = Path(__file__).resolve().parents[1] / "champions"
_FENCE = "---\n"


@dataclass(frozen=True, kw_only=True)
class Champion:
    """A version of a registered model outside its registry: its origin, and the CPUs that can run its programs."""

    model: str
    """Name of the registered model."""
    version: str
    """MAJOR.MINOR of the version."""
    sha256: str
    """Of its bundle.json, hex, which lists the sha256 of every other file."""
    dataset: str
    """Name of the dataset of its training."""
    dataset_hash: str
    """Content hash of that dataset's records."""
    commit: str
    """Git commit of its training, with ``-dirty`` at the end where files differed from it."""
    hardware: str
    """Name of the hardware that its records were measured on."""
    description: str
    """That hardware in words."""
    simd_bits: int
    """Width of the widest vectors of its programs."""
    requires: list[str]
    """Instruction sets of its programs, in /proc/cpuinfo's spelling."""

    @property
    def uri(self) -> str:
        """Its address in a registry."""
        return f"models:/{self.model}@champion"

    @property
    def folder(self) -> Path:
        """Its bundle among the packaged champions."""
        return FOLDER / self.model

    @property
    def label(self) -> str:
        """Its name in records and reports, which no version of a registry has."""
        return f"packaged:/{self.model}/{self.sha256[:12]}"

    @property
    def origin(self) -> str:
        """Model, version and origin in words."""
        return (
            f"{self.model} {self.version}, packaged with tencost, trained on {self.dataset} (records of "
            f"{self.description}; commit {self.commit[:9]})"
        )


@cache
def packaged_champions() -> tuple[Champion, ...]:
    """Return the packaged champions, those of the widest vectors first.

    Raises:
        BundleError: a card cannot be read.
    """
    champions = [read_card(path) for path in sorted(FOLDER.glob("*.md"))]
    return tuple(sorted(champions, key=lambda champion: -champion.simd_bits))


def packaged_model(name: str) -> Champion | None:
    """Return the packaged champion of a registered model's name; None where there is none."""
    return next((champion for champion in packaged_champions() if champion.model == name), None)


def packaged_at(folder: Path) -> Champion | None:
    """Return the packaged champion whose bundle is in a folder; None for any other folder."""
    return packaged_model(folder.name) if folder.resolve().parent == FOLDER else None


def champion_for(flags: Set[str], host: str, simd_bits: int | None = None) -> Champion:
    """Return the packaged champion for a CPU: that of the widest vectors whose instruction sets the CPU has.

    Args:
        flags: the CPU's instruction sets, in /proc/cpuinfo's spelling.
        host: the CPU in words, for the message.
        simd_bits: width of the widest vectors that programs may use; None for no limit.

    Raises:
        RegistryError: none fits; the message lists them and says how to train a model.
    """
    champions = packaged_champions()
    for champion in champions:
        if flags >= set(champion.requires) and champion.simd_bits <= (
            simd_bits or champion.simd_bits
        ):
            return champion
    unfit = []
    for champion in champions:
        missing = ", ".join(sorted(set(champion.requires) - flags))
        why = f"needs {missing}" if missing else f"uses {champion.simd_bits}-bit vectors"
        unfit.append(f"{champion.hardware} ({why})")
    raise RegistryError(
        f"no packaged champion fits {host}; there are {'; '.join(unfit) or 'none'}. Measure this CPU and train a "
        "model of it: docs/how-to/measuring.md"
    )


def write_card(champion: Champion, text: str, path: Path) -> None:
    """Write the card of an exported bundle.

    Args:
        champion: for the front matter.
        text: Markdown after it.
        path: of the card.
    """
    import yaml

    front = {
        "license": "apache-2.0",
        "library_name": "tencost",
        "tags": ["tvm", "metaschedule", "cost-model"],
        "datasets": [champion.dataset],
        "tencost": asdict(champion),
    }
    head = yaml.safe_dump(front, sort_keys=False, width=110, allow_unicode=True)
    path.write_text(f"{_FENCE}{head}{_FENCE}\n{text.strip()}\n", encoding="utf-8")


def read_card(path: Path) -> Champion:
    """Read the front matter of a card.

    Raises:
        BundleError: the file is no card.
    """
    import yaml

    try:
        front: Any = yaml.safe_load(path.read_text(encoding="utf-8").split(_FENCE)[1])
        return Champion(**front["tencost"])
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError) as error:
        names = ", ".join(item.name for item in fields(Champion))
        raise BundleError(
            f"card {path}: expected YAML front matter whose key `tencost` has {names}, found something else "
            f"({error}). Write it again: tencost register export MODEL FOLDER --card"
        ) from error
