"""Which tools a client is shown: not those that its permission set can never allow."""

from collections.abc import Iterable, Mapping

from agentos_sdk.calls.operator.permissions import Approvals
from agentos_sdk.errors import CallError

from .tools import Tool
from .transports.session import Session

KINDS: Mapping[str, str] = {
    "READ": "read",
    "WRITE": "write",
    "EXEC": "commands",
    "THINK": "models",
    "HTTP": "domains",
    "SEND": "send",
}
"""The kind of rules that decide on each object of a call."""

EVERYTHING = frozenset({"*", "/**", "*:*"})  # patterns that match each object of their kind


async def find_possible(session: Session, tools: Iterable[Tool]) -> frozenset[str]:
    """The names of the tools whose call the client's set may allow, or ask about, with some arguments."""
    guest, operator = await session.guest(), await session.operator()
    permissions = await guest.get_permissions()
    denied = {
        kind
        for one in (permissions, *permissions["bounded_by"])
        for kind, patterns in one.get("deny", {}).items()
        if not EVERYTHING.isdisjoint(patterns)
    }
    possible = set[str]()
    for tool in tools:
        call = tool.request.op.name
        if KINDS.get(call) in denied:
            continue
        if tool.request is Approvals:  # its own, which the operator's connection lists for it
            possible.add(tool.name)
            continue
        try:
            explained = await operator.explain(guest.agent_id, call)
        except CallError:  # a field is missing: rules about the call itself were judged before, and allow it
            possible.add(tool.name)
        else:
            if explained.decision != "deny":
                possible.add(tool.name)
    return frozenset(possible)
