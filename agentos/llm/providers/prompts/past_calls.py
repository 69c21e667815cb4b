"""Names and ids of past tool calls as strict servers take them back. No I/O.

A model may call a tool by a name that no tool can have, such as ``exec<|channel|>commentary``, and a server may give
ids that another one refuses: too long, with other characters, or one twice. The agent sees them as they are; the vendor
gets 1 to 64 letters, digits, ``_`` and ``-``, and a result always has the id of its call.
"""

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Final

from attrs import evolve
from msgspec.structs import replace

from agentos.llm.answers.prompt_blocks import wrap_blocks
from agentos.llm.providers.provider import Message

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
ID: Final = NAME
UNKNOWN: Final = "unknown_tool"


def accepted_messages(messages: Sequence[Message]) -> Iterator[Message]:
    """The conversation with names and ids that every server takes; others stay as they are."""
    current: dict[str, str] = {}  # the id for the vendor, of the latest call with that id
    used = set[str]()
    for place, message in enumerate(messages):
        if message.calls:
            calls = []
            for number, call in enumerate(message.calls):
                id_ = call.id if ID.fullmatch(call.id) and call.id not in used else _make_id(call.id, place, number)
                used.add(id_)
                current[call.id] = id_
                calls.append(evolve(call, id=id_, name=accepted_name(call.name)))
            message = replace(message, calls=calls)
        elif message.answers is not None:
            given = message.answers
            answers = current.get(given) or (given if ID.fullmatch(given) else _make_id(given, 0, 0))
            message = replace(message, answers=answers)
        yield message


def split_system(messages: Sequence[Message]) -> tuple[list[str], list[Message]]:
    """The texts of the system messages at the beginning, and the conversation.

    A later system message stays in its place, but behind the results of calls that it stands among.
    """
    first = next((place for place, message in enumerate(messages) if message.role != "system"), len(messages))
    texts = [message.text for message in messages[:first] if message.text]
    conversation: list[Message] = []
    held: list[Message] = []
    open_calls = 0
    for message in messages[first:]:
        if message.role == "system":
            (held if open_calls else conversation).append(message)
            continue
        open_calls = max(0, open_calls - 1) if message.role == "tool" else 0
        if message.role != "tool":
            conversation += held
            held.clear()
            open_calls = len(message.calls)
        conversation.append(message)
        if not open_calls:
            conversation += held
            held.clear()
    return texts, [*conversation, *held]


def as_user(message: Message) -> Message:
    """A system message for vendors that take none within a conversation: the user's, and marked."""
    text = f"<system>\n{message.text}\n</system>"
    return replace(message, role="user", text=text, blocks=wrap_blocks(message.blocks, len("<system>\n"), len(text)))


def accepted_name(name: str) -> str:
    """The name of a tool in a past call, with ``_`` in place of what no name may have."""
    if NAME.fullmatch(name):
        return name
    return re.sub("[^A-Za-z0-9_-]+", "_", name)[:64].strip("_") or UNKNOWN


def _make_id(given: str, place: int, number: int) -> str:
    return "call_" + sha256(f"{place} {number} {given}".encode(errors="replace")).hexdigest()[:24]
