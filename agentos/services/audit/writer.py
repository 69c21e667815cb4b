"""Writer of the audit log: continues the last segment, starts a new one when it is full, removes the oldest.

Everything here blocks on the disk: it runs in a thread, one call at a time.
"""

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from agentos.database import DatabaseError
from agentos.private_files import check_file, describe_error, display_path, hold_directory

from .chain import CHAIN_START, CUT, Link, QueuedEntry, kernel_entry, removal_entry
from .reserve import DISK_FULL_ERRNOS, MIN_FREE_BYTES
from .segments import Segment, SegmentFiles, is_empty, list_segments, read_last_row
from .verify import check_end, recover_end

log = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20  # bytes
KEPT_SEGMENTS = 16  # segments


class LogWriter:
    """All segments in one directory; raises :class:`DatabaseError` if it can't be written to."""

    def __init__(self, directory: Path, segment_size: int = SEGMENT_BYTES, kept: int = KEPT_SEGMENTS) -> None:
        self._size, self._kept = segment_size, kept
        self._rotation_failed = False
        self.opened_at = time.time()  # seconds since the epoch; the end of the log was checked then
        self.disk_full = False  # the disk is nearly full: the reserved room is for the operator
        self._reserve_error = ""  # why no room is reserved
        with contextlib.ExitStack() as undo:
            self.directory = _hold_directory(
                directory, undo
            )  # held until closed, even if the directory is moved meanwhile
            self._segment, self.trouble = _last_segment(self.directory)
            undo.callback(lambda: self._segment.close())
            self._reserve_space()
            if trouble := self.trouble:
                log.error("the audit log was tampered with or damaged: %s; run `agentos audit verify`", trouble)
                self.append([QueuedEntry(kernel_entry(CUT, trouble, "tampered"), time.time())])
            self.close = undo.pop_all().close

    def append(self, group: Sequence[QueuedEntry]) -> int:
        """Write the entries in one commit, after which they are safe on disk; returns the number of the first, or 0.

        In the sparing state, leave it if there is room again.
        """
        first = self._segment.append(group)[0].seq if group else 0
        if not self.disk_full:  # then the reserved room is to be used up
            if self._segment.size >= self._size:
                self._rotate()
            self._reserve_space()
        else:
            self._refill()
        return first

    def sync_head(self) -> None:
        """See :meth:`Segment.sync_head`; in any thread."""
        self._segment.sync_head()

    def _refill(self) -> None:
        try:
            disk = os.statvfs(self.directory)
            if disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES:
                return
            self._segment.reserve()
        except OSError:
            return
        self.disk_full = False
        log.warning("the disk of the audit log has space again: agents may act again")

    def _reserve_space(self) -> None:
        try:
            self._segment.reserve()
        except OSError as error:
            if error.errno in DISK_FULL_ERRNOS:
                self.disk_full = True
                log.error(
                    "the disk of %s is full: until there is space, agents' calls are refused; "
                    "the operator can act and kill agents",
                    display_path(self.directory),
                )
            elif self._reserve_error != (why := str(error.strerror)):
                self._reserve_error = why
                log.warning(
                    "can't reserve disk space for the time when the disk of %s is full: %s",
                    display_path(self.directory),
                    why,
                )

    @property
    def last(self) -> Link:
        return self._segment.last

    def _rotate(self) -> None:
        """Start a new segment. Errors here lose no rows: it is tried again with the next commit."""
        try:
            fresh = Segment(self._segment.place.next, self._segment.last)
            self._segment.close()
            self._segment = fresh
            for place in list_segments(self.directory)[: -self._kept]:
                end = _read_end(place)
                self._segment.append(
                    [QueuedEntry(removal_entry(place.number, end), time.time())]
                )  # recorded, then removed
                place.remove()
            self._rotation_failed = False
        except (DatabaseError, OSError) as error:
            if not self._rotation_failed:
                log.error("can't rotate the audit log (create a segment or remove the oldest): %s", error)
            self._rotation_failed = True


def _hold_directory(directory: Path, undo: contextlib.ExitStack) -> Path:
    try:
        held = undo.enter_context(hold_directory(directory))
        os.chmod(held, 0o700)
        for place in list_segments(held):
            for path in place.files:
                check_file(path)
    except OSError as error:
        raise DatabaseError(describe_error(error, directory)) from None
    return held


def _last_segment(directory: Path) -> tuple[Segment, str]:
    """The segment to continue with, and what is wrong with the end of the log, if anything."""
    found = list_segments(directory)
    while len(found) > 1 and is_empty(found[-1]):  # created by a kernel that was then killed or out of disk space
        found.pop().remove()
    if not found:
        return Segment(SegmentFiles(directory, 1), CHAIN_START), ""
    place = found[-1]
    try:
        end = check_end(place, oldest=len(found) == 1)
        return Segment(place, end.last, end.headed), end.trouble
    except (DatabaseError, sqlite3.Error, OSError) as error:
        # A new segment works, unless the fault is the file system's.
        fresh = Segment(place.next, recover_end(place))
        return fresh, f"{display_path(place.rows)} can't be read, and is left unchanged: {error}"


def _read_end(place: SegmentFiles) -> Link:
    try:
        row = read_last_row(place)
        return row.link if row is not None else recover_end(place)
    except (sqlite3.Error, OSError):
        return recover_end(place)
