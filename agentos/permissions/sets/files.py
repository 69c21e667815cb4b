"""Permission sets in TOML or JSON: strict parsing that reports all mistakes at once, and conversion back."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import attrs
from attrs import define, field
from msgspec import Struct

from agentos.kernel.ports import Effect
from agentos.permissions import unreachable_rules
from agentos.permissions.levels import BASE_RULES, LEVELS
from agentos.permissions.patterns import domains
from agentos.permissions.patterns.base import BadPattern, Names
from agentos.permissions.patterns.names import NamePattern
from agentos.permissions.rule import EFFECTS, KINDS, Kind, PermissionSet, Rule
from agentos.permissions.rules import OWN, PARENT, parse_pattern
from agentos.permissions.unreachable_rules import Line
from agentos.services.http.secrets import SecretSettings
from agentos.services.quotas import MONEY_UNITS, Quota, make_quotas
from agentos_sdk.clients.suggestions import suggest_name
from agentos_sdk.encoding.codec import Invalid, Mistake, decode
from agentos_sdk.encoding.codec import path as dotted
from agentos_sdk.encoding.quantities import CPU_PERIOD
from agentos_sdk.encoding.strict import quote
from agentos_sdk.opcodes import Op

from . import examples as set_examples
from .schema import ExamplesTable, LimitsTable, QuotaLine, RulesTable, SetTable, SpawnTable

T = TypeVar("T")

Keys = tuple[str | int, ...]


class BadSet(ValueError):
    """An invalid permission set, or one with rules that have no effect; ``mistakes`` lists all that were found."""

    def __init__(self, mistakes: Sequence[tuple[Keys, str]]) -> None:
        super().__init__(mistakes)
        self.mistakes = tuple(mistakes)

    def describe_mistakes(self, field: str) -> str:
        """All mistakes as one text; ``field`` is the name of the field that held the set."""
        return str(Invalid([Mistake(dotted(keys, field), message, keys) for keys, message in self.mistakes]))

    def __str__(self) -> str:
        return self.describe_mistakes("")


class SetSize(Struct, frozen=True):
    """The maximum size of a set: number of rules, and characters of all patterns together."""

    rules: int = 1000
    characters: int = 64 << 10


MAX_SET_SIZE: Final = SetSize()
BARE_NAME: Final = re.compile(r"[^/*?\[\\~$]+/?")  # a name alone: it would match at any depth, which is rarely meant


def read_set(
    data: object, name: str, known: Mapping[str, PermissionSet], names: Names, max_size: SetSize = MAX_SET_SIZE
) -> PermissionSet:
    """Parse a table, a JSON object, or the name of a level or of a ``known`` set; raises :class:`BadSet`.

    ``name`` says where it was written. ``names`` are those of a jailed caller; rules and examples are checked with
    them.
    """
    if isinstance(data, str):
        found = LEVELS.get(data) or known.get(data)
        if found is None:
            raise BadSet(
                [((), f"no level or permission set is called {quote(data)}{suggest_name(data, [*LEVELS, *known])}")]
            )
        return found
    reading = _SetParser(name, names, max_size)
    made = reading.set(data)
    if reading.mistakes:
        raise BadSet(reading.mistakes)
    set_examples.compile_set(made, names)
    return made


def check_secrets(given: PermissionSet, known: Mapping[str, SecretSettings]) -> None:
    """Raise :class:`BadSet` if the set names secrets that there aren't, or two for one header of the same requests."""
    unknown = [(index, name) for index, name in enumerate(given.secrets) if name not in known]
    if unknown:
        raise BadSet(
            [
                (("secrets", index), f"no secret is called {quote(name)}{suggest_name(name, known)}")
                for index, name in unknown
            ]
        )
    for index, name in enumerate(given.secrets):
        for other in given.secrets[:index]:
            if known[name].conflicts_with(known[other]):
                what = f"sets {known[name].header} of the same requests as {quote(other)}"
                raise BadSet([(("secrets", index), f"{quote(name)} {what}: leave one of them out")])


def describe_set(given: PermissionSet) -> dict[str, Any]:
    """A set in the form that :func:`read_set` takes, without its examples. Rules of its level are left out."""
    basis = frozenset(base_rules(given.level))
    said: dict[str, Any] = {"level": given.level} if given.level is not None else {}
    said.update(_by_kind([rule for rule in given.rules if rule not in basis]))
    if given.limits:
        limits = {name: value * CPU_PERIOD if name == "cpu_quota" else value for name, value in given.limits}
        said["spawn"] = {"limits": limits}
    if given.secrets:
        said["secrets"] = list(given.secrets)
    if given.quotas:
        windows: dict[float, dict[str, float]] = {}
        for quota in given.quotas:
            most = quota.most / MONEY_UNITS if quota.what == "money" else quota.most
            windows.setdefault(quota.per, {})[quota.what] = most
        said["quotas"] = [{**amounts, "per": per} for per, amounts in windows.items()]
    return said


def describe_whole_set(given: PermissionSet) -> dict[str, Any]:
    """The same with the rules of its level included."""
    return describe_set(given) | _by_kind(given.rules)


def _by_kind(rules: Sequence[Rule]) -> dict[str, Any]:
    said: dict[str, dict[str, list[str]]] = {}
    for effect in reversed(EFFECTS):
        for kind in KINDS:
            texts = [rule.text for rule in rules if (rule.effect, rule.kind) == (effect, kind)]
            if texts:
                said.setdefault(effect, {})[kind] = texts
    return said


def base_rules(level: str | None) -> tuple[Rule, ...]:
    """The rules that a set inherits from its level."""
    return BASE_RULES if level is None else LEVELS[level].rules


@define
class _SetParser:
    """Parses one set as far as possible and collects ``mistakes``."""

    name: str
    names: Names
    max_size: SetSize
    mistakes: list[tuple[Keys, str]] = field(factory=list)

    def set(self, data: object) -> PermissionSet:
        table = self._table(SetTable, data)
        level = self._level(table.level)
        lines = [line for effect in reversed(EFFECTS) for line in self._lines(effect, getattr(table, effect))]
        whole = not self.mistakes  # else examples prove nothing; a rule without effect changes no decision
        limits = self._table(LimitsTable, self._table(SpawnTable, table.spawn, "spawn").limits, "spawn", "limits")
        quotas = self._quotas(table.quotas)
        basis = base_rules(level)
        made = PermissionSet(
            self.name,
            (*(line.rule for line in lines), *basis),
            level,
            tuple((name, value) for name, value in attrs.asdict(limits).items() if value is not None),
            quotas,
            tuple(dict.fromkeys(table.secrets)),
        )
        if (why := check_size(lines, self.max_size)) is not None:
            self.mistakes.append(((), why))
            return made
        self.mistakes += unreachable_rules.find_unreachable(lines, basis, self.names)
        cases = self._table(ExamplesTable, table.examples, "examples")
        for effect in EFFECTS:
            for index, text in enumerate(getattr(cases, effect)):
                wrong = set_examples.check_example(text, effect, made if whole else None, self.names)
                if wrong is not None:
                    self.mistakes.append((("examples", effect, index), wrong))
        is_level = level is not None and not (lines or made.limits or made.quotas or made.secrets)
        return LEVELS[level] if is_level and level is not None else made

    def _table(self, cls: type[T], data: object, *keys: str | int) -> T:
        """The valid part of a table; a field with a mistake gets its default."""
        try:
            return decode(cls, data)
        except Invalid as error:
            found = error.mistakes
        self.mistakes += [((*keys, *mistake.keys), mistake.message) for mistake in found]
        wrong = {mistake.keys[0] for mistake in found if mistake.keys}
        known = attrs.fields_dict(cls)  # type: ignore[arg-type]
        rest = data if isinstance(data, dict) else {}
        return decode(cls, {name: value for name, value in rest.items() if name in known and name not in wrong})

    def _level(self, level: str | None) -> str | None:
        if level is None or level in LEVELS:
            return level
        self.mistakes.append((("level",), f"no level is called {quote(level)}{suggest_name(level, LEVELS)}"))
        return None

    def _lines(self, effect: Effect, data: object) -> list[Line]:
        table = self._table(RulesTable, data, effect)
        lines = []
        for kind in KINDS:
            for index, text in enumerate(getattr(table, kind)):
                keys = (effect, kind, index)
                try:
                    check_can_match(kind, text, effect)
                    pattern = parse_pattern(kind, text, self.names)
                except BadPattern as error:
                    self.mistakes.append((keys, str(error)))
                    continue
                lines.append(Line(Rule(effect, kind, text, self.name), pattern, dotted(keys), keys))
        return lines

    def _quotas(self, lines: Sequence[object]) -> tuple[Quota, ...]:
        found: dict[tuple[str, float], Quota] = {}
        for index, data in enumerate(lines):
            try:
                line = decode(QuotaLine, data)
            except Invalid as error:
                self.mistakes += [(("quotas", index, *mistake.keys), mistake.message) for mistake in error.mistakes]
                continue
            for quota in make_quotas(**attrs.asdict(line)):
                if (quota.what, quota.per) in found:
                    said = f"there is a quota of {quota.what} per {quota.per:g} s already"
                    self.mistakes.append((("quotas", index, quota.what), said))
                found[quota.what, quota.per] = quota
        return tuple(sorted(found.values(), key=lambda quota: (quota.per, quota.what)))


def check_size(lines: Sequence[Line], max_size: SetSize) -> str | None:
    """Why the set is too large, or None. Compiling and comparing rules takes time."""
    if len(lines) > max_size.rules:
        return f"expected at most {max_size.rules} rules, got {len(lines)}"
    length = sum(len(line.rule.text) for line in lines)
    if length > max_size.characters:
        return f"expected at most {max_size.characters} characters of patterns, got {length}"
    return None


def check_can_match(kind: Kind, text: str, effect: Effect) -> None:
    """Raise ``BadPattern`` for a pattern that parses but can't match any existing call, name or relation."""
    if kind == "calls":
        pattern = NamePattern.parse(text)
        if text in ("HELLO", "CANCEL", "EXIT"):
            raise BadPattern(f"{text} concerns only the connection, and every caller may always make it")
        if not any(pattern.matches(op.name, deny=False) for op in Op):
            raise BadPattern(f"no call is named {quote(text)}{suggest_name(text.upper(), [op.name for op in Op])}")
    if kind == "domains" and effect != "deny":
        domains.check_can_grant(domains.parse_domain_pattern(text))
    if kind in ("read", "write") and effect == "allow" and BARE_NAME.fullmatch(text):
        raise BadPattern(
            f"{quote(text)} would grant that name wherever it is on the host: "
            f"write an absolute path, or '**/{text[:200]}' if that is what you mean"
        )
    if kind == "events" and effect == "ask":
        raise BadPattern("a person can't be asked about each event: grant them with allow, or leave them out")
    relations = {"send": (OWN, PARENT), "agents": (OWN,), "events": ()}.get(kind)
    if relations is not None and "$" in text and text not in relations:
        others = f", or {' or '.join(relations)}" if relations else ""
        raise BadPattern(f"{quote(text)} can never match: expected a pattern of names{others}")
