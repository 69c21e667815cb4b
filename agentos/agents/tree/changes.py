"""The difference between two declared trees: which agents and groups are added, removed, restarted or updated. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

from attrs import fields_dict
from msgspec import Struct
from msgspec.structs import fields as struct_fields
from msgspec.structs import replace

from agentos.agents.inherit import effective
from agentos.agents.spec import AgentSpec, GroupSpec
from agentos_sdk.values import Limits

from .container import Path
from .event_lines import ROOT

Kind = Literal["added", "removed", "restarted", "updated"]

LIVE = frozenset(
    {
        *("restart", "max_restarts", "restart_window", "backoff", "on_give_up", "significant", "shutdown", "ready"),
        *("required", "start_timeout", "after", "llm", "permissions", "mailbox", "schedule", "idle_stop", "record"),
        "on_crash",
    }
)
"""The fields of an agent that take effect without a restart: at once, or when it next ends or starts."""
FOLLOWING = frozenset({"max_restarts", "restart_window", "backoff", "on_give_up"})
"""The fields that only a child in a container has: they differ if the agent moves into or out of a container."""
PLACE = "supervisor"  # the field of a child whose group, or the kind of whose group, has changed
ORDER = "children"  # the field of a group if the order of its members differs


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
            continue
        one = _compare_specs(name, was.spec, place.spec, live_limits)
        if not place.is_at(was):
            fields = one.fields if one is not None else ()
            same_kind = place.within[-1] == was.within[-1]
            one = TreeChange(
                name, "restarted", (PLACE, *(field for field in fields if same_kind or field not in FOLLOWING))
            )
        found.append(one)
    gone = [name for name, was in before.items() if name not in after or type(after[name].spec) is not type(was.spec)]
    return [one for one in found if one is not None] + [TreeChange(name, "removed") for name in gone]


def _compare_specs(
    name: str, old: AgentSpec | GroupSpec, new: AgentSpec | GroupSpec, live_limits: Collection[str]
) -> TreeChange | None:
    if isinstance(old, AgentSpec) and isinstance(new, AgentSpec):
        return _compare_agents(old, new, live_limits)
    assert isinstance(old, GroupSpec), "both are of one type"
    assert isinstance(new, GroupSpec), "both are of one type"
    return _compare_groups(name, old, new)


def _compare_agents(old: AgentSpec, new: AgentSpec, live_limits: Collection[str]) -> TreeChange | None:
    differing = [name for name in _differing(old, new) if name != "limits"]
    had, gets = effective(old), effective(new)
    limits = [name for name in fields_dict(Limits) if getattr(had, name) != getattr(gets, name)]
    live = old.waits == new.waits and set(differing) <= LIVE and set(limits) <= set(live_limits)
    fields = (*differing, *(f"limits.{name}" for name in limits))
    return TreeChange(new.name, "updated" if live else "restarted", fields) if fields else None


def _compare_groups(name: str, old: GroupSpec, new: GroupSpec) -> TreeChange | None:
    differing = [field for field in _differing(old, new) if field != ORDER]
    names = [[child.name for child in group.children] for group in (old, new)]
    kept = [[name for name in found if name in names[0] and name in names[1]] for found in names]
    if new.strategy != "one_for_one" and kept[0] != kept[1]:
        differing.append(ORDER)
    return TreeChange(name, "updated", tuple(differing)) if differing else None


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
