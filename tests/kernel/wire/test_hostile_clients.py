"""One client that misbehaves harms nobody: the others are answered, and what it took is given back."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys

import pytest

from tests.conftest import Connect, OwnKernel
from tests.support.kernel import Kernel, until
from tests.support.runs.rounds import rounds
from tests.support.wire import (
    BROADCAST,
    LIST,
    LOGS,
    NOOP,
    RECV,
    SEND,
    SPAWN,
    Wire,
    fill,
    frame,
    header,
)

KIB, MIB = 1 << 10, 1 << 20
SLACK = 24 * MIB  # what an allocator may keep of what it was once given
PROMPT = 1.0  # CPU seconds: says that nobody is kept waiting; how quick it is, make bench measures

pytestmark = pytest.mark.usefixtures("unharmed")


def slowest_answer(kernel: Kernel, wire: Wire, times: int) -> float:
    """The most CPU time that the kernel used before it answered a NOOP, asked so many times."""
    slowest = 0.0
    for _ in range(times):
        begin = kernel.cpu_seconds
        wire.ask(NOOP, b"x" * 64)
        slowest = max(slowest, kernel.cpu_seconds - begin)
    return slowest


@pytest.mark.parametrize("cut", [1, 4, 16, 17, 18, 100])
def test_one_that_resets_in_the_middle_of_a_frame(kernel: Kernel, cut: int) -> None:
    for _ in range(rounds(5)):
        with kernel.connect() as wire:
            wire.write(frame(NOOP, b"unread"))  # closing with a reply unread is a reset
            wire.write(frame(SPAWN, {"name": "x" * 200})[:cut])
            select.select([wire.socket], [], [], 5)


def test_one_that_closes_in_the_middle_of_a_large_body(kernel: Kernel) -> None:
    for _ in range(5):
        with kernel.connect() as wire:
            wire.write(header(NOOP, 16 * MIB) + b"x" * (5 * MIB))


def test_some_that_stall_in_the_middle_of_a_frame(kernel: Kernel, connect: Connect) -> None:
    half = frame(SEND, {"to": 1, "message": "x" * 1000})
    stalled = [connect() for _ in range(100)]

    for n, wire in enumerate(stalled):
        wire.write(half[: 1 + n * 9])

    assert kernel.answers()
    for n, wire in enumerate(stalled):
        wire.write(half[1 + n * 9 :])
        assert wire.receive().op == SEND
        wire.close()


def test_one_that_sends_byte_by_byte(connect: Connect) -> None:
    slow, other = connect(), connect()
    data = frame(NOOP, b"slow") + frame(LIST, b"{}") + frame(0x99)

    for byte in data:
        slow.write(bytes([byte]))
        other.ask(NOOP)

    assert [reply.op for reply in slow.replies(3)] == [NOOP, LIST, 0x99]


@pytest.mark.parametrize("body", [b"", b"x" * 64, b"x" * 60_000])
def test_one_that_floods_with_noops_and_never_reads(kernel: Kernel, connect: Connect, body: bytes) -> None:
    flood, other = connect(), connect()
    before = kernel.rss

    fill(flood, frame(NOOP, body) * 50)

    assert slowest_answer(kernel, other, 200) < PROMPT
    assert kernel.rss - before < SLACK


def test_some_that_send_16_mib_and_never_read(kernel: Kernel, connect: Connect) -> None:
    before = kernel.rss
    wires = [connect() for _ in range(4)]

    for wire in wires:
        wire.write(frame(NOOP, b"x" * (16 * MIB)))
    assert kernel.answers()

    assert kernel.rss - before < 4 * 3 * 16 * MIB
    for wire in wires:
        wire.close()


def test_one_that_asks_for_long_lists_in_one_write_and_never_reads(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    with kernel.connect() as flood, kernel.connect() as other:
        flood.hello()
        flood.write(b"".join(frame(SPAWN, {"name": f"a{n}", "command": ["sleep", "99"]}, n) for n in range(1, 31)))
        assert all(reply.json["success"] for reply in flood.replies(30))
        before = kernel.rss

        flood.write(b"".join(frame(LIST, b"", n) for n in range(1, 6001)))

        assert slowest_answer(kernel, other, 200) < PROMPT
        assert kernel.peak_rss - before < SLACK


def test_one_that_asks_for_long_logs_in_one_write_and_never_reads(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    script = "for i in $(seq 2000); do printf '%0200d\\n' $i; done; sleep 99"
    agent = kernel.spawn("talkative", ["sh", "-c", script])
    with kernel.connect() as flood, kernel.connect() as other:
        until(lambda: len(other.call(LOGS, {"id": agent, "tail": 2000})["lines"]) == 2000, "it has said all")
        flood.hello()
        before = kernel.rss

        flood.write(b"".join(frame(LOGS, {"id": agent, "tail": 2000}, n) for n in range(1, 1001)))

        assert slowest_answer(kernel, other, 200) < PROMPT
        assert kernel.peak_rss - before < 192 * MIB  # of 480 MiB; the heaps of busy threads grow, too


def test_hundreds_that_come_and_go(kernel: Kernel) -> None:
    for n in range(rounds(500)):
        with kernel.connect() as wire:
            if n % 3 == 1:
                wire.send(NOOP, b"x")
            if n % 3 == 2:
                assert wire.ask(NOOP, b"x").body == b"x"


def test_hundreds_that_come_at_once(connect: Connect) -> None:
    wires = [connect() for _ in range(500)]

    for wire in wires:
        wire.send(NOOP, b"hello")

    assert len({wire.receive().id for wire in wires}) == 500
    for wire in wires:
        wire.close()


def test_one_that_hangs_up_while_its_calls_wait(kernel: Kernel) -> None:
    for version in (1, 2):
        for _ in range(20):
            with kernel.connect() as wire:
                if version == 2:
                    wire.hello()
                wire.write(b"".join(frame(RECV, {"timeout": 1000}, n) for n in range(1, 50)))


def test_one_that_hangs_up_while_it_spawns(kernel: Kernel) -> None:
    with kernel.connect() as wire:
        wire.send(SPAWN, {"name": "half-born", "command": ["sleep", "99"]})

    until(lambda: not kernel.processes(), "what it spawned is gone, or never came to be")


def test_one_that_half_closes_still_gets_what_is_finished(wire: Wire) -> None:
    wire.write(frame(NOOP, b"x" * (16 * MIB)) + frame(LIST))
    wire.stop_sending()

    assert len(wire.receive().body) == 16 * MIB
    assert wire.receive().op == LIST
    assert wire.ends()
    wire.close()


@pytest.mark.parametrize("version", [1, 2])
def test_one_that_half_closes_is_gone_and_its_waiting_calls_are_withdrawn(wire: Wire, version: int) -> None:
    if version == 2:
        wire.hello()
    wire.write(frame(NOOP, b"finished", 1) + frame(RECV, {"timeout": 1000}, 2))
    wire.stop_sending()

    assert wire.receive().body == b"finished"
    with contextlib.suppress(ConnectionError):  # the end comes next, or after the word that it was withdrawn
        assert wire.receive().json["code"] == "cancelled"
    assert wire.ends()
    wire.close()


def test_one_that_half_closes_and_does_not_read_is_let_go_when_it_closes(kernel: Kernel, wire: Wire) -> None:
    wire.hello()
    wire.write(frame(NOOP, b"x" * (8 * MIB), 1))
    wire.stop_sending()
    assert kernel.answers()

    wire.close()

    until(lambda: kernel.connections == 0, "the kernel has let it go")


def test_one_that_shuts_its_reading_side(wire: Wire, kernel: Kernel) -> None:
    wire.socket.shutdown(socket.SHUT_RD)

    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(100):
            wire.send(NOOP, b"x" * 1000)

    until(lambda: kernel.connections == 0, "it is let go")


@pytest.mark.parametrize("lie", [-3, 3])
def test_a_header_that_lies_about_its_length(wire: Wire, lie: int) -> None:
    body = b'{"name": "liar"}'
    wire.write(header(0x23, len(body) + lie) + body + frame(NOOP, b"x" * 20) * 3)

    answer = wire.receive().json

    assert answer["code"] == "bad_request"
    while wire.socket.recv(65536):
        pass
    wire.close()


@pytest.mark.parametrize(
    "message",
    [
        b"[" * 500_000 + b"]" * 500_000,
        b"[" + b",".join([b"[" * 60 + b"]" * 60] * 8000) + b"]",
        b"[" + b",".join([b'{"a":1}'] * 120_000) + b"]",
        b"[" + b",".join([b"[]"] * 330_000) + b"]",
        b'"' + b"\\u00e9" * 160_000 + b'"',
        b"[" + b"1e5," * 240_000 + b"1]",
        b"[" + b"1" * 900_000 + b"]",
        b'"' + b"\\\\" * 480_000 + b'"',
        b"[" + b'"",' * 330_000 + b"1e999]",
    ],
    ids=["too deep", "deep", "objects", "arrays", "escapes", "floats", "one number", "backslashes", "late mistake"],
)
def test_one_that_sends_the_largest_messages_again_and_again(kernel: Kernel, connect: Connect, message: bytes) -> None:
    hostile, other = connect(), connect()
    to = other.ask(NOOP).id
    body = frame(SEND, b'{"to": %d, "message": %b}' % (to, message))
    assert len(body) <= MIB + 17
    slowest = 0.0

    for _ in range(rounds(5)):
        hostile.write(body)
        slowest = max(slowest, slowest_answer(kernel, other, 20))
        hostile.receive()
        other.send(RECV, {"max": 1})
        other.receive()

    assert slowest < PROMPT
    hostile.close()
    other.close()


def test_memory_of_large_messages_is_returned_to_the_host(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    assert kernel.answers()
    too_deep, before = b'{"to": 1, "message": %b}' % (b"[" * 500_000 + b"]" * 500_000), kernel.rss

    for _ in range(3):
        with contextlib.ExitStack() as stack:
            wires = [stack.enter_context(kernel.connect()) for _ in range(4)]
            for wire in wires:
                wire.write(frame(NOOP, b"x" * (16 * MIB)))
            assert all(len(wire.receive().body) == 16 * MIB for wire in wires)
            for _ in range(20):
                assert not wires[0].ask(SEND, too_deep).json["success"]

    until(lambda: kernel.rss - before < 8 * MIB, "an allocator keeps no multiple of the largest message")


def test_one_that_broadcasts_without_end(kernel: Kernel, connect: Connect) -> None:
    hostile, other = connect(), connect()
    crowd = [connect() for _ in range(500)]
    for wire in crowd:
        wire.ask(NOOP)

    hostile.write(frame(BROADCAST, {"message": 1}) * 1900)

    assert slowest_answer(kernel, other, 200) < PROMPT
    for wire in [*crowd, hostile]:
        wire.close()
    assert kernel.answers()


CROWD = """
import json, socket, sys
path, count, ask = sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3])
crowd = [socket.socket(socket.AF_UNIX) for _ in range(count)]
for one in crowd:
    one.connect(path)
    one.sendall(ask)
print("connected", flush=True)
print(json.dumps([int.from_bytes(one.recv(100)[4:8], "little") for one in crowd]), flush=True)
input()
"""


def test_one_process_that_opens_a_thousand_connections_at_once_does_not_stand_before_anothers_first(
    kernel: Kernel,
) -> None:
    """Replies have the caller's id, and ids are given in the order in which callers are admitted."""
    count = 1000  # all of them fit in the backlog
    command = [sys.executable, "-c", CROWD, kernel.socket, str(count), frame(NOOP).hex()]
    os.kill(kernel.pid, signal.SIGSTOP)  # so that all of them are there before the honest caller comes
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as crowd:
        assert crowd.stdin is not None
        assert crowd.stdout is not None
        try:
            assert crowd.stdout.readline() == b"connected\n"
            with kernel.connect() as honest:
                honest.send(NOOP)
                os.kill(kernel.pid, signal.SIGCONT)
                mine = honest.receive().id
            admitted = json.loads(crowd.stdout.readline())
        finally:
            os.kill(kernel.pid, signal.SIGCONT)
            crowd.stdin.close()

    assert len(set(admitted)) == count, "each is a caller of its own"
    before = sum(number < mine for number in admitted)
    assert before < count / 2, f"{before} of {count} were admitted before the other process's first"
