"""The DNS stub answers names that rules could allow, denies all others, and survives any packet."""

import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import IPv4Address

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from agentos.gateways.http_proxy import dns_stub
from agentos.gateways.http_proxy.dns_stub import MAX_CONNECTIONS, DNSStub
from agentos.gateways.http_proxy.name_table import NameTable
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE

A, AAAA, HTTPS, IN = 1, 28, 65, 1


def query(name: str, kind: int = A, *, number: int = 7, extra: bytes = b"", additional: int = 0) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".") if label)
    return (
        struct.pack("!HHHHHH", number, 0x0100, 1, 0, 0, additional) + labels + struct.pack("!BHH", 0, kind, IN) + extra
    )


def make_stub() -> DNSStub:
    return DNSStub(NameTable(), lambda name: name.endswith("example.com"))


def code_and_answers(reply: bytes | None) -> tuple[int, int]:
    """The response code, and the number of answers."""
    assert reply is not None
    _, flags, _, answers, _, _ = struct.unpack_from("!HHHHHH", reply)
    assert flags & 0x8000
    return flags & 15, answers


def test_a_name_that_a_rule_could_allow_has_an_address_of_its_own() -> None:
    stub = make_stub()

    reply = stub.answer(query("API.Example.com"))

    assert reply is not None
    assert code_and_answers(reply) == (0, 1)
    assert reply[12:].startswith(query("API.Example.com")[12:]), "the question, in the case in which it was asked"
    assert stub.names.name_of(IPv4Address(reply[-4:])) == "api.example.com"


@each_row("more, code", [(0, (0, 1)), (1, (1, 0))])
def test_a_name_has_255_bytes_at_most(more: int, code: tuple[int, int]) -> None:
    labels = ["a" * 63, "b" * 63, "c" * 63, "d" * (49 + more)]

    assert code_and_answers(make_stub().answer(query(".".join([*labels, "example.com"])))) == code


@pytest.mark.parametrize("kind", [AAAA, HTTPS])
def test_such_a_name_has_no_other_records(kind: int) -> None:
    assert code_and_answers(make_stub().answer(query("api.example.com", kind))) == (0, 0)


@pytest.mark.parametrize("name", ["evil.net", "1.0.18.198.in-addr.arpa", "", "com"])
def test_all_other_names_do_not_exist_and_take_no_address(name: str) -> None:
    stub = make_stub()

    assert code_and_answers(stub.answer(query(name))) == (3, 0)
    assert stub.names.name_of(IPv4Address("198.18.0.1")) is None


def test_a_dot_within_a_label_makes_no_other_name() -> None:
    asked = struct.pack("!HHHHHH", 7, 0, 1, 0, 0, 0) + b"\x0bexample.com" + struct.pack("!BHH", 0, A, IN)

    assert code_and_answers(make_stub().answer(asked)) == (3, 0)


def test_a_question_with_edns_is_answered() -> None:
    option = struct.pack("!BHHIH", 0, 41, 1232, 0, 0)

    assert code_and_answers(make_stub().answer(query("example.com", extra=option, additional=1))) == (0, 1)


@each_row(
    ("message", "expected"),
    [
        (b"", None),
        (b"\0" * 11, None),
        (struct.pack("!HHHHHH", 7, 0x8180, 1, 1, 0, 0) + query("example.com")[12:], None),  # an answer
        (struct.pack("!HHHHHH", 7, 0x2800, 1, 0, 0, 0) + query("example.com")[12:], 4),  # an update
        (query("example.com")[:-1], 1),
        (query("example.com")[:-2] + b"\0\3", 1),  # class CHAOS
        (struct.pack("!HHHHHH", 7, 0, 2, 0, 0, 0) + query("example.com")[12:] * 2, 1),
        (struct.pack("!HHHHHH", 7, 0, 1, 0, 0, 0) + b"\xc0\x0c\0\1\0\1", 1),  # a name that points to itself
        (query(".".join(["x" * 60] * 5)), 1),
    ],
)
def test_malformed_messages_get_an_error_or_nothing(message: bytes, expected: int | None) -> None:
    reply = make_stub().answer(message)

    assert (reply if expected is None else code_and_answers(reply)) == (None if expected is None else (expected, 0))


@given(st.binary(max_size=600), st.integers(0, 40), st.binary(max_size=8))
def test_no_bytes_harm_the_stub(data: bytes, at: int, changed: bytes) -> None:
    valid = query("api.example.com")
    for message in (data, valid[:12] + data, valid[:at] + changed + valid[at + len(changed) :]):
        reply = make_stub().answer(message)
        assert reply is None or len(reply) <= len(message) + 16, "it can't be used to flood another host"


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[tuple[str, int], tuple[str, int]]]:
    """The addresses of a stub that serves UDP and TCP on loopback."""
    with socket.socket(type=socket.SOCK_DGRAM) as udp, socket.create_server(("127.0.0.1", 0)) as tcp:
        udp.bind(("127.0.0.1", 0))
        tcp.setblocking(False)
        addresses = udp.getsockname(), tcp.getsockname()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(make_stub().serve, udp, tcp)
            with trio.fail_after(PATIENCE):
                yield addresses
            nursery.cancel_scope.cancel()


async def test_it_answers_over_udp_after_garbage() -> None:
    async with serving() as (udp, _):
        with trio.socket.socket(type=socket.SOCK_DGRAM) as client:
            for message in (b"x", b"", b"\xff" * 5000, query("example.com")):
                await client.sendto(message, udp)
            reply = await client.recv(600)

    assert code_and_answers(reply) == (0, 1)


async def test_a_flood_of_slow_names_leaves_turns_to_other_tasks() -> None:
    answered = list[str]()

    def think(name: str) -> bool:
        time.sleep(0.002)
        answered.append(name)
        return False

    with socket.socket(type=socket.SOCK_DGRAM) as udp, socket.create_server(("127.0.0.1", 0)) as tcp:
        udp.bind(("127.0.0.1", 0))
        tcp.setblocking(False)
        with socket.socket(type=socket.SOCK_DGRAM) as client:
            for number in range(20):
                client.sendto(query(f"{number}.example.com"), udp.getsockname())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(DNSStub(NameTable(), think).serve, udp, tcp)
                most = 0
                while len(answered) < 20:
                    before = len(answered)
                    await trio.lowlevel.checkpoint()
                    most = max(most, len(answered) - before)
                nursery.cancel_scope.cancel()

    assert most <= 2, "names that were answered while another task waited for its turn"


async def test_it_answers_over_tcp_in_order_and_ends_with_its_client() -> None:
    received, size = b"", 2 + len(query("example.com")) + 16
    async with serving() as (_, tcp), await trio.open_tcp_stream(*tcp) as stream:
        for number in (1, 2):
            asked = query("example.com", number=number)
            await stream.send_all(len(asked).to_bytes(2) + asked)
        while len(received) < 2 * size:
            received += await stream.receive_some()
        await stream.send_all(b"\0\1x")

        assert await stream.receive_some() == b"", "a message that can't be a question ends the connection"

    assert [received[3], received[size + 3]] == [1, 2]


async def test_silent_tcp_clients_do_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns_stub, "IDLE_SECONDS", 0.2)
    asked = query("example.com")
    async with serving() as (_, tcp), AsyncExitStack() as silent:
        for _ in range(MAX_CONNECTIONS):
            await silent.enter_async_context(await trio.open_tcp_stream(*tcp))
        async with await trio.open_tcp_stream(*tcp) as stream:
            await stream.send_all(len(asked).to_bytes(2) + asked)

            assert await stream.receive_some() != b""
