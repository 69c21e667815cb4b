"""How many calls may wait for a person: a bound for each caller, for its family, and for all."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from agentos.kernel.caller import Caller
from agentos.kernel.ports import Question

from .entries import Entry

MAX_OF_CALLER: Final = 16  # entries of one caller
MAX_ELICITED: Final = 4  # of these, questions of MCP servers: the caller's own calls keep their room
MAX_OF_FAMILY: Final = 32  # of an agent with all its descendants, of all connections of a guest
KEPT_FOR_HEAD: Final = 8  # of these, which its descendants can't take
MAX_ENTRIES = 1000  # and as many tickets


def make_room(
    entries: Mapping[int, Entry], tickets: int, caller: Caller, question: Question, drop: Callable[[Entry], None]
) -> str | None:
    """Drop entries that can't be allowed any more as far as needed; returns why this caller can have no further one.

    ``entries`` are all, without those that are dropped; ``tickets`` is how many there are.
    """
    own = [entry for entry in entries.values() if entry.caller is caller]
    if question.call == "ELICIT" and sum(entry.pending.call == "ELICIT" for entry in own) >= MAX_ELICITED:
        return f"{MAX_ELICITED} questions of MCP servers to {caller.name} wait for a person already, and more don't"
    relatives = [entry for entry in entries.values() if caller.family and entry.family == caller.family]
    family, most = relatives, MAX_OF_FAMILY
    if not _is_head(caller):
        family = [entry for entry in relatives if entry.caller is not None and not _is_head(entry.caller)]
        most -= KEPT_FOR_HEAD
    if len(own) >= MAX_OF_CALLER:
        if not _drop_gone(own, drop):
            return f"{MAX_OF_CALLER} calls of {caller.name} wait for a person already, and more don't"
    elif len(family) >= most and not _drop_gone(family, drop):
        return f"{most} calls of {caller.name} and its relatives wait for a person already, and more don't"
    if max(len(entries), tickets) >= MAX_ENTRIES and not _drop_gone(own, drop):
        return f"{MAX_ENTRIES} calls wait for a person already, and more don't"
    return None


def _drop_gone(entries: Sequence[Entry], drop: Callable[[Entry], None]) -> bool:
    """Drop the oldest of these that can't be allowed any more; whether there is one."""
    for entry in entries:
        if entry.state == "waiting" and not entry.pending.caller_present:
            drop(entry)
            return True
    return False


def _is_head(caller: Caller) -> bool:
    """Whether the caller is the guest, or the agent, that its family is named after."""
    return caller.kind == "guest" or caller.family == f"agent {caller.id}"
