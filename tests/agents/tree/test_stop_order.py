"""The order of stops: which declared agents and groups end in which wave."""

from collections.abc import Iterator

from agentos.agents.spec import AgentSpec, GroupSpec
from agentos.agents.tree.container import Path
from agentos.agents.tree.stop_order import Unit, list_agent_units, list_units, list_waves

ROOT: Path = ("root",)


def agent(name: str, *after: str) -> AgentSpec:
    return AgentSpec(name, command=["true"], after=after)


def groups(group: GroupSpec, path: Path = ROOT) -> Iterator[tuple[Path, GroupSpec]]:
    yield path, group
    for child in group.children:
        if isinstance(child, GroupSpec):
            yield from groups(child, (*path, child.name))


def waves(*children: AgentSpec | GroupSpec) -> list[set[str]]:
    """The names of the units of each wave of a whole tree."""
    units = list_units(dict(groups(GroupSpec("root", children=children))), ROOT)
    return [{unit.name for unit in wave} for wave in list_waves(units)]


def test_agents_without_an_order_stop_in_one_wave() -> None:
    assert waves(agent("a"), agent("b"), agent("c")) == [{"a", "b", "c"}]


def test_what_was_started_after_others_stops_before_them() -> None:
    assert waves(agent("db"), agent("api", "db"), agent("web", "api"), agent("aside")) == [
        {"web", "aside"},
        {"api"},
        {"db"},
    ]


def test_an_order_over_groups_holds_for_each_member() -> None:
    store = GroupSpec("store", children=[agent("db"), agent("cache")])
    front = GroupSpec("front", children=[agent("web"), agent("tls")], after=["store"])

    assert waves(store, front) == [{"web", "tls"}, {"db", "cache"}]
    assert waves(store, agent("web", "cache")) == [{"web", "db"}, {"cache"}]


def test_an_ordered_group_is_one_unit_and_is_waited_for_by_the_names_in_it() -> None:
    team = GroupSpec("team", "rest_for_one", children=[agent("first"), agent("second")])

    assert waves(team, agent("aside"), agent("web", "first")) == [{"aside", "web"}, {"team"}]


def test_a_group_with_a_shutdown_time_of_its_own_is_one_unit() -> None:
    assert waves(GroupSpec("pool", shutdown=5.0, children=[agent("a"), agent("b")])) == [{"pool"}]


def test_a_root_with_an_order_is_left_to_its_supervisor() -> None:
    root = GroupSpec("root", "one_for_all", children=[agent("a"), agent("b")])

    assert list_units(dict(groups(root)), ROOT) == []


def test_agents_of_an_ordered_group_that_are_stopped_by_name_stop_in_reverse() -> None:
    team = GroupSpec("team", "one_for_all", children=[agent("a"), GroupSpec("inner", children=[agent("b")])])
    units = list_agent_units(dict(groups(GroupSpec("root", children=[team, agent("c")]))), ROOT)

    assert [[unit.name for unit in wave] for wave in list_waves(units)] == [["b", "c"], ["a"]]


def test_a_circle_that_a_reload_has_made_stops_all_the_same() -> None:
    circle = [Unit(ROOT, name, frozenset(name), frozenset(other)) for name, other in ("ab", "ba")]

    assert [*list_waves(circle)] == [circle]
