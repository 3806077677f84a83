"""The scoring service: a registered model for tuners that are not in Python's process.

    GET  /health      {"status": "ok", or "busy" where all slots are taken, "slots": {"all", "taken"},
                       "workers": {"all", "alive"}, "queue": requests that wait for the workers, "reading": bodies}
    GET  /metrics     the same and what was done so far, as Prometheus reads it
    GET  /v1/model    {"model": uri, "digest": of its bundle.json, "target_kind": ..., "hardware": ...,
                       "tencost": version, "most_candidates": ..., "most_bytes": ..., "seconds": ...}
    POST /v1/score    {"workload": TVM's JSON text of the module,
                       "target": {"kind": ...},
                       "traces": [[instructions, decisions], ...],
                       "draft": false}
                  ->  {"scores": [float64 in (0, 1], higher is faster], "guessed": [index, ...],
                       "unread": [{"index": i, "reason": text}]}

Traces are JSON values as they stand in a MetaSchedule database, or their texts. Scores have all digits of their
float64: they are the bytes that the model gives in process, but for those that `guessed` names, which there are only
with `"draft": true`. A candidate that cannot be read scores lowest and is named. A request that is wrong is answered
with 4xx and ``{"error": sentence}``; the service goes on.

The event loop only waits: bodies are read in processes (:mod:`tencost.register.service.reading`), scores come from
processes. A request has a slot from when its body is here to its answer.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import threading
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from tencost import __version__
from tencost.errors import TencostError, printable
from tencost.models.programs.bundle import BundleInfo
from tencost.register.service import metrics
from tencost.register.service.pool import EndedError, ScoringPool
from tencost.register.service.reading import LateError, Readers, UnreadableError
from tencost.register.service.scoring import CandidateScore

_CLOSE = {"Connection": "close"}
"""For clients that are not waited for; one that still sends would lose the answer by it."""
WATCH_SECONDS = 0.25
"""How often it is looked whether a client is still there."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """What a client may ask for at most."""

    candidates: int = 4096
    """In a request."""
    megabytes: int = 64
    """Of a request's body."""
    body_seconds: float = 30.0
    """Until a request's body is here."""
    seconds: float = 120.0
    """Until a request whose body is here is answered, its waiting for others included."""
    waiting: int = 16
    """Requests whose body is here, at once; more are told to come later. As much memory is for bodies on their way."""


class Service:
    """Answers requests about one model."""

    def __init__(
        self,
        uri: str,
        digest: str,
        info: BundleInfo,
        pool: ScoringPool,
        readers: Readers,
        limits: RequestLimits,
        token: str | None,
    ) -> None:
        """Take what is asked about.

        Args:
            uri: where the model comes from, for who asks.
            digest: sha256 of its bundle.json.
            info: what that says.
            pool: scores.
            readers: read bodies.
            limits: see there.
            token: that requests must bear; None: none.
        """
        self._model_facts = {
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
        self._pool = pool
        self._readers = readers
        self._limits = limits
        self._token = token
        self._taken = 0
        """Slots."""
        self._reading = 0
        """Bodies on their way."""
        self._reading_bytes = 0
        self._requests = metrics.Requests()
        self.app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/v1/model", self._model),
                Route("/v1/score", self._score, methods=["POST"]),
            ],
            exception_handlers={HTTPException: _refused},
        )

    async def _health(self, request: Request) -> Response:
        del request
        pool = self._pool.gauges()
        return _json(
            {
                "status": "ok" if self._taken < self._limits.waiting else "busy",
                "slots": {"all": self._limits.waiting, "taken": self._taken},
                "workers": {"all": pool["workers"], "alive": pool["workers_alive"]},
                "queue": pool["queue"],
                "reading": self._reading,
            }
        )

    async def _metrics(self, request: Request) -> Response:
        self._admit(request)
        gauges = {
            "slots": self._limits.waiting,
            "slots_taken": self._taken,
            "reading": self._reading,
            **self._pool.gauges(),
        }
        content = metrics.text(self._requests, self._pool.counts, gauges)
        return Response(content, headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _model(self, request: Request) -> Response:
        self._admit(request)
        return _json(self._model_facts)

    async def _score(self, request: Request) -> Response:
        """Answer a request, and count the answer; a client that leaves and the service's end are a line each."""
        started = time.monotonic()
        client = f"{request.client.host}:{request.client.port}" if request.client else "a client"
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            self._requests.departed += 1
            _log.warning("%s left after %.1f s, unanswered", client, time.monotonic() - started)
            return _json({"error": "the client left"}, 400)  # nobody reads it
        except (EndedError, asyncio.CancelledError):  # uvicorn cancels what takes too long to end
            _log.warning("%s is not answered: the service ends", client)
            response = _json({"error": "the service ends"}, 503, {**_CLOSE, "Retry-After": "1"})
        except HTTPException as error:
            self._requests.answered(error.status_code, time.monotonic() - started)
            raise
        self._requests.answered(response.status_code, time.monotonic() - started)
        return response

    async def _answer(self, request: Request) -> Response:
        self._admit(request)
        body = await self._body(request)
        if self._taken >= self._limits.waiting:
            raise HTTPException(
                503, f"{self._taken} requests are waiting already, try later", {"Retry-After": "1"}
            )
        self._taken += 1
        abandoned = threading.Event()
        try:
            work = run_in_threadpool(self._scored, body, abandoned)
            answer = await _while_there(request, work, abandoned)
        except LateError:
            raise HTTPException(
                504,
                f"expected scores within {self._limits.seconds:g} s, found none: send fewer candidates at once",
            ) from None
        except UnreadableError as error:
            raise HTTPException(error.status, error.sentence) from None
        except TencostError as error:  # what a user can mend, such as a module that TVM cannot read
            raise HTTPException(422, str(error)) from None
        finally:
            abandoned.set()
            self._taken -= 1
        return _json(
            {
                "scores": [scored.score for scored in answer],
                "guessed": [index for index, scored in enumerate(answer) if scored.guessed],
                "unread": [
                    {"index": index, "reason": printable(scored.reason)}
                    for index, scored in enumerate(answer)
                    if scored.reason
                ],
            }
        )

    def _scored(self, body: bytes, abandoned: threading.Event) -> list[CandidateScore]:
        """Read and score, in a thread that waits for processes."""
        started = time.monotonic()
        request = self._readers.read(body, self._limits.seconds)
        seconds = self._limits.seconds - (time.monotonic() - started)
        return self._pool.score(request, seconds, abandoned)

    def _admit(self, request: Request) -> None:
        if self._token is None:
            return
        header = request.headers.get("authorization", "")
        if not hmac.compare_digest(header.encode(), f"Bearer {self._token}".encode()):
            raise HTTPException(401, "expected the header `Authorization: Bearer <token>`")

    async def _body(self, request: Request) -> bytes:
        """Return a request's body, which takes no slot while it is on its way."""
        most = self._limits.megabytes << 20
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > most:
            raise HTTPException(413, f"expected at most {most} bytes, found {length}")
        parts: list[bytes] = []
        size = 0
        self._reading += 1
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                async for part in request.stream():
                    size += len(part)
                    self._reading_bytes += len(part)
                    if size > most:
                        raise HTTPException(413, f"expected at most {most} bytes, found more")
                    if self._reading_bytes > most * self._limits.waiting:
                        raise HTTPException(
                            503,
                            f"{self._reading_bytes} bytes of requests are on their way already, try later",
                            {"Retry-After": "1"},
                        )
                    parts.append(part)
        except TimeoutError:
            raise HTTPException(
                408,
                f"expected the request's body within {self._limits.body_seconds:g} s, found {size} bytes of it",
                _CLOSE,
            ) from None
        finally:
            self._reading -= 1
            self._reading_bytes -= size
        return b"".join(parts)


async def _while_there(
    request: Request, work: Awaitable[list[CandidateScore]], abandoned: threading.Event
) -> list[CandidateScore]:
    """Wait for scores; where the client leaves, the work ends with its next slice, and ClientDisconnect is raised."""
    task = asyncio.ensure_future(work)
    try:
        while True:
            if (await asyncio.wait({task}, timeout=WATCH_SECONDS))[0]:
                return await task
            if not abandoned.is_set() and await request.is_disconnected():
                abandoned.set()
    except EndedError:
        if await request.is_disconnected():
            raise ClientDisconnect from None
        raise


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content), status, headers, "application/json")


async def _refused(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, HTTPException)
    return _json(
        {"error": printable(str(error.detail))}, error.status_code, dict(error.headers or {})
    )
