"""One rule of a permission set, the set as it was written, and how a decision is worded."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from attrs import frozen

from agentos.kernel.ports import Decision, Effect, Right
from agentos.services.quotas import Quota

Kind = Literal["calls", "read", "write", "commands", "domains", "models", "send", "agents"]
KINDS: Final[Sequence[Kind]] = ("calls", "read", "write", "commands", "domains", "models", "send", "agents")
EFFECTS: Final[Sequence[Effect]] = ("deny", "ask", "allow")  # the stronger first

OBJECTS: Final[Mapping[str, Kind]] = {
    "read": "read",
    "write": "write",
    "exec": "commands",
    "http": "domains",
    "think": "models",
    "send": "send",
}
"""Which kind of rules judges what an action is done to; to grant any of it is to grant the call, too."""


@frozen
class Rule:
    """One line of a set; ``source`` is where it was written. ``otherwise``: it holds where no other does."""

    effect: Effect
    kind: Kind
    text: str
    source: str
    otherwise: bool = False

    def __str__(self) -> str:
        return f"{self.effect} {self.kind} {self.text} ({self.source})"


@frozen(cache_hash=True)
class PermissionSet:
    """What somebody may do, as it was written. ``name`` says where. ``level`` is what it begins with, if anything.

    ``limits`` are by name those that agents which it spawns get at most, ``quotas`` what it may use of the model.
    """

    name: str
    rules: tuple[Rule, ...]
    level: str | None = None
    limits: tuple[tuple[str, float], ...] = ()
    quotas: tuple[Quota, ...] = ()


def decision_by(rule: Rule, right: Right) -> Decision:
    """The decision that a rule makes."""
    if rule.effect == "allow":
        return Decision("allow", str(rule), "")
    why = "refused by" if rule.effect == "deny" else "a person has to agree, and this kernel can't ask one yet:"
    return Decision(rule.effect, str(rule), f"{said(right)}: {why} the rule {rule}")


def unspoken(right: Right, name: str, why: str = "") -> Decision:
    """No rule speaks of it, so it isn't granted."""
    return Decision("deny", f"no rule ({name})", f"{said(right)}: no rule of {name} allows it{why}")


def said(right: Right) -> str:
    """A right as its holder may hear of it."""
    told = right.told if right.told is not None else right.object
    return right.action.upper() if told is None else f"{right.action.upper()} {shortened(str(told))}"


def shortened(text: str, most: int = 200) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def strictness(decision: Decision) -> int:
    """Lower for what allows less: of decisions that all have to be heeded the least is the one."""
    return EFFECTS.index(decision.effect)
