"""Level sandboxed, the default of a jailed agent: it sends to its parent, its descendants and its group only."""

from collections.abc import Iterator

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, shared
from tests.support.wire import BROADCAST, EXPLAIN, HELLO, RECV, SEND, SPAWN, Wire
from tests.system.agents import info, up
from tests.system.lives.test_containers import SLEEPS, child, group, member

SLEEP = ["sleep", "1000"]
ALLOWED = 'permissions = { level = "sandboxed", allow = { send = ["carl"] } }'
FLEET = (
    group("left", member("anna") + member("bert"))
    + group("right", member("carl"))
    + child("dora")
    + child("emma", SLEEPS, ALLOWED)
)


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with shared(FLEET) as started:
        yield started


def send(wire: Wire, name: str) -> str:
    reply = wire.call(SEND, {"to_name": name, "message": "hi"})
    return "sent" if reply["success"] else str(reply["code"])


def ids(client: AgentOSClient) -> dict[str, int]:
    return {agent["name"]: agent["id"] for agent in client.list_agents(all=True)}


def test_an_agent_sends_within_its_group_and_to_no_other_agent(kernel: Kernel) -> None:
    with kernel.client() as client:
        number = ids(client)
    with kernel.connect_as(number["anna"]) as anna:
        assert send(anna, "bert") == "sent"
        assert send(anna, "carl") == send(anna, "dora") == "permission_denied"
    with kernel.connect_as(number["emma"]) as emma:
        assert send(emma, "carl") == "sent", "a rule lets it send further"


def test_a_denied_send_and_explain_name_the_agents_that_may_be_sent_to(kernel: Kernel) -> None:
    why = "carl is not your parent or an agent that you spawned or an agent with your supervisor"
    with kernel.client() as client, kernel.connect() as operator:
        with kernel.connect_as(ids(client)["anna"]) as anna:
            assert why in anna.call(SEND, {"to_name": "carl", "message": "hi"})["error"]

        told = operator.call(
            EXPLAIN, {"agent": ids(client)["anna"], "call": "SEND", "args": {"to_name": "carl", "message": 1}}
        )
        assert (told["decision"], why in told["reason"]) == ("deny", True)


def test_a_broadcast_reaches_the_group_only(kernel: Kernel) -> None:
    with kernel.client() as client:
        number = ids(client)
        for name in ("bert", "carl"):  # what other tests have sent
            with kernel.connect_as(number[name]) as wire:
                wire.call(RECV)
        with kernel.connect_as(number["anna"]) as anna:
            assert anna.call(BROADCAST, {"message": "all"})["success"]
        for name, count in (("bert", 1), ("carl", 0), ("dora", 0)):
            with kernel.connect_as(number[name]) as wire:
                assert wire.call(RECV)["count"] == count


def test_parent_and_descendants_talk_but_cousins_do_not(kernel: Kernel) -> None:
    with kernel.client() as client:
        for name in ("one", "two"):
            up(client.spawn(name, command=SLEEP))
        with kernel.connect_as(info(client, "one")["id"]) as one, kernel.connect_as(info(client, "two")["id"]) as two:
            for wire, name in ((one, "one-child"), (two, "two-child")):
                assert wire.call(SPAWN, {"name": name, "command": SLEEP})["success"]

            assert send(one, "one-child") == send(one, "two") == "sent"
            assert send(one, "two-child") == "permission_denied"
            with kernel.connect_as(info(client, "one-child")["id"]) as below:
                assert send(below, "one") == "sent"
                assert send(below, "two") == send(below, "two-child") == "permission_denied"


def test_agents_of_the_operator_answer_it_on_every_connection(kernel: Kernel) -> None:
    number = kernel.spawn("worker")
    with kernel.connect() as operator, kernel.connect_as(number) as worker:
        assert operator.call(SEND, {"to": number, "message": "do"})["success"]
        [message] = worker.call(RECV)["messages"]
        assert worker.call(SEND, {"to": message["from_id"], "message": "done"})["success"]


def test_agents_of_two_guests_are_strangers(kernel: Kernel) -> None:
    with kernel.connect() as ann, kernel.connect() as bob:
        for wire, name in ((ann, "ann"), (bob, "bob")):
            assert wire.call(HELLO, {"as": name, "level": "sandboxed"})["success"]
            assert wire.call(SPAWN, {"name": f"of-{name}", "command": SLEEP})["success"]
        with kernel.client() as client, kernel.connect_as(info(client, "of-ann")["id"]) as agent:
            assert send(agent, "of-bob") == send(agent, "bob") == "permission_denied"
            assert send(agent, "ann") == "sent"
