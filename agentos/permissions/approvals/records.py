"""What is written of approvals to the audit log and the database, before it takes effect."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Final, Literal

from attrs import frozen

from agentos.database import Database, DatabaseError
from agentos.kernel.caller import Caller
from agentos.kernel.ports import AuditLog, Decision, Right
from agentos.permissions.shown_lines import to_plain
from agentos_sdk.errors import BadRequest, NotFound, Unavailable

from . import entries
from .answers import Answer, Answers, describe_wide
from .entries import Entry
from .page import escape

ALLOWED: Final = Decision("allow", "only the operator", "")

Remember = Literal["once", "agent", "always"]


@frozen
class Given:
    """What a person has decided: for how many ``seconds`` an answer that is remembered holds, and whether it is wide.

    ``by`` is the text that stands for the operator, or for a person that has answered by another program.
    """

    by: str
    allow: bool
    remember: Remember
    seconds: float | None
    reason: str | None
    any_path: bool


@frozen
class ApprovalRecords:
    """Entries outlast the kernel in the ``database``; the ``audit`` log has what was asked and what was decided."""

    database: Database
    audit: AuditLog

    async def add(self, entry: Entry) -> None:
        """Record an entry. Raises ``CallError`` or ``DatabaseError``."""
        pending, caller, question = entry.pending, entry.caller, entry.question
        assert caller is not None, "it was asked in this run"
        assert question is not None, "it was asked in this run"
        about = f"approval {pending.id}: {pending.call} {pending.about}, sha256 {pending.digest}"
        asked = caller.entry("APPROVAL_REQUESTED", about, question.asked[0][1], "outcome", "requested")
        await self.audit.intend(asked)
        await self.database.write(partial(entries.insert, pending))

    async def decide(self, by: Caller, entry: Entry, given: Given, answers: Sequence[Answer]) -> None:
        """Record a decision of the operator ``by``, and the answers that are remembered. Raises ``CallError``."""
        pending, outcome = entry.pending, "allowed" if given.allow else "refused"
        why = f", because {escape(given.reason)!r}" if given.reason else ""
        about = (
            f"approval {pending.id} {outcome} ({given.remember}) by {given.by}{why}: {pending.agent}, "
            f"sha256 {pending.digest}: {to_plain(pending.shown)}"
        )
        rule = ALLOWED if by.kind == "operator" else by.authorizer.decide(by, Right("decide"))
        number = await self.audit.intend(by.entry("APPROVAL_DECIDED", about, rule, "intent"))
        try:
            await self.database.write(partial(entries.decide, pending.id, answers))
        except DatabaseError as error:
            self.audit.note(by.entry("APPROVAL_DECIDED", about, rule, "outcome", "unavailable", None, number))
            raise Unavailable(f"not decided: {error}") from None
        self.audit.note(by.entry("APPROVAL_DECIDED", about, rule, "outcome", outcome, None, number))

    def forget(self, by: Caller, answer: Answer) -> None:
        """Record that the operator ``by`` has revoked a remembered answer."""
        about = (
            f"answer {answer.id} forgotten by {describe_operator(by)}: {answer.agent} {answer.action} {answer.object}"
        )
        self.audit.note(by.entry("APPROVAL_DECIDED", about, ALLOWED, "outcome", "forgotten"))


def build_answers(answers: Answers, entry: Entry, given: Given) -> Sequence[Answer]:
    """What is remembered of a decision, an answer for each right that was asked about; none of one for once."""
    if given.remember == "once":
        return []
    question, number = entry.question, entry.pending.id
    if question is None:
        raise NotFound(f"approval {number} was asked of a kernel before this one: nothing can be remembered of it")
    subject = entry.subjects[0] if given.remember == "agent" else entry.subjects[-1]
    if given.remember == "always" and not isinstance(subject, str):
        raise BadRequest("remember: always needs a name, and this guest has none: expected once or agent")
    now = time.time()
    return [
        Answer(
            id=number,
            subject=subject,
            agent=entry.pending.agent,
            action=right.action,
            object=(describe_wide(right) if given.any_path else None) or answers.describe_object(right, question),
            rule=decision.rule,
            allow=given.allow,
            reason=given.reason,
            by=given.by,
            at=now,
            until=now + given.seconds if given.seconds is not None else None,
        )
        for right, decision in question.asked
    ]


def describe_operator(by: Caller) -> str:
    """The operator's uid and connection; before them the link of one that decides by a link."""
    link = "" if by.kind == "operator" else f"{by.name}, "
    return f"{link}uid {by.uid} on connection {by.id}"
