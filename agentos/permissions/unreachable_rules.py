"""Finds rules without effect, because other rules override or repeat them; runs when a set is read."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from time import thread_time
from typing import Final

from attrs import define
from msgspec import Struct

from agentos.kernel.ports import Effect
from agentos.services.http.destination import is_address
from agentos.shell.reader import parse_text, parse_words
from agentos.shell.reading import Opaque
from agentos_sdk.encoding.strict import quote

from .exec_decision import deny_dangerous
from .exec_request import ExecRequest
from .levels import DENIALS
from .patterns.base import Names, Pattern
from .patterns.domains import DomainPattern
from .rule import KIND_OF_ACTION, Kind, Rule
from .rules import OWN, PARENT, parse_pattern

MAX_SECONDS: Final = 0.5  # of CPU time for comparing; after that the rest of a huge or hostile set is not checked
CALL_OF_KIND: Final = {kind: action.upper() for action, kind in KIND_OF_ACTION.items()}
VERB: Final[dict[Effect, str]] = {"deny": "denies", "ask": "asks about", "allow": "allows"}
SAMPLES: Final[dict[Kind, str]] = {  # examples of objects, by kind
    "read": "/data/**",
    "write": "/data/**",
    "commands": "git *",
    "domains": "example.com",
    "send": "*",
}


class Line(Struct, frozen=True):
    """A rule with its location: ``place`` for people, ``keys`` for programs. A rule of a level has no keys."""

    rule: Rule
    pattern: Pattern
    place: str
    keys: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        return f"{self.place} {quote(self.rule.text)}"


def find_unreachable(
    lines: Sequence[Line], basis: Sequence[Rule], names: Names
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The keys of each rule that can't have an effect, and why. ``basis`` are the rules of the set's level."""
    search = _Search(lines, [parse_line(rule, names) for rule in (*basis, *DENIALS.rules)])
    for line in lines:
        why = search.find_stronger(line) or search.find_repeated(line) or search.find_missing_grant(line)
        if why is not None:
            yield line.keys, f"{quote(line.rule.text)} has no effect: {why}"


@define(init=False)
class _Search:
    """``own_lines`` are those of the set, ``base_lines`` those of its level and of the default denials."""

    own_lines: dict[tuple[Effect, Kind], list[Line]]
    base_lines: dict[tuple[Effect, Kind], list[Line]]
    end: float

    def __init__(self, lines: Sequence[Line], base_lines: Sequence[Line]) -> None:
        self.own_lines, self.base_lines = _group_lines(lines), _group_lines(base_lines)
        self.end = thread_time() + MAX_SECONDS

    def find_stronger(self, line: Line) -> str | None:
        """The stronger rule that already decides all that this rule matches, if any."""
        effect, kind = line.rule.effect, line.rule.kind
        if effect == "deny":
            return None
        denials = (*self.own_lines.get(("deny", kind), ()), *self.base_lines.get(("deny", kind), ()))
        before = next(self._covering(denials, line, deny=True), None)
        if before is None and effect == "allow":
            before = next(self._covering(self.own_lines.get(("ask", kind), ()), line, deny=True), None)
        if before is not None:
            return f"{before} {VERB[before.rule.effect]} all of it"
        return self._denied_call(line) or _default_denial(line) or _opaque_construct(line)

    def find_repeated(self, line: Line) -> str | None:
        """The rule that matches the same or more, with the same effect. Of two equal rules the second is reported."""
        effect, kind = line.rule.effect, line.rule.kind
        deny, own = effect != "allow", self.own_lines[effect, kind]
        at = next(index for index, other in enumerate(own) if other is line)
        more = next(self._covering(own[:at], line, deny), None)
        if more is None:
            later = self._covering(own[at + 1 :], line, deny)
            more = next((other for other in later if not covers(line, other, deny)), None)
        if more is None and effect == "allow":  # a denial or question may repeat one of the level
            more = next(self._covering(self.base_lines.get((effect, kind), ()), line, deny), None)
        return None if more is None else f"{more} {VERB[effect]} all of it already"

    def find_missing_grant(self, line: Line) -> str | None:
        """Why the grant of a call does nothing: it needs a grant of an object, too."""
        rule = line.rule
        if rule.kind != "calls" or rule.effect == "deny":
            return None
        for kind, sample in SAMPLES.items():
            if rule.text == CALL_OF_KIND[kind] and not self._grants(kind):
                return f"{rule.text} needs rules of {kind} too, such as {rule.effect}.{kind} = [{sample!r}]"
        return None

    def _grants(self, kind: Kind) -> bool:
        return any(
            (effect, kind) in group for effect in ("allow", "ask") for group in (self.own_lines, self.base_lines)
        )

    def _denied_call(self, line: Line) -> str | None:
        """The denial of the call that this rule is about.

        Reading and writing is done by commands, too, and several calls are about keys of the state: these are exempt.
        """
        if line.rule.kind in ("read", "write", "calls", "agents", "events", "state_read", "state_write"):
            return None
        call = CALL_OF_KIND[line.rule.kind]
        for other in self.own_lines.get(("deny", "calls"), ()):
            if other.pattern.matches(call, deny=True):
                return f"{other} denies {call}"
        return None

    def _covering(self, lines: Iterable[Line], line: Line, deny: bool) -> Iterator[Line]:
        """The lines that match all that ``line`` matches."""
        for other in lines:
            if thread_time() > self.end:
                return
            if covers(other, line, deny) and not _names_address(line, other):
                yield other


def _group_lines(lines: Iterable[Line]) -> dict[tuple[Effect, Kind], list[Line]]:
    groups: dict[tuple[Effect, Kind], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.rule.effect, line.rule.kind), []).append(line)
    return groups


def parse_line(rule: Rule, names: Names) -> Line:
    """A rule that wasn't written in the set that is read."""
    place = "default denial" if rule.effect == "deny" else rule.source
    return Line(rule, parse_pattern(rule.kind, rule.text, names), place)


def covers(one: Line, other: Line, deny: bool) -> bool:
    """Whether ``one`` matches all that ``other`` matches."""
    if one.rule.kind in ("send", "agents"):
        mine, theirs = (line.rule.text in (OWN, PARENT) for line in (one, other))
        if mine != theirs:
            return one.rule.text == "*"
    return one.pattern.covers(other.pattern, deny=deny)


def _names_address(line: Line, other: Line) -> bool:
    """Whether ``line`` grants one address and port that ``other`` doesn't name.

    A public address may be one of the host's, which wider rules don't grant: that isn't known when a set is read.
    """
    one, wider = line.pattern, other.pattern
    if "deny" in (line.rule.effect, other.rule.effect) or not isinstance(one, DomainPattern):
        return False
    if one.host is None or not is_address(one.host) or len(one.ports or ()) != 1:
        return False
    return not isinstance(wider, DomainPattern) or (wider.host, wider.ports) != (one.host, one.ports)


def _opaque_construct(line: Line) -> str | None:
    """The construct that makes every command opaque that this grant could allow."""
    text = line.rule.text.removesuffix(" *")
    if line.rule.kind != "commands" or line.rule.effect != "allow" or "*" in text or "?" in text:
        return None
    reading = parse_words(shlex.split(text))
    return f"{reading.construct}: only '*' allows that" if isinstance(reading, Opaque) else None


def _default_denial(line: Line) -> str | None:
    """The default denial of a command that is granted without wildcards."""
    text = line.rule.text.removesuffix(" *")
    if line.rule.kind != "commands" or "*" in text or "?" in text:
        return None
    denied = deny_dangerous(ExecRequest(parse_text(text), "/", jailed=True))
    return f"no caller may run it: {denied.rule}" if denied is not None else None
