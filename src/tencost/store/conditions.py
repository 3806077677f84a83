"""Whether an object store keeps the condition that commits rely on: with `If-None-Match: *` a second PUT fails.

A server that ignores it lets two writers make the same version, and the commits of one are lost without a word. So it
is asked before a process writes for the first time, with a file of its own that stays: writers may not delete. Delta
Lake cannot be made to ask, for it looks at what is there before it writes.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from tencost.errors import RecordError, without_secrets
from tencost.store import remote

PROBE = "_put_if_absent"
"""The file, in the store's folder; Delta Lake takes what begins with an underline for none of its own."""
_SECONDS = 10.0
_ABSENT_ONLY = (409, 412)
"""What is answered where the condition does not hold."""
_keep: set[tuple[str, str]] = set()
"""Stores, with their endpoint, of which this process knows."""


def require_put_if_absent(uri: str, options: Mapping[str, str] | None = None) -> None:
    """Check, once in a process, that a store's server refuses to write over a file.

    Servers of Amazon, Google and Azure do and are not asked, nor is a server whose keys are neither in the options nor
    in the environment. With Delta Lake's lock (AWS_S3_LOCKING_PROVIDER) the store needs no such server, and
    AWS_S3_ALLOW_UNSAFE_RENAME=true vouches that one process at a time writes.

    Args:
        uri: of the store.
        options: Delta Lake's storage options, over the environment.

    Raises:
        RecordError: the server writes over a file.
    """
    settings = remote.aws_settings(options)
    endpoint = remote.endpoint_address(settings)
    key = (uri, endpoint)
    s3_compatible = uri.startswith(("s3://", "s3a://")) and not _is_amazon(endpoint)
    keys = "ACCESS_KEY_ID" in settings and "SECRET_ACCESS_KEY" in settings
    vouched = (
        settings.get("S3_LOCKING_PROVIDER")
        or settings.get("S3_ALLOW_UNSAFE_RENAME", "").lower() == "true"
    )
    if not s3_compatible or not keys or vouched or key in _keep:
        return
    for _ in range(2):  # the first may be the one that makes the file
        status = _put(_address(uri, endpoint, settings), settings)
        if status in _ABSENT_ONLY:
            _keep.add(key)
        if not 200 <= status < 300:
            return  # the write itself reports other errors
    raise RecordError(
        f"expected an object store that refuses to write over a file (If-None-Match) for {without_secrets(uri)}, found "
        f"one that does it at {remote.endpoint(options)}: of two writers at once, one would lose its commits. Use a "
        "server that refuses (docs/reference/store.md), or let one process at a time write and say so: "
        "AWS_S3_ALLOW_UNSAFE_RENAME=true"
    )


def _is_amazon(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    return not host or host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


def _address(uri: str, endpoint: str, settings: Mapping[str, str]) -> str:
    place = urlsplit(uri)
    hosted = settings.get("VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() == "true"
    bucket = "" if hosted else f"/{place.netloc}"
    return f"{endpoint.rstrip('/')}{bucket}{quote(place.path.rstrip('/'))}/{PROBE}"


def _put(address: str, settings: Mapping[str, str]) -> int:
    """Write the file if it is absent; return the status of the answer, 0 where there is none."""
    headers = {**_signed(address, settings), "If-None-Match": "*"}
    request = urllib.request.Request(address, data=b"", headers=headers, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except (OSError, http.client.HTTPException, ValueError):
        return 0


def _signed(address: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of an empty PUT as Amazon's signature version 4 has them."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    place = urlsplit(address)
    headers = {
        "host": place.netloc,
        "x-amz-content-sha256": hashlib.sha256(b"").hexdigest(),
        "x-amz-date": now,
    }
    if token := settings.get("SESSION_TOKEN"):
        headers["x-amz-security-token"] = token
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = f"PUT\n{place.path}\n\n{lines}\n{names}\n{headers['x-amz-content-sha256']}"
    region = settings.get("REGION") or settings.get("DEFAULT_REGION") or "us-east-1"
    scope = f"{now[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{settings['SECRET_ACCESS_KEY']}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}"
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"Credential={settings['ACCESS_KEY_ID']}/{scope}"
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={names}, Signature={signature}"
    )
    del headers["host"]  # urllib sends its own, the same
    return headers
