"""Calls that wait without a task: order in version 1, withdrawal in version 2, approval, peers that don't read."""

from collections.abc import Iterator
from functools import partial

import pytest
import trio
import trio.testing

from agentos.kernel.wire.poller import TURN_SECONDS, Poller
from agentos_sdk import AgentOSClient
from tests.conftest import Connect
from tests.kernel.wire.test_poller import Pairs, pairs, spend  # noqa: F401 - a fixture
from tests.support.kernel import Kernel, until
from tests.support.wire import CANCEL, EXIT, FETCH, HELLO, NOOP, RECV, STORE, Wire, frame, header

MANY = 600  # more than one caller may have in flight


def store(key: str, value: object = 1, number: int = 0, scope: str = "session") -> bytes:
    return frame(STORE, {"key": key, "value": value, "scope": scope}, number)


@pytest.fixture
def asking(kernel: Kernel, connect: Connect) -> Iterator[tuple[Wire, AgentOSClient]]:
    """A guest of which a person is asked for each global key that it stores; and the operator."""
    with kernel.client() as client:
        wire = connect()
        permissions = {"level": "standard", "ask": {"state_write": ["*"]}}
        assert wire.call(HELLO, {"protocol": 1, "as": "asking", "permissions": permissions})["success"]
        yield wire, client
        for entry in client.approvals()["pending"]:
            client.decide(entry["id"], False)


@pytest.mark.usefixtures("unharmed")
def test_version_1_answers_in_order_also_what_is_begun_without_a_task(wire: Wire) -> None:
    own = wire.ask(NOOP).id
    wire.write(
        store("a", 1)
        + frame(NOOP, b"between")
        + store("", 0)
        + store("b", 2)
        + frame(FETCH, {"key": "b"})
        + store("a", 3)
        + frame(RECV, {"timeout": 0})
        + frame(EXIT)
    )

    got = wire.replies(8)
    assert [reply.op for reply in got] == [STORE, NOOP, STORE, STORE, FETCH, STORE, RECV, EXIT]
    assert {reply.id for reply in got} == {own}
    assert [got[at].json.get("version") for at in (0, 3, 4, 5)] == [1, 2, 2, 3]
    assert got[2].json["code"] == "bad_request"
    assert wire.ends()


def test_hello_behind_a_store_is_answered_after_it(wire: Wire) -> None:
    wire.write(store("a") + frame(HELLO, {"protocol": 2}) + store("b", 1, 70_000))

    assert [(reply.op, reply.id == 70_000) for reply in wire.replies(3)] == [
        (STORE, False),
        (HELLO, False),
        (STORE, True),
    ]


def test_a_broken_frame_is_answered_after_the_store_before_it(wire: Wire) -> None:
    wire.write(store("a") + header(NOOP, 0, magic=b"none"))

    stored, broken = wire.replies(2)
    assert (stored.op, stored.json["version"]) == (STORE, 1)
    assert broken.json["code"] == "bad_frame"
    assert wire.ends()


@pytest.mark.usefixtures("unharmed")
def test_more_stores_than_a_caller_may_have_in_flight_are_all_answered(wire: Wire) -> None:
    wire.hello()
    wire.write(b"".join(store(f"key.{number}", number, number) for number in range(1, MANY + 1)))

    got = wire.replies(MANY)
    assert sorted(reply.id for reply in got) == list(range(1, MANY + 1))
    assert sorted(reply.json["version"] for reply in got) == list(range(1, MANY + 1))


def test_a_number_that_is_in_flight_is_refused_and_free_again_with_its_reply(wire: Wire) -> None:
    wire.hello()
    wire.write(store("a", 1, 5) + store("b", 1, 5) + store("c", 1, 0))

    refused = [reply for reply in wire.replies(3) if not reply.json["success"]]
    assert {reply.id for reply in refused} == {0, 5}
    assert all("request id" in reply.json["error"] for reply in refused)
    assert wire.call(STORE, {"key": "d", "value": 1, "scope": "session"}, 5)["success"]


@pytest.mark.usefixtures("unharmed")
def test_a_withdrawn_store_is_answered_once_and_stored_only_if_it_says_so(wire: Wire) -> None:
    wire.hello()
    for count in range(1, 50):
        key, number = f"key.{count}", 2 * count
        wire.write(store(key, 1, number) + frame(CANCEL, {"id": number}, number + 1))

        got = {reply.op: reply.json for reply in wire.replies(2)}
        stored = got[STORE]["success"]
        assert stored or got[STORE]["code"] == "cancelled"
        assert wire.call(FETCH, {"key": key, "scope": "session"}, 1)["exists"] == stored


@pytest.mark.usefixtures("unharmed")
def test_clients_that_go_away_while_their_stores_wait_leave_nothing(kernel: Kernel, wire: Wire) -> None:
    for protocol in (1, 2) * 20:
        with kernel.connect() as leaving:
            leaving.call(HELLO, {"protocol": protocol})
            leaving.write(b"".join(store("left", number, number) for number in range(1, 20)))

    assert wire.call(STORE, {"key": "left", "value": 1})["success"]


def test_a_person_is_asked_about_a_store_and_version_1_keeps_its_order(asking: tuple[Wire, AgentOSClient]) -> None:
    wire, client = asking
    wire.write(store("plan", 1, scope="global") + frame(NOOP, b"behind") + store("own", 2))
    until(lambda: len(client.approvals()["pending"]) == 1, "it is asked")
    assert wire.is_silent()

    client.decide(client.approvals()["pending"][0]["id"], True)

    got = wire.replies(3)
    assert [reply.op for reply in got] == [STORE, NOOP, STORE]
    assert got[0].json["success"]
    assert client.fetch("plan")["value"] == 1


def test_a_person_is_asked_about_a_store_and_version_2_goes_on(asking: tuple[Wire, AgentOSClient]) -> None:
    wire, client = asking
    wire.hello()
    wire.write(store("asked.1", 1, 11, "global") + store("asked.2", 2, 12, "global") + store("own", 3, 13))

    assert wire.receive().id == 13
    until(lambda: len(client.approvals()["pending"]) == 2, "both are asked")
    for entry in client.approvals()["pending"]:
        client.decide(entry["id"], "asked.1" in entry["shown"])

    got = {reply.id: reply.json for reply in wire.replies(2)}
    assert (got[11]["success"], got[12]["code"]) == (True, "approval_refused")
    assert client.fetch("asked.2")["exists"] is False


def test_a_peer_that_does_not_read_gets_all_its_replies_later(wire: Wire) -> None:
    wire.hello()
    wire.socket.settimeout(0.5)
    sent = 0
    with pytest.raises(TimeoutError):
        while sent < 1 << 20:
            sent += 1
            wire.write(store("key", 1, sent))
    wire.socket.settimeout(60)

    assert [reply.json["success"] for reply in wire.replies(sent - 1)] == [True] * (sent - 1)


async def test_owners_of_deferred_work_take_turns(poller: Poller) -> None:
    done = list[str]()
    for name in ("a1", "a2", "a3", "b1", "c1", "b2"):
        poller.defer(name[0], partial(done.append, name))

    await trio.testing.wait_all_tasks_blocked()
    assert done == ["a1", "b1", "c1", "a2", "b2", "a3"]

    poller.defer("a", partial(done.append, "later"))
    await trio.testing.wait_all_tasks_blocked()
    assert done[-1] == "later"


async def test_deferred_work_that_takes_long_lets_others_read(pairs: Pairs, poller: Poller) -> None:  # noqa: F811
    ours, theirs = pairs()
    done, over = list[str](), trio.Event()

    def read() -> None:
        done.append(ours.recv(100).decode())

    def work(number: int) -> None:
        if not number:
            theirs.send(b"read")
        spend(2 * TURN_SECONDS)
        done.append("work")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poller.wait, ours.fileno(), read)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(100):
            poller.defer("owner", partial(work, number))
        poller.defer("owner", over.set)
        await over.wait()
        nursery.cancel_scope.cancel()

    assert done.index("read") < 10
