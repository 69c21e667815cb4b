"""Patterns of model names, agent names and calls."""

import re
from collections.abc import Callable, Iterable
from functools import cached_property

from attrs import frozen

from . import globs
from .base import BadPattern

MAX_NAME_LENGTH = 1024  # characters of a name or a pattern


@frozen
class NamePattern:
    """``*`` matches any characters, ``?`` one, ``[a-z]`` one of these. Case matters.

    It must match the whole name. A name that is too long is never granted and always denied.
    """

    text: str
    items: tuple[globs.One | globs.Many, ...]

    def matches(self, what: str, *, deny: bool) -> bool:
        return self._match(what) is not None if len(what) <= MAX_NAME_LENGTH else deny

    def covers(self, other: "NamePattern", *, deny: bool) -> bool:
        return self.matches(globs.shortest(other.items), deny=deny) and globs.is_included(other.items, self.items)

    @property
    def regex(self) -> str:
        return globs.regex(self.items) + r"\Z"

    @cached_property
    def _match(self) -> globs.Matcher:
        return re.compile(self.regex).match


def parse_name_pattern(text: str) -> NamePattern:
    """Parse a pattern of names; raises ``BadPattern``."""
    if not text:
        raise BadPattern("an empty pattern matches nothing: write '*' for every name")
    if text != text.strip():
        raise BadPattern(f"{text!r} begins or ends with a space: take it away")
    if len(text) > MAX_NAME_LENGTH:
        raise BadPattern(f"{text[:40]!r}… is longer than {MAX_NAME_LENGTH} characters")
    return NamePattern(text, globs.parse(text, globs.ANYTHING))


def match_any(patterns: Iterable[NamePattern], *, deny: bool) -> Callable[[str], bool]:
    """A function that tells whether any of the patterns matches, by one combined regex."""
    match = re.compile("|".join(pattern.regex for pattern in patterns) or r"(?!)").match
    return lambda what: match(what) is not None if len(what) <= MAX_NAME_LENGTH else deny
