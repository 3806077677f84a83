"""A cost model for MetaSchedule whose scores come from `tencost serve`, on this host or another one."""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import orjson
from tvm.ir import save_json
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm_ffi import structural_hash

from tencost.errors import ConfigError, RegistryError, TuneError, printable
from tencost.programs.codegen.build import prepare_compilation
from tencost.programs.trace.instructions import trace_values
from tencost.programs.trace.intrinsics import register_intrinsics

BATCH = 1024
"""Candidates of a request at most."""
TRIES, PAUSE_SECONDS = 3, 1.0
"""How often a service that cannot be reached is asked, and how long is waited in between."""
FIRST_SECONDS = 8.0
"""How long the service may take to say what it is, which needs no work."""


class Connection:
    """One service; each request has a connection of its own, so that nothing is left open between rounds."""

    def __init__(self, url: str, token: str | None, seconds: float) -> None:
        try:
            parts = urlsplit(url if "//" in url else f"//{url}", scheme="http")
            valid, port = parts.scheme in ("http", "https") and bool(parts.hostname), parts.port
        except ValueError:
            valid = False
        if not valid:
            raise ConfigError(f"expected the address of a service, http://host:port, found {url!r}")
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._url = url
        self._path = parts.path.rstrip("/")
        self._http = kind(str(parts.hostname), port, timeout=seconds)
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        """Return what the service answers.

        Raises:
            RegistryError: nobody answers.
            TuneError: the service refuses; its sentence is quoted.
        """
        for remaining in reversed(range(TRIES)):
            try:
                self._http.request(method, self._path + path, body, self._headers)
                answer = self._http.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException) as error:
                if not remaining or isinstance(error, TimeoutError):
                    raise RegistryError(
                        f"{self._url}: expected a service that scores, nobody answers ({type(error).__name__} "
                        f"{error}). Start one: tencost serve MODEL"
                    ) from error
            else:
                if not remaining or answer.status != 503:
                    return self._read(answer.status, content)
            finally:
                self._http.close()
            time.sleep(PAUSE_SECONDS)
        raise AssertionError("every attempt returns or raises")

    def _read(self, status: int, content: bytes) -> Any:
        try:
            answer = orjson.loads(content)
        except orjson.JSONDecodeError:
            answer = None
        message = answer.get("error") if isinstance(answer, dict) else None
        if status == 200 and isinstance(answer, dict):
            return answer
        if message is None and status in (200, 404, 405):
            raise self.something_else(f"status {status}")
        text = printable(str(message or content[:200].decode(errors="replace")), 500)
        raise TuneError(f"{self._url}: the service answers {status}: {text}")

    def something_else(self, answer: str) -> RegistryError:
        """Return the error that whoever answers is no service of ours."""
        return RegistryError(
            f"{self._url}: expected a service that scores, found something else ({answer}). "
            "Start one: tencost serve MODEL, and name the address that it prints"
        )


@derived_object
class RemoteModel(ms.cost_model.PyCostModel):
    """Asks a service. It learns nothing from measurements. Make one with :func:`remote_cost_model`."""

    def __init__(self, connection: Connection, about: dict[str, Any], draft: bool = True) -> None:
        super().__init__()
        self.about = about
        self.draft = draft
        self.guessed = 0
        """Candidates so far that the service guessed."""
        self.unread = 0
        """Candidates so far that the service could not read."""
        self._connection = connection
        self._modules: dict[int, str] = {}

    def predict(self, context: Any, candidates: Sequence[Any]) -> npt.NDArray[np.float64]:
        """Return scores, float64 [N] in (0, 1], higher is faster."""
        key = structural_hash(context.mod)
        if key not in self._modules:
            self._modules[key] = str(save_json(context.mod))
        kind = self.about["target_kind"] if context.target is None else context.target.kind.name
        target = {"kind": str(kind)}
        scores: list[float] = []
        most = min(BATCH, int(self.about.get("most_candidates", BATCH)))
        for start in range(0, len(candidates), most):
            part = candidates[start : start + most]
            request = {
                "workload": self._modules[key],
                "target": target,
                "traces": [trace_values(candidate.sch.trace) for candidate in part],
                "draft": self.draft,
            }
            answer = self._connection.ask("POST", "/v1/score", orjson.dumps(request))
            part_scores = answer.get("scores")
            if not isinstance(part_scores, list) or len(part_scores) != len(part):
                raise self._connection.something_else(f"no {len(part)} scores")
            scores += part_scores
            self.unread += len(answer.get("unread", ()))
            self.guessed += len(answer.get("guessed", ()))
        return np.array(scores, np.float64)

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Learn nothing: the service is others', too."""

    def load(self, path: str) -> None:
        """Read nothing."""

    def save(self, path: str) -> None:
        """Write nothing."""


def remote_cost_model(
    url: str, *, token: str | None = None, seconds: float = 150.0, draft: bool = True
) -> Any:
    """Return the model behind a service as the object for `cost_model=` of ms.tune_tir, tune_tasks and tune_relax.

    Args:
        url: of the service, http://host:port.
        token: that it asks for; TENCOST_SERVE_TOKEN if None.
        seconds: after which a request is given up.
        draft: of 64 new candidates or more, score only the promising share in full and guess the others, as
            :func:`tencost.load_cost_model` does; False: each candidate has the same score alone and in a batch.

    Raises:
        ConfigError: not an address.
        RegistryError: nobody answers there, or something else does.
        TuneError: the service refuses.
    """
    token = token or os.environ.get("TENCOST_SERVE_TOKEN")
    first = Connection(url, token, min(seconds, FIRST_SECONDS))
    about = first.ask("GET", "/v1/model")
    if "digest" not in about:
        raise first.something_else("no description of a model")
    # TVM's first TuneContext would register those of all kinds, for minutes.
    target_kind = str(about.get("target_kind", "llvm"))
    register_intrinsics(target_kind)
    prepare_compilation(target_kind)
    return RemoteModel(Connection(url, token, seconds), about, draft)
