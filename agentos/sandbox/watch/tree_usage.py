"""Measure the size of a directory tree by walking it; safe on a hostile tree.

A walk sees the tree as it is while it walks: a tree that is moved meanwhile may be counted in part.
"""

import os
import stat

from attrs import define, field
from msgspec import Struct

from agentos.sandbox.cgroups.values import format_size
from agentos.sandbox.errors import NO_DESCRIPTOR

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MAX_RESTARTS = 100  # times that a walk restarts from the root before it gives up


class Usage(Struct, frozen=True):
    """Size of a tree, its top directory included. ``size`` is bytes on disk, hard links once.

    ``closed`` is how many parts could not be counted: directories without read permission, and a tree that was moved so
    often that the walk gave up. If the count was stopped at a limit, these are lower bounds.
    """

    size: int = 0
    inodes: int = 0
    closed: int = 0

    def __str__(self) -> str:
        return f"{format_size(self.size)} in {self.inodes} inodes"


@define
class _Level:
    """A directory on the current path: its name in its parent, device and inode, and subdirectories to enter."""

    name: str
    identity: tuple[int, int]
    subdirectories: list[str]


@define
class TreeWalk:
    """One pass over a tree, with one open directory at a time: a tree can be deeper than the limit of open files."""

    root: int
    device: int
    current: int  # closed by us
    disk: int
    max_inodes: int
    size: int = 0
    inodes: int = 0
    closed: int = 0
    linked: set[tuple[int, int]] = field(factory=set)
    levels: list[_Level] = field(factory=list)
    restarts: int = 0

    @property
    def is_done(self) -> bool:
        """Whether the walk can stop: over a limit, or restarted too often."""
        return self.size > self.disk or self.inodes > self.max_inodes or self.restarts >= _MAX_RESTARTS

    def count(self, found: os.stat_result) -> None:
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            if (found.st_dev, found.st_ino) in self.linked:
                return
            self.linked.add((found.st_dev, found.st_ino))
        self.size += found.st_blocks * 512
        self.inodes += 1

    def count_entries(self, name: str) -> None:
        """Count the entries of the current directory, except subdirectories, which are counted when entered."""
        level = _Level(name, _identity(self.current), [])
        with os.scandir(self.current) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        level.subdirectories.append(entry.name)
                    else:
                        self.count(entry.stat(follow_symlinks=False))
                except FileNotFoundError:
                    continue
                except PermissionError:  # readable but not searchable
                    self.closed += self._is_ours(".")
                    break
                if self.is_done:
                    break
        self.levels.append(level)

    def enter(self, name: str) -> None:
        """Enter a subdirectory, unless it is on another file system or no longer a directory."""
        try:
            below = os.open(name, DIRECTORY_FLAGS, dir_fd=self.current)
        except PermissionError:
            self.closed += self._is_ours(name)
            return
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:  # our own limit of open files: the directory isn't unreadable
                raise
            return
        found = os.fstat(below)
        if found.st_dev != self.device:
            os.close(below)
            return
        os.close(self.current)
        self.current = below
        self.count(found)
        self.count_entries(name)

    def _is_ours(self, name: str) -> bool:
        """Whether a program without root, which has our uid on the host, may have removed the permissions."""
        try:
            found = os.fstat(self.current) if name == "." else os.stat(name, dir_fd=self.current, follow_symlinks=False)
            return found.st_uid == os.geteuid()
        except OSError:
            return False

    def leave(self) -> None:
        """Return to the parent directory, wherever it has been moved."""
        self.levels.pop()
        if self.levels and not self._enter_if_same("..", self.levels[-1].identity):
            self._restart()

    def _enter_if_same(self, name: str, identity: tuple[int, int]) -> bool:
        try:
            there = os.open(name, DIRECTORY_FLAGS, dir_fd=self.current)
        except OSError:
            return False
        if _identity(there) != identity:
            os.close(there)
            return False
        os.close(self.current)
        self.current = there
        return True

    def _restart(self) -> None:
        """Start again from the root, and go down as far as the path is unchanged."""
        self.restarts += 1
        os.close(self.current)
        self.current = os.open(".", DIRECTORY_FLAGS, dir_fd=self.root)
        for depth, level in enumerate(self.levels[1:], 1):
            if not self._enter_if_same(level.name, level.identity):
                del self.levels[depth:]
                return


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def measure_tree(root: int, disk: int, inodes: int) -> Usage:
    """Measure the tree of an open directory, until it is over one of the limits. Blocks.

    ``OSError`` if the directory itself can't be read.
    """
    walk = TreeWalk(root, os.fstat(root).st_dev, os.open(".", DIRECTORY_FLAGS, dir_fd=root), disk, inodes)
    try:
        walk.count(os.fstat(walk.current))
        walk.count_entries(".")
        while walk.levels and not walk.is_done:
            if walk.levels[-1].subdirectories:
                walk.enter(walk.levels[-1].subdirectories.pop())
            else:
                walk.leave()
    finally:
        os.close(walk.current)
    return Usage(walk.size, walk.inodes, walk.closed + (walk.restarts >= _MAX_RESTARTS))
