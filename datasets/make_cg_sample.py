"""Choose a sample of the CG benchmark's graphs and pack it.

    python datasets/make_cg_sample.py SOURCE

SOURCE is the benchmark's folder `data_raw/CG`: a folder a family. Of each family the first and the last graph are
taken, and those whose hash is smallest; positions are kept. The result is datasets/cg-sample.tar.zst. Prints the
archive's sha256 for conf/dataset/cg-sample.yaml.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

import numpy as np

from tencost.records.fetch.pack import pack_folder
from tencost.records.network_graphs.formats import cg
from tencost.records.network_graphs.reading import read_folder

HERE = Path(__file__).resolve().parent
PER_FAMILY = 300


def main(source: Path) -> None:
    labelled = read_folder(source).labelled
    graphs = labelled.graphs
    chosen: list[int] = []
    for family in np.unique(graphs.family).tolist():
        rows = np.flatnonzero(graphs.family == family).tolist()
        inner = sorted(
            rows[1:-1],
            key=lambda row: hashlib.sha256(f"{family}/{graphs.position[row]}".encode()).digest(),
        )
        chosen += sorted([rows[0], rows[-1], *inner[: PER_FAMILY - 2]])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "cg-sample"
        cg.write(folder, labelled.take(chosen))
        (folder / "README.md").write_text((HERE / "cg-sample.md").read_text())
        archive = HERE / "cg-sample.tar.zst"
        sha256 = pack_folder(folder, archive)
    sys.stdout.write(f"{archive.stat().st_size} bytes, sha256 {sha256}\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
