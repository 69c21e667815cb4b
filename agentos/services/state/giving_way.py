"""Values of a session that give way: stored without having been asked for, such as responses to a program of OpenAI's.

They never take room from another value. The oldest are removed, without an event, when a session has more than
:data:`MAX_KEYS_GIVING_WAY` of them or they have more than :data:`MAX_BYTES_GIVING_WAY`, and when an account would
exceed its limits. Their keys begin with :data:`GIVES_WAY` and a time, so that the first is the oldest.
"""

import sqlite3
from collections.abc import Sequence

from .spaces import account_of, end_of_prefix, is_session

GIVES_WAY = "openai/responses/resp_0"
MAX_KEYS_GIVING_WAY = 256  # of one session
MAX_BYTES_GIVING_WAY = 8 << 20  # keys and values of one session

Row = tuple[str, str, str, int]  # space, key, account, size


def gives_way(space: str, key: str) -> bool:
    return is_session(space) and key.startswith(GIVES_WAY)


def list_surplus(space: str, connection: sqlite3.Connection) -> Sequence[Row]:
    """The oldest ones of a session that has too many of them, or too large ones."""
    rows = _list(space, connection)
    size, keys = sum(row[3] for row in rows), len(rows)
    surplus = []
    for row in rows:
        if keys <= MAX_KEYS_GIVING_WAY and size <= MAX_BYTES_GIVING_WAY:
            break
        surplus.append(row)
        keys, size = keys - 1, size - row[3]
    return surplus


def list_room(
    account: str, place: tuple[str, str], keys: int, size: int, connection: sqlite3.Connection
) -> Sequence[Row]:
    """The oldest ones of an account and those below it that make room for so many keys and bytes more.

    None if all of them are too few. The one at ``place``, which is to be replaced, stays.
    """
    names = connection.execute("SELECT name FROM state_accounts WHERE name LIKE '%~%'").fetchall()
    owners = ((name, f"{account_of(name)}/") for (name,) in names)
    spaces = [name for name, owner in owners if owner.startswith(f"{account}/")]
    found = []
    for row in sorted((row for space in spaces for row in _list(space, connection)), key=lambda row: row[1]):
        if keys <= 0 and size <= 0:
            break
        if row[:2] != place:
            found.append(row)
            keys, size = keys - 1, size - row[3]
    return found if keys <= 0 and size <= 0 else ()


def _list(space: str, connection: sqlite3.Connection) -> list[Row]:
    return connection.execute(
        "SELECT space, key, account, size FROM state WHERE space = ? AND key >= ? AND key < ? ORDER BY key",
        (space, GIVES_WAY, end_of_prefix(GIVES_WAY)),
    ).fetchall()
