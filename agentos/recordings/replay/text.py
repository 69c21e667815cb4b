"""Replays the text of RECORD_STATUS: its calls of state are done in a scratch scope and compared."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio
from attrs import define, field, frozen

from agentos.recordings.matching import list_differences
from agentos.services.state.spaces import GLOBAL
from agentos_sdk.encoding import codec
from agentos_sdk.errors import BadRequest
from agentos_sdk.opcodes import op_name

from .progress import Progress, describe_differences

MAX_ENTRIES = 100_000
ENTRIES_PER_TURN = 50  # between two checkpoints

Json = dict[str, Any]
Spaces = dict[tuple[int, str], dict[str, Any]]  # keys and values by caller and scope; GLOBAL belongs to all
SCOPES = ("session", "agent", "global")


@frozen
class Entry:
    """One recorded call of the caller ``agent``."""

    call: str
    agent: int
    request: Json
    reply: Json


def read_entries(text: str, where: str) -> Sequence[Entry]:
    """The entries of a recording. Raises ``BadRequest`` that begins with ``where``. Slow for a large one."""
    try:
        found = codec.parse(text.encode("utf-8", "surrogatepass"))
    except codec.Invalid as error:
        raise BadRequest(f"{where}: {error}") from None
    if not isinstance(found, list):
        raise BadRequest(f"{where}: expected a JSON array of recorded calls, got {type(found).__name__}")
    if not found:
        raise BadRequest(f"{where}: the recording is empty: it has no calls")
    if len(found) > MAX_ENTRIES:
        raise BadRequest(f"{where}: expected at most {MAX_ENTRIES} calls, got {len(found)}")
    return [_read_entry(one, f"{where}[{number}]") for number, one in enumerate(found)]


def _read_entry(value: Any, where: str) -> Entry:
    if not isinstance(value, dict):
        raise BadRequest(f"{where}: expected an object, got {type(value).__name__}")

    def take(name: str, kind: type, default: object) -> Any:
        given = value.get(name, default)
        if not isinstance(given, kind) or isinstance(given, bool):
            raise BadRequest(f"{where}.{name}: expected {_NAMES[kind]}, got {json.dumps(given):.80}")
        return given

    named = take("opcode_name", str, None) if "opcode_name" in value else op_name(take("opcode", int, None))
    return Entry(named, take("agent_id", int, 0), take("request", dict, {}), take("response", dict, {}))


_NAMES = {str: "text", int: "a whole number", dict: "an object"}


@define(eq=False)
class TextReplay:
    """Does the STORE, FETCH, DELETE and KEYS of a recording again, in a scope that nothing else has.

    A key that the recording reads before it was stored existed before: it gets the value that was read.
    """

    name = ""
    is_fork = False
    entries: Sequence[Entry]
    progress: Progress = field(factory=Progress)
    _spaces: Spaces = field(factory=dict)
    _known: set[tuple[int, str, str]] = field(factory=set)  # caller, scope and key of what was stored, read or deleted
    _timed: set[str] = field(factory=set)  # keys that had a time to live: they are there or not by the clock

    def __attrs_post_init__(self) -> None:
        self.progress.total = len(self.entries)

    async def run(self) -> None:
        doers: Mapping[str, Callable[[Entry], Json | None]] = {
            "STORE": self._store,
            "FETCH": self._fetch,
            "DELETE": self._delete,
            "KEYS": self._list,
        }
        for number, entry in enumerate(self.entries):
            if not number % ENTRIES_PER_TURN:
                await trio.lowlevel.checkpoint()
            do = doers.get(entry.call)
            done = do(entry) if do is not None and entry.reply.get("success") is True else None
            if done is None:
                self.progress.skipped += 1
                continue
            self.progress.replayed += 1
            recorded = {key: entry.reply.get(key) for key in done}
            if recorded != done:
                told = [each for key in done for each in list_differences(key, recorded[key], done[key])]
                lines = describe_differences(told)
                self.progress.divergence = "\n".join([f"call {number + 1}, {entry.call}", *lines])
                self.progress.verdict = "diverged"
                return
        self.progress.verdict = "identical"

    def _store(self, entry: Entry) -> Json | None:
        place, key = self._place(entry), entry.request.get("key")
        if place is None or not isinstance(key, str):
            return None
        self._space(place)[key] = entry.request.get("value")
        if entry.request.get("ttl") is not None:
            self._timed.add(key)
        self._known.add((*place, key))
        return {"key": key}

    def _fetch(self, entry: Entry) -> Json | None:
        key = entry.request.get("key")
        if not isinstance(key, str) or entry.request.get("agent") is not None:
            return None
        if key in self._timed or entry.reply.get("expires_in") is not None:
            return None
        exists, scope = entry.reply.get("exists") is True, entry.reply.get("scope")
        found = self._name(entry, scope) if exists else None
        if found is not None and (*found, key) not in self._known:
            self._space(found)[key] = entry.reply.get("value")
            self._known.add((*found, key))
        for place in self._places(entry):
            if key in self._space(place):
                return {"exists": True, "value": self._space(place)[key]}
        return {"exists": False, "value": None}

    def _delete(self, entry: Entry) -> Json | None:
        key = entry.request.get("key")
        if not isinstance(key, str) or key in self._timed:
            return None
        places, deleted = self._places(entry), False
        for place in places:
            if key in self._space(place):
                del self._space(place)[key]
                deleted = True
                break
        if not deleted and any((*place, key) not in self._known for place in places):
            return None  # it may have existed before
        self._known |= {(*place, key) for place in places}
        return {"deleted": deleted}

    def _list(self, entry: Entry) -> Json | None:
        """Of the keys only those are compared that the recording has told of."""
        prefix, listed = entry.request.get("prefix", ""), entry.reply.get("keys")
        if not isinstance(prefix, str) or not isinstance(listed, list) or entry.request.get("agent") is not None:
            return None
        if entry.reply.get("next") is not None or entry.request.get("after"):
            return None  # a page, and what else would stand on it isn't known
        places = self._places(entry)
        there = {key for place in places for key in self._space(place) if key.startswith(prefix)}
        known = {key for *place, key in self._known if tuple(place) in places}
        told = {key for key in listed if isinstance(key, str) and (key not in known or key in self._timed)}
        return {"keys": sorted(there - self._timed | told)}

    def _space(self, place: tuple[int, str]) -> dict[str, Any]:
        return self._spaces.setdefault(place, {})

    def _place(self, entry: Entry) -> tuple[int, str] | None:
        return self._name(entry, entry.request.get("scope", "global"))

    def _places(self, entry: Entry) -> list[tuple[int, str]]:
        """Where a key is looked for, in order."""
        scope = entry.request.get("scope")
        found = [self._name(entry, one) for one in (SCOPES if scope is None else (scope,))]
        return [place for place in found if place is not None]

    def _name(self, entry: Entry, scope: object) -> tuple[int, str] | None:
        if scope == "global":
            return (0, GLOBAL)
        return (entry.agent, scope) if isinstance(scope, str) and scope in SCOPES else None
