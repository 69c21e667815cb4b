"""A question as a cassette records and finds it: plain JSON, its digests, and how two of them differ.

What decides the answer is recorded: model, instructions, messages, tools, schema and sampling. What the kernel decides
anew at each run isn't: the limit of tokens, which depends on budgets, marks and keys of prompt caches.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, Protocol, TypeVar

from attrs import frozen
from msgspec.structs import asdict

from agentos.llm.providers.provider import Message, Question
from agentos.services.differences import Difference, find_difference, shorten

MASKS: Mapping[str, str] = {
    "uuid": r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b",
    "time": r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?\b",
    "date": r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? (?:\d{1,2} )?"
    r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*(?: +\d{1,2})?(?:,? \d{4})?\b",
    "clock": r"\b\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?\b",
    "temporary": r"/tmp/[\w.@+-]+",
    "address": r"\b0x[0-9a-fA-F]{4,16}\b",
    "hex": r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,64}\b",
    "epoch": r"\b1[5-9]\d{8}(?:\d{3}|\.\d+)?\b",
    "duration": r"\b\d+(?:\.\d+)? ?(?:ns|us|µs|ms|s|sec|secs|seconds)\b",
    "size": r"\b\d+(?:\.\d+)? ?(?:bytes|[KMG]i?B?)\b",
}
"""What differs between two runs of the same program. docs/reference/configuration.md lists them."""
MASK = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in MASKS.items()))
PIECE = 64 << 10  # characters
_CUT = re.compile(r"""["\\{}()\[\]<>=;|\n]""")
_ESCAPE = re.compile(r"\\u([0-9a-f]{4})")

Recorded = dict[str, Any]
"""A question as JSON; see :func:`record_question`."""


@frozen
class Digests:
    """``exact`` of the question as it is, ``masked`` after :data:`MASKS`, ``place`` of its point in a conversation.

    Questions have the same place if model, tools, roles and the model's answers so far are the same; ``""``: there are
    no answers yet, so that the place says nothing.
    """

    exact: str
    masked: str
    place: str


def record_question(question: Question) -> Recorded:
    """What decides the answer, without what isn't set."""
    found: Recorded = {
        "model": question.model,
        "system": question.system,
        "messages": [_record_message(message) for message in question.messages],
        "tools": [
            {"name": tool.name, "description": str(tool.description), "parameters": tool.parameters}
            for tool in question.tools
        ],
        "tool_choice": question.tool_choice if question.tools else None,
        "temperature": question.temperature,
        "thinking_level": question.thinking_level,
        "stop": list(question.stop),
        "response_schema": question.response_schema,
        "embed": question.embed or None,
        "dimensions": question.dimensions,
        **asdict(question.sampling),
    }
    return {key: value for key, value in found.items() if value is not None and value != []}


def _record_message(message: Message) -> Recorded:
    found: Recorded = {
        "role": message.role,
        "text": message.text,
        "images": [
            {"mime_type": image.mime_type, "sha256": sha256(image.data).hexdigest()} for image in message.images
        ],
        "calls": [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.calls],
        "answers": message.answers,
    }
    return {key: value for key, value in found.items() if value not in (None, "", [])}


class MessageDigests:
    """The digests of messages, as they are and masked; of each only once, for questions share the messages before.

    ``mask`` makes equal what the caller's masks match, and returns other parts as they are.
    """

    def __init__(self, mask: Callable[[Any], Any] = lambda part: part) -> None:
        self._mask = mask
        self._made: dict[int, tuple[object, str, str]] = {}  # by the id of a message, which stands there to keep it

    def find(self, message: object) -> tuple[str, str]:
        if (found := self._made.get(id(message))) is None:
            found = self._made[id(message)] = message, *self.digest(message)
        return found[1:]

    def digest(self, part: object) -> tuple[str, str]:
        """The digests of any part of a question."""
        text, masked = write_canonical(part), self._mask(part)
        return _digest_text(text), digest_masked(text if masked is part else write_canonical(masked))


def digest_question(question: Recorded, known: MessageDigests | None = None) -> Digests:
    """The digests of a question; takes 30 ms for one of 1 MiB whose messages aren't ``known``."""
    messages, known = question.get("messages", ()), known or MessageDigests()
    rest = {key: value for key, value in question.items() if key != "messages"}
    parts = [known.digest(rest), *map(known.find, messages)]
    answers = [known.find(message)[0] for message in messages if message.get("role") == "assistant"]
    tools = [tool["name"] for tool in question.get("tools", ())]
    place = [question["model"], *tools, *(message["role"] for message in messages), *answers]
    exact, masked = zip(*parts, strict=True)
    return Digests(_digest(exact), _digest(masked), _digest(place) if answers else "")


class Asked(Protocol):
    """A recorded question with its digests."""

    @property
    def question(self) -> Recorded: ...

    @property
    def digests(self) -> Digests: ...


A = TypeVar("A", bound=Asked)


def find_nearest(question: Recorded, digests: Digests, among: Iterable[A]) -> A | None:
    """The one at the same place, else the one with the same model and most messages in common. Only to say why."""

    def likeness(other: A) -> tuple[bool, bool, int]:
        mine, others = question.get("messages", []), other.question.get("messages", [])
        common = sum(one == two for one, two in zip(mine, others, strict=False))
        at_place = bool(digests.place) and other.digests.place == digests.place
        return at_place, question.get("model") == other.question.get("model"), common - abs(len(mine) - len(others))

    return max(among, key=likeness, default=None)


def differences(asked: Recorded, recorded: Recorded) -> Iterator[Difference]:
    """Where two questions differ: the place for people, and what stands there in each."""
    for key in dict.fromkeys([*asked, *recorded]):
        mine, other = asked.get(key), recorded.get(key)
        if mine == other:
            continue
        if key in ("messages", "tools") and mine and other:
            yield from _differing_items(key.removesuffix("s"), mine, other)
        else:
            yield _differing_text(key, mine, other)


def _differing_items(name: str, asked: Sequence[Recorded], recorded: Sequence[Recorded]) -> Iterator[Difference]:
    for number, (mine, other) in enumerate(zip(asked, recorded, strict=False), 1):
        for key in dict.fromkeys([*mine, *other]):
            if mine.get(key) != other.get(key):
                what = other.get("name", "") or other.get("role", "")
                yield _differing_text(f"{name} {number} ({what}) {key}", mine.get(key), other.get(key))
    if len(asked) != len(recorded):
        yield f"the number of {name}s", str(len(asked)), str(len(recorded))


def _differing_text(where: str, mine: object, other: object) -> Difference:
    if isinstance(mine, str) and isinstance(other, str):
        return find_difference(where, mine, other)
    return where, shorten(write_canonical(mine)), shorten(write_canonical(other))


def write_canonical(value: object) -> str:
    """The same text for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _digest(parts: Sequence[str]) -> str:
    return sha256("\n".join(parts).encode()).hexdigest()


def _digest_text(text: str) -> str:
    return sha256(text.encode()).hexdigest()


@lru_cache(maxsize=4096)  # each question repeats the messages of the one before
def digest_masked(text: str) -> str:
    """The digest of canonical JSON in which what :data:`MASKS` cover is the same."""
    pieces = cut_text(read_escapes(text))
    return _digest_text("".join(MASK.sub(lambda found: f"<{found.lastgroup}>", piece) for piece in pieces))


def find_masked(text: str) -> Iterator[re.Match[str]]:
    """What :data:`MASKS` cover in canonical JSON."""
    return (found for piece in cut_text(read_escapes(text)) for found in MASK.finditer(piece))


def split_masked(text: str) -> Iterator[tuple[str | None, str]]:
    """A text in pieces, each behind the name of the mask that covers it; None if none does."""
    for piece in cut_text(text):
        at = 0
        for found in MASK.finditer(piece):
            yield None, piece[at : found.start()]
            yield found.lastgroup, found.group()
            at = found.end()
        yield None, piece[at:]


def read_escapes(text: str) -> str:
    """JSON with the characters that escapes stand for: the ``n`` of a line's end is no part of the word behind it.

    Quotes and backslashes stay escaped, so that different texts stay different.
    """
    for escape, character in (("\\n", "\n"), ("\\t", "\t"), ("\\r", "\r")):
        text = text.replace(escape, character)
    return _ESCAPE.sub(_read_escape, text) if "\\u" in text else text


def _read_escape(found: re.Match[str]) -> str:
    character = chr(int(found[1], 16))
    return found[0] if "\ud800" <= character <= "\udfff" else character  # half of a character, or no character


def cut_text(text: str) -> Iterator[str]:
    """A text in pieces that can be masked one by one; a pattern takes a second for 1 MiB, in which nothing else runs.

    It is cut after a character that is no part of a word or a mask; one of 256 KiB without any is cut anywhere.
    """
    at = 0
    while at < len(text):
        found = _CUT.search(text, at + PIECE, at + 4 * PIECE)
        end = found.end() if found is not None else at + 4 * PIECE
        yield text[at:end]
        at = end
