"""Protected names in a workspace: files that other programs execute or obey. An agent must not create or change them.

Programs such as an editor, a shell or git run what these files say, with all rights of the user that starts them in the
directory. In the jail, each name is a read-only mount over itself. A mount needs an existing target: where a name is
absent we create an empty *stub*, hold it as long as an agent uses the directory, and remove it afterwards if it is
unchanged. Removing it earlier isn't possible, because that removes the mount in every mount namespace. An overlay,
which could show names that don't exist, needs a directory of its own beside the workspace and does not survive changes
that the host makes below it. In a repository the stubs are hidden from git (:mod:`git_exclude`). Stubs of a kernel
that was killed stay until its next start, which finds them in a record that is written beforehand.

Names that a program obeys as soon as they are there get no stub (:mod:`obeyed_names`); those of ``WATCHED`` are taken
out where they appear (:meth:`Stubs.take_planted`). What git's configuration leads to is found when the workspace is
opened (:mod:`git_names`).

Not protected: these names in subdirectories, and a name that the host itself removes or replaces while an agent uses
the directory (an editor that saves by renaming does), from that moment on. :func:`find_lost` detects this.
"""

import contextlib
import fcntl
import json
import logging
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from agentos.private_files import replace_file
from agentos.protected_names import BESIDE_REFS, IN_GIT, OBEYED, STUBS, WATCHED
from agentos.sandbox.files.root_files import WORKSPACE
from agentos.sandbox.inside import libc
from agentos.services.files.foreign_files import read_regular
from agentos.structs import read_json

from . import git_exclude
from .git_names import GitNames
from .obeyed_names import list_held

log = logging.getLogger("agentos.kernel")

MAX_KEPT = 1 << 20  # bytes of a file taken out that are kept
MAX_REMOVED = 100  # such files, of all workspaces: the oldest are removed


class Unprotectable(Exception):
    """A name can't be protected; the text says which and why."""


class Locked(Unprotectable):
    """Another process has locked the directory: for a moment another kernel, or any program that may open it."""


def find_lost(pid: int, names: Iterable[str]) -> frozenset[str]:
    """The names protected for the program with this pid that the host has replaced since."""
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounted = {line.split(" ")[4] for line in file}
    return frozenset(name for name in names if _as_in_mountinfo(f"{WORKSPACE}/{name}") not in mounted)


def _as_in_mountinfo(path: str) -> str:
    return re.sub(r"[ \t\n\\]", lambda found: f"\\{ord(found[0]):03o}", path)


class Stubs:
    """The stubs in all directories in use, recorded in a file.

    Methods block, but not for locks: any program that can open a directory can hold one. Calls for different
    directories may run at once, in threads.
    """

    def __init__(self, record: Path) -> None:
        self._record = record
        self._changing = threading.Lock()  # the record; not held while a workspace's files are accessed
        self._removed = record.with_name("removed")
        self._absent: dict[str, tuple[str, ...]] = {}  # of WATCHED, in each directory in use
        self._made: dict[str, list[str]] = {}
        self._locks: dict[str, list[int]] = {}  # shared locks: several kernels may use one directory

    def sweep(self) -> None:
        """Remove the stubs that a killed kernel left. Those that can't be removed now stay recorded."""
        try:
            self._made = read_json(self._record, dict[str, list[str]])
        except (FileNotFoundError, msgspec.DecodeError):
            return
        for directory in list(self._made):
            with contextlib.suppress(OSError):
                self._remove(directory, _open(directory))

    def acquire(self, directory: str, more: Iterable[str] = (), git: GitNames = GitNames()) -> tuple[str, ...]:  # noqa: B008 - frozen
        """All protected names in a directory, with ``more`` files, each of which exists until :meth:`release`.

        ``git`` are those that git's configuration leads to; of ``OBEYED`` and ``WATCHED`` it is those that exist.
        Raises :class:`Locked` at once if another process holds a lock on the directory.
        """
        top = _open(directory)
        try:
            fcntl.flock(top, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(top)
            raise Locked(
                f"another process holds a lock on the directory {directory}: end it, `lslocks` shows who has locks"
            ) from None
        try:
            chosen = _choose_names(top, set(self._made.get(directory, ())))
            watched = [name for name in WATCHED if name not in self._absent.get(directory, ())]
            present = {name for path in (*OBEYED, *watched) for name in _list_present(directory, path)}
            wanted = {**dict.fromkeys(more, ""), **git.stubs, **chosen}
            held = sorted((present | git.existing) - wanted.keys())
            absent = {name: text for name, text in wanted.items() if not _exists(top, name)}
            for name in wanted.keys() - absent.keys():
                _check_link(top, name)
            if absent:
                self._note(directory, sorted({*self._made.get(directory, ()), *absent}))
                self._hide(directory, self._made[directory])
            for name, text in absent.items():
                _make(top, name, text)
        except BaseException:
            if directory in self._locks:
                os.close(top)
            else:
                self._remove(directory, top)
            raise
        if directory not in self._locks:
            self._absent[directory] = tuple(name for name in WATCHED if name not in wanted and name not in held)
        self._locks.setdefault(directory, []).append(top)
        return (*wanted, *held)

    def release(self, directory: str) -> None:
        """Release one :meth:`acquire`; the last release removes the stubs."""
        top = self._locks[directory].pop()
        if self._locks[directory]:
            os.close(top)
            return
        del self._locks[directory]
        self._absent.pop(directory, None)
        self._remove(directory, top)

    def take_planted(self, directory: str) -> Sequence[str]:
        """Take files of ``WATCHED`` that have appeared out of a directory in use; says of each where it is kept."""
        if not (names := self._absent.get(directory)):
            return ()
        top = self._locks[directory][0]
        return [f"{directory}/{name}: {_take(top, name, self._removed)}" for name in names if _acts(top, name)]

    def _remove(self, directory: str, top: int) -> None:
        """Remove the stubs, unless another kernel holds them too. Closes ``top``."""
        try:
            fcntl.flock(top, fcntl.LOCK_EX | fcntl.LOCK_NB)
            made = self._made.get(directory, [])
            for name in made:
                _remove(top, name)
            if made:
                self._hide(directory, [])
                self._note(directory, [])
        except BlockingIOError:
            pass
        finally:
            os.close(top)

    def _hide(self, directory: str, names: Sequence[str]) -> None:
        """Hide these stubs from git on the host, instead of those hidden before; git shows no empty directories."""
        try:
            git_exclude.update_block(directory, [name for name in names if _is_shown_by_git(name)])
        except OSError as error:
            what = "hide the stubs in %s from git" if names else "take the stubs in %s out of git's exclude file"
            log.warning(f"can't {what}: %s", directory, error)

    def _note(self, directory: str, names: list[str]) -> None:
        """Record which stubs are in a directory, before they are made and after they are removed."""
        with self._changing:
            if names:
                self._made[directory] = names
            else:
                self._made.pop(directory, None)
            replace_file(self._record, json.dumps(self._made))


def _is_shown_by_git(name: str) -> bool:
    return not name.startswith(".git/") and STUBS.get(name, "") is not None


def _open(directory: str) -> int:
    """Open a directory without following symlinks: an agent could make one that leads out of its workspace.

    All later access is relative to the file descriptor.
    """
    path = libc.open_without_links(libc.AT_FDCWD, directory)
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=path)
    finally:
        os.close(path)


def _choose_names(top: int, ours: Iterable[str]) -> dict[str, str | None]:
    """Names to protect: in a repository only hooks and configuration, so commits work; else all of ``STUBS``."""
    more = BESIDE_REFS if _is_directory(top, "refs") else {}
    if ".git" in ours or not _is_directory(top, ".git"):
        return {**STUBS, **more}
    return {**{name: text for name, text in STUBS.items() if name != ".git"}, **more, **IN_GIT}


def _list_present(directory: str, name: str) -> list[str]:
    """What to protect of a name that may be there. Raises if it is a symlink to what the agent could make."""
    path = os.path.join(directory, name)
    held = list_held(directory, path) if os.path.lexists(path) else []
    for each in held:
        if not os.path.lexists(os.path.join(directory, each)):
            raise Unprotectable(f"{path} is a symbolic link to {each}, which isn't there: remove one or make the other")
    return held


def _check_link(top: int, name: str) -> None:
    """Raise if a name is a symlink to a target that the agent could write to: the mount protects only the symlink."""
    directory = os.readlink(f"/proc/self/fd/{top}")
    path = os.path.join(directory, name)
    with _parent(top, name) as (parent, last):
        try:
            target = os.readlink(last, dir_fd=parent)
        except OSError:  # not a symlink
            return
    leads = os.path.normpath(os.path.join(os.path.dirname(path), target))
    if any(os.path.commonpath([place, directory]) == directory for place in (leads, os.path.realpath(path))):
        raise Unprotectable(f"{path} is a symbolic link to what the agent can write to: replace it by what it leads to")


@contextlib.contextmanager
def _parent(top: int, name: str) -> Iterator[tuple[int, str]]:
    """The directory that contains a name, and the last part of the name; follows no symlinks."""
    way, _, last = name.rpartition("/")
    fd = libc.open_without_links(top, way or ".", os.O_DIRECTORY)
    try:
        yield fd, last
    finally:
        os.close(fd)


def _exists(top: int, name: str) -> bool:
    with _parent(top, name) as (parent, last):
        try:
            os.stat(last, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True


def _is_directory(top: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _make(top: int, name: str, text: str | None) -> None:
    """Create a stub, owned by the directory's owner. If the owner writes to it, it is no longer removed."""
    owner = os.fstat(top)
    with _parent(top, name) as (parent, last):
        if text is None:
            os.mkdir(last, 0o755, dir_fd=parent)
            fd = os.open(last, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(last, flags, 0o644, dir_fd=parent)
            os.write(fd, text.encode())
        try:
            if os.geteuid() == 0:
                os.fchown(fd, owner.st_uid, owner.st_gid)
        finally:
            os.close(fd)


def _acts(top: int, name: str) -> bool:
    """Whether a name is something that a program would read: a file, a link, or a FIFO, into which an agent writes."""
    try:
        kind = os.stat(name, dir_fd=top, follow_symlinks=False).st_mode
    except OSError:
        return False
    return not stat.S_ISDIR(kind)


def _take(top: int, name: str, removed: Path) -> str:
    """Remove a file and keep its content; says where it is kept. An agent may change the file meanwhile."""
    kept = "its content isn't kept"
    with contextlib.suppress(OSError):
        data = read_regular(name, MAX_KEPT + 1, top)
        if len(data) <= MAX_KEPT:
            removed.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = removed / f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(4)}-{name}"
            path.write_bytes(data)
            kept = f"its content is in {os.path.realpath(path)}"
            for old in sorted(os.listdir(removed))[:-MAX_REMOVED]:  # their names begin with the time
                (removed / old).unlink()
    try:
        os.unlink(name, dir_fd=top)
    except OSError as error:
        return f"an agent has made it, and it can't be removed: {error.strerror}"
    return f"an agent has made it, which tools of the host would run: it was removed, and {kept}"


def _remove(top: int, name: str) -> None:
    """Remove a stub if it is unchanged."""
    text = STUBS["commondir"] or "" if name.rpartition("/")[2] == "commondir" else ""
    with contextlib.suppress(OSError), _parent(top, name) as (parent, last):
        if stat.S_ISDIR(os.stat(last, dir_fd=parent, follow_symlinks=False).st_mode):
            os.rmdir(last, dir_fd=parent)  # fails if it isn't empty
            return
        found = read_regular(last, len(text) + 1, parent)
        if found == text.encode():
            os.unlink(last, dir_fd=parent)
