"""What a command has changed in a workspace: found by two listings, kept in a recording, and made again in a replay."""

# Of an overlay only its upper layer is listed, so the cost is that of what the life has changed so far, whatever the
# directory's size; of a workspace in memory all is. Only changed files are copied, with reflinks where there are any.
# A command's changes lie in ``files/N`` of the recording, N being the call's first number: ``changes.json``, written
# last, and the contents by their place in it. They may come from a hostile recording, so they are put with the agent's
# own uid, below its workspace, past no link. Everything here blocks. docs/decisions/0113.

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from attrs import frozen
from msgspec import Struct

from agentos.private_files import replace_file
from agentos.services.files.as_user import Identity, acting_as
from agentos.services.files.io import TEMPORARY_PREFIX
from agentos.services.snapshots import beneath, layers
from agentos.structs import learn
from agentos.threads import check_cancelled

from .format import FILES

INDEX = "changes.json"
MAX_ENTRIES = 20_000  # in a listing
MAX_BYTES = 256 << 20  # that one command has changed
MAX_INDEX_BYTES = 16 << 20
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class NotKept(Exception):
    """The changes can't be kept, or read; the text says why."""


class Entry(NamedTuple):
    """One name in a listing: of a directory only its inode and mode are in the stamp.

    ``hides``: it is a whiteout, or a directory through which no lower one is seen.
    """

    stamp: beneath.Stamp
    hides: bool


Listing = Mapping[str, Entry]


class Change(Struct, omit_defaults=True):
    """A path as the command has left it. ``fresh``: a directory that has nothing of the former one of its name.

    ``content`` names the file with its content, ``target`` is where a link leads. ``mtime`` in nanoseconds.
    """

    path: str
    kind: Literal["file", "link", "directory", "deleted"]
    mode: int = 0
    mtime: int = 0
    target: str = ""
    fresh: bool = False


learn(list[Change])


@frozen
class Place:
    """Where to look: a directory, which is the upper layer of an overlay if it is ``layered``."""

    open: Callable[[], AbstractContextManager[int]]
    layered: bool

    def list(self) -> Listing:
        """All that is in it. Raises :class:`NotKept`, ``OSError``, and what opening it does."""
        found: dict[str, Entry] = {}
        waiting = [""]
        with self.open() as top:
            while waiting:
                check_cancelled()
                path = waiting.pop()
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    for name, entry in self._list_directory(top, path):
                        inner = f"{path}/{name}".lstrip("/")
                        found[inner] = entry
                        if stat.S_ISDIR(entry.stamp.mode):
                            waiting.append(inner)
                if len(found) > MAX_ENTRIES:
                    raise NotKept(f"there are more than {MAX_ENTRIES:,} files to look at")
        return found

    def _list_directory(self, top: int, path: str) -> Iterator[tuple[str, Entry]]:
        with beneath.open_directory(top, path) as here:
            for name in os.listdir(here):
                with contextlib.suppress(FileNotFoundError):
                    yield name, self._look(here, name)

    def _look(self, here: int, name: str) -> Entry:
        one = os.stat(name, dir_fd=here, follow_symlinks=False)
        if not stat.S_ISDIR(one.st_mode):
            return Entry(beneath.stamp_of(one), self.layered and layers.is_whiteout(one))
        stamp = beneath.Stamp(one.st_ino, one.st_mode, 0, 0, 0)
        if not self.layered:
            return Entry(stamp, False)
        with beneath.open_directory(here, name) as inner:
            return Entry(stamp, layers.is_opaque(inner))


def save_changes(place: Place, before: Listing, directory: Path, room: int) -> tuple[int, int]:
    """Keep what differs from a listing in a new directory, which isn't made for nothing; returns paths and bytes.

    At most ``room`` bytes. Raises :class:`NotKept`, ``OSError``, and what opening the place does.
    """
    after = place.list()
    gone = sorted(path for path in before if path not in after and not before[path].hides)
    changed = sorted(path for path, entry in after.items() if before.get(path) != entry)
    if not gone and not changed:
        return 0, 0
    if sum(after[path].stamp.size for path in changed if stat.S_ISREG(after[path].stamp.mode)) > min(room, MAX_BYTES):
        raise NotKept(f"a command has changed more than {min(room, MAX_BYTES):,} bytes")
    directory.mkdir(mode=0o700, parents=True)
    found, size = [Change(path, "deleted") for path in gone if os.path.dirname(path) not in gone], 0
    with place.open() as top:
        for path in changed:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                found.append(_keep(top, path, after[path], directory / str(len(found))))
                size += after[path].stamp.size
    try:
        data = msgspec.json.encode(found)
    except UnicodeEncodeError:
        raise NotKept("a command has changed a file whose name isn't UTF-8") from None
    replace_file(directory / INDEX, data, sync=False)
    return len(found), size + len(data)


def _keep(top: int, path: str, entry: Entry, copy: Path) -> Change:
    mode = stat.S_IMODE(entry.stamp.mode) & 0o777
    match beneath.kind_of(entry.stamp.mode):
        case "directory":
            return Change(path, "directory", mode, fresh=entry.hides)
        case "file":
            target = os.open(copy, NEW_FILE, 0o600)
            try:
                with beneath.open_file(top, path) as source:
                    layers.copy_content(source, target)
            finally:
                os.close(target)
            return Change(path, "file", mode, entry.stamp.mtime)
        case "link":
            with beneath.open_parent(top, path) as (parent, name):
                return Change(path, "link", target=os.readlink(name, dir_fd=parent))
    if entry.hides:
        return Change(path, "deleted")
    raise NotKept("a command has made a FIFO, a socket or a device")


def put_changes(
    directory: Path, number: int, root: Callable[[], AbstractContextManager[int]], identity: Identity | None
) -> Sequence[tuple[str, str]]:
    """Make the changes of call ``number`` of a recording again below ``root``; returns those that failed, with why.

    Raises :class:`NotKept`, and what ``root`` does.
    """
    failed: list[tuple[str, str]] = []
    with contextlib.ExitStack() as stack:
        try:
            own = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, own)
            kept = stack.enter_context(beneath.open_directory(own, f"{FILES}/{number}"))
            changes = read_index(kept)
            size = sum(one.st_size for number in range(len(changes)) if (one := beneath.look(kept, str(number))))
        except OSError as error:
            raise NotKept(f"what call {number} has changed can't be read: {error.strerror}") from None
        if size > MAX_BYTES:  # a file with holes may say so of itself
            raise NotKept(f"what call {number} has changed has {size:,} bytes, and at most {MAX_BYTES:,} are kept")
        top = stack.enter_context(root())
        modes: list[Change] = []
        for place, change in enumerate(changes):
            check_cancelled()
            try:
                _put(top, change, kept, place, identity)
                modes += [change] if change.kind == "directory" else []
            except OSError as error:
                failed.append((change.path, error.strerror or str(error)))
        with acting_as(identity):
            for change in reversed(modes):  # what is in a directory comes before its mode
                with contextlib.suppress(OSError), beneath.open_directory(top, change.path) as here:
                    os.fchmod(here, change.mode & 0o777)
    return failed


def read_index(kept: int) -> Sequence[Change]:
    """What a command has changed, from the directory in which that is kept. Raises :class:`NotKept`, ``OSError``."""
    with beneath.open_file(kept, INDEX) as file:
        data = os.read(file, MAX_INDEX_BYTES)
    try:
        found = msgspec.json.decode(data, type=list[Change])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotKept(f"{INDEX}: {error}") from None
    for change in found:
        if not change.path or {"", ".", ".."} & {*change.path.split("/")} or "\0" in change.path + change.target:
            raise NotKept(f"{INDEX}: path: {change.path!r:.80} is no path in a workspace")
    return found


def _put(top: int, change: Change, kept: int, place: int, identity: Identity | None) -> None:
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(beneath.open_file(kept, str(place))) if change.kind == "file" else -1
        stack.enter_context(acting_as(identity))
        parent, name = stack.enter_context(beneath.open_parent(top, change.path))
        found = beneath.look(parent, name)
        is_directory = found is not None and stat.S_ISDIR(found.st_mode)
        fits = change.kind != "deleted" and not change.fresh and is_directory == (change.kind == "directory")
        if not fits:
            beneath.remove(parent, name, found)
            is_directory = False
        if change.kind == "directory" and not is_directory:
            os.mkdir(name, 0o700, dir_fd=parent)
        elif change.kind in ("file", "link"):
            _replace(parent, name, change, source)


def _replace(parent: int, name: str, change: Change, source: int) -> None:
    """Put a file or a link whole in the place of a former one."""
    made = f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
    try:
        if change.kind == "link":
            os.symlink(change.target, made, dir_fd=parent)
        else:
            target = os.open(made, NEW_FILE, 0o600, dir_fd=parent)
            try:
                layers.copy_content(source, target)
                os.fchmod(target, change.mode & 0o777)
                os.utime(target, ns=(change.mtime, change.mtime))
            finally:
                os.close(target)
        os.rename(made, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(made, dir_fd=parent)
        raise
