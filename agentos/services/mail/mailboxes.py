"""All mailboxes, by id and name, and what makes messages outlive the kernel.

Messages to a mailbox that is kept are in the database before their sender hears that they were sent, and are removed
from it before their reader gets them, or with a lease when they are acknowledged. All of them are in memory, too. A
full disk is ``Unavailable``, and nothing has changed then. docs/decisions/0095.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from attrs import define, field
from msgspec.structs import replace
from outcome import Error

from agentos.services.events import AgentEscalated, AgentExited, KernelStopping, Publish, discard
from agentos_sdk.encoding import codec
from agentos_sdk.errors import AlreadyExists, BadRequest, Busy, CallError, NotFound

from . import rows
from .leases import Leases
from .mailbox import MAX_ATTEMPTS, MAX_BYTES, MAX_MESSAGES, Mailbox, Message
from .store import Done, MailStore, Written, present

log = logging.getLogger(__name__)

KERNEL_ID, KERNEL = 0, "kernel"  # the sender of the kernel's own messages
MAX_NAMES = 16  # names of one mailbox
MAX_EMPTY = 500  # mailboxes of agents that have ended, without messages


@define(eq=False)
class Mailboxes:
    """All mailboxes of a kernel. ``numbers`` are the ids of messages. Without a ``store`` nothing is kept."""

    publish: Publish = discard
    store: MailStore | None = None
    numbers: Iterator[int] = field(factory=lambda: itertools.count(1))
    _by_id: dict[int, Mailbox] = field(factory=dict)
    _by_name: dict[str, Mailbox] = field(factory=dict)
    _kept: dict[str, Mailbox] = field(factory=dict)  # by account (of declared agents: the name), also of ended ones
    _closed: dict[str, Mailbox] = field(factory=dict)  # those of agents that have ended in this run
    _most_closed: int = 2 * MAX_EMPTY  # until the empty ones are looked for
    leases: Leases = field(init=False)
    _stops: bool = False  # the kernel
    _lost: int = 0  # unread messages in memory of callers that ended since it stops

    def __attrs_post_init__(self) -> None:
        self.leases = Leases(self._by_id, self.store, self.publish)

    def __iter__(self) -> Iterator[Mailbox]:
        return iter(self._by_id.values())

    async def load(self) -> None:
        """Read what earlier kernels kept; raises :class:`agentos.database.DatabaseError`."""
        buried, store = list[int](), present(self.store)
        for name, message, dead in await store.database.write(rows.read_all):
            box = self._kept.setdefault(name, Mailbox(0, [], self.publish, name))
            if dead or message.attempt >= MAX_ATTEMPTS:
                box.dead.append(message)
                if not dead:
                    buried.append(message.id)
            else:
                box.messages.append(message)
                box.size += len(message.body)
            store.sent[message.family] += message.cost
        if buried:
            how = f"handed out {MAX_ATTEMPTS} times, the last time by a killed kernel"
            log.warning("%d messages are dead letters: %s", len(buried), how)
            store.write_later(rows.bury_all, buried)

    # -- Mailboxes by id and name ----------------------------------------------------------------------------------

    def open(self, number: int, name: str | None = None, *, kept: str | None = None) -> Mailbox:
        """Open a mailbox for the caller ``number``, with what is kept for the account ``kept`` if there is one."""
        box = self._kept.get(kept) if kept is not None else None
        if box is None:
            box = Mailbox(number, [], self.publish, kept)
        box.id, box.names = number, [] if name is None else [name]
        self._by_id[number] = box
        if name is not None:
            self._by_name[name] = box
        if kept is not None:
            self._kept[kept] = box
            self._closed.pop(kept, None)
        return box

    def adopt(self, number: int, kept: str) -> None:
        """Give a caller what is kept for this account as its mailbox, under its names; others mustn't have it.

        What it has been sent so far, or will be by calls under way, waits there too: see :meth:`check_adoption`.
        """
        former = self.by_id(number)
        if former.kept == kept:
            return
        self.leases.end_life(former)
        box = self.open(number, kept=kept)
        box.names = former.names
        self._by_name.update(dict.fromkeys(box.names, box))
        former.on_message = partial(self._move, former, box)
        self._move(former, box)

    def check_adoption(self, number: int, kept: str) -> None:
        """Raise ``Busy`` or ``QuotaExceeded`` if what a caller has been sent so far can't be kept for this account."""
        former, box = self.by_id(number), self._kept.get(kept)
        if former is box:
            return
        waiting = [*former.messages, *(lease.message for lease in former.leases.values())]
        if (
            waiting
            and box is not None
            and (box.count + len(waiting) > MAX_MESSAGES or box.size + former.size > MAX_BYTES)
        ):
            raise Busy(
                f"mailbox: with the {len(waiting)} messages that wait for this connection the mailbox that is kept "
                f"would be over {MAX_MESSAGES} messages or {MAX_BYTES} bytes: read them first"
            )
        costs = Counter[str]()
        for message in waiting:
            costs[message.family] += message.cost
        for family, cost in costs.items():
            present(self.store).check(family, cost)

    def _move(self, former: Mailbox, box: Mailbox) -> None:
        """Move what waits to a mailbox that is kept; with ids of its own, which copies of a broadcast don't have."""
        waiting = former.drop([message.id for message in former.messages], dead=False)
        moved = [replace(message, id=next(self.numbers)) for message in waiting]
        box.restore(moved)
        present(self.store).insert_later(box.kept or "", moved)

    def close(self, number: int) -> None:
        """Remove the mailbox of a caller that has ended, with its unread messages unless they are kept."""
        box = self._by_id.pop(number, None)
        if box is not None:
            for name in box.names:
                del self._by_name[name]
            if box.kept is not None:
                self.leases.end_life(box)
                self._closed[box.kept] = box
                if len(self._closed) > self._most_closed:
                    self._forget_empty()
            elif self._stops:
                self._lost += len(box.messages) + len(box.leases)

    def _forget_empty(self) -> None:
        """Forget mailboxes of callers that have ended and left nothing, but the latest: a call may give it back yet."""
        for account, box in [*self._closed.items()][:-MAX_EMPTY]:
            if box.is_empty:
                del self._closed[account], self._kept[account]
        self._most_closed = 2 * max(MAX_EMPTY, len(self._closed))

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

    def find(self, name: str) -> Mailbox:
        """The mailbox called ``name``, or what is kept for an account of that name; ``NotFound`` if neither."""
        return self._by_name.get(name) or self._kept.get(name) or self.by_name(name)

    def list_filled(self) -> list[Mailbox]:
        """The mailboxes with messages or dead letters; each is found by its name, unless that begins with #."""
        return [box for box in {*self._by_id.values(), *self._kept.values()} if not box.is_empty]

    def list_dead(self) -> list[Mailbox]:
        """Those with dead letters."""
        return [box for box in self.list_filled() if box.dead]

    def find_kept(self, account: str) -> Mailbox | None:
        """What is kept for an account, if anything is."""
        return self._kept.get(account)

    def is_open(self, box: Mailbox) -> bool:
        """Whether it is a caller's now."""
        return self._by_id.get(box.id) is box

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

    def keep(self, number: int, name: str, kept: bool) -> None:
        """Begin or cease to keep the messages of a declared agent."""
        box = self.by_id(number)
        if kept == (box.kept is not None):
            return
        has = [*box.messages, *(lease.message for lease in box.leases.values() if not lease.acknowledging)]
        store = present(self.store)
        if kept:
            box.kept, self._kept[name] = name, box
            store.insert_later(name, has)
            store.insert_later(name, box.dead, dead=True)
        else:
            store.forget((*has, *box.dead))
            box.kept = None
            del self._kept[name]

    # -- Sending ---------------------------------------------------------------------------------------------------

    def begin_post(self, box: Mailbox, message: Message, done: Done) -> Callable[[], bool]:
        """Begin to store a message for a mailbox that is kept, and put it there; ``done`` is told then.

        Raises ``Busy`` if the mailbox is full, ``QuotaExceeded``, and ``Unavailable``. The returned function drops the
        message unless it is being written.
        """
        assert box.kept is not None, "the mailbox is kept"
        store = present(self.store)
        store.charge(message.family, message.cost)
        try:
            box.reserve(len(message.body))
        except CallError:
            store.discharge([message])
            raise

        def end(result: Written) -> None:
            if isinstance(result, Error):
                self._release([box], message, 1)
            else:
                box.add(message)
                if box.kept is None:  # not any more
                    store.forget([message])
            done(result)

        def withdraw() -> bool:
            dropped = drop()
            if dropped:
                self._release([box], message, 1)
            return dropped

        try:
            drop = store.begin(rows.insert_all, [rows.as_row(box.kept, message)], end)
        except CallError:
            self._release([box], message, 1)
            raise
        return withdraw

    async def post_all(self, message: Message, recipients: Iterable[Mailbox]) -> tuple[int, list[str]]:
        """Deliver to the mailboxes still open; returns the number of deliveries and the names of full mailboxes.

        All get it at once, when it is stored for those that are kept.
        """
        fitting, full = list[Mailbox](), list[Mailbox]()
        for box in recipients:
            if self.is_open(box):
                (fitting if box.fits(len(message.body)) else full).append(box)
        kept = [box for box in fitting if box.kept is not None]
        if kept:
            present(self.store).charge(message.family, message.cost * len(kept))
        copies = {box: replace(message, id=next(self.numbers)) for box in kept}
        for box in fitting:
            box.reserve(len(message.body))

        def deliver(_: object) -> None:
            for box in fitting:
                box.add(copies.get(box, message))
                if box in copies and box.kept is None:  # not any more
                    present(self.store).forget([copies[box]])

        if kept:
            written = [rows.as_row(box.kept or "", copies[box]) for box in kept]
            store, undo = present(self.store), lambda: self._release(fitting, message, len(kept))
            await store.write(rows.insert_all, written, undo, deliver)
        else:
            deliver(None)
        return len(fitting), [box.name for box in full]

    def _send_escalation(self, event: AgentEscalated, spawner: int) -> None:
        """Tell the spawner of an agent that it was given up, unless the spawner's mailbox is full or closed."""
        about = {"agent_id": event.agent_id, "name": event.name, "reason": event.reason}
        message = Message(
            KERNEL_ID, KERNEL, "kernel", codec.encode({"event": "AGENT_ESCALATED", **about}), id=next(self.numbers)
        )

        def tell(result: Written) -> None:
            if isinstance(result, Error):
                log.debug("%s: its spawner can't be told that it was given up: %s", event.name, result.error)

        try:
            box = self.by_id(spawner)
            if box.kept is None:
                box.put(message)
            else:
                self.begin_post(box, replace(message, family=_payer_of(box.kept)), tell)
        except CallError as error:
            tell(Error(error))

    def end_life(self, event: AgentExited) -> None:
        """Give back what an agent had leased in a life that has ended; a subscriber."""
        if (box := self._by_id.get(event.agent_id)) is not None:
            self.leases.end_life(box)

    def tell_spawner(self, event: AgentEscalated) -> None:
        """Tell a spawner of an agent that was given up; a subscriber."""
        if event.spawner is not None:
            self._send_escalation(event, event.spawner)

    def begin_stop(self, _: KernelStopping) -> None:
        """Count from now on what ends with the kernel; a subscriber."""
        self._stops = True

    # -- For the operator ------------------------------------------------------------------------------------------

    def count_unkept(self) -> int:
        """How many unread messages end with this kernel, or have since it stops."""
        return self._lost + sum(len(box.messages) + len(box.leases) for box in self if box.kept is None)

    async def requeue(self, box: Mailbox, numbers: Sequence[int]) -> int:
        """Let dead letters wait again as new ones; returns how many there were. Raises ``Unavailable``."""
        chosen = set(numbers)
        wanted = [message for message in box.dead if message.id in chosen]
        if wanted and box.kept is not None:
            await present(self.store).write(rows.requeue_all, [one.id for one in wanted], lambda: None)
        box.requeue(box.drop([message.id for message in wanted], dead=True))
        return len(wanted)

    async def drop(self, box: Mailbox, numbers: Sequence[int], *, dead: bool) -> int:
        """Remove waiting messages, or dead letters; returns how many there were. Raises ``Unavailable``."""
        dropped = box.drop(numbers, dead=dead)

        def undo() -> None:
            if dead:
                box.dead.extend(dropped)
            else:
                box.put_back([replace(one, attempt=one.attempt + 1) for one in dropped])

        if dropped and box.kept is not None:
            await present(self.store).write(rows.remove_all, [one.id for one in dropped], undo)
            present(self.store).discharge(dropped)
        return len(dropped)

    def _release(self, boxes: Iterable[Mailbox], message: Message, charged: int) -> None:
        """Give back the room of a message that wasn't delivered, and what was charged so many times."""
        for box in boxes:
            box.unreserve(len(message.body))
        if self.store is not None:
            self.store.discharge([message] * charged)


def _payer_of(account: str) -> str:
    """The family that is charged for what the kernel sends: that of an agent's child, which may have any number."""
    family, child, _ = account.partition("/")
    return family if child else ""
