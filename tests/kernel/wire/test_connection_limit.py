"""How families of agents share the kernel's connections, and what is left for others and for the operator."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Literal

import pytest

from agentos.http.server import with_own_allowance
from agentos.kernel.caller import Caller
from agentos.kernel.table import Table
from agentos.kernel.wire.listener import OPERATOR_RESERVE, ConnectionLimit
from tests.support.rights import Grants, Notebook

ROOM = 336  # for agents
NO_CALLS = Table([])


def caller(number: int, family: str, kind: Literal["agent", "operator"] = "agent") -> Caller:
    return Caller(number, kind, f"caller-{number}", NO_CALLS, Grants(), Notebook(), family=family)


@pytest.fixture
def limit() -> ConnectionLimit:
    return ConnectionLimit(ROOM + OPERATOR_RESERVE)


@pytest.fixture
def held() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def take_all(limit: ConnectionLimit, callers: Sequence[Caller], held: contextlib.ExitStack) -> int:
    """Connect these in turn until each is refused; the number of connections."""
    taken = 0
    while admitted := [one for one in callers if connect(limit, one, held)]:
        taken += len(admitted)
    return taken


def connect(limit: ConnectionLimit, one: Caller, held: contextlib.ExitStack) -> bool:
    if limit.describe_full(one) is not None:
        return False
    held.enter_context(limit.count(one))
    return True


def test_a_family_gets_no_more_with_many_members_than_with_one(held: contextlib.ExitStack) -> None:
    one, many = (ConnectionLimit(ROOM + OPERATOR_RESERVE) for _ in range(2))

    alone = take_all(one, [caller(1, "agent 1")], held)

    assert take_all(many, [caller(number, "agent 1") for number in range(100)], held) == alone
    assert 128 <= alone < ROOM * 2 // 5


@pytest.mark.parametrize("families", [1, 2, 4, 10])
@pytest.mark.parametrize("order", ["at once", "one after another"])
def test_families_that_take_all_they_can_leave_a_fair_share_for_the_next(
    limit: ConnectionLimit, held: contextlib.ExitStack, families: int, order: str
) -> None:
    greedy = [caller(number, f"agent {number}") for number in range(families)]
    for group in [greedy] if order == "at once" else [[one] for one in greedy]:
        take_all(limit, group, held)

    assert ROOM - limit.connections >= ROOM // (families + 1)
    assert connect(limit, caller(1000, "agent 1000"), held)


def test_the_operator_gets_all_that_agents_leave(limit: ConnectionLimit, held: contextlib.ExitStack) -> None:
    taken = take_all(limit, [caller(number, f"agent {number}") for number in range(1000)], held)

    assert take_all(limit, [caller(1, "", "operator")], held) == ROOM + OPERATOR_RESERVE - taken >= OPERATOR_RESERVE
    assert "400 connections (kernel.max_connections = 400)" in str(limit.describe_full(caller(1, "", "operator")))


def test_unproven_connections_of_a_port_leave_the_operators_reserve(
    limit: ConnectionLimit, held: contextlib.ExitStack
) -> None:
    port = caller(1, "", "operator")
    while limit.describe_full(port, proven=False) is None:
        held.enter_context(limit.count(port))

    assert limit.connections == ROOM
    assert take_all(limit, [caller(2, "", "operator")], held) == OPERATOR_RESERVE


def test_a_refused_member_is_told_the_count_and_the_limit(limit: ConnectionLimit, held: contextlib.ExitStack) -> None:
    taken = take_all(limit, [caller(1, "agent 1")], held)

    refusal = limit.describe_full(caller(2, "agent 1"))

    assert refusal is not None
    assert f"caller-2 with its family has {taken} " in refusal
    assert "kernel.max_connections = 400" in refusal


def test_what_a_family_closes_it_may_open_again(limit: ConnectionLimit) -> None:
    for _ in range(3):
        with contextlib.ExitStack() as held:
            assert take_all(limit, [caller(1, "agent 1"), caller(2, "agent 1")], held) >= 128
        assert limit.connections == 0


def test_a_connection_that_became_a_guests_is_given_back_as_what_it_was(limit: ConnectionLimit) -> None:
    one = caller(1, "", "operator")
    with contextlib.ExitStack() as held, limit.count(one):
        one.kind, one.family = "guest", "guest visitor"
        taken = take_all(limit, [caller(2, "guest visitor")], held)

    with contextlib.ExitStack() as held:
        assert take_all(limit, [caller(2, "guest visitor")], held) >= taken
    assert limit.connections == 0


def test_connections_of_a_gateway_count_for_the_family(limit: ConnectionLimit, held: contextlib.ExitStack) -> None:
    agent = caller(1, "agent 1")

    take_all(limit, [with_own_allowance(agent)], held)

    assert limit.describe_full(agent) is not None
