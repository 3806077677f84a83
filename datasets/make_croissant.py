"""Write datasets/croissant.json: `python datasets/make_croissant.py`.

Croissant 1.0 (Akhtar et al. 2024; mlcommons.org/croissant) describes datasets as JSON-LD, which the hubs of datasets
read. Every archive of this folder is a FileObject with its size and sha256; its description is the first sentence of
its card, datasets/<name>.md or docs/reference/dataset-card.md. The records within are MetaSchedule's JSON databases:
`tencost records` reads them into Parquet, whose columns docs/reference/store.md explains.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from tencost import __version__

FOLDER = Path(__file__).resolve().parent
TARGET = FOLDER / "croissant.json"
OTHER_CARD = FOLDER.parent / "docs" / "reference" / "dataset-card.md"
LICENCE = "https://spdx.org/licenses/Apache-2.0"
LICENCES = {"cg-sample": "https://creativecommons.org/licenses/by/4.0/"}
"""Of archives that do not stand under the project's licence."""
CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "conformsTo": "dct:conformsTo",
    "containedIn": "cr:containedIn",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "includes": "cr:includes",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "md5": "cr:md5",
    "sc": "https://schema.org/",
}


def first_sentence(name: str) -> str:
    """Return what the card of an archive begins with, on one line."""
    card = FOLDER / f"{name}.md"
    text = (card if card.is_file() else OTHER_CARD).read_text()
    paragraph = " ".join(text.split("\n\n")[1].split())
    return paragraph.partition(". ")[0].removesuffix(".") + "."


def file_object(archive: Path, text: str) -> dict[str, Any]:
    """Return an archive as Croissant has it."""
    content = archive.read_bytes()
    return {
        "@type": "cr:FileObject",
        "@id": archive.name,
        "name": archive.name,
        "description": text,
        "contentUrl": f"datasets/{archive.name}",
        "contentSize": f"{len(content)} B",
        "encodingFormat": "application/zstd",
        "sha256": hashlib.sha256(content).hexdigest(),
        "license": LICENCES.get(archive.name.removesuffix(".tar.zst"), LICENCE),
    }


def croissant() -> dict[str, Any]:
    """Return the content of the file."""
    archives = {path.name.removesuffix(".tar.zst"): path for path in FOLDER.glob("*.tar.zst")}
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": "tencost-measurements",
        "description": "Measured latencies of tensor programs and of whole networks on CPUs, by TVM's "
        "MetaSchedule: each program with its schedule trace, its times and its failures.",
        "license": [LICENCE, *LICENCES.values()],
        "version": __version__,
        "keywords": ["cost model", "tensor program", "TVM", "MetaSchedule", "latency"],
        "citeAs": "CITATION.cff",
        "distribution": [
            file_object(archives[name], first_sentence(name)) for name in sorted(archives)
        ],
    }


if __name__ == "__main__":
    TARGET.write_text(json.dumps(croissant(), indent=1) + "\n")
    sys.stdout.write(f"{TARGET.name}: {len(croissant()['distribution'])} archives\n")
