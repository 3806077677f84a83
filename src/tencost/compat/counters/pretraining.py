"""What is a pretrained network worth to one who tunes a new workload, against one that starts from scratch?

tvm_oraa's second experiment: top-32 of 64 for an MLP. A workload that nothing was learnt of is measured batch by batch.
Each batch is scored before the model sees it; then the model learns from all that was measured. One model starts with
random weights, one with weights that were trained on other networks' programs, one keeps those weights as they are.

What was found there (.71 from scratch, .74 pretrained) leaves out iterations that found two or fewer of the 32, which
flatters both. Here every batch counts, the first one too, of which a model from scratch knows nothing: it is left to
chance.

The network, its loss and its settings are those of the family `mlp`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tencost.compat.counters.top_share import top_share
from tencost.errors import TrainError
from tencost.evaluate.interval import Interval, seed_interval
from tencost.evaluate.metrics import Floats, Ints
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.models.programs.families.mlp import MlpConfig, MlpRanker
from tencost.models.programs.neural.network_ranker import num_beside, num_rows_columns, served
from tencost.models.programs.ranker import Samples
from tencost.models.programs.ranker.labels import featurized
from tencost.models.programs.ranker.losses import RankingLoss

if TYPE_CHECKING:
    import torch

SCRATCH, PRETRAINED, FROZEN = "from scratch", "pretrained", "pretrained, frozen"
ARMS = (SCRATCH, PRETRAINED, FROZEN)


@dataclass(frozen=True)
class Settings:
    """How the experiment is done.

    Attributes:
        batch: programs measured at a time.
        top: how many of them count as the fastest.
        epochs: passes over all that was measured, after each batch.
        seeds: of the pretraining, the order of programs, weights and dropout.
    """

    batch: int = 64
    top: int = 32
    epochs: int = 20
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def chance(self) -> float:
        """What guessing gets."""
        return self.top / self.batch


@dataclass(frozen=True)
class Share:
    """How well one model did on one batch, before it saw it.

    Attributes:
        seed: of the run.
        group: the workload.
        step: of the batch, from 0.
        arm: one of ARMS.
        top: share of the fastest that were among the highest scores.
    """

    seed: int
    group: int
    step: int
    arm: str
    top: float


@dataclass(frozen=True)
class Summary:
    """An arm's mean share, with intervals over seeds.

    Attributes:
        arm: one of ARMS.
        every: over all batches.
        later: over all but each workload's first, of which a model from scratch knows nothing; NaN if none has more.
        steps: by the batch's step.
    """

    arm: str
    every: Interval
    later: Interval
    steps: tuple[Interval, ...]


def batches_of(samples: Samples, settings: Settings, seed: int) -> dict[int, list[Ints]]:
    """Divide each workload's programs into batches in an order drawn by the seed; what is left over is not measured.

    Returns:
        Workload -> rows of each batch, int64 [batch]; workloads with fewer than two batches are left out.
    """
    batches = {}
    for group in np.unique(samples.group).tolist():
        rows = np.flatnonzero(samples.group == group)
        rows = rows[np.argsort(samples.record_id[rows], kind="stable")]
        order = np.random.default_rng([seed, group]).permutation(rows)
        count = len(order) // settings.batch
        if count > 1:
            batches[group] = list(order[: count * settings.batch].reshape(count, settings.batch))
    return batches


def pretraining(
    config: MlpConfig,
    spec: FeatureSpec,
    train: Samples,
    valid: Samples,
    test: Samples,
    settings: Settings,
) -> Iterator[Share]:
    """Do the experiment, seed by seed.

    Args:
        config: of the network; one is trained a seed.
        spec: of the features.
        train: programs of other networks.
        valid: of others again, to choose the epoch of the pretraining by.
        test: programs of workloads that are in neither.
        settings: how it is done.

    Raises:
        TrainError: no workload has two batches.
    """
    test = featurized(test)
    if not batches_of(test, settings, 0):
        most = int(np.bincount(test.group).max(initial=0))
        raise TrainError(
            f"expected workloads with at least {2 * settings.batch} programs in the test part, found at most {most}. "
            f"Choose another dataset, or smaller batches: --batch {max(2, most // 3)} --top {max(1, most // 6)}"
        )
    config = replace(config, num_models=1)
    for seed in settings.seeds:
        start = pretrained(config, spec, train, valid, seed)
        for group, batches in batches_of(test, settings, seed).items():
            for arm in ARMS:
                learner = _Learner(config, spec, None if arm == SCRATCH else start, seed)
                for step, batch in enumerate(batches):
                    score = learner.predict(test.features.take(batch))
                    speed = _speed(test.latency_s[batch])
                    yield Share(seed, group, step, arm, top_share(score, speed, settings.top))
                    if arm != FROZEN and step + 1 < len(batches):
                        seen = np.concatenate(batches[: step + 1])
                        speeds = _speed(test.latency_s[seen])
                        learner.learn(test.features.take(seen), speeds, settings)


def pretrained(
    config: MlpConfig, spec: FeatureSpec, train: Samples, valid: Samples, seed: int
) -> MlpRanker:
    """Train the family's network."""
    ranker = MlpRanker(config, spec)
    ranker.fit(train, valid, seed=seed, log=lambda *_: None)
    return ranker


def summarize_shares(shares: Sequence[Share]) -> list[Summary]:
    """Return each arm's means with intervals over seeds; every batch counts alike."""
    count = max(share.step for share in shares) + 1
    present = {share.arm for share in shares}
    return [
        Summary(
            arm,
            every=seed_interval(_seed_means(shares, arm, range(count))),
            later=seed_interval(_seed_means(shares, arm, range(1, count))),
            steps=tuple(seed_interval(_seed_means(shares, arm, [step])) for step in range(count)),
        )
        for arm in ARMS
        if arm in present
    ]


def gain(shares: Sequence[Share], arm: str, over: str, *, later: bool) -> Interval:
    """Return an arm's mean share minus another's, on the same batches, with the interval over seeds.

    Args:
        shares: of both.
        arm: the arm.
        over: the arm that it is compared with.
        later: whether each workload's first batch is left out.
    """
    steps = range(int(later), max(share.step for share in shares) + 1)
    means = (_seed_means(shares, name, steps) for name in (arm, over))
    return seed_interval([mean - other for mean, other in zip(*means, strict=True)])


def _seed_means(shares: Sequence[Share], arm: str, steps: Sequence[int]) -> list[float]:
    """Return an arm's mean share over some batches, a seed each; seeds without any are left out."""
    by_seed: dict[int, list[float]] = {}
    for share in shares:
        if share.arm == arm and share.step in steps:
            by_seed.setdefault(share.seed, []).append(share.top)
    return [float(np.mean(tops)) for _, tops in sorted(by_seed.items())]


class _Learner:
    """A network that is asked and taught in turn."""

    def __init__(
        self, config: MlpConfig, spec: FeatureSpec, start: MlpRanker | None, seed: int
    ) -> None:
        import torch

        from tencost.models.neural.loop import seeded
        from tencost.models.programs.neural.mlp_training import SegmentSumNetwork, collated_sums

        self._config, self._seed, self._collated = config, seed, collated_sums
        self._pretrained = start is not None
        self._ranker = start or MlpRanker(config, spec)
        """Standardises what the network reads."""
        with seeded(seed, config.num_threads):
            self._network = SegmentSumNetwork(
                num_rows_columns(spec), num_beside(spec, config.beside), config
            )
        if start is not None:
            weights = served(start.networks[0])  # transposed once more: as torch has them
            state = {name: torch.from_numpy(array) for name, array in weights.items()}
            self._network.load_state_dict(state)
        self._optimizer = torch.optim.AdamW(
            self._network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self._steps = 0

    def predict(self, features: Ragged) -> Floats:
        """Score programs, float64 [n]; all alike before anything is known."""
        import torch

        if not (self._pretrained or self._steps):
            return np.zeros(len(features))
        self._network.eval()
        with torch.no_grad():
            inputs = self._collated(self._ranker.inputs(features))
            scores = self._network(*inputs(np.arange(len(features))))
        return np.asarray(scores.numpy(), np.float64)

    def learn(self, features: Ragged, speed: Floats, settings: Settings) -> None:
        """Learn from all that was measured of a workload.

        Without pretraining the standardisation of inputs is that of what was measured so far; a pretrained network
        keeps its own.
        """
        import torch

        from tencost.models.neural.loop import seeded

        if not self._pretrained:
            self._ranker.fit_scalers(features)
        label = (speed / max(float(speed.max()), 1e-300)).astype(np.float32)
        inputs = self._collated(self._ranker.inputs(features))
        generator = np.random.default_rng([self._seed, self._steps])
        self._network.train()
        with seeded(self._seed * 100_003 + self._steps, self._config.num_threads):
            for _ in range(settings.epochs):
                order = generator.permutation(len(label))
                for listed in np.array_split(order, max(1, len(order) // settings.batch)):
                    scores = self._network(*inputs(listed))
                    self._optimizer.zero_grad()
                    _loss(self._config, scores, label[listed]).backward()  # type: ignore[no-untyped-call]
                    torch.nn.utils.clip_grad_norm_(
                        self._network.parameters(), self._config.gradient_clip
                    )
                    self._optimizer.step()
        self._steps += 1


def _loss(config: MlpConfig, scores: torch.Tensor, label: NDArray[np.float32]) -> torch.Tensor:
    """Return a scalar with the gradient of the family's ranking loss over one list of programs, a program each."""
    import torch

    loss = RankingLoss(
        config.objective,
        label,
        np.zeros(len(label), np.int64),
        power=config.label_power,
        temperature=config.temperature,
    )
    gradient = loss(scores.detach().numpy().astype(np.float64))[0] * 4.0 / len(label)
    return (scores * torch.from_numpy(gradient.astype(np.float32))).sum()


def _speed(latency_s: Floats) -> Floats:
    """Return throughputs, float64 [n]; a program that failed has none."""
    return np.where(np.isfinite(latency_s), 1.0 / latency_s, 0.0)
