"""Bounded mailboxes: messages between agents, kept until they are read."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import msgspec
import trio
from attrs import define, field
from msgspec import Struct

from agentos_sdk.encoding import codec
from agentos_sdk.errors import AlreadyExists, BadRequest, Busy, CallError, NotFound

from .events import AgentEscalated, Event, MessageReceived, Publish, discard

log = logging.getLogger(__name__)

KERNEL_ID, KERNEL = 0, "kernel"  # the sender of the kernel's own messages
MAX_MESSAGES = 1000
MAX_BYTES = 16 << 20
MAX_NAMES = 16  # names of one mailbox
MAX_BATCH_BYTES = 1 << 20  # of messages in one reply, however many were requested; a single larger one goes alone


class Message(Struct, frozen=True):
    """A message in a mailbox: ``body`` is encoded JSON, ``sent_at`` seconds since the epoch.

    Kept encoded, so that its size is known, a broadcast is stored once, and it is encoded only once. ``from_kind`` is
    the sender's kind when it sent the message; ``born`` is ``time.monotonic()`` at that time.
    """

    from_id: int
    from_name: str
    from_kind: Literal["operator", "agent", "guest", "kernel"]
    body: bytes
    sent_at: float = msgspec.field(default_factory=time.time)
    born: float = msgspec.field(default_factory=time.monotonic)

    @property
    def age(self) -> float:
        """Seconds since it was sent, on the monotonic clock."""
        return time.monotonic() - self.born


@define(eq=False)
class Mailbox:
    """One caller's messages, oldest first."""

    id: int
    names: list[str]
    publish: Publish = discard
    messages: deque[Message] = field(factory=deque)
    size: int = 0  # bytes
    taken: int = 0  # messages, since the kernel started
    held: bool = False  # nothing is handed out: its owner is ending
    on_message: Callable[[], None] | None = None  # called when there are messages that no reader waits for
    _readers: deque[trio.Event] = field(factory=deque)

    @property
    def name(self) -> str:
        """The sender name of its messages: the one registered last."""
        return self.names[-1] if self.names else f"#{self.id}"

    @property
    def is_readable(self) -> bool:
        """Whether there are messages, and they are handed out."""
        return bool(self.messages) and not self.held

    @property
    def readers(self) -> int:
        """How many calls wait for a message."""
        return len(self._readers)

    def fits(self, size: int) -> bool:
        return len(self.messages) < MAX_MESSAGES and self.size + size <= MAX_BYTES

    def put(self, message: Message) -> None:
        """Add a message, and publish that; ``Busy`` if the mailbox is full."""
        if not self.fits(len(message.body)):
            raise Busy(
                f"the mailbox of {self.name} is full ({len(self.messages)} messages, {self.size} bytes): "
                "try again when it has read some"
            )
        self.messages.append(message)
        self.size += len(message.body)
        if self._readers and not self.held:
            self._readers.popleft().set()
        elif self.on_message is not None:
            self.on_message()
        self.publish(MessageReceived(self.id, self.name, message.from_id, message.from_name, len(message.body)))

    def take(self, limit: int) -> list[Message]:
        """Remove the oldest messages: at most ``most`` and what fits in a batch, but at least one if there is any."""
        taken: list[Message] = []
        if self.held:
            return taken
        size = 0
        while self.messages and len(taken) < limit:
            size += len(self.messages[0].body)
            if taken and size > MAX_BATCH_BYTES:
                break
            taken.append(self.messages.popleft())
        self.size -= sum(len(letter.body) for letter in taken)
        self.taken += len(taken)
        return taken

    def put_back(self, messages: Sequence[Message]) -> None:
        """Undo :meth:`take`, even over the limit: nothing is lost."""
        self.messages.extendleft(reversed(messages))
        self.size += sum(len(letter.body) for letter in messages)
        self.taken -= len(messages)
        self._wake_readers(len(messages))

    def release(self) -> None:
        """Hand out messages again."""
        self.held = False
        self._wake_readers(len(self.messages))

    def _wake_readers(self, messages: int) -> None:
        if not self._readers and self.on_message is not None:
            self.on_message()
        for _ in range(min(messages, len(self._readers))):
            self._readers.popleft().set()

    async def wait(self) -> None:
        """Return when there may be a message; readers queue in order, and one message wakes one reader."""
        while not self.is_readable:
            turn = trio.Event()
            self._readers.append(turn)
            try:
                await turn.wait()
            except trio.Cancelled:
                if turn.is_set() and self.messages and self._readers:
                    self._readers.popleft().set()  # a reader cancelled after its wake-up passes it on
                raise
            finally:
                if turn in self._readers:
                    self._readers.remove(turn)


class Mailboxes:
    """All mailboxes, by id and by name."""

    def __init__(self, publish: Publish = discard) -> None:
        self.publish = publish
        self._by_id: dict[int, Mailbox] = {}
        self._by_name: dict[str, Mailbox] = {}

    def __iter__(self) -> Iterator[Mailbox]:
        return iter(self._by_id.values())

    def open(self, number: int, name: str | None = None) -> Mailbox:
        """Open a mailbox for the caller ``number``."""
        mailbox = self._by_id[number] = Mailbox(number, [], self.publish)
        if name is not None:
            self._by_name[name] = mailbox
            mailbox.names.append(name)
        return mailbox

    def close(self, number: int) -> None:
        """Remove the mailbox of a caller that has ended, with its unread messages."""
        mailbox = self._by_id.pop(number, None)
        if mailbox is not None:
            for name in mailbox.names:
                del self._by_name[name]

    def by_id(self, number: int) -> Mailbox:
        """The mailbox of a caller; ``NotFound`` if there is none."""
        found = self._by_id.get(number)
        if found is None:
            raise NotFound(f"no caller has the id {number}")
        return found

    def by_name(self, name: str) -> Mailbox:
        """The mailbox called ``name``; ``NotFound`` if there is none."""
        found = self._by_name.get(name)
        if found is None:
            raise NotFound(f"no caller is called {name!r}")
        return found

    def is_taken(self, name: str) -> bool:
        return name in self._by_name

    def register(self, number: int, name: str) -> None:
        """Add ``name`` to the mailbox of ``number``; ``AlreadyExists`` if another mailbox has it."""
        mailbox = self.by_id(number)
        owner = self._by_name.get(name)
        if owner is not None and owner is not mailbox:
            raise AlreadyExists(f"{name!r} is the name of the caller with id {owner.id}")
        if owner is None:
            if len(mailbox.names) >= MAX_NAMES:
                raise BadRequest(f"name: a caller has at most {MAX_NAMES} names")
            self._by_name[name] = mailbox
        else:
            mailbox.names.remove(name)
        mailbox.names.append(name)

    def post_all(self, message: Message, recipients: Iterable[Mailbox]) -> tuple[int, list[str]]:
        """Deliver to the mailboxes still open; returns the number of deliveries and the names of full mailboxes."""
        delivered, full = 0, []
        for mailbox in recipients:
            if self._by_id.get(mailbox.id) is not mailbox:
                continue
            if mailbox.fits(len(message.body)):
                mailbox.put(message)
                delivered += 1
            else:
                full.append(mailbox.name)
        return delivered, full

    def send_escalation(self, event: Event) -> None:
        """Tell the spawner of an agent that it was given up, unless the spawner's mailbox is full or closed."""
        if not isinstance(event, AgentEscalated) or event.spawner is None:
            return
        message = {
            "event": "AGENT_ESCALATED",
            "agent_id": event.agent_id,
            "name": event.name,
            "reason": event.reason,
        }
        try:
            self.by_id(event.spawner).put(Message(KERNEL_ID, KERNEL, "kernel", codec.encode(message)))
        except CallError as error:
            log.debug("%s: its spawner can't be told that it was given up: %s", event.name, error)
