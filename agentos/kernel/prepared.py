"""Prepared calls: the rights that a request needs and the function that does it, known before anything is done."""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from attrs import define, field
from msgspec import Struct

from agentos_sdk.errors import CallError, PermissionDenied

from .caller import Caller, describe_object
from .ports import Decision, Entry, Phase, Right

NO_RULE = "whatever the rules say"  # the rule of a refusal that no rule decides


class Prepared(Struct, frozen=True):
    """What ``prepare`` found: the ``rights`` that the request needs, at least one, and ``act``, which does it.

    ``act`` requires nothing further. It takes the caller where the call answers now, and the
    :class:`~agentos.kernel.call.Call` where it may wait. ``about`` describes the object for the audit log, if the first
    right doesn't. ``announce``: an intent is recorded before ``act`` runs, if the syscall records intents. ``error`` is
    why the request can't be served, which only a caller that holds the rights may see: it is raised instead of ``act``,
    and by EXPLAIN.

    If a person must approve: ``shown`` gives the text that the person sees, escaped, and ``identity`` what the approval
    is bound to besides the request and the rights, such as the device, inode and content of a file. Both may read
    files: they are called in a thread, ``identity`` first, while what is prepared is open.
    """

    rights: Sequence[Right]
    act: Callable[[Any], Any]
    about: str | None = None
    announce: bool = True
    error: CallError | None = None
    shown: Callable[[], str] | None = None
    identity: Callable[[], bytes] | None = None

    async def __aenter__(self) -> "Prepared":
        return self  # what a ``def`` has prepared holds nothing open

    async def __aexit__(self, *_: object) -> None: ...


class Refused(PermissionDenied):
    """A refusal while a call is prepared. ``about`` describes the call's object in the audit log."""

    def __init__(self, error: PermissionDenied, about: str, rule: str = NO_RULE) -> None:
        super().__init__(str(error), **{"rule": rule, **error.details})
        self.about = about


def refuse_early(caller: Caller, right: Right) -> None:
    """Raise :class:`Refused` if rules deny this right, before ``prepare`` does what is slow."""
    decision = caller.authorizer.decide(caller, right)
    if decision.effect == "deny":
        raise Refused(PermissionDenied(decision.reason, rule=decision.rule), describe_object(right))


def denial(error: PermissionDenied) -> Decision:
    """The decision that a refusal while preparing stands for."""
    return Decision("deny", str(error.details.get("rule", NO_RULE)), str(error))


def note_refusal(caller: Caller, call: str, error: PermissionDenied) -> None:
    """Record in the audit log that a call was refused while it was prepared."""
    about = error.about if isinstance(error, Refused) else ""
    caller.audit.note(caller.entry(call, about, denial(error), "outcome", error.code))


@define
class Record:
    """The audit entries of a call that was not denied; ``intent`` is the number of its intent entry.

    ``decisions`` are those about its rights, in their order; ``decision`` is the one that the entries have.
    ``must_ask``: by one of them a person must approve.
    """

    caller: Caller
    call: str
    about: str
    decisions: Sequence[Decision]
    decision: Decision
    must_ask: bool = False
    intent: int | None = None
    began: float = field(factory=perf_counter)

    def entry(self, phase: Phase, outcome: str = "", remark: str = "") -> Entry:
        about = f"{self.about} ({remark})" if remark else self.about
        took = perf_counter() - self.began if outcome else None
        return self.caller.entry(self.call, about, self.decision, phase, outcome, took, self.intent)

    def require_again(self, rights: Sequence[Right]) -> None:
        """Raise as :func:`require` does; the refusal becomes the decision of the outcome's entry.

        A rule that asks still does: a person has approved by that rule.
        """
        for right, before in zip(rights, self.decisions, strict=True):
            decision = self.caller.authorizer.decide(self.caller, right)
            if decision.effect != "allow" and decision != before:
                self.decision = decision
                raise decision.refusal


def require(caller: Caller, prepared: Prepared, recorded: bool = True) -> Record | None:
    """Return the record of a call if no right of it is denied and, where a person must approve, one can be asked.

    None: nothing of the call is ``recorded`` and no person must approve. Otherwise ``PermissionDenied`` or
    ``ApprovalRequired`` is raised, and the refusal is recorded.
    """
    decisions, must_ask = [], False
    for right in prepared.rights:
        decision = caller.authorizer.decide(caller, right)
        if decision.effect != "allow":
            if decision.effect == "deny" or caller.approvals is None:
                raise caller.refuse(right, decision, prepared.about)
            must_ask = True
        decisions.append(decision)
    if not recorded and not must_ask:
        return None
    first = prepared.rights[0]
    about = describe_object(first, prepared.about)
    return Record(caller, first.action.upper(), about, decisions, decisions[0], must_ask)


def require_still(caller: Caller, rights: Sequence[Right]) -> None:
    """Raise ``PermissionDenied``, and record it, if rules now deny a right of a call that goes on."""
    for right in rights:
        decision = caller.authorizer.decide(caller, right)
        if decision.effect == "deny":
            raise caller.refuse(right, decision)
