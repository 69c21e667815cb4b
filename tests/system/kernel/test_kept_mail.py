"""Messages to declared agents over kills and orderly ends of the kernel: nothing that was acknowledged is lost.

``make proof-mail`` ends the kernel a hundred times.
"""

import contextlib
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import pytest
import trio
from attrs import define, field

from agentos_sdk import AgentOSClient, connect
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, until
from tests.support.runs.rounds import is_night
from tests.support.wire import ACK, BROADCAST, PATIENCE, RECV, SEND
from tests.system.agents import ask, info, relay, up

ENDS = 100 if is_night() else 5  # many by `make proof-mail`; every second one is a kill
BOXES, SENDERS, READERS = 20 if is_night() else 8, 4, 4
LONGEST = 0.5  # seconds of traffic, at most, once all of it goes on
MAX = 200  # messages of one sender in one life: no mailbox gets full

AGENTS = "\n".join(f'[[agents]]\nname = "box{number}"\ncommand = ["sleep", "100000"]' for number in range(BOXES))


@define
class Books:
    """What was acknowledged, over all lives of the kernel. A message is its mailbox, its sender and its number."""

    numbers: "itertools.count[int]" = field(factory=itertools.count)
    sent: set[tuple[int, int, int]] = field(factory=set)
    taken: set[tuple[int, int, int]] = field(factory=set)  # by RECV without a lease
    acked: set[tuple[int, int, int]] = field(factory=set)
    doubtful: Counter[int] = field(factory=Counter)  # by mailbox: removed by calls whose reply was lost
    attempts: Counter[int] = field(factory=Counter)  # how often a lease handed each out, by the message's id
    order: dict[tuple[int, int], int] = field(factory=dict)  # the last number by mailbox and sender

    def read(self, box: int, message: dict[str, Any]) -> tuple[int, int, int]:
        """Note a message that was handed out, and check that it is neither removed nor out of order."""
        key: tuple[int, int, int] = tuple(message["message"])
        _, sender, number = key
        assert key not in self.acked | self.taken, f"{key} was removed, and comes again"
        assert number >= self.order.get((box, sender), 0), f"{key} comes after {self.order[box, sender]}"
        self.order[box, sender] = number
        return key


def send(kernel: Kernel, books: Books, sender: int, chance: random.Random) -> None:
    with kernel.connect() as wire:
        for _ in range(MAX):
            number, to = next(books.numbers), chance.randrange(BOXES)
            reply = wire.call(SEND, {"to_name": f"box{to}", "message": [to, sender, number]})
            if reply["success"]:
                books.sent.add((to, sender, number))
            else:
                assert reply["code"] == "busy", reply


def broadcast(kernel: Kernel, books: Books, sender: int, ending: threading.Event) -> None:
    with kernel.connect() as wire:
        for _ in range(MAX // BOXES):
            number = next(books.numbers)
            full = up(wire.call(BROADCAST, {"message": [-1, sender, number]}))["full"]
            if ending.is_set():  # an agent that has ended gets none, which the reply doesn't tell
                return
            books.sent.update((box, sender, number) for box in range(BOXES) if f"box{box}" not in full)


def read(kernel: Kernel, books: Books, ids: list[int], reader: int, chance: random.Random) -> None:
    boxes = range(reader, BOXES, READERS)
    wires = {box: kernel.connect_as(ids[box]) for box in boxes}
    with contextlib.ExitStack() as stack:
        for wire in wires.values():
            stack.enter_context(wire)
        while True:
            box = chance.choice(boxes)
            leases = chance.random() < 0.7
            request = {"max": chance.randrange(1, 8), **({"lease": 60} if leases else {})}
            books.doubtful[box] += 0 if leases else request["max"]
            messages = up(wires[box].call(RECV, request))["messages"]
            for message in messages:
                message["message"][0] = box
            keys = [books.read(box, message) for message in messages]
            if not leases:
                books.doubtful[box] -= request["max"]
                books.taken.update(keys)
                continue
            for message in messages:
                books.attempts[message["id"]] += 1
                assert message["attempt"] >= books.attempts[message["id"]]
            if messages and chance.random() < 0.8:
                books.doubtful[box] += len(messages)
                up(wires[box].call(ACK, {"ids": [message["id"] for message in messages]}))
                books.doubtful[box] -= len(messages)
                books.acked.update(keys)


def carry_until_over(kernel: Kernel, books: Books, life: int, chance: random.Random) -> None:
    """Traffic until the kernel ends, killed or in order."""
    failures = list[AssertionError]()

    def until_gone(work: Callable[..., None], *details: object) -> threading.Thread:
        def run() -> None:
            try:
                with contextlib.suppress(OSError):  # ConnectionError: the kernel is gone
                    work(kernel, books, *details)
            except AssertionError as error:
                if kernel.process.poll() is None and not ending.is_set():
                    failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    ending = threading.Event()
    with kernel.client() as client:
        ids = [info(client, f"box{number}")["id"] for number in range(BOXES)]
    sent, acked = len(books.sent), len(books.acked)
    threads = [
        *(until_gone(send, sender, random.Random(chance.random())) for sender in range(SENDERS)),
        until_gone(broadcast, SENDERS, ending),
        *(until_gone(read, ids, reader, random.Random(chance.random())) for reader in range(READERS)),
    ]
    until(lambda: len(books.sent) > sent and len(books.acked) > acked, "messages are sent and acknowledged")
    time.sleep(chance.random() * LONGEST)  # not a wait for something: the moment of the end is random
    ending.set()
    if life % 2:
        kernel.stop()
    else:
        kernel.kill()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failures, failures[0]


@pytest.mark.usefixtures("long")
def test_no_acknowledged_message_is_lost_when_the_kernel_ends_again_and_again(own_kernel: OwnKernel) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance, books = random.Random(seed), Books()
    kernel = own_kernel(AGENTS)
    for life in range(ENDS):
        carry_until_over(kernel, books, life, chance)
        kernel.start_again()
        books.order.clear()  # what was leased comes again

    left = set[tuple[int, int, int]]()
    with kernel.client() as client:
        for box in range(BOXES):
            with kernel.connect_as(info(client, f"box{box}")["id"]) as wire:
                while messages := up(wire.call(RECV, {"max": 1000}))["messages"]:
                    left.update((box, *message["message"][1:]) for message in messages)
        dead = [up(client.mail(f"box{box}", dead=True, limit=1000))["messages"] for box in range(BOXES)]
    left |= {(box, *one["message"][1:]) for box, found in enumerate(dead) for one in found}
    kernel.stop()
    assert not left & (books.taken | books.acked), "removed, and there again"
    lost = books.sent - left - books.taken - books.acked
    for box, number in Counter(box for box, _, _ in lost).items():
        assert number <= books.doubtful[box], f"box{box} has lost {number}: {sorted(lost)[:5]}"
    print(f"{ENDS} ends: {len(books.sent)} sent, {len(books.acked)} acknowledged, {len(books.taken)} taken")


def test_kept_mail_of_a_spawned_agent_waits_for_the_next_of_its_name_and_spawner(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()

    def spawn(boss: int, **more: object) -> Any:
        return up(ask(client, boss, "spawn", name="worker", command=["sleep", "1000"], mailbox="kept", **more))["id"]

    with kernel.client() as client:
        boss, other = (relay(kernel, client, name, permissions="standard") for name in ("boss", "other"))
        spawn(boss)
        up(client.send_message("for the boss's", to_name="worker"))
        assert client.kill("worker")
        spawn(other)
        assert up(client.mail("worker"))["count"] == 0, "another agent's worker doesn't get it"
        assert client.kill("worker")
        assert up(client.mail("boss/worker"))["count"] == 1
    kernel.kill()

    kernel.start_again()
    with kernel.client() as client:
        with kernel.connect_as(spawn(relay(kernel, client, "boss", permissions="standard"))) as wire:
            [message] = up(wire.call(RECV, {}))["messages"]
        assert (message["message"], message["from_kind"]) == ("for the boss's", "operator")
        assert client.inspect("worker")["spec"]["mailbox"] == "kept"
        assert client.kill("worker")
        up(client.spawn("worker", command=["sleep", "1000"]))
        up(client.send_message("in memory", to_name="worker"))
        assert client.kill("worker")
        assert client.mail("worker")["code"] == "not_found"


def test_kept_mail_of_a_guest_waits_for_the_next_of_its_name(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()

    def guest(name: str = "mcp:ann", mailbox: Literal["kept", "memory"] = "kept") -> AgentOSClient:
        return AgentOSClient(kernel.socket, PATIENCE, name=name, level="minimal", mailbox=mailbox)

    def wait_until_gone(name: str) -> None:
        until(lambda: client.mail(name).get("code") == "not_found", "the guest's connection has ended")

    with kernel.client() as client:
        for name in ("mcp:ann", "bob"):
            with guest(name) as ann:
                sent = [up(client.send_message(text, to_name=name)) for text in ("first", "second")]
                assert up(ann.recv_messages(1, lease=60))["count"] == 1
            assert sent[0]["delivered_to"] == ann.agent_id
            wait_until_gone(name)
            assert client.send_message("to none", to_name=name)["code"] == "not_found"
            assert up(client.mail(f"guest {name}"))["count"] == 2, "also what was leased"
        with guest(mailbox="memory") as ann:
            assert up(ann.recv_messages())["count"] == 0, "it hasn't asked for what is kept"
        up(client.spawn("bob", command=["sleep", "1000"], mailbox="kept"))
        assert up(client.mail("bob"))["count"] == 0, "an agent of that name doesn't get it"
    kernel.kill()

    kernel.start_again()
    with kernel.client() as client, AgentOSClient(kernel.socket, PATIENCE, name="eve") as other:
        assert up(client.mail("guest bob"))["count"] == 2
        assert other.mail("guest bob")["code"] == "permission_denied"
    with guest() as ann:
        messages = up(ann.recv_messages())["messages"]
        assert [(one["message"], one["attempt"]) for one in messages] == [("first", 2), ("second", 1)]
        with kernel.client() as client:
            assert up(client.mail("guest mcp:ann"))["count"] == 0
            up(client.send_message("third", to_name="mcp:ann"))

    async def read() -> Any:
        async with connect(kernel.socket, name="mcp:ann", mailbox="kept") as ann:
            return [one.message for one in await ann.recv_messages()]

    with kernel.client() as client:
        wait_until_gone("mcp:ann")
    assert trio.run(read) == ["third"]


def test_messages_in_memory_that_end_with_a_kernel_are_counted_by_it_and_by_the_next(own_kernel: OwnKernel) -> None:
    agents = [f'[[agents]]\nname = "{name}"\ncommand = ["sleep", "1000"]' for name in ("kept", "memory")]
    kernel = own_kernel("\n".join([*agents, 'mailbox = "memory"']))
    with kernel.client() as client:
        up(client.spawn("child", command=["sleep", "1000"]))
        for name in ("kept", "memory", "memory", "child"):
            up(client.send_message("hello", to_name=name))
        first = info(client, "kept")["id"]
    kernel.stop()
    assert "lost with this kernel: 3 unread messages in memory" in kernel.said

    kernel.start_again()
    kernel.wait_line(r"lost with the last kernel, which ended in order at .*: 3 unread messages in memory")
    with kernel.client() as client:
        assert [up(client.mail(name))["count"] for name in ("kept", "memory")] == [1, 0]
        assert up(client.send_message("hello", to_name="kept"))["delivered_to"] > first
        assert client.send_message("hello", to=first)["code"] == "not_found"
