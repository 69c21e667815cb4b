"""How much one caller may have under way: connections, calls and bytes; over the limit it isn't read, not refused."""

import contextlib
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from tests.conftest import Connect, OwnKernel
from tests.support.kernel import Kernel, until
from tests.support.wire import (
    KILL,
    LOGS,
    NOOP,
    PATIENCE,
    RECV,
    SEND,
    SPAWN,
    THINK,
    WRITE,
    Wire,
    fill,
    frame,
    header,
    settle,
)

MIB = 1 << 20


@pytest.fixture
def agent(kernel: Kernel, wire: Wire) -> Iterator[int]:
    """The id of an agent that does nothing, in whose name the test makes calls."""
    number = kernel.spawn("busybody")
    yield number
    assert wire.call(KILL, {"id": number})["killed"]


def test_the_65th_connection_of_an_agent_is_told_why_and_closed(kernel: Kernel, agent: int) -> None:
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(kernel.connect_as(agent)) for _ in range(64)]
        assert {wire.ask(NOOP).id for wire in wires} == {agent}

        with kernel.connect_as(agent) as one_more:
            assert one_more.receive().json["code"] == "busy"
            assert one_more.ends()

        wires[0].close()
        until(lambda: admitted(kernel, agent), "a connection that was closed makes room for another")


def admitted(kernel: Kernel, agent: int) -> bool:
    with kernel.connect_as(agent) as wire:
        wire.stop_sending()
        return wire.ends()


def test_other_callers_have_connections_left_when_one_agent_has_none(kernel: Kernel, agent: int) -> None:
    other = kernel.spawn("bystander")
    with contextlib.ExitStack() as stack:
        for _ in range(70):
            stack.enter_context(kernel.connect_as(agent))

        with kernel.connect_as(other) as wire:
            assert wire.ask(NOOP).id == other
        assert kernel.answers()
    with kernel.connect() as wire:
        assert wire.call(KILL, {"id": other})["killed"]


def test_a_reserve_of_connections_is_kept_for_the_operator(own_kernel: OwnKernel) -> None:
    kernel = own_kernel("[kernel]\nmax_connections = 70\n")
    agent = kernel.spawn("greedy")
    with contextlib.ExitStack() as stack:
        others = [kernel.spawn(f"greedy-{number}") for number in range(5)]
        wires = [stack.enter_context(kernel.connect_as(one)) for one in (agent, *others) for _ in range(6)]
        admitted = [wire for wire in wires if is_in(wire)]
        assert len(admitted) == 6

        assert kernel.answers()


def is_in(wire: Wire) -> bool:
    """Whether a new connection is served. One that isn't has been told so, and may be closed already."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        wire.send(NOOP)
    return wire.receive().body == b""


MANY = """
[kernel]
max_connections = 400

[llm]
provider = "offline"
openai_endpoint = true
"""
TELL = "echo $OPENAI_BASE_URL; exec sleep 1000"


def test_an_agent_with_children_leaves_connections_for_others_and_the_operator(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(MANY)
    agent, innocent = (kernel.spawn(name, ["sh", "-c", TELL], network=True) for name in ("greedy", "innocent"))
    with kernel.connect_as(agent) as wire:
        wanted = {"command": ["sh", "-c", TELL], "network": True}
        replies = [wire.call(SPAWN, {"name": f"child-{number}", **wanted}) for number in range(2)]
        assert [reply["success"] for reply in replies] == [True, True], replies

    with contextlib.ExitStack() as stack:
        taken = sum(open_all(kernel, member, stack) for member in (agent, *(reply["id"] for reply in replies)))
        assert taken < 336 // 2

        assert [is_in(stack.enter_context(kernel.connect_as(innocent))) for _ in range(15)] == [True] * 15
        assert status_of(endpoint_of(kernel, innocent), stack) == 401
        assert status_of(endpoint_of(kernel, agent), stack) == 503
        assert kernel.answers()


def open_all(kernel: Kernel, member: int, stack: contextlib.ExitStack) -> int:
    """Open 64 connections each to a member's socket and to its endpoint; the number of those that are served."""
    wires = [is_in(stack.enter_context(kernel.connect_as(member))) for _ in range(64)]
    address = endpoint_of(kernel, member)
    return wires.count(True) + [status_of(address, stack) for _ in range(64)].count(401)


def endpoint_of(kernel: Kernel, member: int) -> tuple[str, int]:
    """The address that an agent with the host's network has printed."""
    with kernel.connect() as wire:
        said: list[str] = []

        def has_said() -> bool:
            said[:] = [line["text"] for line in wire.call(LOGS, {"id": member})["lines"]]
            return bool(said)

        until(has_said, "the agent has printed its address")
    url = urlsplit(said[0])
    assert url.hostname is not None
    assert url.port is not None
    return url.hostname, url.port


def status_of(address: tuple[str, int], stack: contextlib.ExitStack) -> int:
    """The status of a request without a key, on a connection that stays open if it was let in."""
    client = stack.enter_context(socket.create_connection(address, PATIENCE))
    client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
    return int(client.recv(1000).split()[1])


def test_the_operator_is_told_when_the_house_is_full(own_kernel: OwnKernel) -> None:
    kernel = own_kernel("[kernel]\nmax_connections = 3\n")
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(kernel.connect()) for _ in range(3)]
        for wire in wires:
            wire.ask(NOOP)

        with kernel.connect() as one_more:
            reply = one_more.receive().json
            assert reply["code"] == "busy"
            assert "max_connections = 3" in reply["error"]
            assert one_more.ends()

        wires[0].close()
        until(lambda: lets_in(kernel), "a connection that was closed makes room for another")


def lets_in(kernel: Kernel) -> bool:
    with kernel.connect() as wire:
        wire.stop_sending()
        return wire.ends()


def test_with_256_calls_in_flight_reading_stops_and_goes_on_when_one_is_answered(connect: Connect) -> None:
    two, other = connect(), connect()
    own = two.hello()["agent_id"]
    two.write(b"".join(frame(RECV, {"max": 1, "timeout": 1000}, n) for n in range(1, 257)))
    settle(other)
    two.send(NOOP, b"not read yet", 1000)
    assert two.is_silent()

    other.call(SEND, {"to": own, "message": "for one of them"})

    assert two.receive().id in range(1, 257)
    assert two.receive() == (1000, NOOP, b"not read yet")


def test_all_connections_of_an_agent_share_its_256_calls(kernel: Kernel, wire: Wire, agent: int) -> None:
    with kernel.connect_as(agent) as one, kernel.connect_as(agent) as two:
        one.hello()
        two.hello()
        for each in (one, two):
            each.write(b"".join(frame(RECV, {"max": 1, "timeout": 1000}, n) for n in range(1, 128)))
            each.ask(NOOP, b"all before this were read", 128)
        two.write(b"".join(frame(RECV, {"max": 1, "timeout": 1000}, n) for n in (129, 130)))
        for each in (two, one):
            each.send(RECV, {"timeout": 0}, 1000)
            assert each.is_silent()
        assert kernel.answers()

        one.close()  # and with it its 128 calls
        assert two.receive().id == 1000


def test_calls_that_came_in_one_write_are_no_more_than_256_in_flight_either(wire: Wire) -> None:
    wire.hello()

    begin = time.monotonic()
    wire.write(b"".join(frame(RECV, {"timeout": 0.5}, n) for n in range(1, 301)))
    wire.replies(300)

    assert time.monotonic() - begin > 0.9  # the last 44 begin to wait when others have ended


def test_bodies_that_arrive_on_many_connections_of_an_agent_take_at_most_64_mib(kernel: Kernel, agent: int) -> None:
    most = b"x" * (15 * MIB)
    before = kernel.rss
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(kernel.connect_as(agent)) for _ in range(12)]
        taken: list[int] = []
        for number, wire in enumerate(wires):
            wire.write(header(NOOP, 16 * MIB))
            taken.append(fill(wire, most, PATIENCE if number < 4 else 0.2, times=1))

        assert [size == len(most) for size in taken] == [True] * 4 + [False] * 8
        assert max(taken[4:]) < MIB
        assert kernel.rss - before < 100 * MIB
        assert kernel.answers()

    until(lambda: kernel.rss - before < 32 * MIB, "the memory is given back")


def test_large_bodies_of_one_agent_that_are_complete_at_once_do_not_wait_for_each_other(
    kernel: Kernel, agent: int
) -> None:
    body = b'{"path": "/workspace/large", "content": "%s"}' % (b"x" * (15 * MIB))
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(kernel.connect_as(agent)) for _ in range(5)]
        for wire in wires:
            wire.hello()
            wire.write(header(WRITE, len(body), 1))
        for wire in wires:
            wire.write(body[:-1])
        for wire in wires:
            wire.write(body[-1:])

        assert [wire.receive().json["success"] for wire in wires] == [True] * 5


@pytest.mark.parametrize("version", [1, 2])
def test_large_questions_of_one_agent_do_not_wait_for_each_others_replies(own_kernel: OwnKernel, version: int) -> None:
    kernel = own_kernel('[llm]\nprovider = "offline"\ndefault_budget = "none"\n\n[llm.offline]\nper_output = "1ms"\n')
    agent = kernel.spawn("asker")
    body = b'{"prompt": "%s"}' % (b"x" * (15 * MIB))
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(kernel.connect_as(agent)) for _ in range(5)]
        for wire in wires:
            if version == 2:
                wire.hello()
            wire.write(header(THINK, len(body), 1))
        with ThreadPoolExecutor(5) as threads:
            list(threads.map(lambda wire: wire.write(body), wires))
            replies = list(threads.map(lambda wire: wire.receive().json, wires))

        # One may be told that its family's 64 MiB in the line are taken; none waits for ever.
        assert [reply.get("code", "ok") for reply in replies if reply.get("code") != "busy"].count("ok") >= 4


def test_a_reply_that_is_not_read_stops_the_reading_of_requests(kernel: Kernel, wire: Wire) -> None:
    before = kernel.rss

    taken = fill(wire, frame(NOOP, b"x" * 1000))

    assert taken < 4 * MIB
    assert kernel.rss - before < 8 * MIB
    assert kernel.answers()
    whole, rest = divmod(taken, 1017)
    for _ in range(whole):
        assert wire.receive().body == b"x" * 1000
    wire.write(frame(NOOP, b"x" * 1000)[rest:])
    assert wire.receive().body == b"x" * 1000
