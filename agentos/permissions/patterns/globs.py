"""Globs as sequences of character sets: parsing, conversion to regular expressions, and comparison for inclusion."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, takewhile

from attrs import define, field
from msgspec import Struct

from .base import BadPattern

Characters = tuple[tuple[int, int], ...]  # ranges of code points, both ends included, sorted and not adjacent

MAX_CODE_POINT = 0x10FFFF
ANYTHING: Characters = ((0, MAX_CODE_POINT),)
SLASH: Characters = ((0x2F, 0x2F),)
NAME: Characters = ((1, 0x2E), (0x30, MAX_CODE_POINT))  # the characters allowed in a file name

NUL = "\0"  # neither in a name nor in a glob for names
MAX_WORK = 100_000  # character ranges compared in one call of `is_included`: a fraction of a second


class One(Struct, frozen=True):
    """Exactly one character of this set."""

    characters: Characters


class Many(Struct, frozen=True):
    """Zero or more characters of this set."""

    characters: Characters


class Below(Struct, frozen=True):
    """Zero or more whole path segments: ``/a/b``."""


Item = One | Many | Below


def literal(text: str) -> tuple[One, ...]:
    return tuple(map(_exactly, text))


def shared_pieces(items: Iterable[One | Many], separator: str) -> Iterator[str]:
    """The pieces between separators that every matching text has: those without a wildcard, and not the empty ones."""
    pieces = "".join(_character(item) or NUL for item in items).split(separator)
    return (piece for piece in pieces if piece and NUL not in piece)


def literal_prefix(items: Iterable[One | Many]) -> str:
    """What every matching text begins with."""
    return "".join(takewhile(bool, (_character(item) or "" for item in items)))


def _character(item: One | Many) -> str | None:
    """The only character that the item matches, if it is such an item."""
    low, high = item.characters[0]
    return chr(low) if low == high and len(item.characters) == 1 and isinstance(item, One) else None


@lru_cache(1024)
def _exactly(character: str) -> One:
    return One(((ord(character), ord(character)),))


def parse(text: str, characters: Characters) -> tuple[One | Many, ...]:
    """Parse a glob; raises ``BadPattern``.

    ``*`` matches any number of ``characters``, ``?`` one, ``[a-z]`` one of these, ``[!a-z]`` one that isn't among
    these. A backslash escapes the next character.
    """
    items: list[One | Many] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "*":
            if not items or not isinstance(items[-1], Many):
                items.append(Many(characters))
        elif character == "?":
            items.append(One(characters))
        elif character == "[":
            chosen, position = _bracket(text, position, characters)
            items.append(One(chosen))
        else:
            if character == "\\":
                if position == len(text):
                    raise BadPattern(f"{text!r} ends in a backslash that escapes nothing: write '\\\\' for a backslash")
                character = text[position]
                position += 1
            items.extend(literal(character))
    return tuple(items)


def _bracket(text: str, start: int, characters: Characters) -> tuple[Characters, int]:
    """The characters of a bracket expression, and the position after it; ``start`` is behind its ``[``."""
    position = start
    negated = text[position : position + 1] in ("!", "^")
    position += negated
    members: list[tuple[int, bool]] = []  # code point; whether it is an unescaped dash, which makes a range
    while position < len(text) and (text[position] != "]" or not members):
        character = text[position]
        if character == "[" and text[position + 1 : position + 2] in (":", ".", "="):
            raise BadPattern(f"{text!r}: there are no classes such as [:alpha:] here; write the ranges: [a-zA-Z]")
        escaped = character == "\\" and position + 1 < len(text)
        position += escaped
        members.append((ord(text[position]), character == "-"))
        position += 1
    if position >= len(text):
        raise BadPattern(f"{text!r}: the [ is never closed; write '\\[' where a bracket is meant")
    ranges = list(_ranges(text, members))
    chosen = _intersection(_complement(ranges), characters) if negated else _intersection(_union(ranges), characters)
    if not chosen:
        raise BadPattern(f"{text!r}: [{text[start:position]}] stands for no character that can be there")
    return chosen, position + 1


def _ranges(text: str, members: Sequence[tuple[int, bool]]) -> Iterator[tuple[int, int]]:
    position = 0
    while position < len(members):
        low = high = members[position][0]
        if position + 2 < len(members) and members[position + 1][1]:
            high = members[position + 2][0]
            position += 2
        if high < low:
            raise BadPattern(f"{text!r}: the range {chr(low)}-{chr(high)} runs backwards")
        yield low, high
        position += 1


def _union(ranges: Sequence[tuple[int, int]]) -> Characters:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _complement(ranges: Sequence[tuple[int, int]]) -> Characters:
    edges = [(-1, -1), *_union(ranges), (MAX_CODE_POINT + 1, MAX_CODE_POINT + 1)]
    return tuple((before[1] + 1, after[0] - 1) for before, after in pairwise(edges) if before[1] + 1 < after[0])


def _intersection(one: Characters, other: Characters) -> Characters:
    shared = [(max(a, c), min(b, d)) for a, b in one for c, d in other]
    return tuple((low, high) for low, high in shared if low <= high)


def regex(items: Sequence[One | Many]) -> str:
    """The regular expression of a glob, not anchored at its end: the caller has to add the anchor.

    Each star but the last takes the shortest match that lets the next piece match, in an atomic group, so there is no
    backtracking: a match is found if there is one, and no chosen name can make the search slow.
    """
    pieces: list[str] = [""]
    stars: list[str] = []
    for item in items:
        if isinstance(item, Many):
            stars.append(_set(item.characters))
            pieces.append("")
        else:
            pieces[-1] += _set(item.characters)
    starred = [f"{star}*{piece}" for star, piece in zip(stars, pieces[1:], strict=True)]
    lazily = [f"(?>{star}*?{piece})" for star, piece in zip(stars, pieces[1:], strict=True)]
    return pieces[0] + "".join(lazily[:-1] + starred[-1:])


def _set(characters: Characters) -> str:
    if characters == NAME:
        return "[^/]"
    if characters == ANYTHING:
        return "(?s:.)"
    if len(characters) == 1 and characters[0][0] == characters[0][1]:
        return re.escape(chr(characters[0][0]))
    sign = ""
    if characters[-1][1] == MAX_CODE_POINT:  # naming the few characters that it hasn't compiles in a tenth of the time
        sign, characters = "^", _complement(characters)
    return f"[{sign}" + "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in characters) + "]"


@define
class _Machine:
    """A nondeterministic finite automaton. It starts in state 0 and accepts in its last state."""

    edges: list[list[tuple[Characters, int]]] = field(factory=lambda: [[]])
    skips: list[list[int]] = field(factory=lambda: [[]])  # epsilon transitions

    @classmethod
    def of(cls, items: Sequence[Item]) -> "_Machine":
        machine = cls()
        for item in items:
            here = machine.last
            if isinstance(item, One):
                machine._add_edge(here, item.characters, machine._add_state())
            elif isinstance(item, Many):
                machine._add_edge(here, item.characters, here)
                machine.skips[here].append(machine._add_state())
            else:
                slash, inside, after = machine._add_state(), machine._add_state(), machine._add_state()
                machine._add_edge(here, SLASH, slash)
                machine._add_edge(slash, NAME, inside)
                machine._add_edge(inside, NAME, inside)
                machine._add_edge(inside, SLASH, slash)
                machine.skips[here].append(after)
                machine.skips[inside].append(after)
        return machine

    @property
    def last(self) -> int:
        return len(self.edges) - 1

    def _add_state(self) -> int:
        self.edges.append([])
        self.skips.append([])
        return self.last

    def _add_edge(self, state: int, characters: Characters, target: int) -> None:
        self.edges[state].append((characters, target))

    def closure(self, states: set[int]) -> frozenset[int]:
        """These states and all that are reachable over epsilon transitions."""
        found, todo = set(states), list(states)
        while todo:
            new = [state for state in self.skips[todo.pop()] if state not in found]
            found.update(new)
            todo.extend(new)
        return frozenset(found)

    def step(self, states: frozenset[int], character: int) -> frozenset[int]:
        return self.closure(
            {
                target
                for state in states
                for characters, target in self.edges[state]
                if any(low <= character <= high for low, high in characters)
            }
        )


def is_included(one: Sequence[Item], other: Sequence[Item]) -> bool:
    """Whether ``other`` matches all that ``one`` matches. Returns False after ``MAX_WORK``.

    Every state of the inner automaton leads to its end, so the outer one fails as soon as it is in no state at all.
    """
    inner, outer = _Machine.of(one), _Machine.of(other)
    start = outer.closure({0})
    todo = [(state, start) for state in inner.closure({0})]
    seen = set(todo)
    work = 0
    while todo:
        state, states = todo.pop()
        if not states or (state == inner.last and outer.last not in states):
            return False
        outer_sets = [characters for each in states for characters, _ in outer.edges[each]]
        for characters, target in inner.edges[state]:
            representatives = _representatives(characters, outer_sets)
            work += len(representatives) * sum(map(len, outer_sets))
            if work > MAX_WORK:
                return False
            for character in representatives:
                reached = outer.step(states, character)
                new = {(settled, reached) for settled in inner.closure({target})} - seen
                seen |= new
                todo.extend(new)
    return True


def _representatives(characters: Characters, by: Sequence[Characters]) -> set[int]:
    """One representative of ``characters`` for each way in which the sets ``by`` distinguish them."""
    edges = {edge for ranges in by for low, high in ranges for edge in (low, high + 1)}
    inside = {edge for edge in edges if any(low <= edge <= high for low, high in characters)}
    return inside | {low for low, _ in characters}


def shortest(items: Sequence[Item]) -> str:
    """A string that matches these items."""
    return "".join(chr(item.characters[0][0]) for item in items if isinstance(item, One))


Matcher = Callable[[str], re.Match[str] | None]
