"""Masks that users give, beside the built-in ones: what they match is the same text in each run of a program.

They are patterns of RE2: a recording of others may have some, and its calls any text.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import frozen

from agentos.llm.cassettes.recorded_question import MASKS
from agentos.services.logs.pattern import Pattern, PatternError

MAX_MASKS = 50  # of a recording or a configuration
BUILT_IN = tuple(MASKS)  # their names


class BadMask(ValueError):
    """It is no pattern; the text says which and why."""


@frozen
class Masks:
    """The user's masks, by the text of their patterns."""

    patterns: Sequence[tuple[str, Pattern]] = ()

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def apply(self, value: Any) -> Any:
        """The value in which all that they match is the same, but for the keys of objects."""
        if not self.patterns:
            return value
        if isinstance(value, str):
            for text, pattern in self.patterns:
                value = pattern.replace(value, f"<mask {text}>")
            return value
        if isinstance(value, dict):
            return {key: self.apply(one) for key, one in value.items()}
        return [self.apply(one) for one in value] if isinstance(value, list) else value

    def list_used(self, recorded: Any, now: Any) -> list[str]:
        """The texts of those that make equal what differs between two values."""
        texts = [*zip(_list_texts(recorded), _list_texts(now), strict=False)]
        differing = [pair for pair in texts if pair[0] != pair[1]]
        return [
            text
            for text, pattern in self.patterns
            if any(pattern.find_all(one) != pattern.find_all(other) for one, other in differing)
        ]


def _list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _list_texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _list_texts(one)


NO_MASKS = Masks()


def read_masks(patterns: Sequence[str], where: str) -> Masks:
    """Compile them, each once. Raises :class:`BadMask` that begins with ``where``."""
    patterns = list(dict.fromkeys(patterns))
    if len(patterns) > MAX_MASKS:
        raise BadMask(f"{where}: expected at most {MAX_MASKS} patterns, got {len(patterns)}")
    found = []
    for text in patterns:
        try:
            pattern = Pattern.for_replacing(text)
        except PatternError as error:
            raise BadMask(f"{where}: {text!r:.100}: {error}") from None
        found.append((text, pattern))
    return Masks(tuple(found))


def join_masks(*several: Sequence[str]) -> Masks:
    """Those of several recordings or configurations. Raises :class:`BadMask`."""
    found = [each for patterns in several for each in read_masks(patterns, "masks").patterns]
    return Masks(tuple({text: (text, pattern) for text, pattern in found}.values()))
