"""An MLflow server that several people share: is it there, does it let us in, and one sentence where not.

MLflow repeats a request for minutes. Here a server is asked once a process, in :data:`FIRST_S` seconds and two tries,
before anything else. Whoever was let in is patient from then on, with MLflow's own retries: a server that is restarted
in the middle of a registration is waited for. A tuner that only pulls is not (:func:`settle_mlflow`): it has the copy
that it pulled last.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tencost.errors import ConfigError, RegistryError, without_secrets

FIRST_S = 4
"""Seconds of each of two tries of the first request of a process."""
MLFLOW_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD": "false",
}
"""It is quiet: of a locked database MLflow logs the traceback of the error that it raises. MLflow 3.17 would have every
file, however small, fetched from the object store itself, which a user of the registry may have no way to; the server
fetches it for him."""
TIMEOUT_VARIABLE = "TENCOST_REGISTRY_TIMEOUT"
TIMEOUT_S = 10
"""Seconds after which a registry that does not answer is given up."""
_ASKED = "/api/2.0/mlflow/registered-models/search"
_LET_IN = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (or MLFLOW_TRACKING_TOKEN)"

_CHECK_SERVER = "Check MLFLOW_TRACKING_URI and the server."
_ADVICE = {
    "is locked": "Another command writes to it: wait for its end, then run the command again.",
    "readonly database": "Give this account the right to write there.",
    "disk is full": "Make room on its disk, then run the command again.",
}
"""Part of SQLite's message -> what to do."""

_reached: set[tuple[str, str | None]] = set()
"""Servers that let this process in, with the user's name."""


def settle_mlflow() -> None:
    """Make MLflow quiet, and quick to notice that a registry is down; the user's own environment has precedence.

    Raises:
        ConfigError: TENCOST_REGISTRY_TIMEOUT is no time.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, str(TIMEOUT_S))
    if not re.fullmatch(r"0*[1-9]\d{0,4}", text):
        raise ConfigError(
            f"{TIMEOUT_VARIABLE} must be whole seconds, from 1 to 99999, found {text!r}. Unset it for {TIMEOUT_S}"
        )
    _settle(retries=1, seconds=max(1, int(text) // 2))


def _settle(*, retries: int, seconds: int) -> None:
    settings = {
        **MLFLOW_SETTINGS,
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": str(retries),
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(seconds),
    }
    for variable, setting in settings.items():
        os.environ.setdefault(variable, setting)


def reach_server(uri: str) -> None:
    """Check once a process that an MLflow server answers and lets us in; of a database nothing is asked.

    Raises:
        RegistryError: it does not, within ten seconds.
    """
    user = os.environ.get("MLFLOW_TRACKING_USERNAME")
    if not uri.startswith(("http://", "https://")) or (uri, user) in _reached:
        return
    _settle(retries=7, seconds=120)
    from mlflow.exceptions import MlflowException
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    try:
        answer = http_request(
            get_default_host_creds(uri), _ASKED, "GET", params={"max_results": "1"},
            max_retries=1, backoff_factor=0, backoff_jitter=0.0, timeout=FIRST_S, raise_on_status=False,
        )  # fmt: skip
    except (MlflowException, OSError) as error:
        raise RegistryError(_silent(uri, error)) from None
    if answer.status_code in (401, 403):
        raise RegistryError(refused(uri))
    content = answer.headers.get("Content-Type", "")
    if answer.status_code != 200 or not content.startswith("application/json"):
        raise RegistryError(
            f"expected an MLflow server at {without_secrets(uri)}, found one that answers {answer.status_code} and "
            "something else. Check MLFLOW_TRACKING_URI"
        )
    _reached.add((uri, user))


@contextmanager
def explain_server_errors(uri: str) -> Iterator[None]:
    """Turn what MLflow raises when a server or database is silent or refuses into one sentence.

    Raises:
        RegistryError: it is.
    """
    for variable, setting in MLFLOW_SETTINGS.items():  # MLflow reads them when it is imported
        os.environ.setdefault(variable, setting)
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        raise RegistryError(explanation(uri, error)) from error


def database_errors() -> tuple[type[Exception], ...]:
    """Return what MLflow and its database raise; nothing where neither is imported, as in a command without them."""
    names = (("mlflow.exceptions", "MlflowException"), ("sqlalchemy.exc", "SQLAlchemyError"))
    return tuple(
        getattr(sys.modules[module], name) for module, name in names if module in sys.modules
    )


def is_database_failure(error: Exception) -> bool:
    """Say whether one of `database_errors` is a database's or a server's failure, not a wrong request of tencost's."""
    codes = (
        "TEMPORARILY_UNAVAILABLE",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "REQUEST_LIMIT_EXCEEDED",
    )
    unreached = str(error).startswith("API request to ")  # MLflow has no code of its own for it
    return unreached or getattr(error, "error_code", codes[0]) in codes


def explanation(uri: str, error: Exception) -> str:
    """Return one sentence for what MLflow or its database raised."""
    if getattr(error, "error_code", "") in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        return refused(uri)
    return _silent(uri, error)


def refused(uri: str) -> str:
    """Return the sentence for a user whom a server does not let in, or not do what he asked."""
    user = os.environ.get("MLFLOW_TRACKING_USERNAME")
    who = f"the user {user}" if user else "nobody's name"
    return (
        f"expected to be let in to the registry {without_secrets(uri)}, was refused with {who}. Check {_LET_IN}, and "
        "what the user may do there: docs/how-to/teams.md"
    )


def _silent(uri: str, error: BaseException) -> str:
    text = (str(error).splitlines() or [type(error).__name__])[0]
    _, nested, reason = text.rpartition("Caused by ")
    if nested:  # the innermost reason of urllib3's, which MLflow quotes with the whole address
        reason = reason.rpartition(": ")[2].strip("()'\" ") or text
    advice = next((advice for word, advice in _ADVICE.items() if word in reason), _CHECK_SERVER)
    return f"the registry {without_secrets(uri)} does not answer: {without_secrets(reason)[:200]}. {advice}"
