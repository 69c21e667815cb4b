"""A child never gets more than its parent has, whatever is asked for."""

import sys
from types import FrameType
from typing import Literal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentos.agents.inherit import DEFAULTS, STRICTNESS, ExceedsParent, effective, inherit, named
from agentos.agents.jail import layout
from agentos.agents.spec import AgentSpec
from agentos.sandbox.policy import NETWORKS
from agentos_sdk.encoding.quantities import Size
from agentos_sdk.values import Limits

AMOUNTS = st.none() | st.integers(1, 2**40)
LIMITS = st.builds(
    Limits,
    **{field.name: AMOUNTS for field in attrs.fields(Limits)}
    | {"cpu_quota": st.none() | st.floats(0.01, 64), "cpu_weight": st.none() | st.integers(1, 10_000)},
)


def specs(name: str) -> st.SearchStrategy[AgentSpec]:
    return st.builds(
        AgentSpec,
        name=st.just(name),
        script=st.just("/some/script.py"),
        network=st.sampled_from(NETWORKS),
        isolation=st.sampled_from(STRICTNESS),
        limits=LIMITS,
        runtime=st.sampled_from(("exec", "fast")),
    )


CHILD, PARENT = specs("child"), specs("parent")
JAILED = PARENT.filter(lambda spec: spec.jailed)


@given(CHILD, PARENT)
def test_no_limit_is_above_the_parents(child: AgentSpec, parent: AgentSpec) -> None:
    try:
        given = effective(inherit(child, parent))
    except ExceedsParent:
        return

    for name, bound in attrs.asdict(effective(parent)).items():
        if bound is not None:
            amount = getattr(given, name)
            assert amount is not None, name
            assert amount <= bound, name


@given(CHILD, PARENT)
def test_no_limit_is_above_what_was_asked_for_or_the_default(child: AgentSpec, parent: AgentSpec) -> None:
    try:
        given = effective(inherit(child, parent))
    except ExceedsParent:
        return

    for name, default in attrs.asdict(DEFAULTS).items():
        asked = getattr(child.limits, name)
        assert getattr(given, name) <= (default if asked is None else asked), name


@given(CHILD, PARENT)
def test_walls_are_never_less_than_the_parents(child: AgentSpec, parent: AgentSpec) -> None:
    try:
        given = inherit(child, parent)
    except ExceedsParent:
        return

    assert given.jailed
    assert STRICTNESS.index(given.isolation) >= STRICTNESS.index(parent.isolation)
    assert STRICTNESS.index(given.isolation) >= STRICTNESS.index(child.isolation)


@given(CHILD, JAILED)
def test_a_network_and_the_faster_runtime_are_the_parents_to_give(child: AgentSpec, parent: AgentSpec) -> None:
    try:
        given = inherit(child, parent)
    except ExceedsParent:
        return

    assert NETWORKS.index(given.network) <= NETWORKS.index(parent.network)
    assert parent.runtime == "fast" or given.runtime == "exec"


@given(CHILD, PARENT)
def test_what_it_refuses_is_named_and_was_asked_for(child: AgentSpec, parent: AgentSpec) -> None:
    try:
        inherit(child, parent)
    except ExceedsParent as error:
        assert error.field in ("isolation", "network", "runtime")
        assert str(error).startswith(f"{error.field}: ")
        modest = replace(child, isolation="standard", network="none", runtime="exec")
        assert inherit(modest, parent).jailed


@given(CHILD, PARENT, specs("grandchild"))
def test_a_grandchild_has_no_more_than_any_agent_above_it(
    child: AgentSpec, parent: AgentSpec, grandchild: AgentSpec
) -> None:
    try:
        middle = inherit(child, parent)
        last = inherit(grandchild, middle)
    except ExceedsParent:
        return

    assert inherit(last, parent) == last


@given(CHILD, PARENT)
def test_to_inherit_twice_changes_nothing(child: AgentSpec, parent: AgentSpec) -> None:
    try:
        given = inherit(child, parent)
    except ExceedsParent:
        return

    assert inherit(given, parent) == given


@given(CHILD, PARENT)
def test_a_limit_that_fits_stays_as_it_was_asked_for_or_unnamed(child: AgentSpec, parent: AgentSpec) -> None:
    """Named limits refuse where they can't be enforced; to name one that nobody asked for would refuse too much."""
    try:
        given = inherit(child, parent)
    except ExceedsParent:
        return

    bounds = effective(parent)
    for name, default in attrs.asdict(DEFAULTS).items():
        asked, bound = getattr(child.limits, name), getattr(bounds, name)
        if bound is None or (default if asked is None else asked) <= bound:
            assert getattr(given.limits, name) == asked


@given(CHILD, PARENT)
def test_the_sandboxes_own_limits_hold_the_order_too(child: AgentSpec, parent: AgentSpec) -> None:
    """What reaches the kernel is rounded on the way: it must not be rounded above the parent's."""
    try:
        given = inherit(child, parent)
    except ExceedsParent:
        return
    if parent.jailed:
        inner, outer = layout.limits(given), layout.limits(parent)
        assert all(own <= most for own, most in zip(*map(attrs.astuple, (inner, outer)), strict=True))


@given(CHILD, PARENT)
def test_all_else_is_as_it_was_asked_for(child: AgentSpec, parent: AgentSpec) -> None:
    child = replace(child, args=("a",), env={"A": "b"}, restart="transient", shutdown=1.0)
    try:
        given = inherit(child, parent)
    except ExceedsParent:
        return

    assert replace(given, limits=child.limits, isolation=child.isolation) == child


@pytest.mark.parametrize("parent", STRICTNESS)
def test_an_agent_without_isolation_is_no_agents_child(parent: str) -> None:
    with pytest.raises(ExceedsParent, match=r"isolation: .* the operator's alone"):
        inherit(AgentSpec("child", isolation="none"), AgentSpec("parent", isolation=parent))  # type: ignore[arg-type]


def test_of_limits_that_were_not_named_the_parents_lower_ones_hold() -> None:
    one, many, most = (Limits(memory=Size(mib << 20)) for mib in (1, 64, 1024))
    parent = AgentSpec("parent", limits=many)

    assert inherit(AgentSpec("child"), parent).limits == many
    assert inherit(AgentSpec("child", limits=most), parent).limits == many
    assert inherit(AgentSpec("child", limits=one), parent).limits == one


def test_a_parent_without_a_jail_bounds_by_what_was_named_alone() -> None:
    bare = AgentSpec("bare", isolation="none", limits=Limits(max_pids=10))

    assert effective(inherit(AgentSpec("child"), bare)) == attrs.evolve(DEFAULTS, max_pids=10)
    assert inherit(AgentSpec("child", network="host", runtime="fast"), bare).network == "host"


def test_limits_are_read_once_for_every_read_and_write_of_a_jailed_agent() -> None:
    spec = AgentSpec(name="reader", script="/some/script.py", limits=Limits(memory=Size(1 << 20)))
    read: list[object] = []

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is named.__code__:
            read.append(frame.f_locals["limits"])

    sys.setprofile(count)
    try:
        found = effective(spec)
    finally:
        sys.setprofile(None)

    assert found == attrs.evolve(DEFAULTS, memory=Size(1 << 20))
    assert [limits for limits in read if limits is spec.limits] == [spec.limits]


@pytest.mark.parametrize("parents", [None, "root"])
def test_a_child_is_root_inside_only_where_its_parent_is(parents: Literal["root"] | None) -> None:
    parent = AgentSpec("parent", script="/a.py", image="a", user=parents)
    child = AgentSpec("child", script="/a.py", user="root")

    if parents is None:
        with pytest.raises(ExceedsParent, match="user: its parent parent isn't root"):
            inherit(child, parent)
    else:
        assert inherit(child, parent).user == "root"
    assert inherit(replace(child, user=None), parent).user is None


def test_a_child_has_terminals_only_where_its_parent_has() -> None:
    child, parent = AgentSpec("child", terminals=True), AgentSpec("parent")

    with pytest.raises(ExceedsParent, match="terminals: its parent parent has no terminals"):
        inherit(child, parent)
    assert inherit(child, replace(parent, terminals=True)).terminals
    assert inherit(child, replace(parent, isolation="none")).terminals
