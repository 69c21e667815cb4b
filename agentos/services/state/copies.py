"""Copies of all keys of a private space, and giving them back."""

import sqlite3
import time
from collections.abc import Sequence

from msgspec import Struct

from .batch import Change, StateLimits, store_all
from .rows import delete_all


class KeptKey(Struct, frozen=True, array_like=True):
    """A key with its value, as JSON; ``expires`` in seconds since the epoch."""

    key: str
    value: bytes
    expires: float | None = None


class Replaced(Struct, frozen=True):
    """The keys that were stored and those that were removed, each with its version."""

    stored: Sequence[tuple[str, int]]
    removed: Sequence[tuple[str, int]]


def read_space(space: str, connection: sqlite3.Connection) -> list[KeptKey]:
    """All keys of a space that haven't expired."""
    rows = connection.execute(
        "SELECT key, value, expires FROM state WHERE space = ? AND (expires IS NULL OR expires > ?) ORDER BY key",
        (space, time.time()),
    )
    return [KeptKey(*row) for row in rows]


def replace_space(limits: StateLimits, space: str, kept: Sequence[KeptKey], connection: sqlite3.Connection) -> Replaced:
    """Make a private space what it was: each key gets a new version, and keys that it hadn't are removed.

    Raises ``QuotaExceeded``.
    """
    now = time.time()
    kept = [one for one in kept if one.expires is None or one.expires > now]
    # All of them go first: what fits together isn't refused for the order in which it is stored.
    former = [one.key for one in read_space(space, connection)]
    versions = [outcome.unwrap() for outcome in delete_all([(space, key, None) for key in former], connection)]
    changes = [
        Change(space, one.key, one.value, space, None if one.expires is None else one.expires - now, None)
        for one in kept
    ]
    stored = [outcome.unwrap() for outcome in store_all(limits, changes, connection)] if changes else []
    keys = [one.key for one in kept]
    removed = [(key, version) for key, version in zip(former, versions, strict=True) if key not in keys]
    return Replaced([*zip(keys, stored, strict=True)], removed)
