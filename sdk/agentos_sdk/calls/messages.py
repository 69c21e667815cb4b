"""SEND, RECV, ACK, MAIL, BROADCAST and REGISTER: messages between agents."""

from collections.abc import Sequence
from typing import Literal

from agentos_sdk.encoding.codec import Seconds
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op

from .request import Number, Page, Request, SuccessfulReply


@record
class Sent(SuccessfulReply):
    """``delivered_to`` is the receiver's id."""

    delivered_to: int


@record
class Send(Request[Sent]):
    """Send a message to one mailbox; exactly one of ``to`` (an id or a name) and ``to_name``."""

    op = Op.SEND
    message: object
    to: int | str | None = None
    to_name: str | None = None


@record
class Message:
    """A received message. ``sent_at`` is seconds since the epoch, ``age_ms`` milliseconds since it was sent.

    ``id`` is no other message's in this state directory. ``attempt`` is 1 when it is handed out for the first time.
    ``from_`` repeats ``from_id`` under the original's name. ``from_kind`` is set by the kernel; ``from_name`` was
    chosen by the sender.
    """

    id: int
    attempt: int
    from_id: int
    from_: int
    from_name: str
    from_kind: Literal["operator", "agent", "guest", "kernel"]
    message: object
    sent_at: float
    age_ms: int


@record
class Received(SuccessfulReply):
    """The oldest messages, in the order they were sent (per sender)."""

    count: int
    messages: Sequence[Message]


@record
class Recv(Request[Received]):
    """Receive the oldest messages of the caller's mailbox, at most ``max``.

    Waits up to ``timeout`` seconds for the first. ``wait=False`` is the same as a timeout of 0. With ``lease``, in
    seconds from 1 to 3600, messages come back when it ends, or the caller's life does, unless ACK has removed them.
    """

    op = Op.RECV
    max: int = 10
    timeout: Seconds = Seconds(0.0)
    wait: bool = True
    lease: Seconds | None = None


@record
class Acknowledged(SuccessfulReply):
    """``acked`` messages were removed."""

    acked: int


@record
class Ack(Request[Acknowledged]):
    """Remove messages that the caller has leased, by their ``ids``.

    ``NotFound`` if the lease of some has ended; the others are removed, and ``details`` have ``acked`` and ``ids``.
    """

    op = Op.ACK
    ids: Sequence[Number]


@record
class KeptMessage:
    """A message in a mailbox; ``size`` is bytes, ``attempt`` how often it was handed out.

    ``leased``: it is handed out, for so many seconds from now.
    """

    id: int
    from_id: int
    from_name: str
    sent_at: float
    attempt: int
    size: int
    message: object
    leased: float | None = None


@record
class MailboxCounts:
    """What is in a mailbox: messages that wait, leased ones and dead letters; ``size`` of all, in bytes.

    ``kept``: it outlives the kernel. ``oldest_at``: when the oldest that waits or is leased was sent.
    """

    name: str
    kept: bool
    waiting: int
    leased: int
    dead: int
    size: int
    oldest_at: float | None


@record
class MailReply(SuccessfulReply):
    """``count`` of all messages; ``messages`` are the first ones after ``after``, for the operator alone.

    ``requeued`` and ``dropped``: of how many that was done. Without ``name`` ``mailboxes``, and ``count`` is theirs.
    """

    messages: Sequence[KeptMessage]
    count: int
    requeued: int = 0
    dropped: int = 0
    mailboxes: Sequence[MailboxCounts] = ()


@record
class Mail(Request[MailReply]):
    """List the messages that wait in the mailbox of ``name``, or its ``dead`` letters, without taking them.

    ``requeue`` lets dead letters of these ids wait again, ``drop`` removes messages. The operator sees contents and may
    change something; a parent sees how many its children have. A reply has at least one message, and at most 1 MiB.
    Without ``name``, for the operator: which mailboxes aren't empty, those with dead letters first, then the fullest.
    """

    op = Op.MAIL
    name: str | None = None
    dead: bool = False
    limit: Page = 50
    after: Number | None = None
    requeue: Sequence[Number] = ()
    drop: Sequence[Number] = ()


@record
class Delivered(SuccessfulReply):
    """``full`` lists the receivers that got nothing because their mailbox was full."""

    delivered_count: int
    full: Sequence[str] = ()


@record
class Broadcast(Request[Delivered]):
    """Send a message to all mailboxes."""

    op = Op.BROADCAST
    message: object
    include_self: bool = False


@record
class Registered(SuccessfulReply):
    """The caller can be reached by ``name`` from now on."""

    agent_id: int
    name: str


@record
class Register(Request[Registered]):
    """Add a name under which the caller's mailbox can be reached."""

    op = Op.REGISTER
    name: str
