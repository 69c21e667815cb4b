"""How much a tree of files holds, found by walking it: a hostile one as well.

A walk sees what there is while it walks: a tree that is moved about meanwhile may be counted in part.
"""

import os
import stat

from attrs import define, field, frozen

from .cgroup_values import short_size
from .errors import NO_DESCRIPTOR

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_LOST = 100  # times that a walk finds its way again before it gives up


@frozen
class Usage:
    """What is in a tree, its own directory included. ``size`` is bytes on the disk, hard links once.

    ``closed`` is how often what is there could not be counted: directories that may not be read, and a tree that was
    moved about so much that the walk gave up. A count that was stopped has at least this much.
    """

    size: int = 0
    inodes: int = 0
    closed: int = 0

    def __str__(self) -> str:
        return f"{short_size(self.size)} in {self.inodes} inodes"


@define
class _Level:
    """A directory on the way down: what it is called in the one above, who it is, and what is still to be entered."""

    name: str
    identity: tuple[int, int]
    below: list[str]


@define
class Walk:
    """One pass over a tree, with one open directory at a time: trees can be deeper than descriptors are many."""

    root: int
    device: int
    here: int  # ours to close
    disk: int
    max_inodes: int
    size: int = 0
    inodes: int = 0
    closed: int = 0
    linked: set[tuple[int, int]] = field(factory=set)
    levels: list[_Level] = field(factory=list)
    lost: int = 0

    @property
    def enough(self) -> bool:
        """There's no need to know more."""
        return self.size > self.disk or self.inodes > self.max_inodes or self.lost >= _LOST

    def count(self, found: os.stat_result) -> None:
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            if (found.st_dev, found.st_ino) in self.linked:
                return
            self.linked.add((found.st_dev, found.st_ino))
        self.size += found.st_blocks * 512
        self.inodes += 1

    def read(self, name: str) -> None:
        """Count what is in the directory that we are in, except directories: those when they're entered."""
        level = _Level(name, _identity(self.here), [])
        with os.scandir(self.here) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        level.below.append(entry.name)
                    else:
                        self.count(entry.stat(follow_symlinks=False))
                except FileNotFoundError:
                    continue
                except PermissionError:  # it can be listed, but not entered
                    self.closed += self._is_ours(".")
                    break
                if self.enough:
                    break
        self.levels.append(level)

    def down(self, name: str) -> None:
        """Enter a directory, unless it is another's file system or something else by now."""
        try:
            below = os.open(name, DIRECTORY, dir_fd=self.here)
        except PermissionError:
            self.closed += self._is_ours(name)
            return
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:  # our own trouble: what can't be counted now isn't closed to us
                raise
            return
        found = os.fstat(below)
        if found.st_dev != self.device:
            os.close(below)
            return
        os.close(self.here)
        self.here = below
        self.count(found)
        self.read(name)

    def _is_ours(self, name: str) -> bool:
        """Whether a program without root, which is our own user outside, may have closed it."""
        try:
            found = os.fstat(self.here) if name == "." else os.stat(name, dir_fd=self.here, follow_symlinks=False)
            return found.st_uid == os.geteuid()
        except OSError:
            return False

    def up(self) -> None:
        """Leave a directory for the one that we came from, wherever it has been moved."""
        self.levels.pop()
        if self.levels and not self._step("..", self.levels[-1].identity):
            self._find_the_way()

    def _step(self, name: str, identity: tuple[int, int]) -> bool:
        try:
            there = os.open(name, DIRECTORY, dir_fd=self.here)
        except OSError:
            return False
        if _identity(there) != identity:
            os.close(there)
            return False
        os.close(self.here)
        self.here = there
        return True

    def _find_the_way(self) -> None:
        """From the root down again, as far as it is still where it was."""
        self.lost += 1
        os.close(self.here)
        self.here = os.open(".", DIRECTORY, dir_fd=self.root)
        for depth, level in enumerate(self.levels[1:], 1):
            if not self._step(level.name, level.identity):
                del self.levels[depth:]
                return


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def measure(root: int, disk: int, inodes: int) -> Usage:
    """Count the tree of an open directory, until it is over one of the limits. Blocks.

    ``OSError`` if the directory itself can't be read.
    """
    walk = Walk(root, os.fstat(root).st_dev, os.open(".", DIRECTORY, dir_fd=root), disk, inodes)
    try:
        walk.count(os.fstat(walk.here))
        walk.read(".")
        while walk.levels and not walk.enough:
            if walk.levels[-1].below:
                walk.down(walk.levels[-1].below.pop())
            else:
                walk.up()
    finally:
        os.close(walk.here)
    return Usage(walk.size, walk.inodes, walk.closed + (walk.lost >= _LOST))
