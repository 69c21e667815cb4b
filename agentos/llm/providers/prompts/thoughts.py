"""Thoughts that a server of OpenAI's protocol requires back with the tool calls that came with them.

DeepSeek and Kimi send ``reasoning_content`` beside the calls, OpenRouter ``reasoning_details``, Gemini's OpenAI address
``extra_content`` within each call, and refuse the next question without them. They travel in the signatures of the
calls, as JSON: ``{"message": {field: value}, "call": {field: value}}``, the message's in the first call's. A signature
that is no JSON is Gemini's own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import define, evolve, field

from agentos.llm.answers.malformed import MalformedResponse
from agentos.llm.stream import compact_json
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.characters import join_surrogates, join_surrogates_in
from agentos_sdk.values import ToolCall

MAX_THOUGHTS: Final = 4 << 20  # characters of thoughts and their signatures, which are encoded without a pause
TEXTS: Final = ("reasoning_content", "reasoning")  # fields of a message, in pieces
LISTS: Final = ("reasoning_details", "thinking_blocks")  # fields of a message, whose items may come in pieces
OBJECTS: Final = ("extra_content", "provider_specific_fields")
MESSAGE_FIELDS: Final[Mapping[str, type]] = {
    **dict.fromkeys(TEXTS, str),
    **dict.fromkeys(LISTS, list),
    "extra_content": dict,
}
CALL_FIELDS: Final[Mapping[str, type]] = dict.fromkeys(OBJECTS, dict)
PIECES: Final = ("text", "summary", "thinking")  # of an item of a list


class WrongSignature(ValueError):
    """A conversation has a signature of a tool call that no vendor has made so."""

    def __init__(self) -> None:
        super().__init__("the signature of a tool call is not the one that came with it")


def read_signature(signature: str) -> Any:
    """The JSON of a signature; raises :class:`WrongSignature`."""
    try:
        found = codec.parse(signature.encode())
    except ValueError:
        raise WrongSignature from None
    return join_surrogates_in(found) if "\\u" in signature else found


@define(eq=False)
class Thoughts:
    """The fields of one message that may have to go back."""

    _texts: dict[str, list[str]] = field(factory=dict)
    _lists: dict[str, list[dict[str, Any]]] = field(factory=dict)
    _extra: dict[str, Any] = field(factory=dict)
    _size: int = 0  # characters

    def add(self, delta: Mapping[str, Any]) -> int:
        """Keep those fields of a piece of the message; returns how many characters of thoughts it has."""
        for name in TEXTS:
            if isinstance(text := delta.get(name), str):
                self._texts.setdefault(name, []).append(text)
                self._count(len(text))
        for name in LISTS:
            items = delta.get(name)
            for item in items if isinstance(items, list) else ():
                if isinstance(item, dict):
                    self._add_item(self._lists.setdefault(name, []), item)
        if isinstance(extra := delta.get("extra_content"), dict):
            self._extra |= extra
            self._count(len(compact_json(extra)))
        return max((len(text) for name in TEXTS if isinstance(text := delta.get(name), str)), default=0)

    def _add_item(self, items: list[dict[str, Any]], item: dict[str, Any]) -> None:
        self._count(len(compact_json(item)))
        last = items[-1] if items else {}
        if item.get("index") is None or any(last.get(name) != item.get(name) for name in ("index", "type")):
            items.append(dict(item))
            return
        for name, value in item.items():
            if name in PIECES and isinstance(value, str) and isinstance(last.get(name), str):
                last[name] += value
            elif value is not None:
                last[name] = value

    def _count(self, more: int) -> None:
        self._size += more
        if self._size > MAX_THOUGHTS:
            raise MalformedResponse(f"thinks more than {MAX_THOUGHTS >> 20} MiB")

    def sign(self, calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
        """The calls, the first with these thoughts in its signature."""
        fields: dict[str, Any] = {name: "".join(pieces) for name, pieces in self._texts.items()} | self._lists
        if self._extra:
            fields["extra_content"] = self._extra
        return sign_calls(fields, calls)


def sign_calls(message: Mapping[str, Any], calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
    """The calls of a message, the first with those fields of it in its signature, unless it has Claude's or them."""
    kept = {name: value for name, kind in MESSAGE_FIELDS.items() if isinstance(value := message.get(name), kind)}
    if not calls or not kept or (calls[0].signature or "").startswith(("[", '{"message"')):
        return calls
    first, *others = calls
    return [evolve(first, signature=join_signature(kept, call_fields(first.signature))), *others]


def sign_call(fields: Mapping[str, Any]) -> str | None:
    """The signature of a call with these fields; Gemini's alone is as Gemini's own address has it."""
    kept = {name: value for name in OBJECTS if isinstance(value := fields.get(name), dict) and value}
    match kept:
        case {"extra_content": {"google": {"thought_signature": str(signature), **more}, **others}} if (
            not more and not others and len(kept) == 1 and not signature.startswith(("{", "["))
        ):
            return join_surrogates(signature) or None
    return join_signature({}, kept) if kept else None


def join_signature(message: Mapping[str, Any], call: Mapping[str, Any]) -> str:
    parts = {name: join_surrogates_in(dict(each)) for name, each in (("message", message), ("call", call)) if each}
    return compact_json(parts)


def has_fields(signature: str | None) -> bool:
    """Whether a signature has fields of a message or a call, and isn't a vendor's own."""
    return signature is not None and signature.startswith(('{"message":', '{"call":'))


def message_fields(signature: str | None) -> Mapping[str, Any]:
    """The fields of the message in the signature of its first call; raises :class:`WrongSignature`."""
    return _fields(signature, "message", MESSAGE_FIELDS)


def call_fields(signature: str | None) -> Mapping[str, Any]:
    """The fields of a call in its signature. Claude's, a JSON array, has none."""
    if signature and not signature.startswith(("{", "[")):
        return {"extra_content": {"google": {"thought_signature": signature}}}
    return _fields(signature, "call", CALL_FIELDS)


def _fields(signature: str | None, part: str, kinds: Mapping[str, type]) -> Mapping[str, Any]:
    if not signature or not signature.startswith("{"):
        return {}
    found = read_signature(signature)
    fields = found.get(part, {}) if isinstance(found, dict) else None
    if not isinstance(fields, dict) or any(not isinstance(fields[name], kinds.get(name, ())) for name in fields):
        raise WrongSignature
    return fields
