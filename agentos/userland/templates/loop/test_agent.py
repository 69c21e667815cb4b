"""The agent in its jail, with the answers of answers.toml."""

import pytest

from agentos_sdk.testing import RunningKernel

TASK = "Write one two three to words.txt and count them"


def ask(kernel: RunningKernel, task: str) -> str:
    with kernel.client() as client:
        client.send_message(task, to_name="my-agent")
        [message] = client.recv_messages(timeout=60)["messages"]
    return str(message["message"])


@pytest.mark.agentos_config("agentos.toml")
def test_a_task_is_done_with_its_own_tool(agentos_kernel: RunningKernel) -> None:
    assert ask(agentos_kernel, TASK) == "3 words"
    with agentos_kernel.client() as client:
        assert client.exec("cat words.txt", name="my-agent")["stdout"] == "one two three"


@pytest.mark.agentos_config("agentos.toml")
def test_what_can_not_be_done_is_answered_with_the_reason(agentos_kernel: RunningKernel) -> None:
    assert ask(agentos_kernel, "Sing") == "failed: answers.toml has no rule for that"
