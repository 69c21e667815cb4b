"""Undo of tasks of earlier releases, before which the files of their directory were copied; goes with the next release.

A file is unchanged if its inode, size and time of change (ctime, which no program can set) are. No symbolic link is
followed, neither in the directory nor in the copy: an agent may have made it.
"""

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from .beneath import empty_directory, make_readable, make_writable, open_beneath, open_file, open_parent, open_top

MAX_DEPTH = 128  # directories in each other; what is deeper is no entry, and is removed with the directory
BUFFER = 1 << 20  # bytes copied at a time
LISTING, ENDED = "files.json", "ended.json"
COPIES = "files"  # from before the task
COPY, APPLIED = "copy", "applied"  # the agent has worked in a copy, and its changes were applied
UNDONE = "undone"  # copies of what undo replaces


class UndoError(Exception):
    """The directory can't be restored; the text says why."""


class Entry(NamedTuple):
    """What a path is. ``mode`` has the type too; ``changed`` and ``modified`` are nanoseconds of Unix time."""

    mode: int
    size: int
    inode: int
    changed: int
    modified: int
    uid: int
    gid: int
    target: str = ""
    links: int = 1  # names of a file

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)


class Change(NamedTuple):
    """``what`` happened to a path since the files were saved."""

    what: Literal["added", "changed", "removed"]
    path: str


class Undone(NamedTuple):
    """``done`` were restored, ``left`` are as they were: changed after the task, or impossible to keep a copy of.

    ``kept`` is the directory with copies of what was replaced, empty if there are none.
    """

    done: Sequence[Change]
    left: Sequence[Change]
    kept: str = ""


Files = Mapping[str, Entry]


def undo(top: str, place: Path) -> Undone:
    """Restore what was in a directory before a task, but for what was changed since its end. ``place`` has the copies.

    Where the end of the task isn't known, what is replaced is copied before. Raises :class:`UndoError`.
    """
    if not place.is_dir():
        raise UndoError(f"the files of {top} before the task are no longer kept")
    if (place / COPY).is_dir() and not (place / APPLIED).exists():
        return Undone([], [])  # the agent has worked in a copy
    before, now = read_listing(place / LISTING), list_files(top)
    changes = find_changes(top, str(place / COPIES), before, now)
    known = read_listing(place / ENDED) if (place / ENDED).exists() else None
    foreign: Set[str] = set()
    kept = ""
    if known is not None:
        foreign = _paths_to_leave(_find_foreign(now, known), before, now)
    else:
        kept, foreign = _keep_replaced(top, place, changes, now)
    mine = [change for change in changes if change.path not in foreign]
    restore_files(top, str(place / COPIES), before, mine)
    listed = {path: entry for path, entry in list_files(top).items() if path not in foreign}
    then = {path: entry for path, entry in (known or {}).items() if path in foreign}
    write_listing(place / ENDED, {**listed, **then})  # what was left now is left the next time
    return Undone(mine, [change for change in changes if change.path in foreign], kept)


def list_files(top: str) -> dict[str, Entry]:
    """What is in a directory by its path there; raises :class:`UndoError`.

    A directory of ours that can't be listed is made accessible: an agent has taken its permissions.
    """
    found: dict[str, Entry] = {}
    waiting = [place := ""]
    try:
        with open_top(top, repair=True) as root:
            while waiting:
                place = waiting.pop()
                with suppress(FileNotFoundError, NotADirectoryError):  # a program removes it meanwhile
                    _list_directory(root, place, found, waiting)
    except OSError as error:
        raise UndoError(f"{os.path.join(top, place)}: it can't be read: {error.strerror}") from None
    return found


def _list_directory(root: int, place: str, found: dict[str, Entry], waiting: list[str]) -> None:
    with open_beneath(root, place) as fd:
        for name in os.listdir(fd):
            path = f"{place}/{name}" if place else name
            with suppress(FileNotFoundError):
                entry = _entry(name, fd)
                if entry.is_directory and make_readable(name, fd):
                    entry = _entry(name, fd)
                found[path] = entry
                if entry.is_directory and path.count("/") < MAX_DEPTH:
                    waiting.append(path)


def write_listing(path: Path, files: Files) -> None:
    """Write down what was in a directory. Where that fails, such as on a full disk, the former listing stays."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(files))
    os.replace(new, path)


def read_listing(path: Path) -> dict[str, Entry]:
    """What :func:`write_listing` wrote; raises :class:`UndoError`."""
    try:
        return {name: Entry(*values) for name, values in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UndoError(f"{path}: the saved files can't be read: {error}") from None


def find_changes(top: str, source: str, before: Files, after: Files) -> list[Change]:
    """The files, links and directories that differ from what was saved in ``source``, by path."""
    changes = [Change("removed", path) for path in before.keys() - after.keys()]
    for path, entry in after.items():
        old = before.get(path)
        if old is None:
            changes.append(Change("added", path))
        elif not _is_same(old, entry) and not (_is_alike(old, entry) and _has_same_content(top, source, path)):
            changes.append(Change("changed", path))
    return sorted(changes, key=lambda change: change.path)


def _find_foreign(now: Files, then: Files) -> set[str]:
    """The paths that were changed after a task: they aren't the task's. Directories are left out, but for new ones."""
    changed = {path for path, entry in now.items() if path not in then or not _is_same(then[path], entry)}
    return changed | (then.keys() - now.keys())


def _paths_to_leave(foreign: Set[str], before: Files, now: Files) -> Set[str]:
    """The paths that undo leaves: ``foreign``, but for removed directories in which it restores a file.

    A file isn't restored where it would need the place of a directory with something foreign in it, or the directory of
    a foreign file.
    """
    restored = before.keys() - now.keys() - foreign
    needed = {above for path in restored for above in _directories_above(path)} - now.keys()
    files = {path for path in foreign & now.keys() if not now[path].is_directory}
    holders = {above for path in foreign & now.keys() for above in _directories_above(path)}
    return {
        *(foreign - needed),
        *(path for path in restored if not files.isdisjoint(_directories_above(path))),
        *(path for path in holders & before.keys() if not before[path].is_directory),
    }


def _directories_above(path: str) -> Iterator[str]:
    at = path.find("/")
    while at > 0:
        yield path[:at]
        at = path.find("/", at + 1)


def _keep_replaced(top: str, place: Path, changes: Sequence[Change], now: Files) -> tuple[str, Set[str]]:
    """Copy what undo is to replace or remove; returns where it is, and the paths that couldn't be copied."""
    copies, number = place / UNDONE, 1
    while copies.exists():
        copies, number = place / f"{UNDONE}-{number + 1}", number + 1
    failed: set[str] = set()
    for path in (change.path for change in changes if change.path in now and now[change.path].is_file):
        try:
            (copies / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open_file(top, path) as source, open(copies / path, "xb") as copy:
                shutil.copyfileobj(source, copy, BUFFER)
        except OSError:
            failed.add(path)
    return (str(copies) if copies.exists() else ""), failed


def restore_files(top: str, source: str, before: Files, changes: Sequence[Change]) -> None:
    """Make changes undone: first remove what is new or of another type, then bring back what was there.

    ``before`` is what was there; its files are in the directory ``source``. Raises :class:`UndoError` at the end if
    some of it failed.
    """
    restored = [change.path for change in changes if change.what != "added"]
    opened: set[str] = set()  # directories that were made writable
    failed: list[str] = []

    def attempt(step: Callable[[], None], path: str) -> None:
        try:
            step()
        except OSError as error:
            failed.append(f"{path}: {error.strerror}")

    with open_top(top) as root:
        mode = os.fstat(root).st_mode
        for change in reversed(changes):
            if change.what != "removed":
                attempt(partial(_remove, root, change.path, before.get(change.path), opened), change.path)
        for path in restored:
            attempt(partial(_bring_back, root, source, path, before[path], opened), path)
        directories = {path for path in opened if path in before and before[path].is_directory}
        for path in sorted(directories.union(restored), reverse=True):  # a directory last: it may be read-only
            if before[path].is_directory or before[path].is_file:
                attempt(partial(_set_attributes, root, path, before[path]), path)
        if "" in opened:
            os.fchmod(root, stat.S_IMODE(mode))
    if failed:
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise UndoError(f"{top}: not all could be restored: {failed[0]}{more}")


def _entry(name: str, within: int) -> Entry:
    found = os.stat(name, dir_fd=within, follow_symlinks=False)
    target = os.readlink(name, dir_fd=within) if stat.S_ISLNK(found.st_mode) else ""
    size = found.st_size if stat.S_ISREG(found.st_mode) else 0
    times = (found.st_ctime_ns, found.st_mtime_ns)
    return Entry(found.st_mode, size, found.st_ino, *times, found.st_uid, found.st_gid, target, found.st_nlink)


def _is_same(old: Entry, new: Entry) -> bool:
    """Whether nothing was done to it; a directory changes with what is in it, which has entries of its own."""
    if old.is_directory or old.is_link:
        return (old.mode, old.target) == (new.mode, new.target)
    return (old.mode, old.size, old.inode, old.changed) == (new.mode, new.size, new.inode, new.changed)


def _is_alike(old: Entry, new: Entry) -> bool:
    return old.is_file and (old.mode, old.size) == (new.mode, new.size)


def _has_same_content(top: str, source: str, path: str) -> bool:
    try:
        with open_file(top, path) as one, open_file(source, path) as other:
            while data := one.read(BUFFER):
                if data != other.read(BUFFER):
                    return False
            return not other.read(1)
    except OSError:  # it can't be read any more
        return False


@contextmanager
def _writable_parent(root: int, path: str, opened: set[str]) -> Iterator[tuple[int, str]]:
    """As :func:`open_parent`; makes the directory writable, and adds its path to ``opened`` if it wasn't."""
    with open_parent(root, path) as (parent, last):
        if make_writable(parent):
            opened.add(path.rpartition("/")[0])
        yield parent, last


def _remove(root: int, path: str, old: Entry | None, opened: set[str]) -> None:
    """Remove a path, unless it has the type that it had."""
    with suppress(FileNotFoundError), _writable_parent(root, path, opened) as (parent, last):
        found = os.stat(last, dir_fd=parent, follow_symlinks=False)
        if old is not None and stat.S_IFMT(found.st_mode) == stat.S_IFMT(old.mode):
            return
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(last, dir_fd=parent)
            return
        if path.count("/") >= MAX_DEPTH:
            with open_beneath(parent, last) as fd:
                empty_directory(fd)
        with suppress(OSError):  # something else is in it
            os.rmdir(last, dir_fd=parent)


def _bring_back(root: int, source: str, path: str, old: Entry, opened: set[str]) -> None:
    if not (old.is_directory or old.is_link or old.is_file):
        return  # a socket, a pipe or a device isn't saved
    with _writable_parent(root, path, opened) as (parent, last):
        if old.is_directory:
            with suppress(FileExistsError):
                os.mkdir(last, 0o700, dir_fd=parent)
            with open_beneath(parent, last) as fd:
                os.fchmod(fd, 0o700)
        elif old.is_link:
            with suppress(FileNotFoundError):
                os.unlink(last, dir_fd=parent)
            os.symlink(old.target, last, dir_fd=parent)
        else:
            new = f".agentos-undo-{os.getpid()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                with open(os.open(new, flags, 0o600, dir_fd=parent), "wb") as file, open_file(source, path) as copy:
                    shutil.copyfileobj(copy, file, BUFFER)
                os.replace(new, last, src_dir_fd=parent, dst_dir_fd=parent)
            except OSError:
                with suppress(FileNotFoundError):
                    os.unlink(new, dir_fd=parent)
                raise
        if os.geteuid() == 0:
            os.chown(last, old.uid, old.gid, dir_fd=parent, follow_symlinks=False)


def _set_attributes(root: int, path: str, old: Entry) -> None:
    with open_parent(root, path) as (parent, last):
        fd = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.fchmod(fd, stat.S_IMODE(old.mode))
            os.utime(fd, ns=(old.modified, old.modified))
        finally:
            os.close(fd)
