"""Nested git repositories in a host workspace: detects new ones, since git on the host runs what they configure.

Only the top directory can be protected. A repository that an agent made further down is more than a result of its work:
git called at the top enters it if the index says so, and git called inside runs what its configuration names. So new
repositories are reported to the user.
"""

import os
import time
from collections import deque
from collections.abc import Collection, Iterator

from msgspec import Struct

MAX_ENTRIES = 20_000  # directory entries examined
MAX_SECONDS = 2.0  # for a search
MAX_REPORTED = 10  # repositories that are named


class Repositories(Struct, frozen=True):
    """``found`` are paths of ``.git``, relative to the top; ``whole``: the search was complete."""

    found: Collection[str] = ()
    whole: bool = True

    def sentences(self, before: "Repositories") -> list[str]:
        """The messages about repositories that are new since ``before``."""
        new = sorted(set(self.found) - set(before.found))
        messages = [
            f"its workspace has a new repository at {printable_path(path)}: git there does what its configuration says"
            for path in new[:MAX_REPORTED]
        ]
        if len(new) > MAX_REPORTED:
            messages.append(f"its workspace has {len(new) - MAX_REPORTED} more new repositories")
        if not self.whole:
            messages.append("its workspace is too large to look for all new repositories in it")
        return messages


def find_repositories(top: str) -> Repositories:
    """Search breadth first, following no symlinks. Blocks for a bounded time; ``OSError`` if ``top`` is unreadable."""
    deadline = time.monotonic() + MAX_SECONDS
    found: list[str] = []
    for seen, (path, entry) in enumerate(walk(top, avoid=".git"), 1):
        if seen > MAX_ENTRIES or time.monotonic() > deadline:
            return Repositories(found, whole=False)
        if entry.name == ".git" != path:
            found.append(path)
    return Repositories(found)


def walk(top: str, avoid: str | None = None) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    """Each entry with its path in ``top``, breadth first. Blocks. ``OSError`` if ``top`` is unreadable.

    Follows no symlink, and enters no directory that is called ``avoid``.
    """
    root = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        waiting = deque([""])
        while waiting:
            way = waiting.popleft()
            fd = _open_below(root, way)
            if fd is None:
                continue
            try:
                with os.scandir(fd) as entries:
                    for entry in entries:
                        path = os.path.join(way, entry.name)
                        yield path, entry
                        if entry.name != avoid and entry.is_dir(follow_symlinks=False):
                            waiting.append(path)
            except OSError:  # the directory was removed during the search
                continue
            finally:
                os.close(fd)
    finally:
        os.close(root)


def _open_below(root: int, way: str) -> int | None:
    """Open a directory below ``root`` without following symlinks; None if it is gone or unreadable."""
    fd = os.dup(root)
    try:
        for name in way.split("/") if way else (".",):
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = below
    except OSError:
        os.close(fd)
        return None
    return fd


def printable_path(path: str) -> str:
    """A path with each byte escaped that is no printable character."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(one if one.isprintable() else f"\\x{ord(one):02x}" for one in text)
