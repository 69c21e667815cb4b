"""Rules that can't have an effect, since others come before them or say the same: found when a set is read."""

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

PATIENCE: Final = 0.5  # seconds of comparing: in a huge set, or one made to take long, the rest is overlooked
CALLS: Final = {kind: action.upper() for action, kind in OBJECTS.items()}
DOES: Final[dict[Effect, str]] = {"deny": "denies", "ask": "asks about", "allow": "allows"}
SAMPLES: Final[dict[Kind, str]] = {  # of what a call is granted for
    "read": "/data/**",
    "write": "/data/**",
    "commands": "git *",
    "domains": "example.com",
    "send": "*",
}


@frozen
class Line:
    """A rule where it was written: ``place`` says it to people, ``keys`` to programs; a level's have no keys."""

    rule: Rule
    pattern: Pattern
    place: str
    keys: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        return f"{self.place} {quoted(self.rule.text)}"


def found(lines: Sequence[Line], basis: Sequence[Rule], names: Names) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The keys of each rule that can't have an effect, and why. ``basis`` is what the set's level says."""
    search = _Search(lines, [_line(rule, names) for rule in (*basis, *DENIALS.rules)])
    for line in lines:
        why = search.stronger(line) or search.same(line) or search.lacking(line)
        if why is not None:
            yield line.keys, f"{quoted(line.rule.text)} has no effect: {why}"


@define(init=False)
class _Search:
    """Looks for them. Shelves hold the set's own lines, ``others`` those of its level and the default denials."""

    shelves: dict[tuple[Effect, Kind], list[Line]]
    others: dict[tuple[Effect, Kind], list[Line]]
    end: float

    def __init__(self, lines: Sequence[Line], others: Sequence[Line]) -> None:
        self.shelves, self.others = _shelved(lines), _shelved(others)
        self.end = perf_counter() + PATIENCE

    def stronger(self, line: Line) -> str | None:
        """What decides, before this rule is looked at, all that it could."""
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
        """What says the same, or more. Of two that are alike the second is the one too many."""
        effect, kind = line.rule.effect, line.rule.kind
        deny, own = effect != "allow", self.shelves[effect, kind]
        at = next(index for index, other in enumerate(own) if other is line)
        more = next(self._covering(own[:at], line, deny), None)
        if more is None:
            later = self._covering(own[at + 1 :], line, deny)
            more = next((other for other in later if not covers(line, other, deny)), None)
        if more is None and effect == "allow":  # what others are denied, or asked about, may be said once more
            more = next(self._covering(self.others.get((effect, kind), ()), line, deny), None)
        return None if more is None else f"{more} {DOES[effect]} all of it already"

    def lacking(self, line: Line) -> str | None:
        """A grant of a call that does nothing without a grant of something to do it to."""
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
        """The denial of the call that this rule is about. What is read and written, commands do as well."""
        if line.rule.kind in ("read", "write", "calls", "agents"):
            return None
        call = CALLS[line.rule.kind]
        for other in self.shelves.get(("deny", "calls"), ()):
            if other.pattern.matches(call, deny=True):
                return f"{other} denies {call}"
        return None

    def _covering(self, lines: Iterable[Line], line: Line, deny: bool) -> Iterator[Line]:
        """Those that mean all that ``line`` means."""
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
    """Whether all that ``other`` means is meant by ``one``."""
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
    """The default denial of a command that is granted word by word."""
    text = line.rule.text.removesuffix(" *")
    if line.rule.kind != "commands" or "*" in text or "?" in text:
        return None
    denied = danger(Wanted(read(text), "/", jailed=True))
    return f"nobody may do it: {denied.rule}" if denied is not None else None
