"""Patterns of names: of models, of agents, of calls."""

import re
from collections.abc import Callable, Iterable
from functools import cached_property

from attrs import frozen

from . import globs
from .base import BadPattern

LONGEST = 1024  # characters of a name or a pattern


@frozen
class WordPattern:
    """``*`` stands for any characters, ``?`` for one, ``[a-z]`` for one of these; the case matters.

    It means the whole of a name. What is too long to be a name is never granted, and always denied.
    """

    text: str
    items: tuple[globs.One | globs.Many, ...]

    def matches(self, what: str, *, deny: bool) -> bool:
        return self._match(what) is not None if len(what) <= LONGEST else deny

    def covers(self, other: "WordPattern", *, deny: bool) -> bool:
        return self.matches(globs.shortest(other.items), deny=deny) and globs.within(other.items, self.items)

    @property
    def regex(self) -> str:
        return globs.regex(self.items) + r"\Z"

    @cached_property
    def _match(self) -> globs.Matcher:
        return re.compile(self.regex).match


def read(text: str) -> WordPattern:
    """Raises ``BadPattern`` for what can't be a name's pattern."""
    if not text:
        raise BadPattern("an empty pattern matches nothing: write '*' for every name")
    if text != text.strip():
        raise BadPattern(f"{text!r} begins or ends with a space: take it away")
    if len(text) > LONGEST:
        raise BadPattern(f"{text[:40]!r}… is longer than {LONGEST} characters")
    return WordPattern(text, globs.parse(text, globs.ANYTHING))


def either(patterns: Iterable[WordPattern], *, deny: bool) -> Callable[[str], bool]:
    """Whether any of them matches, asked all at once."""
    match = re.compile("|".join(pattern.regex for pattern in patterns) or r"(?!)").match
    return lambda what: match(what) is not None if len(what) <= LONGEST else deny
