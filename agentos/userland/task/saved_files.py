"""Copies of a directory from before a task: shows what has changed since, and restores it.

A file is unchanged if its inode, size and time of change (ctime, which no program can set) are. No symbolic link is
followed, neither in the directory nor in the copy: an agent may have made it.
"""

import errno
import json
import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from .beneath import empty_directory, make_readable, make_writable, open_beneath, open_file, open_parent, open_top

MAX_ENTRIES = 100_000  # files and directories
MAX_BYTES = 2 << 30
MAX_DEPTH = 128  # directories in each other; what is deeper is no entry, and is removed with the directory
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


Files = Mapping[str, Entry]


def list_files(top: str, repair: bool = True) -> dict[str, Entry]:
    """What is in a directory by its path there; raises :class:`SaveError`.

    ``repair``: a directory of ours that can't be listed is made accessible: an agent has taken its permissions.
    """
    found: dict[str, Entry] = {}
    waiting = [place := ""]
    try:
        with open_top(top, repair) as root:
            while waiting:
                place = waiting.pop()
                with suppress(FileNotFoundError, NotADirectoryError):  # a program removes it meanwhile
                    _list_directory(root, place, repair, found, waiting)
    except OSError as error:
        raise SaveError(f"{os.path.join(top, place)}: it can't be read: {error.strerror}") from None
    return found


def _list_directory(root: int, place: str, repair: bool, found: dict[str, Entry], waiting: list[str]) -> None:
    with open_beneath(root, place) as fd:
        for name in os.listdir(fd):
            path = f"{place}/{name}" if place else name
            with suppress(FileNotFoundError):
                entry = _entry(name, fd)
                if entry.is_directory and repair and make_readable(name, fd):
                    entry = _entry(name, fd)
                found[path] = entry
                if entry.is_directory and path.count("/") < MAX_DEPTH:
                    waiting.append(path)


def save_files(top: str, place: Path) -> dict[str, Entry]:
    """Copy a directory to ``place``, and list it there; raises :class:`SaveError`."""
    files = list_files(top, repair=False)
    check_size(top, files)
    copies = place / COPIES
    copies.mkdir(mode=0o700)
    for path, entry in sorted(files.items()):
        save_entry(top, path, entry, copies)
    write_listing(place / LISTING, files)
    return files


def check_size(top: str, files: Files) -> None:
    """Raise :class:`SaveError` for what is too much to be saved."""
    limit = None
    if len(files) > MAX_ENTRIES:
        limit = f"{MAX_ENTRIES} files"
    elif any(entry.is_directory and path.count("/") >= MAX_DEPTH for path, entry in files.items()):
        limit = f"{MAX_DEPTH} directories in each other"
    elif sum(entry.size for entry in files.values() if entry.is_file) > MAX_BYTES:
        limit = f"{MAX_BYTES >> 30} GiB"
    if limit is not None:
        raise SaveError(f"{top}: more than {limit} can't be saved: name a directory in it")


def save_entry(top: str, path: str, entry: Entry, copies: Path) -> None:
    """Copy a file or directory; raises :class:`SaveError`."""
    try:
        if entry.is_directory:
            (copies / path).mkdir(mode=0o700)
        elif entry.is_file:
            with open_file(top, path) as source, open(copies / path, "xb") as copy:
                shutil.copyfileobj(source, copy, BUFFER)
    except OSError as error:
        raise SaveError(f"{os.path.join(top, path)}: it can't be saved: {error.strerror}") from None


def write_listing(path: Path, files: Files) -> None:
    """Write down what was in a directory. Where that fails, such as on a full disk, the former listing stays."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(files))
    os.replace(new, path)


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


def find_linked(files: Files) -> list[str]:
    """The files that have other names (hard links) outside of the directory."""
    here = Counter(entry.inode for entry in files.values() if entry.is_file)
    return sorted(path for path, entry in files.items() if entry.is_file and entry.links > here[entry.inode])


def find_foreign(now: Files, then: Files) -> set[str]:
    """The paths that were changed after a task: they aren't the task's. Directories are left out, but for new ones."""
    changed = {path for path, entry in now.items() if path not in then or not _is_same(then[path], entry)}
    return changed | (then.keys() - now.keys())


def restore_files(top: str, source: str, before: Files, changes: Sequence[Change]) -> None:
    """Make changes undone: first remove what is new or of another type, then bring back what was there.

    ``before`` is what was there; its files are in the directory ``source``. Raises :class:`SaveError` at the end if
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

    with _open_for_restoring(top) as root:
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
        raise SaveError(f"{top}: not all could be restored: {failed[0]}{more}")


@contextmanager
def _open_for_restoring(top: str) -> Iterator[int]:
    with ExitStack() as stack:
        try:
            root = stack.enter_context(open_top(top))
        except OSError as error:
            raise SaveError(f"{top}: it can't be restored: {error.strerror}") from None
        yield root


def remove_tree(path: Path) -> None:
    """Remove a directory of ours; an agent may have made some in a copy read-only, or very deep."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        empty_directory(fd)
    finally:
        os.close(fd)
    os.rmdir(path)


def find_entry(top: str, path: str) -> Entry | None:
    """What a path in a directory is, None if there is nothing; no symbolic link is followed."""
    try:
        with open_top(top) as root, open_parent(root, path) as (parent, last):
            return _entry(last, parent)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise


def read_content(top: str, path: str, limit: int) -> bytes:
    """The beginning of a file; no symbolic link is followed."""
    with open_file(top, path) as file:
        return file.read(limit)


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
