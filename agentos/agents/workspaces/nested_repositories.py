"""Nested git repositories in a host workspace: detects new ones, since git on the host runs what they configure.

Only the top directory can be protected. A repository that an agent made further down is more than a result of its work:
git called at the top enters it if the index says so, and git called inside runs what its configuration names. So new
repositories are reported to the user: each ``.git``, and each directory that git takes for a repository itself.
"""

import errno
import os
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterator

from msgspec import Struct

from agentos.sandbox.files import openat2
from agentos.threads import check_cancelled

MAX_ENTRIES = 20_000  # directory entries examined
MAX_SECONDS = 2.0  # for a search
MAX_REPORTED = 10  # repositories that are named


class Repositories(Struct, frozen=True):
    """``found`` are paths of repositories, relative to the top; ``whole``: the search was complete."""

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
            messages.append("its workspace is too large or too deep to look for all new repositories in it")
        return messages


def find_repositories(top: str) -> Repositories:
    """Search breadth first, following no symlinks. Blocks for a bounded time; ``OSError`` if ``top`` is unreadable."""
    deadline = time.monotonic() + MAX_SECONDS
    found: list[str] = []
    parts = defaultdict[str, set[str]](set)  # by directory, of what makes it a repository
    walk = Walk(top, avoid=".git")
    for seen, (path, entry) in enumerate(walk, 1):
        if seen > MAX_ENTRIES or time.monotonic() > deadline:
            walk.whole = False
            break
        if entry.name == ".git" != path:
            found.append(path)
        elif entry.name in ("HEAD", "objects", "refs", "commondir") and entry.name != path:
            parts[os.path.dirname(path)].add(entry.name)
    kinds = {"HEAD", "objects", "refs"}, {"HEAD", "commondir"}
    bare = [place for place, names in parts.items() if any(names >= kind for kind in kinds)]
    return Repositories([*found, *bare], walk.whole)


class Walk:
    """Each entry below a directory with its path in it, breadth first; no directory called ``avoid`` is entered.

    Blocks. Follows no symlink. ``OSError`` if the top is unreadable. ``whole``: nothing was left out but what others
    have closed. A directory whose path is longer than Linux takes is left out: to go down to each of 10,000 levels
    name by name takes minutes.
    """

    def __init__(self, top: str, avoid: str | None = None) -> None:
        self.whole = True
        self._top, self._avoid = top, avoid

    def __iter__(self) -> "Iterator[tuple[str, os.DirEntry[str]]]":
        root = os.open(self._top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        resolve = openat2.WITHIN | openat2.NO_LINKS
        try:
            waiting = deque([""])
            while waiting:
                way = waiting.popleft()
                check_cancelled()
                try:
                    with (
                        openat2.opened(root, way or ".", os.O_RDONLY | os.O_DIRECTORY, resolve) as fd,
                        os.scandir(fd) as entries,
                    ):
                        for entry in entries:
                            path = os.path.join(way, entry.name)
                            yield path, entry
                            if entry.name != self._avoid and entry.is_dir(follow_symlinks=False):
                                waiting.append(path)
                except PermissionError:
                    self.whole &= not _is_ours(root, way)
                except OSError as error:  # mostly it was removed, or replaced by a link, during the search
                    self.whole &= error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
        finally:
            os.close(root)


def _is_ours(root: int, way: str) -> bool:
    """Whether a program without root, which has our uid on the host, may have closed a directory."""
    try:
        return os.stat(way, dir_fd=root, follow_symlinks=False).st_uid == os.geteuid()
    except OSError:
        return False


def printable_path(path: str) -> str:
    """A path with each byte escaped that is no printable character."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(one if one.isprintable() else f"\\x{ord(one):02x}" for one in text)
