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
_STATUS = (*_TABLES, *_REGISTRY, "scipy")
_TUNER = ("mlflow", "scipy", "sqlalchemy", "tvm")

NEEDS: dict[str, tuple[str, ...]] = {
    command.strip(): needs
    for commands, needs in (
        ("init, params, completion", ()),
        ("measure networks, measure programs, measure hardware, measure export", ("tvm",)),
        ("measure run", ("tvm", *_TABLES)),
        ("measure pack", ("tvm", "polars", "pyarrow", "zstandard")),
        ("fetch", ("zstandard",)),
        ("records, records import, profiles import", _LOGS),
        ("records query", (*_TABLES, "duckdb")),
        ("records export", (*_LOGS, "duckdb")),
        ("records quarantine, records compact, records migrate, records rename", _TABLES),
        ("records delete, records compare, records regress", _TABLES),
        ("features, splits, graphs records, graphs splits, profiles show", _TABLES),
        ("train, evaluate, register, graphs train, graphs evaluate, graphs register", _SCORES),
        ("evaluate roofline", (*_TABLES, *_REGISTRY, "duckdb", "matplotlib", "tvm")),
        ("register status, register rollback, leaderboard", _STATUS),
        ("register drift", (*_TABLES, "duckdb", "scipy")),
        ("register export", _REGISTRY),
        ("adapt", (*_SCORES, "tvm", "xgboost")),
        ("adapt curve, profiles transfer", (*_SCORES, "xgboost")),
        ("tune", (*_TUNER, "xgboost")),
        ("tune report", _TUNER),
        ("compile", ("scipy", "tvm")),
        ("serve", ("mlflow", "scipy", "sqlalchemy", "starlette", "tvm", "uvicorn", "xgboost")),
        ("graphs tune", (*_SCORES, "optuna", "torch_geometric")),
        ("graphs latency", (*_REGISTRY, "onnx", "onnxscript")),
        ("graphs measure", ("onnx", "onnxruntime", "onnxscript", "torch", "transformers")),
        ("profiles pretraining", (*_SCORES, "pytorch_lightning", "torch")),
        ("report", (*_TABLES, "jinja2", "matplotlib", "scipy")),
        ("ui", (*_REGISTRY, "flask")),
        ("pipeline", ("dvc",)),
    )
    for command in commands.split(",")
}
"""Command -> what it cannot start without; sub-commands need what their longest prefix here says. What only some
choices need (a model family, a network's source) is found missing when it is imported: see `missing`."""


def require_extra(command: str) -> None:
    """Make sure that a command can start.

    Args:
        command: its words, without `tencost`.

    Raises:
        MissingDependencyError: something that it needs is not installed; the message names the extra.
    """
    words = command.split()
    prefixes = (" ".join(words[:count]) for count in range(len(words), 0, -1))
    needs = next((NEEDS[prefix] for prefix in prefixes if prefix in NEEDS), ())
    absent = [name for name in needs if find_spec(name) is None]
    if absent:
        raise _error(f"tencost {command}", absent)


def missing(command: str, error: ModuleNotFoundError) -> MissingDependencyError | None:
    """Return the error for an import that failed in the middle of a command; None where no extra brings the module."""
    name = (error.name or "").partition(".")[0]
    return _error(command, [name]) if any(name in modules for modules in EXTRAS.values()) else None


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
