"""One caller's mailbox: bounded, oldest first, with leases and dead letters."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec
import trio
from attrs import define, field
from msgspec import Struct
from msgspec.structs import replace

from agentos.services.events import MessageReceived, Publish, discard
from agentos_sdk.errors import Busy

MAX_MESSAGES = 1000  # waiting and leased ones; and as many dead letters
MAX_BYTES = 16 << 20
MAX_BATCH_BYTES = 1 << 20  # of messages in one reply, however many were requested; a single larger one goes alone
KEPT_BYTES = 256  # that a kept message counts besides its body
MAX_ATTEMPTS = 5  # leases of a message that end without ACK, until it is a dead letter


class Message(Struct, frozen=True):
    """A message in a mailbox: ``body`` is encoded JSON, ``sent_at`` seconds since the epoch.

    Kept encoded, so that its size is known, a broadcast is stored once, and it is encoded only once. ``from_kind`` is
    the sender's kind when it sent the message; ``born`` is ``time.monotonic()`` at that time. ``attempt`` is how often
    it was handed out, ``family`` the account that is charged while it is kept, empty for the operator and the kernel.
    """

    from_id: int
    from_name: str
    from_kind: Literal["operator", "agent", "guest", "kernel"]
    body: bytes
    sent_at: float = msgspec.field(default_factory=time.time)
    born: float = msgspec.field(default_factory=time.monotonic)
    id: int = 0
    attempt: int = 0
    family: str = ""

    @property
    def age(self) -> float:
        """Seconds since it was sent, on the monotonic clock."""
        return time.monotonic() - self.born

    @property
    def cost(self) -> int:
        """Bytes that a kept one counts: however short it is, it takes memory and a row."""
        return len(self.body) + KEPT_BYTES


@define(eq=False)
class Lease:
    """A message that was handed out. ``ends`` is on Trio's clock; ``life`` is the mailbox's at that time."""

    message: Message
    ends: float
    life: int
    acknowledging: bool = False  # its removal is being written: it doesn't end now


@define(eq=False)
class Mailbox:
    """One caller's messages, oldest first. ``kept`` is the account whose they are in the database, None in memory."""

    id: int
    names: list[str]
    publish: Publish = discard
    kept: str | None = None
    messages: deque[Message] = field(factory=deque)  # that wait for a reader
    leases: dict[int, Lease] = field(factory=dict)  # by the message's id
    dead: deque[Message] = field(factory=deque)
    size: int = 0  # bytes of waiting and leased messages, and of those that are being written
    life: int = 0
    taken: int = 0  # messages, since the kernel started
    held: bool = False  # nothing is handed out: its owner is ending
    on_message: Callable[[], None] | None = None  # called when there are messages that no reader waits for
    _reserved: int = 0  # messages that are being written
    _readers: deque[trio.Event] = field(factory=deque)

    @property
    def name(self) -> str:
        """The sender name of its messages: the one registered last."""
        return self.names[-1] if self.names else self.kept or f"#{self.id}"

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in it or being written."""
        return not (self.messages or self.leases or self.dead or self._reserved)

    @property
    def count(self) -> int:
        """Messages that wait, are leased, or are being written."""
        return len(self.messages) + len(self.leases) + self._reserved

    def fits(self, size: int) -> bool:
        return self.count < MAX_MESSAGES and self.size + size <= MAX_BYTES

    def reserve(self, size: int) -> None:
        """Keep room for a message, until :meth:`unreserve` or :meth:`add`; ``Busy`` if the mailbox is full."""
        if not self.fits(size):
            raise Busy(
                f"the mailbox of {self.name} is full ({self.count} messages, {self.size} bytes): "
                "try again when it has read some"
            )
        self._reserved += 1
        self.size += size

    def unreserve(self, size: int) -> None:
        self._reserved -= 1
        self.size -= size

    def add(self, message: Message) -> None:
        """Add a message for which there is room, and publish that."""
        self._reserved -= 1
        self.messages.append(message)
        self._wake(1)
        self.publish(MessageReceived(self.id, self.name, message.from_id, message.from_name, len(message.body)))

    def put(self, message: Message) -> None:
        """Add a message, and publish that; ``Busy`` if the mailbox is full."""
        self.reserve(len(message.body))
        self.add(message)

    def take(self, limit: int) -> list[Message]:
        """Remove the oldest messages: at most ``limit`` and what fits in a batch, but at least one if there is any.

        Those of a sender that is held back stay. Each has counted the attempt.
        """
        held = self._held()
        taken: list[Message] = []
        passed: list[Message] = []
        size = 0
        while self.messages and len(taken) < limit and not self.held:
            if _is_held(self.messages[0], held):
                passed.append(self.messages.popleft())
                continue
            size += len(self.messages[0].body)
            if taken and size > MAX_BATCH_BYTES:
                break
            first = self.messages.popleft()
            taken.append(replace(first, attempt=first.attempt + 1))
        self.messages.extendleft(reversed(passed))
        self.size -= _size_of(taken)
        self.taken += len(taken)
        self._wake_one()
        return taken

    def put_back(self, messages: Sequence[Message]) -> None:
        """Undo :meth:`take`, even over the limit: nothing is lost."""
        self.taken -= len(messages)
        self.restore([replace(message, attempt=message.attempt - 1) for message in messages])

    def lease(self, messages: Iterable[Message], ends: float) -> list[Lease]:
        """Lease messages that were taken: they hold back later ones of their senders."""
        leases = [Lease(message, ends, self.life) for message in messages]
        for lease in leases:
            self.leases[lease.message.id] = lease
            self.size += len(lease.message.body)
        return leases

    def remove_leased(self, numbers: Iterable[int]) -> list[Message]:
        """End leases, and remove their messages; what they held back is readable."""
        removed = [self.leases.pop(number).message for number in numbers]
        self.size -= _size_of(removed)
        self._wake_one()
        return removed

    def has_lease(self, number: int, ends: float) -> bool:
        """Whether a message is leased until ``ends``, and isn't being acknowledged."""
        lease = self.leases.get(number)
        return lease is not None and lease.ends == ends and not lease.acknowledging

    def end_leases(self, numbers: Iterable[int]) -> list[Message]:
        """Give back what was leased, and return those that were handed out too often: they are dead letters now."""
        messages = self.remove_leased(numbers)
        dead = [message for message in messages if message.attempt >= MAX_ATTEMPTS]
        self.restore([message for message in messages if message.attempt < MAX_ATTEMPTS])
        self.dead.extend(dead)
        return dead

    def trim_dead(self) -> list[Message]:
        """Remove the oldest dead letters above the limits."""
        dropped, size = [], _size_of(self.dead)
        while len(self.dead) > MAX_MESSAGES or size > MAX_BYTES:
            dropped.append(self.dead.popleft())
            size -= len(dropped[-1].body)
        return dropped

    def drop(self, numbers: Iterable[int], *, dead: bool) -> list[Message]:
        """Remove waiting messages, or dead letters; those of other ids, and leased ones, stay."""
        wanted, found = set(numbers), self.dead if dead else self.messages
        dropped = [message for message in found if message.id in wanted]
        for message in dropped:
            found.remove(message)
        if not dead:
            self.size -= _size_of(dropped)
        return dropped

    def requeue(self, messages: Iterable[Message]) -> None:
        """Let what was a dead letter wait again, as if it had never been handed out; even over the limit."""
        self.restore([replace(message, attempt=0) for message in messages])

    def restore(self, messages: Sequence[Message]) -> None:
        """Let messages wait in the order of their ids, even over the limit."""
        self.messages = deque(sorted([*messages, *self.messages], key=lambda message: message.id))
        self.size += _size_of(messages)
        self._wake(len(messages))

    def release(self) -> None:
        """Hand out messages again."""
        self.held = False
        self._wake(len(self.messages))

    def _wake(self, count: int) -> None:
        """Wake a reader for each of these messages, or tell that there are none."""
        if self.held or not self._readers:
            if self.messages and self.on_message is not None:
                self.on_message()
            return
        for _ in range(min(count, len(self._readers))):
            self._readers.popleft().set()

    def _wake_one(self) -> None:
        """Wake a reader if there is a message for it, which wakes the next one: to look costs more than to be woken."""
        if self._readers and self.is_readable:
            self._wake(1)

    def _held(self) -> frozenset[int | str]:
        """Ids and names of the senders of leased messages."""
        if not self.leases:
            return frozenset()
        leased = [lease.message for lease in self.leases.values()]
        return frozenset(one for message in leased for one in (message.from_id, message.from_name))

    @property
    def is_readable(self) -> bool:
        """Whether a message waits that may be handed out: its sender isn't held back."""
        if self.held:
            return False
        if not self.leases:
            return bool(self.messages)
        held = self._held()
        return any(not _is_held(message, held) for message in self.messages)

    @property
    def readers(self) -> int:
        """How many calls wait for a message."""
        return len(self._readers)

    async def wait(self) -> None:
        """Return when there may be a message; readers queue in order, and one message wakes one reader."""
        while not self.is_readable:
            turn = trio.Event()
            self._readers.append(turn)
            try:
                await turn.wait()
            except trio.Cancelled:
                if turn.is_set() and self.messages:
                    self._wake(1)  # a reader cancelled after its wake-up passes it on
                raise
            finally:
                if turn in self._readers:
                    self._readers.remove(turn)


def _is_held(message: Message, held: frozenset[int | str]) -> bool:
    return message.from_id in held or message.from_name in held


def _size_of(messages: Iterable[Message]) -> int:
    return sum(len(message.body) for message in messages)
