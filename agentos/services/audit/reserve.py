"""Reserved disk room of the audit log, so that the operator's acts can be logged when an agent has filled the disk.

It is allocated in the log's own files, beyond their ends: room in a separate file could be taken by other processes as
soon as it is freed.
"""

import contextlib
import ctypes
import errno
import os
from pathlib import Path
from typing import NamedTuple

from agentos.private_files import open_file

# SQLite restarts the write-ahead log at 4 MB, if it can copy the content to the rows. If the rows can't grow, the log
# does: a page or two per commit, so the room beyond 4 MB holds some two thousand commits.
LOG = 12 << 20  # bytes of the write-ahead log in all
HEAD = 384 << 10  # bytes after the head file's end: eighty per commit
ROWS = 1 << 20  # bytes after the rows' end; SQLite frees them at times, and claiming them again shows if room is left
STEP = 256 << 10  # bytes that may be used before more is claimed
ROOM = 8 << 20  # bytes free before agents may act again, so that the state doesn't flap

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE: the file doesn't become longer
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class _File(NamedTuple):
    fd: int
    ahead: int  # bytes after its end, or
    whole: int  # bytes of the whole file

    def hold(self) -> None:
        now = os.fstat(self.fd)
        end = self.whole or now.st_size + self.ahead
        if now.st_blocks * 512 < end - (0 if self.whole else STEP):
            claim(self.fd, end)


class Reserve:
    """Reserved room of one segment, once its files exist; blocking, for a thread."""

    def __init__(self, rows: Path, head: Path) -> None:
        self._files: list[_File] = []
        try:
            for path, ahead, whole in ((f"{rows}-wal", 0, LOG), (rows, ROWS, 0), (head, HEAD, 0)):
                self._files.append(_File(open_file(Path(path), os.O_RDWR), ahead, whole))
        except BaseException:
            self.close()
            raise

    def hold(self) -> None:
        """Claim the room, also after the files have grown; ``OSError`` if there isn't enough."""
        for file in self._files:
            file.hold()

    def close(self) -> None:
        """Free the room. Only after the rows' connection is closed: this drops the locks that it has on its file."""
        while self._files:
            file = self._files.pop()
            with contextlib.suppress(OSError):
                os.ftruncate(file.fd, os.fstat(file.fd).st_size)  # frees what is beyond the end
            os.close(file.fd)


def claim(fd: int, end: int) -> None:
    """Allocate all bytes of a file up to ``end`` on disk, without changing its length."""
    if _fallocate(fd, _KEEP_SIZE, 0, end) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
