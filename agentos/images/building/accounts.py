"""The ids of a user and group that a Dockerfile names, by the passwd and group of the tree so far."""

from collections.abc import Sequence

from agentos.images.store import read_accounts


def find_ids(top: int, text: str) -> tuple[int, int] | None:
    """The uid and gid of ``USER``, ``USER:GROUP`` or ``:GROUP``, names or numbers; None if there is none of that name.

    Without a group a name has its own, and a number the gid of the same number.
    """
    users, groups = (list(map(_split, accounts.splitlines())) for accounts in read_accounts(top))
    user, _, group = text.partition(":")
    found = _find(users, user) if user else ("", "", "0", "0")
    uid = int(user) if user.isdecimal() else _number(found, 2)
    if group:
        gid = int(group) if group.isdecimal() else _number(_find(groups, group), 2)
    else:
        gid = uid if user.isdecimal() else _number(found, 3)
    return (uid, gid) if uid is not None and gid is not None else None


def _split(line: str) -> Sequence[str]:
    return line.split(":")


def _find(rows: Sequence[Sequence[str]], name: str) -> Sequence[str]:
    return next((row for row in rows if row[0] == name), ())


def _number(row: Sequence[str], place: int) -> int | None:
    text = row[place] if len(row) > place else ""
    return int(text) if text.isdecimal() and len(text) < 12 else None
