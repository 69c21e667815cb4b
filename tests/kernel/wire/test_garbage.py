"""Bytes that nobody meant: the kernel answers them, or ends the connection with a reason, and harms nobody else."""

import contextlib
import random

import pytest

from tests.support.kernel import Kernel
from tests.support.wire import HELLO, IMPORT, NOOP, RECV, SEND, SHUTDOWN, SPAWN, frame

pytestmark = pytest.mark.usefixtures("unharmed")


def test_garbage(kernel: Kernel) -> None:
    dice = random.Random(20250101)
    for _ in range(300):
        with kernel.connect() as wire, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            wire.write(dice.randbytes(dice.choice([1, 16, 17, 18, 1000, 70_000])))


def test_frames_with_anything_in_them(kernel: Kernel) -> None:
    """Whatever a frame holds, the kernel answers it, or ends the connection with a reason."""
    dice = random.Random(42)
    ops = [op for op in range(256) if op not in (0xFF, SPAWN, SHUTDOWN, IMPORT)]  # the last waits for CHUNKs
    for _ in range(150):
        with kernel.connect() as wire:
            if dice.random() < 0.5:
                wire.hello()
            for number in range(1, 20):
                wire.send(dice.choice(ops), random_body(dice), number)
                reply = wire.receive()
                assert reply.op == NOOP or isinstance(reply.json, dict | list)


def random_body(dice: random.Random) -> bytes:
    fields = ["id", "name", "to", "to_name", "message", "max", "tail", "protocol", "command", "grace"]
    values = ["null", "1", "-1", "0.5", '"a"', '"\\u0000"', "[]", "{}", "[[[[", "NaN", "1e400", "true", '""', "9" * 50]
    picked = ",".join(f'"{dice.choice(fields)}": {dice.choice(values)}' for _ in range(dice.randrange(4)))
    body = bytearray(b"{" + picked.encode() + b"}")
    for _ in range(dice.choice([0, 0, 1, 3])):
        body[dice.randrange(len(body))] = dice.randrange(256)
    return bytes(body)


def test_frames_with_a_flipped_bit(kernel: Kernel) -> None:
    dice = random.Random(7)
    good = frame(HELLO, {"protocol": 2}) + frame(RECV, {"timeout": 0}, 1) + frame(SEND, {"to": 1, "message": []}, 2)
    for _ in range(300):
        data = bytearray(good)
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        with kernel.connect() as wire, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            wire.write(bytes(data))
            wire.stop_sending()
            while wire.socket.recv(65536):
                pass
