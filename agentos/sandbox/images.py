"""A workspace of a size: a file with an ext4 in it, which the loop device makes a disk.

The functions wait for files and other programs: call them in a thread. The limits are the file system's own, so nothing
that a program does can overshoot them. Once made it only grows, where the host has the programs for that.
"""

import errno
import os
import shutil
import struct
import subprocess
from pathlib import Path

from attrs import frozen

from .inside import sources
from .plan import Outer

_SUPERBLOCK, _MAGIC = 1024, 0xEF53  # where it begins; struct ext4_super_block
_SYSTEM_PROGRAMS = "/usr/sbin:/sbin"  # not on every user's path


class NoImage(Exception):
    """This host can't have it; the text says why and what to install."""


class ImageInUse(Exception):
    """It is mounted, or being made: its last user hasn't gone yet."""


@frozen
class Size:
    """What a file system holds."""

    bytes: int
    inodes: int


def provide(path: Path, wanted: Size, owner: Outer) -> Size:
    """See to it that there is an image of at least this size; what size it has.

    :class:`NoImage` where the host can't mount such: found out by doing it, before there are files in it.
    :class:`ImageInUse` where another has it, ``OSError`` for one that can't be read.
    """
    if not path.exists():
        try:
            _make(path, wanted, owner)
        except OSError as error:
            raise NoImage(f"{error.filename or path}: {error.strerror}") from None
    try:
        image = sources.open_locked(str(path))
    except BlockingIOError:
        raise ImageInUse(f"{path} is in use") from None
    try:
        if _size(path).bytes < wanted.bytes:
            _grow(path, image, wanted.bytes)
        return _size(path)
    finally:
        os.close(image)


def _make(path: Path, wanted: Size, owner: Outer) -> None:
    """Under another name until it has been mounted once."""
    program = _find("mkfs.ext4")
    if program is None:
        raise NoImage("mkfs.ext4 is not installed (package e2fsprogs)")
    new = path.with_name(path.name + ".new")
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(new, flags, 0o600), "wb") as file:
            file.truncate(wanted.bytes)
        options = ("-q", "-F", "-m", "0", "-N", str(wanted.inodes), "-E", f"root_owner={owner.uid}:{owner.gid}")
        said = _run(program, *options, str(new))
        if not _is_ext4(new):
            raise NoImage(f"mkfs.ext4 made no file system of {wanted.bytes} bytes: {said}")
        _mount_once(new)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def _mount_once(path: Path) -> None:
    """What mkfs puts into it for its own purposes goes."""
    mount = sources.mount_image(str(path))
    try:
        os.rmdir("lost+found", dir_fd=mount)
    finally:
        os.close(mount)


def _grow(path: Path, image: int, size: int) -> None:
    """Not while it's mounted: that takes a capability which a container's root hasn't got."""
    check, resize = _find("e2fsck"), _find("resize2fs")
    if check is not None and resize is not None:
        os.ftruncate(image, size)
        _run(check, "-f", "-p", str(path))
        _run(resize, str(path))


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{_SYSTEM_PROGRAMS}")


def _run(*argv: str) -> str:
    """What it said. Its exit status isn't asked for: in a kernel that reaps orphans somebody else may have got it."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return " ".join(done.stderr.split())[:200]


def _superblock(path: Path) -> bytes:
    with open(path, "rb") as file:
        file.seek(_SUPERBLOCK)
        return file.read(1024)


def _is_ext4(path: Path) -> bool:
    return _superblock(path)[56:58] == struct.pack("<H", _MAGIC)


def _size(path: Path) -> Size:
    if not _is_ext4(path):
        raise OSError(errno.EUCLEAN, "no ext4 in it", str(path))
    inodes, blocks, block = struct.unpack_from("<II16xI", _superblock(path))
    return Size(blocks * (1024 << block), inodes)
