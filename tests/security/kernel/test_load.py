"""Fifty agents go on calling while others run long commands and read and write files: nobody waits for anybody else."""

import contextlib
import select
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, until
from tests.support.runs.rounds import rounds
from tests.support.wire import CANCEL, EXEC, LIST, NOOP, READ, RECV, SEND, WRITE, Wire

pytestmark = pytest.mark.usefixtures("any_user")

CALLERS = 50
COMMANDS = 8  # as many as one caller may have under way
LARGE = "all work and no play\n" * 50_000  # a MiB


@pytest.fixture(scope="module")
def callers(kernel: Kernel) -> Iterator[Sequence[Wire]]:
    """A connection of each of the agents, which are killed with their kernel."""
    with contextlib.ExitStack() as stack:
        numbers = [kernel.spawn(f"caller-{number}") for number in range(CALLERS)]
        yield [stack.enter_context(kernel.connect_as(number)) for number in numbers]


@pytest.fixture
def busy(kernel: Kernel, client: AgentOSClient) -> Iterator[Wire]:
    """An agent's connection on which long commands are under way."""
    with kernel.connect_as(kernel.spawn("busy")) as wire:
        wire.hello()
        for number in range(1, COMMANDS + 1):
            wire.send(EXEC, {"command": "sleep 2001", "timeout": 3000}, number)
        until(lambda: sleeping(kernel, "2001") == COMMANDS, "all of them run")
        yield wire


def sleeping(kernel: Kernel, seconds: str) -> int:
    """How many processes of this kernel's sleep so long."""
    argv = b"sleep\0" + seconds.encode() + b"\0"
    found = 0
    for process in kernel.family:
        with contextlib.suppress(OSError):
            found += Path("/proc", str(process.pid), "cmdline").read_bytes() == argv
    return found


def is_silent(wire: Wire) -> bool:
    """Whether nothing has come by now."""
    return select.select([wire.socket], [], [], 0) == ([], [], [])


def test_fifty_agents_are_answered_while_commands_run_and_files_are_written(
    kernel: Kernel, callers: Sequence[Wire], busy: Wire
) -> None:
    with kernel.connect_as(kernel.spawn("writer")) as writer:
        writer.hello()
        for turn in range(1, 1 + rounds(5)):
            writer.send(WRITE, {"path": "large", "content": LARGE}, 2 * turn)
            for number, wire in enumerate(callers):
                wire.send(NOOP, b"%d" % number)
                wire.send(LIST)
                wire.send(SEND, {"to_name": f"caller-{(number + 1) % CALLERS}", "message": number})
            for number, wire in enumerate(callers):
                assert wire.receive().body == b"%d" % number
                assert len(wire.receive().json) >= CALLERS
                assert wire.receive().json["success"]
            for number, wire in enumerate(callers):
                [message] = wire.call(RECV)["messages"]
                assert message["message"] == (number - 1) % CALLERS
            assert writer.receive().json["bytes_written"] == len(LARGE)
            assert writer.call(READ, {"path": "large"}, 2 * turn + 1)["size"] == len(LARGE)

    assert is_silent(busy)


def test_and_the_commands_can_be_withdrawn_in_the_middle_of_it(
    kernel: Kernel, callers: Sequence[Wire], busy: Wire
) -> None:
    for wire in callers:
        wire.send(NOOP, b"here")
    for number in range(1, COMMANDS + 1):
        busy.send(CANCEL, {"id": number}, 100 + number)

    replies = {reply.id: reply.json for reply in busy.replies(2 * COMMANDS)}

    assert {replies[number]["code"] for number in range(1, COMMANDS + 1)} == {"cancelled"}
    assert all(wire.receive().body == b"here" for wire in callers)
    assert sleeping(kernel, "2001") == 0
