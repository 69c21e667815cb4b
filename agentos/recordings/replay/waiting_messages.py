"""The messages that waited in a recorded life's mailbox at a call, for an agent that goes on live from there."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import frozen

from agentos.access.foreign_messages import make_foreign
from agentos.kernel.caller import Caller
from agentos.recordings.format import Json, encode_line
from agentos.recordings.reader import RecordedCall
from agentos.services.mail.mailbox import Message
from agentos.services.mail.mailboxes import Mailboxes

from .switch import Switch

TYPES = {"id": int, "from_id": int, "from_name": str, "from_kind": str, "sent_at": float}  # that are used of a message
MAX_ID = 1 << 31
KINDS = ("operator", "agent", "guest", "kernel")
TRUSTED = ("operator", "kernel")  # kinds of senders that a program may obey: only a recording of this kernel names them


@frozen
class WaitingMessages:
    """Those that waited at the moment ``at``, in seconds since the epoch. ``later`` were sent after it.

    ``own``: the recording is this kernel's. In another one anyone may have written that the operator sent something.
    """

    at: float
    waiting: Sequence[Json]
    later: int
    own: bool = True

    @property
    def notes(self) -> Sequence[str]:
        """What isn't delivered, or comes from another sender, in sentences."""
        found = [f"messages that were sent later, which aren't delivered: {self.later}"] if self.later else []
        named = 0 if self.own else sum(one["from_kind"] in TRUSTED for one in self.waiting)
        more = [f"messages of the operator or the kernel, by a recording from elsewhere, come from a guest: {named}"]
        return found + (more if named else [])

    def put(self, mail: Mailboxes, caller: Caller, find: Callable[[Any], Any] = lambda recorded: recorded) -> None:
        """Deliver those that waited, with new ids; ``Busy`` if the mailbox is full.

        ``find`` has the present id or name of a sender.
        """
        box = mail.by_id(caller.id)
        for one in self.waiting:
            name, sent_at = one["from_name"], one["sent_at"]
            body, number = encode_line(one["message"]), next(mail.numbers)
            if self.own:
                born = time.monotonic() - max(self.at - sent_at, 0.0)
                box.put(Message(find(one["from_id"]), find(name), one["from_kind"], body, sent_at, born, number))
            else:
                box.put(make_foreign(name, body, sent_at, number))


def find_waiting(calls: Sequence[RecordedCall], switch: Switch, own: bool = True) -> WaitingMessages:
    """What a life has received after the last call that is answered, and was sent before it.

    What it never received isn't in its recording; what it held by a lease it has already.
    """
    at = min((call.at for call in calls if not switch.is_before(call)), default=0.0)
    had = {one["id"] for call in calls if switch.is_before(call) for one in list_messages(call)}
    found = {one["id"]: one for call in calls for one in list_messages(call)}
    new = [found[number] for number in sorted(found) if number not in had]
    waiting = [one for one in new if one["sent_at"] <= at]
    return WaitingMessages(at, waiting, len(new) - len(waiting), own)


def list_messages(call: RecordedCall) -> Iterator[Json]:
    """The messages in a reply of RECV that are what the kernel writes; a recording may have others."""
    found = (call.reply or {}).get("messages") if call.call == "RECV" else None
    for one in found if isinstance(found, list) else ():
        if isinstance(one, dict) and "message" in one and all(isinstance(one.get(key), TYPES[key]) for key in TYPES):
            is_possible = one["from_kind"] in KINDS and 0 <= one["from_id"] < MAX_ID and math.isfinite(one["sent_at"])
            if is_possible:
                yield one
