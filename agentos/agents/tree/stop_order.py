"""The order in which declared agents stop: at the same time, where the configuration says nothing else.

Problem: stopped one by one, agents that don't obey take the sum of their shutdown times, and a kernel's end is killed.
Idea: a unit is what a one_for_one group starts and stops by itself: an agent, or a group that is ordered or has a
shutdown time of its own, which its supervisor stops with all in it. Units stop in waves: each in the first one in which
no unit is left that was started after it by its own ``after``, or by that of a group around it.
Must stay true: what depends on a unit has ended before the unit is asked to stop.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from agentos.agents.spec import AgentSpec, GroupSpec

from .container import Path


class Unit(Struct, frozen=True):
    """What stops as one: the ``path`` of the supervisor above it, and its name there."""

    path: Path
    name: str
    called: frozenset[str] = frozenset()  # the names by which others may be started after it
    after: frozenset[str] = frozenset()  # what it was started after


def list_units(groups: Mapping[Path, GroupSpec], path: Path) -> Sequence[Unit]:
    """The units below the group with that path, in start order; none if it is itself an ordered one."""
    group = groups[path]
    return [*_list(group, path, frozenset(), frozenset(), whole=True)] if group.strategy == "one_for_one" else []


def list_agent_units(groups: Mapping[Path, GroupSpec], path: Path) -> Sequence[Unit]:
    """The same, but each agent is one: in an ordered group it is started after those before it."""
    return [*_list(groups[path], path, frozenset(), frozenset(), whole=False)]


def _list(
    group: GroupSpec, path: Path, called: frozenset[str], after: frozenset[str], *, whole: bool
) -> Iterator[Unit]:
    for child in group.children:
        names, before = called | {child.name}, after | {*child.after}
        if isinstance(child, GroupSpec) and (_is_divided(child) or not whole):
            yield from _list(child, (*path, child.name), names, before, whole=whole)
        else:
            yield Unit(path, child.name, names | {*_names_in(child)}, before)
        if group.strategy != "one_for_one":
            after |= {child.name}


def _is_divided(group: GroupSpec) -> bool:
    """Whether its members are units: otherwise its own shutdown time limits all of them together."""
    return group.strategy == "one_for_one" and group.shutdown == "infinity"


def _names_in(spec: AgentSpec | GroupSpec) -> Iterator[str]:
    if isinstance(spec, GroupSpec):
        for child in spec.children:
            yield child.name
            yield from _names_in(child)


def list_waves(units: Sequence[Unit]) -> Iterator[Sequence[Unit]]:
    """The units in the order of their stops: those of one wave stop at the same time, after those before it."""
    left = list(units)
    while left:
        needed = frozenset[str]().union(*(unit.after for unit in left))
        wave = [unit for unit in left if not needed & unit.called] or left  # a reload may have made a circle
        yield wave
        done = set(wave)
        left = [unit for unit in left if unit not in done]
