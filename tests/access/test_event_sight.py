from agentos.access.event_sight import EVERYTHING, CallerRules, find_family, list_above
from agentos.agents.registry import Registry
from agentos.permissions.levels import LEVELS
from agentos.services.event_log.record import OPERATOR
from tests.access.making import add_agent, make_callers
from tests.permissions.strategies import NAMES


def test_a_family_is_all_below_one_agent_or_one_guest() -> None:
    registry = Registry()
    callers = make_callers(registry)
    guest = callers.admit_link(1000, "the dashboard", "viewer")
    chief = add_agent(registry, 12, "chief")
    child = add_agent(registry, 13, "child", chief)
    of_guest = add_agent(registry, 14, "helper", guest="web")

    def family(charged: int | str) -> int | str:
        return find_family(registry, callers.find_guest, charged)

    assert {charged: family(charged) for charged in (12, 13, guest.id, 99, "chief", "chief/child", "guest web/x")} == {
        12: "chief",
        13: "chief",
        guest.id: "guest the dashboard",
        99: 99,
        "chief": "chief",
        "chief/child": "chief",
        "guest web/x": "guest web",
    }
    grandchild = add_agent(registry, 15, "grandchild", of_guest)
    above = [list_above(registry, agent.id) for agent in (chief, child, grandchild)]
    assert above == [(), (12,), (14, "guest web")]


def test_what_a_caller_sees_follows_from_its_kind_and_ends_with_it() -> None:
    registry = Registry()
    callers = make_callers(registry)
    operator, guest = callers.admit_operator(1000), callers.admit_link(1000, "web", "viewer")
    agent = add_agent(registry, 13, "child", add_agent(registry, 12, "chief"))
    callers.authorizer.add_caller(agent.id, LEVELS["readonly"], NAMES)
    one, other, third = (CallerRules(each, registry, callers.authorizer) for each in (operator, guest, agent.caller))

    assert one.sight() is EVERYTHING
    assert other.sight().parties == {guest.id, "guest web", "account guest web"}
    assert third.sight().parties == {agent.id, "account chief/child"}
    assert third.sight().above == {12, OPERATOR}
    callers.authorizer.remove_caller(agent.id)
    assert third.sight() == type(EVERYTHING)(frozenset())
