"""Where two texts differ, for people: the place, and what stands there in each.

Both may be an agent's, of any size: they are compared in steps, and no list is made of their lines.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from attrs import define

MAX_TOLD = 3  # places in which a request differs from the nearest recorded one, in one message
MAX_LOGGED = 10  # requests that aren't in a cassette, of which the words are logged
MAX_QUOTED = 160  # characters of a line that a difference quotes
STEP = 64 << 10  # characters that are compared at a time: under 1 ms

Difference = tuple[str, str, str]
"""The place, what was asked, and what is recorded."""


@define(eq=False)
class Misses:
    """Tells of requests that aren't in the cassette ``file``: the places to the caller, the words to ``log``."""

    file: Path
    log: logging.Logger
    _count: int = 0

    def tell(self, number: int, found: Sequence[Difference]) -> str:
        """What the caller is told, without recorded words: how a request differs from entry ``number``, the nearest."""
        self._count += 1
        if self._count <= MAX_LOGGED:
            for where, mine, other in found[:MAX_TOLD]:
                self.log.warning(
                    "cassette %s, entry %d, %s: recorded %r, asked %r", self.file, number, where, other, mine
                )
        more = f" and {len(found) - MAX_TOLD} more" if len(found) > MAX_TOLD else ""
        return f"the same as entry {number} but for {'; '.join(where for where, *_ in found[:MAX_TOLD])}{more}"


def find_difference(where: str, asked: str, recorded: str) -> Difference:
    """The first line in which they differ; ``where`` gets its number if either has several."""
    at, longer = _count_common(asked, recorded), max(asked, recorded, key=len)
    if at == min(len(asked), len(recorded)) and longer[at : at + 1] == "\n":
        at += 1  # the other one ends there: it doesn't have the line behind
    begin = longer.rfind("\n", 0, at) + 1
    if "\n" in asked or "\n" in recorded:
        number = longer.count("\n", 0, at) + 1
        where = f"{where}, line {number}"
    return where, _quote_line(asked, begin, at), _quote_line(recorded, begin, at)


def shorten(text: str) -> str:
    """The text, or its begin."""
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…"


def _count_common(asked: str, recorded: str) -> int:
    """How many characters they have in common at their begin."""
    both = min(len(asked), len(recorded))
    for at in range(0, both, STEP):
        mine, other = asked[at : at + STEP], recorded[at : at + STEP]
        if mine != other:
            differing = (n for n, (one, another) in enumerate(zip(mine, other, strict=False)) if one != another)
            return at + next(differing, min(len(mine), len(other)))
    return both


def _quote_line(text: str, begin: int, at: int) -> str:
    """What stands around ``at`` in the line that begins at ``begin``."""
    if begin > len(text):
        return "(nothing)"
    end, start = text.find("\n", at), max(begin, at - MAX_QUOTED // 2)
    return shorten(text[start : min(len(text) if end < 0 else end, start + MAX_QUOTED + 1)])
