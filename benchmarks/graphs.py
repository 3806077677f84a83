"""How well whole families of networks that nothing was learnt of are predicted, with a handful of labels and none.

    python benchmarks/graphs.py left-out --source FOLDER [--model additive] [--set steps=800 ...]
                                [--per-family 300] [--families resnets,vggs] [--draws 3] [--out FILE]

Each family in turn is left out: a model learns from a sample of each other family (equal graphs are drawn once) and is
tested on all graphs of the one left out. With 5, 20 and 100 labels of the new family, drawn at random, predictions are
corrected (tencost.graphs.adapt) and tested on the graphs that were not drawn, as a mean over draws. Told is the share
of graphs predicted within 10 %. A line is printed as soon as a family is done; --out keeps them as JSON lines.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from tencost.config.graphs import graph_model_config
from tencost.config.parts import GRAPH_FAMILIES
from tencost.graphs.adapt import cost_shares, fit_correction
from tencost.graphs.families.summed import summed_rows
from tencost.graphs.graph_set import LabelledGraphs
from tencost.graphs.reading import read_folder

LABELS = (0, 5, 20, 100)
WATCHED = 0.05
"""Share of what is learnt from that watches the training."""
CONF = Path(__file__).resolve().parents[1] / "conf" / "graph_model"


def within(predicted: NDArray[np.float64], label: NDArray[np.float64]) -> float:
    known = np.isfinite(label)
    return float(np.mean(np.abs(predicted[known] / label[known] - 1) < 0.1))


def sample(
    everything: LabelledGraphs, without: str, per_family: int, seed: int
) -> NDArray[np.int64]:
    """Draw distinct graphs of every family but one; a graph that stands in that one, too, is not drawn."""
    random = np.random.default_rng(seed)
    graphs = everything.graphs
    tested = graphs.graph_id[graphs.family == without]
    _, first = np.unique(graphs.graph_id, return_index=True)
    first = first[~np.isin(graphs.graph_id[first], tested)]
    parts = []
    for family in np.unique(graphs.family[first]):
        own = first[graphs.family[first] == family]
        parts.append(random.choice(own, min(per_family, len(own)), replace=False))
    return random.permutation(np.concatenate(parts))


def adapted(
    predicted: NDArray[np.float64],
    label: NDArray[np.float64],
    rows: list[NDArray[np.float64]],
    count: int,
    draws: int,
) -> float:
    """Return the mean share within 10 % after corrections from `count` labels."""
    known = np.flatnonzero(np.isfinite(label))
    if count == 0:
        return within(predicted, label)
    shares = []
    for draw in range(draws):
        chosen = np.random.default_rng(draw).choice(known, count, replace=False)
        rest = np.setdiff1d(known, chosen)
        correction = fit_correction(
            predicted[chosen], label[chosen], [each[chosen] for each in rows]
        )
        shares.append(
            within(correction.apply(predicted[rest], [each[rest] for each in rows]), label[rest])
        )
    return float(np.mean(shares))


def left_out(arguments: argparse.Namespace) -> None:
    everything = read_folder(arguments.source).labelled
    values: dict[str, Any] = yaml.safe_load((CONF / f"{arguments.model}.yaml").read_text())
    for setting in arguments.set:
        key, text = setting.split("=", 1)
        values[key] = yaml.safe_load(text)
    config = graph_model_config(values)
    family_of_models = GRAPH_FAMILIES.load(arguments.model)
    families = arguments.families.split(",") if arguments.families else None
    lines = []
    for family in families or sorted(set(everything.graphs.family.tolist())):
        drawn = sample(everything, family, arguments.per_family, arguments.seed)
        split = max(int(len(drawn) * WATCHED), 1)
        model = family_of_models.make(config, len(everything.hardware))
        started = time.perf_counter()
        model.fit(
            everything.take(drawn[split:]),
            everything.take(drawn[:split]),
            seed=arguments.seed,
            report=lambda *_: None,
        )
        seconds = time.perf_counter() - started
        test = everything.take(np.flatnonzero(everything.graphs.family == family))
        predicted = model.predict(test.graphs)
        sums = summed_rows(test.graphs).astype(np.float64)
        costs = model.node_costs(test.graphs) if family_of_models.additive else None
        line: dict[str, Any] = {"family": family, "train_seconds": round(seconds, 1)}
        for device, name in enumerate(everything.hardware):
            label = test.latency_ms[:, device]
            rows = [sums]
            if costs is not None:
                rows.append(cost_shares(test.graphs, costs[:, device]))
            if np.isfinite(label).sum() > max(LABELS):
                line[name] = [
                    round(adapted(predicted[:, device], label, rows, count, arguments.draws), 3)
                    for count in LABELS
                ]
                line[f"{name} median ratio"] = round(
                    float(np.nanmedian(predicted[:, device] / label)), 3
                )
        lines.append(line)
        print(json.dumps(line), flush=True)
        if arguments.out is not None:
            arguments.out.write_text("".join(json.dumps(each) + "\n" for each in lines))
    table(lines, everything.hardware)


def table(lines: list[dict[str, Any]], hardware: tuple[str, ...]) -> None:
    """Print a Markdown table: families and their mean, a device after the other, labels 0, 5, 20, 100."""
    print(f"| left out | {' | '.join(hardware)} |")
    print("|---|" + "---|" * len(hardware))
    for line in lines:
        cells = [" ".join(f"{share:.3f}" for share in line.get(name, [])) for name in hardware]
        print(f"| {line['family']} | {' | '.join(cells)} |")
    means = []
    for name in hardware:
        shares = np.array([line[name] for line in lines if name in line])
        means.append(
            " ".join(f"{share:.3f}" for share in shares.mean(axis=0)) if len(shares) else ""
        )
    print(f"| mean | {' | '.join(means)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["left-out"])
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--model", default="additive")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--per-family", type=int, default=300)
    parser.add_argument("--families")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    left_out(parser.parse_args())


if __name__ == "__main__":
    main()
