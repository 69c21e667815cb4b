"""A fake kernel and a real one are asked the same and answer alike: the shapes of replies, and errors word for word."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from agentos_sdk.calls.request import request_types
from agentos_sdk.opcodes import Op
from agentos_sdk.testing import FakeKernel
from tests.support.kernel import running
from tests.support.runs.rows import each_row
from tests.support.wire import Reply, Wire

Asked = Sequence[tuple[int, object]]
EXACT = ("success", "error", "code", "protocol", "features", "message", "cancelled", "count")  # fields of replies
OPS = list(request_types())  # of all calls with a JSON body: wrong ones are refused before anything is done

CONVERSATIONS: Mapping[str, Asked] = {
    "noop": [(Op.NOOP, b""), (Op.NOOP, b"\x00\xff"), (Op.NOOP, b"text")],
    "exit": [(Op.EXIT, b"")],
    "exit with a body": [(Op.EXIT, b"now")],
    "hello": [(Op.HELLO, {}), (Op.HELLO, b"")],
    "hello of version 1": [(Op.HELLO, {"protocol": 1})],
    "hello of a wrong version": [(Op.HELLO, {"protocol": 3})],
    "hello of a wrong type": [(Op.HELLO, {"protocol": "2"})],
    "hello with a wrong field": [(Op.HELLO, {"protokol": 2})],
    "hello as somebody": [(Op.HELLO, {"as": "other"})],
    "hello that is no JSON": [(Op.HELLO, b"{")],
    "cancel": [(Op.CANCEL, {"id": 7}), (Op.CANCEL, {"id": -1}), (Op.CANCEL, {}), (Op.CANCEL, b"")],
    "chunk": [(Op.CHUNK, {}), (Op.NOOP, b"then")],
    "unknown calls": [(0x0F, b""), (0xEE, {"a": 1})],
    "send": [(Op.SEND, {"to_name": "agent", "message": {"a": [1, None]}}), (Op.RECV, {"wait": False})],
    "send to a number": [(Op.SEND, {"to": "agent", "message": "text"}), (Op.RECV, {"max": 5, "timeout": 1})],
    "send to nobody": [(Op.SEND, {"message": 1}), (Op.SEND, {"to": 1, "to_name": "agent", "message": 1})],
    "send nothing": [(Op.SEND, {"to_name": "agent"})],
    "recv": [(Op.RECV, {}), (Op.RECV, b""), (Op.RECV, {"timeout": 0.01})],
    "recv too much": [
        (Op.RECV, {"max": 0}),
        (Op.RECV, {"max": -1}),
        (Op.RECV, {"max": 1 << 70}),
        (Op.RECV, {"max": 1.5}),
    ],
    "recv for a wrong time": [(Op.RECV, {"timeout": -1}), (Op.RECV, {"timeout": "soon"})],
    "recv for a time as text": [(Op.RECV, {"timeout": "10ms"})],
    "recv misspelled": [(Op.RECV, {"maximum": 1})],
    "not JSON": [(op, b"{") for op in OPS if op != Op.THINK],
    "no object": [(op, b"[1]") for op in OPS if op != Op.THINK],
    "not UTF-8": [(op, b'{"a": "\xff"}') for op in OPS],
    "half a character": [(op, b'{"\\ud800": 1}') for op in OPS],
    "an unknown field": [(op, {"nonsense": 1}) for op in OPS],
    "no number": [(op, b'{"a": NaN}') for op in OPS],
    "twice": [(op, b'{"a": 1, "a": 2}') for op in OPS],
    "deep": [(op, b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}") for op in OPS],
}


class Sockets(NamedTuple):
    """Paths of the sockets of an agent called ``agent``."""

    real: str
    fake: str


@pytest.fixture(scope="module")
def sockets(kernels: None) -> Iterator[Sockets]:
    with running('[llm]\nprovider = "offline"\n') as kernel, FakeKernel() as fake:
        agent = kernel.spawn("agent", permissions={"level": "unrestricted"})
        yield Sockets(str(kernel.runtime / f"{agent}.sock"), fake.socket)


@each_row("version", [1, 2])
@each_row("name", CONVERSATIONS)
def test_both_answer_alike(name: str, version: int, sockets: Sockets) -> None:
    asked = CONVERSATIONS[name]
    real, fake = answers(sockets.real, asked, version), answers(sockets.fake, asked, version)

    assert len(real) == len(asked)
    assert real == fake


def answers(path: str, asked: Asked, version: int) -> list[Any]:
    with Wire(path) as wire:
        if version == 2:
            wire.hello()
        return [describe(wire.ask(op, body, number * (version - 1))) for number, (op, body) in enumerate(asked, 1)]


def describe(reply: Reply) -> tuple[int, Any]:
    """A reply with the types of its values, exact where both kernels have to say the same."""
    return reply.op, reply.body if reply.op in (Op.NOOP, Op.EXIT) else shape(reply.json)


def shape(value: Any) -> Any:
    match value:
        case dict():
            return {key: each if key in EXACT else shape(each) for key, each in value.items()}
        case list():
            return [shape(each) for each in value]
    return type(value).__name__
