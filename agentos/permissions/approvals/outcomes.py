"""What calls that wait for an approval are told, and what persons and programs are told of them."""

from collections.abc import Callable

from agentos.kernel.ports import Question
from agentos.permissions import rule
from agentos.permissions.shown_lines import to_plain
from agentos.services.events import ApprovalRequested
from agentos_sdk.errors import ApprovalRefused, ApprovalRequired

from .entries import Pending
from .text import describe_call


def show(question: Question, name_of: Callable[[int], str | None]) -> str:
    """The text that a person sees, with its marks: see :mod:`agentos.permissions.shown_lines`.

    ``name_of`` gives the lasting name of an agent.
    """
    if question.shown:
        return question.shown
    agents = {right.agent: name_of(right.agent) for right, _ in question.asked if right.agent is not None}
    return describe_call([right for right, _ in question.asked], agents, question.fields)


def require_approval(question: Question, text: str, number: int | None, reason: str) -> ApprovalRequired:
    """The error of a call that no person has decided; ``number`` is that of its approval, if there is one."""
    _, decision = question.asked[0]
    return ApprovalRequired(f"{decision.reason}: {text}", rule=decision.rule, approval_id=number, reason=reason)


def refuse_approval(question: Question | None, number: int, reason: str | None) -> ApprovalRefused:
    """The error of a call that a person has refused, perhaps with a reason."""
    assert question is not None, "it was asked in this run"
    right, decision = question.asked[0]
    why = f": {reason}" if reason else ""
    text = f"{rule.describe_right(right)}: a person has refused it{why}"
    return ApprovalRefused(text, rule=decision.rule, approval_id=number, reason=reason)


def announce_request(pending: Pending) -> ApprovalRequested:
    """The event that tells of a new entry."""
    return ApprovalRequested(
        id=pending.id,
        agent_id=pending.number,
        name=pending.agent,
        call=pending.call,
        shown=to_plain(pending.shown),
        rule=pending.rule,
        digest=pending.digest,
        asked_at=pending.asked_at,
        expires_at=pending.expires_at,
    )
