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
from typing import Final, Literal

import trio
from attrs import define, field
from msgspec import Struct
from msgspec.structs import replace

from agentos.database import Database, DatabaseError
from agentos.kernel.caller import Caller
from agentos.kernel.ports import AuditLog, Decision, Question
from agentos.services.events import (
    AgentExited,
    AgentOver,
    AgentSpawned,
    ApprovalDecided,
    ApprovalRequested,
    Event,
    Publish,
)
from agentos_sdk.errors import ApprovalRefused, ApprovalRequired, BadRequest, CallError, NotFound, Unavailable

from . import approval_entries, rule
from .answers import Answer, Answers
from .approval_entries import Entry, Key, Pending, Ticket
from .approval_text import describe_right, escape

log = logging.getLogger("agentos.approvals")

MAX_OF_CALLER = 16  # entries of one caller
MAX_OF_FAMILY = 32  # of an agent with all its descendants, of all connections of a guest
MAX_ENTRIES = 1000  # and as many tickets
MAX_SHOWN_CHARS = 64 << 10
MAX_ABOUT_CHARS = 1000  # of what a call is about, which is escaped in the event loop; the digest stands for the rest
ALLOWED: Final = Decision("allow", "only the operator", "")

Remember = Literal["once", "agent", "always"]


class ApprovalSettings(Struct, frozen=True):
    """``timeout``: seconds that a call waits for a decision; ``keep``: seconds until an undecided entry expires.

    ``notify`` is a command, empty for none, that is run when there are new entries.
    """

    timeout: float = 300.0
    keep: float = 600.0
    notify: Sequence[str] = ()


@define(eq=False)
class Approvals:
    """Implements :class:`agentos.kernel.ports.Approvals`. :meth:`serve` has to run.

    ``lasting_name`` is the name of a caller by which a person may decide for good, None if it has none.
    """

    settings: ApprovalSettings
    database: Database
    audit: AuditLog
    answers: Answers
    publish: Publish
    lasting_name: Callable[[Caller], str | None]
    _entries: dict[int, Entry] = field(factory=dict)
    _by_key: dict[Key, Entry] = field(factory=dict)
    _tickets: dict[Key, Ticket] = field(factory=dict)
    _lives: Counter[int] = field(factory=Counter)  # that have begun or ended, by caller
    _last: int = 0  # the highest id so far
    _news: trio.Event = field(factory=trio.Event)  # the list has changed
    _nursery: trio.Nursery | None = None

    async def load(self) -> None:
        """Load answers, and what was pending when the last kernel ended. Raises ``DatabaseError``."""
        await self.answers.load()
        self._last, found = await self.database.write(approval_entries.load)
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
            raise _refusal(question, answer.id, answer.reason)
        ticket = self._tickets.pop(self._key(caller, question), None)
        if ticket is not None and ticket.deadline > trio.current_time():
            return Decision("allow", f"approval {ticket.id}: {ticket.rule}", "")
        return Decision("allow", f"answer {found[0].id}: {found[0].rule}", "") if found else None

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
        raise _required(question, text, entry.pending.id, "no decision yet")

    def _add(self, caller: Caller, question: Question, before: Ticket | None) -> Entry:
        """A new entry, which is recorded from now on; ``before``: the approval of what the call was before."""
        shown = question.shown or "\n".join(describe_right(right) for right, _ in question.asked)
        if len(shown) > MAX_SHOWN_CHARS:
            raise _required(question, "it is too long to be shown to a person", None, "too long")
        if before is not None:
            shown = f"changed since approval {before.id} was given\n{shown}"
        if (full := self._make_room(caller)) is not None:
            raise _required(question, full, None, "full")
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
        )
        entry = Entry(pending, question, caller, self._subjects(caller), trio.current_time() + keep)
        self._entries[pending.id] = self._by_key[entry.key] = entry
        self._nursery.start_soon(self._record, entry)
        return entry

    def _make_room(self, caller: Caller) -> str | None:
        """Drop what can't be allowed any more as far as needed; returns why this caller can have no further entry."""
        own, family = [], []
        for entry in self._entries.values():
            if entry.caller is caller:
                own.append(entry)
            if entry.caller is not None and caller.family and entry.caller.family == caller.family:
                family.append(entry)
        if len(own) >= MAX_OF_CALLER:
            if not self._drop_gone(own):
                return f"{MAX_OF_CALLER} calls of {caller.name} wait for a person already, and more don't"
        elif len(family) >= MAX_OF_FAMILY and not self._drop_gone(family):
            return f"{MAX_OF_FAMILY} calls of {caller.name} and its relatives wait for a person already, and more don't"
        if max(len(self._entries), len(self._tickets)) >= MAX_ENTRIES and not self._drop_gone(own):
            return f"{MAX_ENTRIES} calls wait for a person already, and more don't"
        return None

    def _drop_gone(self, entries: Sequence[Entry]) -> bool:
        """Drop the oldest of these that can't be allowed any more; whether there is one."""
        for entry in entries:
            if entry.state == "waiting" and not entry.pending.caller_present:
                self._drop(entry)
                return True
        return False

    async def _record(self, entry: Entry) -> None:
        """Have the entry in the audit log and in the database before any person sees it."""
        pending, caller, question = entry.pending, entry.caller, entry.question
        assert caller is not None, "it was asked in this run"
        assert question is not None, "it was asked in this run"
        about = f"approval {pending.id}: {pending.call} {pending.about}, sha256 {pending.digest}"
        asked = caller.entry("APPROVAL_REQUESTED", about, question.asked[0][1], "outcome", "requested")
        try:
            await self.audit.intend(asked)
            await self.database.write(partial(approval_entries.insert, pending))
        except (CallError, DatabaseError) as error:
            self._remove(entry)
            entry.change("over", Unavailable(f"no person can be asked: {error}"))
            return
        entry.change("waiting")
        self._announce()
        self.publish(_event_of(pending))

    # -- Deciding --------------------------------------------------------------------------------------------------

    def pending(self) -> Sequence[Pending]:
        """All entries: first the oldest one of each agent, then the second of each, and so on."""
        counted: Counter[str] = Counter()
        found: list[tuple[int, float, Pending]] = []
        for entry in sorted(self._entries.values(), key=lambda one: one.pending.asked_at):
            if entry.state != "recording":
                family = entry.caller.family if entry.caller is not None else entry.pending.agent
                found.append((counted[family], entry.pending.asked_at, entry.pending))
                counted[family] += 1
        return [pending for *_, pending in sorted(found, key=lambda one: one[:2])]

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
        self, by: Caller, number: int, allow: bool, remember: Remember, seconds: float | None, reason: str | None
    ) -> None:
        """Decide an entry, for the operator ``by``; all is on disk before the call goes on. Raises ``CallError``.

        ``seconds``: how long a remembered answer holds, and how long a ticket does.
        """
        pending = self.find(number)
        entry = self._entries[number]
        if allow and not pending.caller_present:
            raise NotFound(f"approval {number} can't be given any more: {pending.agent}, which asked for it, is gone")
        answers_given = [] if remember == "once" else self._build_answers(by, entry, allow, remember, seconds, reason)
        self.answers.check_room(len(answers_given))
        entry.change("deciding")
        try:
            with trio.CancelScope(shield=True):  # it is decided, or it isn't
                await self._record_decision(by, entry, allow, remember, reason, answers_given)
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
        entry.change("over", _refusal(entry.question, number, reason) if is_refused else None)
        self.publish(ApprovalDecided(number, pending.number, pending.agent, pending.call, allow, by.shown_name, reason))

    def _build_answers(
        self, by: Caller, entry: Entry, allow: bool, remember: Remember, seconds: float | None, reason: str | None
    ) -> Sequence[Answer]:
        question, number = entry.question, entry.pending.id
        if question is None:
            raise NotFound(f"approval {number} was asked of a kernel before this one: nothing can be remembered of it")
        subject = entry.subjects[0] if remember == "agent" else entry.subjects[-1]
        if remember == "always" and not isinstance(subject, str):
            raise BadRequest("remember: always needs a name, and this guest has none: expected once or agent")
        until = time.time() + seconds if seconds is not None else None
        return [
            Answer(
                id=number,
                subject=subject,
                agent=entry.pending.agent,
                action=right.action,
                object=self.answers.describe_object(right, question),
                rule=decision.rule,
                allow=allow,
                reason=reason,
                by=describe_operator(by),
                at=time.time(),
                until=until,
            )
            for right, decision in question.asked
        ]

    async def _record_decision(
        self, by: Caller, entry: Entry, allow: bool, remember: Remember, reason: str | None, given: Sequence[Answer]
    ) -> None:
        pending, outcome = entry.pending, "allowed" if allow else "refused"
        why = f", because {escape(reason)!r}" if reason else ""
        about = (
            f"approval {pending.id} {outcome} ({remember}) by {describe_operator(by)}{why}: {pending.agent}, "
            f"sha256 {pending.digest}: {pending.shown}"
        )
        number = await self.audit.intend(by.entry("APPROVAL_DECIDED", about, ALLOWED, "intent"))
        try:
            await self.database.write(partial(approval_entries.decide, pending.id, given))
        except DatabaseError as error:
            self.audit.note(by.entry("APPROVAL_DECIDED", about, ALLOWED, "outcome", "unavailable", None, number))
            raise Unavailable(f"not decided: {error}") from None
        self.audit.note(by.entry("APPROVAL_DECIDED", about, ALLOWED, "outcome", outcome, None, number))

    async def forget(self, by: Caller, number: int) -> None:
        """Revoke a remembered answer; ``NotFound`` if there is none with this id."""
        try:
            found = await self.answers.forget(number)
        except DatabaseError as error:
            raise Unavailable(f"not forgotten: {error}") from None
        for one in found:
            about = f"answer {number} forgotten by {describe_operator(by)}: {one.agent} {one.action} {one.object}"
            self.audit.note(by.entry("APPROVAL_DECIDED", about, ALLOWED, "outcome", "forgotten"))

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

    def _end_life(self, number: int) -> None:
        """Keep its entries only to be seen, and drop its tickets."""
        self._lives[number] += 1
        self._tickets = {key: ticket for key, ticket in self._tickets.items() if key[0] != number}
        found = [entry for key, entry in self._by_key.items() if key[0] == number]
        for entry in found:
            del self._by_key[entry.key]
            entry.pending = replace(entry.pending, caller_present=False)
            assert entry.question is not None, "it was asked in this run"
            gone = _required(entry.question, "the life that asked has ended", entry.pending.id, "caller gone")
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
            entry.change("over", _required(entry.question, text, pending.id, "expired"))
        try:
            self.database.submit(partial(approval_entries.delete, pending.id), f"the end of approval {pending.id}")
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


def describe_operator(by: Caller) -> str:
    return f"uid {by.uid} on connection {by.id}"


def _required(question: Question, text: str, number: int | None, reason: str) -> ApprovalRequired:
    _, decision = question.asked[0]
    return ApprovalRequired(f"{decision.reason}: {text}", rule=decision.rule, approval_id=number, reason=reason)


def _refusal(question: Question | None, number: int, reason: str | None) -> ApprovalRefused:
    assert question is not None, "it was asked in this run"
    right, decision = question.asked[0]
    why = f": {reason}" if reason else ""
    text = f"{rule.describe_right(right)}: a person has refused it{why}"
    return ApprovalRefused(text, rule=decision.rule, approval_id=number, reason=reason)


def _event_of(pending: Pending) -> ApprovalRequested:
    return ApprovalRequested(
        id=pending.id,
        agent_id=pending.number,
        name=pending.agent,
        call=pending.call,
        shown=pending.shown,
        rule=pending.rule,
        digest=pending.digest,
        asked_at=pending.asked_at,
        expires_at=pending.expires_at,
    )
