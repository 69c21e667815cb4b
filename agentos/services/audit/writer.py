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
from agentos.private_files import check_file, describe, hold_directory, shown

from .chain import BEGINNING, CUT, Link, Waiting, own, removal
from .reserve import FULL, ROOM
from .segments import Place, Segment, is_empty, last_row, places
from .verify import last_resort, tail

log = logging.getLogger(__name__)

SEGMENT = 64 << 20  # bytes
KEPT = 16  # segments


class Log:
    """All segments in one directory; raises :class:`DatabaseError` if it can't be written to."""

    def __init__(self, directory: Path, segment_size: int = SEGMENT, kept: int = KEPT) -> None:
        self._size, self._kept = segment_size, kept
        self._stuck = False
        self.sparing = False  # the disk is nearly full: the reserved room is for the operator
        self._unkept = ""  # why no room is reserved
        with contextlib.ExitStack() as undo:
            self.directory = _hold(directory, undo)  # held until closed, even if the directory is moved meanwhile
            self._segment, trouble = _last_segment(self.directory)
            undo.callback(lambda: self._segment.close())
            self._hold()
            if trouble:
                log.error("the audit log was tampered with or damaged: %s; `agentos audit verify` tells more", trouble)
                self.append([Waiting(own(CUT, trouble, "tampered"), time.time())])
            self.close = undo.pop_all().close

    def append(self, group: Sequence[Waiting]) -> int:
        """Write the entries in one commit, after which they are safe on disk; returns the number of the first."""
        first = self._segment.append(group)[0].seq
        if not self.sparing:  # then the reserved room is to be used up
            if self._segment.size >= self._size:
                self._rotate()
            self._hold()
        return first

    def refill(self) -> None:
        """Leave the sparing state if there is room again."""
        try:
            disk = os.statvfs(self.directory)
            if disk.f_bavail * disk.f_frsize < ROOM:
                return
            self._segment.hold()
        except OSError:
            return
        self.sparing = False
        log.warning("the audit log has room again: everybody may act again")

    def _hold(self) -> None:
        try:
            self._segment.hold()
        except OSError as error:
            if error.errno in FULL:
                self.sparing = True
                log.error(
                    "the disk of %s is full: until there is room, only the operator acts, and agents can be killed",
                    shown(self.directory),
                )
            elif self._unkept != (why := str(error.strerror)):
                self._unkept = why
                log.warning("no room can be kept for when the disk of %s is full: %s", shown(self.directory), why)

    @property
    def last(self) -> Link:
        return self._segment.last

    def _rotate(self) -> None:
        """Start a new segment. Errors here lose no rows: it is tried again with the next commit."""
        try:
            fresh = Segment(self._segment.place.next, self._segment.last)
            self._segment.close()
            self._segment = fresh
            for place in places(self.directory)[: -self._kept]:
                end = _end_of(place)
                self._segment.append([Waiting(removal(place.number, end), time.time())])  # recorded, then removed
                place.remove()
            self._stuck = False
        except (DatabaseError, OSError) as error:
            if not self._stuck:
                log.error("the audit log has no new segment, or keeps an old one for longer: %s", error)
            self._stuck = True


def _hold(directory: Path, undo: contextlib.ExitStack) -> Path:
    try:
        held = undo.enter_context(hold_directory(directory))
        os.chmod(held, 0o700)
        for place in places(held):
            for path in place.files:
                check_file(path)
    except OSError as error:
        raise DatabaseError(describe(error, directory)) from None
    return held


def _last_segment(directory: Path) -> tuple[Segment, str]:
    """The segment to continue with, and what is wrong with the end of the log, if anything."""
    found = places(directory)
    while len(found) > 1 and is_empty(found[-1]):  # created by a kernel that was then killed or out of disk space
        found.pop().remove()
    if not found:
        return Segment(Place(directory, 1), BEGINNING), ""
    place = found[-1]
    try:
        end = tail(place, oldest=len(found) == 1)
        return Segment(place, end.last, end.headed), end.trouble
    except (DatabaseError, sqlite3.Error, OSError) as error:
        # A new segment works, unless the fault is the file system's.
        fresh = Segment(place.next, last_resort(place))
        return fresh, f"{shown(place.rows)} can't be used, and is left as it is: {error}"


def _end_of(place: Place) -> Link:
    try:
        row = last_row(place)
        return row.link if row is not None else last_resort(place)
    except (sqlite3.Error, OSError):
        return last_resort(place)
