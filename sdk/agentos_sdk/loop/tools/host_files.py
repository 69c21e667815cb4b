"""Lists and searches files outside of a jail: each file is read by READ, so that rules hold and the audit log has it.

This process only walks the directories. What the kernel denies is left out, its name as well.
"""

from __future__ import annotations

import os
from base64 import b64decode
from fnmatch import fnmatch
from itertools import islice
from typing import NamedTuple

from agentos_sdk.clients.arguments import make_absolute
from agentos_sdk.loop.engine.effects import Call, Reply, Run, Work
from agentos_sdk.opcodes import Op

from .search_program import MAX_SEARCHED, files_below, shown_name
from .tools import ToolError

JAIL_SOCKET, JAIL_WORKSPACE = "/run/agentos.sock", "/workspace"
MAX_ASKED = 1000  # files read by one call: each is an entry of the audit log
MAX_TOTAL = 32 << 20  # bytes of all files that one search reads
LEFT_OUT = ("permission_denied", "approval_required", "approval_refused", "not_found", "bad_request")
"""Codes of READ for which a file is left out: it may not be read, is gone, or is no file that READ takes."""


def is_jailed() -> bool:
    """Whether this process is in an agent's jail, which shows only what is the agent's."""
    return os.environ.get("AGENTOS_SOCKET") == JAIL_SOCKET and os.path.isdir(JAIL_WORKSPACE)


class HostFile(NamedTuple):
    """A file that the caller may read: its absolute path, its size, and the bytes that were read."""

    path: str
    size: int
    data: bytes


class HostFiles(NamedTuple):
    """``note`` says that there are more files, which were not looked at; empty if there are none."""

    files: list[HostFile]
    note: str


def read_below(path: str, limit: int = MAX_SEARCHED, pattern: str = "*") -> Work[HostFiles]:
    """The file at a path, or the files below that directory that match, of each at most ``limit`` bytes.

    Raises :class:`ToolError` with READ's error of the path if no file is found and the caller may not know why.
    """
    path = make_absolute(path)
    first = yield _read(path, limit)
    if first["success"]:
        return HostFiles([_file(path, first)], "")
    _check(first)
    found: list[HostFile] = []
    total = 0
    names = yield Run(_find_names, {"path": path, "pattern": pattern})
    for asked, name in enumerate(names):
        if asked == MAX_ASKED or total >= MAX_TOTAL:
            return HostFiles(found, "\n[there are more files, which were not looked at: name a smaller directory]")
        reply = yield _read(name, limit)
        if reply["success"]:
            found.append(_file(name, reply))
            total += len(found[-1].data)
        else:
            _check(reply)
    if not found and not (
        first["code"] == "bad_request" and os.path.isdir(path)
    ):  # that is READ's error of a directory
        raise ToolError(f"{first['code']}: {first['error']}; no file below it was found that you may read")
    return HostFiles(found, "")


def as_texts(files: list[HostFile]) -> list[tuple[str, str]]:
    """Names as a search shows them, and contents, of files that are no binary ones."""
    texts = [each for each in files if b"\0" not in each.data[:1024]]
    return [(shown_name(os.path.relpath(each.path)), each.data.decode(errors="replace")) for each in texts]


def matches(name: str, pattern: str) -> bool:
    """Whether a relative path, or its last part, matches a pattern such as ``*.py``."""
    return fnmatch(name, pattern) or fnmatch(os.path.basename(name), pattern)


def _find_names(path: str, pattern: str) -> list[str]:
    try:
        names = (name for name in files_below(path) if matches(os.path.relpath(name, path), pattern))
        return list(islice(names, MAX_ASKED + 1))
    except ValueError:  # the path has a NUL, or half of a surrogate pair
        return []


def _read(path: str, limit: int) -> Call:
    return Call(Op.READ, {"path": path, "limit": limit, "encoding": "base64"})


def _file(path: str, reply: Reply) -> HostFile:
    return HostFile(path, reply["size"], b64decode(reply["content"]))


def _check(reply: Reply) -> None:
    if reply["code"] not in LEFT_OUT:
        raise ToolError(f"{reply['code']}: {reply['error']}")
