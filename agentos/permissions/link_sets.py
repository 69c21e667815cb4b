"""The permission sets of links to the dashboard that may do less than the operator: viewers and approvers.

No name of a set leads here, so no configuration, HELLO or SET_PERMS gives one to a caller: only the program that serves
the dashboard in the kernel's process does. Hence what is else the operator's alone, whatever a rule grants, can be a
right of these. Sets are told apart by identity, not by content.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from .rule import Kind, PermissionSet, Rule

_VIEWS: Final[Mapping[Kind, Sequence[str]]] = {
    "calls": (
        *("NOOP", "HELLO", "CANCEL", "EXIT", "LIST", "TREE", "STATUS", "INSPECT", "LOGS", "USAGE", "APPROVALS"),
        *("SUBSCRIBE", "UNSUBSCRIBE", "POLL_EVENTS"),
        *("METRICS_SYSTEM", "METRICS_AGENT", "METRICS_ALL_AGENTS", "METRICS_CGROUP"),
    ),
    "agents": ("*",),
    "events": ("*",),
}


def _define(source: str, calls: Sequence[str] = (), read: Sequence[str] = ()) -> PermissionSet:
    granted: Mapping[Kind, Sequence[str]] = {**_VIEWS, "calls": (*_VIEWS["calls"], *calls), "read": read}
    rules = tuple(Rule("allow", kind, text, source) for kind, texts in granted.items() for text in texts)
    return PermissionSet(source, rules)


LINK_SETS: Final[Mapping[str, PermissionSet]] = {
    "viewer": _define("a viewer's link"),
    "viewer-with-contents": _define(
        "a viewer's link with contents", ("GET_CONTENTS", "GET_AUDIT_LOG"), ("${config}/**",)
    ),
    "approver": _define("an approver's link", ("DECIDE",)),
}
