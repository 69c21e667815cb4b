"""Programs with unmodified clients of vendors, each in a jail, against the endpoint that their agent finds there."""

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, until
from tests.support.offline import answering
from tests.support.runs.rounds import some
from tests.system.agents import lines, up, write

RULES = """
[[rule]]
match = 'weather in (\\w+)'
tool_calls = [{ name = "weather", arguments = { place = '\\1' } }]

[[rule]]
tool = "weather"
match = '.*'
reply = 'It says: \\g<0>'

[[rule]]
match = 'hello'
reply = 'Hello yourself.'
"""
HELLO, WEATHER = "Hello yourself.", "It says: rain in Paris"
OWN = Path(sys.prefix, "clients/bin/python")  # from `make clients`: some need older SDKs than we do
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HOME": "/tmp", "LANGSMITH_TRACING": "false"}

ANTHROPIC = """
import anthropic, json
client = anthropic.Anthropic()
asked = dict(model="claude-sonnet-5", max_tokens=500)
hello = [{"role": "user", "content": "hello"}]
tools = [{"name": "weather", "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}}}]

whole = client.messages.create(**asked, messages=hello).content[0].text
with client.messages.stream(**asked, messages=hello) as stream:
    streamed = "".join(stream.text_stream)
talk = [{"role": "user", "content": "weather in Paris"}]
calls = client.messages.create(**asked, messages=talk, tools=tools)
[call] = calls.content
result = {"type": "tool_result", "tool_use_id": call.id, "content": f"rain in {call.input['place']}"}
talk += [{"role": "assistant", "content": calls.content}, {"role": "user", "content": [result]}]
answered = client.messages.create(**asked, messages=talk, tools=tools).content[0].text
counted = client.messages.count_tokens(model="claude-sonnet-5", messages=hello).input_tokens > 0
models = [model.type for model in client.models.list()]
print(json.dumps([whole, streamed, answered, counted, models]), flush=True)
"""
GENAI = """
import json
from google import genai
client = genai.Client()
tools = [{"function_declarations": [{"name": "weather", "parameters": {"type": "OBJECT", "properties":
    {"place": {"type": "STRING"}}}}]}]
model, config = "gemini-3-flash", {"tools": tools}

whole = client.models.generate_content(model=model, contents="hello").text
streamed = "".join(piece.text or "" for piece in client.models.generate_content_stream(model=model, contents="hello"))
chat = client.chats.create(model=model, config=config)
[call] = chat.send_message("weather in Paris").function_calls
result = genai.types.FunctionResponse(id=call.id, name=call.name, response={"output": f"rain in {call.args['place']}"})
answered = chat.send_message(genai.types.Part(function_response=result)).text
counted = client.models.count_tokens(model=model, contents="hello").total_tokens > 0
[vector] = client.models.embed_content(model=model, contents="hello").embeddings
models = [found.name.partition("/")[0] for found in client.models.list()]
print(json.dumps([whole, streamed, answered, counted and len(vector.values) > 0, models]), flush=True)
"""
LITELLM = """
import json, os, litellm
hello = [{"role": "user", "content": "hello"}]
function = {"name": "weather", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}}
tools = [{"type": "function", "function": function}]

def talk(model, **more):
    def ask(messages, **also):
        return litellm.completion(model=model, messages=messages, max_tokens=500, **more, **also)
    whole = ask(hello).choices[0].message.content
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in ask(hello, stream=True))
    messages = [{"role": "user", "content": "weather in Paris"}]
    message = ask(messages, tools=tools).choices[0].message
    [call] = message.tool_calls
    place = json.loads(call.function.arguments)["place"]
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": f"rain in {place}"}]
    return [whole, streamed, ask(messages, tools=tools).choices[0].message.content]

print(json.dumps([
    talk("anthropic/claude-sonnet-5", api_base=os.environ["ANTHROPIC_BASE_URL"]),
    talk("openai/gpt-5", api_base=os.environ["OPENAI_BASE_URL"]),
]), flush=True)
"""
PYDANTIC_AI = """
import asyncio, json
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel

async def talk(model):
    agent = Agent(model)
    @agent.tool_plain
    def weather(place: str) -> str:
        return f"rain in {place}"
    whole = (await agent.run("hello")).output
    async with agent.run_stream("hello") as stream:
        streamed = "".join([piece async for piece in stream.stream_text(delta=True)])
    return [whole, streamed, (await agent.run("weather in Paris")).output]

async def main():
    return [await talk(AnthropicModel("claude-sonnet-5")), await talk(OpenAIChatModel("gpt-5"))]

print(json.dumps(asyncio.run(main())), flush=True)
"""
LANGCHAIN = """
import json
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="gpt-5")
def weather(place: str) -> str:
    "The weather at a place."
    return f"rain in {place}"

whole = model.invoke("hello").content
streamed = "".join(chunk.content for chunk in model.stream("hello"))
bound, messages = model.bind_tools([weather]), [HumanMessage("weather in Paris")]
message = bound.invoke(messages)
[call] = message.tool_calls
messages += [message, ToolMessage(weather(**call["args"]), tool_call_id=call["id"])]
print(json.dumps([whole, streamed, bound.invoke(messages).content]), flush=True)
"""


@pytest.fixture(scope="module")
def kernel(framework: None, kernels: None) -> Iterator[Kernel]:
    with answering(RULES, "openai_endpoint = true") as started:
        yield started


def need(package: str) -> dict[str, Any]:
    """How to spawn an agent whose Python has a package, which isn't one of ours."""
    if not any(OWN.parent.parent.glob(f"lib/python3*/site-packages/{package}")):
        pytest.skip(f"{package} isn't in {OWN.parent.parent}, run `make clients`: its programs are NOT tested")
    return {"python": str(OWN), "env": QUIET, "limits": {"memory": "1G"}}


def answers(client: AgentOSClient, kernel: Kernel, name: str, script: str, **more: Any) -> Any:
    """What a script prints. To import such a package takes half a minute on a busy machine."""
    up(client.spawn(name, write(kernel, f"{name}.py", script + "\nimport time; time.sleep(1000)\n"), **more))
    until(lambda: lines(client, name), f"{name} says something", seconds=240)
    assert lines(client, name, "stderr") == []
    return json.loads(lines(client, name, "stdout")[-1])


def test_anthropics_client(kernel: Kernel, client: AgentOSClient) -> None:
    if importlib.util.find_spec("anthropic") is None:
        pytest.skip("anthropic isn't installed: its programs are NOT tested")

    assert answers(client, kernel, "asks-anthropic", ANTHROPIC) == [HELLO, HELLO, WEATHER, True, ["model"]]


def test_googles_client(kernel: Kernel, client: AgentOSClient) -> None:
    assert answers(client, kernel, "asks-genai", GENAI) == [HELLO, HELLO, WEATHER, True, ["models"]]


@pytest.mark.parametrize("package", some(["pydantic_ai", "litellm"], 1))
def test_clients_of_both_vendors(kernel: Kernel, client: AgentOSClient, package: str) -> None:
    script = {"litellm": LITELLM, "pydantic_ai": PYDANTIC_AI}[package]

    assert answers(client, kernel, f"asks-{package}", script, **need(package)) == [[HELLO, HELLO, WEATHER]] * 2


def test_langchains_client(kernel: Kernel, client: AgentOSClient) -> None:
    assert answers(client, kernel, "asks-langchain", LANGCHAIN, **need("langchain_openai")) == [HELLO, HELLO, WEATHER]
