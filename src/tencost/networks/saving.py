"""`tencost measure export`: an imported network as a file, for a machine without PyTorch.

See sources/saved.py for the file. A folder, there already or written with a slash at the end, gets <name>.npz, so that
a sweep (``-m network=bert_tiny,resnet_18 --to networks/``) writes each network to a file of its own.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from rich.console import Console

from tencost.config import Config
from tencost.errors import ConfigError
from tencost.networks.network import load_network, variant_name
from tencost.networks.sources.saved import SUFFIX, read_header, save_network
from tencost.programs.native_messages import native_messages_to


def run(cfg: Config, root: Path, *, to: str) -> Path:
    """Import cfg.network and write it to `to`, which is relative to the current folder; return the file.

    Raises:
        ConfigError: `to` does not end in .npz, or something else than a saved network is there.
        MeasureError: the network cannot be imported, or the file not be written.
    """
    console = Console(stderr=True)
    path = _free(to, variant_name(cfg.network))
    started = time.monotonic()
    with native_messages_to(Path(os.devnull)):
        network = load_network(cfg.network, root)
    save_network(network, path)
    console.print(
        f"{network.name}: {len(network.params)} weights, inputs {', '.join(network.inputs)}, compared output "
        f"{network.outputs[network.output]}: {path.stat().st_size / 1e6:.1f} MB, {time.monotonic() - started:.1f} s. "
        f"Use it where nothing imports networks: tencost tune network=saved network.path={path.name}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return path


def _free(to: str, name: str) -> Path:
    path = Path(to).expanduser()
    if path.is_dir() or to.endswith("/"):
        path = path / f"{name}{SUFFIX}"
    if path.suffix != SUFFIX:
        raise ConfigError(f"--to: expected a file that ends in {SUFFIX}, or a folder, found {to}")
    if path.exists():
        try:
            read_header(path)
        except ConfigError as error:
            raise ConfigError(
                f"--to: expected no file or a saved network at {path}, found something else. Choose another name"
            ) from error
    return path
