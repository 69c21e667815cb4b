"""A fake kernel: what agents get from it, over both clients and in programs of their own."""

import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from agentos_sdk import AgentOSClient, connect
from agentos_sdk.calls.request import request_types
from agentos_sdk.errors import BadRequest, CallError, PermissionDenied, QuotaExceeded
from agentos_sdk.opcodes import Op
from agentos_sdk.testing import FakeKernel
from agentos_sdk.testing.replies import encode_reply
from tests.support.kernel import until
from tests.support.runs.rows import each_row
from tests.support.wire import HELLO, NOOP, PATIENCE, SEND, Wire, header

ECHO = """
from agentos import AgentOSClient

with AgentOSClient() as kernel:
    [message] = kernel.recv_messages(timeout=10)["messages"]
    kernel.send_message(f"{message['from_name']} said {message['message']}", to=message["from_id"])
"""


@pytest.fixture
def fake() -> Iterator[FakeKernel]:
    with FakeKernel() as kernel:
        yield kernel


def test_an_agents_program_runs_unmodified(fake: FakeKernel, tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(ECHO)
    fake.deliver("hello", from_name="ada", from_id=7)

    done = fake.run(script)

    assert (done.returncode, done.stderr) == (0, "")
    assert [call.name for call in fake.calls()] == ["RECV", "SEND"]
    fake.assert_called("send", times=1, to=7, message="ada said hello")


def test_a_started_program_is_waited_for_by_its_calls_and_ends_with_the_kernel(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(ECHO + "    kernel.recv_messages(timeout=1000)\n")

    with FakeKernel() as fake:
        program = fake.start(script)
        fake.wait_for("recv", timeout=PATIENCE)
        fake.deliver("late")
        sent = fake.wait_for("send", to=2, timeout=PATIENCE)
        assert program.poll() is None

    assert sent.fields["message"] == "test said late"
    assert program.returncode == -9


def test_of_several_replies_the_first_that_fits_is_given_as_often_as_it_says(fake: FakeKernel) -> None:
    fake.reply("think", QuotaExceeded("no tokens are left until midnight"), times=1)
    fake.reply("think", {"content": "4"}, when={"prompt": "2 + 2?"})
    fake.reply("think", lambda fields: {"content": fields["prompt"].upper()})

    with AgentOSClient(fake.socket) as client:
        replies = [client.think(prompt) for prompt in ("2 + 2?", "2 + 2?", "why?")]

    assert [reply["content"] for reply in replies] == ["", "4", "WHY?"]
    assert replies[0]["code"] == "quota_exceeded"
    assert set(replies[1]["usage"].values()) == {0}, "what wasn't given is empty"
    assert isinstance(fake.calls("think")[0].error, QuotaExceeded)


async def test_the_trio_client_makes_calls_at_once_and_withdraws_them(fake: FakeKernel) -> None:
    fake.reply("http", PermissionDenied("no rule allows it", rule="http"))

    with trio.fail_after(PATIENCE):
        async with connect(fake.socket) as kernel:
            assert (kernel.agent_id, kernel.name) == (1, "agent")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(kernel.recv_messages, timeout=1000))
                await trio.to_thread.run_sync(fake.wait_for, "recv")
                nursery.cancel_scope.cancel()
            with pytest.raises(PermissionDenied, match="no rule allows it") as refused:
                await kernel.http("https://example.org")
            assert refused.value.details == {"rule": "http"}
            await trio.to_thread.run_sync(fake.wait_for, "http")

    recv = fake.calls("recv")[0]
    await trio.to_thread.run_sync(until, lambda: recv.error is not None, "the kernel has heard of the withdrawal")
    assert isinstance(recv.error, CallError)


def test_an_answer_comes_in_pieces_where_they_were_programmed(fake: FakeKernel) -> None:
    fake.reply("think", {"content": "one two"}, chunks=[{"delta": "one "}, {"delta": "two"}], times=1)
    fake.reply("think", {"content": "whole"})

    with AgentOSClient(fake.socket) as client:
        answers = [list(client.think_stream("count")) for _ in range(2)]

    assert answers == [["one ", "two"], ["whole"]]


def test_a_request_with_a_wrong_field_fails_as_at_a_kernel(fake: FakeKernel) -> None:
    with Wire(fake.socket) as wire:
        refused = wire.call(SEND, {"to": 1, "mesage": "hi"})

    assert (refused["success"], refused["code"]) == (False, "bad_request")
    assert "mesage: unknown field, did you mean message?" in refused["error"]
    assert isinstance(fake.calls()[0].error, BadRequest)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n    ", header(NOOP, 1 << 40)])
def test_bytes_that_are_no_frame_end_their_connection_alone(fake: FakeKernel, data: bytes) -> None:
    with Wire(fake.socket) as broken, Wire(fake.socket) as other:
        broken.write(data)
        assert broken.receive().json["code"] in ("bad_frame", "too_large")
        assert broken.ends()
        assert other.ask(NOOP, b"still here").body == b"still here"
        assert other.ask(0x99, {}).json["code"] == "unknown_call"
        assert other.call(HELLO, {"protocol": 3})["code"] == "bad_request"


def test_a_call_without_a_reply_fails_and_so_does_the_test() -> None:
    match = r"no reply to FETCH\(key='color'\) was programmed"

    with pytest.raises(AssertionError, match=match), FakeKernel() as fake, AgentOSClient(fake.socket) as client:
        assert client.fetch("color")["code"] == "unavailable"


def test_a_programmed_function_that_raises_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="the programmed reply to THINK raised KeyError"), FakeKernel() as fake:
        fake.reply("think", lambda fields: fields["nothing"])
        with AgentOSClient(fake.socket) as client:
            assert client.think("why?")["code"] == "unavailable"


def test_a_reply_that_no_kernel_gives_is_refused_where_it_is_programmed(fake: FakeKernel) -> None:
    with pytest.raises(ValueError, match="no reply to THINK: contnt: unknown field, did you mean content"):
        fake.reply("think", {"contnt": "4"})
    with pytest.raises(ValueError, match="there is no call 'thnk', did you mean THINK"):
        fake.reply("thnk", {})


def test_assertions_say_what_was_called_instead(fake: FakeKernel) -> None:
    fake.reply("exec", {"exit_code": 0}, times=2)
    with AgentOSClient(fake.socket) as client:
        client.exec("true")

    fake.assert_not_called("exec", command="false")
    with pytest.raises(
        AssertionError, match=r"made 0 times, expected at least 1: EXEC\(command='false'\)(.|\n)+'true'"
    ):
        fake.assert_called("exec", command="false")
    with pytest.raises(AssertionError, match=r"not within 0\.01 s: SEND\(\); the agent's calls were:\n  EXEC"):
        fake.wait_for("send", timeout=0.01)
    with pytest.raises(AssertionError, match=r"didn't ask for: EXEC \(1 more\)"):
        fake.assert_used()


def test_messages_reach_one_of_many_receivers_each(fake: FakeKernel) -> None:
    got: list[object] = []

    def receive() -> None:
        with AgentOSClient(fake.socket) as client:
            got.extend(message["message"] for message in client.recv_messages(1, timeout=PATIENCE)["messages"])

    receivers = [threading.Thread(target=receive) for _ in range(5)]
    for receiver in receivers:
        receiver.start()
    for number in range(5):
        fake.deliver(number)
    for receiver in receivers:
        receiver.join()

    assert sorted(got, key=str) == [0, 1, 2, 3, 4]


@each_row("op", request_types(), ids=lambda op: op.name)
def test_the_empty_reply_of_every_call_is_one(op: Op) -> None:
    assert encode_reply(op, [] if op == Op.LIST else {})


def test_a_script_that_goes_on_is_reported(fake: FakeKernel, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("import time; time.sleep(1000)")

    with pytest.raises(subprocess.TimeoutExpired):
        fake.run(tmp_path / "agent.py", timeout=0.5)
