"""A permission rule (allow, deny, or ask for approval), a permission set as it was written, and decisions as text."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final, Literal, get_args

from attrs import frozen

from agentos.kernel.ports import Decision, Effect, Right
from agentos.services.quotas import Quota

Kind = Literal[
    "calls",
    "read",
    "write",
    "commands",
    "domains",
    "models",
    "tools",
    "send",
    "agents",
    "events",
    "state_read",
    "state_write",
]
KINDS: Final[Sequence[Kind]] = get_args(Kind)
EFFECTS: Final[Sequence[Effect]] = ("deny", "ask", "allow")  # strongest first

KIND_OF_ACTION: Final[Mapping[str, Kind]] = {
    "read": "read",
    "write": "write",
    "exec": "commands",
    "http": "domains",
    "think": "models",
    "tools": "tools",
    "tool_call": "tools",
    "send": "send",
    "fetch": "state_read",
    "keys": "state_read",
    "store": "state_write",
    "delete": "state_write",
}
"""The kind of rules that decides on the object of an action. A grant of any object also grants the call."""


@frozen
class Rule:
    """One rule of a set; ``source`` is where it was written. ``fallback``: it applies only if no other rule does."""

    effect: Effect
    kind: Kind
    text: str
    source: str
    fallback: bool = False

    def __str__(self) -> str:
        return f"{self.effect} {self.kind} {self.text} ({self.source})"

    @cached_property
    def grant(self) -> Decision:
        """The decision of this rule if it allows."""
        return Decision("allow", str(self), "")


@frozen(cache_hash=True)
class PermissionSet:
    """A permission set as it was written. ``name`` says where, ``level`` is the level that it extends, if any.

    ``limits`` are, by name, upper bounds of the limits of agents that the caller spawns. ``quotas`` bound its model
    use. ``secrets`` are the names of those that its HTTP requests get; no level has any.
    """

    name: str
    rules: tuple[Rule, ...]
    level: str | None = None
    limits: tuple[tuple[str, float], ...] = ()
    quotas: tuple[Quota, ...] = ()
    secrets: tuple[str, ...] = ()


def decision_by(rule: Rule, right: Right) -> Decision:
    """The decision of a rule that matched."""
    if rule.effect == "allow":
        return rule.grant
    why = "refused by" if rule.effect == "deny" else "a person has to agree, by"
    return Decision(rule.effect, str(rule), f"{describe_right(right)}: {why} the rule {rule}")


def deny_by_default(right: Right, name: str, why: str = "") -> Decision:
    """The denial for a right that no rule matches."""
    return Decision("deny", f"no rule ({name})", f"{describe_right(right)}: no rule of {name} allows it{why}")


def describe_right(right: Right) -> str:
    """The text of a right as its holder may see it."""
    shown = right.shown_as if right.shown_as is not None else right.object
    return right.action.upper() if shown is None else f"{right.action.upper()} {shorten(str(shown))}"


def shorten(text: str, max_length: int = 200) -> str:
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def strictness(decision: Decision) -> int:
    """Sort key: lower allows less. Of several decisions that all apply the lowest counts."""
    return EFFECTS.index(decision.effect)
