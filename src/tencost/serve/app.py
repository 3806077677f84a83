"""The scoring service: a registered model for tuners that are not in Python's process.

    GET  /health      {"status": "ok"}
    GET  /v1/model    {"model": uri, "digest": of its bundle.json, "target_kind": ..., "hardware": ...,
                       "tencost": version, "most_candidates": ..., "most_bytes": ..., "seconds": ...}
    POST /v1/score    {"workload": TVM's JSON text of the module,
                       "target": {"kind": ...},
                       "traces": [[instructions, decisions], ...]}
                  ->  {"scores": [float64 in (0, 1], higher is faster], "unread": [{"index": i, "reason": text}]}

Traces are JSON values as they stand in a MetaSchedule database, or their texts. Scores have all digits of their
float64: they are the bytes that the model gives in process. A candidate that cannot be read scores lowest and is named.
A request that is wrong is answered with 4xx and ``{"error": sentence}``; the service goes on.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tencost import __version__
from tencost.errors import TencostError, printable
from tencost.features.kind import Chunk
from tencost.serve.pool import Overdue, Pool
from tencost.store.allowed import check_module
from tencost.train.bundle import BundleInfo


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a client may ask for at most."""

    candidates: int = 4096
    """In a request."""
    megabytes: int = 64
    """Of a request's body."""
    seconds: float = 120.0
    """Until a request is answered, its waiting for others included."""
    waiting: int = 16
    """Requests that wait for others; more are told to come later."""


class Service:
    """Answers requests about one model."""

    def __init__(
        self, uri: str, digest: str, info: BundleInfo, pool: Pool, limits: Limits, token: str | None
    ) -> None:
        """Take what is asked about.

        Args:
            uri: where the model comes from, for who asks.
            digest: sha256 of its bundle.json.
            info: what that says.
            pool: scores.
            limits: see there.
            token: that requests must bear; None: none.
        """
        self._about = {
            "model": uri,
            "digest": digest,
            "family": info.family,
            "features": info.feature_spec.name,
            "hardware": info.hardware,
            "target_kind": info.target_kind,
            "tencost": __version__,
            "most_candidates": limits.candidates,
            "most_bytes": limits.megabytes << 20,
            "seconds": limits.seconds,
        }
        self._kind = info.target_kind
        self._pool = pool
        self._limits = limits
        self._token = token
        self._waiting = 0
        self.app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/model", self._model),
                Route("/v1/score", self._score, methods=["POST"]),
            ],
            exception_handlers={HTTPException: _refused, TencostError: _mistaken},
        )

    async def _health(self, request: Request) -> Response:
        del request
        return _json({"status": "ok"})

    async def _model(self, request: Request) -> Response:
        self._admit(request)
        return _json(self._about)

    async def _score(self, request: Request) -> Response:
        self._admit(request)
        if self._waiting >= self._limits.waiting:
            raise HTTPException(
                503,
                f"{self._waiting} requests are waiting already, try later",
                {"Retry-After": "1"},
            )
        self._waiting += 1
        try:
            batch = self._batch(await self._body(request))
            found = await run_in_threadpool(self._pool.score, batch, self._limits.seconds)
        except Overdue:
            raise HTTPException(
                504,
                f"expected scores within {self._limits.seconds:g} s, found none: send fewer candidates at once",
            ) from None
        finally:
            self._waiting -= 1
        unread = [
            {"index": index, "reason": printable(one.reason)}
            for index, one in enumerate(found)
            if one.reason
        ]
        return _json({"scores": [one.score for one in found], "unread": unread})

    def _admit(self, request: Request) -> None:
        if self._token is None:
            return
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            raise HTTPException(401, "expected the header `Authorization: Bearer <token>`")

    async def _body(self, request: Request) -> bytes:
        most = self._limits.megabytes << 20
        told = request.headers.get("content-length", "0")
        if told.isdigit() and int(told) > most:
            raise HTTPException(413, f"expected at most {most} bytes, found {told}")
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise HTTPException(413, f"expected at most {most} bytes, found more")
            parts.append(part)
        return b"".join(parts)

    def _batch(self, body: bytes) -> Chunk:
        try:
            asked = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise HTTPException(400, f"expected JSON, found something else: {error}") from error
        if not isinstance(asked, dict):
            raise HTTPException(400, "expected an object with workload, target and traces")
        workload, target, traces = (asked.get(name) for name in ("workload", "target", "traces"))
        if not isinstance(workload, str) or not workload:
            raise HTTPException(422, "workload: expected TVM's JSON text of the module")
        if not isinstance(target, dict) or target.get("kind") != self._kind:
            kind = target.get("kind") if isinstance(target, dict) else None
            raise HTTPException(
                422, f"target: expected an object of kind {self._kind!r}, found {str(kind)[:40]!r}"
            )
        if not isinstance(traces, list) or not traces:
            raise HTTPException(422, "traces: expected a list of at least 1 trace")
        if len(traces) > self._limits.candidates:
            raise HTTPException(
                413, f"traces: expected at most {self._limits.candidates}, found {len(traces)}"
            )
        texts = tuple(one if isinstance(one, str) else orjson.dumps(one).decode() for one in traces)
        check_module(workload, "workload")
        names = tuple(map(str, range(len(texts))))
        # Of the target only its kind matters to features: the rest is not read.
        return Chunk("w", workload, orjson.dumps({"kind": self._kind}).decode(), names, texts)


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, "application/json")


async def _refused(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, HTTPException)
    return _json(
        {"error": printable(str(error.detail))}, error.status_code, dict(error.headers or {})
    )


async def _mistaken(request: Request, error: Exception) -> Response:
    """Answer what a user can mend, such as a module that names what could run code of others."""
    del request
    return _json({"error": printable(str(error))}, 422)
