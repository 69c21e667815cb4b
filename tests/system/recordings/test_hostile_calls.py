"""Agents whose requests are made to harm the recording they stand in, its reader, or the kernel that writes it."""

import pytest

from agentos.recordings.reader import read_recording
from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel
from tests.support.wire import EMIT, NOOP, SEND, STORE, THINK
from tests.system.agents import up
from tests.system.recordings.test_recordings import path_of

BODIES = {
    "messages are no list": b'{"messages":5}',
    "no messages": b'{"messages":null}',
    "messages are text": b'{"messages":"abc"}',
    "messages are an object": b'{"messages":{"a":1}}',
    "goes on with a question that isn't there": b'{"as":99,"first":1,"messages":[]}',
    "too many messages": b'{"messages":[' + b"0," * 10_001 + b"0]}",
    "nested deep": b'{"messages":' + b"[" * 99 + b"]" * 99 + b"}",
    "nested deeper": b'{"messages":' + b"[" * 500 + b"]" * 500 + b"}",
    "large number": b'{"messages":[%s]}' % (b"9" * 40),
    "larger number": b'{"messages":[%s]}' % (b"9" * 5000),
    "no number": b'{"messages":[NaN,1e999]}',
    "half a surrogate pair": rb'{"messages":["\ud800"],"a":%s}' % (b"9" * 40),
    "no JSON": b"\xff{",
}


@pytest.mark.parametrize("level", ["unrestricted", "minimal"])
@pytest.mark.parametrize("op", [THINK, STORE, SEND, EMIT, NOOP])
def test_a_request_that_makes_no_sense_ends_neither_a_recording_nor_its_reading(
    kernel: Kernel, client: AgentOSClient, op: int, level: str
) -> None:
    agent = kernel.spawn("liar", permissions=level)
    name = up(client.record_start(["liar"]))["name"]
    with kernel.connect_as(agent) as wire:
        for number, body in enumerate(BODIES.values(), 2):
            wire.ask(op, body, number)
    ended = up(client.record_stop())

    found = [*read_recording(path_of(kernel, name)).calls()]
    assert len(found) == ended["entry_count"] == len(BODIES)
