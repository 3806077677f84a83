"""Pack networks that `tencost graphs measure` timed on an AMD EPYC; run once.

    python datasets/make_tencost_epyc_graphs.py SOURCE

SOURCE is the folder that the command wrote. Its two files go in as they are, the dataset card as README.md. The result
is datasets/tencost-epyc-graphs.tar.zst. Prints the archive's sha256 for conf/dataset/tencost-epyc-graphs.yaml.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tencost.records.fetch.pack import pack_folder
from tencost.records.network_graphs.formats.measured import HARDWARE_FILE, MEASURED_FILE

HERE = Path(__file__).resolve().parent
NAME = "tencost-epyc-graphs"


def main(source: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in (HARDWARE_FILE, MEASURED_FILE):
            shutil.copyfile(source / name, folder / name)
        shutil.copyfile(HERE / f"{NAME}.md", folder / "README.md")
        archive = HERE / f"{NAME}.tar.zst"
        sha256 = pack_folder(folder, archive)
    sys.stdout.write(f"{archive.stat().st_size} bytes, sha256 {sha256}\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
