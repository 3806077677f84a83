"""Mutation testing: small errors put into modules that figures depend on, one at a time; do their tests notice?

    python benchmarks/mutants.py [--jobs N] [--list] [module.py ...]        `make mutants`; modules: those of TESTS

For each module of TESTS its own fast tests run once per mutant, in a process forked from one that has imported the
libraries already (a mutant then costs a second or less) and finds the mutated code in place of the module, as do the
Python processes that the tests start; nothing is written to the sources. A mutant is killed if a test fails, or takes
much longer than without it. Survivors are printed. Those whose line benchmarks/judged_mutants.md has under its
module are counted; others make exit code 1.

Mutations, after DeMillo, Lipton and Sayward, "Hints on test data selection" (1978): comparisons (boundary, opposite),
and/or, not, negated conditions, + - * / // % **, min/max, any/all, numbers (x 10, / 10 or + 1), True/False, returned
values (None), and the deletion of a statement (a call, raise, break, continue, return, or an assignment to what has a
value already). Left alone: texts, annotations, decorators, and `strict=` of zip, which only asserts.

Not mutmut 3 (it mutates no module-level constant and nothing in a dataclass or property) and not cosmic-ray (a new
process, with torch's and TVM's import, for each mutant).
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import importlib.machinery
import importlib.util
import json
import marshal
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "tencost"
PAGE = ROOT / "benchmarks" / "judged_mutants.md"

FAST = ["-m", "not slow and not tvm"]
TESTS: dict[str, list[str]] = {
    "register/promotion.py": ["tests/register/test_promotion.py"],
    "tune/guard.py": ["tests/tune/test_guard.py"],
    "records/gate.py": ["tests/records/test_gate.py"],
    "store/ids.py": ["tests/store/test_ids.py", *FAST],
    "models/programs/bundle/calibration.py": ["tests/train/test_calibration.py"],
    "networks/calibration.py": ["tests/networks/test_network_calibration.py"],
    "splits/leakage.py": ["tests/splits/test_policies.py"],
    "programs/starting_points.py": ["tests/register/test_starts.py", "-k", "not test_side"],
    "workers/expected.py": ["tests/workers/test_expected.py"],
    "register/drift.py": ["tests/register/test_drift.py", "-k", "not command and not mistakes"],
    "workers/evaluator.py": ["tests/workers/test_evaluator.py"],
    # Code generation
    "programs/codegen/blocks.py": [
        "tests/codegen/test_rules.py",
        "tests/codegen/test_registers.py",
    ],
    "programs/codegen/index_arithmetic.py": [
        "tests/codegen/test_index_arithmetic.py",
        "-m",
        "not slow",
    ],
    "programs/codegen/mutations.py": ["tests/tune/test_evolutionary_search.py"],
    "programs/codegen/products.py": ["tests/codegen/test_registers.py"],
    "programs/codegen/refit.py": ["tests/codegen/test_refit.py"],
    "programs/codegen/registers.py": ["tests/codegen/test_registers.py"],
    "programs/codegen/rules.py": ["tests/codegen/test_rules.py"],
    "programs/codegen/seeds.py": ["tests/tune/test_spaces.py"],
    "programs/codegen/spaces.py": ["tests/tune/test_spaces.py"],
    "programs/codegen/tiles.py": ["tests/codegen/test_registers.py"],
    "programs/codegen/vector_math.py": ["tests/codegen/test_vector_math.py"],
    # Networks from files, and networks as libraries
    "networks/sources/onnx.py": ["tests/networks/test_onnx_source.py"],
    "networks/sources/saved.py": ["tests/networks/test_saved_source.py"],
    "networks/sources/torch_export.py": ["tests/networks/test_torch_export_source.py"],
    "networks/sources/transformers.py": ["tests/networks/test_definitions.py"],
    "tune/compiled.py": ["tests/tune/test_compiled.py"],
    "tune/deploy.py": [
        "tests/tune/test_compiled.py",
        "tests/tune/test_wrong_answers.py",
        "tests/tune/test_fallbacks.py",
        "tests/tune/test_in_network.py",
    ],
    "tune/library_export.py": ["tests/tune/test_compiled.py", "-k", "runs_it"],
    # Scores over HTTP
    "register/service/app.py": ["tests/serve/test_serve.py"],
    "register/service/client.py": ["tests/serve/test_serve.py"],
    "register/service/command.py": ["tests/serve/test_serve.py"],
    "register/service/metrics.py": ["tests/serve/test_serve.py"],
    "register/service/pool.py": ["tests/serve/test_serve.py"],
    "register/service/reading.py": ["tests/serve/test_serve.py"],
    "register/service/scoring.py": ["tests/serve/test_serve.py"],
    # Stages
    "records/fetch/stage.py": ["tests/fetch/test_fetch_stage.py"],
    "records/stage.py": ["tests/records/test_logs.py", "tests/records/test_imports.py"],
    "features/stage.py": ["tests/features/test_features_stage.py"],
    "splits/stage.py": ["tests/pipeline/test_log_pipeline.py"],
    "train/programs.py": ["tests/train/test_train_stage.py"],
    "train/stage.py": ["tests/train/test_train_stage.py"],
    "evaluate/stage.py": ["tests/evaluate/test_evaluate_stage.py"],
    "register/stage.py": ["tests/register/test_register_stage.py"],
    "models/trees/leaf_values.py": [
        "tests/adapt/test_leaf_values.py",
        "tests/adapt/test_label_choice.py",
    ],
    "adapt/stage.py": ["tests/adapt/test_adapt_stage.py"],
    "compat/curves/label_curve_stage.py": ["tests/compat/test_label_curve.py"],
    "measure/stage.py": ["tests/measure/test_measure_run.py"],
    "tune/stage.py": ["tests/tune/test_tune_stage.py"],
    "train/networks/data.py": ["tests/graphs/test_graph_stages.py"],
    "evaluate/networks/stage.py": ["tests/graphs/test_graph_stages.py"],
    "config/folders.py": ["tests/graphs/test_graph_stages.py"],
    "register/latency/stage.py": ["tests/graphs/test_latency.py"],
    "measure/networks/stage.py": ["tests/graphs/test_measuring.py"],
    "records/network_graphs/stage.py": ["tests/graphs/test_graph_stages.py"],
    "register/networks/stage.py": ["tests/graphs/test_graph_stages.py"],
    "splits/network_stage.py": ["tests/graphs/test_graph_stages.py"],
    "train/networks/tracked.py": ["tests/graphs/test_graph_stages.py"],
    "train/networks/stage.py": ["tests/graphs/test_graph_stages.py"],
    "train/networks/search.py": ["tests/graphs/test_search.py"],
    "train/search_report.py": ["tests/train/test_sweeps.py", "tests/graphs/test_search.py"],
    "train/sweeps.py": ["tests/train/test_sweeps.py"],
    "workers/parallel/search.py": ["tests/execution/test_ask_and_tell.py"],
    "tune/roofline/stage.py": ["tests/profiles/test_roofline_stage.py"],
    "compat/counters/pretraining_stage.py": ["tests/compat/test_pretraining.py"],
    "compat/counters/tracked.py": ["tests/compat/test_transfer.py"],
    "compat/counters/transfer_stage.py": ["tests/compat/test_transfer.py"],
}
"""Module -> pytest's arguments."""

MEMORY = 12 << 30
"""Bytes of data that a mutant may have: one that loops for ever may fill a list."""

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One error: where it is, what stood there, what stands there now."""

    where: str
    before: str
    after: str
    statement: str
    change: tuple[ast.Module, ast.AST, ast.AST]
    """The module, a node of it, and what takes its place."""

    def __str__(self) -> str:
        return f"`{self.where}`: `{self.before}` -> `{self.after}` in `{self.statement}`"

    def code(self, path: Path) -> Any:
        """Return the code of the module at `path` with the error in it."""
        tree, node, changed = self.change
        return compile(
            ast.fix_missing_locations(copy.deepcopy(tree, {id(node): changed})), path, "exec"
        )


def mutants(path: Path) -> list[Mutant]:
    """Return the mutants of a module; where two would read the same, a number tells them apart."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: list[Mutant] = []
    seen: dict[str, int] = {}
    for node, parents in list(_walk(tree, [])):
        for changed in _changes(node, parents):
            statement = next(one for one in [node, *reversed(parents)] if isinstance(one, ast.stmt))
            scopes = (ast.FunctionDef, ast.ClassDef)
            where = ".".join(one.name for one in parents if isinstance(one, scopes)) or path.stem
            texts = _line(node), _line(changed), _line(statement)
            mutant = Mutant(where, *texts, (tree, node, changed))
            count = seen[str(mutant)] = seen.get(str(mutant), 0) + 1
            if count > 1:
                mutant = replace(mutant, where=f"{where} ({count})")
            found.append(mutant)
    return found


def _walk(node: ast.AST, parents: list[ast.AST]) -> Iterator[tuple[ast.AST, list[ast.AST]]]:
    yield node, parents
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "format_spec"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue
            if isinstance(child, ast.AST):
                yield from _walk(child, [*parents, node])


def _changes(node: ast.AST, parents: list[ast.AST]) -> Iterator[ast.AST]:
    """Yield what may stand in a node's place."""
    if isinstance(node, ast.Compare):
        for at, operator in enumerate(node.ops):
            for other in _COMPARED[type(operator)]:
                yield _with(node, ops=[*node.ops[:at], other(), *node.ops[at + 1 :]])
    elif isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in _COMPUTED:
        yield _with(node, op=_COMPUTED[type(node.op)]())
    elif isinstance(node, ast.Name) and node.id in _NAMES and isinstance(node.ctx, ast.Load):
        yield _with(node, id=_NAMES[node.id])
    elif isinstance(node, ast.Constant):
        for value in _values(node.value):
            yield _with(node, value=value)
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)) and not isinstance(
        node.test, ast.Compare
    ):
        yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield _with(node, value=ast.Constant(None))
    if _is_spare(node, parents):
        yield ast.Pass()


def _values(value: object) -> Iterator[object]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
        if value > 1:
            yield value * 10
    elif isinstance(value, float):
        yield from (value * 10, value / 10) if value else (1.0,)


def _is_spare(node: ast.AST, parents: list[ast.AST]) -> bool:
    """Whether a statement can be left out without a name going missing, which any test would notice."""
    if isinstance(node, (ast.Raise, ast.Break, ast.Continue, ast.AugAssign)):
        return True
    if isinstance(node, ast.Return):
        return node.value is None
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if not isinstance(node, ast.Assign):
        return False
    function = next((one for one in reversed(parents) if isinstance(one, ast.FunctionDef)), None)
    if function is None:
        return False
    bound = {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)} | {
        one.id
        for one in ast.walk(function)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store) and one.lineno < node.lineno
    }
    names = [one for target in node.targets for one in ast.walk(target)]
    return all(
        one.id in bound
        for one in names
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    )


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _with(node: ast.AST, **changes: Any) -> ast.AST:
    changed = copy.copy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def _line(node: ast.AST) -> str:
    """Return a node's text, of a compound statement its first line, and not more than fits."""
    text = ast.unparse(node).splitlines()[0]
    return text if len(text) <= 90 else f"{text[:89]}…"


class _Loader(importlib.machinery.SourceFileLoader):
    """Finds one module's code in memory."""

    def __init__(self, name: str, path: Path, code: Any) -> None:
        super().__init__(name, str(path))
        self._code = code

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        del path, target
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def get_code(self, fullname: str) -> Any:
        del fullname
        return self._code


def install(module: str, code: Any) -> None:
    """Let this process find a module's code in place of its file."""
    name = f"tencost.{module.removesuffix('.py').replace('/', '.')}"
    sys.meta_path.insert(0, _Loader(name, SOURCES / module, code))


def pass_on(module: str, code: Any, folder: Path) -> str:
    """Write what lets the Python processes that a test starts find the code too; return their PYTHONPATH."""
    folder.mkdir()
    (folder / "code").write_bytes(marshal.dumps(code))
    (folder / "sitecustomize.py").write_text(
        f"import marshal, sys\nsys.path.append({str(Path(__file__).parent)!r})\nimport mutants\nsys.path.pop()\n"
        f"mutants.install({module!r}, marshal.load(open({str(folder / 'code')!r}, 'rb')))\n"
    )
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def _test(module: str, mutant: Mutant | None, folder: Path) -> int:
    """Run the module's tests in this process, which is left afterwards; return pytest's exit code."""
    import pytest

    os.setsid()
    os.environ |= {"HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "examples")}
    sys.dont_write_bytecode = True
    if mutant is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        code = mutant.code(SOURCES / module)
        install(module, code)
        os.environ["PYTHONPATH"] = pass_on(module, code, folder / "started")
    quiet = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    # Plugins are imported already: their assertions are no concern here.
    plugins = ["-p", "no:cacheprovider", "-o", "addopts=", "-W", "ignore:Module already imported"]
    # A fixed seed: what Hypothesis tries does not decide whether a mutant lives.
    given = ["-x", "-q", "--hypothesis-seed=0", "-o", "timeout=0", f"--basetemp={folder / 'tmp'}"]
    code = int(pytest.main([*plugins, *given, *TESTS[module]]))
    if mutant is None:
        libraries = [
            name
            for name, one in sys.modules.items()
            if "site-packages" in (getattr(one, "__file__", None) or "") and "tencost" not in name
        ]
        (folder / "libraries.json").write_text(json.dumps(libraries))
    return code


@dataclass
class _Running:
    mutant: Mutant
    folder: Path
    until: float


def _fork(module: str, mutant: Mutant | None, folder: Path) -> int:
    folder.mkdir(parents=True)
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(_test(module, mutant, folder))
        finally:
            os._exit(70)
    return pid


def survivors(module: str, jobs: int) -> tuple[list[Mutant], int, int]:
    """Return the mutants that a module's tests do not notice; how many took too long, and how many there were."""
    every = mutants(SOURCES / module)
    scratch = Path(tempfile.mkdtemp(prefix="mutants-"))
    try:
        _passing(module, scratch / "cold")
        for name in json.loads((scratch / "cold" / "libraries.json").read_text()):
            with contextlib.suppress(ImportError):  # some are imported as a part of others only
                importlib.import_module(name)
        start = time.monotonic()
        _passing(module, scratch / "warm")
        limit = 10 + 5 * (time.monotonic() - start)
        return *_survivors(module, every, jobs, scratch, limit), len(every)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _passing(module: str, folder: Path) -> None:
    """Run the tests without a mutant: if they fail then, a failure says nothing."""
    _, status = os.waitpid(_fork(module, None, folder), 0)
    if status:
        output = (folder / "output").read_text(errors="replace")
        raise SystemExit(
            f"{output}\n{module}: its tests fail without a mutant, or none was selected"
        )


def _survivors(
    module: str, every: list[Mutant], jobs: int, scratch: Path, limit: float
) -> tuple[list[Mutant], int]:
    waiting = list(reversed(range(len(every))))
    running: dict[int, tuple[int, float]] = {}
    alive, slow = [], 0
    while waiting or running:
        while waiting and len(running) < jobs:
            number = waiting.pop()
            pid = _fork(module, every[number], scratch / str(number))
            running[pid] = (number, time.monotonic() + limit)
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            for late in [one for one, (_, until) in running.items() if time.monotonic() > until]:
                os.kill(late, signal.SIGKILL)
            time.sleep(0.01)
            continue
        number, _ = running.pop(pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what a test that was ended may have left
        code = os.waitstatus_to_exitcode(status)
        if code > 2:  # of pytest: a failed test is 1, a test that cannot be imported 2
            output = (scratch / str(number) / "output").read_text(errors="replace")
            raise SystemExit(
                f"{output}\n{module}: pytest itself failed, code {code}, with {every[number]}"
            )
        shutil.rmtree(scratch / str(number), ignore_errors=True)
        slow += code == -signal.SIGKILL
        if code == 0:
            alive.append(number)
    return [every[number] for number in sorted(alive)], slow


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, help="mutants side by side")
    parser.add_argument("--list", action="store_true", help="print the mutants, run nothing")
    parser.add_argument("modules", nargs="*", metavar="module.py", help=", ".join(TESTS))
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    page = PAGE.read_text(encoding="utf-8")
    unknown = 0
    for module in options.modules or TESTS:
        if options.list:
            print(*mutants(SOURCES / module), sep="\n")
            continue
        start = time.monotonic()
        # The libraries of one module's tests are not those of the next.
        reader, writer = os.pipe()
        if os.fork() == 0:
            found, slow, count = survivors(module, options.jobs)
            with os.fdopen(writer, "w") as pipe:
                json.dump([count, slow, [str(one) for one in found]], pipe)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            answer = pipe.read()
        os.wait()
        if not answer:
            return 2
        count, slow, lines = json.loads(answer)
        judged = page.partition(f"\n### {module}\n")[2].partition("\n### ")[0]
        new = [line for line in lines if f"- {line}\n" not in judged]
        unknown += len(new)
        print(
            f"{module}: {count} mutants, {count - len(lines)} killed ({slow} by time), {len(lines) - len(new)} judged, "
            f"{len(new)} survived ({time.monotonic() - start:.0f} s)",
            *(f"- {line}" for line in new),
            sep="\n",
            flush=True,
        )
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
