"""The agent with a fake kernel, which is fast, and in its jail with the answers of answers.toml."""

from pathlib import Path

import pytest

from agentos_sdk.errors import QuotaExceeded
from agentos_sdk.testing import FakeKernel, RunningKernel

AGENT = Path(__file__).with_name("agent.py")


def test_the_conversation_so_far_is_part_of_the_next_question(agentos_fake_kernel: FakeKernel) -> None:
    agentos_fake_kernel.reply("think", {"content": "blue"}, times=1)
    agentos_fake_kernel.reply("think", {"content": "green"})
    agentos_fake_kernel.start(AGENT)

    for question, answer in (("the sky?", "blue"), ("and grass?", "green")):
        agentos_fake_kernel.deliver(question)
        agentos_fake_kernel.wait_for("send", message=answer)

    said = [message["content"] for message in agentos_fake_kernel.calls("think")[1].fields["messages"]]
    assert said == ["the sky?", "blue", "and grass?"]


def test_a_question_that_fails_is_answered_with_the_reason(agentos_fake_kernel: FakeKernel) -> None:
    agentos_fake_kernel.reply("think", QuotaExceeded("no tokens are left"))
    agentos_fake_kernel.deliver("the sky?")

    agentos_fake_kernel.start(AGENT)

    agentos_fake_kernel.wait_for("send", message="I can't answer that now: no tokens are left")


@pytest.mark.agentos_config("agentos.toml")
def test_it_answers_from_its_jail(agentos_kernel: RunningKernel) -> None:
    with agentos_kernel.client() as client:
        client.send_message("What is the weather in Bonn?", to_name="my-agent")
        [message] = client.recv_messages(timeout=60)["messages"]

    assert message["message"] == "It rains in Bonn."
