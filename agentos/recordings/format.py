"""The files of a recording: its manifest, and the lines of its calls. docs/reference/recordings.md describes them."""

# A conversation repeats itself in each question, so plain lines of 200 turns take 90 MB. A question is written as what
# follows an earlier one of its life: ``as`` is the number of that call, ``first`` says how many of its messages come
# first, and keys that it doesn't have are that one's. Only digests of the last questions are kept for this.
# What must stay true: a line says nothing that a later one changes, so that all lines before a torn one can be read.
# docs/decisions/0107.

import base64
import json
import re
from collections import deque
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from agentos_sdk.encoding import codec
from agentos_sdk.encoding.nesting import count_containers, is_nested_deeper

FORMAT = 1
MANIFEST, CALLS = "recording.json", "calls.jsonl"
FORMER = "former.jsonl"  # the calls before, of a life that was too long to be kept whole
FILES = "files"  # what commands have changed, by the first number of their call
EMPTY = "empty"  # the start of a life in a workspace that is new each time
SUFFIX = ".recording"  # of a recording's directory
LOOKED_BACK = 8  # questions of a life among which the one is looked for that a question goes on with
MAX_LINE_BYTES = 64 << 20
MAX_DEPTH = 100  # levels of nested arrays and objects in a line
MAX_MESSAGES = 10_000  # of a question; the kernel takes 2,000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of a recording
LIFE = re.compile(r"(?:guest )?[A-Za-z0-9][A-Za-z0-9._#-]{0,99}/[0-9]{1,9}")
MAX_BODY_DEPTH = MAX_DEPTH - 4  # a body stands some levels deep in its line
MAX_PARTS = 10_000  # arrays and objects of a body that is read: they take 20 ms, which are the event loop's
MAX_LINE_PARTS = 250_000  # … of a line, in which each chunk is one
_FOREIGN = re.compile(r"[^A-Za-z0-9._#-]|\.\.+|^[^A-Za-z0-9]")

Json = dict[str, Any]


def plain_name(name: str) -> str:
    """A caller's name as a part of the name of a life or a recording."""
    return _FOREIGN.sub("-", name)[:90] or "-"


class Life(Struct, omit_defaults=True):
    """A life of an agent: ``life`` is ``NAME/NUMBER``. Times are seconds since the epoch; ``exit`` says how it ended.

    ``reason``: why it can't be replayed. ``start`` is the snapshot NAME@ID of what it began with, :data:`EMPTY` for an
    empty workspace, and None if that isn't kept; ``no_files`` says why. ``lost``: why what a command has changed isn't
    kept. ``partial``: not its calls from the first one on, or its caller is no agent. ``file_bytes`` are those of all
    its files, with the snapshot's. ``resumed`` is the recording of the life that it goes on with after a crash, of
    which it had ``answers`` replies. ``forked`` is RECORDING@NUMBER, the call before which a fork went live.
    ``hash_seed`` orders the sets of its Python program.
    """

    life: str
    agent: str
    began: float
    ended: float | None = None
    exit: str | None = None
    failed: bool = False
    replayable: bool = True
    reason: str | None = None
    partial: bool = False
    start: str | None = None
    no_files: str | None = None
    lost: str | None = None
    file_bytes: int = 0
    resumed: str | None = None
    answers: int = 0
    hash_seed: int | None = None
    forked: str | None = None

    def spoil(self, reason: str) -> None:
        """It can't be replayed; the first reason stays."""
        if self.replayable:
            self.replayable, self.reason = False, reason

    def leave_out(self, reason: str) -> None:
        """It is no whole life of a program: a replay of all lives leaves it out."""
        self.partial = True
        self.spoil(reason)


class AgentFacts(Struct, omit_defaults=True):
    """What a recorded agent is: its id, and how its program is started."""

    id: int
    command: list[str] | None = None
    python: str | None = None


class Manifest(Struct, omit_defaults=True):
    """``recording.json``. ``ended`` and ``reason`` are set when the recording has ended.

    ``automatic``: it is of one life, because its agent has ``record``, and may be removed when it is old. ``lacks``:
    what was left out when it was given away. ``mark``: see :mod:`.own`.
    """

    format: int = msgspec.field(default=FORMAT)
    version: str = ""
    name: str = ""
    began: float = 0.0
    ended: float | None = None
    reason: str | None = None
    automatic: bool = False
    agents: dict[str, AgentFacts] = {}
    lives: list[Life] = []
    masks: list[str] = []
    lacks: list[str] = []
    mark: str = ""

    def find_obstacle(self, life: Life) -> str | None:
        """Why one of its lives can't be replayed; None if it can be."""
        return (life.reason or self.reason or "it isn't replayable") if not life.replayable or self.reason else None


def encode_manifest(manifest: Manifest) -> bytes:
    """All keys that a reader may count on stand in it, also those that have their default."""
    whole = {"format": FORMAT, **msgspec.to_builtins(manifest)}
    lives = [{"replayable": True, **life} for life in whole.pop("lives", [])]
    return msgspec.json.format(msgspec.json.encode({**whole, "lives": lives}), indent=1) + b"\n"


def encode_line(line: object) -> bytes:
    """A line without its end. Half a surrogate pair, which an agent may send, is kept as an escape."""
    try:
        return msgspec.json.encode(line)
    except UnicodeEncodeError:
        return json.dumps(line, separators=(",", ":")).encode()


def read_body(body: bytes) -> Json:
    """A request or a reply as a JSON object; a body that is none, or that is dear to read, stands in ``base64``."""
    try:
        found = parse_json(body) if body and not is_dear(body) else None if body else {}
        if isinstance(found, dict):
            return found
    except (ValueError, RecursionError):
        pass
    return keep_bytes(body)


def is_dear(data: bytes) -> bool:
    """Whether JSON is nested too deep for a line, or has so many parts that reading it holds up the event loop."""
    parts = count_containers(data, MAX_BODY_DEPTH)
    return parts > MAX_PARTS or (parts > MAX_BODY_DEPTH and is_nested_deeper(data, MAX_BODY_DEPTH))


def read_question(body: bytes) -> Json:
    """The body of a THINK that wasn't read, which may have any form; in ``base64`` if lines of questions have another.

    Read back, it must be no question that goes on with another one.
    """
    found = read_body(body)
    messages = found.get("messages", [])
    is_plain = found.keys().isdisjoint(("as", "first")) and isinstance(messages, list)
    return found if is_plain and len(messages) <= MAX_MESSAGES else keep_bytes(body)


def keep_bytes(body: bytes) -> Json:
    return {"base64": base64.b64encode(body).decode()}


def write_body(body: Json) -> bytes:
    """The bytes of what :func:`read_body` has read; raises ``ValueError`` or ``TypeError``."""
    return base64.b64decode(body["base64"], validate=True) if body.keys() == {"base64"} else encode_line(body)


def parse_json(data: bytes) -> Any:
    """A JSON value, without numbers that aren't finite: no reply could have them. Raises ``ValueError``."""
    return codec.parse(data, MAX_DEPTH)


class _Written(Struct, frozen=True):
    """A question that has been written: its number, and the digests of its keys and of its messages."""

    number: int
    keys: dict[str, bytes]
    messages: list[bytes]


class Differences:
    """Writes the questions of one life as what follows an earlier one."""

    def __init__(self) -> None:
        self._written: deque[_Written] = deque(maxlen=LOOKED_BACK)

    def shorten(self, number: int, question: Json) -> Json:
        """The question of the call ``number`` as it is written."""
        messages = question.get("messages", [])
        keys = {key: _digest(value) for key, value in question.items() if key != "messages"}
        mine = _Written(number, keys, [_digest(message) for message in messages])
        best, common = None, 0
        for other in reversed(self._written):
            pairs = enumerate(zip(mine.messages, other.messages, strict=False))
            shorter = min(len(mine.messages), len(other.messages))
            same = next((at for at, (one, another) in pairs if one != another), shorter)
            if same > common:
                best, common = other, same
        self._written.append(mine)
        if best is None:
            return question
        changed = [
            key for key in {**question, **best.keys} if key != "messages" and keys.get(key) != best.keys.get(key)
        ]
        return {"as": best.number, "first": common, "messages": messages[common:]} | {
            key: question.get(key) for key in changed
        }


def _digest(value: object) -> bytes:
    return sha256(encode_line({"": value})).digest()[:16]
