"""Files of a workspace with several names (hard links): what an agent writes by one name is there by the others.

Of a file that an agent made, and that is protected in its next life, another name avoids the mount over the first one.
Outside of the workspace, the other names are files that an agent can change and that aren't its own: of a package
manager's cache (uv, pnpm, bun) or of the repository that a clone was made from.
"""

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence, Set

from msgspec import Struct

from .nested_repositories import Walk, printable_path

MAX_ENTRIES = 100_000  # of a workspace that are looked at
UNUSED = ".sample"  # the end of names of hooks that git doesn't run, which tools link to save room


class Linked(Exception):
    """A protected file has another name; the text says which."""


class HardLinks(Struct, frozen=True):
    """``paths`` of each file with several names, by device and inode, and how many names it has outside."""

    paths: Mapping[tuple[int, int], Sequence[str]]
    outside: Mapping[tuple[int, int], int]
    whole: bool

    def check(self, top: str, protected: Set[str]) -> None:
        """Raise :class:`Linked` if an agent could write by another name to a file that is read-only to it."""
        for file, paths in self.paths.items():
            held = [path for path in paths if not path.endswith(UNUSED) and not protected.isdisjoint(_places(path))]
            free = [path for path in paths if protected.isdisjoint(_places(path))]
            if held and (free or (self.outside[file] and not self.whole)):
                where = f"only the first {MAX_ENTRIES} files were looked at, and none that lie too deep"
                if free:
                    where = f"{printable_path(free[0])} is the same file"
                raise Linked(
                    f"{top}/{printable_path(held[0])} has several names (hard links), by one of which an agent could "
                    f"write to it, {where}: replace it by a copy"
                )

    def sentences(self) -> Iterator[str]:
        """The messages about files that an agent can change outside of its workspace."""
        found = [paths[0] for file, paths in self.paths.items() if self.outside[file]]
        if found:
            yield (
                f"files of its workspace have other names outside of it (hard links): {printable_path(found[0])}"
                f"{f' and {len(found) - 1} more' * (len(found) > 1)}. What it writes into them is there, too: give it "
                "a copy (cp -r, git clone --no-hardlinks)"
            )


def find_hard_links(top: str) -> HardLinks:
    """Look through a directory. Blocks. ``OSError`` if it is unreadable."""
    paths, names, walk = dict[tuple[int, int], list[str]](), dict[tuple[int, int], int](), Walk(top)
    for seen, (path, entry) in enumerate(walk, 1):
        if seen > MAX_ENTRIES:
            walk.whole = False
            break
        with contextlib.suppress(FileNotFoundError):
            found = entry.stat(follow_symlinks=False)
            if found.st_nlink > 1 and stat.S_ISREG(found.st_mode):
                paths.setdefault((found.st_dev, found.st_ino), []).append(path)
                names[found.st_dev, found.st_ino] = found.st_nlink
    return HardLinks(paths, {file: names[file] - len(each) for file, each in paths.items()}, walk.whole)


def _places(path: str) -> Iterator[str]:
    """A path, and the directories that it is in."""
    while path:
        yield path
        path = os.path.dirname(path)
