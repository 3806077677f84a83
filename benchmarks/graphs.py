"""How well the latency of whole networks is predicted.

    python benchmarks/graphs.py left-out --source FOLDER [--model additive] [--set steps=800 ...]
                                [--per-family 300] [--families resnets,vggs] [--draws 3] [--out FILE]
    python benchmarks/graphs.py intervals --source FOLDER [--model additive] [--set steps=400 ...] [--per-family 300]
    python benchmarks/graphs.py runs --source FOLDER --out FOLDER [--split cg] [--models gcn,gin] [--seeds 0,1,2]
                                [--minutes 20] [--threads 2]
    python benchmarks/graphs.py table --out FOLDER [--split cg]

`left-out`: each family in turn is left out: a model learns from a sample of each other family (equal graphs are drawn
once) and is tested on all graphs of the one left out. With 5, 20 and 100 labels of the new family, drawn at random,
predictions are corrected (tencost.adapt.graph_correction) and tested on the graphs that were not drawn, as a mean over
draws. Told is the share of graphs predicted within 10 %. A line is printed as soon as a family is done; --out keeps
them as JSON lines.

`intervals`: each family is left out in the same way, and its networks are compared with two 90 % intervals: of
networks like those learnt from, and of three other families left out (all choices of three;
tencost.evaluate.networks.left_out). Told is the share of networks inside, as a mean over families.

`runs`: every model on one split, once a seed, each with the same minutes and threads at most (a graph network's step
size falls to nothing within them). One model predicts all devices. A file a run in --out; what is there is skipped.
`table` prints what is there: means over the families, over seeds, with 95 % intervals of the mean (Student's t).
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.stats import t as student_t

from tencost.adapt.graph_correction import cost_shares, fit_correction
from tencost.config.graphs import GraphSplitConfig, GraphSplitPolicy, graph_model_config
from tencost.config.parts import GRAPH_FAMILIES
from tencost.evaluate.networks.left_out import left_out_errors
from tencost.models.networks.bundle.latency_metrics import average, by_family
from tencost.models.networks.bundle.training_range import log_error_bounds
from tencost.models.networks.families.summed import summed_rows
from tencost.networks.graph.graph_set import LabelledGraphs
from tencost.records.network_graphs.reading import read_folder
from tencost.splits.networks import divide_graphs

LABELS = (0, 5, 20, 100)
WATCHED = 0.05
"""Share of what is learnt from that watches the training."""
CONF = Path(__file__).resolve().parents[1] / "conf" / "model"


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


def intervals(arguments: argparse.Namespace) -> None:
    """Print how many networks of a family left out are in the intervals that a model states."""
    everything = read_folder(arguments.source).labelled
    values: dict[str, Any] = yaml.safe_load((CONF / f"{arguments.model}.yaml").read_text())
    for setting in arguments.set:
        key, text = setting.split("=", 1)
        values[key] = yaml.safe_load(text)
    config = graph_model_config(values)
    measured, predicted, bounds = {}, {}, {}
    for family in sorted(set(everything.graphs.family.tolist())):
        drawn = sample(everything, family, arguments.per_family, arguments.seed)
        split = max(int(len(drawn) * WATCHED), 1)
        valid = everything.take(drawn[:split])
        model = GRAPH_FAMILIES.load(arguments.model).make(config, len(everything.hardware))
        model.fit(
            everything.take(drawn[split:]), valid, seed=arguments.seed, report=lambda *_: None
        )
        test = everything.take(np.flatnonzero(everything.graphs.family == family))
        measured[family], predicted[family] = test.latency_ms, model.predict(test.graphs)
        bounds[family] = log_error_bounds(valid.latency_ms, model.predict(valid.graphs))
        print(f"{family}: trained and tested", flush=True)
    print(f"| interval | {' | '.join(everything.hardware)} |")
    print("|---|" + "---|" * len(everything.hardware))
    shares: dict[str, list[str]] = {"learnt from": [], "any three families held out": []}
    for device in range(len(everything.hardware)):
        errors = {
            family: error[np.isfinite(error)]
            for family in measured
            if np.isfinite(
                error := np.log(measured[family][:, device] / predicted[family][:, device])
            ).any()
        }
        own = [inside(errors[family], *bounds[family][device]) for family in errors]
        others = []
        for family in errors:
            for three in combinations(sorted(errors.keys() - {family}), 3):
                names = np.repeat(three, [len(errors[name]) for name in three])
                ratio = np.exp(np.concatenate([errors[name] for name in three]))
                found = left_out_errors(names, ratio, np.ones(len(ratio)))
                assert found is not None
                others.append(inside(errors[family], found.low, found.high))
        for name, each in zip(shares, (own, others), strict=True):
            shares[name].append(f"{np.mean(each):.3f}")
    for name, cells in shares.items():
        print(f"| {name} | {' | '.join(cells)} |")


def inside(error: NDArray[np.float64], low: float, high: float) -> float:
    return float(((error >= low) & (error <= high)).mean())


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


def runs(arguments: argparse.Namespace) -> None:
    """Train and test every model once a seed; write a file a run."""
    everything = read_folder(arguments.source).labelled
    policy = yaml.safe_load((CONF.parent / "split" / f"{arguments.split}.yaml").read_text())
    policy["policy"] = GraphSplitPolicy[policy["policy"]]
    parts = divide_graphs(everything.graphs, GraphSplitConfig(**policy))
    train, valid, test, ood = (everything.take(rows) for _, rows in parts.items())
    print(
        f"{len(train)} to learn from, {len(valid)}, {len(test)} and {len(ood)} to test", flush=True
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    for seed in (int(word) for word in arguments.seeds.split(",")):
        for name in arguments.models.split(","):
            path = arguments.out / f"{arguments.split}-{name}-{seed}.json"
            if path.exists():
                continue
            values: dict[str, Any] = yaml.safe_load((CONF / f"{name}.yaml").read_text())
            if "num_threads" in values:
                values["num_threads"] = arguments.threads
            if "max_minutes" in values:
                values.update(max_minutes=arguments.minutes, epochs=1000)
            reports: dict[str, float] = {}
            model = GRAPH_FAMILIES.load(values["family"]).make(
                graph_model_config(values), len(everything.hardware)
            )
            started = time.perf_counter()
            model.fit(
                train,
                valid,
                seed=seed,
                report=lambda what, value, _, kept=reports: kept.update({what: value}),
            )
            line: dict[str, Any] = {
                "model": name,
                "seed": seed,
                "seconds": round(time.perf_counter() - started, 1),
                "epochs": reports.get("train/epochs"),
                "threads": arguments.threads,
            }
            for side, graphs in (("id", test), ("ood", ood)):
                if len(graphs):
                    line[side] = scores(model.predict(graphs.graphs), graphs)
            path.write_text(json.dumps(line) + "\n")
            shown = {
                side: {device: line[side][device]["average"]["acc10"] for device in line[side]}
                for side in ("id", "ood")
                if side in line
            }
            print(name, seed, line["seconds"], line["epochs"], json.dumps(shown), flush=True)


def scores(predicted: NDArray[np.float64], graphs: LabelledGraphs) -> dict[str, Any]:
    """Return device -> family (and `average`) -> metric -> value."""
    found: dict[str, Any] = {}
    for device, name in enumerate(graphs.hardware):
        families = by_family(
            graphs.graphs.family, predicted[:, device], graphs.latency_ms[:, device]
        )
        families["average"] = average(list(families.values()))
        found[name] = {
            family: {metric: round(value, 5) for metric, value in one.metrics().items()}
            for family, one in families.items()
        }
    return found


def runs_table(arguments: argparse.Namespace) -> None:
    """Print Markdown tables of the runs: a row a model, in and out of distribution; and the best model a family."""
    lines = [
        json.loads(path.read_text())
        for path in sorted(arguments.out.glob(f"{arguments.split}-*.json"))
    ]
    sides = [side for side in ("id", "ood") if any(side in line for line in lines)]
    hardware = list(lines[0][sides[0]])
    models = sorted(
        {line["model"] for line in lines},
        key=lambda name: (
            -np.mean(
                [
                    line["id"][hardware[0]]["average"]["acc10"]
                    for line in lines
                    if line["model"] == name
                ]
            )
        ),
    )
    for metric in arguments.metrics.split(","):
        for side in sides:
            print(f"\n{metric}, {side} avg\n")
            print(f"| model | seeds | minutes | epochs | {' | '.join(hardware)} |")
            print("|---|---|---|---|" + "---|" * len(hardware))
            for name in models:
                own = [line for line in lines if line["model"] == name]
                cells = [
                    interval([line[side][device]["average"][metric] for line in own])
                    for device in hardware
                ]
                minutes = np.mean([line["seconds"] for line in own]) / 60
                epochs = [line["epochs"] for line in own if line["epochs"]]
                told = f"{np.mean(epochs):.0f}" if epochs else ""
                print(f"| {name} | {len(own)} | {minutes:.1f} | {told} | {' | '.join(cells)} |")
    best = [line for line in lines if line["model"] == models[0]]
    print(f"\n{models[0]}, acc10 a family\n")
    print(f"| family | {' | '.join(hardware)} |")
    print("|---|" + "---|" * len(hardware))
    for side in sides:
        for family in sorted(
            {name for line in best for one in line[side].values() for name in one}
        ):
            cells = [
                interval([line[side][device][family]["acc10"] for line in best])
                if family in best[0][side][device]
                else ""
                for device in hardware
            ]
            print(f"| {family} ({side}) | {' | '.join(cells)} |")


def interval(values: list[float]) -> str:
    """Return the mean over seeds and half its 95 % interval."""
    if len(values) < 2:
        return f"{values[0]:.3f}"
    half = student_t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    return f"{np.mean(values):.3f} ± {half:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["left-out", "intervals", "runs", "table"])
    parser.add_argument("--source", type=Path)
    parser.add_argument("--split", default="cg")
    parser.add_argument(
        "--models", default="gcn,gin,gat,gps,performer,magnet,digcn,dgcn,additive,summed"
    )
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--metrics", default="acc10")
    parser.add_argument("--model", default="additive")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--per-family", type=int, default=300)
    parser.add_argument("--families")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.what != "table" and arguments.source is None:
        parser.error("--source: expected the folder of the dataset's CSV files")
    if arguments.what in ("runs", "table") and arguments.out is None:
        parser.error("--out: expected a folder")
    commands = {"left-out": left_out, "intervals": intervals, "runs": runs, "table": runs_table}
    commands[arguments.what](arguments)


if __name__ == "__main__":
    main()
