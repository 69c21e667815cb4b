"""An index of the rules of one kind and one effect: finds the first rule that matches.

Testing every rule would be most of a decision's cost, so rules that can't match are skipped: paths and names by one
combined regex for a few dozen rules, commands by program name.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TypeAlias

from attrs import frozen

from agentos.shell.reading import Command

from .patterns import names, paths
from .patterns.base import Pattern
from .patterns.commands import CommandPattern
from .rule import Kind, Rule

Entry: TypeAlias = tuple[Rule, Pattern]
FindCandidates: TypeAlias = Callable[..., Iterable[Entry]]

RULES_PER_REGEX = 32  # rules in one combined regex; fewer or more are slower


@frozen(eq=False)
class RuleIndex:
    """``rules`` in the order in which they were written; ``deny``: whether their patterns are matched as denials."""

    kind: Kind
    deny: bool
    rules: Sequence[Entry]

    def find(self, what: object) -> Rule | None:
        """The first rule that matches."""
        for rule, pattern in self._candidates(what):
            if pattern.matches(what, deny=self.deny):
                return rule
        return None

    def find_grant(self, what: object) -> Rule | None:
        """The first rule that matches even as a grant."""
        return next((rule for rule, pattern in self.rules if pattern.matches(what, deny=False)), None)

    @cached_property
    def universal(self) -> Rule | None:
        """The first rule that matches every command, also one that can't be analysed."""
        found = (rule for rule, pattern in self.rules if isinstance(pattern, CommandPattern) and pattern.universal)
        return next(found, None)

    @cached_property
    def _candidates(self) -> FindCandidates:
        """A function that returns the candidate rules, including all that match; built on first use."""
        if self.kind in ("read", "write"):
            return _index_by_regex(self.rules, paths.match_any, self.deny)
        if self.kind == "commands":
            return _index_by_program(self.rules)
        if self.kind == "domains":
            return lambda _: self.rules
        return _index_by_regex(self.rules, names.match_any, self.deny)


def _index_by_regex(
    rules: Sequence[Entry], match_any: Callable[..., Callable[[str], bool]], deny: bool
) -> FindCandidates:
    parts = [rules[at : at + RULES_PER_REGEX] for at in range(0, len(rules), RULES_PER_REGEX)]
    groups = [(match_any([pattern for _, pattern in part], deny=deny), part) for part in parts]

    def candidates(what: str) -> Iterator[Entry]:
        for may_match, part in groups:
            if may_match(what):
                yield from part

    return candidates


def _index_by_program(rules: Sequence[Entry]) -> FindCandidates:
    named, anywhere = defaultdict[str, list[int]](list), list[int]()
    for at, (_, pattern) in enumerate(rules):
        assert isinstance(pattern, CommandPattern)
        program = "*" if pattern.universal else pattern.words[0]
        (anywhere if "*" in program or "?" in program else named[program]).append(at)
    plain = {program: [rules[at] for at in sorted({*places, *anywhere})] for program, places in named.items()}
    others = [rules[at] for at in anywhere]

    def candidates(what: Command) -> Iterable[Entry]:
        program = what.words[0].text
        if program is None or what.words[0].several:  # unknown, so any rule is a candidate
            return rules
        if "/" not in program:
            return plain.get(program, others)
        found = {*anywhere, *named.get(program, ()), *named.get(program.rpartition("/")[2], ())}
        return [rules[at] for at in sorted(found)]

    return candidates
