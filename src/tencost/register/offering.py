"""What every stage that registers a winner ends with: the run it is of, DVC's mark of it, and what is said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.text import Text

from tencost.config import Config
from tencost.register import registry
from tencost.register.promotion import Verdict
from tencost.register.registry import Version
from tencost.tracking import orphaned_runs as ended
from tencost.tracking import runs as tracking
from tencost.writing import whole_file


def run_of(
    client: Any, cfg: Config, stage: str, folder: Path, digest: str, seeds: Sequence[int]
) -> str:
    """Return the run that trained the winner; a new one with its bundles where this registry does not have it.

    Args:
        client: MLflow's.
        cfg: names the experiment and the hardware.
        stage: that registers.
        folder: the bundles, seed<k>/ each.
        digest: of the training.
        seeds: that it was trained with.
    """
    trained = tracking.training_run(client, cfg.experiment_name, digest)
    if trained is not None:
        return trained
    experiment = client.get_experiment_by_name(cfg.experiment_name)
    tags = {"tencost.stage": stage, "hardware": cfg.hardware.name, **ended.process_tags()}
    name = f"register {cfg.hardware.name}"
    created = client.create_run(experiment.experiment_id, run_name=name, tags=tags).info.run_id
    client.log_param(created, "seeds", ",".join(str(seed) for seed in seeds))
    client.log_artifacts(created, str(folder), registry.BUNDLES)
    client.set_terminated(created)
    return str(created)


def mark(root: Path, cfg: Config, version: Version) -> None:
    """Write what DVC keeps of a registration: which content, a twin's if it has one, was offered to the registry."""
    write_mark(root / cfg.paths.registry / cfg.dataset.name / f"{cfg.hardware.name}.json", version)


def write_mark(path: Path, version: Version) -> None:
    """Write the mark of a registration to a file."""
    offered = version.tags.get(registry.TWIN_TAG) or version.tags[registry.CONTENT_TAG]
    content = {"model": version.name, "content_digest": offered}
    with whole_file(path) as partial:
        partial.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")


def say(version: Version, new: bool, champion: Version | None, verdict: Verdict) -> None:
    """Print what became of a version."""
    console = Console()
    state = "registered" if new else "registered before"
    console.print(f"{version.name} version {version.number} ({version.semver}): {state}")
    for reason in verdict.reasons:
        word, _, rest = reason.partition(": ")
        style = "green" if word == "yes" else "bold red"
        console.print(Text.assemble((f"  {word:<4}", style), rest), soft_wrap=True)
    if champion is None:
        console.print("  there is no champion yet", style="bold red")
    elif champion.number == version.number:
        console.print(
            f"  champion: version {version.number} ({version.semver})", style="bold green"
        )
    else:
        console.print(
            f"  champion stays: version {champion.number} ({champion.semver})", style="bold"
        )
