"""ONNX's own backend suite through the path that `tencost compile network=onnx path=...` takes, a table by operator.

    python benchmarks/onnx_suite.py                       # ten minutes on two cores that others use
    python benchmarks/onnx_suite.py --only resize,conv    # cases whose names hold one of these
    python benchmarks/onnx_suite.py --list                # cases, and why those that are left out are
    python benchmarks/onnx_suite.py --resume              # the rest of a run that was ended

It writes benchmarks/results/onnx-suite.json; with --only, those cases' lines of it are replaced. Until it has them all,
answers are in onnx-suite.lines beside it, one a line.

A case is a model, inputs and expected outputs that ship with the onnx package. Each is imported, rewritten, lowered,
scheduled by rule and compiled for this host, then run on the suite's inputs; every output is compared, its type and
shape, too. Cases run in processes of their own, a chunk a process; a case that takes too long, or ends its process,
costs itself.

What a case ends with:

    pass        as it is, all inputs of the model inputs of the network
    constants   only with shapes, axes and weights (all inputs but the first, or integers) as constants of the model
    wrong       it ran and computed something else than the suite says
    refused     one sentence of tencost's before anything ran
    unclear     TVM's own words, a crash or the time limit
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "onnx-suite.json"
CHUNK = 200
"""Cases a process runs before a new one takes over."""
HALF = 8 * 2.0**-10
"""Least relative tolerance of a float16: eight units in its last place, as it keeps 10 bits behind the point."""
LIMIT_S = 120.0
"""Seconds that a case may take, on a host that others use, too."""
ENDS = ("pass", "constants", "wrong", "refused", "unclear")
WORST_FIRST = ("wrong", "unclear", "refused")
"""Of a case that was tried with several inputs held, the worst end counts, the first of its kind."""
KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted", "real")
PLAIN = {
    "FLOAT", "DOUBLE", "FLOAT16", "BOOL",
    "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64",
}  # fmt: skip
RANDOM = {
    "Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial",
}  # fmt: skip
RULE = (
    "in scope: a model that ships with the package, whose inputs and outputs are tensors of float16/32/64, bool or "
    "integers of 8 to 64 bits, whose operators are ONNX's own, and whose outputs are no random numbers"
)


def cases() -> dict[str, Any]:
    """Return the suite's cases by name, `kind` and name together."""
    from onnx.backend.test.case.node import collect_testcases
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {f"node/{case.name}": case for case in collect_testcases(None)}
    for kind in KINDS[1:]:
        found |= {f"{kind}/{case.name}": case for case in load_model_tests(kind=kind)}
    return found


def model_of(case: Any) -> Any:
    import onnx

    return case.model if case.model is not None else onnx.load(Path(case.model_dir) / "model.onnx")


def data_of(case: Any, model: Any) -> list[tuple[list[Any], list[Any]]]:
    """Return a case's (inputs, outputs), arrays in the model's order."""
    import onnx

    if case.data_sets is not None:
        return [(list(ins), list(outs)) for ins, outs in case.data_sets]

    def read(folder: Path, kind: str, number: int) -> list[Any]:
        arrays = []
        for index in range(number):
            tensor = onnx.TensorProto()
            tensor.ParseFromString((folder / f"{kind}_{index}.pb").read_bytes())
            arrays.append(onnx.numpy_helper.to_array(tensor))
        return arrays

    folders = sorted(Path(case.model_dir).glob("test_data_set_*"))
    return [
        (
            read(one, "input", len(list(one.glob("input_*.pb")))),
            read(one, "output", len(model.graph.output)),
        )
        for one in folders
    ]


def out_of_scope(case: Any) -> str:
    """Return why a case is out of scope; "" for one that is in it."""
    import onnx

    if case.model is None and (case.model_dir is None or case.url):
        return "its model has to be downloaded"
    model = model_of(case)
    for item in [*model.graph.input, *model.graph.output]:
        kind = item.type.WhichOneof("value")
        if kind != "tensor_type":
            return f"{kind.removesuffix('_type')} as input or output"
        element = onnx.TensorProto.DataType.Name(item.type.tensor_type.elem_type)
        if element not in PLAIN:
            return f"type {element.lower()}"
    for node in _nodes(model.graph):
        local = {(one.domain, one.name) for one in model.functions}
        if node.domain not in ("", "ai.onnx") and (node.domain, node.op_type) not in local:
            return f"operators of {node.domain}"
        if node.op_type in RANDOM:
            return "random numbers"
    return ""


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def group_of(name: str, model: Any) -> str:
    """Return the operator that a case is about: the one of its nodes whose name begins the case's, else the last."""
    kind, _, rest = name.partition("/")
    operators = [node.op_type for node in _nodes(model.graph)]
    plain = re.sub(r"[^a-z0-9]", "", rest.lower().removeprefix("test_"))
    named = [one for one in operators if plain.startswith(one.lower())]
    if named:
        return max(named, key=len)
    if kind == "node" and "expanded" in name:
        import onnx

        known = {one.name for one in onnx.defs.get_all_schemas()}
        named = [one for one in known if plain.startswith(one.lower())]
        if named:
            return max(named, key=len)
    return operators[-1] if operators else "none"


def run_case(name: str, case: Any) -> dict[str, Any]:
    """Run one case; see the module for what it ends with."""
    model = model_of(case)
    answer: dict[str, Any] = {"case": name, "operator": group_of(name, model)}
    outcomes = []
    for held in ("nothing", "others", "integers"):
        outcomes.append(_tried(model, data_of(case, model), case, held))
        end, _ = outcomes[-1]
        if end == "pass":
            return answer | {"end": "pass" if held == "nothing" else "constants"}
        if end == "wrong":
            break
    end, why = min(outcomes, key=lambda outcome: WORST_FIRST.index(outcome[0]))
    return answer | {"end": end, "why": why[:600]}


def _tried(model: Any, data: Any, case: Any, held: str) -> tuple[str, str]:
    """Compile and run a model on all its data; `held`: which inputs become constants."""
    import onnx

    from tencost.errors import TencostError
    from tencost.networks.operators.regions import padded_outputs
    from tencost.networks.sources.onnx import pad_rows

    initialized = {one.name for one in model.graph.initializer}
    for arrays, expected in data:
        # A model of the old format lists its weights among its inputs; the data are for the first ones.
        names = [item.name for item in model.graph.input if item.name not in initialized]
        inputs = {
            name: _array(array)
            for name, array in zip(names, arrays, strict=False)
            if array is not None
        }
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        fixed = [
            name
            for index, (name, array) in enumerate(inputs.items())
            if (held == "others" and index) or (held == "integers" and array.dtype.kind in "iu")
        ]
        if held != "nothing":
            if not fixed or len(fixed) == len(inputs):
                return "refused", "no inputs to hold"
            for name in fixed:
                changed.graph.initializer.append(
                    onnx.numpy_helper.from_array(inputs.pop(name), name)
                )
            kept = [item for item in changed.graph.input if item.name not in fixed]
            del changed.graph.input[:]
            changed.graph.input.extend(kept)
        try:
            found = computed(changed, inputs, expected)
        except TencostError as error:
            return "refused", str(error)
        except Exception as error:  # noqa: BLE001 - what a user would see as a traceback
            return "unclear", f"{type(error).__name__}: {error}"
        padded = padded_outputs(model.graph)
        for item, one, other in zip(model.graph.output, found, expected, strict=True):
            array = _array(other)
            if item.name in padded and len(array) < len(one):
                array = pad_rows(array, len(one))
            why = different(one, array, case.rtol, case.atol)
            if why:
                return "wrong", f"output {item.name} with {held} held: {why}"
    return "pass", ""


def _array(value: Any) -> Any:
    import onnx

    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value)


def computed(model: Any, inputs: dict[str, Any], expected: list[Any]) -> list[Any]:
    """Return a model's outputs, compiled as `tencost compile network=onnx hardware=local` does."""
    import onnx

    from tencost.config import GraphChoice, NetworkConfig
    from tencost.networks.network import lowered
    from tencost.networks.source import Imported
    from tencost.networks.sources import onnx as source
    from tencost.programs.trace.intrinsics import register_cpu_intrinsics
    from tencost.tune.compiled import NetworkPart, compiled
    from tencost.tune.hosts import Deployed
    from tencost.workers.hardware import detect_host

    config = NetworkConfig(
        name="case", source="onnx", path="case.onnx", graph=GraphChoice.auto
    )  # as conf/network/onnx.yaml
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.onnx"
        onnx.save(model, path)
        read = source.load_model(path)
    mod, params = source.to_relax(config, read, inputs)
    outputs = [item.name for item in model.graph.output]
    imported = Imported(mod, params, inputs, expected, outputs, compared=outputs[0])
    register_cpu_intrinsics()
    target = detect_host().target
    network = lowered(config, imported, is_deployed=True)
    built = compiled([NetworkPart(config, network, [], Path("none"), None)], target)
    return Deployed(built, network).outputs()


def different(found: Any, expected: Any, rtol: float, atol: float) -> str:
    """Return how two arrays differ: type, shape, places that are not finite, values; "" for arrays that agree."""
    if found.dtype != expected.dtype:
        return f"expected {expected.dtype}, found {found.dtype}"
    if found.shape != expected.shape:
        return f"expected shape {expected.shape}, found {found.shape}"
    if expected.dtype.kind in "biu":
        number = int((found != expected).sum())
        return (
            f"{number} of {found.size} differ: {_sample(found, expected, found != expected)}"
            * bool(number)
        )
    with np.errstate(invalid="ignore"):
        if expected.dtype == np.float16:
            rtol = max(rtol, HALF)
        else:  # the suite computes in float32, too: its 0 is as far off as the last place of the largest value
            finite = np.abs(expected[np.isfinite(expected)])
            atol = max(atol, float(np.finfo(expected.dtype).eps * finite.max(initial=0)))
        wrong = ~np.isclose(
            found.astype(np.float64), expected.astype(np.float64), rtol, atol, equal_nan=True
        )
    return (
        f"{int(wrong.sum())} of {found.size} differ: {_sample(found, expected, wrong)}"
        if wrong.any()
        else ""
    )


def _sample(found: Any, expected: Any, wrong: Any) -> str:
    pairs = list(zip(found[wrong].flat, expected[wrong].flat, strict=True))[:3]
    return ", ".join(f"{one} for {other}" for one, other in pairs)


def serve(names: list[str]) -> None:
    """Run cases in this process; a line of JSON each."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    warnings.simplefilter("ignore")
    known = cases()
    for name in names:
        started = time.monotonic()
        answer = run_case(name, known[name])
        answer["seconds"] = round(time.monotonic() - started, 2)
        out.write(json.dumps(answer) + "\n")
        out.flush()


def run_chunk(names: list[str], limit_s: float, told: Any) -> list[dict[str, Any]]:
    """Run cases in processes of their own until each has an answer."""
    answers: list[dict[str, Any]] = []
    while len(answers) < len(names):
        command = [sys.executable, __file__, "--serve", *names[len(answers) :]]
        # Unbuffered, so that select() sees each answer that has not been read.
        with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
            assert process.stdout is not None
            limit = limit_s + 60  # the first one waits for imports
            while len(answers) < len(names):
                ready, _, _ = select.select([process.stdout], [], [], limit)
                line = process.stdout.readline() if ready else b""
                limit = limit_s
                if not line:
                    process.kill()
                    why = "its process ended" if ready else f"no answer in {limit_s:g} s"
                    name = names[len(answers)]
                    answers.append({"case": name, "operator": "", "end": "unclear", "why": why})
                    told(answers[-1])
                    break
                answers.append(json.loads(line))
                told(answers[-1])
    return answers


def table(answers: list[dict[str, Any]]) -> str:
    """Return the counts by operator as a table in Markdown, those with something wrong first."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for answer in answers:
        counts[answer["operator"]][answer["end"]] += 1
        counts["all"][answer["end"]] += 1
    head = ["operator", "cases", *ENDS]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    order = sorted(counts, key=lambda one: (one != "all", -counts[one]["wrong"], one.lower()))
    for operator in order:
        row = counts[operator]
        numbers = [sum(row.values()), *(row[end] for end in ENDS)]
        lines.append("| " + " | ".join([operator, *map(str, numbers)]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--only", default="", help="cases whose names hold one of these, comma-separated"
    )
    parser.add_argument("--list", action="store_true", help="list the cases, run none")
    parser.add_argument("--resume", action="store_true", help="run what an ended run has left")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds a case may take")
    parser.add_argument("--to", type=Path, default=None, help="JSON that is written")
    parser.add_argument("--serve", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        serve(arguments.serve)
        return
    words = [word for word in arguments.only.split(",") if word]
    reasons = {name: out_of_scope(case) for name, case in cases().items()}
    chosen = [
        name
        for name, reason in reasons.items()
        if not reason and (not words or any(word in name for word in words))
    ]
    left_out = Counter(reason for reason in reasons.values() if reason)
    print(RULE)
    print(f"{len(reasons)} cases, {len(reasons) - left_out.total()} in scope; left out:")
    for reason, number in left_out.most_common():
        print(f"  {number:4} {reason}")
    if arguments.list:
        for name, reason in sorted(reasons.items()):
            print(f"{name}{f'  ({reason})' if reason else ''}")
        return
    to = arguments.to or RESULTS
    to.parent.mkdir(parents=True, exist_ok=True)
    lines = to.with_suffix(".lines")  # what is done, should the run be ended
    answers: list[dict[str, Any]] = []
    if not arguments.resume:
        lines.unlink(missing_ok=True)
    elif lines.exists():
        answers = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    done = {answer["case"] for answer in answers}
    chosen = [name for name in chosen if name not in done]
    chunks = [chosen[start : start + CHUNK] for start in range(0, len(chosen), CHUNK)]

    def told(answer: dict[str, Any]) -> None:
        if answer["end"] in ("wrong", "unclear"):
            print(f"{answer['end']}: {answer['case']}: {answer.get('why', '')[:200]}", flush=True)
        with lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps(answer) + "\n")

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for found in pool.map(lambda chunk: run_chunk(chunk, arguments.limit, told), chunks):
            answers += found
    if words and to.exists():
        again = {answer["case"] for answer in answers}
        before = json.loads(to.read_text(encoding="utf-8"))["cases"]
        answers += [answer for answer in before if answer["case"] not in again]
    print(table(answers))
    import onnx
    import tvm

    content = {
        "rule": RULE,
        "left_out": dict(left_out.most_common()),
        "onnx": onnx.__version__,
        "tvm": tvm.__version__,
        "counts": dict(Counter(answer["end"] for answer in answers)),
        "cases": sorted(answers, key=lambda answer: answer["case"]),
    }
    to.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    lines.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
