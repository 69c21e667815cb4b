"""Patterns of model names, agent names and calls."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Self

from attrs import frozen

from . import globs
from .base import BadPattern

MAX_NAME_LENGTH = 1024  # characters of a name or a pattern
LATEST = "latest"  # the tag that a model has which is named without one


@frozen
class NamePattern:
    """``*`` matches any characters, ``?`` one, ``[a-z]`` one of these. Case matters.

    It must match the whole name. A name that is too long is never granted and always denied.
    """

    text: str
    items: tuple[globs.One | globs.Many, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ``BadPattern``."""
        if not text:
            raise BadPattern("an empty pattern matches nothing: write '*' for every name")
        if text != text.strip():
            raise BadPattern(f"{text!r} begins or ends with a space: take it away")
        if len(text) > MAX_NAME_LENGTH:
            raise BadPattern(f"{text[:40]!r}… is longer than {MAX_NAME_LENGTH} characters")
        return cls(text, globs.parse(text, globs.ANYTHING))

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


@frozen
class ModelPattern(NamePattern):
    """A pattern of model names. A denial compares as providers do: without case, and also without a tag.

    Ollama's ``name`` is ``Name`` and ``name:latest``, OpenRouter's ``name:free`` and Vertex's ``name@001`` too.
    """

    def matches(self, what: str, *, deny: bool) -> bool:
        if not deny or len(what) > MAX_NAME_LENGTH:
            return super().matches(what, deny=deny)
        return any(map(self._match_loosely, spellings(what)))

    @cached_property
    def _match_loosely(self) -> globs.Matcher:
        return re.compile(self.regex, re.IGNORECASE).match


def spellings(model: str) -> Iterator[str]:
    """A model's name as it was asked for, and the other spellings of the same model."""
    name = model.strip()
    yield from dict.fromkeys((model, name))
    base, tag = _split_tag(name)
    if tag.lower() in ("", LATEST):
        yield from (f"{base}:{LATEST}", f"{base}@{LATEST}")
    while tag:
        yield base
        base, tag = _split_tag(base)


def _split_tag(name: str) -> tuple[str, str]:
    """What is before a model's tag, and the tag, which has no slash: ``host:5000/model`` has none."""
    at = max(name.rfind(":"), name.rfind("@"))
    return (name, "") if at <= 0 or at + 1 == len(name) or "/" in name[at:] else (name[:at], name[at + 1 :])


def match_any(patterns: Iterable[NamePattern], *, deny: bool) -> Callable[[str], bool]:
    """A function that tells whether any of the patterns matches, by one combined regex."""
    match = re.compile("|".join(pattern.regex for pattern in patterns) or r"(?!)").match
    return lambda what: match(what) is not None if len(what) <= MAX_NAME_LENGTH else deny


def match_any_model(patterns: Iterable[NamePattern], *, deny: bool) -> Callable[[str], bool]:
    """:func:`match_any` of patterns of model names."""
    if not deny:
        return match_any(patterns, deny=deny)
    match = re.compile("|".join(pattern.regex for pattern in patterns) or r"(?!)", re.IGNORECASE).match
    return lambda what: len(what) > MAX_NAME_LENGTH or any(map(match, spellings(what)))
