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

from .provider import Message

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


def accepted_name(name: str) -> str:
    """The name of a tool in a past call, with ``_`` in place of what no name may have."""
    if NAME.fullmatch(name):
        return name
    return re.sub("[^A-Za-z0-9_-]+", "_", name)[:64].strip("_") or UNKNOWN


def _make_id(given: str, place: int, number: int) -> str:
    return "call_" + sha256(f"{place} {number} {given}".encode(errors="replace")).hexdigest()[:24]
