"""EXEC with ``stream``: what a command writes while it writes it."""

import pytest
import trio

from agentos_sdk import AgentOSClient, connect
from agentos_sdk.errors import CallError
from agentos_sdk.opcodes import Op
from tests.conftest import Connect
from tests.support.kernel import Kernel, until
from tests.system.agents import up
from tests.system.calls.test_exec import guests, sleeper


def test_each_part_comes_before_the_next_is_written(kernel: Kernel, client: AgentOSClient) -> None:
    sleeper(client, "a")
    line = "while [ ! -e go ]; do sleep 0.01; done; rm go"

    with client.exec_stream(f"echo one; {line}; echo two >&2; {line}; exit 3", name="a") as parts:
        assert next(parts) == {"stream": "stdout", "text": "one\n"}
        up(client.exec("touch go", name="a"))
        assert next(parts) == {"stream": "stderr", "text": "two\n"}
        up(client.exec("touch go", name="a"))
        assert list(parts) == []

    assert parts.executed == {
        "success": True,
        "stdout": "",
        "stderr": "",
        "exit_code": 3,
        "timed_out": False,
        "truncated": False,
    }


def test_a_character_that_comes_in_two_parts_is_one(client: AgentOSClient) -> None:
    with client.exec_stream(r"printf '\303'; sleep 0.1; printf '\266'; printf '\303'") as parts:
        assert "".join(part["text"] for part in parts) == "ö\N{REPLACEMENT CHARACTER}"


def test_nothing_of_it_is_lost_or_dropped(kernel: Kernel) -> None:
    async def run() -> None:
        async with connect(kernel.socket) as operator:
            async with operator.exec_stream("yes | head -c 5M; head -c 3M /dev/zero >&2") as parts:
                sizes = {"stdout": 0, "stderr": 0}
                async for part in parts:
                    sizes[part.stream] += len(part.text)
            assert sizes == {"stdout": 5 << 20, "stderr": 3 << 20}
            assert parts.executed is not None
            assert (parts.executed.exit_code, parts.executed.truncated) == (0, False)

    trio.run(run)


def test_a_slow_reader_slows_its_own_command_alone(kernel: Kernel, client: AgentOSClient, connect: Connect) -> None:
    slow = connect()
    slow.send(Op.HELLO, {"protocol": 2})
    slow.receive()
    slow.send(Op.EXEC, {"command": "yes 7520", "stream": True, "timeout": 60}, number=1)
    until(lambda: guests("yes\x007520"), "it writes")

    for _ in range(20):
        assert up(client.exec("head -c 100k /dev/zero | wc -c"))["stdout"] == "102400\n"
    held = kernel.rss
    assert up(client.exec("sleep 0.5"))["exit_code"] == 0

    assert kernel.rss - held < 8 << 20
    slow.close()
    until(lambda: not guests("yes\x007520"), "it has ended with the connection")


def test_the_time_runs_out_for_a_slow_reader_too(kernel: Kernel, connect: Connect) -> None:
    slow = connect()
    slow.send(Op.HELLO, {"protocol": 2})
    slow.receive()

    slow.send(Op.EXEC, {"command": "yes 7521", "stream": True, "timeout": 0.3}, number=1)

    until(lambda: guests("yes\x007521"), "it writes")
    until(lambda: not guests("yes\x007521"), "its time is over")


def test_to_leave_ends_the_command(client: AgentOSClient) -> None:
    with client.exec_stream("echo begun; sleep 7522") as parts:
        next(parts)

    until(lambda: not guests("sleep 7522"), "it has ended")


def test_version_1_has_no_streams(client: AgentOSClient) -> None:
    reply = client.request(Op.EXEC, {"command": "true", "stream": True})

    assert (reply["code"], reply["error"].split(":")[0]) == ("bad_request", "stream")


def test_a_refusal_is_raised(client: AgentOSClient) -> None:
    with pytest.raises(CallError, match="timeout: expected"):
        next(client.exec_stream("true", timeout=-1))
