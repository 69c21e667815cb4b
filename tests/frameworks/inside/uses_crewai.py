"""A crew on AgentOS: prints what came of each use as JSON."""

import asyncio
import json

from crewai import Agent, Crew, Task
from crewai.tools import tool
from pydantic import BaseModel

from agentos_sdk.adapters.crewai import AgentOSCrewAgent, AgentOSCrewTools, AgentOSLLM


class Place(BaseModel):
    name: str
    height: int


@tool("weather")
def weather(place: str) -> str:
    """The weather at a place."""
    return f"rain in {place}"


def run(member, task):
    crew = Crew(agents=[member], tasks=[Task(description=task, expected_output="a line", agent=member)], verbose=False)
    return str(crew.kickoff())


def structured():
    answer = AgentOSLLM().call("a place", response_model=Place)
    return isinstance(answer, Place)


def failed():
    try:
        AgentOSLLM(temperature=-1).call("hello")
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main():
    model = AgentOSLLM()
    streamed = AgentOSLLM(stream=True)
    makes = AgentOSCrewAgent()
    own = Agent(role="Forecaster", goal="Say the weather", backstory="You look.", llm=model, tools=[weather])
    report = {
        "asked": [model.call("hello"), asyncio.run(model.acall("hello")), streamed.call("hello")],
        "usage": model.get_token_usage_summary().total_tokens > 0,
        "structured": structured(),
        "failed": failed(),
        "ran": [
            run(makes.developer(), "write notes.md"),
            run(makes.researcher(), "steal /etc/shadow"),
            run(own, "weather in Rome"),
            run(makes.process("Clerk", "Count"), "count the words"),
        ],
        "tools": [each.name for each in makes.orchestrator().tools],
        "unknown": AgentOSCrewTools().get_tools("read_file")[0].run(path="/nowhere"),
    }
    print("report " + json.dumps(report), flush=True)


main()
