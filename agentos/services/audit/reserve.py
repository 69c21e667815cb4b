"""Reserved disk room of the audit log, so that the operator's acts can be logged when an agent has filled the disk.

It is allocated in the log's own files, beyond their ends: room in a separate file could be taken by other processes as
soon as it is freed. The write-ahead log is also made as long as it gets: where a file doesn't grow, a sync needn't wait
for the file system's journal.
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
WAL_BYTES = 12 << 20  # bytes of the write-ahead log in all
WAL_LENGTH = 17 * 256 << 10  # bytes; where SQLite restarts it, and one step
WAL_STEP_BYTES = 256 << 10  # bytes of zeros per commit until it is so long; SQLite reads no further than the last frame
HEAD_RESERVE_BYTES = 384 << 10  # bytes after the head file's end: eighty per commit
ROWS_RESERVE_BYTES = (
    1 << 20
)  # bytes after the rows' end; SQLite frees them at times, and claiming them again shows if room is left
REFILL_STEP_BYTES = 256 << 10  # bytes that may be used before more is claimed
MIN_FREE_BYTES = 8 << 20  # bytes free before agents may act again, so that the state doesn't flap

DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE: the file doesn't become longer
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class _ReservedFile(NamedTuple):
    fd: int
    bytes_after_end: int  # bytes after its end, or
    total_bytes: int  # bytes of the whole file


class Reserve:
    """Reserved room of one segment, once its files exist; blocking, for a thread."""

    def __init__(self, rows: Path, head: Path) -> None:
        self._files: list[_ReservedFile] = []
        try:
            for path, ahead, whole in (
                (f"{rows}-wal", 0, WAL_BYTES),
                (rows, ROWS_RESERVE_BYTES, 0),
                (head, HEAD_RESERVE_BYTES, 0),
            ):
                self._files.append(_ReservedFile(open_file(Path(path), os.O_RDWR), ahead, whole))
        except BaseException:
            self.close()
            raise

    def allocate(self) -> None:
        """Claim the room, also after the files have grown; ``OSError`` if there isn't enough. Not during a commit."""
        for file in self._files:
            now = os.fstat(file.fd)
            end = file.total_bytes or now.st_size + file.bytes_after_end
            if now.st_blocks * 512 < end - (0 if file.total_bytes else REFILL_STEP_BYTES):
                allocate(file.fd, end)
        log = self._files[0].fd
        if (length := os.fstat(log).st_size) < WAL_LENGTH:
            os.pwrite(log, bytes(WAL_STEP_BYTES), length)

    def close(self) -> None:
        """Free the room. Only after the rows' connection is closed: this drops the locks that it has on its file."""
        while self._files:
            file = self._files.pop()
            with contextlib.suppress(OSError):
                os.ftruncate(file.fd, os.fstat(file.fd).st_size)  # frees what is beyond the end
            os.close(file.fd)


def allocate(fd: int, end: int) -> None:
    """Allocate all bytes of a file up to ``end`` on disk, without changing its length."""
    if _fallocate(fd, _KEEP_SIZE, 0, end) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
