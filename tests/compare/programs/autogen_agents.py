"""The four agents with AutoGen, in one process."""

import asyncio
import os

import tools
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

INFO = ModelInfo(vision=False, function_calling=True, json_output=False, structured_output=False, family="unknown")
MODEL = OpenAIChatCompletionClient(model="simulated", model_info=INFO, base_url=os.environ["OPENAI_BASE_URL"])


async def ask(name: str, text: str) -> str:
    """The answer of a new agent: an AssistantAgent keeps its conversation, and the questions have nothing in common."""
    agent = AssistantAgent(name, MODEL, tools=tools.ALL, reflect_on_tool_use=True)
    result = await agent.run(task=text)
    return str(result.messages[-1].content)  # type: ignore[union-attr]


async def useful() -> None:
    for number in tools.questions():
        await asyncio.sleep(tools.wait_until_due(number))
        tools.note(number, await ask("useful", tools.question(number)[0]))


async def main() -> None:
    await asyncio.gather(useful(), *(ask(name, text) for name, text in tools.TASKS.items()))


if __name__ == "__main__":
    asyncio.run(main())
