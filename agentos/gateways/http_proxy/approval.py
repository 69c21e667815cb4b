"""Approval of what isn't a call of the table: tunnels and requests through the proxy."""

from collections.abc import Callable
from hashlib import sha256

import trio

from agentos.kernel.asking import note_unapproved
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Question, Right
from agentos_sdk.errors import CallError


async def require_or_ask(caller: Caller, right: Right, shown: Callable[[], str], deadline: float) -> Decision:
    """Return the decision that allows something that isn't a call of the table, such as a tunnel, to begin now.

    Waits for a person until ``deadline`` of Trio's clock where one must approve. ``shown`` is called then. Raises
    ``PermissionDenied``, ``ApprovalRefused`` or ``ApprovalRequired``; the refusal is recorded.
    """
    former: Question | None = None
    while True:
        decision = caller.authorizer.decide(caller, right)
        if decision.effect == "allow":
            return decision
        approvals = caller.approvals
        if decision.effect == "deny" or approvals is None:
            raise caller.refuse(right, decision)
        asked, text = ((right, decision),), shown()
        digest = sha256(repr((asked, text)).encode(errors="surrogatepass")).hexdigest()
        question = Question(right.action.upper(), str(right.object), asked, digest, text)
        try:
            if (allowed := approvals.take(caller, question)) is not None:
                return allowed
            await approvals.wait(caller, question, max(0.0, deadline - trio.current_time()), former)
        except CallError as error:
            note_unapproved(caller, question, error)
            raise
        former = question
