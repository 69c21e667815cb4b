"""An MCP server made with the official SDK, for the tests; it runs in a jail."""

import os
import sys
from typing import Annotated

import trio
from mcp.server.mcpserver import Context, Elicit, ElicitationResult, MCPServer, Resolve
from mcp.types import ImageContent, TextContent, ToolAnnotations
from pydantic import BaseModel

server = MCPServer("example", version="1.0")
seen: list[str] = []


class Weather(BaseModel):
    city: str
    degrees: int


@server.tool(description="Say it again", annotations=ToolAnnotations(read_only_hint=True))
def echo(text: str) -> str:
    return text


@server.tool(description="The weather of a city")
def weather(city: str) -> Weather:
    return Weather(city=city, degrees=21)


@server.tool(description="Fails")
def fail() -> str:
    raise ValueError("as it always does")


@server.tool(description="A text of that many letters")
def long(letters: int) -> str:
    return "x" * letters


@server.tool(description="A variable of the server's environment")
def variable(name: str) -> str:
    return os.environ.get(name, "(none)")


@server.tool(description="Its process id, and what came before", structured_output=False)
def process() -> str:
    return f"{os.getpid()} {' '.join(seen)}"


@server.tool(description="An image", structured_output=False)
def image() -> list[ImageContent | TextContent]:
    return [ImageContent(type="image", data="aGk=", mime_type="image/png"), TextContent(type="text", text="hi")]


@server.tool(description="Wait for ever")
async def hang() -> str:
    seen.append("hang")
    try:
        await trio.sleep_forever()
    finally:
        seen.append("cancelled")
    return ""


@server.tool(description="End the server")
def die() -> str:
    print("I go", file=sys.stderr, flush=True)
    os._exit(3)


class Sure(BaseModel):
    sure: bool


def ask(text: str) -> Elicit[Sure]:
    return Elicit(text, Sure)


@server.tool(description="Ask a person", structured_output=False)
def elicit(text: str, answer: Annotated[ElicitationResult[Sure], Resolve(ask)]) -> str:
    return answer.model_dump_json(exclude_none=True)


@server.tool(description="What it may reach", structured_output=False)
async def roots(context: Context) -> str:
    found = await context.session.list_roots()
    return " ".join(str(root.uri) for root in found.roots)


trio.run(server.run_stdio_async)
