"""Tool calls of an answer: joins their pieces however a server numbers them, and parses their arguments.

Arguments that are no JSON object are passed on as the model's text: agents tell the model, which makes the call again.
The sending server is not trusted: sizes, counts and nesting depth are limited.
"""

import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import define, field

from agentos_sdk.encoding import codec
from agentos_sdk.encoding.characters import join_surrogates, join_surrogates_in
from agentos_sdk.encoding.codec import Text
from agentos_sdk.values import ToolCall

from .malformed import MAX_EVENT, MalformedResponse, parse_json

MAX_CALLS = 1000
MAX_HEADS = 4 << 20  # characters of the ids, names and signatures of all calls
MAX_ARGUMENT_DEPTH = (
    codec.MAX_DEPTH - 5
)  # nesting of a tool's arguments; a later request has to hold them when they are sent back
GENERATED_ID_PREFIX = "call-of-agentos-"  # prefix of the tool call ids that we generate when the vendor sent none
INVALID_JSON = "INVALID_JSON"  # the name that Anthropic proposes for text in place of arguments

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)  # of JSON, also with raw line breaks in it
_CONTROL = re.compile(r"[\x00-\x1f]")


@define(eq=False)
class PartialCall:
    """A tool call of which arguments are still arriving, as pieces of JSON. ``batch`` is the event it began in."""

    id: str
    name: str = ""
    batch: int = 0
    signature: str | None = None
    arguments: list[str] = field(factory=list)

    @property
    def is_whole(self) -> bool:
        return parse_arguments("".join(self.arguments)) is not None and any(map(str.strip, self.arguments))


@define(eq=False)
class CalledTools:
    """The calls of one answer, whole ones and those that arrive in pieces."""

    whole: list[ToolCall] = field(factory=list)
    batch: int = 0  # number of the event that is being parsed
    _partial: list[PartialCall] = field(factory=list)
    _by_key: dict[tuple[int | None, str], PartialCall] = field(factory=dict)  # the latest with that index; "": any id
    _size: int = 0  # characters of arguments
    _heads: int = 0  # characters of ids, names and signatures

    def __bool__(self) -> bool:
        return bool(self.whole or self._partial)

    def add(self, call: ToolCall) -> None:
        """Add a complete tool call."""
        self.whole.append(call)
        self._count(len(call.id) + len(call.name) + len(call.signature or ""))

    def add_piece(self, index: int | None, id_: str, name: str, arguments: str, signature: str | None = None) -> None:
        """Append a piece to the tool call it belongs to.

        Some servers don't number the calls and some give all of them the same number: then the id tells them apart. If
        there is none, or all have the same, a new call begins with a name after a call that is whole.
        """
        partial = self._by_key.get((index, id_))
        if partial is None or self._begins_another(partial, index, id_, name, arguments):
            partial = self._by_key[index, ""] = self._by_key[index, id_] = PartialCall(id_, batch=self.batch)
            self._partial.append(partial)
            self._count(len(id_))
        if not partial.name or (name not in ("", partial.name) and not id_ and not any(partial.arguments)):
            partial.name += name  # some servers send it in pieces, others repeat it
            self._count(len(name))
        if signature:
            self._count(len(signature))
        partial.signature = signature or partial.signature
        partial.arguments.append(arguments)
        self._size += len(arguments)
        if self._size > MAX_EVENT:
            raise MalformedResponse(f"called tools with more than {MAX_EVENT >> 20} MiB of arguments")

    def _begins_another(self, last: PartialCall, index: int | None, id_: str, name: str, arguments: str) -> bool:
        if not name or (index is not None and id_):
            return False
        if index is not None:
            return bool(arguments.strip()) and last.is_whole
        is_repeated = id_ and last.name == name and last.batch != self.batch
        return not is_repeated or (bool(arguments.strip()) and last.is_whole)

    def _count(self, size: int) -> None:
        self._heads += size
        if len(self.whole) + len(self._partial) > MAX_CALLS:
            raise MalformedResponse(f"called more than {MAX_CALLS} tools at once")
        if self._heads > MAX_HEADS:
            raise MalformedResponse(f"called tools with more than {MAX_HEADS >> 20} MiB of ids, names and signatures")

    def finish(self) -> Iterator[ToolCall]:
        """All calls, each with an id of its own."""
        ids = set[str]()
        calls: Sequence[ToolCall | PartialCall] = [*self.whole, *self._partial]
        for call in calls:
            id_ = join_surrogates(call.id)
            if not id_ or id_ in ids:
                id_ = new_id()
            ids.add(id_)
            if isinstance(call, ToolCall):
                arguments = join_surrogates_in(call.arguments)
            else:
                arguments = read_arguments("".join(call.arguments))
            yield ToolCall(id_, join_surrogates(call.name), arguments, call.signature)


def read_arguments(text: str) -> Mapping[str, Any] | Text:
    """Arguments as a model wrote them: the text itself if it is no JSON object."""
    parsed = parse_arguments(text)
    return Text(join_surrogates(text)) if parsed is None else parsed


def object_of(arguments: Mapping[str, Any] | Text) -> dict[str, Any]:
    """Arguments for a vendor that takes only objects."""
    return {INVALID_JSON: arguments} if isinstance(arguments, str) else dict(arguments)


def arguments_of(given: Mapping[str, Any]) -> Mapping[str, Any] | Text:
    """The arguments of which :func:`object_of` made an object."""
    text = given.get(INVALID_JSON) if len(given) == 1 else None
    return Text(text) if isinstance(text, str) else given


def parse_arguments(text: str) -> Mapping[str, Any] | None:
    """Parse the arguments of a tool call; ``None`` if they can't be used for a call.

    Models write raw line breaks into strings, servers encode twice: the meaning of both is plain.
    """
    text = join_surrogates(text).strip()
    try:
        arguments = parse_json(text.encode() or b"{}")
    except (ValueError, MalformedResponse):
        try:
            arguments = parse_json(_STRING.sub(_escape_controls, text).encode())
        except (ValueError, MalformedResponse):
            return None
    if isinstance(arguments, str) and arguments.lstrip().startswith("{"):
        return parse_arguments(arguments)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict) or (
        text.count("[") + text.count("{") > MAX_ARGUMENT_DEPTH and codec.is_deeper(arguments, MAX_ARGUMENT_DEPTH)
    ):
        return None
    found: Mapping[str, Any] = join_surrogates_in(arguments) if "\\u" in text else arguments
    return found


def _escape_controls(string: re.Match[str]) -> str:
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", string[0])


def arguments_text(value: object) -> str:
    """Arguments as JSON: some servers send the object itself rather than its text."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if not isinstance(value, dict | list):
        raise MalformedResponse("sent arguments that are no text")
    return json.dumps(value, separators=(",", ":"))


def index_of(value: object) -> int | None:
    """The number of a call or block, also if it is text; None if it has none."""
    if isinstance(value, str) and re.fullmatch("[0-9]{1,6}", value):
        return int(value)
    return value if type(value) is int else None


def new_id() -> str:
    """A generated id for a tool call to which the vendor gave none."""
    return GENERATED_ID_PREFIX + secrets.token_hex(8)
