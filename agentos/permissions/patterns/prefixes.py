"""Literal prefixes of name patterns, sorted, none of which begins with another: the ranges of names that may match."""

from collections.abc import Iterable, Iterator, Sequence


def reduce_prefixes(prefixes: Iterable[str]) -> list[str]:
    """The same ranges, in order and without those within another one."""
    found: list[str] = []
    for prefix in sorted(prefixes):
        if not found or not prefix.startswith(found[-1]):
            found.append(prefix)
    return found


def intersect_prefixes(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """The prefixes of what begins with a prefix of both."""
    return list(_intersect(one, other))


def _intersect(one: Sequence[str], other: Sequence[str]) -> Iterator[str]:
    at, beside = 0, 0
    while at < len(one) and beside < len(other):
        first, second = one[at], other[beside]
        if first.startswith(second):
            yield first
            at += 1
        elif second.startswith(first):
            yield second
            beside += 1
        elif first < second:
            at += 1
        else:
            beside += 1
