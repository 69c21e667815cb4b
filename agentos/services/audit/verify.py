"""Verification of the audit log: finds every row or line that was changed, removed, inserted or moved.

It can't detect changes by a process that can write both files: the end of both can be removed alike, or both can be
written anew. Against that helps a hash that was noted elsewhere: it must still be in the chain.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from attrs import define, field, frozen

from agentos.private_files import shown

from .chain import BEGINNING, Link, Row, removed
from .segments import (
    MOST_TOGETHER,
    Line,
    Place,
    head_lines,
    head_size,
    is_empty,
    is_made,
    is_quiet,
    last_of_head,
    places,
    reading,
    rows,
)

MANY = 20  # faults that are reported
ATTEMPTS = 20
_CHANGED = "it was changed, or what stood before it: its hash doesn't follow"


@frozen
class Fault:
    """A deviation from what was written, and at which entry; ``None`` if it has no number."""

    seq: int | None
    text: str

    def __str__(self) -> str:
        return self.text if self.seq is None else f"entry {self.seq}: {self.text}"


@frozen
class Report:
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


def verify(directory: Path, head: str | None = None) -> Report:
    """Verify the whole log, also while a kernel writes to it; ``head`` is a hash that must be in it. ``OSError``."""
    for _ in range(ATTEMPTS):
        listed = places(directory)
        found = list(listed)
        while len(found) > 1 and is_empty(found[-1]):  # a kernel has just created it
            found.pop()
        written_to = _written_to(found)
        check = _Check(head)
        report = check.whole(found)
        if any(place.number in check.leftovers for place in found):
            report = _Check(head).whole([place for place in found if place.number not in check.leftovers])
        if report.sound or (places(directory) == listed and written_to == _written_to(found)):
            break
        # otherwise a kernel has started, stopped or begun another segment meanwhile: retry
    return report


def _written_to(found: Sequence[Place]) -> list[bool]:
    return [not is_quiet(place) for place in found]


@define(eq=False)
class _Check:
    """One pass through the log, from its oldest row to its newest."""

    head: str | None
    faults: list[Fault] = field(factory=list)
    removals: set[Link] = field(factory=set)
    leftovers: set[int] = field(factory=set)  # segments with a recorded removal: a kernel may have died during it
    start: Row | None = None  # the first row of all
    last: Link = BEGINNING  # what the next row has to follow
    entries: int = 0
    unheaded: int = 0
    seen: bool = False  # whether the hash `head` was found

    def whole(self, found: list[Place]) -> Report:
        for before, place in zip([None, *found], found, strict=False):
            if before is not None and place.number != before.number + 1:
                self.fault(None, f"{before.next.rows} is missing")
            self._segment(place, is_last=place is found[-1])
        self._beginning()
        if not self.entries and not self.faults:
            self.fault(None, "nothing is here, but the first thing that a kernel writes is KERNEL_START")
        if self.head is not None and not self.seen:
            self.fault(None, f"no entry has the hash {self.head}: the log was cut or written anew since it had")
        first = self.start.seq if self.start else 0
        return Report(len(found), self.entries, first, self.last, self.unheaded, tuple(self.faults))

    def fault(self, seq: int | None, text: str) -> None:
        if len(self.faults) < MANY:
            self.faults.append(Fault(seq, text))
        elif len(self.faults) == MANY:
            self.faults.append(Fault(None, "and more"))

    def gap(self, first: int, last: int) -> None:
        self.fault(first, f"it is missing, and so are all up to {last}" if last > first else "it is missing")

    def _segment(self, place: Place, is_last: bool) -> None:
        heads, trouble = _Heads(self, place), None
        try:
            with reading(place) as connection:
                for row in rows(connection, "ORDER BY seq") if is_made(connection) else ():
                    self._row(row)
                    heads.reach(row)
        except FileNotFoundError:
            if not is_last or heads.size:  # else a kernel was killed just after creating it
                trouble = f"{shown(place.rows)} is missing"
        except (sqlite3.Error, TypeError, ValueError) as error:
            trouble = f"{shown(place.rows)} can't be read from here on: {error}"
        if trouble is not None:
            self.fault(self.last.seq + 1, trouble)
        heads.end(is_last, told=trouble is not None)

    def _row(self, row: Row) -> None:
        if self.start is None:
            self.start = row
        elif row.seq > self.last.seq + 1:
            self.gap(self.last.seq + 1, row.seq - 1)
        elif row.seq <= self.last.seq:
            self.fault(row.seq, f"it comes after entry {self.last.seq}")
        elif not row.follows(self.last.hash):
            self.fault(row.seq, _CHANGED)
        self.seen = self.seen or row.hash == self.head
        self.entries += 1
        self.last = row.link
        if (removal := removed(row)) is not None:
            self.removals.add(removal.last)
            self.leftovers.add(removal.segment)

    def _beginning(self) -> None:
        """Check that the first row follows nothing, or a segment with a recorded removal."""
        if self.start is None:
            return
        for link in (BEGINNING, *self.removals):
            if self.start.seq == link.seq + 1:
                if not self.start.follows(link.hash):
                    self.fault(self.start.seq, _CHANGED)
                self.seen = self.seen or (link.hash == self.head and link != BEGINNING)
                return
        self.gap(1, self.start.seq - 1)


class _Heads:
    """Compares a head file with the rows of its segment, both in order: one line per commit's last row."""

    def __init__(self, check: _Check, place: Place) -> None:
        self._check, self._place = check, place
        self.size = head_size(place)  # lines up to here must match rows that are read from now on
        self._lines = head_lines(place)  # opened at the first row: by then all commits but one have their line
        self._line: Line | None = None
        self._before = 0  # the number in the previous line
        self._row: Row | None = None
        self._first = 0  # the number of the first row of its commit
        self._lacking: Row | None = None  # the last row of a commit that has no line
        self._is_gone = not place.head.exists()  # the head file is created before there are rows

    def _next(self) -> Link | None:
        """The content of the next line; it stays the next one until ``_before`` is its number."""
        while True:
            link = self._line.link if self._line is not None else None
            if link is not None and link.seq > self._before:
                return link
            self._line = next(self._lines, None)
            if self._line is None:
                return None
            if self._line.link is None:
                self._fault(None, f"has a line that isn't the kernel's, before byte {self._line.end}")
            elif self._line.link.seq <= self._before:
                self._fault(self._line.link.seq, f"names it after entry {self._before}")

    def reach(self, row: Row) -> None:
        """Compare the line of a commit when its last row is reached."""
        if self._row is None and self._is_gone:
            self._fault(row.seq, "isn't there")
        if self._row is None or self._row.together != row.together:
            self._first = row.seq
        self._row = row
        if row.seq != row.together or self._is_gone:
            return
        self._tell_lacking()
        while (link := self._next()) is not None and link.seq < row.seq:
            if link.seq >= self._first:
                self._fault(link.seq, "names it, which isn't the last of its commit")
            self._before = link.seq  # smaller ones are of missing rows, reported already
        if link is None or link.seq > row.seq:
            self._lacking = row
        else:
            self._before = link.seq
            if link.hash != row.hash:
                self._fault(row.seq, "has another hash for it")

    def end(self, is_last: bool, told: bool) -> None:
        """Check the lines after the last row; ``told``: missing rows were reported already.

        In the last segment, lines that were added during the check may belong to rows that were added, too.
        """
        begin = self._check.last.seq + 1
        missing = self._row.together if self._row is not None and self._row.together >= begin else 0
        while (link := self._next()) is not None:
            assert self._line is not None
            self._before = link.seq
            if self._line.end <= self.size or not is_last:
                missing = link.seq
                self._check.last = link  # the next row has to follow this one
        if missing and not told:
            self._check.gap(begin, missing)
        if is_last and not missing and self._lacking is not None:
            self._check.unheaded = self._lacking.seq - self._first + 1
        else:
            self._tell_lacking()

    def _tell_lacking(self) -> None:
        if self._lacking is not None:
            self._fault(self._lacking.seq, "has no line for it")
            self._lacking = None

    def _fault(self, seq: int | None, text: str) -> None:
        self._check.fault(seq, f"{shown(self._place.head)} {text}")


# -- When a kernel starts ----------------------------------------------------------------------------------------------


@frozen
class Tail:
    """Where to continue, and whether the head file contains that already; ``trouble`` describes a fault, if any."""

    last: Link
    headed: bool = True
    trouble: str = ""


def tail(place: Place, oldest: bool) -> Tail:
    """Check the end of the log as the last kernel left it: the rows from the head's last line on.

    Numbers are never reused: if rows are missing that the head names, the log continues after those. ``sqlite3.Error``
    and ``OSError`` if the segment can't be read.
    """
    own = last_of_head(place)
    before = None if oldest else last_of_head(Place(place.directory, place.number - 1))
    anchor = own or before or BEGINNING
    if not place.rows.exists():
        return Tail(anchor, trouble=f"{shown(place.rows)} is missing" if own else "")
    with reading(place) as connection:
        if not is_made(connection):
            return Tail(anchor, trouble=f"the entries up to {anchor.seq} are missing" if own else "")
        named = list(rows(connection, "WHERE seq = ?", anchor.seq))
        beyond = list(rows(connection, "WHERE seq > ? ORDER BY seq LIMIT ?", anchor.seq, MOST_TOGETHER))
        newest = list(rows(connection, "ORDER BY seq DESC LIMIT 1"))
    trouble, last = "", anchor
    if own and not named:
        trouble = f"the entries {newest[0].seq + 1 if newest else 'of this segment'} to {own.seq} are missing"
    elif own and named[0].hash != own.hash:
        trouble = f"entry {own.seq} isn't what the head file says"
    for row in beyond:
        if not trouble and (row.seq != last.seq + 1 or not row.follows(last.hash)):
            trouble = f"entry {row.seq} doesn't follow from what stands before it"
        if not trouble and row.together != newest[0].seq:
            trouble = f"the head file lacks entry {row.together}"
        last = row.link
    if newest and newest[0].seq > last.seq:
        last = newest[0].link
    return Tail(last, headed=bool(trouble) or not beyond, trouble=trouble)


def last_resort(place: Place) -> Link:
    """Where to continue if the segment can't be read: the last link in any head file."""
    return last_of_head(place) or last_of_head(Place(place.directory, place.number - 1)) or BEGINNING
