"""Verification of the audit log: finds every row or line that was changed, removed, inserted or moved.

It can't detect changes by a process that can write both files: the end of both can be removed alike, or both can be
written anew. Against that helps a hash that was noted elsewhere: it must still be in the chain.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from attrs import define, field
from msgspec import Struct

from agentos.private_files import display_path

from .chain import CHAIN_START, Link, Row, parse_removal
from .segments import (
    MAX_COMMIT_ROWS,
    HeadLine,
    SegmentFiles,
    has_no_writer,
    has_table,
    head_size,
    is_empty,
    list_segments,
    open_for_reading,
    read_head_lines,
    read_last_head_line,
    read_rows,
)

MAX_REPORTED_FAULTS = 20  # faults that are reported
MAX_ATTEMPTS = 20
_HASH_MISMATCH = "it or an entry before it was changed: its hash doesn't match"


class Fault(Struct, frozen=True):
    """A deviation from what was written, and at which entry; ``None`` if it has no number."""

    seq: int | None
    text: str

    def __str__(self) -> str:
        return self.text if self.seq is None else f"entry {self.seq}: {self.text}"


class Report(Struct, frozen=True):
    """What was verified, and the faults. ``last`` is the end of the chain.

    ``unheaded`` entries at the end aren't in the head file yet: those of one commit at most, as a kernel is writing
    them or was killed while it did.
    """

    segments: int
    entries: int
    first: int
    last: Link
    unheaded: int
    faults: tuple[Fault, ...]

    @property
    def sound(self) -> bool:
        return not self.faults


def verify_log(directory: Path, head: str | None = None) -> Report:
    """Verify the whole log, also while a kernel writes to it; ``head`` is a hash that must be in it. ``OSError``."""
    for _ in range(MAX_ATTEMPTS):
        found = _list_written(directory)
        written_to = _have_writers(found)
        check = _ChainCheck(head)
        report = check.check_segments(found)
        if any(place.number in check.leftovers for place in found):
            report = _ChainCheck(head).check_segments([place for place in found if place.number not in check.leftovers])
        if report.sound or (_list_written(directory) == found and written_to == _have_writers(found)):
            break
        # otherwise a kernel has started, stopped or begun another segment meanwhile: retry
    return report


def _list_written(directory: Path) -> list[SegmentFiles]:
    """The segments without those that a kernel has just created: in these the removal of the oldest is recorded."""
    found = list_segments(directory)
    while len(found) > 1 and is_empty(found[-1]):
        found.pop()
    return found


def _have_writers(found: Sequence[SegmentFiles]) -> list[bool]:
    return [not has_no_writer(place) for place in found]


@define(eq=False)
class _ChainCheck:
    """One pass through the log, from its oldest row to its newest."""

    head: str | None
    faults: list[Fault] = field(factory=list)
    removals: set[Link] = field(factory=set)
    leftovers: set[int] = field(factory=set)  # segments with a recorded removal: a kernel may have died during it
    start: Row | None = None  # the first row of all
    last: Link = CHAIN_START  # what the next row has to follow
    entries: int = 0
    unheaded: int = 0
    head_found: bool = False  # whether the hash `head` was found

    def check_segments(self, found: list[SegmentFiles]) -> Report:
        for before, place in zip([None, *found], found, strict=False):
            if before is not None and place.number != before.number + 1:
                self.report_fault(None, f"{before.next.rows} is missing")
            self._check_segment(place, is_last=place is found[-1])
        self._check_start()
        if not self.entries and not self.faults:
            self.report_fault(None, "the log is empty; a kernel's first entry is KERNEL_START")
        if self.head is not None and not self.head_found:
            self.report_fault(None, f"no entry has the hash {self.head}: the log was cut or rewritten since then")
        first = self.start.seq if self.start else 0
        return Report(len(found), self.entries, first, self.last, self.unheaded, tuple(self.faults))

    def report_fault(self, seq: int | None, text: str) -> None:
        if len(self.faults) < MAX_REPORTED_FAULTS:
            self.faults.append(Fault(seq, text))
        elif len(self.faults) == MAX_REPORTED_FAULTS:
            self.faults.append(Fault(None, "and more"))

    def report_gap(self, first: int, last: int) -> None:
        self.report_fault(first, f"it is missing, and so are all up to {last}" if last > first else "it is missing")

    def _check_segment(self, place: SegmentFiles, is_last: bool) -> None:
        heads, trouble = _HeadCheck(self, place), None
        try:
            with open_for_reading(place) as connection:
                for row in read_rows(connection, "ORDER BY seq") if has_table(connection) else ():
                    self._check_row(row)
                    heads.check_row(row)
        except FileNotFoundError:
            if not is_last or heads.size:  # else a kernel was killed just after creating it
                trouble = f"{display_path(place.rows)} is missing"
        except (sqlite3.Error, TypeError, ValueError) as error:
            trouble = f"{display_path(place.rows)} can't be read from here on: {error}"
        if trouble is not None:
            self.report_fault(self.last.seq + 1, trouble)
        heads.check_rest(is_last, reported=trouble is not None)

    def _check_row(self, row: Row) -> None:
        if self.start is None:
            self.start = row
        elif row.seq > self.last.seq + 1:
            self.report_gap(self.last.seq + 1, row.seq - 1)
        elif row.seq <= self.last.seq:
            self.report_fault(row.seq, f"it comes after entry {self.last.seq}")
        elif not row.follows(self.last.hash):
            self.report_fault(row.seq, _HASH_MISMATCH)
        self.head_found = self.head_found or row.hash == self.head
        self.entries += 1
        self.last = row.link
        if (removal := parse_removal(row)) is not None:
            self.removals.add(removal.last)
            self.leftovers.add(removal.segment)

    def _check_start(self) -> None:
        """Check that the first row follows nothing, or a segment with a recorded removal."""
        if self.start is None:
            return
        for link in (CHAIN_START, *self.removals):
            if self.start.seq == link.seq + 1:
                if not self.start.follows(link.hash):
                    self.report_fault(self.start.seq, _HASH_MISMATCH)
                self.head_found = self.head_found or (link.hash == self.head and link != CHAIN_START)
                return
        self.report_gap(1, self.start.seq - 1)


class _HeadCheck:
    """Compares a head file with the rows of its segment, both in order: one line per commit's last row."""

    def __init__(self, check: _ChainCheck, place: SegmentFiles) -> None:
        self._check, self._place = check, place
        self.size = head_size(place)  # lines up to here must match rows that are read from now on
        self._lines = read_head_lines(place)  # opened at the first row: by then all commits but one have their line
        self._line: HeadLine | None = None
        self._before = 0  # the number in the previous line
        self._check_row: Row | None = None
        self._first = 0  # the number of the first row of its commit
        self._missing_line_for: Row | None = None  # the last row of a commit that has no line
        self._is_gone = not place.head.exists()  # the head file is created before there are rows

    def _next_link(self) -> Link | None:
        """The content of the next line; it stays the next one until ``_before`` is its number."""
        while True:
            link = self._line.link if self._line is not None else None
            if link is not None and link.seq > self._before:
                return link
            self._line = next(self._lines, None)
            if self._line is None:
                return None
            if self._line.link is None:
                self._report_fault(None, f"has a malformed line, before byte {self._line.end}")
            elif self._line.link.seq <= self._before:
                self._report_fault(self._line.link.seq, f"lists it after entry {self._before}")

    def check_row(self, row: Row) -> None:
        """Compare the line of a commit when its last row is reached."""
        if self._check_row is None and self._is_gone:
            self._report_fault(row.seq, "is missing")
        if self._check_row is None or self._check_row.together != row.together:
            self._first = row.seq
        self._check_row = row
        if row.seq != row.together or self._is_gone:
            return
        self._report_missing_line()
        while (link := self._next_link()) is not None and link.seq < row.seq:
            if link.seq >= self._first:
                self._report_fault(link.seq, "lists it, which isn't the last of its commit")
            self._before = link.seq  # smaller ones are of missing rows, reported already
        if link is None or link.seq > row.seq:
            self._missing_line_for = row
        else:
            self._before = link.seq
            if link.hash != row.hash:
                self._report_fault(row.seq, "has another hash for it")

    def check_rest(self, is_last: bool, reported: bool) -> None:
        """Check the lines after the last row; ``reported``: missing rows were reported already.

        In the last segment, lines that were added during the check may belong to rows that were added, too.
        """
        begin = self._check.last.seq + 1
        missing = self._check_row.together if self._check_row is not None and self._check_row.together >= begin else 0
        while (link := self._next_link()) is not None:
            assert self._line is not None
            self._before = link.seq
            if self._line.end <= self.size or not is_last:
                missing = link.seq
                self._check.last = link  # the next row has to follow this one
        if missing and not reported:
            self._check.report_gap(begin, missing)
        if is_last and not missing and self._missing_line_for is not None:
            self._check.unheaded = self._missing_line_for.seq - self._first + 1
        else:
            self._report_missing_line()

    def _report_missing_line(self) -> None:
        if self._missing_line_for is not None:
            self._report_fault(self._missing_line_for.seq, "has no line for it")
            self._missing_line_for = None

    def _report_fault(self, seq: int | None, text: str) -> None:
        self._check.report_fault(seq, f"{display_path(self._place.head)} {text}")


# -- When a kernel starts ----------------------------------------------------------------------------------------------


class LogEnd(Struct, frozen=True):
    """Where to continue, and whether the head file contains that already; ``trouble`` describes a fault, if any."""

    last: Link
    headed: bool = True
    trouble: str = ""


def check_end(place: SegmentFiles, oldest: bool) -> LogEnd:
    """Check the end of the log as the last kernel left it: the rows from the head's last line on.

    Numbers are never reused: if rows are missing that the head names, the log continues after those. ``sqlite3.Error``
    and ``OSError`` if the segment can't be read.
    """
    own = read_last_head_line(place)
    before = None if oldest else read_last_head_line(SegmentFiles(place.directory, place.number - 1))
    anchor = own or before or CHAIN_START
    if not place.rows.exists():
        return LogEnd(anchor, trouble=f"{display_path(place.rows)} is missing" if own else "")
    with open_for_reading(place) as connection:
        if not has_table(connection):
            return LogEnd(anchor, trouble=f"the entries up to {anchor.seq} are missing" if own else "")
        named = list(read_rows(connection, "WHERE seq = ?", anchor.seq))
        beyond = list(read_rows(connection, "WHERE seq > ? ORDER BY seq LIMIT ?", anchor.seq, MAX_COMMIT_ROWS))
        newest = list(read_rows(connection, "ORDER BY seq DESC LIMIT 1"))
    trouble, last = "", anchor
    if own and not named:
        trouble = f"the entries {newest[0].seq + 1 if newest else 'of this segment'} to {own.seq} are missing"
    elif own and named[0].hash != own.hash:
        trouble = f"entry {own.seq} doesn't match the head file"
    for row in beyond:
        if not trouble and (row.seq != last.seq + 1 or not row.follows(last.hash)):
            trouble = f"entry {row.seq} doesn't follow from the entry before it"
        if not trouble and row.together != newest[0].seq:
            trouble = f"the head file lacks entry {row.together}"
        last = row.link
    if newest and newest[0].seq > last.seq:
        last = newest[0].link
    return LogEnd(last, headed=bool(trouble) or not beyond, trouble=trouble)


def recover_end(place: SegmentFiles) -> Link:
    """Where to continue if the segment can't be read: the last link in any head file."""
    return (
        read_last_head_line(place)
        or read_last_head_line(SegmentFiles(place.directory, place.number - 1))
        or CHAIN_START
    )
