"""The stage `register`: the winner of an evaluation becomes a version, and champion if the rule allows it.

It is the same for models of programs (:mod:`tencost.register.programs`) and of whole networks
(:mod:`tencost.register.networks.stage`), which say what they offer and how it is judged.

For DVC it writes mlruns/registered/<dataset>/<hardware>.json: the registered model and the digest of the content that
was offered to it. It lies beside the registry, so that where the registry is lost DVC runs the stage again, and
`tencost pipeline` asks the registry for that content (:func:`is_registered`); version numbers and times are in the
registry alone.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import orjson
from rich.console import Console
from rich.text import Text

from tencost.config import Config
from tencost.errors import RegistryError
from tencost.evaluate.leaderboard import Board, Row
from tencost.register import registry
from tencost.register.pull import is_absent, registry_uri
from tencost.register.registry import Offer, Version
from tencost.register.verdict import YES, PromotionVerdict
from tencost.tracking import runs as tracking
from tencost.tracking.server_check import explain_server_errors
from tencost.writing import whole_file

R = TypeVar("R", bound=Row)
V = TypeVar("V", bound=PromotionVerdict)


@dataclass
class RegistrationSubject(ABC, Generic[R, V]):
    """The winner of one evaluation: what is offered to the registry, and how it is judged.

    Attributes:
        cfg: names dataset, hardware and split.
        root: the project's root, absolute.
        work: an empty folder, removed after the stage.
    """

    COMMAND: ClassVar[str]
    """The words of the stage, "register"."""
    TRAIN: ClassVar[str]
    """The commands that make a candidate."""

    cfg: Config
    root: Path
    work: Path

    @property
    @abstractmethod
    def model_name(self) -> str:
        """Name of the registered model."""

    @property
    @abstractmethod
    def report(self) -> Path:
        """Folder of the evaluation's report."""

    @property
    @abstractmethod
    def board(self) -> Board[R]:
        """The leaderboard in it."""

    @cached_property
    def row(self) -> R:
        """The winner.

        Raises:
            RegistryError: there are only references to choose from.
        """
        row = self.board.winner()
        if row is None:
            raise RegistryError(
                f"expected a model to register in {self.report / self.board.FILE}, found only references. "
                f"Train one: {self.TRAIN}"
            )
        return row

    @abstractmethod
    def training(self) -> tuple[Path, str]:
        """Return the folder of the winner's bundles, seed<k>/ each, and the digest of the training."""

    @abstractmethod
    def offer(self) -> Offer:
        """Return the bundle that becomes a version."""

    @abstractmethod
    def judge(self, client: Any, version: Version, champion: Version | None) -> V:
        """Apply the promotion rule.

        Args:
            client: of the registry.
            version: the challenger.
            champion: None if there is none.
        """

    @abstractmethod
    def description(self, version: Version) -> str:
        """Return what stands above the verdict in the version's description, Markdown."""

    @abstractmethod
    def tags(self, verdict: V) -> dict[str, str]:
        """Return further tags of the version; all of them, so that none is left of an older verdict."""

    @abstractmethod
    def note(
        self, client: Any, version: Version, champion: Version | None, verdict: V, text: str
    ) -> None:
        """Write what the run that trained the challenger keeps of a verdict.

        Args:
            client: of the registry.
            version: the challenger.
            champion: the champion after the verdict.
            verdict: of the rule.
            text: the version's description.
        """

    def marks(self) -> list[Path]:
        """Return the files that say to DVC what was offered to the registry."""
        folder = self.root / self.cfg.paths.registry / self.cfg.dataset.name
        return [folder / f"{self.cfg.hardware.name}.json"]


def run(
    cfg: Config, root: Path, subject_of: Callable[[Config, Path, Path], RegistrationSubject[R, V]]
) -> V | PromotionVerdict:
    """Register the winner on cfg.hardware and promote it if the rule allows.

    Args:
        cfg: names dataset, hardware and split.
        root: the project's root.
        subject_of: configuration, root and work folder -> the subject.

    Raises:
        ConfigError: nothing was evaluated.
        RegistryError: there are only references to choose from, or the report is of something else.
    """
    root = root.resolve()
    with tempfile.TemporaryDirectory(prefix="tencost-") as work:
        subject = subject_of(cfg, root, Path(work))
        seeds = subject.row.seeds
        client = registry.connect(tracking.setup(root, cfg.experiment_name))
        champion = registry.find_champion(client, subject.model_name)
        offer = subject.offer()
        run_id = _training_run(client, subject, seeds)
        version, new = registry.register_offer(client, offer, run_id=run_id, description="")
        verdict: V | PromotionVerdict
        if champion is not None and champion.number == version.number:
            verdict = PromotionVerdict(
                False, (f"{YES}version {version.number} is the champion already",)
            )
        else:
            judged = verdict = subject.judge(client, version, champion)
            before, champion = champion, version if judged.promote else champion
            _write(client, subject, version, champion, judged)
            if judged.promote:  # last: a run killed before it judges and writes again
                registry.check_unchanged(client, version.name, before)
                registry.promote(client, version)
    for path in subject.marks():
        _write_mark(path, version)
    _print(version, new, champion, verdict)
    return verdict


def is_registered(root: Path, mark: Path) -> bool:
    """Say whether the project's registry has the content that a mark says was offered to it; False without a mark.

    Raises:
        RegistryError: the registry does not answer.
    """
    uri = registry_uri(root)
    if not mark.is_file() or is_absent(uri):
        return False
    offered = orjson.loads(mark.read_bytes())
    with explain_server_errors(uri):
        versions = registry.list_versions(registry.connect(uri), offered["model"])
    return offered["content_digest"] in map(_offered_content, versions)


def _offered_content(version: Version) -> str:
    """Return the digest of the content that was offered: the twin's where the version was fitted on all records."""
    return version.tags.get(registry.TWIN_TAG) or version.tags.get(registry.CONTENT_TAG, "")


def _training_run(client: Any, subject: RegistrationSubject[R, V], seeds: tuple[int, ...]) -> str:
    """Return the run that trained the winner; a new one with its bundles where this registry does not have it."""
    cfg, (folder, digest) = subject.cfg, subject.training()
    trained = tracking.training_run(client, cfg.experiment_name, digest)
    if trained is not None:
        return trained
    name, parameters = f"register {cfg.hardware.name}", {"seeds": ",".join(map(str, seeds))}
    with tracking.start_run(
        cfg, subject.root, stage=subject.COMMAND, name=name, parameters=parameters
    ) as tracked:
        tracked.log_artifacts(folder, registry.BUNDLES)
    return tracked.run_id


def _write(
    client: Any,
    subject: RegistrationSubject[R, V],
    version: Version,
    champion: Version | None,
    verdict: V,
) -> None:
    """Write a verdict to the version and to its run."""
    number = str(version.number)
    text = f"{subject.description(version)}\n{verdict.markdown()}"
    client.update_model_version(version.name, number, description=text)
    tags = {
        registry.VERDICT_TAG: verdict.word,
        registry.REASONS_TAG: "\n".join(verdict.reasons),
        **subject.tags(verdict),
    }
    for name, tag in tags.items():
        client.set_model_version_tag(version.name, number, name, tag)
    subject.note(client, version, champion, verdict, text)


def _write_mark(path: Path, version: Version) -> None:
    """Write which content was offered to the registry."""
    mark = {"model": version.name, "content_digest": _offered_content(version)}
    with whole_file(path) as partial:
        partial.write_bytes(
            orjson.dumps(mark, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        )


def _print(
    version: Version, new: bool, champion: Version | None, verdict: PromotionVerdict
) -> None:
    """Print the outcome for a version."""
    console = Console()
    state = "registered" if new else "registered before"
    console.print(f"{version.name} version {version.number} ({version.semver}): {state}")
    for reason in verdict.reasons:
        word, _, rest = reason.partition(": ")
        style = "green" if word == "yes" else "bold red"
        console.print(Text.assemble((f"  {word:<4}", style), rest), soft_wrap=True)
    if champion is None:
        console.print("  there is no champion yet", style="bold red")
        return
    is_champion = champion.number == version.number
    console.print(
        f"  champion{'' if is_champion else ' stays'}: version {champion.number} ({champion.semver})",
        style="bold green" if is_champion else "bold",
    )
