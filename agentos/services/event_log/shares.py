"""Which events leave a full ring: the oldest of those families, and of their agents, that take most of it."""

from collections import defaultdict
from collections.abc import Mapping
from typing import TypeVar

from .record import Party, Share

Key = TypeVar("Key")


def choose_cuts(sizes: Mapping[Share, int], excess: int) -> dict[Share, float]:
    """How much each share has to give so that ``excess`` is free: the largest families, and in these the largest."""
    families = defaultdict[Party, dict[Share, int]](dict)
    for share, size in sizes.items():
        families[share[0]][share] = size
    found: dict[Share, float] = {}
    for family, cut in level({name: sum(each.values()) for name, each in families.items()}, excess).items():
        found |= level(families[family], cut)
    return found


def level(sizes: Mapping[Key, int], excess: float) -> dict[Key, float]:
    """What to take from each so that ``excess`` is taken: from the largest ones, which have the same size then."""
    ordered = sorted(sizes.values(), reverse=True)
    total, height = 0, 0.0
    for count, (size, following) in enumerate(zip(ordered, [*ordered[1:], 0], strict=True), 1):
        total += size
        height = (total - excess) / count
        if height >= following:
            break
    return {key: size - height for key, size in sizes.items() if size > height}
