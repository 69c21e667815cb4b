"""Names in a workspace of the host's that other programs obey without being asked, and which an agent must not make.

Who opens the directory in an editor, enters it with a shell or calls git in it runs what these say, with all of their
own rights. Inside, each is a read-only mount over itself. A mount needs something to lie on: where a name is absent we
make an empty *stub*, hold it as long as an agent works in the directory, and remove it afterwards if it is still as we
made it. Removing it earlier isn't possible: that takes the mount away, in whatever namespace that is. An overlay, which
could show names that aren't there, needs a directory of its own beside the workspace, and does not survive the host's
changes below it. A kernel that is killed leaves its stubs until it starts again: they are written down beforehand.

Not promised: names in deeper directories than these; and a name that the host itself removes or replaces while an
agent works there (an editor that saves by renaming does) is not protected from that moment on: :func:`lost` tells.
"""

import contextlib
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from agentos.private_files import read_file, replace_file
from agentos.sandbox.inside import libc
from agentos.sandbox.plan import WORKSPACE

DIRECTORY = None
STUBS: Mapping[str, str | None] = {
    # git: hooks are programs, and the configuration names programs; without .git both may come with a new one
    ".git": DIRECTORY,
    "refs": "",  # as a directory, beside HEAD and objects, it makes this one a repository whose configuration git obeys
    ".gitmodules": "",
    ".gitconfig": "",
    ".husky": DIRECTORY,
    ".pre-commit-config.yaml": "",
    # shells, where the workspace is somebody's home or direnv is in use
    ".envrc": "",
    ".profile": "",
    ".bashrc": "",
    ".bash_profile": "",
    ".zshrc": "",
    ".zshenv": "",
    ".zprofile": "",
    # editors: tasks that run when a folder is opened
    ".vscode": DIRECTORY,
    ".idea": DIRECTORY,
    ".devcontainer": DIRECTORY,
    # other agents: their servers, hooks and permissions
    ".mcp.json": "",
    ".claude": DIRECTORY,
    ".codex": DIRECTORY,
    ".cursor": DIRECTORY,
    ".gemini": DIRECTORY,
    # pytest imports it whatever it is told to run
    "conftest.py": "",
}
IN_GIT: Mapping[str, str | None] = {  # of a repository that is there already: commits go on
    ".git/hooks": DIRECTORY,
    ".git/config": "",
    ".git/commondir": ".\n",  # where git looks for hooks and configuration; empty it would be an error
}


class Unprotectable(Exception):
    """A name can't be protected; the text says which and why."""


def lost(pid: int, names: Iterable[str]) -> frozenset[str]:
    """Of the names protected for the program with this pid those that the host has replaced since."""
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounted = {line.split(" ")[4] for line in file}
    return frozenset(name for name in names if _as_in_mountinfo(f"{WORKSPACE}/{name}") not in mounted)


def _as_in_mountinfo(path: str) -> str:
    return re.sub(r"[ \t\n\\]", lambda found: f"\\{ord(found[0]):03o}", path)


class Stubs:
    """The stubs of all directories in use, on record in a file."""

    def __init__(self, record: Path) -> None:
        self._record = record
        self._made: dict[str, list[str]] = {}
        self._locks: dict[str, list[int]] = {}  # shared: several kernels may work in one directory

    def sweep(self) -> None:
        """Remove what a killed kernel left. What can't be removed now stays on record."""
        try:
            self._made = json.loads(read_file(self._record))
        except (FileNotFoundError, ValueError):
            return
        for directory in list(self._made):
            with contextlib.suppress(OSError):
                self._remove(directory, _open(directory))
        self._save()

    def hold(self, directory: str) -> tuple[str, ...]:
        """All protected names in a directory, each of which exists until :meth:`let_go`."""
        top = _open(directory)
        try:
            fcntl.flock(top, fcntl.LOCK_SH)
            wanted = _wanted(top, set(self._made.get(directory, ())))
            absent = {name: text for name, text in wanted.items() if not _exists(top, name)}
            for name in wanted.keys() - absent.keys():
                _check_link(top, name)
            if absent:
                self._made[directory] = sorted({*self._made.get(directory, ()), *absent})
                self._save()
            for name, text in absent.items():
                _make(top, name, text)
        except BaseException:
            if directory in self._locks:
                os.close(top)
            else:
                self._remove(directory, top)
            raise
        self._locks.setdefault(directory, []).append(top)
        return tuple(wanted)

    def let_go(self, directory: str) -> None:
        """Once for each :meth:`hold`; the last one removes the stubs."""
        top = self._locks[directory].pop()
        if self._locks[directory]:
            os.close(top)
            return
        del self._locks[directory]
        self._remove(directory, top)
        self._save()

    def _remove(self, directory: str, top: int) -> None:
        """Unless another kernel holds them too; ``top`` is closed."""
        try:
            fcntl.flock(top, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in self._made.pop(directory, ()):
                _remove(top, name, {**STUBS, **IN_GIT}.get(name, ""))
        except BlockingIOError:
            pass
        finally:
            os.close(top)

    def _save(self) -> None:
        replace_file(self._record, json.dumps(self._made))


def _open(directory: str) -> int:
    """Without following any link: an agent whose workspace it lies in could lead us out of that, to make stubs there.

    From then on all is relative to the descriptor.
    """
    path = libc.open_without_links(libc.AT_FDCWD, directory)
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=path)
    finally:
        os.close(path)


def _wanted(top: int, ours: Iterable[str]) -> dict[str, str | None]:
    """In a repository hooks and configuration alone, so that work goes on; where there is none, all that may come."""
    if ".git" in ours or not _is_directory(top, ".git"):
        return dict(STUBS)
    return {**{name: text for name, text in STUBS.items() if name != ".git"}, **IN_GIT}


def _check_link(top: int, name: str) -> None:
    """A link that can't be moved still leads to what can, unless that is out of the agent's reach."""
    directory = os.readlink(f"/proc/self/fd/{top}")
    path = os.path.join(directory, name)
    with _parent(top, name) as (parent, last):
        try:
            target = os.readlink(last, dir_fd=parent)
        except OSError:  # it is none
            return
    leads = os.path.normpath(os.path.join(os.path.dirname(path), target))
    if any(os.path.commonpath([place, directory]) == directory for place in (leads, os.path.realpath(path))):
        raise Unprotectable(f"{path} is a symbolic link to what the agent can write to: replace it by what it leads to")


@contextlib.contextmanager
def _parent(top: int, name: str) -> Iterator[tuple[int, str]]:
    """The directory that a name is in, and the rest of the name; no link is followed."""
    way, _, last = name.rpartition("/")
    fd = os.open(way or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
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
    """Owned by the directory's owner, who may use the name meanwhile: then it's a stub no more."""
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


def _remove(top: int, name: str, text: str | None) -> None:
    """If it is as we made it."""
    with contextlib.suppress(OSError), _parent(top, name) as (parent, last):
        if text is None:
            os.rmdir(last, dir_fd=parent)  # refused where it isn't empty
            return
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(last, flags, dir_fd=parent), "rb") as file:
            found = file.read(len(text) + 1)
        if found == text.encode():
            os.unlink(last, dir_fd=parent)
