"""Room on the disk for the operator alone: who stops the agent that filled it must be able to have that written down.

It is held in the log's own files, beyond their ends: what was freed first would be gone before the log could have it.
"""

import contextlib
import ctypes
import errno
import os
from pathlib import Path
from typing import NamedTuple

from agentos.private_files import open_file

# SQLite begins the write-ahead log anew at four megabytes, if it can copy them to the rows. Where these can't grow it
# goes on: a page or two for a commit, so that what is beyond the four is some two thousand commits.
LOG = 12 << 20  # bytes of it in all
HEAD = 384 << 10  # after the head file's end: eighty for a commit
ROWS = 1 << 20  # after the rows' end; SQLite gives them back at times, and taking them again shows what room there is
STEP = 256 << 10  # and so much less before more is taken
ROOM = 8 << 20  # that has to be free before everybody may act again, so that it isn't to and fro

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE: the file doesn't become longer
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class _File(NamedTuple):
    fd: int
    ahead: int  # bytes after its end, or
    whole: int  # of all of it

    def hold(self) -> None:
        now = os.fstat(self.fd)
        end = self.whole or now.st_size + self.ahead
        if now.st_blocks * 512 < end - (0 if self.whole else STEP):
            claim(self.fd, end)


class Reserve:
    """One segment's, from when its files are there; blocking, for a thread."""

    def __init__(self, rows: Path, head: Path) -> None:
        self._files: list[_File] = []
        try:
            for path, ahead, whole in ((f"{rows}-wal", 0, LOG), (rows, ROWS, 0), (head, HEAD, 0)):
                self._files.append(_File(open_file(Path(path), os.O_RDWR), ahead, whole))
        except BaseException:
            self.close()
            raise

    def hold(self) -> None:
        """Have it, though the files have grown; ``OSError`` where there isn't room for all of it."""
        for file in self._files:
            file.hold()

    def close(self) -> None:
        """Free it. Not before the rows' connection is closed: this takes away the locks that it has on its file."""
        while self._files:
            file = self._files.pop()
            with contextlib.suppress(OSError):
                os.ftruncate(file.fd, os.fstat(file.fd).st_size)  # what is beyond the end goes
            os.close(file.fd)


def claim(fd: int, end: int) -> None:
    """Have all bytes of a file up to ``end`` on the disk, whether it is as long or not."""
    if _fallocate(fd, _KEEP_SIZE, 0, end) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
