"""The difference between two declared trees: which agents and groups are added, removed, restarted or updated. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

from attrs import fields_dict
from msgspec import Struct
from msgspec.structs import fields as struct_fields
from msgspec.structs import replace

from agentos_sdk.values import Limits

from .container import Path
from .event_lines import ROOT
from .inherit import effective
from .spec import AgentSpec, GroupSpec

Kind = Literal["added", "removed", "restarted", "updated"]

LIVE = frozenset(
    {
        *("restart", "max_restarts", "restart_window", "backoff", "on_give_up", "significant", "shutdown", "ready"),
        *("required", "start_timeout", "after", "llm", "permissions"),
    }
)
"""The fields of an agent that hold without a restart: at once, or from its next end or start on."""
PLACE = "supervisor"  # the field of a child that is in another group now, or in one that contains it in another way
ORDER = "children"  # the field of a group whose members have another order


class TreeChange(Struct, frozen=True):
    """What a reload does with one agent or group, and the fields that differ."""

    name: str
    kind: Kind
    fields: Sequence[str] = ()


class Place(Struct, frozen=True):
    """A child in a tree. ``within`` are the groups around it and itself, each with whether it is in a container.

    ``path`` is that of its group.
    """

    spec: AgentSpec | GroupSpec
    path: Path
    within: tuple[tuple[str, bool], ...]

    @property
    def supervisor(self) -> Path:
        """The path of the supervisor that restarts it, if it is an agent."""
        return (*self.path, self.spec.name) if self.within[-1][1] else self.path

    def is_at(self, other: "Place | None") -> bool:
        """Whether a child that is there in another tree can go on here."""
        return other is not None and type(self.spec) is type(other.spec) and self.within == other.within


def list_places(root: GroupSpec) -> Mapping[str, Place]:
    """All agents and groups below the root by name, in the order of the file."""
    return {place.spec.name: place for place in _list_places(root, (ROOT,), ())}


def _list_places(group: GroupSpec, path: Path, within: tuple[tuple[str, bool], ...]) -> Iterator[Place]:
    for child in group.children:
        place = Place(child, path, (*within, (child.name, group.strategy == "one_for_one")))
        yield place
        if isinstance(child, GroupSpec):
            yield from _list_places(child, (*path, child.name), place.within)


def compare_trees(old: GroupSpec, new: GroupSpec, live_limits: Collection[str]) -> Sequence[TreeChange]:
    """What differs, in the order of the new tree, what is removed last.

    ``live_limits`` are the limits that this host can change while an agent runs.
    """
    before, after = list_places(old), list_places(new)
    found = [_compare_groups(ROOT, old, new)]
    for name, place in after.items():
        was = before.get(name)
        if was is None or type(was.spec) is not type(place.spec):
            found.append(TreeChange(name, "added"))
        elif isinstance(place.spec, GroupSpec) and isinstance(was.spec, GroupSpec):
            found.append(_compare_groups(name, was.spec, place.spec, moved=not place.is_at(was)))
        elif isinstance(place.spec, AgentSpec) and isinstance(was.spec, AgentSpec):
            found.append(_compare_agents(was.spec, place.spec, live_limits, moved=not place.is_at(was)))
    gone = [name for name, was in before.items() if name not in after or type(after[name].spec) is not type(was.spec)]
    return [one for one in found if one is not None] + [TreeChange(name, "removed") for name in gone]


def _compare_agents(old: AgentSpec, new: AgentSpec, live_limits: Collection[str], moved: bool) -> TreeChange | None:
    differing = [name for name in _differing(old, new) if name != "limits"]
    had, gets = effective(old), effective(new)
    limits = [name for name in fields_dict(Limits) if getattr(had, name) != getattr(gets, name)]
    live = set(differing) <= LIVE and set(limits) <= set(live_limits)
    return _describe(new.name, [*differing, *(f"limits.{name}" for name in limits)], moved, restarts=not live)


def _compare_groups(name: str, old: GroupSpec, new: GroupSpec, moved: bool = False) -> TreeChange | None:
    differing = [field for field in _differing(old, new) if field != ORDER]
    names = [[child.name for child in group.children] for group in (old, new)]
    kept = [[name for name in found if name in names[0] and name in names[1]] for found in names]
    if new.strategy != "one_for_one" and kept[0] != kept[1]:
        differing.append(ORDER)
    return _describe(name, differing, moved)


def _describe(name: str, differing: Sequence[str], moved: bool, restarts: bool = False) -> TreeChange | None:
    if moved:
        return TreeChange(name, "restarted", (PLACE, *differing))
    return TreeChange(name, "restarted" if restarts else "updated", tuple(differing)) if differing else None


def _differing(old: AgentSpec | GroupSpec, new: AgentSpec | GroupSpec) -> list[str]:
    names = [field.name for field in struct_fields(new)]
    return [name for name in names if getattr(old, name) != getattr(new, name)]


def prune_tree(group: GroupSpec, stays: Collection[str]) -> GroupSpec:
    """The tree with only the children of these names."""
    kept = [child for child in group.children if child.name in stays]
    pruned = [prune_tree(child, stays) if isinstance(child, GroupSpec) else child for child in kept]
    return replace(group, children=tuple(pruned))


def take_live(spec: AgentSpec, new: AgentSpec) -> AgentSpec:
    """``spec`` with the fields of ``new`` that hold without a restart, permissions apart."""
    return replace(spec, **{name: getattr(new, name) for name in LIVE - {"permissions"}})
