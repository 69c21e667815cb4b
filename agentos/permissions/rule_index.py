"""An index of the rules of one kind and one effect: finds the first rule that matches.

Testing every rule would be most of a decision's cost, so rules that can't match are skipped: paths by a word that the
rule's pattern contains, commands by program name, destinations by host, names and paths without such a word by one
combined regex for a few dozen rules.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TypeAlias

from attrs import frozen

from agentos.services.http.destination import Destination
from agentos.shell.reading import Command

from .patterns import names, paths
from .patterns.base import Pattern
from .patterns.commands import CommandPattern
from .patterns.domains import DomainPattern, first_segment
from .rule import Kind, Rule

Entry: TypeAlias = tuple[Rule, Pattern]
FindCandidates: TypeAlias = Callable[..., Iterable[int]]

RULES_PER_REGEX = 32  # rules in one combined regex; fewer or more are slower


@frozen(eq=False)
class RuleIndex:
    """``rules`` in the order in which they were written; ``deny``: whether their patterns are matched as denials."""

    kind: Kind
    deny: bool
    rules: Sequence[Entry]

    def find(self, what: object, *, as_grant: bool = False) -> Rule | None:
        """The first rule that matches; ``as_grant``: even as a grant, where denials match more."""
        deny = self.deny and not as_grant
        if not self.rules:
            return None
        for at in self._candidates(what):
            rule, pattern = self.rules[at]
            if pattern.matches(what, deny=deny):
                return rule
        return None

    @cached_property
    def universal(self) -> Rule | None:
        """The first rule that matches every command, also one that can't be analysed."""
        found = (rule for rule, pattern in self.rules if isinstance(pattern, CommandPattern) and pattern.universal)
        return next(found, None)

    @cached_property
    def _candidates(self) -> FindCandidates:
        """A function that returns the places of the candidate rules, including all that match; built on first use."""
        if len(self.rules) == 1:
            return lambda _: range(len(self.rules))
        if self.kind in ("read", "write"):
            return _index_by_word(self.rules, self.deny)
        if self.kind == "commands":
            return _index_by_program(self.rules)
        if self.kind == "domains":
            return _index_by_host(self.rules)
        match_any = names.match_any_model if self.kind == "models" else names.match_any
        return _index_by_regex(self.rules, range(len(self.rules)), match_any, self.deny)


def _index_by_regex(
    rules: Sequence[Entry], places: Sequence[int], match_any: Callable[..., Callable[[str], bool]], deny: bool
) -> FindCandidates:
    parts = [places[at : at + RULES_PER_REGEX] for at in range(0, len(places), RULES_PER_REGEX)]
    groups = [(match_any([rules[at][1] for at in part], deny=deny), part) for part in parts]

    def candidates(what: str) -> list[int]:
        return [at for may_match, part in groups if may_match(what) for at in part]

    return candidates


def _index_by_word(rules: Sequence[Entry], deny: bool) -> FindCandidates:
    by_word, wordless = defaultdict[str, list[int]](list), list[int]()
    for at, (_, pattern) in enumerate(rules):
        assert isinstance(pattern, paths.PathPattern)
        (wordless if pattern.word is None else by_word[pattern.word]).append(at)
    known = frozenset(by_word)
    find_wordless = _index_by_regex(rules, wordless, paths.match_any, deny)

    def candidates(what: str) -> Iterable[int]:
        if len(what) > paths.MAX_PATH_LENGTH:
            return range(len(rules))
        found = known.intersection(paths.words(what))
        return sorted([*find_wordless(what), *(at for word in found for at in by_word[word])])

    return candidates


def _index_by_host(rules: Sequence[Entry]) -> FindCandidates:
    """By host or ending, and below that by the first segment of the path, of which one host may have many."""
    by_host: dict[str, dict[str | None, list[int]]] = {}
    for at, (_, pattern) in enumerate(rules):
        assert isinstance(pattern, DomainPattern)
        key = pattern.host if pattern.host is not None else pattern.suffix or ""
        by_host.setdefault(key, {}).setdefault(pattern.first_segment, []).append(at)

    def candidates(what: Destination) -> Iterable[int]:
        host = what.host
        found = [by_host[key] for key in (host, "") if key in by_host]
        dot = host.find(".")
        while dot >= 0:
            if (below := by_host.get(host[dot:])) is not None:
                found.append(below)
            dot = host.find(".", dot + 1)
        segment = first_segment(what.path) if what.path is not None else None
        if segment is None:  # a tunnel, or an ambiguous path
            return sorted(at for of_host in found for places in of_host.values() for at in places)
        return sorted(at for of_host in found for key in (None, segment) for at in of_host.get(key, ()))

    return candidates


def _index_by_program(rules: Sequence[Entry]) -> FindCandidates:
    named, anywhere = defaultdict[str, list[int]](list), list[int]()
    for at, (_, pattern) in enumerate(rules):
        assert isinstance(pattern, CommandPattern)
        program = "*" if pattern.universal else pattern.words[0]
        (anywhere if "*" in program or "?" in program else named[program]).append(at)
    plain = {program: sorted({*places, *anywhere}) for program, places in named.items()}

    def candidates(what: Command) -> Iterable[int]:
        program = what.words[0].text
        if program is None or what.words[0].several:  # unknown, so any rule is a candidate
            return range(len(rules))
        if "/" not in program:
            return plain.get(program, anywhere)
        return sorted({*anywhere, *named.get(program, ()), *named.get(program.rpartition("/")[2], ())})

    return candidates
