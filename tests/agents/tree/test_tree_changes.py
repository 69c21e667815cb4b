"""What differs between two trees: which change each difference is, and what stays in its place."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from agentos.agents.spec import AgentSpec, GroupSpec, HealthCheck
from agentos.agents.tree.changes import LIVE, TreeChange, compare_trees, list_places, prune_tree
from agentos.llm.settings import Share
from agentos_sdk.encoding.quantities import Size
from agentos_sdk.values import Limits
from tests.support.runs.rows import each_row

LIMITS = ("memory",)


def agent(name: str, **more: Any) -> AgentSpec:
    return AgentSpec(name, command=["true"], **more)


def tree(*children: AgentSpec | GroupSpec, **more: Any) -> GroupSpec:
    return GroupSpec("root", children=children, **more)


def compare(old: GroupSpec, new: GroupSpec) -> Sequence[tuple[str, str, tuple[str, ...]]]:
    return [(one.name, one.kind, tuple(one.fields)) for one in compare_trees(old, new, LIMITS)]


@each_row(
    ("fields", "expected"),
    [
        ({"shutdown": 1.0}, "updated"),
        ({"llm": Share(2.0)}, "updated"),
        ({"limits": Limits(memory=Size(1 << 30))}, "updated"),
        ({"limits": Limits(max_pids=3)}, "restarted"),  # which this host can't change
        ({"limits": Limits(memory=Size(1 << 30), disk=Size(1 << 20))}, "restarted"),
        ({"env": {"A": "1"}}, "restarted"),
        ({"watchdog": 5.0}, "restarted"),
        ({"health": HealthCheck(command=["true"])}, "restarted"),
        ({"isolation": "none"}, "restarted"),
        ({"shutdown": 1.0, "args": ["x"]}, "restarted"),
    ],
)
def test_an_agent_is_restarted_for_what_cannot_change_as_it_runs(fields: dict[str, Any], expected: str) -> None:
    [found] = compare_trees(tree(agent("a")), tree(agent("a", **fields)), LIMITS)

    assert (found.name, found.kind) == ("a", expected)


def test_a_default_that_is_written_out_is_no_change() -> None:
    assert compare(tree(agent("a")), tree(agent("a", limits=Limits(memory=Size(512 << 20))))) == []


def test_the_fields_that_hold_without_a_restart_are_fields_of_an_agent() -> None:
    assert {field.name for field in fields(AgentSpec)} >= LIVE


def test_a_child_in_another_group_and_one_whose_group_contains_it_otherwise_are_restarted() -> None:
    old = tree(agent("a"), GroupSpec("g", children=[agent("b")]), GroupSpec("h", children=[agent("c")]))
    new = tree(
        GroupSpec("g", strategy="one_for_all", children=[agent("b"), agent("a")]), GroupSpec("h", children=[agent("c")])
    )

    assert compare(old, new) == [
        ("g", "updated", ("strategy",)),
        ("b", "restarted", ("supervisor",)),
        ("a", "restarted", ("supervisor",)),
    ]


def test_a_name_that_was_an_agents_and_is_a_groups_is_removed_and_added() -> None:
    assert compare(tree(agent("x")), tree(GroupSpec("x"))) == [("x", "added", ()), ("x", "removed", ())]


@pytest.mark.parametrize(("strategy", "told"), [("one_for_one", False), ("rest_for_one", True)])
def test_the_order_of_members_is_a_change_where_it_means_something(strategy: Any, told: bool) -> None:
    old = tree(agent("a"), agent("b"), strategy=strategy)
    new = tree(agent("b"), agent("a"), strategy=strategy)

    assert compare(old, new) == ([("root", "updated", ("children",))] if told else [])


def _group(names: Sequence[str], inner: Sequence[str], strategy: Any, nested: Any, restart: Any) -> GroupSpec:
    apart = [name for name in inner if name not in names]
    within = GroupSpec("g", strategy=nested, children=[agent(name) for name in apart])
    return tree(*(agent(name, restart=restart) for name in names), within, strategy=strategy)


NAMES = st.lists(st.sampled_from("abcde"), unique=True)
STRATEGIES = st.sampled_from(["one_for_one", "one_for_all", "rest_for_one"])
TREES = st.builds(_group, NAMES, NAMES, STRATEGIES, STRATEGIES, st.sampled_from(["permanent", "transient"]))


@given(TREES, TREES)
def test_what_remains_is_in_its_place_in_both_trees(old: GroupSpec, new: GroupSpec) -> None:
    before, after = list_places(old), list_places(new)
    stays = {name for name, place in before.items() if place.is_at(after.get(name))}
    changes = {change.name: change for change in compare_trees(old, new, LIMITS)}

    assert set(list_places(prune_tree(old, stays))) == stays
    for name in {*before, *after} - stays:
        kind = "removed" if name not in after else "added" if name not in before else "restarted"
        assert changes[name].kind == kind
    assert all(changes.get(name, TreeChange(name, "updated")).kind == "updated" for name in stays)
    assert compare_trees(old, old, LIMITS) == []
