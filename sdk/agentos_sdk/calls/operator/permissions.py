"""GET_PERMS, SET_PERMS, EXPLAIN, APPROVALS and DECIDE: read, change and explain permissions, and approve calls."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from attrs import field

from agentos_sdk.calls.request import Request, SuccessfulReply
from agentos_sdk.encoding.codec import Rule, Seconds
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op

VIA = re.compile(r"[ -~]{1,100}")


@record
class Answer:
    """A decision of a person that is remembered: ``agent`` may (``allow``) or may not do ``call`` to ``object``.

    ``rule`` is the rule that asked, with which the answer ends. ``agent_id``: only the agent with that id; ``None``:
    any of that name. ``by`` decided ``at`` that time, with a ``reason``; it holds until ``until``. Times are seconds
    since the epoch. DECIDE forgets it by its ``id``.
    """

    id: int
    agent: str
    agent_id: int | None
    call: str
    object: str
    rule: str
    allow: bool
    reason: str | None
    by: str
    at: float
    until: float | None


@record
class PermsReply(SuccessfulReply):
    """``permissions`` is the set in the form that SET_PERMS takes.

    Its field ``bounded_by`` holds the sets above that limit it, each with its ``name``. ``answers`` are the remembered
    decisions of persons, for the operator: those about that agent, or without ``agent_id`` all.
    """

    permissions: Mapping[str, Any]
    answers: Sequence[Answer] = ()


@record
class GetPerms(Request[PermsReply]):
    """Get the permissions of an agent, or of the caller."""

    op = Op.GET_PERMS
    agent_id: int | None = None


@record
class PermsSet(SuccessfulReply):
    agent_id: int


@record
class SetPerms(Request[PermsSet]):
    """Replace an agent's permissions.

    Exactly one of ``level``, the name of a level or a set, and ``permissions``.
    """

    op = Op.SET_PERMS
    agent_id: int | None = None
    level: str | None = None
    permissions: object = None


@record
class Explained(SuccessfulReply):
    """The ``decision``, the ``rule`` that made it, and the ``reason`` as a sentence.

    For the operator, where the decision is ``ask``: ``shown``, ``lines`` and ``digest`` are those that the approval
    would have.
    """

    decision: Literal["allow", "ask", "deny"]
    rule: str
    reason: str
    shown: str | None = None
    lines: Sequence[Sequence[str]] = ()
    digest: str | None = None


@record
class Explain(Request[Explained]):
    """What would be decided if ``agent`` (a name or an id) made ``call`` with ``args``; nothing is executed.

    The operator may also ask about a guest, and a guest about itself.
    """

    op = Op.EXPLAIN
    agent: str | int
    call: str
    args: Mapping[str, Any] = field(factory=dict)


@record
class Pending:
    """A call that waits for a person's approval.

    ``shown`` is what it is about to do, in lines that are safe to print: what comes from the agent is escaped.
    ``lines`` has each of them in two parts: words of the kernel's and, where it has any, text that the agent, a server
    or a file has chosen. Show them in separate elements: where a screen breaks a long line, quoted text must not begin
    like one of the kernel's. ``rule`` asks for approval. ``caller_present``: what made the call is still there;
    otherwise it can't be allowed any more. ``path`` is the name of ``agent`` behind those of the agents that it
    descends from, as ``parent/child``: an agent chooses the names of those that it spawns, and can't choose this. It is
    empty where the caller has no lasting name, or asked of a kernel before this one. ``digest`` is a SHA-256 in
    hexadecimal of all that the approval is bound to. ``covers`` says what a remembered answer would be for, in lines
    like these, ``covers_any_path`` is the one of an answer with ``any_path``, empty where none can be given. Times are
    seconds since the epoch.
    """

    id: int
    agent: str
    call: str
    shown: str
    rule: str
    asked_at: float
    expires_at: float
    caller_present: bool
    digest: str = ""
    lines: Sequence[Sequence[str]] = ()
    covers: Sequence[Sequence[str]] = ()
    covers_any_path: Sequence[str] = ()
    path: str = ""


@record
class ApprovalsReply(SuccessfulReply):
    """``pending``: all that waits, the first of each agent first, so that no agent hides another's.

    ``omitted``: how many more there are, for which a reply has no room; they are listed once others are decided.
    """

    pending: Sequence[Pending]
    omitted: int = 0


@record
class Approvals(Request[ApprovalsReply]):
    """List the calls that wait for a person's approval; with ``follow`` again whenever the list changes.

    Only for the operator.
    """

    op = Op.APPROVALS
    follow: bool = False


@record
class Decided(SuccessfulReply):
    id: int


@record
class Decide(Request[Decided]):
    """Allow or refuse a call that waits for approval; only for the operator.

    ``remember`` the answer for the next calls that do the same to the same object, by the agent with this id
    (``agent``) or by any of that name (``always``), for ``for_`` seconds or without end. For an HTTP request the object
    is its method, origin and path, with ``any_path`` all paths of that origin. ``reason``: for the agent, where it is
    refused. ``forget``: ``id`` is that of a remembered answer, which is revoked.

    With ``digest`` it is decided only if the approval's is the same. ``via``: the program by which a person has
    answered, which the audit log and the event name.
    """

    op = Op.DECIDE
    id: int
    allow: bool
    remember: Literal["once", "agent", "always"] = "once"
    for_: Annotated[Seconds, Rule(lambda seconds: seconds > 0, "a duration above 0s")] | None = None
    reason: Annotated[str, Rule(lambda text: len(text) <= 1000, "at most 1000 characters")] | None = None
    forget: bool = False
    digest: str | None = None
    via: Annotated[str, Rule(VIA.fullmatch, "1 to 100 printable ASCII characters")] | None = None
    any_path: bool = False
