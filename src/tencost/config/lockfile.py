"""dvc.lock, kept safe: DVC writes it in place, so that a kill in that moment leaves an empty or a cut-off file.

Every stage that DVC starts keeps a copy of a sound dvc.lock in .dvc/tmp/ first (:func:`copy_lockfiles`), and
`tencost pipeline` puts it back where the file is damaged (:func:`mend_lockfiles`). What finished before the kill stays
finished: the stage whose entry was lost is restored from DVC's run cache.

So it is with .dvc/tmp/rwlock, the paths that DVC's running commands use: cut off, or with the number of a killed
command that another process has now, it blocks every later one (:func:`release`).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tencost.errors import ConfigError
from tencost.writing import whole_file

LOCKS = ("dvc.lock", "graphs/dvc.lock")
"""That of the pipeline of programs, and that of whole networks."""
COPIES = Path(".dvc") / "tmp"
"""In the folder of each dvc.lock, which is a DVC project."""


def git(folder: Path, *arguments: str) -> bytes | None:
    """Return what git prints in a folder; None where there is no git or it refuses, as outside of a repository."""
    try:
        process = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return process.stdout if process.returncode == 0 else None


def copy_lockfiles(root: Path) -> None:
    """Copy each dvc.lock that is sound, if this is a DVC project."""
    for name in LOCKS:
        lock, copy = root / name, _copy(root, name)
        if not copy.parents[1].is_dir() or not lock.is_file():
            continue
        content = lock.read_bytes()
        if not (copy.is_file() and copy.read_bytes() == content) and _is_sound(lock):
            with whole_file(copy) as partial:
                partial.write_bytes(content)


def mend_lockfiles(root: Path) -> dict[str, str]:
    """Put each damaged dvc.lock back: the copy, else the commit's, else none, so that all stages are checked anew.

    Returns:
        Which were damaged, and where each came from.
    """
    sources = {name: _mend(root, name) for name in LOCKS}
    return {name: source for name, source in sources.items() if source is not None}


def release(root: Path) -> bool:
    """Take from DVC's lists of paths in use what no running command uses; return whether there was any."""
    released = [_release((root / name).parent) for name in LOCKS]
    return any(released)


def _release(project: Path) -> bool:
    from dvc.lock import LockError, make_lock
    from dvc.rwlock import RWLOCK_FILE, RWLOCK_LOCK, SCHEMA
    from voluptuous import Invalid

    path = project / COPIES / RWLOCK_FILE
    if not path.is_file():
        return False
    try:
        with make_lock(str(path.with_name(RWLOCK_LOCK)), tmp_dir=str(path.parent)):
            try:
                used = SCHEMA(json.loads(path.read_bytes()))
            except (ValueError, RecursionError, Invalid):
                path.unlink()
                return True
            written = path.stat().st_mtime
            write = {
                name: user for name, user in used["write"].items() if _runs(user["pid"], written)
            }
            read = {
                name: running
                for name, users in used["read"].items()
                if (running := [user for user in users if _runs(user["pid"], written)])
            }
            if write == used["write"] and read == used["read"]:
                return False
            with whole_file(path) as partial:
                partial.write_text(json.dumps({"write": write, "read": read}), encoding="utf-8")
            return True
    except LockError:  # a command is at it, so it is sound
        return False


def _runs(number: int, written: float) -> bool:
    """Say whether a process runs that is as old as what it wrote; a later one has its number only.

    Times of start are known to some ticks of the clock.
    """
    import psutil

    if number <= 0:
        return False
    try:
        process = psutil.Process(number)
        zombie = process.status() == psutil.STATUS_ZOMBIE
        return not zombie and bool(process.create_time() <= written + 5)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def _copy(root: Path, name: str) -> Path:
    lock = root / name
    return lock.parent / COPIES / f"{lock.name}.kept"


def _mend(root: Path, name: str) -> str | None:
    lock, copy = root / name, _copy(root, name)
    if not lock.exists() or _is_sound(lock):
        return None
    if not lock.is_file():
        raise ConfigError(
            f"expected a file at {lock}, found a folder. Move it away, then run it again"
        )
    if _is_sound(copy):
        lock.write_bytes(copy.read_bytes())
        return "the copy that the last stage kept"
    if (committed := git(root, "show", f"HEAD:./{name}")) is not None:
        lock.write_bytes(committed)
        return "the last commit"
    lock.unlink()
    return "nowhere: all stages are checked anew"


def _is_sound(path: Path) -> bool:
    """Say whether DVC reads the file: a letter changed in a stage's entry, and it refuses the whole of it."""
    from dvc.exceptions import DvcException
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from dvc.utils.serialize import parse_yaml
    from voluptuous import Invalid

    try:
        content = parse_yaml(path.read_text(encoding="utf-8"), path)
        COMPILED_LOCKFILE_SCHEMA(content)
    except (OSError, ValueError, RecursionError, DvcException, Invalid):
        return False
    return bool(content.get("stages"))
