"""Approval of what isn't a call of the table: tunnels and requests through the proxy.

A person is asked about these also while the caller lives a recorded life again: no recording has them, so what answers
its calls then (``Caller.approvals``) has no say here. ``approvals`` are the kernel's; without them nothing is asked.
"""

from collections.abc import Awaitable, Callable
from hashlib import sha256

import trio
from msgspec import Struct
from msgspec.structs import replace

from agentos.kernel.asking import note_unapproved
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Approvals, Decision, Question, Right
from agentos_sdk.errors import CallError


class Shown(Struct, frozen=True):
    """The escaped text that a person sees, and what the approval is bound to besides: headers and body as sent."""

    text: str
    content: bytes = b""


Show = Callable[[], Awaitable[Shown]]
"""Called where a person must decide; it may receive more of a request. Raises ``CallError`` if it can't be shown."""


def find_answer(approvals: Approvals | None, caller: Caller, right: Right, decision: Decision) -> Decision | None:
    """The remembered answer that allows what the rule of ``decision`` asks about, whatever its content.

    Raises ``ApprovalRefused`` if a refusal is remembered, which is recorded.
    """
    question = build_question(right, decision, Shown(""))
    if approvals is None:
        return None
    try:
        return approvals.take(caller, replace(question, digest=""))  # no approval of one call has that digest
    except CallError as error:
        note_unapproved(caller, question, error)
        raise


def answered_until(approvals: Approvals | None, caller: Caller, right: Right, decision: Decision) -> float | None:
    """Until when a remembered answer allows what the rule of ``decision`` asks about; see ``Approvals``."""
    if approvals is None or decision.effect != "ask":
        return None
    return approvals.answered_until(caller, build_question(right, decision, Shown("")))


async def require_or_ask(
    approvals: Approvals | None, caller: Caller, right: Right, shown: Shown, deadline: float
) -> Decision:
    """Return the decision that allows something that isn't a call of the table, such as a tunnel, to begin now.

    Waits for a person until ``deadline`` of Trio's clock where one must approve. Raises
    ``PermissionDenied``, ``ApprovalRefused`` or ``ApprovalRequired``; the refusal is recorded.
    """
    former: Question | None = None
    while True:
        decision = caller.authorizer.decide(caller, right)
        if decision.effect == "allow":
            return decision
        if decision.effect == "deny" or approvals is None:
            raise caller.refuse(right, decision)
        question = build_question(right, decision, shown)
        try:
            if (allowed := approvals.take(caller, question)) is not None:
                return allowed
            await approvals.wait(caller, question, max(0.0, deadline - trio.current_time()), former)
        except CallError as error:
            note_unapproved(caller, question, error)
            raise
        former = question


def build_question(right: Right, decision: Decision, shown: Shown) -> Question:
    """What a person is asked about a request or tunnel; the digest covers all of its content."""
    asked = ((right, decision),)
    bound = repr((asked, shown.text, sha256(shown.content).digest())).encode(errors="surrogatepass")
    return Question(right.action.upper(), str(right.object), asked, sha256(bound).hexdigest(), shown.text)
