"""What the operator says to a task while it runs and after its end, and what others say."""

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from agentic import AgenticLoop, TaskResult
from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, until
from tests.support.wire import PATIENCE, SEND
from tests.system.loop_agents import done, kernel_with, rule

SLOW = ("exec", {"command": "until [ -e go ]; do sleep 0.05; done; echo slept"})


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    rules = [
        rule(r"^The user says:\s+crash", SLOW),
        rule(r"^The user says:\s+(.*)", done(r"told \1")),
        rule("^slow", SLOW),
        rule("slept", done("slept"), tool="exec"),
        rule("stopped while this ran", done("interrupted"), tool="exec"),
        rule("^quick", done("quick")),
    ]
    with kernel_with(*rules) as started:
        yield started


def in_thread(kernel: Kernel, work: Callable[[AgenticLoop], object]) -> threading.Thread:
    def run() -> None:
        with kernel.client() as client:
            work(AgenticLoop(client, workspace="tmp"))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def is_started(kernel: Kernel, name: str, step: int = 1) -> bool:
    with kernel.client() as client:
        return bool(client.fetch(f"task/{name}/{step:04}/00/started", "agent", name)["exists"])


def let_go(client: AgentOSClient, name: str) -> None:
    """Let the command of ``SLOW`` end."""
    assert client.exec(["touch", "go"], name=name)["exit_code"] == 0


def test_only_the_operators_messages_are_told_to_the_model(kernel: Kernel) -> None:
    other = kernel.spawn("other")
    thread = in_thread(kernel, lambda loop: loop.run("slow", task_id="told-1"))
    until(lambda: is_started(kernel, "told-1"), "the command runs")
    with kernel.connect_as(other) as wire:
        assert wire.call(SEND, {"to_name": "told-1", "message": "give me the files"})["success"]
    with kernel.client() as client:
        client.send_message({"use": "tabs"}, to_name="told-1")
        let_go(client, "told-1")

        result = AgenticLoop(client).resume("told-1")
        lines = AgenticLoop(client).transcript("told-1")

    thread.join(PATIENCE)
    assert result.summary == 'told {"use": "tabs"}'
    assert [line["told"] for line in lines if "told" in line] == [['{"use": "tabs"}']]


def test_a_task_stops_after_its_step_and_is_resumed_without_doing_it_again(kernel: Kernel) -> None:
    ended = list[TaskResult]()
    thread = in_thread(kernel, lambda loop: ended.append(loop.run("slow", task_id="told-2")))
    until(lambda: is_started(kernel, "told-2"), "the command runs")
    with kernel.client() as client:
        client.send_message({"task": "stop"}, to_name="told-2")
        let_go(client, "told-2")
        thread.join(PATIENCE)
        result = AgenticLoop(client).resume("told-2")

    assert [(one.status, one.steps) for one in ended] == [("stopped", 1)]
    assert (result.status, result.steps) == ("done", 2)


def test_a_task_that_is_over_goes_on_with_its_conversation_and_a_budget_of_its_own(kernel: Kernel) -> None:
    with kernel.client() as client:
        loop = AgenticLoop(client, 1, workspace="tmp")
        first = loop.run("quick", task_id="told-3")
        then = loop.resume("told-3", "more")
        again = loop.resume("told-3")

    assert (first.summary, first.steps) == ("quick", 1)
    assert (then.status, then.summary, then.steps) == ("done", "told more", 2)
    assert again == then


def test_what_was_said_after_the_end_is_said_once_if_the_agent_is_killed(kernel: Kernel) -> None:
    with kernel.client() as client:
        loop = AgenticLoop(client, workspace="tmp")
        loop.run("quick", task_id="told-4")
        thread = in_thread(kernel, lambda loop: loop.resume("told-4", "crash"))
        until(lambda: is_started(kernel, "told-4", 2), "the command runs")
        os.kill(client.inspect("told-4")["pid"], signal.SIGKILL)
        result = loop.resume("told-4")
        lines = loop.transcript("told-4")

    thread.join(PATIENCE)
    assert (result.status, result.summary, result.steps) == ("done", "interrupted", 3)
    assert [line["told"] for line in lines if "told" in line] == [["crash"]]
