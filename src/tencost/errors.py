"""The exception tree.

    TencostError                 every mistake a user can mend; the command line prints it and exits with 2
    ├── ConfigError              conf/, params.yaml or an override
    ├── DatasetError             a raw dataset: where it lives, its checksum, its layout
    ├── RecordError              a log that cannot be read at all (single bad lines become rejects instead)
    ├── ExecutionError           workers: a cluster that cannot be reached, or one that does not fit
    ├── FeatureError             a feature set, its ABI, or a program that cannot be featurized
    ├── SplitError               a split that leaks, is empty, or names what is not there
    ├── TrainError               training data or a model family that cannot be trained
    ├── BundleError              a bundle that is missing, damaged, or does not fit
    ├── RegistryError            the MLflow registry: unreachable, unknown model, version or alias
    ├── HardwareError            a program for instructions that the host lacks, an unknown device
    ├── MeasureError             networks, programs or measurements that cannot be collected
    ├── GraphError               networks as graphs: a folder without one that can be used, a damaged table
    ├── ProfileError             hardware counters: a file without profiles, a metric that is missing
    ├── TuneError                a tuning run that cannot start or continue
    ├── UntrustedError           a file that could run code of others when it is opened or compiled
    └── MissingDependencyError   an optional dependency of the command is not installed

A message says what was expected, what was found, where, and the next command to run.
"""

import errno
import os
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

MOST_TOLD = 3000
"""Characters of a message that are printed: a file may have had much to say."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str, most: int = MOST_TOLD) -> str:
    r"""Return a text with what a terminal would obey escaped (\x1b), and with its middle cut out where it is long.

    A message may quote a file. Newlines and tabs stay.
    """
    if len(text) > most:
        text = f"{text[: most * 2 // 3]} ... {text[-most // 3 :]}"
    return _UNSEEN.sub(lambda match: ascii(match[0])[1:-1], _COLOURS.sub("", text))


def without_secrets(uri: str) -> str:
    """Return an address without user, password and query."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return uri
    if not (parts.query or "@" in parts.netloc):
        return uri
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


_NO_RIGHT = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_A_FOLDER = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR}
_CODE_IN_TEXT = re.compile(r"\(os error (\d+)\)|\[Errno (\d+)\]")
"""Polars, Delta Lake and shutil.copytree write the system's number into the text of their OSError only."""


def system_failure(error: OSError) -> OSError:
    """Return the first of the failures that shutil.copytree collects in one error; another error as it is."""
    if not isinstance(error, shutil.Error) or not isinstance(error.args[0], list):
        return error
    _, path, reason = error.args[0][0]
    match = _CODE_IN_TEXT.search(str(reason))
    if match is None:
        return OSError(None, str(reason), str(path))
    code = int(match[1] or match[2])
    return OSError(code, os.strerror(code), str(path))


def refusal(error: OSError) -> str | None:
    """Return one sentence about a file or folder that the system does not let a command use.

    Args:
        error: what the system raised.

    Returns:
        The path, the system's reason and what to do; None where the error is not about the right to a file, about
        room on a disk, or about a file in a folder's place.
    """
    error = system_failure(error)
    code = error.errno
    if code is None and (match := _CODE_IN_TEXT.search(str(error))):
        code = int(match[1] or match[2])
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    if path.endswith(".partial"):  # what is written grows beside its place (tencost.writing)
        path = str(Path(path).parent)
    reason = error.strerror or (os.strerror(code) if code else "")
    if code in _NO_ROOM:
        place = path or "a file"
        return (
            f"cannot write {place}: {reason}. Make room on its disk, then run the same command again: "
            "what was finished is kept"
        )
    if not path:
        return None
    if code in _NO_RIGHT:
        if os.access(path, os.F_OK) and not os.access(path, os.R_OK):
            return f"cannot read {path}: {reason}. Give this account the right to read it"
        return (
            f"cannot write {path}: {reason}. Give this account the right to write there, or work in a folder where "
            "it has it"
        )
    if code in _NOT_A_FOLDER:
        return (
            f"cannot write {path}: {reason}. A file lies where a folder is expected, or a folder in a file's place: "
            "move it away"
        )
    return None


class TencostError(Exception):
    """Root of all errors that a user can mend."""

    exit_code = 2


class ConfigError(TencostError):
    """A configuration file, an override or a combination of choices is wrong."""


class DatasetError(TencostError):
    """A raw dataset cannot be fetched, verified or understood."""


class RecordError(TencostError):
    """A log or a record store cannot be read."""


class ExecutionError(TencostError):
    """The cluster that should do the work cannot be reached, or does not fit."""


class FeatureError(TencostError):
    """A feature set does not fit, or a program cannot be featurized."""


class SplitError(TencostError):
    """A split leaks, is empty, or names networks that the dataset does not have."""


class TrainError(TencostError):
    """A model family cannot be trained on the data given."""


class BundleError(TencostError):
    """A model bundle is missing, damaged, or does not fit where it is to be used."""


class RegistryError(TencostError):
    """The model registry cannot be reached or does not know what was asked for."""


class HardwareError(TencostError):
    """The hardware at hand is not what the program or the configuration needs."""


class MeasureError(TencostError):
    """Networks, programs or measurements cannot be collected."""


class GraphError(TencostError):
    """No graph of a folder can be used (single bad graphs become rejects instead), or their table is damaged."""


class ProfileError(TencostError):
    """Hardware counters cannot be read, or lack a metric that was asked for."""


class TuneError(TencostError):
    """A tuning run cannot start or continue."""


class UntrustedError(TencostError):
    """A module, a trace or a file names what could run code of others."""


class MissingDependencyError(TencostError):
    """An optional dependency is not installed."""
