"""Learned cost models for tensor programs: measured, versioned, compared, and served to TVM's MetaSchedule.

For one's own TVM scripts (needs `tencost[tuner]` only):

    load_cost_model(uri)   a registered model as `cost_model=` of ms.tune_tir, tune_tasks and tune_relax
    search(model)          a search for `strategy=` that begins with what the model's training side found fast
    search_space(target)   design spaces for `space=`: TVM's, and register tiles whose best ones the search begins with
    WarmBuilder(), WarmRunner()
                           `builder=` and `runner=` whose worker processes stay warm between batches
    remote_cost_model(url) the same of a service (`tencost serve`), which may run on another machine
    install(uri)           model, search and spaces in unchanged pipelines (MetaScheduleTuneTIR and the like)
    uninstall()            back to stock MetaSchedule
    build(mod, target)     tvm.compile as the measuring workers do it, for a database that another process tuned

For networks that run on this host (needs `tencost[tuner]`):

    compile(path)          an ONNX or torch.export file, or an nn.Module, as a function of NumPy arrays or torch tensors
    load(path)             the same of a library that `tencost compile` or `tencost tune --to` wrote

For latencies of networks that are not compiled (needs `tencost[latency]`):

    load_graph_model(uri)  a registered model of a device: its predict_ms gives milliseconds
    graphs_of(path)        what it reads, of ONNX files

They are imported when first used: ``import tencost`` loads neither TVM nor anything else that is heavy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tencost import old_names

if TYPE_CHECKING:
    from tencost.programs.codegen.build import build
    from tencost.programs.codegen.spaces import search_space
    from tencost.register.latency.api import graphs_of, load_graph_model
    from tencost.register.service.client import remote_cost_model
    from tencost.tune.cost_model import load_cost_model
    from tencost.tune.install import install, uninstall
    from tencost.tune.library import load
    from tencost.tune.library_cache import compile
    from tencost.tune.search import search
    from tencost.workers.runner import WarmBuilder, WarmRunner

__version__ = "0.2.0"

__all__ = [
    "WarmBuilder",
    "WarmRunner",
    "__version__",
    "build",
    "compile",
    "graphs_of",
    "install",
    "load",
    "load_cost_model",
    "load_graph_model",
    "remote_cost_model",
    "search",
    "search_space",
    "uninstall",
]

_LAZY = {
    "WarmBuilder": "tencost.workers.runner",
    "WarmRunner": "tencost.workers.runner",
    "graphs_of": "tencost.register.latency.api",
    "load_graph_model": "tencost.register.latency.api",
    "load_cost_model": "tencost.tune.cost_model",
    "remote_cost_model": "tencost.register.service.client",
    "search": "tencost.tune.search",
    "search_space": "tencost.programs.codegen.spaces",
    "install": "tencost.tune.install",
    "uninstall": "tencost.tune.install",
    "build": "tencost.programs.codegen.build",
    "compile": "tencost.tune.library_cache",
    "load": "tencost.tune.library",
}

old_names.install_finder()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tencost' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
