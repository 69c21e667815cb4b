"""Ids that an ordinary user may give to programs in a user namespace: those of /etc/subuid and /etc/subgid."""

import contextlib
import pwd
import shutil

from msgspec import Struct

from .proc_files import read_file

COUNT = 65536


class SubIds(Struct, frozen=True):
    """The first of :data:`COUNT` uids and of so many gids, and the set-uid programs that write them to a map."""

    uid: int
    gid: int
    newuidmap: str
    newgidmap: str


def read_sub_ids(uid: int) -> SubIds | None:
    """Those of a user; None without a large enough range, or without the programs (package uidmap)."""
    uids, gids = (find_first(path, uid) for path in ("/etc/subuid", "/etc/subgid"))
    newuidmap, newgidmap = shutil.which("newuidmap"), shutil.which("newgidmap")
    if uids is None or gids is None or newuidmap is None or newgidmap is None:
        return None
    return SubIds(uids, gids, newuidmap, newgidmap)


def find_first(path: str, uid: int) -> int | None:
    """The first id of a user's first range in this file that is large enough."""
    names = {str(uid)}
    with contextlib.suppress(KeyError):
        names.add(pwd.getpwuid(uid).pw_name)
    try:
        rows = [line.split(":") for line in read_file(path).splitlines()]
    except OSError:
        return None
    found = [row for row in rows if len(row) == 3 and row[0] in names and row[1].isdigit() and row[2].isdigit()]
    return next((int(first) for _, first, count in found if int(count) >= COUNT), None)
