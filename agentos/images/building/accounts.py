"""The ids of a user and group that a Dockerfile names, by the passwd and group of the tree so far."""

from collections.abc import Sequence

from agentos.images.store import read_accounts


def find_owner(top: int, text: str) -> tuple[int, int] | None:
    """The uid and gid of ``USER``, ``USER:GROUP`` or ``:GROUP``, names or numbers; None if there is none of that name.

    Without a group a name has its own, and a number the gid of the same number.
    """
    user, _, group = text.partition(":")
    return _find_ids(top, user, group or (user if user.isdecimal() else ""))


def find_user(top: int, text: str) -> tuple[int, int] | None:
    """Those as which programs run after such a USER: without a group a number has its account's, or root's."""
    user, _, group = text.partition(":")
    return _find_ids(top, user, group)


def _find_ids(top: int, user: str, group: str) -> tuple[int, int] | None:
    users, groups = (list(map(_split, accounts.splitlines())) for accounts in read_accounts(top))
    unknown = ("", "", user, "0") if user.isdecimal() else ()
    found = _find(users, user, 2 if user.isdecimal() else 0) or unknown if user else ("", "", "0", "0")
    uid = _number(found, 2)
    gid = _number(_find(groups, group) or ("", "", group), 2) if group else _number(found, 3)
    return (uid, gid) if uid is not None and gid is not None else None


def _split(line: str) -> Sequence[str]:
    return line.split(":")


def _find(rows: Sequence[Sequence[str]], name: str, place: int = 0) -> Sequence[str]:
    return next((row for row in rows if row[place : place + 1] == [name]), ())


def _number(row: Sequence[str], place: int) -> int | None:
    text = row[place] if len(row) > place else ""
    return int(text) if text.isdecimal() and len(text) < 12 else None
