"""GET_PERMS, SET_PERMS and EXPLAIN: read, change and explain permissions."""

from collections.abc import Mapping
from typing import Any, Literal

from attrs import field, frozen

from agentos_sdk.opcodes import Op

from .request import Request


@frozen(kw_only=True)
class PermsReply:
    """``permissions`` is the set in the form that SET_PERMS takes.

    Its field ``bounded_by`` holds the sets above that limit it, each with its ``name``.
    """

    success: bool = True
    permissions: Mapping[str, Any]


@frozen(kw_only=True)
class GetPerms(Request[PermsReply]):
    """Get the permissions of an agent, or of the caller."""

    op = Op.GET_PERMS
    reply = PermsReply
    agent_id: int | None = None


@frozen(kw_only=True)
class PermsSet:
    success: bool = True
    agent_id: int


@frozen(kw_only=True)
class SetPerms(Request[PermsSet]):
    """Replace an agent's permissions.

    Exactly one of ``level``, the name of a level or a set, and ``permissions``.
    """

    op = Op.SET_PERMS
    reply = PermsSet
    agent_id: int | None = None
    level: str | None = None
    permissions: object = None


@frozen(kw_only=True)
class Explained:
    """The ``decision``, the ``rule`` that made it, and the ``reason`` as a sentence."""

    success: bool = True
    decision: Literal["allow", "ask", "deny"]
    rule: str
    reason: str


@frozen(kw_only=True)
class Explain(Request[Explained]):
    """What would be decided if ``agent`` (a name or an id) made ``call`` with ``args``; nothing is executed."""

    op = Op.EXPLAIN
    reply = Explained
    agent: str | int
    call: str
    args: Mapping[str, Any] = field(factory=dict)
