"""Entries: the MCP clients that may use this kernel, each with a name, rights, and a transport.

An entry is a file ``mcp/clients/NAME.json`` in the kernel's state directory, which only the kernel's user can read. The
operator makes and removes it; what a client calls itself means nothing. Of an HTTP client's token only the SHA-256 is
kept. All functions block, and raise ``OSError`` where the state directory can't be used.
"""

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentos.private_files import hold_directory, open_file
from agentos.structs import learn, read_json

DIRECTORIES = ("mcp", "clients")  # in the state directory
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
NAME_RULE = "1 to 32 lower-case letters, digits, - or _, beginning with a letter or digit"
MAX_CLIENTS = 256
PREFIX = "agentos-mcp"  # of a token, so that scanners for secrets recognize one
USE_SECONDS = 60.0  # after which a further use is recorded again

Transport = Literal["stdio", "http"]
Elicitation = Literal["off", "decides"]


class ClientError(ValueError):
    """An entry that can't be made or read; the text says why and what to do."""


class ClientEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One MCP client. To the kernel it is the guest ``mcp:NAME``.

    ``level`` is a level or a permission set of the configuration file; ``permissions`` is a set of its own, as in
    HELLO; one of them is given. ``elicitation="decides"``: an answer in the client's own window decides an approval.
    ``token_sha256`` is in hex, of an ``http`` client only; ``created`` is seconds of Unix time.
    """

    name: str
    transport: Transport
    created: float
    level: str | None = None
    permissions: Mapping[str, Any] | None = None
    elicitation: Elicitation = "off"
    token_sha256: str | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        if (self.level is None) == (self.permissions is None):
            raise ClientError("an entry has either a level or permissions")
        if (self.transport == "http") != (self.token_sha256 is not None):
            raise ClientError("a client over HTTP has a token, and no other has one")
        if self.transport == "http" and self.elicitation != "off":
            raise ClientError("elicitation decides nothing over HTTP: its client may be a program without a person")

    @property
    def guest(self) -> str:
        """Its name in the kernel: in audit, events and `agentos ps`."""
        return f"mcp:{self.name}"

    @property
    def rights(self) -> str:
        """Its rights for people: the level or set, or that it has a set of its own."""
        return self.level or "own set"


learn(ClientEntry)


def check_name(name: str) -> None:
    """Raise :class:`ClientError` unless this can name a client, and so its file."""
    if not NAME.fullmatch(name):
        raise ClientError(f"name: expected {NAME_RULE}, got {name!r}")


def make_token(name: str) -> tuple[str, str]:
    """A new token for the client of this name, and what is kept of it."""
    token = f"{PREFIX}.{name}.{secrets.token_urlsafe(32)}"
    return token, digest(token)


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def create(state_dir: Path, entry: ClientEntry) -> None:
    """Store a new entry. Raises :class:`ClientError` if there is one of its name, or too many."""
    with _held(state_dir) as place:
        if len(_names(place)) >= MAX_CLIENTS:
            raise ClientError(f"there are {MAX_CLIENTS} MCP clients already: remove one with `agentos mcp revoke NAME`")
        try:
            fd = open_file(_file(place, entry.name), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            raise ClientError(
                f"there is an MCP client {entry.name!r} already: remove it with `agentos mcp revoke {entry.name}`, "
                "or choose another name"
            ) from None
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(entry))
            file.flush()
            os.fsync(file.fileno())


def load(state_dir: Path, name: str) -> ClientEntry | None:
    """The entry of this name, if there is one. Raises :class:`ClientError` if its file is damaged."""
    check_name(name)
    if not _has_entries(state_dir):
        return None
    with _held(state_dir) as place:
        return _read(place, name)


def find_by_token(state_dir: Path, token: str) -> ClientEntry | None:
    """The HTTP client that has this token. A token names its client, so one file is read."""
    prefix, _, rest = token.partition(".")
    name = rest.partition(".")[0]
    if prefix != PREFIX or not NAME.fullmatch(name):
        return None
    entry = load(state_dir, name)
    known = entry.token_sha256 if entry is not None else None
    return entry if known is not None and hmac.compare_digest(known, digest(token)) else None


def is_current(state_dir: Path, entry: ClientEntry) -> bool:
    """Whether the entry still is as it was read; not if it was revoked, or made anew under its name."""
    try:
        return load(state_dir, entry.name) == entry
    except ClientError:
        return False


def list_entries(state_dir: Path) -> Sequence[tuple[ClientEntry, float | None]]:
    """All entries by name, each with its last use in Unix time, to about a minute; ``None`` for one never used."""
    if not _has_entries(state_dir):
        return []
    with _held(state_dir) as place:
        found = []
        for name in _names(place):
            with suppress(FileNotFoundError):
                if (entry := _read(place, name)) is not None:
                    found.append((entry, _last_use(place, name)))
        return found


def revoke(state_dir: Path, name: str) -> bool:
    """Remove an entry, damaged or not; returns whether there was one. Running servers end its sessions."""
    check_name(name)
    if not _has_entries(state_dir):
        return False
    with _held(state_dir) as place:
        _use_file(place, name).unlink(missing_ok=True)
        try:
            _file(place, name).unlink()
        except FileNotFoundError:
            return False
        return True


def record_use(state_dir: Path, name: str) -> None:
    """Note that the client was in use just now."""
    with _held(state_dir) as place:
        last = _last_use(place, name)
        if last is None or not 0 <= time.time() - last < USE_SECONDS:
            os.close(open_file(_use_file(place, name), os.O_WRONLY | os.O_CREAT))
            os.utime(_use_file(place, name))


def _has_entries(state_dir: Path) -> bool:
    """Whether there may be entries; to look for them creates no directory."""
    return state_dir.joinpath(*DIRECTORIES).is_dir()


@contextmanager
def _held(state_dir: Path) -> Iterator[Path]:
    with ExitStack() as held:
        place = held.enter_context(hold_directory(state_dir))
        for directory in DIRECTORIES:
            place = held.enter_context(hold_directory(place / directory))
        yield place


def _read(place: Path, name: str) -> ClientEntry | None:
    try:
        entry = read_json(_file(place, name), ClientEntry)
    except FileNotFoundError:
        return None
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise ClientError(f"the entry of the MCP client {name!r} is damaged ({error}): {_anew(name)}") from None
    if entry.name != name:
        raise ClientError(f"the file of the MCP client {name!r} has the entry of {entry.name!r}: {_anew(name)}")
    return entry


def _anew(name: str) -> str:
    return f"remove it with `agentos mcp revoke {name}` and make it anew"


def _names(place: Path) -> Sequence[str]:
    return sorted(found[:-5] for found in os.listdir(place) if found.endswith(".json") and NAME.fullmatch(found[:-5]))


def _file(place: Path, name: str) -> Path:
    return place / f"{name}.json"


def _use_file(place: Path, name: str) -> Path:
    return place / f"{name}.used"


def _last_use(place: Path, name: str) -> float | None:
    try:
        return _use_file(place, name).stat().st_mtime
    except FileNotFoundError:
        return None
