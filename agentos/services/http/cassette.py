"""A HAR file as a cassette: recorded responses for the HTTP calls of agents, in place of connections.

It stands where a pool of connections would: rights, secrets, budgets, redirects and the audit log are real. What must
stay true: a request that isn't recorded gets no response and nothing is sent; among equal requests the n-th gets the
n-th response. docs/decisions/0119.
"""

import json
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl

import trio
from attrs import Factory, define, field

from agentos.services.differences import Difference, Misses, find_difference, shorten
from agentos.threads import Limiter, run_in_thread
from agentos_sdk.encoding import codec
from agentos_sdk.errors import Unavailable

from .egress import JudgeAddress
from .har import Entry, RecordedResponse, read_har
from .request import Headers, Hop

log = logging.getLogger(__name__)

MAX_LISTED = 10  # entries in one message
MAX_JSON = 256 << 10  # bytes of a body that is compared as JSON; longer ones are by their bytes
MAX_COMPARED = 200  # characters of a target, to find the nearest one
MAX_NAME = 40  # characters of a name in a message
PART_BYTES = 64 << 10


class Key(NamedTuple):
    """What decides the response. Two bodies of JSON are equal if their values are."""

    method: str
    origin: tuple[str, str, int]
    target: str
    body: bytes | None  # its digest; None for a body that isn't in the file


class RecordedExchange:
    """A recorded response, in the form of an exchange on a connection."""

    def __init__(self, response: RecordedResponse) -> None:
        self.status, self.headers = response.status, [*response.headers]
        self._body, self._at = response.body, 0

    async def next_part(self) -> bytes:
        """The next bytes of the body; none at its end."""
        await trio.lowlevel.checkpoint()
        part = self._body[self._at : self._at + PART_BYTES]
        self._at += len(part)
        return part


@define(eq=False)
class Cassette:
    """The recorded responses of a file, read before any agent begins: one that can write to it changes nothing."""

    path: Path
    entries: Sequence[Entry]
    _by_key: Mapping[Key, list[Entry]]
    _asked: Counter[Key] = field(factory=Counter)
    _misses: Misses = Factory(lambda self: Misses(self.path, log), takes_self=True)
    _explaining: Limiter = field(factory=lambda: Limiter(1))  # each takes several times the memory of the bodies

    @classmethod
    def read(cls, path: Path) -> "Cassette":
        """Read the file, and log what of it no agent gets. Raises :class:`~.har.BadHar`. Blocks."""
        found, by_key = read_har(path), defaultdict[Key, list[Entry]](list)
        if found.left_out:
            log.info("cassette %s: no HTTP call can ask for %s: left out", path, name_entries(found.left_out))
        if found.credentials:
            log.warning(
                "cassette %s: credentials are in headers of %s: no agent gets them, but whoever has the file does",
                path,
                name_entries(found.credentials),
            )
        for entry in found.entries:
            by_key[make_key(entry.hop, entry.body)].append(entry)
        return cls(path, found.entries, dict(by_key))

    @asynccontextmanager
    async def send(
        self, hop: Hop, headers: Headers, body: bytes, judge: JudgeAddress
    ) -> AsyncIterator[RecordedExchange]:
        """The recorded response to a request. Raises ``Unavailable``."""
        key = await run_in_thread(make_key, hop, body)
        entry = self._find(key)
        if entry is None:
            why = await run_in_thread(self._explain_miss, key, hop, body, limiter=self._explaining)
            raise Unavailable(f"the cassette {self.path.name} has no response to this request: {why}")
        if entry.response.missing is not None:
            raise Unavailable(
                f"the cassette {self.path.name} has this request as entry {entry.number}, but {entry.response.missing}"
            )
        yield RecordedExchange(entry.response)

    def close(self) -> None:
        """Say which responses weren't used."""
        unused = [entry.number for entry in self.entries if not entry.used]
        if unused:
            log.warning(
                "cassette %s: %d of %d responses were not used: %s",
                self.path,
                len(unused),
                len(self.entries),
                name_entries(unused),
            )

    def _find(self, key: Key) -> Entry | None:
        """The first unused entry of an equal request, which is used then."""
        if key not in self._by_key:
            return None
        self._asked[key] += 1
        entry = next((entry for entry in self._by_key[key] if not entry.used), None)
        if entry is not None:
            entry.used = True
        return entry

    def _explain_miss(self, key: Key, hop: Hop, body: bytes) -> str:
        """Why there is no response: a sentence for the caller, which doesn't have recorded words."""
        if key in self._by_key:
            return f"asked {self._asked[key]} times, recorded {len(self._by_key[key])}"
        nearest = self._find_nearest(key, hop)
        if nearest is None:
            return f"nothing is recorded of {hop.destination.scheme}://{hop.host}"
        return self._misses.tell(nearest.number, [*list_differences(hop, body, nearest)])

    def _find_nearest(self, key: Key, hop: Hop) -> Entry | None:
        """Of the same origin the one with most in common. Only to say why."""

        def likeness(entry: Entry) -> tuple[bool, bool, bool, int]:
            other = entry.hop
            pairs = zip(other.target[:MAX_COMPARED], hop.target, strict=False)
            return (
                other.destination.path == hop.destination.path,
                other.destination.method == hop.destination.method,
                other.target == hop.target,
                sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)),
            )

        return max((entry for entry in self.entries if entry.hop.origin == key.origin), key=likeness, default=None)


def name_entries(numbers: Sequence[int]) -> str:
    """Entries by their numbers, the first ones."""
    named = ", ".join(str(number) for number in numbers[:MAX_LISTED])
    return f"entries {named}{', …' * (len(numbers) > MAX_LISTED)}"


def make_key(hop: Hop, body: bytes | None) -> Key:
    """The key of a request. Takes up to 10 ms for a body of JSON."""
    digest = None
    if body is not None:
        value = _parse(body)
        digest = sha256(_canonical(value).encode() if value is not None else body).digest()
    return Key(hop.destination.method or "GET", hop.origin, hop.target, digest)


def list_differences(hop: Hop, body: bytes, recorded: Entry) -> Iterator[Difference]:
    """Where a request differs from a recorded one of its origin. Names are of what is asked for."""
    mine, other = hop.destination, recorded.hop.destination
    for where, asked, there in (("method", mine.method, other.method), ("path", mine.path, other.path)):
        if asked != there:
            yield find_difference(where, asked or "", there or "")
    queries = [each.target.partition("?")[2] for each in (hop, recorded.hop)]
    if queries[0] != queries[1]:
        yield from _differing_fields("query", *map(_read_query, queries)) or [find_difference("query", *queries)]
    if recorded.body is None:
        yield "body", f"{len(body)} bytes", "not in the file"
        return
    value, kept = _parse(body), _parse(recorded.body)
    if isinstance(value, dict) and isinstance(kept, dict):
        yield from _differing_fields("body", _write_values(value), _write_values(kept))
    elif _canonical(value) != _canonical(kept) or (value is None and body != recorded.body):
        try:
            yield find_difference("body", body.decode(), recorded.body.decode())
        except UnicodeDecodeError:
            yield "body", f"{len(body)} bytes", f"{len(recorded.body)} bytes"


def _differing_fields(what: str, asked: Mapping[str, str], recorded: Mapping[str, str]) -> list[Difference]:
    found = [
        (f"{what} {_quote_name(name)}", shorten(text), shorten(recorded.get(name, "(nothing)")))
        for name, text in asked.items()
        if recorded.get(name) != text
    ]
    lacks = [name for name in recorded if name not in asked]
    if lacks:
        found.append((f"{what}: {len(lacks)} recorded fields are missing", "(nothing)", shorten(", ".join(lacks))))
    return found


def _quote_name(name: str) -> str:
    return repr(name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}…")


def _read_query(query: str) -> Mapping[str, str]:
    fields = defaultdict[str, list[str]](list)
    for name, value in parse_qsl(query, keep_blank_values=True):
        fields[name].append(value)
    return {name: ", ".join(values) for name, values in fields.items()}


def _write_values(fields: Mapping[str, object]) -> Mapping[str, str]:
    return {name: _canonical(value) for name, value in fields.items()}


def _parse(body: bytes) -> object:
    """The value of an object or array of JSON; None for anything else."""
    if len(body) > MAX_JSON or body.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return codec.parse(body)
    except (ValueError, RecursionError):
        return None


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
