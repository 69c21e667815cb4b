"""What layers have changed of a directory, from overlayfs's format; its cost is that of the layers.

A running agent changes the first layer meanwhile, and the host the directory: each entry is looked at once, without
following a link, and the digest of its content is part of what is found, so that a later step can tell whether it still
holds.

A host's entry with a ``ctime`` after the layer's beginning was changed by the host: a conflict. So is one that differs
from what was applied before. Linux alone sets ``ctime``.
"""

import contextlib
import errno
import hashlib
import os
import stat
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Literal

import msgspec
from msgspec import Struct

from . import beneath, layers, obeyed
from .beneath import Kind, Stamp, kind_of, stamp_of
from .layers import MAX_PATH, Merged, open_merged

MAX_CHANGES = 100_000  # entries
MAX_BYTES = 16 << 30  # of all files that are read; a sparse file has any size
OTHER = "a FIFO, a socket or a device"
UNREADABLE = "the kernel can't read it"
REPLACED = (errno.ENOTDIR, errno.ELOOP, errno.EINVAL)  # errors of what is opened or read as something else
SWAPPED = "something else was put in its place as it was read"
TOO_LARGE = f"with it more than {MAX_BYTES >> 30} GiB would have to be read"
NOT_UTF8 = "its name isn't UTF-8"
TARGET_NOT_UTF8 = "where it leads isn't UTF-8"
CHANGED = "the host has changed it since the agent began"
CHANGED_SINCE_APPLIED = "the host has changed it since it was applied"
CLOCK_SET_BACK = "the host's clock was set back, so what the host has changed since can't be told"

What = Literal["created", "changed", "deleted", "type"]


class TooManyChanges(Exception):
    """A layer has more changes than are listed; the text says how many."""


class Base(Struct, frozen=True):
    """What the directory was: ``since`` is the layer's beginning in nanoseconds, ``stamps`` what was applied."""

    since: int
    stamps: Mapping[str, Stamp] = {}


class Change(Struct, frozen=True, kw_only=True):
    """One path that differs. ``size`` in bytes, ``mode`` without set-id bits; of a deleted entry both are the old ones.

    ``content`` is the sha256 of a file or the target of a link. ``root`` is the name by which an obeyed change must be
    given, and ``obeyed`` says why. ``blocked`` says why it can't be applied at all. ``under`` is the directory's entry.
    """

    path: str
    what: What
    kind: Kind
    size: int = 0
    mode: int = 0
    mtime: int = 0
    content: str = ""
    root: str = ""
    obeyed: str = ""
    conflict: str = ""
    blocked: str = ""
    under: Stamp | None = None

    @property
    def shown_path(self) -> str:
        """The path as text: bytes that aren't UTF-8 as ``\\xNN``."""
        return show(self.path)

    @property
    def identity(self) -> str:
        """What the operator agrees to, besides the path."""
        return f"{self.what} {self.kind} {self.mode:o} {self.content}"


def show(path: str) -> str:
    """A path as text: bytes that aren't UTF-8 as ``\\xNN``."""
    return path if path.isascii() else os.fsencode(path).decode("utf-8", "backslashreplace")


def compute_digest(changes: Sequence[Change]) -> str:
    """The digest of a diff, in hex: it changes with whatever would be applied."""
    rows = [(one.shown_path, one.identity, one.root, one.blocked) for one in changes]
    return hashlib.sha256(msgspec.json.encode(rows)).hexdigest()


def find_changes(found: Sequence[int], directory: int, base: Base, by_agent: bool = False) -> list[Change]:
    """All changes, by path, of the layers ``found``, which are open and the newest first, over a directory.

    ``by_agent``: a file of the directory's that the agent may not read counts as different, or the agent could guess
    what is in it.
    :class:`TooManyChanges` above :data:`MAX_CHANGES`.
    """
    every = sorted(_Search(found, directory, base, by_agent).find(), key=lambda change: change.path)
    of_git = Counter(change.root for change in every)
    return [change for change in every if not _is_gits_own(change, of_git[change.root])]


def _is_gits_own(change: Change, changes: int) -> bool:
    """Whether it says nothing of the agent's work, where its repository has so many ``changes``.

    Any ``git status`` writes the index. The name of an object says what is in it, and others of the host's may need it:
    objects are only ever added. What else lies among them, git makes anew.
    """
    if obeyed.is_in_objects(change.path) and change.kind != "link":
        return change.what != "created" or not obeyed.is_object(change.path, change.kind)
    return change.what == "changed" and change.path == f"{change.root}/index" and changes == 1


class _Search:
    def __init__(self, found: Sequence[int], directory: int, base: Base, by_agent: bool) -> None:
        self._owner = os.fstat(directory).st_uid if by_agent else None
        self._directory, self._base = directory, base
        self._clock_is_back = time.time_ns() < base.since
        self._room = MAX_BYTES
        # Directories with the layers that show them, whether these hide the directory's own, and its repository around.
        self._waiting: list[tuple[str, Sequence[int], bool, str | None]] = [("", found, False, None)]
        self._repository: str | None = None
        self._found: list[Change] = []

    def find(self) -> list[Change]:
        while self._waiting:
            path, shown, hides, self._repository = self._waiting.pop()
            try:
                self._search_directory(path, shown, hides)
            except PermissionError:
                self._add(Change(path=path or ".", what="changed", kind="directory", blocked=UNREADABLE))
            except OSError as error:  # the agent has removed it meanwhile, or put something else in its place
                if error.errno not in (errno.ENOENT, *REPLACED):
                    raise
        return self._found

    def _add(self, change: Change) -> None:
        path = change.path
        is_text = not beneath.has_bytes(path)
        blocked = change.blocked or ("" if is_text else NOT_UTF8)
        target = change.content if change.kind == "link" else None
        reason = obeyed.find_reason(path, change.kind, target, self._repository)
        root, why = reason if reason is not None and is_text else ("", "")
        conflict = self._find_conflict(change)
        self._found.append(msgspec.structs.replace(change, blocked=blocked, root=root, obeyed=why, conflict=conflict))
        if len(self._found) > MAX_CHANGES:
            raise TooManyChanges(f"it has more than {MAX_CHANGES} changes")

    def _find_conflict(self, change: Change) -> str:
        under, applied = change.under, self._base.stamps.get(change.path)
        if applied is not None:
            return "" if under == applied else CHANGED_SINCE_APPLIED
        if under is None or stat.S_ISDIR(under.mode):
            return ""
        if self._clock_is_back:
            return CLOCK_SET_BACK
        return CHANGED if under.ctime >= self._base.since else ""

    def _search_directory(self, path: str, shown: Sequence[int], hides: bool) -> None:
        with open_merged(shown, path) as merged, contextlib.ExitStack() as stack:
            hides = hides or merged.hides
            below: int | None = None
            with contextlib.suppress(OSError):  # the directory has no such directory
                below = stack.enter_context(beneath.open_directory(self._directory, path))
                if self._repository is None and _is_repository(below):
                    self._repository = path
            for name in merged.names:
                with contextlib.suppress(FileNotFoundError):
                    self._compare(f"{path}/{name}".lstrip("/"), merged, name, below, hides)
            if hides and below is not None:
                for name in os.listdir(below):
                    if name not in merged.names and (under := _lstat(below, name)) is not None:
                        self._add_deleted(f"{path}/{name}".lstrip("/"), under)

    def _compare(self, path: str, merged: Merged, name: str, below: int | None, hides: bool) -> None:
        here = merged.names[name]
        found = os.stat(name, dir_fd=here, follow_symlinks=False)
        under = _lstat(below, name) if below is not None else None
        kind, mode = kind_of(found.st_mode), stat.S_IMODE(found.st_mode) & 0o777
        if layers.is_whiteout(found):
            if under is not None:
                self._add_deleted(path, under)
            return
        stamp = stamp_of(under) if under is not None else None
        same_kind = stamp is not None and stat.S_IFMT(stamp.mode) == stat.S_IFMT(found.st_mode)
        content, blocked, is_equal, failed = "", "", same_kind, list[str]()
        match kind:
            case "directory":
                if len(os.fsencode(path)) > MAX_PATH:
                    blocked = "its path is too long to look below it"
                else:
                    self._waiting.append((path, merged.layers, hides, self._repository))
            case "file" if found.st_size > self._room:
                blocked, is_equal = TOO_LARGE, False
            case "file":
                self._room -= found.st_size
                with _reading() as failed:
                    content, is_equal = self._compare_files(path, here, found, under if same_kind else None)
            case "link":
                with _reading() as failed:
                    content = os.readlink(name, dir_fd=here)
                    is_equal = same_kind and below is not None and os.readlink(name, dir_fd=below) == content
                if beneath.has_bytes(content):
                    content, blocked = show(content), TARGET_NOT_UTF8
            case "other":
                blocked, is_equal = OTHER, False
        if failed:
            blocked, is_equal = failed[0], False
        if is_equal and stamp is not None and (kind == "link" or stat.S_IMODE(stamp.mode) & 0o777 == mode):
            return
        if stamp is not None and not same_kind and stat.S_ISDIR(stamp.mode):
            self._add_deleted_below(path)
        what: What = "created" if stamp is None else "changed" if same_kind else "type"
        size = found.st_size if kind == "file" else 0
        change = Change(path=path, what=what, kind=kind, size=size, mode=mode, content=content)
        self._add(msgspec.structs.replace(change, mtime=found.st_mtime_ns, blocked=blocked, under=stamp))

    def _compare_files(
        self, path: str, here: int, found: os.stat_result, under: os.stat_result | None
    ) -> tuple[str, bool]:
        """The digest of the layer's file, and whether the directory's has the same content."""
        with beneath.open_file(here, path.rpartition("/")[2]) as file:
            content = beneath.copy(file)
        if under is None or under.st_size != found.st_size:
            return content, False
        if self._owner not in (None, under.st_uid) and not under.st_mode & stat.S_IROTH:
            return content, False
        with contextlib.suppress(OSError), beneath.open_file(self._directory, path) as file:
            return content, beneath.copy(file) == content
        return content, False

    def _add_deleted(self, path: str, under: os.stat_result) -> None:
        self._add_deleted_entry(path, under)
        if stat.S_ISDIR(under.st_mode):
            self._add_deleted_below(path)

    def _add_deleted_below(self, path: str) -> None:
        waiting = [path]
        while waiting:
            above = waiting.pop()
            with contextlib.suppress(OSError), beneath.open_directory(self._directory, above) as here:
                for name in os.listdir(here):
                    if (under := _lstat(here, name)) is not None:
                        self._add_deleted_entry(f"{above}/{name}", under)
                        if stat.S_ISDIR(under.st_mode):
                            waiting.append(f"{above}/{name}")

    def _add_deleted_entry(self, path: str, under: os.stat_result) -> None:
        kind, mode = kind_of(under.st_mode), stat.S_IMODE(under.st_mode) & 0o777
        blocked = OTHER if kind == "other" else ""
        change = Change(path=path, what="deleted", kind=kind, size=under.st_size, mode=mode, blocked=blocked)
        self._add(msgspec.structs.replace(change, under=stamp_of(under)))


@contextlib.contextmanager
def _reading() -> Iterator[list[str]]:
    """Why an entry can't be read, if so; ``FileNotFoundError`` if it was removed."""
    failed: list[str] = []
    try:
        yield failed
    except PermissionError:
        failed.append(UNREADABLE)
    except OSError as error:
        if error.errno not in REPLACED:
            raise
        failed.append(SWAPPED)


def _lstat(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _is_repository(directory: int) -> bool:
    """Whether git takes a directory for a repository, or would with ``objects``."""
    return _lstat(directory, obeyed.HEAD) is not None and any(_lstat(directory, name) for name in obeyed.BARE)


def name_led(changes: list[Change], led: Mapping[str, str]) -> list[Change]:
    """The changes, of which those of names in ``led`` must be given by these, and what replaces a directory around one.

    ``led`` says why, and ``""`` in it stands for every path.
    """
    if not led:
        return changes
    parents = [list(accumulate(name.split("/"), "{}/{}".format)) for name in led]
    around = {parent: led[names[-1]] for names in parents for parent in names[:-1]}
    most = max(map(len, parents))

    def name(change: Change) -> Change:
        found = [each for each in accumulate(change.path.split("/", most)[:most], "{}/{}".format) if each in led]
        if "" in led or (change.kind != "directory" and change.path in around):
            found.append(change.path)
        if change.root or change.blocked or not found:
            return change
        why = led.get("") or led.get(found[0]) or around[found[0]]
        return msgspec.structs.replace(change, root=found[0], obeyed=why)

    return [name(change) for change in changes]


def mark(change: Change, why: str, is_moved: bool) -> Change:
    """The change, as one that is never applied if there is a reason ``why``, and a conflict if it ``is_moved``."""
    change = msgspec.structs.replace(change, blocked=why) if why and not change.blocked else change
    return msgspec.structs.replace(change, conflict=CHANGED) if is_moved else change


def select(changes: Sequence[Change], paths: Sequence[str]) -> Iterator[Change]:
    """The changes at these paths and below them; without any path all."""
    for change in changes:
        if not paths or any(change.path == path or change.path.startswith(f"{path}/") for path in paths):
            yield change
