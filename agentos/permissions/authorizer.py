"""Authorizer: decides (allow, deny, or approval needed) by a caller's permission set and those of its ancestors."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from attrs import define, field
from msgspec import Struct

from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Effect, Right
from agentos.services.http.destination import Destination
from agentos_sdk.errors import NotFound, PermissionDenied, QuotaExceeded
from agentos_sdk.opcodes import Op

from .exec_decision import HARMLESS_FILES, deny_dangerous
from .exec_request import ExecRequest
from .levels import DENIALS, LEVELS, is_wider
from .link_sets import LINK_SETS
from .narrowing import find_wider_grant, has_same_content
from .patterns.base import Names
from .patterns.prefixes import intersect_prefixes
from .rule import KIND_OF_ACTION, Kind, PermissionSet, decision_by, describe_right, shorten, strictness
from .rules import AgentRelation, Rules

NOT_HELD = "a caller can't grant what it doesn't hold"  # in place of a rule's text
# Actions of the operator alone, whatever is granted, and of what it gave a link for them.
OPERATORS = frozenset(
    "set_audit_config approvals decide get_contents export import apply undo images snapshots "  # noqa: SIM905
    "record_start record_stop record_status replay_start replay_status replay_stop".split()
)
MAX_LAYERS = 8  # of permission sets that a caller may add on top of its own; each adds to the cost of every decision
compile_rules = lru_cache(64)(Rules)  # a large compiled set takes about 1 MiB


@lru_cache(8)
def compile_denials(home: str) -> Rules:
    """The compiled default denials. Of all names in :class:`Names` they use only ``home``."""
    return Rules(DENIALS, Names(home))


@define(eq=False)
class EffectivePermissions:
    """The permission sets of one caller: its own, and those of the callers that it got its rights from.

    The others' are referenced, not copied, so narrowing one caller also narrows all callers below it.
    """

    own: PermissionSet
    above: "EffectivePermissions | None"
    names: Names
    giver: "EffectivePermissions | None" = None  # the caller that gave ``own``, if it isn't in ``above``
    is_operators: bool = False  # the operator's own: these limit no caller that it gives rights to
    layers_added: int = 0  # number of sets that the caller added on top of its own
    # The last decision about a path, until rules change: READ and WRITE decide before they look at the file, and after.
    last_path: tuple[int, Right] | None = None
    last_decision: Decision | None = None
    _layers_version: int = -1
    _layers: Mapping[PermissionSet, Rules] = field(factory=dict)

    def chain(self) -> "Iterator[EffectivePermissions]":
        """These permissions and all that limit them."""
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

    def secrets(self) -> frozenset[str]:
        """The names of the secrets that all of these sets have; the operator, who may give any, holds none itself."""
        held = frozenset(self.own.secrets)
        for one in self.chain():
            if not one.is_operators:
                held &= frozenset(one.own.secrets)
        return held

    def is_of_link(self) -> bool:
        """Whether the operator gave these by a link to the dashboard."""
        return any(one.own is given for one in self.chain() for given in LINK_SETS.values())

    def forget_layers(self) -> None:
        """Compile the sets anew: the names in them have other values."""
        self._layers = {}

    def layers(self, version: int) -> Iterable[Rules]:
        """The compiled sets. They are cached until ``version``, the number of changes in this kernel, differs."""
        if self._layers_version != version:
            before = self._layers
            self._layers = {one: before.get(one) or compile_rules(one, self.names) for one in self.sets()}
            self._layers_version = version
        return self._layers.values()


class AgentTree(Struct, frozen=True):
    """How the agents and callers of one kernel are related.

    ``is_descendant(caller, other)``: whether ``other`` was spawned below ``caller``, at any depth; all agents are the
    operator's. ``name_of`` maps an id to a name. ``is_parent(number, other)``: whether ``other`` is the parent of the
    agent with the id ``number``; ``is_sibling(number, other)``: whether both are agents with the same supervisor.
    """

    is_descendant: Callable[[Caller, int], bool]
    name_of: Callable[[int], str]
    is_parent: Callable[[int, int], bool]
    is_sibling: Callable[[int, int], bool]


@define(eq=False)
class PermissionAuthorizer:
    """Implements :class:`agentos.kernel.ports.Authorizer`."""

    agents: AgentTree
    reserved: Sequence[str] = ()  # directories reserved for the kernel, as paths without symlinks
    observers: list[Callable[[], None]] = field(factory=list)  # called at once by announce_change
    _held: dict[int, EffectivePermissions] = field(factory=dict)  # by caller id
    version: int = field(default=0, init=False)  # differs after each change of any caller's rules

    def add_caller(
        self, number: int, own: PermissionSet, names: Names, above: int | None = None, *, is_operator: bool = False
    ) -> None:
        """Register a caller with the set ``own``, limited by what the caller ``above`` holds."""
        limits = self._held[above] if above is not None else None
        self._held[number] = EffectivePermissions(own, limits, names, is_operators=is_operator)

    def remove_caller(self, number: int) -> None:
        """Remove a caller. Callers that it gave rights to keep exactly what they had."""
        self._held.pop(number, None)

    def permissions_of(self, number: int) -> EffectivePermissions:
        """The effective permissions of a caller; raises ``NotFound`` if that caller has ended."""
        permissions = self._held.get(number)
        if permissions is None:
            raise NotFound(f"no caller has the id {number} any more")
        return permissions

    def check_not_wider(self, given: PermissionSet, above: int, field: str) -> None:
        """Raise ``PermissionDenied`` if ``given`` is a wider level than ``above`` holds, or has a secret that it lacks.

        A set that is wider in other ways passes here; decisions are still limited by the sets above it.
        """
        giver = self.permissions_of(above)
        for name in () if giver.is_operators else given.secrets:
            if name not in giver.secrets():
                raise PermissionDenied(
                    f"{field}.secrets: you can't grant the secret {name}, you don't hold it yourself", rule=NOT_HELD
                )
        for one in giver.sets():
            if is_wider(given, one):
                raise PermissionDenied(
                    f"{field}: you can't grant {given.level}, you hold no more than {one.level or one.name} yourself",
                    rule=NOT_HELD,
                )

    def check_narrower(self, given: PermissionSet, number: int, field: str) -> None:
        """Raise ``PermissionDenied`` if it grants what the caller doesn't hold, ``QuotaExceeded`` without a free layer.

        A set that changes nothing passes. Blocks: see :func:`~agentos.permissions.narrowing.find_wider_grant`.
        """
        held = self.permissions_of(number)
        if has_same_content(given, held.own):
            return
        self.check_not_wider(given, number, field)
        if (found := find_wider_grant(given, held.sets(), held.names)) is not None:
            rule, one = found
            grant, source = f"{rule.effect} {rule.kind} {shorten(rule.text)}", one.level or one.name
            raise PermissionDenied(
                f"{field}: you can't grant `{grant}`, you don't hold it yourself: {source} doesn't cover it",
                rule=NOT_HELD,
            )
        self.check_layer_left(given, number)

    def check_layer_left(self, given: PermissionSet, number: int) -> None:
        """Raise ``QuotaExceeded`` if :meth:`add_layer` would."""
        if self.permissions_of(number).layers_added >= MAX_LAYERS and not self.is_held_already(given, number):
            raise QuotaExceeded(
                f"a caller may narrow its own rights {MAX_LAYERS} times, and this never renews: "
                "its parent or the operator may set others"
            )

    def is_held_already(self, given: PermissionSet, number: int) -> bool:
        """Whether the caller already holds a set with the same content, as its own or above it."""
        return any(has_same_content(given, one) for one in self.permissions_of(number).sets())

    def replace_set(self, number: int, own: PermissionSet, by: int) -> None:
        """Replace the caller's own set by ``own``, and drop its narrowings. What ``by`` holds limits it, too."""
        held, giver = self.permissions_of(number), self.permissions_of(by)
        while held.layers_added:  # narrowings of the old set are dropped with it
            assert held.above is not None, "each such layer stands on the one before"
            held.above, held.layers_added = held.above.above, held.layers_added - 1
        held.own = own
        held.giver = None if any(one is giver for one in held.chain()) else giver
        self.announce_change()

    def replace_sets(self, number: int, changed: Mapping[PermissionSet, PermissionSet]) -> None:
        """Replace those of the caller's own sets, its narrowings included, that have changed."""
        held: EffectivePermissions | None = self.permissions_of(number)
        for _ in range(self.permissions_of(number).layers_added + 1):
            assert held is not None, "each such layer stands on the one before"
            held.own, held = changed.get(held.own, held.own), held.above
        self.announce_change()

    def replace_all(self, number: int, own: PermissionSet, names: Names) -> None:
        """Replace all that a caller without a caller above it holds, its narrowings and the set's giver included."""
        held = self.permissions_of(number)
        held.own, held.names, held.above, held.giver, held.layers_added = own, names, None, None, 0
        held.forget_layers()
        self.announce_change()

    def add_layer(self, number: int, own: PermissionSet) -> None:
        """Add a further set that limits all that the caller holds, for good.

        A set that it already holds changes nothing, but is announced: its caller may have become a guest.
        """
        if self.is_held_already(own, number):
            self.announce_change()
            return
        self.check_layer_left(own, number)
        self.stack(number, own)

    def stack(self, number: int, own: PermissionSet) -> None:
        """Limit all that the caller holds by a further set, however often it has narrowed its own rights."""
        held = self.permissions_of(number)
        held.above = EffectivePermissions(held.own, held.above, held.names, held.giver, held.is_operators)
        held.own, held.giver, held.is_operators, held.layers_added = own, None, False, held.layers_added + 1
        self.announce_change()

    def announce_change(self) -> None:
        """Tell the observers that rules, or remembered answers, have changed."""
        self.version += 1
        for observe in self.observers:
            observe()

    def decide(self, caller: Caller, right: Right) -> Decision:
        """Decide whether ``caller`` holds the right."""
        permissions = self._held.get(caller.id)
        if permissions is None:
            return Decision("deny", "the caller has ended", f"{describe_right(right)}: {caller.name} has ended")
        if right.action not in ("read", "write"):
            return self._decide(caller, right, permissions)
        path, decision = (self.version, right), permissions.last_decision
        if decision is None or permissions.last_path != path:
            decision = self._decide(caller, right, permissions)
            permissions.last_path, permissions.last_decision = path, decision
        return decision

    def _decide(self, caller: Caller, right: Right, permissions: EffectivePermissions) -> Decision:
        if (denied := self._deny_reserved(right) or apply_default_denials(right, permissions.names)) is not None:
            return denied
        if right.action in OPERATORS and caller.kind != "operator" and not permissions.is_of_link():
            return Decision("deny", "only the operator", f"{describe_right(right)}: only the operator may do that")
        target = self._relation_to(caller, right.agent) if right.agent is not None else None
        if right.action == "set_perms" and target is not None and not (target.own or target.itself):
            why = f"{target.name} is neither you nor an agent that you spawned"
            return Decision("deny", "only an ancestor sets rights", f"{describe_right(right)}: {why}")
        decisions = [layer.decide(right, target) for layer in permissions.layers(self.version)]
        found = min(decisions, key=strictness)
        if found.effect != "ask":
            return found
        # Of several rules that ask, the one furthest above: answers are bound to it, and no narrowing makes them void.
        return next(one for one in reversed(decisions) if one.effect == "ask")

    def grants_address(self, caller: Caller, wanted: Destination, *, approved: bool) -> bool:
        """Whether rules with exactly this address and port allow it, or ask about it and it was ``approved``."""
        decision = self.decide(caller, Right("http", wanted))
        if decision.effect == "deny" or (decision.effect == "ask" and not approved):
            return False
        permissions = self.permissions_of(caller.id)
        # `unrestricted` limits nothing else, but an agent that holds it has no such rule to pass on.
        if any(one.own is LEVELS["unrestricted"] and not one.is_operators for one in permissions.chain()):
            return False
        return all(layer.grants_by_address(wanted) for layer in permissions.layers(self.version))

    def could_reach(self, caller: Caller, host: str) -> bool:
        """Whether its rules could allow, or ask about, a connection to this host on some port."""
        permissions = self._held.get(caller.id)
        return permissions is not None and all(layer.could_reach(host) for layer in permissions.layers(self.version))

    def named_ports(self, caller: Caller) -> set[int]:
        """The TCP ports that its rules about domains name."""
        permissions = self._held.get(caller.id)
        layers = permissions.layers(self.version) if permissions is not None else ()
        return set().union(*(layer.named_ports() for layer in layers))

    def granted_prefixes(self, number: int, kind: Kind, *effects: Effect) -> Sequence[str]:
        """The prefixes, in order, of all names that may be allowed to this caller by grants of that kind.

        With ``effects`` those of all rules with these effects.
        """
        found = [""]
        for layer in self.permissions_of(number).layers(self.version):
            found = intersect_prefixes(found, layer.granted_prefixes(kind, *effects))
        return found

    def shows_events(self, number: int, name: str) -> bool:
        """Whether this caller may see events that concern an agent of that name, which isn't below it."""
        permissions = self._held.get(number)
        layers = permissions.layers(self.version) if permissions is not None else ()
        return permissions is not None and all(layer.shows_events(name) for layer in layers)

    def holds_grant(self, number: int, kind: Kind) -> bool:
        """Whether each set that this caller holds has a grant of that kind: without one nothing of it is allowed."""
        return all(
            any(rule.kind == kind and rule.effect != "deny" for rule in one.rules)
            for one in self.permissions_of(number).sets()
        )

    def refused_calls(self, number: int, calls: Sequence[Op]) -> Mapping[Op, Decision]:
        """The calls that this caller may not make with any arguments, each with the decision."""
        found: dict[Op, Decision] = {}
        for layer in self.permissions_of(number).layers(self.version):
            for op, decision in layer.refused_calls(tuple(calls)).items():
                found[op] = min(found[op], decision, key=strictness) if op in found else decision
        return found

    def decide_call(self, number: int, op: Op) -> Decision:
        """Decide whether this caller may make a call at all."""
        layers = self.permissions_of(number).layers(self.version)
        return min([layer.decide_call(op.name.lower()) for layer in layers], key=strictness)

    def _deny_reserved(self, right: Right) -> Decision | None:
        """Deny the kernel's own directories, such as its audit log, to every caller."""
        paths: Iterable[str | None] = ()
        if isinstance(right.object, ExecRequest) and not right.object.jailed:
            paths = (path for _, path in right.object.redirect_paths())
        elif right.action in ("read", "write"):
            paths = (str(right.object),)
        for path in paths:
            if path is not None and any(path == place or path.startswith(f"{place}/") for place in self.reserved):
                reason = f"{describe_right(right)}: that directory is reserved for the kernel"
                return Decision("deny", "the kernel's own (default denials)", reason)
        return None

    def _relation_to(self, caller: Caller, agent: int) -> AgentRelation:
        agents, itself = self.agents, agent == caller.id
        own = not itself and agents.is_descendant(caller, agent)
        parent, group = agents.is_parent(caller.id, agent), agents.is_sibling(caller.id, agent)
        return AgentRelation(agents.name_of(agent), itself, own, parent, group)


def apply_default_denials(right: Right, names: Names) -> Decision | None:
    """Apply the default denials, which hold for every caller."""
    if isinstance(right.object, ExecRequest):
        return deny_dangerous(right.object) or _deny_target(right.object, right, names)
    if right.action not in ("read", "write"):
        return None
    kind: Kind = KIND_OF_ACTION[right.action]
    found = compile_denials(names.home).find_denial(kind, str(right.object))
    return decision_by(found, right) if found is not None else None


def _deny_target(request: ExecRequest, right: Right, names: Names) -> Decision | None:
    for redirect, path in request.redirect_paths():
        if path in HARMLESS_FILES:
            continue
        found = compile_denials(names.home).find_denial("write" if redirect.writes else "read", path) if path else None
        if found is not None:
            return decision_by(found, right)
    return None
