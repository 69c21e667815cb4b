"""Projects: which kernel belongs to the current directory, and which kernels of this user run.

A project is a configuration file, identified by its real path. Its kernel's default socket is
``agentos/NAME-XXXXXXXX.sock`` in the user's runtime directory, with the file's or its directory's name and eight hex
digits of a SHA-256 of the path. Each kernel has a record in the same directory, which it locks as long as it runs.

An empty file is no project: while an agent works in a directory without a configuration, an empty ``agentos.toml``
keeps the agent from writing one.

Agents don't import this: their socket is in ``AGENTOS_SOCKET``.
"""

import fcntl
import hashlib
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .errors import ConnectionFailed

CONFIG = "agentos.toml"
MAX_NAME = 32  # characters of a project's name in a socket's path, which has at most 107 bytes
MAX_NAMED = 5  # kernels in an error message
MAX_CONFIG = 4 << 20  # bytes of a configuration file


class RunningKernel(NamedTuple):
    """A kernel's record. ``name`` is its :func:`project_id`, ``since`` seconds of Unix time.

    ``file`` is the configuration file's real path, None for a kernel without one.
    """

    name: str
    pid: int
    since: float
    socket: str
    state_dir: str
    file: str | None

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid}, {self.file or self.socket})"


class Project(NamedTuple):
    """The project of a directory. ``file`` is its configuration file, which ``exists`` or could be made.

    ``state_dir`` is None unless the file sets it or the project's kernel runs; then the default place holds.
    """

    file: str
    exists: bool
    socket: str
    state_dir: str | None


def project_id(file: str) -> str:
    """``shop-1a2b3c4d``: the directory's name for an ``agentos.toml``, else the file's, and a hash of the real path."""
    real = os.path.realpath(file)
    directory, name = os.path.split(real)
    stem = os.path.basename(directory) if name == CONFIG else os.path.splitext(name)[0]
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", stem)[:MAX_NAME].lstrip(".-") or "root"
    return f"{readable}-{hashlib.sha256(os.fsencode(real)).hexdigest()[:8]}"


def runtime_directory() -> str:
    """The directory of this user's sockets and records: in ``XDG_RUNTIME_DIR`` if that is the user's, else in /tmp."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    try:
        if runtime and os.stat(runtime).st_uid == os.geteuid():
            return os.path.join(os.path.abspath(runtime), "agentos")
    except OSError:
        pass  # without the directory that it names, as without the variable
    return f"/tmp/agentos-{os.geteuid()}"


def default_project_socket(file: str) -> str:
    """Where the kernel of this configuration file listens unless a socket is given."""
    return f"{runtime_directory()}/{project_id(file)}.sock"


def find_project() -> Project:
    """The project of the current directory, as its kernel uses it.

    It is the nearest ``agentos.toml`` in this directory or a parent; if its kernel doesn't run, the only kernel that
    runs with another file of the same directory. Without one it is the only kernel that runs with a file of this
    directory, else the only kernel of this user. A kernel that was started here without a file comes first. Raises
    :class:`ConnectionFailed` if the runtime directory or this directory's file belongs to another user.
    """
    here = os.path.join(_current_directory(), CONFIG)
    running = list_kernels()
    started_here = [kernel for kernel in running if kernel.name == project_id(here)]
    found = here if started_here else _find_config()
    file = found or here
    settings, directory = _read_paths(file), os.path.dirname(os.path.realpath(file))
    candidates = (
        started_here
        or [kernel for kernel in running if kernel.name == project_id(file)]
        or [kernel for kernel in running if os.path.dirname(kernel.file or "") == directory]
        or ([] if found else running)
    )
    only = candidates[0] if len(candidates) == 1 else None
    socket = settings.get("socket") or (only.socket if only else default_project_socket(file))
    return Project(file, bool(found), socket, only.state_dir if only else settings.get("state_dir"))


def list_kernels() -> list[RunningKernel]:
    """All kernels of this user that run and have this runtime directory, by name.

    A record whose lock is free was left by a killed kernel, and isn't listed. Raises :class:`ConnectionFailed` if the
    directory belongs to another user.
    """
    directory = runtime_directory()
    try:
        status = os.lstat(directory)
    except FileNotFoundError:
        return []
    if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
        whose = f"belongs to uid {status.st_uid}" if status.st_uid != os.geteuid() else "is no directory"
        raise ConnectionFailed(
            f"{directory} {whose}, so no kernel of yours is looked for there: "
            "set XDG_RUNTIME_DIR to a directory of your own, or choose a socket with --socket"
        )
    return sorted(_read_records(directory))


def is_locked(fd: int) -> bool:
    """Whether a process holds the lock on this file, as a kernel does on its record while it runs."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def is_lock_held(path: str) -> bool:
    """Whether a process holds the lock on this file; False if it is missing. Raises ``OSError``."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return is_locked(fd)
    finally:
        os.close(fd)


def describe_missing_kernel(path: str) -> str:
    """The error for a socket without a kernel: what was looked for, which kernels run, what to do."""
    start = "start one with `agentos run`"
    try:
        project = find_project()
        if path != project.socket:
            return f"no kernel at {path}: {start}"
        running = list_kernels()
    except ConnectionFailed as error:
        return str(error)
    none = f"no {CONFIG} in {os.path.dirname(project.file)} or above it"
    more = f" and {len(running) - MAX_NAMED} more" if len(running) > MAX_NAMED else ""
    others = f"running: {', '.join(map(str, running[:MAX_NAMED]))}{more}; `agentos kernels` shows their sockets"
    if len(running) > 1 and not project.exists:
        return f"{none}, and {len(running)} kernels run: choose one with --socket; {others}"
    sought = f"the socket of {project.file}" if project.exists else f"and {none}"
    if not running:
        return f"no kernel at {path}, {sought}: {start}"
    return f"no kernel at {path}, {sought}: {start}, or choose one with --socket; {others}"


def _current_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return "/"


def trusted_uids() -> frozenset[int]:
    """Whose files and sockets are obeyed unnamed: root's, this user's and, under sudo, the calling user's."""
    caller = os.environ.get("SUDO_UID", "")
    return frozenset({0, os.geteuid(), *([int(caller)] if os.geteuid() == 0 and caller.isdecimal() else [])})


def is_project_socket(path: str) -> bool:
    """Whether this is the socket that a command without ``--socket`` would use here."""
    try:
        return os.path.abspath(path) == os.path.abspath(find_project().socket)
    except ConnectionFailed:
        return False


def is_own_config(file: str) -> bool:
    """Whether this is a file that isn't empty; raises :class:`ConnectionFailed` if it belongs to another user.

    For a file that isn't named: it says which programs run, and where commands connect to. A symlink counts as its
    owner's, too. What is there and is no file raises the same, or a kernel would run without what the user has in it.
    """
    where, found = os.path.join(_current_directory(), file), _stat(file)
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise ConnectionFailed(f"{where} isn't a regular file: remove it, give another file, or a socket with --socket")
    if not is_config(file):
        return False
    check_owners(where, {status.st_uid for status in (os.lstat(file), found) if status is not None})
    return True


def check_owners(file: str, uids: Iterable[int]) -> None:
    """Raise :class:`ConnectionFailed` if one of these owners of a file, which isn't named, isn't trusted."""
    if strangers := sorted({*uids} - trusted_uids()):
        raise ConnectionFailed(
            f"{file} belongs to uid {strangers[0]}, so it isn't obeyed unless it is named: "
            f"give the file to the command, or choose a socket with --socket"
        )


def is_config(file: str) -> bool:
    """Whether this is a file that isn't empty."""
    status = _stat(file)
    return status is not None and stat.S_ISREG(status.st_mode) and status.st_size > 0


def _stat(file: str) -> os.stat_result | None:
    try:
        return os.stat(file)
    except OSError:
        return None


def _find_config() -> str | None:
    """The nearest configuration file. It must be this user's or root's, as git requires it.

    Another user's is passed over in a parent directory, and raises :class:`ConnectionFailed` in this one.
    """
    here = directory = _current_directory()
    while True:
        file = os.path.join(directory, CONFIG)
        try:
            if is_own_config(file):
                return file
        except ConnectionFailed:
            if directory == here:
                raise
        if directory == os.path.dirname(directory):
            return None
        directory = os.path.dirname(directory)


def _read_paths(file: str) -> dict[str, str]:
    """``socket`` and ``state_dir`` of ``[kernel]``, absolute; nothing from a file that can't be read.

    It never waits, and takes nothing from another user: the file may have been replaced since it was found.
    """
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid not in trusted_uids():
                return {}
            kernel: Any = tomllib.loads(opened.read(MAX_CONFIG).decode("utf-8-sig")).get("kernel", {})
    except (OSError, ValueError, RecursionError):
        return {}  # there is none, or `agentos check` reports what is wrong with it
    given = kernel.items() if isinstance(kernel, dict) else ()
    return {
        key: os.path.join(os.path.dirname(file), os.path.expanduser(path))
        for key, path in given
        if key in ("socket", "state_dir") and isinstance(path, str)
    }


def _read_records(directory: str) -> Iterator[RunningKernel]:
    for name in os.listdir(directory):
        if not name.endswith(".json"):
            continue
        try:
            fd = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue  # removed meanwhile
        with open(fd, encoding="utf-8") as file:
            if is_locked(fd):
                record = json.load(file)  # a later version's may have more fields
                yield RunningKernel(*(record[field] for field in RunningKernel._fields))
