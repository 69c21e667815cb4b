"""Programs written for OpenAI's Responses and embeddings, unmodified in a jail: ``openai`` and ``openai-agents``."""

import importlib.util
from collections.abc import Iterator
from textwrap import dedent

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel
from tests.support.offline import answering
from tests.system.jails import said

RULES = r"""
[[rule]]
tool = "weather"
match = ".*"
reply = 'It is \g<0>.'

[[rule]]
match = "in (?P<place>[A-Z][a-z]+)"
tool_calls = [{ name = "weather", arguments = { place = '\g<place>' } }]

[[rule]]
match = "my name"
reply = "You told me."
"""


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with answering(RULES, "openai_endpoint = true") as started:
        yield started


def test_the_openai_package_uses_responses_and_embeddings(kernel: Kernel, client: AgentOSClient) -> None:
    script = """
    import json, openai
    client = openai.OpenAI()
    first = client.responses.create(model="gpt-5", input="I am Ada.")
    with client.responses.stream(model="gpt-5", input="What is my name?", previous_response_id=first.id) as stream:
        kinds = [event.type for event in stream]
        second = stream.get_final_response()
    vectors = [each.embedding for each in client.embeddings.create(model="any", input=["a", "a"]).data]
    kept = client.responses.retrieve(first.id).output_text == first.output_text
    print(json.dumps([kept, second.output_text, kinds[0], kinds[-1], vectors[0] == vectors[1]]), flush=True)
    """

    told = said(client, kernel, "package", dedent(script))

    assert told == [True, "You told me.", "response.created", "response.completed", True]


AGENT = """
import asyncio, json
from agents import Agent, Runner, function_tool, set_tracing_disabled
set_tracing_disabled(True)

@function_tool
def weather(place: str) -> str:
    return f"raining in {place}"

agent = Agent(name="forecaster", instructions="Be brief.", model="gpt-5", tools=[weather])

async def main():
    whole = (await Runner.run(agent, "What is the weather in Paris?")).final_output
    streamed = Runner.run_streamed(agent, "What is the weather in Rome?")
    kinds = {event.data.type async for event in streamed.stream_events() if event.type == "raw_response_event"}
    keeping = Agent(name="keeper", model="gpt-5")
    first = await Runner.run(keeping, "I am Ada.")
    second = await Runner.run(keeping, "What is my name?", previous_response_id=first.last_response_id)
    return [whole, streamed.final_output, "response.function_call_arguments.done" in kinds, second.final_output]

print(json.dumps(asyncio.run(main())), flush=True)
"""


def test_openai_agents_calls_tools_streams_and_continues(kernel: Kernel, client: AgentOSClient) -> None:
    if importlib.util.find_spec("agents") is None:
        pytest.skip("openai-agents isn't installed: pip install openai-agents")

    told = said(client, kernel, "forecaster", AGENT)

    assert told == ["It is raining in Paris.", "It is raining in Rome.", True, "You told me."]
