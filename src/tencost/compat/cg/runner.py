"""The benchmark's runner: trains a model for one device, tests it, searches its settings.

In train.train_files/<task>_<type>/<target>_<encoding>/<model>/ lie ``model_epoch<k>.pth``, the weights of the epoch
with the smallest validation loss, counted from 0; ``result.csv``, a table for each test; and after a search
``tuned.yaml``, the configuration with the best trial's settings.
"""

from __future__ import annotations

import copy
import csv
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch_geometric.loader import DataLoader

from tencost.compat.cg.data import ID_FAMILIES, OOD_FAMILIES, CGDataProcessor
from tencost.compat.cg.network import CGModel
from tencost.compat.cg.settings import Source, checked, load_config
from tencost.errors import ConfigError, TrainError
from tencost.models.networks.bundle.latency_metrics import score
from tencost.models.neural.loop import seeded
from tencost.writing import whole_file

if TYPE_CHECKING:
    import optuna

CRITERIA = {"MSE": nn.MSELoss, "L1": nn.L1Loss, "SmoothL1": nn.SmoothL1Loss}
COLUMNS = ("test set name", "# of samples", "mse loss", "rmse", "acc5", "acc10")
"""Of result.csv."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ResultRow:
    """A family, or the mean over some: samples are graphs or families."""

    name: str
    samples: int
    mse: float
    rmse: float
    acc5: float
    acc10: float


class CGRunner:
    """Runs the benchmark for one device and one model.

    Args:
        config: the benchmark's configuration, or the path of its file.

    Attributes:
        model: what was trained last or loaded by `test`.

    Raises:
        ConfigError: a key or value that there is not.
    """

    def __init__(self, config: Source) -> None:
        self.config = load_config(config)
        self._checked = checked(self.config)
        self._checked.network()  # says what does not go together before anything is read
        self.train_folder = self._checked.train_folder
        self.result_csv = self.train_folder / "result.csv"
        self.train_folder.mkdir(parents=True, exist_ok=True)
        self.criterion = CRITERIA[self._checked.train.criterion]()
        self.model: CGModel | None = None
        self._optimizer: torch.optim.Optimizer | None = None

    def train(self) -> None:
        """Train, and keep the weights of the epoch with the smallest validation loss; `model` has them afterwards.

        Raises:
            TrainError: no latency of the device to learn from or to validate on, or losses that are not finite.
        """
        for path in self.train_folder.glob("model_epoch*.pth"):
            path.unlink()
        best_loss, weights = math.inf, None

        def save_best(epoch: int, _: tuple[float, ...], valid: tuple[float, ...]) -> None:
            nonlocal best_loss, weights
            if valid[0] < best_loss:
                best_loss, before = valid[0], weights
                weights = self.train_folder / f"model_epoch{epoch}.pth"
                assert self.model is not None
                with whole_file(weights) as partial:
                    torch.save(self.model.state_dict(), partial)
                if before is not None:
                    before.unlink()

        self._fit(save_best)
        if weights is None:
            raise TrainError(
                f"expected a finite validation loss in one of {self._checked.train.epoch} epochs, found none: lower "
                f"train.lr ({self._checked.train.lr})"
            )
        self._load(weights)

    def train_one_epoch(
        self, data_loader: Any, mode: str, epoch_idx: int
    ) -> tuple[float, float, float, float]:
        """Go through a loader once; with mode "train" learn from it.

        Args:
            data_loader: gives batches of torch-geometric.
            mode: train or valid.
            epoch_idx: for the log.

        Returns:
            loss (mean over graphs of the configured criterion), rmse in ms, acc5 and acc10; graphs without a latency
            do not count.
        """
        assert self.model is not None, "train comes first"
        learning = mode == "train"
        self.model.train(learning)
        predicted, measured = [], []
        with torch.set_grad_enabled(learning):
            for batch in data_loader:
                truth = getattr(batch, f"y_{self._checked.task.target}")
                finite = torch.isfinite(truth)
                outputs = self.model(batch).squeeze(1)
                predicted.append(outputs.detach())
                measured.append(truth)
                if learning and finite.any():
                    assert self._optimizer is not None
                    self._optimizer.zero_grad()
                    self.criterion(outputs[finite], truth[finite]).backward()
                    self._optimizer.step()
        p, m = torch.cat(predicted), torch.cat(measured)
        finite = torch.isfinite(m)
        scores = score(_double(p), _double(m))
        loss = float(self.criterion(p[finite], m[finite]))
        figures = loss, scores.rmse, scores.acc5, scores.acc10
        text = "epoch %d %s: loss %.6g, rmse %.6g, acc5 %.4f, acc10 %.4f"
        _log.info(text, epoch_idx, mode, *figures)
        return figures

    def test(self, load_statedict: bool = True, test_num_idx: int = 0) -> list[ResultRow]:
        """Test on graphs of the families learnt from and of others, family by family; print and write the table.

        Args:
            load_statedict: load the weights that `train` kept; otherwise `model` is tested as it is.
            test_num_idx: 0 begins result.csv anew, any other number appends to it.

        Raises:
            TrainError: there are no weights.
        """
        if load_statedict:
            weights = sorted(self.train_folder.glob("model_epoch*.pth"))
            if not weights:
                raise TrainError(
                    f"expected weights of a training in {self.train_folder}, found none: call train first"
                )
            self._load(weights[-1])
        if self.model is None:
            raise TrainError("expected a trained model, found none: call train first")
        rows = []
        for mode, name, families in (
            ("test", "id avg", ID_FAMILIES),
            ("test_ood", "ood avg", OOD_FAMILIES),
        ):
            by_family = self._rows(mode, families)
            means = np.nanmean([astuple(row)[2:] for row in by_family], axis=0).tolist()
            rows += [*by_family, ResultRow(name, len(by_family), *means)]
        self._write(rows, append=test_num_idx != 0)
        return rows

    def train_ray(
        self, tune_parameter_config: Mapping[str, Any], trial: optuna.Trial | None = None
    ) -> float:
        """Train with some settings; return the validation mse of the last epoch.

        Args:
            tune_parameter_config: batch_size, lr, criterion, and keys of the section model.
            trial: of a search, which gets mse at each epoch (from 1), and rmse, acc5 and acc10 as attributes.
        """
        from tencost.workers.parallel import search

        self._apply(tune_parameter_config)
        mse = math.nan

        def report(epoch: int, _: tuple[float, ...], valid: tuple[float, ...]) -> None:
            nonlocal mse
            mse = valid[1] ** 2
            if trial is not None:
                for name, metric in zip(("rmse", "acc5", "acc10"), valid[1:], strict=True):
                    trial.set_user_attr(name, metric)
                search.report_value(trial, mse, epoch + 1)

        self._fit(report)
        return mse

    def raytune(
        self,
        tune_config: Source,
        num_samples: int,
        num_cpu: int,
        num_gpu_per_trial: float = 0.0,
    ) -> dict[str, Any]:
        """Search settings with TPE and ASHA, print the best and write the configuration that trains it.

        Args:
            tune_config: the benchmark's search space, or the path of its file: name, batch_size and dropout (choices),
                hidden_dim (in 34s), num_layers and mlp_out.num_layer (from, below), lr (from, to).
            num_samples: trials.
            num_cpu: CPUs of one trial.
            num_gpu_per_trial: has no effect.

        Returns:
            The configuration with the best trial's settings.

        Raises:
            ConfigError: a search space with a key too few.
            TrainError: every trial failed.
        """
        from tencost.workers.parallel import search

        if num_gpu_per_trial:
            _log.warning(
                "expected no GPU for a trial, found %g: trials run on the CPU", num_gpu_per_trial
            )
        name, space = _space(load_config(tune_config))
        config = copy.deepcopy(self.config)
        config["model"]["name"] = name
        for mode in ("train", "valid"):
            CGDataProcessor(checked(config), mode)  # once, not by every trial at the same time
        cpus = len(os.sched_getaffinity(0))
        config.setdefault("utils", {})["torch_num_threads"] = min(num_cpu, cpus)
        plan = search.Search(
            name=name,
            folder=self.train_folder / "search",
            space=space,
            trials=num_samples,
            sampler=partial(search.tpe, self._checked.utils.seed),
            pruner=search.halving(self._checked.train.epoch),
            jobs=max(1, cpus // min(num_cpu, cpus)),
        )
        with search.opened(plan, anew=True) as study:
            search.run(plan, study, _trial, config)
            trial = search.best_trial(study)
            count = len(search.ended_trials(study))
        best = CGRunner(config)
        best._apply(_words(trial.params))
        best.config["utils"] = copy.deepcopy(self.config.get("utils", {}))
        with whole_file(self.train_folder / "tuned.yaml") as path:
            path.write_text(OmegaConf.to_yaml(OmegaConf.create(best.config)))
        Console().print(
            f"best of {count} trials: {trial.params}; validation mse {trial.value:.6g}, "
            f"rmse {trial.user_attrs['rmse']:.6g}, acc10 {trial.user_attrs['acc10']:.4f}. "
            f"Train it: CGRunner('{self.train_folder / 'tuned.yaml'}').train()",
            highlight=False,
            soft_wrap=True,
        )
        return best.config

    def save_config(self) -> None:
        """Write the configuration beside the weights: config.yaml."""
        with whole_file(self.train_folder / "config.yaml") as path:
            path.write_text(OmegaConf.to_yaml(OmegaConf.create(self.config)))

    def _fit(self, after: Callable[[int, tuple[float, ...], tuple[float, ...]], None]) -> None:
        """Train all epochs; `after` gets each one's number and what train_one_epoch gave for both parts."""
        settings, utils = self._checked.train, self._checked.utils
        train, valid = (CGDataProcessor(self._checked, mode) for mode in ("train", "valid"))
        label = f"y_{self._checked.task.target}"
        latency = _double(getattr(train._data, label))
        for part, values in (("train", latency), ("valid", _double(getattr(valid._data, label)))):
            if not np.isfinite(values).any():
                raise TrainError(
                    f"expected graphs with a latency on {self._checked.hardware} in the part {part}, found none"
                )
        deviation = float(np.nanstd(latency))
        with seeded(utils.seed, utils.torch_num_threads):
            self.model = CGModel(
                self._checked,
                mean_nodes=len(train._data.x) / len(train),
                mean_ms=float(np.nanmean(latency)),
                deviation_ms=deviation if deviation > 1e-6 else 1.0,
            )
            self._optimizer = torch.optim.Adam(self.model.parameters(), lr=settings.lr)
            schedule = StepLR(
                self._optimizer, settings.scheduler.step_size, settings.scheduler.gamma
            )
            loaders = [
                DataLoader(part, settings.batch_size, shuffle=shuffle)
                for part, shuffle in ((train, True), (valid, False))
            ]
            for epoch in range(settings.epoch):
                learnt = self.train_one_epoch(loaders[0], "train", epoch)
                validated = self.train_one_epoch(loaders[1], "valid", epoch)
                schedule.step()
                after(epoch, learnt, validated)

    def _load(self, path: Path) -> None:
        model = CGModel(self._checked)
        try:
            model.load_state_dict(torch.load(path, weights_only=True))
        except (UnpicklingError, RuntimeError, KeyError, TypeError, EOFError, OSError) as error:
            content = str(error).partition("\n")[0] or "an empty file"
            if isinstance(error, UnpicklingError):  # not weights alone: nothing of it was run
                content = "something else"
            raise TrainError(
                f"{path}: expected weights of this configuration, found {content}. Train again."
            ) from error
        self.model = model

    def _rows(self, mode: str, families: tuple[str, ...]) -> list[ResultRow]:
        data = CGDataProcessor(self._checked, mode)
        assert self.model is not None
        self.model.eval()
        with seeded(0, self._checked.utils.torch_num_threads), torch.no_grad():
            loader = DataLoader(data, self._checked.train.batch_size)
            predicted = _double(torch.cat([self.model(batch).squeeze(1) for batch in loader]))
        truth = _double(getattr(data._data, f"y_{self._checked.task.target}"))
        rows = []
        for family in families:
            members = data.families == family
            scores = score(predicted[members], truth[members])
            figures = scores.rmse**2, scores.rmse, scores.acc5, scores.acc10
            rows.append(ResultRow(family, scores.count, *figures))
        return rows

    def _write(self, rows: list[ResultRow], *, append: bool) -> None:
        table = Table(*COLUMNS)
        with self.result_csv.open("a" if append else "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for row in rows:
                name, samples, *figures = astuple(row)
                writer.writerow([name, samples, *figures])
                table.add_row(name, str(samples), *(f"{figure:.4f}" for figure in figures))
        Console().print(table)

    def _apply(self, parameters: Mapping[str, Any]) -> None:
        """Put settings of a trial over the configuration."""
        for name, value in parameters.items():
            section = "train" if name in ("batch_size", "lr", "criterion") else "model"
            self.config[section][name] = value
        self._checked = checked(self.config)
        self._checked.network()
        self.criterion = CRITERIA[self._checked.train.criterion]()


def _trial(trial: optuna.Trial, config: dict[str, Any], folder: Path) -> float:
    del folder
    return CGRunner(config).train_ray(_words(trial.params), trial)


def _words(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial's settings as the benchmark's keys."""
    words = dict(settings)
    return {**words, "mlp_out": {"num_layer": words.pop("mlp_out")}}


def _space(config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the model's name and Optuna's distributions; pe_dim_input and pe_dim_output have no effect."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    try:
        layers = config["mlp_out"]["num_layer"]
        return str(config["name"]), {
            "batch_size": CategoricalDistribution(config["batch_size"]),
            "hidden_dim": CategoricalDistribution(
                [34 * times for times in range(*config["hidden_dim"])]
            ),
            "num_layers": IntDistribution(config["num_layers"][0], config["num_layers"][1] - 1),
            "lr": FloatDistribution(*config["lr"]),
            "dropout": CategoricalDistribution(config["dropout"]),
            "mlp_out": IntDistribution(layers[0], layers[1] - 1),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            "expected a search space of name, batch_size, hidden_dim, num_layers, lr, dropout and mlp_out.num_layer, "
            f"lists of choices or bounds; found {error!r}"
        ) from error


def _double(values: Any) -> NDArray[np.float64]:
    return np.asarray(values.double().numpy())
