"""An agent with Microsoft's Agent Framework: prints what came of each use as JSON."""

import asyncio
import json

from agent_framework import Agent, Content, Message, tool
from pydantic import BaseModel

from agentos_sdk.adapters.agent_framework import AgentOSChatClient, agentos_tools

PICTURE = Content.from_uri("data:image/png;base64,iVBORw0KGgo=", media_type="image/png")


class Place(BaseModel):
    name: str
    height: int


@tool(approval_mode="never_require")
def weather(place: str) -> str:
    """The weather at a place."""
    return f"rain in {place}"


async def ask():
    client = AgentOSChatClient()
    answer = await client.get_response([Message("user", ["hello"])])
    stream = client.get_response([Message("user", ["hello", PICTURE])], stream=True)
    pieces = [update.text async for update in stream]
    used = (await stream.get_final_response()).usage_details
    return [answer.text, "".join(pieces), answer.usage_details["input_token_count"] > 0, used["output_token_count"] > 0]


async def stop():
    answer = await AgentOSChatClient().get_response([Message("user", ["hello"])], options={"stop": "self"})
    stream = AgentOSChatClient().get_response([Message("user", ["hello"])], options={"stop": ["self"]}, stream=True)
    return [answer.text, "".join([update.text async for update in stream])]


async def structured():
    answer = await AgentOSChatClient().get_response([Message("user", ["a place"])], options={"response_format": Place})
    return isinstance(answer.value, Place)


async def wrong_setting():
    try:
        await AgentOSChatClient().get_response([Message("user", ["hello"])], options={"seed": 1})
    except Exception as error:
        return str(error)


async def main():
    agent = Agent(AgentOSChatClient(), instructions="Be brief.", tools=[*agentos_tools(), weather])
    streamed = [update.text async for update in agent.run("weather in Paris", stream=True)]
    report = {
        "asked": await ask(),
        "stopped": await stop(),
        "structured": await structured(),
        "ran": [(await agent.run(task)).text for task in ("write notes.md", "steal /etc/shadow", "weather in Rome")],
        "streamed": "".join(streamed),
        "wrong setting": await wrong_setting(),
    }
    print("report " + json.dumps(report), flush=True)


asyncio.run(main())
