"""Bodies of requests, read in processes of their own: the event loop and its GIL stay free for other requests.

Bodies up to `SMALL` and larger ones have a process each, so that no ordinary request waits for a huge one. A process
reads the JSON, checks the module, names each program by its content and reads its tile columns; it has no TVM.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import orjson

from tencost.errors import TencostError
from tencost.features.rows.kind import Chunk
from tencost.features.rows.ragged import FloatArray
from tencost.programs.trace.allowed import check_module, check_trace
from tencost.workers.parallel.local import LocalWorkers
from tencost.workers.parallel.mapping import WorkerLostError

SMALL = 8 << 20
"""Bytes of a body beyond which it goes to the other process."""
TRIES = 2
"""Processes that may die over a body."""


class UnreadableError(Exception):
    """A body that is no request; answered with a status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(status, sentence)
        self.status, self.sentence = status, sentence


class LateError(Exception):
    """A body was not read, or a batch not scored, in time."""


@dataclass(frozen=True)
class Rules:
    """What a request must be."""

    target_kind: str
    candidates: int
    """At most."""
    drafts: bool
    """Whether the model's features cost more than tile columns, so that guessing saves time."""


@dataclass(frozen=True)
class ScoreRequest:
    """A request that was read.

    Attributes:
        workload: hash of the module's text.
        batch: the programs; their ids count from 0.
        keys: hash of each program's text.
        rows: tile columns by key of the program, float32 [1, T]; only of those that have some, and only for a draft.
        draft: whether those that promise little may be guessed.
    """

    workload: bytes
    batch: Chunk
    keys: tuple[bytes, ...]
    rows: dict[bytes, FloatArray]
    draft: bool


class Readers:
    """The processes that read bodies."""

    def __init__(self, rules: Rules) -> None:
        self._workers = [LocalWorkers(_read_all, rules, 1) for _ in ("small", "large")]
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Start the process for ordinary requests, so that the first one does not wait for it."""
        self._submit(self._workers[0], b"{}")

    def read(self, body: bytes, seconds: float) -> ScoreRequest:
        """Read a body.

        Args:
            body: JSON text.
            seconds: how long that may take.

        Raises:
            UnreadableError: it is no request.
            LateError: it took longer.
        """
        workers = self._workers[len(body) > SMALL]
        for _ in range(TRIES):
            handle = self._submit(workers, body)
            try:
                handle.exception(seconds)
                [request] = workers.result(handle)
            except FutureTimeoutError:
                handle.cancel()
                raise LateError from None
            except WorkerLostError:
                continue
            if isinstance(request, UnreadableError):
                raise request
            assert isinstance(request, ScoreRequest)
            return request
        raise UnreadableError(413, "the process that read the request died: send a smaller one")

    def close(self) -> None:
        """End the processes, whatever they are at."""
        with self._lock:
            for workers in self._workers:
                workers.close(at_once=True)

    def _submit(self, workers: LocalWorkers, body: bytes) -> Future[Any]:
        with self._lock:
            return workers.submit(body)


def _read_all(rules: Rules, body: bytes) -> list[ScoreRequest | UnreadableError]:
    try:
        return [read_body(rules, body)]
    except UnreadableError as error:
        return [error]
    except TencostError as error:  # such as a module that names what could run code of others
        return [UnreadableError(422, str(error))]


def read_body(rules: Rules, body: bytes) -> ScoreRequest:
    """Read a body in this process.

    Raises:
        UnreadableError: it is no request.
        UntrustedError: its module names what could run code of others.
    """
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise UnreadableError(400, f"expected JSON, found something else: {error}") from None
    if not isinstance(request, dict):
        raise UnreadableError(400, "expected an object with workload, target and traces")
    workload, target, traces = (request.get(name) for name in ("workload", "target", "traces"))
    draft = request.get("draft", False)
    if not isinstance(workload, str) or not workload:
        raise UnreadableError(422, "workload: expected TVM's JSON text of the module")
    kind = target.get("kind") if isinstance(target, dict) else None
    if kind != rules.target_kind:
        raise UnreadableError(
            422,
            f"target: expected an object of kind {rules.target_kind!r}, found {str(kind)[:40]!r}",
        )
    if not isinstance(traces, list) or not traces:
        raise UnreadableError(422, "traces: expected a list of at least 1 trace")
    if len(traces) > rules.candidates:
        raise UnreadableError(
            413, f"traces: expected at most {rules.candidates}, found {len(traces)}"
        )
    if not isinstance(draft, bool):
        raise UnreadableError(422, f"draft: expected true or false, found {str(draft)[:40]!r}")
    check_module(workload, "workload")
    texts = tuple(
        trace if isinstance(trace, str) else orjson.dumps(trace).decode() for trace in traces
    )
    keys = tuple(map(_digest, texts))
    names = tuple(map(str, range(len(texts))))
    draft = draft and rules.drafts
    # Of the target only its kind matters to features: the rest is not read.
    target_text = orjson.dumps({"kind": rules.target_kind}).decode()
    return ScoreRequest(
        _digest(workload),
        Chunk("w", workload, target_text, names, texts),
        keys,
        _tile_rows(dict(zip(keys, texts, strict=True))) if draft else {},
        draft,
    )


def _tile_rows(texts: dict[bytes, str]) -> dict[bytes, FloatArray]:
    """Return the tile columns of programs by their key, of those that have some and may be applied."""
    from tencost.features.kinds.tiles import tile_row

    rows = {}
    for key, text in texts.items():
        try:
            trace = orjson.loads(text)
            check_trace(trace)
            row = tile_row(trace)
        except (
            TencostError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError
        ):  # fmt: skip
            continue  # it is scored in full, which says what is wrong with it
        if row is not None and np.isfinite(row).all():
            rows[key] = row
    return rows


def _digest(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
