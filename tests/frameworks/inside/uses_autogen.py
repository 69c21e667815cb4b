"""An agent with AutoGen: prints what came of each use as JSON."""

import asyncio
import json
import time

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_core.models import UserMessage
from pydantic import BaseModel

from agentos_sdk.adapters.autogen import (
    AgentOSAssistant,
    AgentOSChatCompletionClient,
    AgentOSCodeExecutor,
    AgentOSUserProxy,
    agentos_mcp_tools,
    agentos_tools,
)
from agentos_sdk.errors import CallError

NO_WAY = "import errno, socket; print(errno.errorcode[socket.socket().connect_ex(('192.0.2.1', 80))])"
HELLO = [UserMessage(content="hello", source="user")]


class Place(BaseModel):
    name: str
    height: int


async def ask():
    client = AgentOSChatCompletionClient()
    answer = await client.create(HELLO)
    pieces = [piece async for piece in client.create_stream(HELLO)]
    placed = await client.create([UserMessage(content="a place", source="user")], json_output=Place)
    Place.model_validate_json(placed.content)
    used = client.total_usage().prompt_tokens > client.actual_usage().prompt_tokens > 0
    return [answer.content, "".join(pieces[:-1]), len(pieces) >= 2, pieces[-1].content, used]


async def cancel_stream():
    token, client = CancellationToken(), AgentOSChatCompletionClient()
    pieces = 0
    try:
        async for _ in client.create_stream([UserMessage(content="slow", source="user")], cancellation_token=token):
            pieces += 1
            token.cancel()
    except asyncio.CancelledError:
        return pieces


async def assist():
    found = {}
    for task in ("write notes.md", "steal /etc/shadow"):
        assistant = AgentOSAssistant("assistant", tools=agentos_tools(names=["read_file", "write_file"]))
        result = await assistant.run(task=task)
        found[task] = [result.messages[-1].content, [type(each).__name__ for each in result.messages]]
    return found


async def components():
    assistant = AgentOSAssistant("assistant")
    loaded = AssistantAgent.load_component(assistant.dump_component())
    return (await loaded.run(task="write notes.md")).messages[-1].content


async def run(executor, language, code):
    done = await executor.execute_code_blocks([CodeBlock(code, language)], CancellationToken())
    return [done.exit_code, done.output]


async def execute():
    async with AgentOSCodeExecutor(timeout=60) as executor:
        found = {
            "python": await run(executor, "python", "print(6 * 7)"),
            "bash": await run(executor, "bash", "echo one; exit 3"),
            "wrote": await run(executor, "sh", "echo text > kept"),
            "read": await run(executor, "python", "print(open('kept').read().strip())"),
            "network": await run(executor, "python", NO_WAY),
            "apart": await run(executor, "sh", "cat notes.md"),
            "other": await run(executor, "ruby", "puts 1"),
            "cancelled": await cancel_code(executor),
        }
        await executor.restart()
        found["restarted"] = await run(executor, "sh", "ls")
    async with AgentOSCodeExecutor(timeout=0.5) as impatient:
        found["slow"] = await run(impatient, "sh", "while true; do :; done")
    return found


async def cancel_code(executor):
    token = CancellationToken()
    code = [CodeBlock("touch began; sleep 8765", "sh")]
    waiting = asyncio.ensure_future(executor.execute_code_blocks(code, token))
    while (await run(executor, "sh", "test -e began"))[0]:
        pass
    token.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    deadline = time.monotonic() + 60
    while "sleep" in (await run(executor, "sh", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o '[s]leep 876.'"))[1]:
        if time.monotonic() > deadline:
            return "still runs"
    return "ended" if waiting.cancelled() else repr(waiting)


async def mcp():
    try:
        return [each.name for each in await agentos_mcp_tools()]
    except CallError as error:
        return error.code


async def talk():
    """A coder whose code a user proxy runs, as AutoGen's examples have it."""
    coder = AgentOSAssistant("coder", tools=[])
    async with AgentOSUserProxy() as user:
        team = RoundRobinGroupChat([coder, user], max_turns=2)
        result = await team.run(task=TextMessage(content="multiply", source="user"))
    return [[message.source, message.content] for message in result.messages]


async def main():
    report = {
        "asked": await ask(),
        "cancelled stream": await cancel_stream(),
        "assisted": await assist(),
        "components": await components(),
        "executed": await execute(),
        "mcp": await mcp(),
        "talk": await talk(),
    }
    print("report " + json.dumps(report), flush=True)


asyncio.run(main())
