"""Decides on a right by one permission set: deny before ask before allow, and deny if no rule matches."""

from collections.abc import Mapping
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from agentos.kernel.ports import Decision, Effect, Right
from agentos.services.http.destination import Destination
from agentos_sdk.opcodes import Op

from .exec_decision import ExecDecision
from .exec_request import ExecRequest
from .patterns import commands, domains, paths
from .patterns.base import Names, Pattern
from .patterns.globs import literal_prefix
from .patterns.names import ModelPattern, NamePattern
from .patterns.prefixes import reduce_prefixes
from .rule import EFFECTS, KIND_OF_ACTION, KINDS, Kind, PermissionSet, Rule, decision_by, deny_by_default, strictness
from .rule_index import RuleIndex

OWN, PARENT, GROUP = "${own}", "${parent}", "${group}"
RELATIONS = {PARENT: "your parent", OWN: "an agent that you spawned", GROUP: "an agent with your supervisor"}
"""The patterns that match by relation to the holder, and what each stands for. ``${own}``: at any depth."""
MAX_DECIDED = 1000  # decisions about callers that one set remembers


class AgentRelation(Struct, frozen=True):
    """The agent, or other caller, that a right concerns, and its relation to the holder of the right."""

    name: str
    itself: bool = False
    own: bool = False  # a descendant of the holder, at any depth
    parent: bool = False  # the parent of the holder
    group: bool = False  # an agent with the same supervisor, also the holder itself

    def matches(self, text: str) -> bool:
        """Whether it is what a pattern of :data:`RELATIONS` stands for."""
        return self.own if text == OWN else self.parent if text == PARENT else self.group


class Rules:
    """A permission set compiled for one kind of caller."""

    def __init__(self, given: PermissionSet, names: Names) -> None:
        self.set = given
        found: dict[Kind, dict[Effect, list[tuple[Rule, Pattern]]]] = {
            kind: {effect: [] for effect in EFFECTS} for kind in KINDS
        }
        self._call_decisions: dict[str, Decision] = {}
        self._decided: dict[tuple[Right, AgentRelation], Decision] = {}
        self._refused: dict[tuple[Op, ...], Mapping[Op, Decision]] = {}
        self._relations: dict[tuple[Kind, Effect], list[tuple[Rule, str]]] = {}
        for rule in sorted(given.rules, key=lambda rule: rule.fallback):
            matched_as: Effect = "allow" if rule.fallback else rule.effect  # after all grants
            pattern = parse_pattern(rule.kind, rule.text, names)
            if isinstance(pattern, _RelationPattern):
                self._relations.setdefault((rule.kind, matched_as), []).append((rule, rule.text))
            else:
                found[rule.kind][matched_as].append((rule, pattern))
        self._indexes: dict[Kind, dict[Effect, RuleIndex]] = {
            kind: {effect: RuleIndex(kind, effect != "allow", rules) for effect, rules in of_kind.items()}
            for kind, of_kind in found.items()
        }

    def decide(self, right: Right, relation: AgentRelation | None = None) -> Decision:
        """Decide on a right. Enforcing and explaining both use this function. What concerns a caller is cached."""
        if relation is None:
            return self._decide(right, None)
        asked = right, relation
        found = self._decided.get(asked)
        if found is None:
            if len(self._decided) >= MAX_DECIDED:
                self._decided.clear()
            found = self._decided[asked] = self._decide(right, relation)
        return found

    def _decide(self, right: Right, relation: AgentRelation | None) -> Decision:
        decisions = [self.decide_call(right.action)]
        if decisions[0].effect == "deny":
            return decisions[0]
        if right.action in KIND_OF_ACTION:
            decisions.append(self._decide_object(right, relation))
        if relation is not None and right.action != "send" and not relation.itself:
            shown = replace(right, shown_as=relation.name)
            if right.action != "subscribe":
                decisions.append(self._match("agents", relation, shown))
            elif not relation.own:
                decisions.append(self._match("events", relation, shown))
        return min(reversed(decisions), key=strictness)  # of equal decisions the most specific one

    def decide_call(self, action: str) -> Decision:
        """Decide whether the call is allowed at all, for any object."""
        if action not in self._call_decisions:
            self._call_decisions[action] = self._decide_call(action)
        return self._call_decisions[action]

    def refused_calls(self, calls: tuple[Op, ...]) -> Mapping[Op, Decision]:
        """Those of the calls that aren't allowed for any object, each with the decision; cached."""
        if calls not in self._refused:
            decisions = ((op, self.decide_call(op.name.lower())) for op in calls)
            self._refused[calls] = {op: decision for op, decision in decisions if decision.effect != "allow"}
        return self._refused[calls]

    def shows_events(self, name: str) -> bool:
        """Whether events that concern an agent of that name may be seen by a holder that isn't above it."""
        return self._match("events", AgentRelation(name), Right("subscribe")).effect == "allow"

    def _decide_call(self, action: str) -> Decision:
        right, name = Right(action), action.upper()
        found = self._match("calls", name, right)
        if found.effect == "deny" and self.find_denial("calls", name) is None and action in KIND_OF_ACTION:
            about = [rule for rule in self.set.rules if rule.kind == KIND_OF_ACTION[action] and rule.effect != "deny"]
            if about:  # a grant or question about its objects allows the call
                return min(about, key=lambda rule: rule.effect).grant
            if action == "http":  # granted by rules that don't bear the name of the call
                return deny_by_default(right, self.set.name, "; it has no rules for domains")
        return found

    def grants_by_address(self, wanted: Destination) -> bool:
        """Whether a rule that allows it, or asks about it, has exactly its address and port."""
        return any(pattern.names_address(wanted) for pattern in self._domains("allow", "ask"))

    def could_reach(self, host: str) -> bool:
        """Whether they could allow, or ask about, a connection to this host on some port."""
        if self.decide_call("http").effect == "deny":
            return False
        whole = (one for one in self._domains("deny") if not one.is_hidden and one.is_for_default_ports)
        named = any(pattern.names_host(host) for pattern in self._domains("allow", "ask"))
        return named and not any(pattern.names_host(host) for pattern in whole)

    def named_ports(self) -> set[int]:
        """The ports that grants and questions about domains name; those without a port are about 80 and 443."""
        return {port for pattern in self._domains("allow", "ask") for port in pattern.ports or ()}

    def _domains(self, *effects: Effect) -> list[domains.DomainPattern]:
        indexes = self._indexes["domains"]
        return [cast(domains.DomainPattern, pattern) for effect in effects for _, pattern in indexes[effect].rules]

    def granted_prefixes(self, kind: Kind, *effects: Effect) -> list[str]:
        """The prefixes of all names that its grants of a kind with patterns of names match; or rules of ``effects``."""
        rules = [rule for effect in effects or ("allow",) for rule in self._indexes[kind][effect].rules]
        granted = (cast(NamePattern, pattern) for _, pattern in rules)
        return reduce_prefixes(literal_prefix(pattern.items) for pattern in granted)

    def find_denial(self, kind: Kind, what: object) -> Rule | None:
        """The rule that denies it, if any."""
        return self._indexes[kind]["deny"].find(what)

    def _decide_object(self, right: Right, relation: AgentRelation | None) -> Decision:
        kind = KIND_OF_ACTION[right.action]
        if right.object is None and relation is None:
            return self.decide_call(right.action)  # of a private key, or an object that isn't there, no rule is
        if right.action == "tools":
            return self.decide_call(right.action)  # it lists only what the caller may call
        if kind == "models" and not any(rule.kind == "models" for rule in self.set.rules):
            return self.decide_call(right.action)  # without rules about models any model is allowed
        if kind == "send":
            return self._match(kind, relation if relation is not None else AgentRelation(str(right.object)), right)
        if isinstance(right.object, ExecRequest):
            return ExecDecision(right.object, self._indexes, right, self.set.name).decision()
        if kind == "domains":
            if isinstance(right.object, Destination):
                return self._match(kind, right.object, right)
            return deny_by_default(right, self.set.name)
        return self._match(kind, str(right.object) if right.object is not None else "", right)

    def _match(self, kind: Kind, what: object, right: Right) -> Decision:
        name = what.name if isinstance(what, AgentRelation) else what
        for effect, index in self._indexes[kind].items():
            related = self._match_relation(kind, effect, what) if isinstance(what, AgentRelation) else None
            rule = related or index.find(name)
            if rule is None or (effect == "ask" and related is None and not self._is_granted(kind, what, name)):
                continue  # an "ask" rule only applies to what is granted
            return decision_by(rule, right)
        why = "; it is neither you nor an agent that you spawned" if kind in ("agents", "events") else ""
        if kind == "send" and (granted := [rule.text for rule, _ in self._relations.get((kind, "allow"), ())]):
            why = f"; {name} is not {' or '.join(text for pattern, text in RELATIONS.items() if pattern in granted)}"
        if isinstance(what, Destination):
            why = domains.explain_refusal(what, self._domains("allow"))
        if kind in ("state_read", "state_write"):
            why = "; the scopes agent and session need no rule"
        return deny_by_default(right, self.set.name, why)

    def _is_granted(self, kind: Kind, what: object, name: object) -> bool:
        indexes = self._indexes[kind]
        if isinstance(what, AgentRelation) and self._match_relation(kind, "allow", what) is not None:
            return True
        return (indexes["ask"].find(name, as_grant=True) or indexes["allow"].find(name)) is not None

    def _match_relation(self, kind: Kind, effect: Effect, relation: AgentRelation) -> Rule | None:
        """The rule that matches this agent by its relation to the holder, not by name."""
        of_kind = self._relations.get((kind, effect), ())
        return next((rule for rule, text in of_kind if relation.matches(text)), None)


class _RelationPattern(Struct, frozen=True):
    """A pattern of :data:`RELATIONS`: matches by relation to the holder."""

    text: str

    def matches(self, what: object, *, deny: bool) -> bool:
        return isinstance(what, AgentRelation) and what.matches(self.text)

    def covers(self, other: Pattern, *, deny: bool) -> bool:
        return self.text == other.text


def parse_pattern(kind: Kind, text: str, names: Names) -> Pattern:
    """Parse a pattern of that kind; raises :class:`~agentos.permissions.patterns.base.BadPattern`."""
    if kind in ("read", "write"):
        return paths.parse_path_pattern(text, names)
    if kind == "commands":
        return commands.parse_command_pattern(text)
    if kind == "domains":
        return domains.parse_domain_pattern(text)
    if (kind == "agents" and text == OWN) or (kind == "send" and text in RELATIONS):
        return _RelationPattern(text)
    return ModelPattern.parse(text) if kind == "models" else NamePattern.parse(text)
