"""The four agents with LangGraph: all in one process, or the one that is named on the command line."""

import asyncio
import sys

import tools
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

MODEL = ChatOpenAI(model="simulated")  # OPENAI_BASE_URL and OPENAI_API_KEY say where
AGENT = create_agent(MODEL, tools.ALL)


async def ask(text: str) -> str:
    answer = await AGENT.ainvoke({"messages": [("user", text)]})
    return str(answer["messages"][-1].text)


async def useful() -> None:
    for number in tools.questions():
        await asyncio.sleep(tools.wait_until_due(number))
        tools.note(number, await ask(tools.question(number)[0]))


async def main(names: list[str]) -> None:
    await asyncio.gather(*(useful() if name == "useful" else ask(tools.TASKS[name]) for name in names))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or ["useful", *tools.TASKS]))
