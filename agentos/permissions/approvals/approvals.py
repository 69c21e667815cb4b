"""Approvals: a durable queue of calls that wait for a person, and what persons have decided.

An entry is bound to one life of one caller and to the digest of the question. Allowing it makes a ticket, which one
call may use once: the one that waits, or the identical one that comes later. Entries outlast the kernel only to be
seen: they can't be allowed any more. Tickets end with the kernel.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import trio
from attrs import define, field
from msgspec import Struct
from msgspec.structs import replace

from agentos.database import Database, DatabaseError
from agentos.kernel.caller import Caller
from agentos.kernel.ports import AuditLog, Decision, Question
from agentos.permissions.shown_lines import split_lines
from agentos.services.events import AgentExited, AgentOver, AgentSpawned, ApprovalDecided, Event, Publish
from agentos_sdk.errors import BadRequest, CallError, Conflict, NotFound, Unavailable

from . import entries
from .answers import Answer, Answers, describe_wide_scope
from .entries import Entry, Key, Pending, Ticket
from .outcomes import announce_request, refuse_approval, require_approval, show
from .page import escape
from .records import ApprovalRecords, Given, Remember, build_answers, describe_operator
from .room import make_room

log = logging.getLogger("agentos.approvals")

MAX_SHOWN_CHARS = 64 << 10
MAX_ABOUT_CHARS = 1000  # of what a call is about, which is escaped in the event loop; the digest stands for the rest


class ApprovalSettings(Struct, frozen=True):
    """``timeout``: seconds that a call waits for a decision; ``keep``: seconds until an undecided entry expires.

    ``notify`` is a command, empty for none, that is run when there are new entries.
    """

    timeout: float = 300.0
    keep: float = 600.0
    notify: Sequence[str] = ()


class LastingDecisions(Protocol):
    """Decisions about approvals that their owner keeps itself."""

    def list(self) -> Sequence[Answer]:
        """All of them."""

    async def revoke(self, number: int) -> Sequence[Answer]:
        """Revoke what the approval with this id has decided; returns it. Raises ``DatabaseError``."""


@define(eq=False)
class Approvals:
    """Implements :class:`agentos.kernel.ports.Approvals`. :meth:`serve` has to run.

    ``lasting_name`` is the name of a caller by which a person may decide for good, None if it has none.
    ``on_forgotten`` is called at once when remembered answers are revoked.
    """

    settings: ApprovalSettings
    database: Database
    audit: AuditLog
    answers: Answers
    publish: Publish
    lasting_name: Callable[[Caller], str | None]
    _records: ApprovalRecords = field(init=False)
    on_forgotten: Callable[[], None] = lambda: None
    pins: LastingDecisions | None = None  # about tools of MCP servers
    _entries: dict[int, Entry] = field(factory=dict)
    _by_key: dict[Key, Entry] = field(factory=dict)
    _tickets: dict[Key, Ticket] = field(factory=dict)
    _lives: Counter[int] = field(factory=Counter)  # that have begun or ended, by caller
    _last: int = 0  # the highest id so far
    _news: trio.Event = field(factory=trio.Event)  # the list has changed
    _nursery: trio.Nursery | None = None

    def __attrs_post_init__(self) -> None:
        self._records = ApprovalRecords(self.database, self.audit)

    async def load(self, above: int = 0) -> None:
        """Load answers, and what was pending when the last kernel ended. Raises ``DatabaseError``.

        Ids up to ``above`` aren't given: the database may have lost them.
        """
        await self.answers.load()
        self._last, found = await self.database.write(partial(entries.load, above=above))
        now, clock = time.time(), trio.current_time()
        for pending in found:
            left = min(pending.expires_at - now, self.settings.keep)
            entry = Entry(replace(pending, caller_present=False), deadline=clock + left, state="waiting")
            self._entries[pending.id] = entry

    async def serve(self) -> None:
        """Record new entries, and remove expired ones, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            while True:
                self._expire()
                deadlines = [one.deadline for one in self._entries.values() if one.state == "waiting"]
                with trio.move_on_at(min(deadlines, default=math.inf)):
                    await self._news.wait()

    # -- Asking ----------------------------------------------------------------------------------------------------

    def take(self, caller: Caller, question: Question) -> Decision | None:
        """See :class:`agentos.kernel.ports.Approvals`."""
        found = self.answers.find(self._subjects(caller), question)
        if found and not found[0].allow:
            answer = found[0]
            raise refuse_approval(question, answer.id, answer.reason)
        ticket = self.take_ticket(caller, question)
        if ticket is not None:
            return Decision("allow", f"approval {ticket.id}: {ticket.rule}", "")
        return Decision("allow", f"answer {found[0].id}: {found[0].rule}", "") if found else None

    def answered_until(self, caller: Caller, question: Question) -> float | None:
        """See :class:`agentos.kernel.ports.Approvals`."""
        found = self.answers.find(self._subjects(caller), question)
        if not found or not all(one.allow for one in found):
            return None
        return min(one.until if one.until is not None else math.inf for one in found)

    def take_ticket(self, caller: Caller, question: Question) -> Ticket | None:
        """What a person has allowed once, and not by a remembered answer; it is used up by this."""
        ticket = self._tickets.pop(self._key(caller, question), None)
        return ticket if ticket is not None and ticket.deadline > trio.current_time() else None

    async def wait(
        self, caller: Caller, question: Question, timeout: float | None = None, former: Question | None = None
    ) -> None:
        """See :class:`agentos.kernel.ports.Approvals`."""
        before = None
        if former is not None and former.digest != question.digest:
            before = self._tickets.pop(self._key(caller, former), None)
        entry = self._by_key.get(self._key(caller, question))
        if entry is None:
            entry = self._add(caller, question, before)
        while entry.state == "recording":
            await entry.changed.wait()
        with trio.move_on_after(self.settings.timeout if timeout is None else timeout):
            while entry.state != "over" and entry.failure is None:
                await entry.changed.wait()
        if entry.failure is not None:
            raise entry.failure
        if entry.state == "over":
            return
        until = time.strftime("%H:%M:%S", time.localtime(entry.pending.expires_at))
        text = f"approval {entry.pending.id} can be given until {until}, and then the same call may be made once"
        raise require_approval(question, text, entry.pending.id, "no decision yet")

    def _add(self, caller: Caller, question: Question, before: Ticket | None) -> Entry:
        """A new entry, which is recorded from now on; ``before``: the approval of what the call was before."""
        shown = show(question, self.answers.name_of)
        if len(shown) > MAX_SHOWN_CHARS:
            raise require_approval(question, "it is too long to be shown to a person", None, "too long")
        if before is not None:
            shown = f"changed since approval {before.id} was given\n{shown}"
        full = make_room(self._entries, len(self._tickets), caller, question, self._drop)
        if full is not None:
            raise require_approval(question, full, None, "full")
        if self._nursery is None:
            raise Unavailable("the kernel is starting or stopping: no person can be asked")
        self._last += 1
        now, keep = time.time(), self.settings.keep
        pending = Pending(
            id=self._last,
            agent=escape(caller.name),
            number=caller.id,
            life=self._lives[caller.id],
            call=question.call,
            about=escape(question.about[:MAX_ABOUT_CHARS]),
            digest=question.digest,
            shown=shown,
            rule=escape(question.asked[0][1].rule),
            asked_at=now,
            expires_at=now + keep,
            covers=() if question.call == "TOOLS" else self.answers.describe_scope(question),
            covers_any_path=describe_wide_scope(question),
        )
        entry = Entry(pending, question, caller, self._subjects(caller), trio.current_time() + keep)
        self._entries[pending.id] = self._by_key[entry.key] = entry
        self._nursery.start_soon(self._record, entry)
        return entry

    async def _record(self, entry: Entry) -> None:
        """Have the entry in the audit log and in the database before any person sees it."""
        try:
            await self._records.add(entry)
        except (CallError, DatabaseError) as error:
            self._remove(entry)
            entry.change("over", Unavailable(f"no person can be asked: {error}"))
            return
        entry.change("waiting")
        self._announce()
        self.publish(announce_request(entry.pending))

    # -- Deciding --------------------------------------------------------------------------------------------------

    def list_answers(self, subjects: Sequence[int | str] | None = None) -> Sequence[Answer]:
        """The remembered answers about an agent, by its id and its name; None: all, with those that are pins."""
        pins = self.pins.list() if self.pins is not None and subjects is None else ()
        return [*self.answers.list(subjects), *pins]

    def pending(self) -> Sequence[Pending]:
        """All entries: first the oldest one of each agent, then the second of each, and so on.

        Those that can't be allowed any more come last.
        """
        counted: Counter[tuple[bool, str]] = Counter()
        found: list[tuple[bool, int, float, Pending]] = []
        for entry in sorted(self._entries.values(), key=lambda one: one.pending.asked_at):
            if entry.state != "recording":
                gone = not entry.pending.caller_present
                family = gone, entry.family if entry.family is not None else entry.pending.agent
                found.append((gone, counted[family], entry.pending.asked_at, entry.pending))
                counted[family] += 1
        return [pending for *_, pending in sorted(found, key=lambda one: one[:3])]

    def family_of(self, number: int) -> str:
        """The family of the caller of the entry with this id; empty if that isn't known any more."""
        entry = self._entries.get(number)
        return (entry.family if entry is not None else None) or ""

    def path_of(self, number: int) -> str:
        """The lasting name of the caller of the entry with this id; empty if it has none, or isn't known any more."""
        entry = self._entries.get(number)
        return next((one for one in entry.subjects if isinstance(one, str)), "") if entry is not None else ""

    def lines_of(self, number: int) -> Sequence[Sequence[str]]:
        """The text of the entry with this id, as the kernel's words and what they quote; empty if there is none."""
        entry = self._entries.get(number)
        return split_lines(entry.pending.shown) if entry is not None else ()

    async def wait_for_news(self) -> None:
        """Return when the list of entries has changed."""
        await self._news.wait()

    def find(self, number: int) -> Pending:
        """The entry with this id; ``NotFound`` if it was decided or has expired."""
        entry = self._entries.get(number)
        if entry is None or entry.state != "waiting":
            raise NotFound(f"no approval {number} is pending: it was decided or has expired, or there never was one")
        return entry.pending

    async def decide(
        self,
        by: Caller,
        number: int,
        allow: bool,
        remember: Remember,
        seconds: float | None,
        reason: str | None,
        digest: str | None = None,
        via: str | None = None,
        any_path: bool = False,
    ) -> None:
        """Decide an entry, for the operator ``by``; all is on disk before the call goes on. Raises ``CallError``.

        ``seconds``: how long a remembered answer holds, and how long a ticket does. ``digest``: what the person has
        seen, ``Conflict`` if the entry's is another one. ``via``: by which program the person has answered.
        ``any_path``: what is remembered holds for all paths of an HTTP request's origin.
        """
        pending = self.find(number)
        if digest is not None and digest != pending.digest:
            raise Conflict(
                f"digest: approval {number} is for a call with the digest {pending.digest}", digest=pending.digest
            )
        entry = self._entries[number]
        if allow and not pending.caller_present:
            raise NotFound(f"approval {number} can't be given any more: {pending.agent}, which asked for it, is gone")
        answered_by = f"{via}, {describe_operator(by)}" if via is not None else describe_operator(by)
        if any_path and (remember == "once" or not pending.covers_any_path):
            raise BadRequest("any_path: only for an answer about an HTTP request that is remembered (agent or always)")
        given = Given(answered_by, allow, remember, seconds, reason, any_path)
        answers_given = build_answers(self.answers, entry, given)
        self.answers.check_room(len(answers_given))
        entry.change("deciding")
        try:
            with trio.CancelScope(shield=True):  # it is decided, or it isn't
                await self._records.decide(by, entry, given, answers_given)
        except BaseException:
            entry.change("waiting")
            self._announce()
            raise
        self.answers.remember(answers_given)
        self._remove(entry)
        if allow and entry.pending.caller_present and entry.question is not None:  # its life may have ended meanwhile
            left = self.settings.keep if seconds is None else min(seconds, self.settings.keep)
            by_rule = entry.question.asked[0][1].rule
            self._tickets[entry.key] = Ticket(number, by_rule, trio.current_time() + left)
        is_refused = not allow and entry.question is not None
        entry.change("over", refuse_approval(entry.question, number, reason) if is_refused else None)
        shown_by = by.shown_name if via is None else via
        self.publish(ApprovalDecided(number, pending.number, pending.agent, pending.call, allow, shown_by, reason))

    async def forget(self, by: Caller, number: int) -> None:
        """Revoke a remembered answer; ``NotFound`` if there is none with this id."""
        try:
            found = await self.pins.revoke(number) if self.pins is not None else ()
            if not found or self.answers.has(number):
                found = [*found, *await self.answers.forget(number)]
        except DatabaseError as error:
            raise Unavailable(f"not forgotten: {error}") from None
        self.on_forgotten()
        for one in found:
            self._records.forget(by, one)

    # -- The ends of entries ---------------------------------------------------------------------------------------

    def end_life(self, event: Event) -> None:
        """A subscriber of events: what one life of an agent asked for can't be given to the next."""
        match event:
            case AgentSpawned(agent_id=number) | AgentExited(agent_id=number):
                self._end_life(number)
            case AgentOver(agent_id=number):
                self.forget_caller(number)

    def forget_caller(self, number: int) -> None:
        """End the life of a caller that has no other."""
        self._end_life(number)
        del self._lives[number]

    def withdraw(self, caller: Caller) -> None:
        """Drop what waits for a person and was asked by a caller that needs it no more."""
        for entry in [one for one in self._entries.values() if one.caller is caller and one.state == "waiting"]:
            self._drop(entry)

    def _end_life(self, number: int) -> None:
        """Keep its entries only to be seen, and drop its tickets."""
        self._lives[number] += 1
        self._tickets = {key: ticket for key, ticket in self._tickets.items() if key[0] != number}
        found = [entry for key, entry in self._by_key.items() if key[0] == number]
        for entry in found:
            del self._by_key[entry.key]
            entry.pending = replace(entry.pending, caller_present=False)
            assert entry.question is not None, "it was asked in this run"
            gone = require_approval(entry.question, "the life that asked has ended", entry.pending.id, "caller gone")
            entry.change(entry.state, gone)
        if found:
            self._announce()

    def _expire(self) -> None:
        now = trio.current_time()
        self._tickets = {key: ticket for key, ticket in self._tickets.items() if ticket.deadline > now}
        for entry in [one for one in self._entries.values() if one.state == "waiting" and one.deadline <= now]:
            self._drop(entry)

    def _drop(self, entry: Entry) -> None:
        """Remove an entry that no person has decided."""
        pending = entry.pending
        self._remove(entry)
        if entry.question is not None:
            text = f"approval {pending.id} has expired"
            entry.change("over", require_approval(entry.question, text, pending.id, "expired"))
        try:
            self.database.submit(partial(entries.delete, pending.id), f"the end of approval {pending.id}")
        except DatabaseError as error:  # the next kernel removes it
            log.warning("%s", error)
        self.publish(ApprovalDecided(pending.id, pending.number, pending.agent, pending.call, False, None, None))

    def _remove(self, entry: Entry) -> None:
        self._entries.pop(entry.pending.id, None)
        if self._by_key.get(entry.key) is entry:
            del self._by_key[entry.key]
        self._announce()

    def _announce(self) -> None:
        self._news.set()
        self._news = trio.Event()

    def _key(self, caller: Caller, question: Question) -> Key:
        return caller.id, self._lives[caller.id], question.digest

    def _subjects(self, caller: Caller) -> Sequence[int | str]:
        name = self.lasting_name(caller)
        return (caller.id,) if name is None else (caller.id, name)
