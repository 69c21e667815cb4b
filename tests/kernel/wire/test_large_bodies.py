"""Large bodies are read beside the event loop: one at a time, each caller's in order, and nobody's before its turn."""

import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from attrs import field, frozen

from agentos.agents.registry import Registry
from agentos.kernel.background import Background
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.syscall import Syscall
from agentos.kernel.table import Table
from agentos.kernel.wire.connection import Connection
from agentos.kernel.wire.poller import Poller
from agentos.kernel.wire.replies import encode_in_turns
from agentos.kernel.wire.request_body import MAX_INLINE_BYTES
from agentos.llm.settings import Account
from agentos.services.audit.traffic import Traffic
from agentos.services.mail.mailboxes import Mailboxes
from agentos.syscalls import messages
from agentos.syscalls.model import think
from agentos_sdk.opcodes import Op
from tests.conftest import Connect
from tests.gateways.served import served
from tests.support.kernel import Kernel
from tests.support.rights import Grants, Notebook
from tests.support.wire import BROADCAST, HEADER_SIZE, HELLO, NOOP, RECV, SEND, frame

NUMBERS = b"[" + b"1e5," * 200_000 + b"1]"  # 800 KB
ARRAYS = b"[" + b",".join([b"[" * 60 + b"]" * 60] * 6500) + b"]"  # reading them takes longest
WORDS = b"[" + b'"ab",' * 48_000 + b'"ab"]'  # 240 KB


@frozen
class Note:
    """A request that knows in which thread it was made."""

    text: str = ""
    thread: threading.Thread = field(init=False, factory=threading.current_thread)


def caller(table: Table, number: int = 7) -> Caller:
    return Caller(number, "agent", f"tester {number}", table, Grants(), Notebook())


def body(size: int) -> bytes:
    return json.dumps({"text": "x" * (size - 12)}).encode()


def cpu_time(kernel: Kernel) -> tuple[int, int]:
    """Nanoseconds of CPU that the thread of the event loop has used, and all others together."""
    used = {
        int(task.parent.name): int(task.read_text().split()[0])
        for task in Path(f"/proc/{kernel.pid}/task").glob("*/schedstat")
    }
    loop = used.pop(kernel.pid)
    return loop, sum(used.values())


def test_a_large_body_is_not_read_in_the_event_loop(kernel: Kernel, connect: Connect) -> None:
    wire, request = connect(), b'{"to_name": "nowhere", "message": ' + ARRAYS + b"}"
    wire.call(SEND, request)  # the thread is there
    loop, others = cpu_time(kernel)

    for _ in range(20):
        assert not wire.call(SEND, request)["success"]

    loop_after, others_after = cpu_time(kernel)
    assert others_after - others > loop_after - loop


@pytest.mark.parametrize("version", [1, 2])
def test_a_small_message_does_not_overtake_a_large_one_before_it(connect: Connect, version: int) -> None:
    sender, receiver = connect(), connect()
    own = receiver.ask(NOOP).id
    if version == 2:
        sender.hello()
    sizes = [800_000, 1, 300_000, 2, 3, 100_000, 4]

    for number, size in enumerate(sizes, 1):
        sender.send(SEND, {"to": own, "message": [size] * (size // 8)}, number)
        sender.send(NOOP, b"x" * number, 100 + number)
    answered = [reply.id for reply in sender.replies(2 * len(sizes))]

    found = [size for _ in sizes for size in lengths(receiver.call(RECV, {"max": 1}))]
    assert found == [size // 8 for size in sizes]
    if version == 2:
        assert answered == [number for each in range(1, len(sizes) + 1) for number in (each, 100 + each)]


def lengths(reply: Mapping[str, list[Mapping[str, list[int]]]]) -> list[int]:
    return [len(message["message"]) for message in reply["messages"]]


def test_messages_before_and_after_a_broadcast_arrive_in_order(connect: Connect) -> None:
    sender, receiver = connect(), connect()
    crowd = [connect() for _ in range(100)]
    for wire in crowd:
        wire.ask(NOOP)
    own = receiver.ask(NOOP).id
    sender.hello()

    for number in range(1, 31):
        op, to = (BROADCAST, {}) if number % 3 == 0 else (SEND, {"to": own})
        sender.send(op, {"message": number, **to}, number)
    answered = [reply.id for reply in sender.replies(30)]

    assert answered == list(range(1, 31))
    assert [message["message"] for message in receiver.call(RECV, {"max": 50})["messages"]] == list(range(1, 31))


def test_a_large_message_that_was_sent_before_the_end_of_the_stream_is_delivered(connect: Connect) -> None:
    sender, receiver = connect(), connect()
    own = receiver.ask(NOOP).id

    sender.write(frame(SEND, b'{"to": %d, "message": %b}' % (own, NUMBERS)) + frame(NOOP, b"last"))
    sender.stop_sending()

    assert sender.receive().json["success"]
    assert sender.receive().body == b"last"
    assert receiver.call(RECV)["count"] == 1


def test_a_large_hello_is_answered(connect: Connect) -> None:
    wire = connect()

    assert "permissions" in wire.call(HELLO, b'{"protocol": 2, "permissions": ' + WORDS + b"}")["error"]


async def test_where_a_body_is_read_depends_on_its_size() -> None:
    made: list[Note] = []

    async def wait(call: Call, note: Note) -> object:
        made.append(note)
        return {}

    def at_once(caller: Caller, note: Note) -> object:
        made.append(note)
        return {}

    table = Table([Syscall(Op.KEYS, Note, at_once), Syscall(Op.WAIT, Note, wait)])
    now, large, later = table.entries[Op.KEYS].now, table.entries[Op.KEYS].turns, table.entries[Op.WAIT].later
    assert now is not None
    assert large is not None
    assert later is not None

    now(caller(table), body(MAX_INLINE_BYTES))
    await large(caller(table), body(MAX_INLINE_BYTES + 1))
    await later(Call(caller(table), False, unused), body(MAX_INLINE_BYTES))
    await later(Call(caller(table), False, unused), body(MAX_INLINE_BYTES + 1))

    assert [note.thread is threading.main_thread() for note in made] == [True, False, True, False]


async def unused(chunk: bytes) -> None:
    raise AssertionError("nothing is streamed")


async def test_a_callers_many_large_bodies_do_not_delay_another_callers_one() -> None:
    answered: list[int] = []

    def note(caller: Caller, request: Note) -> object:
        answered.append(caller.id)
        return {}

    table = Table([Syscall(Op.KEYS, Note, note)])
    large = table.entries[Op.KEYS].turns
    assert large is not None
    busy, honest = caller(table, 1), caller(table, 2)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(large, busy, body(200_000))
        await trio.testing.wait_all_tasks_blocked()
        before = len(answered)
        nursery.start_soon(large, honest, body(200_000))

    assert answered.index(2) - before <= 2  # behind the one that is read, and one whose turn came before


async def test_a_callers_many_large_questions_do_not_delay_another_callers_one() -> None:
    answered: list[int] = []

    async with served() as here:
        table = Table(think.Thinking(here.line, lambda who: (Account("agent"),), Background(), 1 << 20).syscalls())
        later = table.entries[Op.THINK].later

        async def ask(who: Caller) -> None:  # and be refused, once the question is read
            assert later is not None
            await later(Call(who, True, unused), json.dumps({"prompt": "x" * 200_000}).encode())
            answered.append(who.id)

        refused = Grants(denied=["think"])
        busy, honest = (Caller(each, "agent", "tester", table, refused, Notebook()) for each in (1, 2))
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask, busy)
            await trio.testing.wait_all_tasks_blocked()
            before = len(answered)
            nursery.start_soon(ask, honest)

    assert answered.index(2) - before <= 2


async def steps_of_others(work: Callable[[], Awaitable[object]]) -> int:
    """How often another task has its turn while ``work`` is done."""
    steps = 0

    async def count() -> None:
        nonlocal steps
        while True:
            await trio.lowlevel.checkpoint()
            steps += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await work()
        nursery.cancel_scope.cancel()
    return steps


async def test_others_have_their_turn_while_a_broadcast_is_decided() -> None:
    mail = Mailboxes()
    for number in range(1, 1001):
        mail.open(number)
    no_audit: Any = None  # a broadcast isn't counted
    table = Table(messages.Messages(mail, Registry(), Traffic(no_audit), lambda caller: "").syscalls())
    broadcast = table.entries[Op.BROADCAST].turns
    assert broadcast is not None

    steps = await steps_of_others(lambda: broadcast(caller(table), b'{"message": 1}'))

    assert steps >= 10
    assert len(mail.by_id(1000).messages) == 1
    assert not mail.by_id(7).messages


async def test_others_have_their_turn_between_many_calls_that_never_pause(poller: Poller) -> None:
    async def compute(caller: Caller, note: Note) -> object:
        end = time.perf_counter() + 0.002
        while time.perf_counter() < end:
            pass
        return {}

    peer, ours = socket.socketpair()
    with peer, ours:
        ours.setblocking(False)
        peer.sendall(frame(Op.KEYS) * 50)
        peer.shutdown(socket.SHUT_WR)
        table = Table([Syscall(Op.KEYS, Note, compute, in_order=True)])

        steps = await steps_of_others(Connection(ours, caller(table), poller).serve)

        assert steps >= 10  # one for every 5 ms
        assert len(peer.recv(10_000)) == 50 * (HEADER_SIZE + 2)


async def test_others_have_their_turn_while_a_long_reply_is_written() -> None:
    assert await steps_of_others(lambda: encode_in_turns(["x"] * 2000)) >= 15
