"""SEND, RECV, BROADCAST and REGISTER: messages between agents."""

from collections.abc import Sequence
from typing import Literal

from agentos_sdk.encoding.codec import Seconds
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op

from .request import Request


@record
class Sent:
    """``delivered_to`` is the receiver's id."""

    success: bool = True
    delivered_to: int


@record
class Send(Request[Sent]):
    """Send a message to one mailbox; exactly one of ``to`` (an id or a name) and ``to_name``."""

    op = Op.SEND
    reply = Sent
    message: object
    to: int | str | None = None
    to_name: str | None = None


@record
class Message:
    """A received message. ``sent_at`` is seconds since the epoch, ``age_ms`` milliseconds since it was sent.

    ``from_`` repeats ``from_id`` under the original's name. ``from_kind`` is set by the kernel; ``from_name`` was
    chosen by the sender.
    """

    from_id: int
    from_: int
    from_name: str
    from_kind: Literal["operator", "agent", "guest", "kernel"]
    message: object
    sent_at: float
    age_ms: int


@record
class Received:
    """The oldest messages, in the order they were sent (per sender)."""

    success: bool = True
    count: int
    messages: Sequence[Message]


@record
class Recv(Request[Received]):
    """Receive the oldest messages of the caller's mailbox, at most ``max``.

    Waits up to ``timeout`` seconds for the first. ``wait=False`` is the same as a timeout of 0.
    """

    op = Op.RECV
    reply = Received
    max: int = 10
    timeout: Seconds = Seconds(0.0)
    wait: bool = True


@record
class Delivered:
    """``full`` lists the receivers that got nothing because their mailbox was full."""

    success: bool = True
    delivered_count: int
    full: Sequence[str] = ()


@record
class Broadcast(Request[Delivered]):
    """Send a message to all mailboxes."""

    op = Op.BROADCAST
    reply = Delivered
    message: object
    include_self: bool = False


@record
class Registered:
    """The caller can be reached by ``name`` from now on."""

    success: bool = True
    agent_id: int
    name: str


@record
class Register(Request[Registered]):
    """Add a name under which the caller's mailbox can be reached."""

    op = Op.REGISTER
    reply = Registered
    name: str
