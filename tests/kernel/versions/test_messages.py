"""SEND, RECV, BROADCAST and REGISTER as a client sees them."""

import time
from typing import Any

import pytest

from agentos_sdk.client import connect as connect_by_trio
from tests.conftest import Connect, OwnKernel
from tests.support.kernel import Kernel, until
from tests.support.runs.rows import each_row
from tests.support.wire import (
    BROADCAST,
    EXIT,
    HELLO,
    KILL,
    NOOP,
    PATIENCE,
    RECV,
    REGISTER,
    SEND,
    SPAWN,
    Wire,
    frame,
    settle,
)

MIB = 1 << 20


def own_id(wire: Wire) -> int:
    return wire.ask(NOOP).id


def read_all(wire: Wire) -> list[Any]:
    """Every message that waits, batch by batch."""
    found: list[Any] = []
    while (reply := wire.call(RECV, {"max": 5000}))["count"]:
        found += [message["message"] for message in reply["messages"]]
    return found


def test_each_connection_of_the_operators_is_a_caller_of_its_own(connect: Connect) -> None:
    one, two = connect(), connect()
    assert own_id(one) != own_id(two)

    assert one.call(SEND, {"to": own_id(two), "message": "for two"}) == {
        "success": True,
        "delivered_to": own_id(two),
    }

    assert one.call(RECV)["count"] == 0
    assert two.call(RECV)["count"] == 1


def test_a_message_names_its_sender_and_its_time(connect: Connect) -> None:
    sender, receiver = connect(), connect()
    sender.call(REGISTER, {"name": "the-sender"})
    before = time.time()

    sender.call(SEND, {"to": own_id(receiver), "message": {"a": [1, None]}})
    [message] = receiver.call(RECV)["messages"]

    assert message.keys() == {
        "id",
        "attempt",
        "from_id",
        "from",
        "from_name",
        "from_kind",
        "message",
        "sent_at",
        "age_ms",
    }
    assert message["from_id"] == message["from"] == own_id(sender)
    assert 0 <= message["age_ms"] < PATIENCE * 1000
    assert message["from_name"] == "the-sender"
    assert message["message"] == {"a": [1, None]}
    assert before - 1 <= message["sent_at"] <= time.time() + 1


@pytest.mark.parametrize(
    "target", [{"to": 10**9}, {"to": 0}, {"to": -1}, {"to": "nobody"}, {"to_name": "nobody"}, {"to_name": ""}]
)
def test_a_message_to_an_unknown_agent_is_not_found(wire: Wire, target: dict[str, object]) -> None:
    assert wire.call(SEND, {**target, "message": 1})["code"] == "not_found"


def test_a_mailbox_is_gone_with_its_connection_and_its_id_is_not_used_again(kernel: Kernel, wire: Wire) -> None:
    with kernel.connect() as other:
        gone = own_id(other)
        other.call(REGISTER, {"name": "short-lived"})
        other.ask(EXIT)
        assert other.ends()

    deadline = time.monotonic() + PATIENCE
    while wire.call(SEND, {"to": gone, "message": 1})["success"]:
        assert time.monotonic() < deadline

    assert wire.call(SEND, {"to_name": "short-lived", "message": 1})["code"] == "not_found"
    assert wire.call(REGISTER, {"name": "short-lived"})["success"]
    with kernel.connect() as third:
        assert own_id(third) > gone


def test_messages_of_one_sender_arrive_in_the_order_they_were_sent(connect: Connect) -> None:
    receiver = connect()
    senders = [connect() for _ in range(4)]

    for wire in senders:
        bodies = [{"to": own_id(receiver), "message": [id(wire), n]} for n in range(200)]
        wire.write(b"".join(frame(SEND, body) for body in bodies))
    for wire in senders:
        assert all(reply.json["success"] for reply in wire.replies(200))

    got = read_all(receiver)
    for wire in senders:
        assert [each for each in got if each[0] == id(wire)] == [[id(wire), n] for n in range(200)]


def test_recv_takes_the_oldest_and_10_unless_told_otherwise(connect: Connect) -> None:
    sender, receiver = connect(), connect()
    for n in range(15):
        sender.call(SEND, {"to": own_id(receiver), "message": n})

    assert [m["message"] for m in receiver.call(RECV)["messages"]] == list(range(10))
    assert [m["message"] for m in receiver.call(RECV, {"max": 3})["messages"]] == [10, 11, 12]
    assert [m["message"] for m in receiver.call(RECV, {"max": 10**6})["messages"]] == [13, 14]
    assert receiver.call(RECV)["count"] == 0


def test_a_waiting_recv_is_answered_by_the_message_that_comes(connect: Connect) -> None:
    sender, receiver = connect(), connect()
    own = own_id(receiver)
    receiver.send(RECV, {"timeout": "1d"})
    assert receiver.is_silent()

    sender.call(SEND, {"to": own, "message": "here"})

    assert receiver.receive().json["messages"][0]["message"] == "here"


@pytest.mark.parametrize("op", [SEND, BROADCAST])
@pytest.mark.parametrize("padding", [0, 100_000])
async def test_a_message_as_deep_as_a_request_may_be_is_received_and_a_deeper_one_refused(
    kernel: Kernel, connect: Connect, op: int, padding: int
) -> None:
    def send(levels: int) -> Any:
        to = b"" if op == BROADCAST else b'"to_name": "deep-reader", '
        nested = b"[" * levels + b'"%b"' % (b"x" * padding) + b"]" * levels
        return connect().call(op, b'{%b"message": %b}' % (to, nested))

    async with connect_by_trio(kernel.socket, name="deep-reader") as reader:
        assert send(63)["success"]
        refused = send(64)
        received = await reader.recv_messages()

    assert (refused["code"], refused["error"]) == ("bad_request", "nested deeper than 64")
    assert [str(one.message).count("[") for one in received] == [63]


def test_a_full_mailbox_is_busy_and_loses_nothing(connect: Connect) -> None:
    sender, receiver = connect(), connect()
    own = own_id(receiver)
    sender.write(b"".join(frame(SEND, {"to": own, "message": n}) for n in range(1000)))
    assert all(reply.json["success"] for reply in sender.replies(1000))

    full = sender.call(SEND, {"to": own, "message": "one too many"})
    receiver.call(RECV, {"max": 1})

    assert full["code"] == "busy"
    assert sender.call(SEND, {"to": own, "message": "fits again"})["success"]
    assert sender.call(SEND, {"to": own, "message": "not this one"})["code"] == "busy"
    assert read_all(receiver) == [*range(1, 1000), "fits again"]


def test_a_mailbox_holds_16_mib(connect: Connect) -> None:
    sender, receiver = connect(), connect()
    own = own_id(receiver)
    message = "x" * (MIB - 64)

    sent = 0
    while (reply := sender.call(SEND, {"to": own, "message": message}))["success"]:
        sent += 1
        assert sent < 20

    assert reply["code"] == "busy"
    assert sent == 16
    assert sender.call(SEND, {"to": own, "message": "small"})["success"]
    assert len(read_all(receiver)) == 17


def test_a_broadcast_reaches_every_agent_but_its_sender(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    with kernel.connect() as sender, kernel.connect() as one, kernel.connect() as two:
        for wire in (sender, one, two):
            own_id(wire)

        assert sender.call(BROADCAST, {"message": "all"})["delivered_count"] == 2
        assert sender.call(BROADCAST, {"message": "us too", "include_self": True})["delivered_count"] == 3

        assert read_all(sender) == ["us too"]
        assert read_all(one) == read_all(two) == ["all", "us too"]


def test_a_broadcast_names_the_receivers_without_room(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    with kernel.connect() as sender, kernel.connect() as full, kernel.connect() as free:
        full.call(REGISTER, {"name": "full-one"})
        own_id(free)
        sender.write(b"".join(frame(SEND, {"to_name": "full-one", "message": n}) for n in range(1000)))
        sender.replies(1000)

        reply = sender.call(BROADCAST, {"message": "all"})

        assert reply == {"success": True, "delivered_count": 1, "full": ["full-one"]}
        assert read_all(free) == ["all"]
        assert read_all(full) == list(range(1000))


def test_a_registered_name_reaches_its_owner(connect: Connect) -> None:
    sender, receiver = connect(), connect()

    assert receiver.call(REGISTER, {"name": "inbox"}) == {
        "success": True,
        "agent_id": own_id(receiver),
        "name": "inbox",
    }
    sender.call(SEND, {"to_name": "inbox", "message": "by name"})
    assert sender.call(SEND, {"to": "inbox", "message": "by name in to"})["success"]

    assert read_all(receiver) == ["by name", "by name in to"]


def test_ones_own_name_may_be_registered_again_and_anothers_may_not(connect: Connect) -> None:
    owner, other = connect(), connect()
    owner.call(REGISTER, {"name": "mine"})

    assert owner.call(REGISTER, {"name": "mine"})["success"]
    assert other.call(REGISTER, {"name": "mine"})["code"] == "already_exists"
    other.call(SEND, {"to_name": "mine", "message": 1})
    assert read_all(owner) == [1]


@each_row("name", ["", " ", "a b", "-a", ".a", "a\n", "é", "a" * 65, "a/b", "#1", "a\u0000"])
def test_a_malformed_name_is_refused(kernel: Kernel, name: str) -> None:
    with kernel.connect() as wire:
        reply = wire.call(REGISTER, {"name": name})

        assert reply["code"] == "bad_request"
        assert reply["error"].startswith("name: ")


@pytest.mark.parametrize("name", ["operator", "Operator", "OPERATOR", "kernel", "Kernel", "root", "Spawned"])
def test_a_name_of_the_kernels_or_its_operators_is_not_taken(wire: Wire, name: str) -> None:
    spawn = {"name": name, "command": ["sleep", "1000"]}

    refused = [wire.call(op, body) for op, body in ((REGISTER, {"name": name}), (SPAWN, spawn), (HELLO, {"as": name}))]

    assert [reply["code"] for reply in refused] == ["already_exists"] * 3, refused
    assert wire.call(SEND, {"to_name": name, "message": "secret"})["code"] == "not_found"


@pytest.mark.parametrize(
    "name",
    [
        "\uff4f\uff50\uff45\uff52\uff41\uff54\uff4f\uff52",
        "op\u0435rator",
        "oper\u200bator",
        "\u212aernel",
        "operator\u2024",
        "operator\u00ad",
        "\u017fpawned",
    ],
)
def test_a_name_that_only_looks_like_the_operators_is_no_name(wire: Wire, name: str) -> None:
    spawn = {"name": name, "command": ["sleep", "1000"]}

    refused = [wire.call(op, body) for op, body in ((REGISTER, {"name": name}), (SPAWN, spawn), (HELLO, {"as": name}))]

    assert [reply["code"] for reply in refused] == ["bad_request"] * 3, refused


def test_a_letter_says_what_its_sender_is_whatever_it_calls_itself(kernel: Kernel, connect: Connect) -> None:
    receiver, operator, guest = connect(), connect(), connect()
    guest.call(HELLO, {"as": "operator-7", "level": "standard"})
    agent = kernel.spawn("the-operator")
    to = {"to": own_id(receiver), "message": None}

    with kernel.connect_as(agent) as itself:
        for sender in (operator, guest, itself):
            assert sender.call(SEND, to)["success"]

    assert [each["from_kind"] for each in receiver.call(RECV)["messages"]] == ["operator", "guest", "agent"]
    operator.call(KILL, {"id": agent})


def test_no_caller_can_hoard_names(wire: Wire) -> None:
    taken = [wire.call(REGISTER, {"name": f"hoard-{n}"})["success"] for n in range(100)]

    assert taken[:16] == [True] * 16
    assert not any(taken[16:])


def test_an_agents_name_is_taken_from_the_start(kernel: Kernel, wire: Wire) -> None:
    agent = kernel.spawn("settled")
    wire.call(REGISTER, {"name": "not-an-agent"})

    assert wire.call(REGISTER, {"name": "settled"})["code"] == "already_exists"
    assert wire.call(SPAWN, {"name": "not-an-agent", "command": ["true"]})["code"] == "already_exists"
    with kernel.connect_as(agent) as itself:
        assert itself.call(REGISTER, {"name": "settled"})["agent_id"] == agent
    wire.call(KILL, {"id": agent})


def test_all_connections_of_an_agent_share_its_id_and_its_mailbox(kernel: Kernel, wire: Wire) -> None:
    agent = kernel.spawn("two-handed")
    with kernel.connect_as(agent) as left, kernel.connect_as(agent) as right:
        assert own_id(left) == own_id(right) == agent
        wire.call(SEND, {"to": agent, "message": 1})
        wire.call(SEND, {"to": agent, "message": 2})

        assert left.call(RECV, {"max": 1})["messages"][0]["message"] == 1
        assert right.call(RECV, {"max": 1})["messages"][0]["message"] == 2
    wire.call(KILL, {"id": agent})


def test_messages_whose_reply_could_not_be_written_are_put_back_in_front(kernel: Kernel, wire: Wire) -> None:
    agent = kernel.spawn("forgetful")
    with kernel.connect_as(agent) as here:
        own_id(here)
        before = kernel.open_files
        with kernel.connect_as(agent) as deaf:
            deaf.hello()
            deaf.write(frame(RECV, {"timeout": 1000}, 1) + frame(NOOP, b"x" * (4 * MIB), 2))
            assert deaf.socket.recv(17)  # the echo has begun, and fills the socket: what comes now has to wait
            wire.call(SEND, {"to": agent, "message": 0})
            settle(here)
            assert here.call(RECV)["count"] == 0
            for n in range(1, 5):
                wire.call(SEND, {"to": agent, "message": n})

        until(lambda: kernel.open_files <= before, "the deaf one's connection is over")

        assert read_all(here) == [0, 1, 2, 3, 4]
    wire.call(KILL, {"id": agent})


def test_waiting_calls_of_a_caller_that_has_gone_take_no_message(kernel: Kernel, wire: Wire) -> None:
    agent = kernel.spawn("absent")
    for version in (1, 2):
        with kernel.connect_as(agent) as gone:
            if version == 2:
                gone.hello()
            gone.send(RECV, {"timeout": 1000}, 1)
            assert gone.is_silent()
        wire.call(SEND, {"to": agent, "message": version})
        with kernel.connect_as(agent) as here:
            reply = here.call(RECV, {"timeout": 10})
            assert [message["message"] for message in reply["messages"]] == [version]
    wire.call(KILL, {"id": agent})
