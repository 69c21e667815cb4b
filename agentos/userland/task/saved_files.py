"""Copies of a directory from before a task: shows what has changed since, and restores it.

A file is unchanged if its inode, size and time of change (ctime, which no program can set) are. No symbolic link is
followed, neither in the directory nor in the copy: an agent may have made it.
"""

import errno
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn

MAX_ENTRIES = 100_000  # files and directories
MAX_BYTES = 2 << 30
BUFFER = 1 << 20  # bytes copied at a time
LISTING = "files.json"
COPIES = "files"


class SaveError(Exception):
    """The directory can't be saved or restored; the text says why, and what to do."""


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


Files = Mapping[str, Entry]


def list_files(top: str) -> dict[str, Entry]:
    """What is in a directory by its path there. Raises :class:`SaveError` if it is too much, or can't be read."""
    found: dict[str, Entry] = {}
    for place, directories, names, within in os.fwalk(top, onerror=partial(_fail, top), follow_symlinks=False):
        for name in (*directories, *names):
            with suppress(FileNotFoundError):  # a program removes it meanwhile
                path = os.path.relpath(os.path.join(place, name), top)
                found[path] = _entry(name, within)
        if len(found) > MAX_ENTRIES:
            raise SaveError(f"{top}: more than {MAX_ENTRIES} files can't be saved: name a directory in it")
    return found


def save_files(top: str, place: Path) -> dict[str, Entry]:
    """Copy a directory to ``place``, and write down what was there."""
    files = list_files(top)
    if sum(entry.size for entry in files.values() if entry.is_file) > MAX_BYTES:
        raise SaveError(f"{top}: more than {MAX_BYTES >> 30} GiB can't be saved: name a directory in it")
    copies = place / COPIES
    copies.mkdir(mode=0o700)
    for path, entry in sorted(files.items()):
        try:
            if entry.is_directory:
                (copies / path).mkdir(mode=0o700)
            elif entry.is_file:
                with _open_file(top, path) as source, open(copies / path, "xb") as copy:
                    shutil.copyfileobj(source, copy, BUFFER)
        except OSError as error:
            raise SaveError(f"{os.path.join(top, path)}: it can't be saved: {error.strerror}") from None
    write_listing(place / LISTING, files)
    return files


def write_listing(path: Path, files: Files) -> None:
    """Write down what was in a directory."""
    path.write_text(json.dumps(files))


def read_listing(path: Path) -> dict[str, Entry]:
    """What :func:`write_listing` wrote; raises :class:`SaveError`."""
    try:
        return {name: Entry(*values) for name, values in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise SaveError(f"{path}: the saved files can't be read: {error}") from None


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


def find_foreign(now: Files, then: Files) -> set[str]:
    """The paths that were changed after a task: they aren't the task's. Directories are left out, but for new ones."""
    changed = {path for path, entry in now.items() if path not in then or not _is_same(then[path], entry)}
    return changed | (then.keys() - now.keys())


def restore_files(top: str, source: str, before: Files, changes: Sequence[Change]) -> None:
    """Make changes undone: first remove what is new or of another type, then bring back what was there.

    ``before`` is what was there; its files are in the directory ``source``.
    """
    root = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for change in reversed(changes):
            if change.what != "removed":
                _remove(root, change.path, before.get(change.path))
        for change in changes:
            if change.what != "added":
                _bring_back(root, source, change.path, before[change.path])
        for change in reversed(changes):  # a directory last: it may be read-only
            if change.what != "added" and not before[change.path].is_link:
                _set_attributes(root, change.path, before[change.path])
    except OSError as error:
        raise SaveError(f"{top}: not all could be restored: {error.filename or ''} {error.strerror}") from None
    finally:
        os.close(root)


def remove_tree(path: Path) -> None:
    """Remove a directory of ours; an agent may have made some in a copy read-only."""
    for place, directories, _ in os.walk(path):
        for name in directories:
            if not os.path.islink(os.path.join(place, name)):
                os.chmod(os.path.join(place, name), 0o700)
    shutil.rmtree(path)


def find_entry(top: str, path: str) -> Entry | None:
    """What a path in a directory is, None if there is nothing; no symbolic link is followed."""
    root = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _parent(root, path) as (parent, last):
            return _entry(last, parent)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    finally:
        os.close(root)


def read_content(top: str, path: str, limit: int) -> bytes:
    """The beginning of a file; no symbolic link is followed."""
    with _open_file(top, path) as file:
        return file.read(limit)


def _fail(top: str, error: OSError) -> NoReturn:
    raise SaveError(f"{top}: {error.filename} can't be saved: {error.strerror}") from None


def _entry(name: str, within: int) -> Entry:
    found = os.stat(name, dir_fd=within, follow_symlinks=False)
    target = os.readlink(name, dir_fd=within) if stat.S_ISLNK(found.st_mode) else ""
    size = found.st_size if stat.S_ISREG(found.st_mode) else 0
    times = (found.st_ctime_ns, found.st_mtime_ns)
    return Entry(found.st_mode, size, found.st_ino, *times, found.st_uid, found.st_gid, target)


def _is_same(old: Entry, new: Entry) -> bool:
    """Whether nothing was done to it; a directory changes with what is in it, which has entries of its own."""
    if old.is_directory or old.is_link:
        return (old.mode, old.target) == (new.mode, new.target)
    return (old.mode, old.size, old.inode, old.changed) == (new.mode, new.size, new.inode, new.changed)


def _is_alike(old: Entry, new: Entry) -> bool:
    return old.is_file and (old.mode, old.size) == (new.mode, new.size)


def _has_same_content(top: str, source: str, path: str) -> bool:
    try:
        with _open_file(top, path) as one, _open_file(source, path) as other:
            while data := one.read(BUFFER):
                if data != other.read(BUFFER):
                    return False
            return not other.read(1)
    except OSError:  # it can't be read any more
        return False


@contextmanager
def _parent(root: int, path: str) -> Iterator[tuple[int, str]]:
    """The directory that a path is in, and its last part; follows no symbolic link."""
    *above, last = path.split("/")
    fd = os.dup(root)
    try:
        for name in above:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd, last
    finally:
        os.close(fd)


def _open_file(top: str, path: str) -> BufferedReader:
    root = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _parent(root, path) as (parent, last):
            return open(os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent), "rb")
    finally:
        os.close(root)


def _remove(root: int, path: str, old: Entry | None) -> None:
    """Remove a path, unless it has the type that it had."""
    with suppress(FileNotFoundError), _parent(root, path) as (parent, last):
        found = os.stat(last, dir_fd=parent, follow_symlinks=False)
        if old is not None and stat.S_IFMT(found.st_mode) == stat.S_IFMT(old.mode):
            return
        if stat.S_ISDIR(found.st_mode):
            with suppress(OSError):  # something else is in it
                os.rmdir(last, dir_fd=parent)
        else:
            os.unlink(last, dir_fd=parent)


def _bring_back(root: int, source: str, path: str, old: Entry) -> None:
    with _parent(root, path) as (parent, last):
        if old.is_directory:
            with suppress(FileExistsError):
                os.mkdir(last, dir_fd=parent)
            os.chmod(last, 0o700, dir_fd=parent)
        elif old.is_link:
            with suppress(FileNotFoundError):
                os.unlink(last, dir_fd=parent)
            os.symlink(old.target, last, dir_fd=parent)
        elif old.is_file:
            new = f".agentos-undo-{os.getpid()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(new, flags, 0o600, dir_fd=parent), "wb") as file, _open_file(source, path) as copy:
                shutil.copyfileobj(copy, file, BUFFER)
            os.replace(new, last, src_dir_fd=parent, dst_dir_fd=parent)
        else:
            return  # a socket, a pipe or a device isn't saved
        if os.geteuid() == 0:
            os.chown(last, old.uid, old.gid, dir_fd=parent, follow_symlinks=False)


def _set_attributes(root: int, path: str, old: Entry) -> None:
    if old.is_directory or old.is_file:
        with _parent(root, path) as (parent, last):
            os.chmod(last, stat.S_IMODE(old.mode), dir_fd=parent)
            os.utime(last, ns=(old.modified, old.modified), dir_fd=parent, follow_symlinks=False)
