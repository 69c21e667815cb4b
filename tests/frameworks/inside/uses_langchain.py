"""An agent with LangChain and LangGraph: prints what came of each use as JSON."""

import asyncio
import json
import time

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

from agentos_sdk.adapters.langchain import AgentOSReadTool, AgentOSToolkit, ChatAgentOS
from agentos_sdk.errors import CallError

model = ChatAgentOS()


class Place(BaseModel):
    """A place on earth."""

    name: str
    height: int


@tool
def weather(place: str) -> str:
    """The weather at a place."""
    return f"rain in {place}"


def ask_whole():
    answer = model.invoke("hello")
    return [answer.content, answer.usage_metadata["input_tokens"] > 0, answer.response_metadata["model_name"]]


def ask_streamed():
    chunks = list(model.stream("hello"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return [whole.content, len(chunks) >= 2, whole.usage_metadata["output_tokens"] > 0]


def stream_tool_call():
    whole = None
    for chunk in model.bind_tools([weather]).stream("weather in Paris"):
        whole = chunk if whole is None else whole + chunk
    return [[call["name"], call["args"]] for call in whole.tool_calls]


async def ask_async():
    streamed = "".join([chunk.text async for chunk in model.astream("hello")])
    both = await asyncio.gather(model.ainvoke("hello"), model.ainvoke("hello"))
    return [streamed, *[each.content for each in both]]


async def stop():
    stopping = {"stop": ["self"]}
    return [
        model.invoke("hello", **stopping).content,
        "".join(chunk.text for chunk in model.stream("hello", **stopping)),
        (await model.ainvoke("hello", **stopping)).content,
        "".join([chunk.text async for chunk in model.astream("hello", **stopping)]),
        ChatAgentOS(stop=["self"]).invoke("hello").content,
    ]


def structured():
    found = {}
    for method in ("json_schema", "function_calling"):
        answer = model.with_structured_output(Place, method=method).invoke("a place")
        found[method] = isinstance(answer, Place)
    raw = model.with_structured_output(Place, method="json_mode", include_raw=True).invoke("not a place")
    found["unreadable"] = raw["parsed"] is None and raw["parsing_error"] is not None
    graph = create_agent(model, [], response_format=Place)
    found["agent"] = isinstance(graph.invoke({"messages": [("user", "a place")]})["structured_response"], Place)
    return found


def image():
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    seen = model.invoke([HumanMessage([{"type": "text", "text": "hello"}, picture])]).content
    try:
        model.invoke([HumanMessage([{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}])])
    except ValueError as error:
        return [seen, str(error)]


def run_graph():
    messages = create_agent(model, AgentOSToolkit().get_tools()).invoke({"messages": [("user", "write notes.md")]})
    return messages["messages"][-1].content


async def run_graph_async():
    graph = create_agent(model, AgentOSToolkit().get_tools())
    found = {}
    for question in ("compute 6*7", "steal /etc/shadow", "weather in Paris"):
        messages = (await graph.ainvoke({"messages": [("user", question)]}))["messages"]
        results = [message for message in messages if isinstance(message, ToolMessage)]
        found[question] = [messages[-1].content, *[result.status for result in results]]
    return found


def use_mcp():
    tools = AgentOSToolkit().get_mcp_tools()
    return [[each.name for each in tools], tools[0].invoke({"text": "hi"})]


def send_to_itself():
    tools = {each.name: each for each in AgentOSToolkit().get_tools()}
    sent = tools["send_message"].invoke({"to": "uses-langchain", "message": "hi"})
    return [sent, tools["receive_messages"].invoke({"timeout": 60})]


def spawn_subagent():
    tools = {each.name: each for each in AgentOSToolkit().get_tools()}
    return tools["spawn_subagent"].invoke({"task": "count the words"})


def many_threads():
    read = AgentOSReadTool()
    return read.batch([{"path": "notes.md"}] * 20) == ["by a graph"] * 20


async def cancelled():
    execute = {each.name: each for each in AgentOSToolkit().get_tools()}["exec"]
    task = asyncio.create_task(execute.ainvoke({"command": "touch began; sleep 7654"}))
    while "began" not in await execute.ainvoke({"command": "ls"}):
        pass
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    deadline = time.monotonic() + 60
    while "7654" in await execute.ainvoke(
        {"command": "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o '[s]leep 7654'; true"}
    ):
        if time.monotonic() > deadline:
            return "still runs"
    return "ended"


def failed():
    try:
        model.invoke("hello", model="unknown-model", tool_choice="required")
    except CallError as error:
        return [error.code]


def wrong_setting():
    try:
        model.invoke("hello", frequency=1)
    except TypeError as error:
        return str(error)


report = {
    "whole": ask_whole(),
    "streamed": ask_streamed(),
    "tool call": stream_tool_call(),
    "async": asyncio.run(ask_async()),
    "stopped": asyncio.run(stop()),
    "structured": structured(),
    "image": image(),
    "graph": run_graph(),
    "async graph": asyncio.run(run_graph_async()),
    "mcp": use_mcp(),
    "subagent": spawn_subagent(),
    "messages": send_to_itself(),
    "threads": many_threads(),
    "cancelled": asyncio.run(cancelled()),
    "failed": failed(),
    "wrong setting": wrong_setting(),
}
print("report " + json.dumps(report), flush=True)
