"""GET_PERMS, SET_PERMS and EXPLAIN: what somebody may do, and why not."""

from collections.abc import Mapping
from typing import Any, Literal

from attrs import field, frozen

from agentos_sdk.opcodes import Op

from .request import Request


@frozen(kw_only=True)
class PermsReply:
    """``permissions`` is the set as SET_PERMS takes it, and with it ``bounded_by``: the sets of those above, each with
    its ``name``, within which it holds."""

    success: bool = True
    permissions: Mapping[str, Any]


@frozen(kw_only=True)
class GetPerms(Request[PermsReply]):
    """What an agent may do, or whoever calls."""

    op = Op.GET_PERMS
    reply = PermsReply
    agent_id: int | None = None


@frozen(kw_only=True)
class PermsSet:
    success: bool = True
    agent_id: int


@frozen(kw_only=True)
class SetPerms(Request[PermsSet]):
    """Give an agent other permissions: exactly one of ``level``, the name of a level or a set, and ``permissions``."""

    op = Op.SET_PERMS
    reply = PermsSet
    agent_id: int | None = None
    level: str | None = None
    permissions: object = None


@frozen(kw_only=True)
class Explained:
    """The ``decision``, the ``rule`` that made it, and the ``reason`` in a sentence."""

    success: bool = True
    decision: Literal["allow", "ask", "deny"]
    rule: str
    reason: str


@frozen(kw_only=True)
class Explain(Request[Explained]):
    """What would be decided if ``agent`` (a name or an id) made ``call`` with ``args``; nothing is done."""

    op = Op.EXPLAIN
    reply = Explained
    agent: str | int
    call: str
    args: Mapping[str, Any] = field(factory=dict)
