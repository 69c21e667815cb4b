"""Which kernel has which host uids: one registry for all kernels with root, so that no uid has agents of two of them.

A kernel claims ranges of up to :data:`BLOCK` uids for its state directory, and assigns them to names by itself
(:mod:`agentos.sandbox.host_ids`). The claims are lines of JSON in one file, which is changed under an exclusive flock::

    {"first": 1610612736, "count": 64, "state": "/var/lib/agentos/shop-1a2b3c4d"}

While a kernel runs it also holds a lock on the bytes of the lock file that have the numbers of its uids (fcntl(2),
F_OFD_SETLK). Linux releases it when the kernel ends, however that comes. A path may be that of several directories, in
mount namespaces of their own: a claim is of the one in which any of its uids is assigned. A claim is given up when no
other uid is left, no kernel holds it and its state directory doesn't exist any more, or is one without its uids.
Everything here blocks.
"""

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentos.private_files import display_path, open_file, read_file, replace_file
from agentos.structs import learn

REGISTRY = Path("/var/lib/agentos-host-ids")
BLOCK = 64  # uids in one claim: one write in so many new names


class HostIdError(Exception):
    """No uid can be assigned; the text says why and what to do."""


class Claim(Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A range of uids, which belongs to a state directory."""

    first: int
    count: int
    state: str

    @property
    def ids(self) -> range:
        return range(self.first, self.first + self.count)


learn(Claim)


class HostIdRegistry:
    """The claims of all kernels, changed by one of them. ``directory`` is held, ``state`` is a real path."""

    def __init__(self, directory: Path, state: str) -> None:
        self._path, self._state = directory / "claims.json", state
        self._lock = open_file(directory / "lock", os.O_RDWR | os.O_CREAT)
        self._held = set[int]()  # the first uids of the claims that are this kernel's

    def close(self) -> None:
        os.close(self._lock)

    def hold_claimed(self, used: AbstractSet[int]) -> Sequence[range]:
        """Hold and return this state directory's ranges, until :meth:`close`.

        ``used`` are the uids assigned in it. Those that no kernel has claimed become its own, and so do those of a
        state directory that doesn't exist any more: it was moved here. The others aren't returned, and neither are
        ranges of this path without any of these uids, which may be another directory's.
        """
        with self._exclusively():
            known = self._read()
            claims = [
                replace(claim, state=self._state)
                if not used.isdisjoint(claim.ids) and self._is_abandoned(claim)
                else claim
                for claim in known
            ]
            unclaimed = frozenset(used).difference(*(claim.ids for claim in claims))
            claims += [Claim(run.start, len(run), self._state) for run in _runs(unclaimed)]
            own = [claim.ids for claim in claims if claim.state == self._state and not used.isdisjoint(claim.ids)]
            for ids in own:
                if not self._hold(ids):
                    raise HostIdError(
                        f"another kernel's agents have uids of {self._state}, from {ids.start} on: one of the two "
                        "state directories is a copy of the other; stop that kernel, or choose another with --state-dir"
                    )
            self._held.update(ids.start for ids in own)
            if claims != known:
                self._write(claims)
        return own

    def claim(self, wanted: range, spare: int = 0) -> range | None:
        """Claim and hold some more uids out of ``wanted``; None unless more than ``spare`` belong to no kernel."""
        with self._exclusively():
            claims = self._read()
            free = self._find_free(wanted, claims, spare)
            if free is None:
                claims = [claim for claim in claims if not self._is_abandoned(claim)]
                free = self._find_free(wanted, claims, spare)
            if free is not None:
                self._write([*claims, Claim(free.start, len(free), self._state)])
                self._held.add(free.start)
        return free

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[None]:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _find_free(self, wanted: range, claims: Iterable[Claim], spare: int) -> range | None:
        """The first block that no state directory claims and no kernel holds; it is held from now on."""
        if len(wanted) - sum(_overlap(wanted, claim.ids) for claim in claims) <= spare:
            return None
        start = wanted.start
        for claim in sorted([*claims, Claim(wanted.stop, 0, "")]):
            end = min(claim.first, wanted.stop)
            blocks = (range(first, min(first + BLOCK, end)) for first in range(start, end, BLOCK))
            if (found := next(filter(self._hold, blocks), None)) is not None:
                return found
            start = max(start, claim.ids.stop)
        return None

    def _is_abandoned(self, claim: Claim) -> bool:
        own = claim.state == self._state
        is_left = claim.first not in self._held if own else not os.path.lexists(claim.state)
        return is_left and self._is_free(claim.ids)

    def _hold(self, ids: range) -> bool:
        """Lock these uids' bytes; False if another kernel has one of them."""
        try:
            fcntl.fcntl(self._lock, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, ids))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _is_free(self, ids: range) -> bool:
        found = fcntl.fcntl(self._lock, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, ids))
        return bool(struct.unpack_from("h", found)[0] == fcntl.F_UNLCK)

    def _read(self) -> list[Claim]:
        try:
            claims = [msgspec.json.decode(line, type=Claim) for line in read_file(self._path).splitlines()]
        except FileNotFoundError:
            return []
        except (ValueError, RecursionError) as error:
            raise HostIdError(
                f"{display_path(self._path)} is damaged ({error}): stop all kernels of root and remove it; "
                "each claims its uids again when it starts"
            ) from None
        return claims

    def _write(self, claims: Iterable[Claim]) -> None:
        replace_file(self._path, b"".join(msgspec.json.encode(claim) + b"\n" for claim in sorted(claims)))


def _overlap(one: range, other: range) -> int:
    return max(0, min(one.stop, other.stop) - max(one.start, other.start))


def _flock(kind: int, ids: range) -> bytes:
    """``struct flock`` of fcntl(2), for the bytes with these numbers."""
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, ids.start, len(ids), 0)


def _runs(numbers: AbstractSet[int]) -> list[range]:
    """The numbers as ranges without gaps."""
    runs: list[range] = []
    for number in sorted(numbers):
        if runs and number == runs[-1].stop:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return runs
