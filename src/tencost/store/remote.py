"""A record store on an object store: settings that give up in time, and what its answers mean, in one sentence.

Delta Lake repeats a request for minutes and tells what went wrong as a tree of lines with the server's whole XML in it.
Here a store is asked for its log once before anything else, in :data:`FIRST_S` seconds and two tries; later requests
may take longer, for they carry records. Keys and tokens are in no message: an endpoint is shown without what stands
before its `@`, and of an answer only its code.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

import polars as pl
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from tencost.errors import RecordError, without_secrets

FIRST_S = 4
"""Seconds of each of two tries of the first request of a process."""
_FIRST = {
    "timeout": f"{FIRST_S}s",
    "connect_timeout": "3s",
    "max_retries": "1",
    "retry_timeout": f"{FIRST_S}s",
}
_LATER = {"timeout": "60s", "connect_timeout": "5s", "max_retries": "4", "retry_timeout": "30s"}
_ENDPOINTS = ("ENDPOINT_URL_S3", "ENDPOINT_URL", "ENDPOINT")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"\b([45]\d\d) [A-Z][A-Za-z]+")
_COLOURS_AND_ARROWS = re.compile(r"\x1b\[[0-9;]*m|↳")
_REFUSED = {"AccessDenied", "AllAccessDisabled", "Forbidden", "403", "Unauthorized", "401"}
_CREDENTIALS = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken"}
_KEYS = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, where it is used, AWS_SESSION_TOKEN"

_reached: set[tuple[str, str]] = set()
"""Stores that answered this process, with their endpoint."""


def is_remote(uri: str) -> bool:
    """Say whether a store is on an object store, not in a folder."""
    return "://" in uri and not uri.startswith("file://")


def settings(uri: str, options: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return Delta Lake's settings of a store: the options over our defaults; None for a folder."""
    return {**_LATER, **(options or {})} if is_remote(uri) else None


def reach_store(uri: str, options: Mapping[str, str] | None = None) -> None:
    """Check once a process that an object store answers and lets us read.

    Raises:
        RecordError: it does not, within ten seconds.
    """
    key = (uri, endpoint(options))
    if not is_remote(uri) or key in _reached:
        return
    try:
        with explain_store_errors(uri, options):
            DeltaTable.is_deltatable(uri, storage_options={**_FIRST, **(options or {})})
    except (DeltaError, OSError) as error:
        reason = " ".join(_COLOURS_AND_ARROWS.sub("", str(error)).split())[:200]
        raise RecordError(
            f"expected a record store at {without_secrets(uri)}, found an address that cannot be used: {reason}"
        ) from None
    _reached.add(key)


@contextmanager
def explain_store_errors(uri: str, options: Mapping[str, str] | None = None) -> Iterator[None]:
    """Turn the errors of an object store that refuses or is silent into one sentence; errors of a folder pass.

    Raises:
        RecordError: it refuses, or does not answer.
    """
    try:
        yield
    except (CommitFailedError, TableNotFoundError):
        raise
    except (DeltaError, OSError, pl.exceptions.ComputeError) as error:
        message = meaning(uri, error, options) if is_remote(uri) else None
        if message is None:
            raise
        raise RecordError(message) from None  # The cause holds the server's whole answer.


def meaning(uri: str, error: BaseException, options: Mapping[str, str] | None = None) -> str | None:
    """Return what an object store's error means and what to do; None for an error that is not the store's."""
    text = _COLOURS_AND_ARROWS.sub("", str(error))
    address = without_secrets(uri)
    is_s3 = uri.startswith(("s3://", "s3a://"))
    where = endpoint(options) if is_s3 else ""
    keys = _KEYS if is_s3 else "the provider's variables (docs/reference/store.md)"
    at = f" at {where}" if where else ""
    codes = {*_CODE.findall(text), *_STATUS.findall(text)}
    if "169.254.169.254" in text or "metadata" in text.lower():
        return f"expected credentials for {address}{at}, found none. Set {keys}"
    if "NoSuchBucket" in codes:
        bucket = urlsplit(uri).hostname or address
        return (
            f"expected a bucket {bucket}{at} for {address}, found none of that name. Create it, or name another "
            "store: --store"
        )
    if wrong := sorted(codes & _CREDENTIALS):
        return (
            f"expected credentials that {where or 'the object store'} knows for {address}, found others ({wrong[0]}). "
            f"Check {keys}"
        )
    if refused := sorted(codes & _REFUSED, reverse=True):
        return (
            f"expected to be let in to {address}{at}, was refused ({refused[0]}). Check {keys}, and what they may do: "
            "writing takes more than reading"
        )
    if "scheme is not allowed" in text:
        return (
            f"expected https for {address}, found {where}. If it is meant, set AWS_ALLOW_HTTP=true"
        )
    if not _is_network(text, codes):
        return None
    return (
        f"expected an object store{at} for {address}, found none that answers ({_last(text)}). Check AWS_ENDPOINT_URL, "
        "AWS_REGION and the server"
    )


def endpoint(options: Mapping[str, str] | None = None) -> str:
    """Return the address of the object store without secrets; empty: the provider's own."""
    return without_secrets(endpoint_address(aws_settings(options)))


def endpoint_address(settings: Mapping[str, str]) -> str:
    """Return the address of the object store, of :func:`aws_settings`; empty: the provider's own."""
    return next((settings[name] for name in _ENDPOINTS if name in settings), "")


def aws_settings(options: Mapping[str, str] | None) -> dict[str, str]:
    """Return options over environment by names without `AWS_`: Delta Lake takes options with it and without."""
    variables = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    named = [*variables.items(), *(options or {}).items()]
    settings = {name.upper().removeprefix("AWS_"): value for name, value in named}
    return {name: value for name, value in settings.items() if value}


def _is_network(text: str, codes: set[str]) -> bool:
    words = (
        "HTTP error",
        "error sending request",
        "timed out",
        "error performing",
        "generic s3",
        "unable to recognise",
    )
    return bool(codes) or any(word.lower() in text.lower() for word in words)


def _last(text: str) -> str:
    """Return the innermost of an error's reasons, on one line and short."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    status = [line for line in lines if _STATUS.search(line)]
    return without_secrets((status or lines or ["no answer"])[-1])[:160]
