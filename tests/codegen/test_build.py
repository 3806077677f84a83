"""The code that the user's process compiles is the code that the tuner's workers measured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WAYS = ("build", "load_cost_model", "search_space", "WarmBuilder", "install")
SCRIPT = """
import os, sys
import tvm
from tvm import te, tirx
from tvm.s_tir import meta_schedule as ms
import tencost

ways, bundle, target = sys.argv[1].split(","), sys.argv[2], tvm.target.Target(eval(sys.argv[3]))
x = te.placeholder((4, 64), name="x")
functions = (tirx.erf, tirx.tanh, tirx.exp, tirx.sigmoid)
outputs = [(lambda f: te.compute(x.shape, lambda *i: x[i] * f(x[i])))(f) for f in functions]
schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([x, *outputs])}))
for block in schedule.get_child_blocks(schedule.get_sblock("root")):
    schedule.vectorize(schedule.split(schedule.get_loops(block)[-1], [None, 16])[1])

def assembly(executable):
    return executable.mod.inspect_source("asm")

def in_the_worker():
    from tencost.workers.worker import build
    return assembly(build(schedule.mod, eval(sys.argv[3])))

def in_the_users_process(way):
    if way == "build":
        return assembly(tencost.build(schedule.mod, target))
    if way == "search_space":
        tencost.search_space(target)
    elif way == "WarmBuilder":
        runner = tencost.WarmRunner()
        tencost.WarmBuilder().build([ms.builder.BuilderInput(schedule.mod, target)])
    else:
        getattr(tencost, way)(bundle)
    return assembly(tvm.compile(schedule.mod, target=target))

def fork(compile_it):
    # Each child begins without what another one registered.
    reader, writer = os.pipe()
    if not os.fork():
        os.write(writer, compile_it().encode())
        os._exit(0)
    os.close(writer)
    return open(reader).read()

measured = fork(in_the_worker)
libm = [name for name in ("erff", "tanhf", "expf") if name in measured]
assert measured and not libm, libm
stock = fork(lambda: assembly(tvm.compile(schedule.mod, target=target)))
assert "erff" in stock, "nothing was to be registered"
for way in ways:
    assert fork(lambda: in_the_users_process(way)) == measured, way
"""


@pytest.mark.tvm
def test_the_users_code_is_the_measured_code(
    make_bundle: Callable[[str], Path], target: dict[str, Any], tmp_path: Path
) -> None:
    """Whatever of tencost's interface a script uses: no libm is called, as in the workers."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, ",".join(WAYS), str(make_bundle("xgb")), repr(target)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
