"""Authorizer: decides whether a caller may do something, from its own permission set and those it is held within."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from attrs import define, field, frozen

from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Right
from agentos_sdk.errors import NotFound, PermissionDenied, QuotaExceeded
from agentos_sdk.opcodes import Op

from .exec_decision import HARMLESS, danger
from .exec_request import Wanted
from .levels import DENIALS, LEVELS, is_wider
from .narrowing import same, wider_grant
from .patterns.base import Names
from .rule import OBJECTS, Kind, PermissionSet, decision_by, said, shortened, strictness
from .rules import AgentRelation, Rules

BEYOND = "nobody gives more than he has"  # in place of a rule's text
MOST_LAYERS = 8  # of permission sets that a caller may add on top of its own; each adds to the cost of every decision
compiled = lru_cache(64)(Rules)  # a large compiled set takes about 1 MiB


@lru_cache(8)
def denials(home: str) -> Rules:
    """The compiled default denials. Of all names in :class:`Names` they use only ``home``."""
    return Rules(DENIALS, Names(home))


@define(eq=False)
class EffectivePermissions:
    """The permission sets of one caller: its own, and the holdings of the callers that it got its rights from.

    Holdings are referenced, not copied, so narrowing one caller also narrows all callers below it.
    """

    own: PermissionSet
    above: "EffectivePermissions | None"
    names: Names
    giver: "EffectivePermissions | None" = None  # the caller that gave ``own``, if it isn't in ``above``
    narrowed: int = 0  # number of sets that the caller added on top of its own
    _change: int = -1
    _layers: Mapping[PermissionSet, Rules] = field(factory=dict)

    def chain(self) -> "Iterator[EffectivePermissions]":
        """This holding and all holdings that it is limited by."""
        yield self
        for further in (self.giver, self.above):
            if further is not None:
                yield from further.chain()

    def sets(self) -> tuple[PermissionSet, ...]:
        """The sets that must all allow an action: its own first, then those above, without duplicates.

        `unrestricted` adds no constraint and is skipped.
        """
        above = (one.own for one in self.chain() if one.own is not LEVELS["unrestricted"])
        return tuple(dict.fromkeys([self.own, *above]))

    def layers(self, change: int) -> Iterable[Rules]:
        """The compiled sets. They are cached until ``change``, the kernel-wide count of changes, differs."""
        if self._change != change:
            ready = self._layers
            self._layers = {one: ready.get(one) or compiled(one, self.names) for one in self.sets()}
            self._change = change
        return self._layers.values()


@frozen
class Relation:
    """How the agents and callers of one kernel are related.

    ``own(caller, other)``: whether ``other`` is a descendant of ``caller``, at any depth; the operator owns all agents.
    ``name`` maps an id to a name, ``parent`` an id to the id of its parent.
    """

    own: Callable[[Caller, int], bool]
    name: Callable[[int], str]
    parent: Callable[[int], int | None]


@define(eq=False)
class PermissionAuthorizer:
    """Implements :class:`agentos.kernel.ports.Authorizer`."""

    relation: Relation
    kernels: Sequence[str] = ()  # directories reserved for the kernel, as paths without symlinks
    _held: dict[int, EffectivePermissions] = field(factory=dict)  # by caller id
    _changes: int = 0

    def admit(self, number: int, own: PermissionSet, names: Names, above: int | None = None) -> None:
        """Register a caller with the set ``own``, limited by what the caller ``above`` holds."""
        self._held[number] = EffectivePermissions(own, self._held[above] if above is not None else None, names)

    def leave(self, number: int) -> None:
        """Remove a caller. Callers that it gave rights to keep exactly what they had."""
        self._held.pop(number, None)

    def holding(self, number: int) -> EffectivePermissions:
        """The holding of a caller; raises ``NotFound`` if that caller has ended."""
        found = self._held.get(number)
        if found is None:
            raise NotFound(f"nobody with the id {number} is there any more")
        return found

    def check_not_wider(self, given: PermissionSet, above: int, field: str) -> None:
        """Raise ``PermissionDenied`` if ``given`` is a wider level than ``above`` holds.

        A set that is wider in other ways passes here; decisions are still limited by the sets above it.
        """
        for one in self.holding(above).sets():
            if is_wider(given, one):
                told = f"{field}: {given.level} is more than {one.level or one.name}, and nobody gives more than he has"
                raise PermissionDenied(told, rule=BEYOND)

    def check_narrower(self, given: PermissionSet, number: int, field: str) -> None:
        """Raise ``PermissionDenied`` if it grants what the caller doesn't hold, ``QuotaExceeded`` without a free layer.

        A set that changes nothing passes. Blocks: see :func:`~agentos.permissions.narrowing.wider_grant`.
        """
        held = self.holding(number)
        if same(given, held.own):
            return
        self.check_not_wider(given, number, field)
        if (found := wider_grant(given, held.sets(), held.names)) is not None:
            rule, one = found
            told = f"{rule.effect} {rule.kind} {shortened(rule.text)} isn't covered by {one.level or one.name}"
            raise PermissionDenied(f"{field}: {told}, so it is more than the caller holds", rule=BEYOND)
        self.check_room(given, number)

    def check_room(self, given: PermissionSet, number: int) -> None:
        """Raise ``QuotaExceeded`` if :meth:`narrow` would."""
        if self.holding(number).narrowed >= MOST_LAYERS and not self.changes_nothing(given, number):
            raise QuotaExceeded(
                f"a caller narrows its own rights {MOST_LAYERS} times at most, and that never renews: "
                "whoever spawned it may set others"
            )

    def changes_nothing(self, given: PermissionSet, number: int) -> bool:
        """Whether the caller already holds a set with the same content, as its own or above it."""
        return any(same(given, one) for one in self.holding(number).sets())

    def give(self, number: int, own: PermissionSet, by: int) -> None:
        """Replace the caller's own set by ``own``, and drop its narrowings. What ``by`` holds limits it, too."""
        held, giver = self.holding(number), self.holding(by)
        while held.narrowed:  # narrowings of the old set are dropped with it
            assert held.above is not None, "each such layer stands on the one before"
            held.above, held.narrowed = held.above.above, held.narrowed - 1
        held.own = own
        held.giver = None if any(one is giver for one in held.chain()) else giver
        self._changes += 1

    def narrow(self, number: int, own: PermissionSet) -> None:
        """Add a further set that limits all that the caller holds, for good.

        A set that it already holds changes nothing.
        """
        if self.changes_nothing(own, number):
            return
        self.check_room(own, number)
        held = self.holding(number)
        held.above, held.own = EffectivePermissions(held.own, held.above, held.names, held.giver), own
        held.giver, held.narrowed = None, held.narrowed + 1
        self._changes += 1

    def decide(self, caller: Caller, right: Right) -> Decision:
        """Decide whether ``caller`` holds the right."""
        holding = self._held.get(caller.id)
        if holding is None:
            return Decision("deny", "nobody", f"{said(right)}: {caller.name} has ended")
        if (denied := self._denied(right) or denied_to_all(right, holding.names)) is not None:
            return denied
        if right.action == "set_audit_config" and caller.kind != "operator":
            return Decision("deny", "the operator's alone", f"{said(right)}: only the operator may do that")
        target = self._relation_to(caller, right.agent) if right.agent is not None else None
        if right.action == "set_perms" and target is not None and not (target.own or target.itself):
            why = f"{target.name} is neither you nor an agent that you spawned"
            return Decision("deny", "only an ancestor sets rights", f"{said(right)}: {why}")
        return min([layer.decide(right, target) for layer in holding.layers(self._changes)], key=strictness)

    def refused(self, number: int, calls: Iterable[Op]) -> Mapping[Op, Decision]:
        """The calls that this caller may not make with any arguments, each with the decision."""
        found = {op: self.of_call(number, op) for op in calls}
        return {op: decision for op, decision in found.items() if decision.effect != "allow"}

    def of_call(self, number: int, op: Op) -> Decision:
        """Decide whether this caller may make a call at all."""
        layers = self.holding(number).layers(self._changes)
        return min([layer.of_call(op.name.lower()) for layer in layers], key=strictness)

    def _denied(self, right: Right) -> Decision | None:
        """Deny the kernel's own directories, such as its audit log, to every caller."""
        paths: Iterable[str | None] = ()
        if isinstance(right.object, Wanted) and not right.object.jailed:
            paths = (path for _, path in right.object.places())
        elif right.action in ("read", "write"):
            paths = (str(right.object),)
        for path in paths:
            if path is not None and any(path == place or path.startswith(f"{place}/") for place in self.kernels):
                return Decision(
                    "deny", "the kernel's own (default denials)", f"{said(right)}: that is the kernel's own"
                )
        return None

    def _relation_to(self, caller: Caller, agent: int) -> AgentRelation:
        relation, itself = self.relation, agent == caller.id
        own = not itself and relation.own(caller, agent)
        return AgentRelation(relation.name(agent), itself, own, relation.parent(caller.id) == agent)


def denied_to_all(right: Right, names: Names) -> Decision | None:
    """Apply the default denials, which hold for every caller."""
    if isinstance(right.object, Wanted):
        return danger(right.object) or _denied_target(right.object, right, names)
    if right.action not in ("read", "write"):
        return None
    kind: Kind = OBJECTS[right.action]
    found = denials(names.home).denial(kind, str(right.object))
    return decision_by(found, right) if found is not None else None


def _denied_target(wanted: Wanted, right: Right, names: Names) -> Decision | None:
    for redirect, path in wanted.places():
        if path in HARMLESS:
            continue
        found = denials(names.home).denial("write" if redirect.writes else "read", path) if path else None
        if found is not None:
            return decision_by(found, right)
    return None
