"""Finds rules without effect, because other rules override or repeat them; runs when a set is read."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import Final

from attrs import define, frozen

from agentos.kernel.ports import Effect
from agentos.shell.reader import read, read_words
from agentos.shell.reading import Opaque
from agentos_sdk.strict import shown as quoted

from .exec_decision import danger
from .exec_request import Wanted
from .levels import DENIALS
from .patterns.base import Names, Pattern
from .rule import OBJECTS, Kind, Rule
from .rules import OWN, PARENT, pattern_of

PATIENCE: Final = 0.5  # seconds for comparing; after that the rest of a huge or hostile set is not checked
CALLS: Final = {kind: action.upper() for action, kind in OBJECTS.items()}
DOES: Final[dict[Effect, str]] = {"deny": "denies", "ask": "asks about", "allow": "allows"}
SAMPLES: Final[dict[Kind, str]] = {  # examples of objects, by kind
    "read": "/data/**",
    "write": "/data/**",
    "commands": "git *",
    "domains": "example.com",
    "send": "*",
}


@frozen
class Line:
    """A rule with its location: ``place`` for people, ``keys`` for programs. A rule of a level has no keys."""

    rule: Rule
    pattern: Pattern
    place: str
    keys: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        return f"{self.place} {quoted(self.rule.text)}"


def found(lines: Sequence[Line], basis: Sequence[Rule], names: Names) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The keys of each rule that can't have an effect, and why. ``basis`` are the rules of the set's level."""
    search = _Search(lines, [_line(rule, names) for rule in (*basis, *DENIALS.rules)])
    for line in lines:
        why = search.stronger(line) or search.same(line) or search.lacking(line)
        if why is not None:
            yield line.keys, f"{quoted(line.rule.text)} has no effect: {why}"


@define(init=False)
class _Search:
    """The search. ``shelves`` holds the set's own lines, ``others`` those of its level and of the default denials."""

    shelves: dict[tuple[Effect, Kind], list[Line]]
    others: dict[tuple[Effect, Kind], list[Line]]
    end: float

    def __init__(self, lines: Sequence[Line], others: Sequence[Line]) -> None:
        self.shelves, self.others = _shelved(lines), _shelved(others)
        self.end = perf_counter() + PATIENCE

    def stronger(self, line: Line) -> str | None:
        """The stronger rule that already decides all that this rule matches, if any."""
        effect, kind = line.rule.effect, line.rule.kind
        if effect == "deny":
            return None
        denials = (*self.shelves.get(("deny", kind), ()), *self.others.get(("deny", kind), ()))
        before = next(self._covering(denials, line, deny=True), None)
        if before is None and effect == "allow":
            before = next(self._covering(self.shelves.get(("ask", kind), ()), line, deny=True), None)
        if before is not None:
            return f"{before} {DOES[before.rule.effect]} all of it"
        return self._denied_call(line) or _danger(line) or _opaque(line)

    def same(self, line: Line) -> str | None:
        """The rule that matches the same or more, with the same effect. Of two equal rules the second is reported."""
        effect, kind = line.rule.effect, line.rule.kind
        deny, own = effect != "allow", self.shelves[effect, kind]
        at = next(index for index, other in enumerate(own) if other is line)
        more = next(self._covering(own[:at], line, deny), None)
        if more is None:
            later = self._covering(own[at + 1 :], line, deny)
            more = next((other for other in later if not covers(line, other, deny)), None)
        if more is None and effect == "allow":  # a denial or question may repeat one of the level
            more = next(self._covering(self.others.get((effect, kind), ()), line, deny), None)
        return None if more is None else f"{more} {DOES[effect]} all of it already"

    def lacking(self, line: Line) -> str | None:
        """Why the grant of a call does nothing: it needs a grant of an object, too."""
        rule = line.rule
        if rule.kind != "calls" or rule.effect == "deny":
            return None
        for kind, sample in SAMPLES.items():
            if rule.text == CALLS[kind] and not self._grants(kind):
                return f"{rule.text} needs rules of {kind} too, such as {rule.effect}.{kind} = [{sample!r}]"
        return None

    def _grants(self, kind: Kind) -> bool:
        return any((effect, kind) in shelves for effect in ("allow", "ask") for shelves in (self.shelves, self.others))

    def _denied_call(self, line: Line) -> str | None:
        """The denial of the call that this rule is about.

        Reading and writing is done by commands, too, so it is exempt.
        """
        if line.rule.kind in ("read", "write", "calls", "agents"):
            return None
        call = CALLS[line.rule.kind]
        for other in self.shelves.get(("deny", "calls"), ()):
            if other.pattern.matches(call, deny=True):
                return f"{other} denies {call}"
        return None

    def _covering(self, lines: Iterable[Line], line: Line, deny: bool) -> Iterator[Line]:
        """The lines that match all that ``line`` matches."""
        for other in lines:
            if perf_counter() > self.end:
                return
            if covers(other, line, deny):
                yield other


def _shelved(lines: Iterable[Line]) -> dict[tuple[Effect, Kind], list[Line]]:
    shelves: dict[tuple[Effect, Kind], list[Line]] = {}
    for line in lines:
        shelves.setdefault((line.rule.effect, line.rule.kind), []).append(line)
    return shelves


def _line(rule: Rule, names: Names) -> Line:
    place = "default denial" if rule.effect == "deny" else rule.source
    return Line(rule, pattern_of(rule.kind, rule.text, names), place)


def covers(one: Line, other: Line, deny: bool) -> bool:
    """Whether ``one`` matches all that ``other`` matches."""
    if one.rule.kind in ("send", "agents"):
        mine, theirs = (line.rule.text in (OWN, PARENT) for line in (one, other))
        if mine != theirs:
            return one.rule.text == "*"
    return one.pattern.covers(other.pattern, deny=deny)


def _opaque(line: Line) -> str | None:
    """The construct that makes every command opaque that this grant could allow."""
    text = line.rule.text.removesuffix(" *")
    if line.rule.kind != "commands" or line.rule.effect != "allow" or "*" in text or "?" in text:
        return None
    reading = read_words(shlex.split(text))
    return f"{reading.construct}: only '*' allows that" if isinstance(reading, Opaque) else None


def _danger(line: Line) -> str | None:
    """The default denial of a command that is granted without wildcards."""
    text = line.rule.text.removesuffix(" *")
    if line.rule.kind != "commands" or "*" in text or "?" in text:
        return None
    denied = danger(Wanted(read(text), "/", jailed=True))
    return f"nobody may do it: {denied.rule}" if denied is not None else None
