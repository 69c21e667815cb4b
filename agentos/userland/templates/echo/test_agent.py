"""The agent with a fake kernel, which is fast, and in its jail."""

from pathlib import Path

import pytest

from agentos_sdk.testing import FakeKernel, RunningKernel

AGENT = Path(__file__).with_name("agent.py")


def test_a_message_is_answered(agentos_fake_kernel: FakeKernel) -> None:
    agentos_fake_kernel.deliver("hello", from_id=7)

    agentos_fake_kernel.start(AGENT)

    agentos_fake_kernel.wait_for("send", to=7, message="you said hello")


@pytest.mark.agentos_config("agentos.toml")
def test_it_answers_from_its_jail(agentos_kernel: RunningKernel) -> None:
    with agentos_kernel.client() as client:
        client.send_message("hello", to_name="my-agent")
        [message] = client.recv_messages(timeout=60)["messages"]

    assert message["message"] == "you said hello"
