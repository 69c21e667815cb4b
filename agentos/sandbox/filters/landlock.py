"""Landlock rulesets: rights by ABI, rules as values, and encoding as the kernel's structures.

A ruleset *handles* rights. A handled right is denied unless a rule allows it; a right that isn't handled is unaffected.
A kernel refuses rights that it doesn't know (EINVAL), so a ruleset is made for the kernel's ABI and reports the rights
that it can't deny. Landlock is a second layer of defence: it denies opening files, but doesn't affect files that are
open already, nor stat, chdir, chmod or, below ABI 9, connecting to a socket in the file system.

``struct landlock_ruleset_attr`` (8 bytes below ABI 4, 16 below ABI 6)::

    OFFSET  SIZE  FIELD
    0       8     handled_access_fs
    8       8     handled_access_net
    16      8     scoped

``struct landlock_path_beneath_attr``, packed: 8 bytes allowed_access, 4 bytes parent_fd.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Sequence
from enum import IntFlag

from msgspec import Struct

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same on every architecture
RULE_PATH_BENEATH = 1
CREATE_RULESET_VERSION = 1  # the flag that asks for the ABI version


class FileRights(IntFlag):
    """Rights on files and directories (LANDLOCK_ACCESS_FS_*)."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13  # link or rename into another directory; always denied under ABI 1, so it is never missing
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15  # on devices opened afterwards, except for a few harmless ioctls
    RESOLVE_UNIX = 1 << 16  # connect to a socket by its path, unless it was created in the same Landlock domain


class PortRights(IntFlag):
    """Rights on TCP ports (LANDLOCK_ACCESS_NET_*)."""

    BIND_TCP = 1 << 0
    CONNECT_TCP = 1 << 1


class Scope(IntFlag):
    """Targets outside the sandbox that can't be reached (LANDLOCK_SCOPE_*)."""

    ABSTRACT_UNIX_SOCKET = 1 << 0
    SIGNAL = 1 << 1


READ = FileRights.READ_FILE | FileRights.READ_DIR
EXECUTE = FileRights.EXECUTE
MAKE = FileRights.MAKE_DIR | FileRights.MAKE_REG | FileRights.MAKE_SOCK | FileRights.MAKE_FIFO | FileRights.MAKE_SYM
REMOVE = FileRights.REMOVE_DIR | FileRights.REMOVE_FILE
WRITE = FileRights.WRITE_FILE | FileRights.TRUNCATE | MAKE | REMOVE | FileRights.REFER  # but no device nodes
ALL_FILES = FileRights((1 << 17) - 1)
FILE_RULE_RIGHTS = (  # rights that a rule for something other than a directory may allow
    FileRights.EXECUTE
    | FileRights.WRITE_FILE
    | FileRights.READ_FILE
    | FileRights.TRUNCATE
    | FileRights.IOCTL_DEV
    | FileRights.RESOLVE_UNIX
)

Right = FileRights | PortRights | Scope
RIGHTS_BY_ABI: Sequence[tuple[int, Right]] = (
    (1, FileRights((1 << 13) - 1)),
    (2, FileRights.REFER),
    (3, FileRights.TRUNCATE),
    (4, PortRights.BIND_TCP | PortRights.CONNECT_TCP),
    (5, FileRights.IOCTL_DEV),
    (6, Scope.ABSTRACT_UNIX_SOCKET | Scope.SIGNAL),
    (9, FileRights.RESOLVE_UNIX),  # 7 and 8 brought flags for logging and for threads
)
"""The ABI that introduced each right; every later one has it too."""


class HandledRights(Struct, frozen=True):
    """A set of rights to handle; in a ruleset, the rights that the kernel handles."""

    files: FileRights = FileRights(0)
    ports: PortRights = PortRights(0)
    scope: Scope = Scope(0)

    def known_to(self, abi: int) -> "HandledRights":
        """The part of these rights that this ABI can deny."""
        known = rights_known_to(abi)
        return HandledRights(self.files & known.files, self.ports & known.ports, self.scope & known.scope)

    def names(self) -> tuple[str, ...]:
        """The names of the rights, in lower case."""
        rights = (*self.files, *self.ports, *self.scope)
        return tuple(str(right.name).lower() for right in rights)


def rights_known_to(abi: int) -> HandledRights:
    """All rights that a kernel with this ABI knows; none under ABI 0, which is a kernel without Landlock."""
    brought = [right for since, right in RIGHTS_BY_ABI if since <= abi]
    return HandledRights(
        files=FileRights(sum(right for right in brought if isinstance(right, FileRights))),
        ports=PortRights(sum(right for right in brought if isinstance(right, PortRights))),
        scope=Scope(sum(right for right in brought if isinstance(right, Scope))),
    )


class PathRule(Struct, frozen=True):
    """Allow ``allowed`` at ``path`` and beneath it. If the path isn't a directory, ``directory`` must be False."""

    path: str
    allowed: FileRights
    directory: bool = True

    def pack(self, fd: int, walls: HandledRights) -> bytes:
        """``struct landlock_path_beneath_attr`` for the path opened as ``fd``, with the handled rights."""
        return struct.pack("=Qi", self.effective(walls), fd)

    def effective(self, walls: HandledRights) -> FileRights:
        """The rights to pass to the kernel, which refuses rights that aren't handled or don't apply to a file."""
        return self.allowed & walls.files & (ALL_FILES if self.directory else FILE_RULE_RIGHTS)


class Ruleset(Struct, frozen=True):
    """A ruleset that a kernel of this ABI accepts. ``missing`` are the asked rights that can't be denied."""

    abi: int
    walls: HandledRights
    missing: HandledRights
    paths: tuple[PathRule, ...]

    def pack(self) -> bytes:
        """``struct landlock_ruleset_attr`` in the size of this ABI; a longer one with zeros would work too."""
        fields = 1 + (self.abi >= 4) + (self.abi >= 6)
        values = (self.walls.files, self.walls.ports, self.walls.scope)[:fields]
        return struct.pack(f"={fields}Q", *values)


def build_ruleset(abi: int, asked: HandledRights, paths: Sequence[PathRule] = ()) -> Ruleset:
    """Build a ruleset that denies the ``asked`` rights, as far as the ABI can, except where a rule allows them.

    Rules without a handled right are left out: the kernel refuses empty ones. ``ValueError`` if there is nothing to
    deny, ABI 0 included: the kernel refuses that too (ENOMSG), and there would be no protection.
    """
    walls = asked.known_to(abi)
    if walls == HandledRights():
        raise ValueError(f"Landlock ABI {abi} handles nothing of what was asked for")
    return Ruleset(
        abi,
        walls,
        HandledRights(
            asked.files & ~walls.files & ~FileRights.REFER, asked.ports & ~walls.ports, asked.scope & ~walls.scope
        ),
        tuple(rule for rule in paths if rule.effective(walls)),
    )


def probe_abi() -> int:
    """Return the running kernel's Landlock ABI; 0 if it has none or it is disabled. ``OSError`` for any other error."""
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    abi = int(syscall(ctypes.c_long(CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(CREATE_RULESET_VERSION)))
    if abi >= 0:
        return abi
    error = ctypes.get_errno()
    if error in (errno.ENOSYS, errno.EOPNOTSUPP):
        return 0
    raise OSError(error, os.strerror(error), "landlock_create_ruleset")
