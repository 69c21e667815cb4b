"""RECV with a lease, ACK and MAIL as clients see them, in mailboxes in memory and in kept ones."""

import contextlib
from collections.abc import Iterator

import pytest

from agentos_sdk.client import connect as connect_by_trio
from tests.conftest import Connect
from tests.support.kernel import Kernel, shared
from tests.support.wire import ACK, EXIT, HELLO, MAIL, RECV, REGISTER, SEND, Wire, frame
from tests.system.agents import info, up

KEPT = ("order", "loses", "loop")
"""Agents with a kept mailbox, each of one test."""


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with shared("".join(f'[[agents]]\nname = "{name}"\ncommand = ["sleep", "1000"]\n' for name in KEPT)) as started:
        yield started


def test_what_is_leased_is_not_handed_out_again_and_ack_removes_it(connect: Connect) -> None:
    sender, receiver = connect(), connect()
    up(receiver.call(REGISTER, {"name": "receiver"}))
    for text in ("one", "two"):
        up(sender.call(SEND, {"to_name": "receiver", "message": text}))

    [one] = up(receiver.call(RECV, {"max": 1, "lease": 60}))["messages"]
    assert up(receiver.call(RECV, {}))["count"] == 0, "the same sender's are held back"
    assert up(receiver.call(ACK, {"ids": [one["id"]]}))["acked"] == 1
    late = receiver.call(ACK, {"ids": [one["id"]]})
    assert (late["code"], late["acked"], late["ids"]) == ("not_found", 0, [one["id"]])
    [two] = up(receiver.call(RECV, {"max": 1}))["messages"]
    assert (two["message"], two["attempt"], two["id"] > one["id"]) == ("two", 1, True)


def test_leases_and_ids_that_can_not_be_are_refused(wire: Wire) -> None:
    for lease in (0.5, 3601, "soon", -1):
        reply = wire.call(RECV, {"lease": lease})
        assert (reply["code"], "lease" in reply["error"]) == ("bad_request", True), lease
    for ids in ([], [-1], ["1"], [1.5], 7, [1 << 63]):
        reply = wire.call(ACK, {"ids": ids})
        assert (reply["code"], "ids" in reply["error"], reply["acked"]) == ("bad_request", True, 0), ids


def test_messages_to_a_kept_mailbox_keep_their_order_whatever_their_size(kernel: Kernel) -> None:
    with kernel.client() as client, kernel.connect() as wire:
        number = info(client, "order")["id"]
        up(wire.call(HELLO, {"protocol": 2}))
        texts = ["x" * size for size in (10, 300_000, 5, 900_000, 0, 20)]
        wire.write(b"".join(frame(SEND, {"to_name": "order", "message": text}, at) for at, text in enumerate(texts, 1)))
        assert {up(wire.receive().json)["delivered_to"] for _ in texts} == {number}

        with kernel.connect_as(number) as agent:
            got = list[str]()
            while messages := up(agent.call(RECV, {}))["messages"]:
                got += [message["message"] for message in messages]
    assert got == texts


def test_version_1_and_a_client_that_goes_lose_no_message_of_a_kept_mailbox(kernel: Kernel) -> None:
    with kernel.client() as client:
        number = info(client, "loses")["id"]
        with kernel.connect_as(number) as gone:  # before there are messages: they can't be in its socket unread
            gone.write(frame(RECV, {"max": 50, "timeout": 60}))
        with kernel.connect() as sender:
            sender.write(b"".join(frame(SEND, {"to": number, "message": at}) for at in range(50)) + frame(EXIT))
            assert [up(sender.receive().json)["delivered_to"] for _ in range(50)] == [number] * 50
        with kernel.connect_as(number) as gone, contextlib.suppress(OSError):
            gone.write(frame(RECV, {"max": 50, "lease": 1}))  # its reply may be, until the lease ends
        with kernel.connect_as(number) as agent:
            got = list[int]()
            while len(got) < 50 and (messages := up(agent.call(RECV, {"timeout": 60}))["messages"]):
                got += [one["message"] for one in messages]
        assert got == list(range(50)), "each comes once, in order"


async def test_messages_are_acknowledged_at_the_end_of_the_loops_body(kernel: Kernel) -> None:
    with kernel.client() as client:
        number = info(client, "loop")["id"]
        for text in ("one", "two", "three"):
            up(client.send_message(text, to_name="loop"))
        async with connect_by_trio(str(kernel.runtime / f"{number}.sock")) as agent:
            seen = []
            async for message in agent.messages():
                seen.append(message.message)
                if len(seen) == 2:
                    break
        with kernel.connect_as(number) as wire:
            waiting = up(client.mail("loop"))
            assert [(one["message"], one["attempt"]) for one in waiting["messages"]] == [("two", 1), ("three", 0)]
            assert seen == ["one", "two"]
            assert up(wire.call(RECV, {}))["count"] == 0, "two is leased, and holds back three"
        [two, _] = waiting["messages"]
        assert [one["leased"] is None for one in waiting["messages"]] == [False, True]
        kept = up(client.mail("loop", drop=[two["id"]]))
        assert (kept["count"], kept["dropped"]) == (2, 0), "a leased one stays"


def test_mail_shows_contents_to_the_operator_alone(kernel: Kernel) -> None:
    with kernel.connect() as guest, kernel.client() as client:
        up(guest.call(REGISTER, {"name": "ada-box"}))
        up(guest.call(HELLO, {"as": "ada", "level": "standard"}))
        up(client.send_message({"text": "red"}, to_name="ada-box"))
        [one] = up(client.mail("ada-box"))["messages"]
        assert (one["from_id"], one["size"], one["message"]) == (client.agent_id, 15, {"text": "red"})
        assert guest.call(MAIL, {"name": "nothing"})["code"] == "not_found"
        own = up(guest.call(MAIL, {"name": "ada-box"}))
        assert (own["messages"], own["count"]) == ([], 1)
        assert guest.call(MAIL, {"name": "ada-box", "drop": [one["id"]]})["code"] == "permission_denied"
        assert guest.call(MAIL, {})["code"] == "permission_denied"
        assert client.mail(drop=[one["id"]])["code"] == "bad_request"
        dropped = up(client.mail("ada-box", drop=[one["id"], 1 << 40]))
        assert (dropped["count"], dropped["dropped"]) == (0, 1)


def test_pages_of_mail(kernel: Kernel) -> None:
    with kernel.connect() as wire, kernel.client() as client:
        up(wire.call(REGISTER, {"name": "pages"}))
        for number in range(5):
            up(client.send_message(number, to_name="pages"))
        first = up(client.mail("pages", limit=2))
        assert (first["count"], [one["message"] for one in first["messages"]]) == (5, [0, 1])
        rest = up(client.mail("pages", after=first["messages"][-1]["id"]))
        assert [one["message"] for one in rest["messages"]] == [2, 3, 4]
        assert up(client.mail("pages", dead=True))["count"] == 0
