"""Checks whether a permission set that a caller gives to itself grants anything that it doesn't hold."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from agentos.kernel.ports import Effect

from .levels import LEVELS
from .patterns.base import Names
from .rule import PermissionSet, Rule
from .unreachable_rules import covers, parse_line

GRANTED_BY: dict[Effect, tuple[Effect, ...]] = {"allow": ("allow",), "ask": ("allow", "ask"), "deny": ()}


def has_same_content(one: PermissionSet, other: PermissionSet) -> bool:
    """Whether two sets have the same content, regardless of where they were written."""
    return one is other or _content(one) == _content(other)


def find_wider_grant(
    given: PermissionSet, held: Iterable[PermissionSet], names: Names
) -> tuple[Rule, PermissionSet] | None:
    """The first grant of ``given`` that isn't covered by one of the sets ``held``, and that set; None without one.

    It can report a grant that several rules cover only together, so it may deny too much, but never passes an uncovered
    grant. Blocks: each grant is compared with each rule of its kind, which takes up to a second for the largest sets.
    """
    grants = [rule for rule in given.rules if rule.effect != "deny"]
    for one in held:
        if one is LEVELS["unrestricted"]:  # adds no constraint, even if patterns can't be compared
            continue
        wider = next((rule for rule in grants if not _is_covered(rule, one.rules, names)), None)
        if wider is not None:
            return wider, one
    return None


def _is_covered(rule: Rule, rules: Sequence[Rule], names: Names) -> bool:
    candidates = [one for one in rules if one.kind == rule.kind and one.effect in GRANTED_BY[rule.effect]]
    if any(one.text == rule.text for one in candidates):
        return True
    line = parse_line(rule, names)
    return any(covers(parse_line(one, names), line, deny=False) for one in candidates)


@lru_cache(64)
def _content(one: PermissionSet) -> tuple[object, ...]:
    rules = frozenset((rule.effect, rule.kind, rule.text, rule.fallback) for rule in one.rules)
    return one.level, rules, frozenset(one.limits), frozenset(one.quotas), frozenset(one.secrets)
