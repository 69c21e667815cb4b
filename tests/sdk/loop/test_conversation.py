"""A conversation that outgrows the model's context, with a kernel of programmed replies."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from agentos_sdk.errors import CallError, Unavailable
from agentos_sdk.loop import Conversation
from agentos_sdk.testing import FakeKernel

CONTEXT = 1000  # tokens
USED = {"input": CONTEXT, "output": 0, "thinking": 0}
Fields = Mapping[str, Any]


@pytest.fixture
def fake() -> Iterator[FakeKernel]:
    state: dict[str, Any] = {}

    def store(fields: Fields) -> object:
        assert fields["if_version"] == 0
        assert fields["key"] not in state
        state[fields["key"]] = fields["value"]
        return {"key": fields["key"], "version": 1}

    def think(fields: Fields) -> object:
        if "prompt" in fields:
            return {"content": "what was said"}
        question = fields["messages"][-1]["content"]
        if question == "unanswerable":
            return Unavailable("the model is down")
        return {"content": f"answer to {question}", "usage": USED, "context": CONTEXT}

    with FakeKernel() as kernel:
        kernel.reply("store", store)
        kernel.reply("fetch", lambda fields: {"exists": True, "value": state[fields["key"]], "version": 1})
        kernel.reply("keys", lambda fields: {"keys": sorted(state), "count": len(state), "next": None})
        kernel.reply("think", think)
        yield kernel


def test_a_summary_is_kept_if_the_question_after_it_fails(fake: FakeKernel) -> None:
    with AgentOSClient(fake.socket) as client:
        talk = Conversation(client)
        for number in range(3):
            talk.say(f"question {number}")
        with pytest.raises(CallError, match="the model is down"):
            talk.say("unanswerable")
        summaries = [call for call in fake.calls("think") if "prompt" in call.fields]

        later = Conversation(client)
        later.load()
        assert [message["content"] for message in later.messages][-2:] == ["question 2", "answer to question 2"]
        later.say("question 3")

    assert [call for call in fake.calls("think") if "prompt" in call.fields] == summaries
    asked = fake.calls("think")[-1].fields["messages"]
    assert asked[0]["content"] == "question 0"
    assert "what was said" in asked[1]["content"]
    assert len(summaries) == 1


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_name_that_would_be_part_of_another_conversation_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name: expected a text without a slash"):
        Conversation(AgentOSClient("/nowhere"), name)
