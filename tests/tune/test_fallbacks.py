"""What cannot be compiled by rule falls back operator by operator, and each fallback is a line with its reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from relax_networks import lowered, two_layers
from tencost import cli
from tencost.config import NetworkConfig
from tencost.networks.network import Network
from tencost.networks.rewriting import with_free_weights, with_packed_weights
from tencost.networks.sources.saved import save_network
from tencost.programs.codegen import rules
from tencost.programs.refusals import TvmRefusal, tvm_call
from tencost.tune import deploy
from tencost.tune.deploy import compile_network, compile_untuned, output_agreement
from tencost.tune.hosts import Deployed

pytestmark = pytest.mark.tvm
op = relax.op


def scattering() -> Network:
    """Return a network with packed weights: a product, and a ScatterElements, which is loops without blocks."""
    rng = np.random.default_rng(0)
    x, weights = rng.standard_normal((8, 16), np.float32), rng.standard_normal((16, 32), np.float32)
    rows = np.zeros((2, 32), np.int64)
    rows[1] = 5

    def body(x: Any, weights: Any) -> Any:
        product = op.nn.relu(op.matmul(x, weights))
        parts = op.strided_slice(product, [0], [1], [3])
        return relax.Tuple([op.scatter_elements(product, relax.const(rows), parts, axis=0)])

    mod = lowered([x.shape, weights.shape], body)
    expected = np.maximum(x @ weights, 0)
    parts = expected[1:3].copy()
    np.put_along_axis(expected, rows, parts, axis=0)
    params = [tvm.runtime.tensor(weights)]
    return Network("scatter", mod, params, {"x": x}, [expected], 0, ["y"], packed=True)


def test_one_scatter_elements_leaves_the_rules_in_place(target: dict[str, Any]) -> None:
    network, notes = scattering(), list[str]()
    built = compile_network(network, target, None, by_rule=True, note=notes.append)
    assert not notes
    (output,) = Deployed(built, network).outputs()
    assert output_agreement(output, network.expected[0]).accepted
    mod = with_packed_weights(
        rules.schedule_rest(with_free_weights(network.deployable(target)), target)
    )
    names = {str(name.name_hint) for name in mod.functions}
    assert any(name.endswith("_prepacked") for name in names), names
    assert any("scatter" in name for name in names), names


def broken(function: Any) -> Any:
    """Return a function that TVM schedules and does not compile: it calls what no target has."""
    from tvm_ffi import structural_map

    def call(node: tirx.BufferStore) -> Any:
        value = tirx.call_llvm_pure_intrin("float32", "llvm.sqrt", tirx.const(1, "int32"))
        return tirx.BufferStore(node.buffer, value, node.indices)

    return structural_map(function, (tirx.BufferStore, call))


def refuse(function: Any) -> Any:
    """Have TVM refuse a step of a schedule."""
    return tvm.s_tir.Schedule(tvm.IRModule({"main": function})).get_sblock("no_such_block")


@pytest.mark.parametrize("when", ["scheduled", "compiled"])
def test_one_operator_falls_back_and_is_named(
    when: str, target: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, notes = two_layers(), list[str]()
    real = rules.scheduled

    def scheduled(function: Any, target: dict[str, Any]) -> Any:
        if "T.max(" not in function.script():
            return real(function, target)
        if when == "scheduled":
            refuse(function)
        return broken(function)

    monkeypatch.setattr(rules, "scheduled", scheduled)
    built = compile_network(network, target, None, by_rule=True, note=notes.append)
    (note,) = notes
    assert note.startswith("operator fused_matmul_relu has TVM's default schedule")
    assert when != "scheduled" or "ScheduleError" in note
    for found, expected in zip(Deployed(built, network).outputs(), network.expected, strict=True):
        assert output_agreement(found, expected).accepted


def test_compile_prints_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = rules.scheduled

    def scheduled(function: Any, target: dict[str, Any]) -> Any:
        if "T.max(" in function.script():
            refuse(function)
        return real(function, target)

    monkeypatch.setattr(rules, "scheduled", scheduled)
    saved = tmp_path / "small.npz"
    save_network(replace(two_layers(), packed=True), saved)
    words = ["compile", "network=saved", f"network.path={saved}", "network.trusted=true"]
    words += [f"paths.store={tmp_path / 'store'}", f"--to={tmp_path / 'it.so'}"]
    cli.main(words)
    told = capsys.readouterr().err
    assert "cannot be compiled by rule: " in told
    assert "ScheduleError" in told
    assert told.startswith("compiling for hardware=local (")
    assert told.splitlines()[0].endswith(", 1 core)")


def test_what_falls_back_as_a_whole_says_so(
    target: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tencost.tune.compiled import NetworkPart, compiled

    network, notes = two_layers(), list[str]()

    def refused(mod: Any, _target: Any, **_settings: Any) -> Any:
        with tvm_call():
            refuse(next(each for each in mod.functions.values() if isinstance(each, tirx.PrimFunc)))

    monkeypatch.setattr(deploy, "_compile_by_rule", refused)
    part = NetworkPart(NetworkConfig(name="two_layers"), network, [], tmp_path, None)
    built = compiled([part], target, notes.append)
    (note,) = notes
    assert "the whole network has TVM's default schedules" in note
    assert "ScheduleError" in note
    for found, expected in zip(Deployed(built, network).outputs(), network.expected, strict=True):
        assert output_agreement(found, expected).accepted


@pytest.mark.parametrize("mistake", [TypeError, ValueError, RuntimeError, KeyError])
@pytest.mark.parametrize("place", ["scheduled", "leave", "exp"])
def test_a_mistake_in_the_rules_is_no_refusal(
    place: str, mistake: type[Exception], target: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised, with its traceback, in place of a fallback that is many times slower."""

    def wrong(*_given: Any) -> Any:
        raise mistake("a mistake of ours")

    if place == "scheduled":
        monkeypatch.setattr(rules, "_order", wrong)
    elif place == "leave":
        monkeypatch.setattr(deploy, "leave", wrong)
    else:  # TVM calls it, from C++
        monkeypatch.setattr(deploy, "schedule_rest", lambda mod, *_given: lowered_by(wrong)(mod))
    with pytest.raises((mistake, RuntimeError), match="a mistake of ours") as raised:
        compile_untuned(two_layers(), target, pytest.fail)
    assert not isinstance(raised.value, TvmRefusal)


def lowered_by(callback: Any) -> Any:
    """Return a pass of TVM that calls Python."""
    return tvm.transform.module_pass(lambda mod, _context: callback(mod), opt_level=0)


def test_what_tvm_refuses_is_told_from_what_is_called_wrongly() -> None:
    schedule = tvm.s_tir.Schedule(lowered([(8, 16)], op.nn.relu))
    with pytest.raises(TvmRefusal, match="no_such_block") as refused, tvm_call():
        schedule.get_sblock("no_such_block", "relu")
    assert isinstance(refused.value.__cause__, tvm.s_tir.schedule.ScheduleError)
    with pytest.raises(TypeError), tvm_call():
        schedule.split("no loop", [1, 2])
    with pytest.raises(ValueError, match="ours"), tvm_call():
        raise ValueError("ours")
