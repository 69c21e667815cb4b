"""Workspace images: a file with an ext4 of limited size, mounted through a loop device.

The functions block on files and other programs: call them in a thread. The file system itself enforces the limits, so
no program can exceed them. An image only grows, if the host has the programs for that.
"""

import errno
import os
import shutil
import struct
import subprocess
from pathlib import Path

from msgspec import Struct

from agentos.sandbox.inside import sources
from agentos_sdk.values import HostIds

_SUPERBLOCK, _MAGIC = 1024, 0xEF53  # offset and magic number of struct ext4_super_block
_SYSTEM_PROGRAMS = "/usr/sbin:/sbin"  # not in every user's PATH


class ImageUnavailable(Exception):
    """This host can't mount images; the text says why and what to install."""


class ImageInUse(Exception):
    """The image is mounted, or being created: its last user hasn't closed it yet."""


class ImageSize(Struct, frozen=True):
    """Capacity of a file system."""

    bytes: int
    inodes: int


def ensure_image(path: Path, size: ImageSize, owner: HostIds) -> ImageSize:
    """Create or grow an image so that it has at least this size; returns its actual size.

    :class:`ImageUnavailable` if the host can't mount images, which is tried before any file is in it.
    :class:`ImageInUse` if the image is locked; ``OSError`` if it can't be read.
    """
    if not path.exists():
        try:
            _create_image(path, size, owner)
        except OSError as error:
            raise ImageUnavailable(f"{error.filename or path}: {error.strerror}") from None
    try:
        image = sources.open_locked(str(path))
    except BlockingIOError:
        raise ImageInUse(f"{path} is in use") from None
    try:
        if _read_size(path).bytes < size.bytes:
            _grow(path, image, size.bytes)
        return _read_size(path)
    finally:
        os.close(image)


def _create_image(path: Path, size: ImageSize, owner: HostIds) -> None:
    """Create it under a temporary name, and rename it once a mount has succeeded."""
    program = _find_program("mkfs.ext4")
    if program is None:
        raise ImageUnavailable("mkfs.ext4 is not installed (package e2fsprogs)")
    new = path.with_name(path.name + ".new")
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(new, flags, 0o600), "wb") as file:
            file.truncate(size.bytes)
        options = ("-q", "-F", "-m", "0", "-N", str(size.inodes), "-E", f"root_owner={owner.uid}:{owner.gid}")
        stderr = _run_program(program, *options, str(new))
        if not _is_ext4(new):
            raise ImageUnavailable(f"mkfs.ext4 created no file system of {size.bytes} bytes: {stderr}")
        _test_mount(new)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def _test_mount(path: Path) -> None:
    """Test the mount, and remove the lost+found directory that mkfs made."""
    mount = sources.mount_image(str(path))
    try:
        os.rmdir("lost+found", dir_fd=mount)
    finally:
        os.close(mount)


def _grow(path: Path, image: int, size: int) -> None:
    """Grow the image. Never while it is mounted: that needs a capability that a container's root doesn't have."""
    check, resize = _find_program("e2fsck"), _find_program("resize2fs")
    if check is not None and resize is not None:
        os.ftruncate(image, size)
        _run_program(check, "-f", "-p", str(path))
        _run_program(resize, str(path))


def _find_program(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{_SYSTEM_PROGRAMS}")


def _run_program(*argv: str) -> str:
    """Run a program and return its stderr. The exit status is ignored: the reaping of orphans may have taken it."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return " ".join(done.stderr.split())[:200]


def _read_superblock(path: Path) -> bytes:
    with open(path, "rb") as file:
        file.seek(_SUPERBLOCK)
        return file.read(1024)


def _is_ext4(path: Path) -> bool:
    return _read_superblock(path)[56:58] == struct.pack("<H", _MAGIC)


def _read_size(path: Path) -> ImageSize:
    if not _is_ext4(path):
        raise OSError(errno.EUCLEAN, "not an ext4 image", str(path))
    inodes, blocks, block = struct.unpack_from("<II16xI", _read_superblock(path))
    return ImageSize(blocks * (1024 << block), inodes)
