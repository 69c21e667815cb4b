"""The 17 bytes before every body, and what is looked at before the body is there."""

import pytest

from tests.conftest import Connect, OwnKernel
from tests.support.kernel import Kernel
from tests.support.wire import BROADCAST, HELLO, LIST, LOGS, NOOP, RECV, SEND, SPAWN, Wire, frame, header

KIB, MIB = 1 << 10, 1 << 20


def test_a_header_is_magic_id_opcode_and_length_in_little_endian(wire: Wire) -> None:
    wire.write(bytes.fromhex("544e4741 07000000 00 0500000000000000") + b"hello")

    head = wire.socket.recv(17)
    assert head[:4] == b"TNGA"
    assert head[8:] == bytes.fromhex("00 0500000000000000")
    assert wire.socket.recv(5) == b"hello"


def test_noop_carries_any_bytes(wire: Wire) -> None:
    for body in (b"", b"\xff", bytes(range(256)), b"x" * 100_000):
        assert wire.ask(NOOP, body).body == body


def test_a_byte_0xff_anywhere_in_a_body_is_a_byte_like_any_other(kernel: Kernel, wire: Wire) -> None:
    for op in (SPAWN, SEND, RECV, LIST, HELLO, LOGS):
        for body in (b"\xff", b'{"name": "\xff"}', b"{}\xff"):
            assert wire.call(op, body)["code"] == "bad_request"

    assert kernel.answers()


@pytest.mark.parametrize("magic", [b"AGNT", b"TNGa", b"\0\0\0\0", b"GET ", b"\xff\xff\xff\xff"])
def test_bad_magic_is_answered_once_and_ends_the_connection(kernel: Kernel, wire: Wire, magic: bytes) -> None:
    wire.write(header(NOOP, 0, magic=magic) + frame(NOOP, b"never answered"))

    reply = wire.receive().json

    assert reply["success"] is False
    assert reply["code"] == "bad_frame"
    assert wire.ends()
    assert kernel.answers()


def test_good_frames_before_a_bad_one_are_answered(wire: Wire) -> None:
    wire.write(frame(NOOP, b"one") + frame(NOOP, b"two") + b"G" * 17)

    assert [reply.body for reply in wire.replies(2)] == [b"one", b"two"]
    assert wire.receive().json["code"] == "bad_frame"
    assert wire.ends()


def test_a_bad_frame_right_behind_hello_is_answered_at_once(wire: Wire) -> None:
    wire.write(frame(HELLO, {"protocol": 2}) + b"G" * 17)

    assert wire.receive().json["success"]
    assert wire.receive().json["code"] == "bad_frame"
    assert wire.ends()


LIMITS = [
    (NOOP, 16 * MIB),
    (SEND, MIB),
    (BROADCAST, MIB),
    (RECV, 256 * KIB),
    (SPAWN, 256 * KIB),
    (LIST, 256 * KIB),
    (HELLO, 256 * KIB),
    (0x99, 256 * KIB),
]


@pytest.mark.parametrize(("op", "limit"), LIMITS)
def test_a_length_over_the_limit_is_refused_before_the_body_arrives(wire: Wire, op: int, limit: int) -> None:
    wire.write(header(op, limit + 1))  # and not a byte of the body

    reply = wire.receive()

    assert reply.op == op
    assert reply.json["code"] == "too_large"
    assert str(limit) in reply.json["error"]
    assert wire.ends()


@pytest.mark.parametrize(("op", "limit"), LIMITS)
def test_a_body_of_just_the_limit_is_taken(wire: Wire, op: int, limit: int) -> None:
    body = b" " * limit

    wire.send(op, body)
    reply = wire.receive()

    assert reply.op == op
    assert reply.body == body if op == NOOP else reply.json["code"] in ("bad_request", "unknown_call")
    assert wire.ask(NOOP, b"still here").body == b"still here"


@pytest.mark.parametrize("length", [16 * MIB + 1, 4 << 30, 1 << 63, (1 << 64) - 1])
def test_a_header_that_promises_a_giant_costs_no_memory(kernel: Kernel, connect: Connect, length: int) -> None:
    before = kernel.rss

    for _ in range(20):
        wire = connect()
        wire.write(header(NOOP, length))
        assert wire.receive().json["code"] == "too_large"

    assert kernel.rss - before < 4 * MIB


def test_too_large_is_told_with_the_callers_id_in_version_1_and_the_requests_in_version_2(connect: Connect) -> None:
    first, second = connect(), connect()
    own = first.ask(NOOP).id
    second.hello()

    first.write(header(SEND, 2 * MIB, number=4242))
    second.write(header(SEND, 2 * MIB, number=4242))

    assert first.receive().id == own
    assert second.receive().id == 4242


def test_max_payload_is_what_the_configuration_says(own_kernel: OwnKernel) -> None:
    kernel = own_kernel('[kernel]\nmax_payload = "2M"\n')
    with kernel.connect() as wire:
        assert len(wire.ask(NOOP, b"x" * (2 * MIB)).body) == 2 * MIB
        wire.write(header(NOOP, 2 * MIB + 1))
        assert wire.receive().json["code"] == "too_large"
        assert wire.ends()
