"""Which command needs what beyond a bare install, and which extra of tencost brings it.

`pip install tencost` is enough for help, completion and the configuration; tuning needs `tencost[tuner]`, the latency
of an ONNX file `tencost[latency]`, the pipeline and the record store `tencost[pipeline]`, which holds all of both.
"""

from __future__ import annotations

from importlib.util import find_spec

from tencost.errors import MissingDependencyError

EXTRAS: dict[str, tuple[str, ...]] = {
    "tuner": (
        "alembic", "mlflow", "onnx", "onnxruntime", "onnxscript", "scipy", "sqlalchemy", "tvm", "tvm_ffi", "xgboost",
    ),
    "latency": ("alembic", "mlflow", "onnx", "onnxscript", "sqlalchemy", "xgboost"),
    "pipeline": (
        "deltalake", "duckdb", "dvc", "flask", "hydra_plugins", "jinja2", "joblib", "lightning", "matplotlib",
        "msgspec", "openpyxl", "optuna", "pandas", "polars", "pyarrow", "pytorch_lightning", "sklearn", "torch",
        "transformers", "zstandard",
    ),
    "serve": ("starlette", "uvicorn"),
    "scale": ("ray",),
    "graphs": ("torch_geometric",),
}  # fmt: skip
"""Extra -> the modules that it brings and those that it holds do not. `flask` stands for all of MLflow: tencost[tuner]
has the client only."""
_HOLDS = {
    "serve": ("tuner",),
    "pipeline": ("tuner", "latency"),
    "scale": ("pipeline",),
    "graphs": ("scale",),
}
"""Extra -> the extras that it holds."""

_TABLES = ("deltalake", "polars", "pyarrow")
_REGISTRY = ("alembic", "mlflow", "sqlalchemy")
_LOGS = (*_TABLES, "msgspec", "zstandard")
_SCORES = (*_TABLES, *_REGISTRY, "matplotlib", "scipy")

NEEDS: dict[str, tuple[str, ...]] = {
    "init": (),
    "measure networks": ("tvm",),
    "measure programs": ("tvm",),
    "measure run": ("tvm", *_TABLES),
    "measure hardware": ("tvm",),
    "measure pack": ("tvm", "polars", "pyarrow", "zstandard"),
    "measure export": ("tvm",),
    "fetch": ("zstandard",),
    "records": _LOGS,
    "records import": _LOGS,
    "records query": (*_TABLES, "duckdb"),
    "records export": (*_LOGS, "duckdb"),
    "records quarantine": _TABLES,
    "records compact": _TABLES,
    "records migrate": _TABLES,
    "records rename": _TABLES,
    "records delete": _TABLES,
    "records compare": _TABLES,
    "records regress": _TABLES,
    "features": _TABLES,
    "splits": _TABLES,
    "train": _SCORES,
    "evaluate": _SCORES,
    "evaluate roofline": (*_TABLES, *_REGISTRY, "duckdb", "matplotlib", "tvm"),
    "register": _SCORES,
    "register status": (*_TABLES, *_REGISTRY, "scipy"),
    "register rollback": (*_TABLES, *_REGISTRY, "scipy"),
    "register drift": (*_TABLES, "duckdb", "scipy"),
    "register export": _REGISTRY,
    "adapt": (*_SCORES, "tvm", "xgboost"),
    "adapt curve": (*_SCORES, "xgboost"),
    "tune": ("mlflow", "scipy", "sqlalchemy", "tvm", "xgboost"),
    "compile": ("scipy", "tvm"),
    "serve": ("mlflow", "scipy", "sqlalchemy", "starlette", "tvm", "uvicorn", "xgboost"),
    "tune report": ("mlflow", "scipy", "sqlalchemy", "tvm"),
    "graphs records": _TABLES,
    "graphs splits": _TABLES,
    "graphs train": _SCORES,
    "graphs tune": (*_SCORES, "optuna", "torch_geometric"),
    "graphs evaluate": _SCORES,
    "graphs register": _SCORES,
    "graphs latency": (*_REGISTRY, "onnx", "onnxscript"),
    "graphs measure": ("onnx", "onnxruntime", "onnxscript", "torch", "transformers"),
    "profiles import": _LOGS,
    "profiles show": _TABLES,
    "profiles transfer": (*_SCORES, "xgboost"),
    "profiles pretraining": (*_SCORES, "pytorch_lightning", "torch"),
    "report": (*_TABLES, "jinja2", "matplotlib", "scipy"),
    "leaderboard": (*_TABLES, *_REGISTRY, "scipy"),
    "ui": (*_REGISTRY, "flask"),
    "pipeline": ("dvc",),
    "params": (),
    "completion": (),
}
"""Command -> what it cannot start without; sub-commands need what their longest prefix here says. What only some
choices need (a model family, a network's source) is found missing when it is imported: see `missing`."""


def require(command: str) -> None:
    """Make sure that a command can start.

    Args:
        command: its words, without `tencost`.

    Raises:
        MissingDependencyError: something that it needs is not installed; the message names the extra.
    """
    words = command.split()
    known = (" ".join(words[:count]) for count in range(len(words), 0, -1))
    needs = next((NEEDS[name] for name in known if name in NEEDS), ())
    absent = [name for name in needs if find_spec(name) is None]
    if absent:
        raise _error(f"tencost {command}", absent)


def missing(command: str, error: ModuleNotFoundError) -> MissingDependencyError | None:
    """Return what to tell where an import failed in the middle of a command; None where no extra brings the module."""
    name = (error.name or "").partition(".")[0]
    known = any(name in modules for modules in EXTRAS.values())
    return _error(command, [name]) if known else None


def _error(command: str, absent: list[str]) -> MissingDependencyError:
    # `graphs latency` works with the smaller of the two extras that bring onnx.
    first = ("latency",) if command.startswith("tencost graphs latency") else ()
    extra = next((name for name in (*first, *EXTRAS) if set(absent) <= _brought(name)), "graphs")
    return MissingDependencyError(
        f"`{command}` needs {', '.join(absent)}, which {'is' if len(absent) == 1 else 'are'} not installed: "
        f"pip install 'tencost[{extra}]'"
    )


def _brought(extra: str) -> set[str]:
    """Return the modules that an extra brings, those of the extras that it holds with it."""
    return set(EXTRAS[extra]).union(*map(_brought, _HOLDS.get(extra, ())))
