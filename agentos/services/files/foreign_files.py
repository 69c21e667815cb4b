"""Reading files that an agent may have made or replaced: never waits, and reads no more than it should.

A FIFO in the place of a file would keep a reader waiting for a writer, a lease for the holder, and a sparse file of a
TiB would fill the memory.
"""

import errno
import os
import stat


def read_regular(path: str | os.PathLike[str], most: int, directory: int | None = None) -> bytes:
    """The first ``most`` bytes of a regular file. ``OSError`` for any other kind of file.

    Symlinks are followed, but not for a name in a ``directory`` given as a file descriptor.
    """
    return read_owned(path, most, directory)[0]


def read_owned(path: str | os.PathLike[str], most: int, directory: int | None = None) -> tuple[bytes, int]:
    """The same, and the uid that the file which was read belongs to."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (os.O_NOFOLLOW if directory is not None else 0)
    fd = os.open(path, flags, dir_fd=directory)
    try:
        status = os.fstat(fd)
        kind = status.st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        with open(fd, "rb", closefd=False) as file:
            return file.read(most), status.st_uid
    finally:
        os.close(fd)
