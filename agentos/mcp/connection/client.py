"""The SDK's client for one life of a server: handshake, tools and calls. Only this file and the transport import it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, cast

import mcp_types
from mcp import Client, MCPError
from mcp.client import Transport
from mcp.client.session import ClientRequestContext, IncomingMessage
from pydantic import ValidationError

from agentos import __version__
from agentos.mcp.errors import quote_server
from agentos.mcp.result import CallResult
from agentos.mcp.tool import Tool, make_tool
from agentos.mcp.validation import REFUSED
from agentos.threads import run_in_thread
from agentos_sdk.encoding.characters import join_surrogates_in
from agentos_sdk.errors import BadRequest, CallError, Unavailable

from .messages import MAX_PAGE_BYTES, MAX_TOOLS, TRUNCATED
from .requests import Requests

MAX_PAGES: Final = 20  # of tools/list
MAX_LISTING_CHARS: Final = 1 << 20  # of all tools' definitions
MAX_ROUNDS: Final = 5  # of what a server may ask while it works on one call
CLOSED: Final = (mcp_types.CONNECTION_CLOSED, "Connection closed")  # the SDK's error of a connection that has ended
INFO: Final = mcp_types.Implementation(name="agentos", version=__version__)


class Connected:
    """A client whose handshake is done. ``server`` is the server's name, ``fresh`` whether no tool has changed since
    they were listed. ``refused`` are tools that can't be used as they are described: the reason by the name.
    """

    def __init__(self, client: Client, server: str) -> None:
        self._client, self._server = client, server
        self.fresh = False
        self.refused: Mapping[str, str] = {}

    async def list_tools(self) -> Sequence[Tool]:
        """All tools that the server offers now, of which it may have 256. Raises ``CallError``."""
        self.fresh = True  # a change meanwhile makes it false again
        try:
            return await self._list_tools()
        except BaseException:  # also if this is cancelled: the caller keeps the tools of before
            self.fresh = False
            raise

    async def _list_tools(self) -> Sequence[Tool]:
        found: list[mcp_types.Tool] = []
        refused = dict[str, str]()
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            try:
                page = await self._client.list_tools(cursor=cursor)
            except Exception as error:
                raise self._explain(error) from None
            if TRUNCATED in (page.meta or {}):
                size = f"more than {MAX_PAGE_BYTES >> 10} KiB of descriptions of tools in one page"
                raise Unavailable(f"the MCP server {self._server} sends {size}")
            found += page.tools
            refused |= (page.meta or {}).get(REFUSED, {})
            cursor = page.next_cursor
            if cursor is None or len(found) >= MAX_TOOLS:
                break
        try:
            tools = await run_in_thread(convert_tools, found[:MAX_TOOLS])
        except (RecursionError, ValueError, KeyError):
            raise Unavailable(
                f"the MCP server {self._server} describes its tools in a way that can't be read"
            ) from None
        if sum(len(tool.definition) for tool in tools) > MAX_LISTING_CHARS:
            raise Unavailable(f"the MCP server {self._server} has more than 1 MiB of descriptions of its tools")
        self.refused = {name: why for name, why in refused.items() if all(tool.name != name for tool in tools)}
        return tools

    async def call_tool(self, tool: str, arguments: Mapping[str, Any]) -> CallResult:
        """Call a tool and wait for its result. Raises ``CallError``. If this is cancelled the server is told."""
        try:
            result = await self._client.call_tool(tool, join_surrogates_in(dict(arguments)))
        except Exception as error:
            raise self._explain(error) from None
        return await run_in_thread(convert_result, result)

    async def watch_tools(self) -> None:
        """Notice changes of tools that the server announces, in the modern era; at once back in the older one."""
        try:
            async with self._client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self.fresh = False
        except Exception:  # it can't announce them, or no longer does: TOOLS lists anew in any case
            return

    def _explain(self, error: Exception) -> CallError:
        """The error of an agent whose call a server has not done."""
        if isinstance(error, ExceptionGroup):
            return self._explain(error.exceptions[0])
        if isinstance(error, CallError):
            return error
        if isinstance(error, MCPError):
            if (error.code, error.message) == CLOSED:  # servers use this code, too
                return Unavailable(f"the MCP server {self._server} ended before it had answered")
            kind = BadRequest if error.code == mcp_types.INVALID_PARAMS else Unavailable
            return kind(f"the MCP server {self._server} answers: {quote_server(error.message)} (error {error.code})")
        if isinstance(error, ValidationError):
            return Unavailable(f"the MCP server {self._server} answered with what MCP's schema doesn't allow")
        return Unavailable(f"the MCP server {self._server}: {quote_server(str(error))}")


@asynccontextmanager
async def connect(
    transport: AbstractAsyncContextManager[Any], server: str, root: str | None, sampling: bool, requests: Requests
) -> AsyncIterator[Connected]:
    """Connect by a transport, and shake hands in either era. ``root`` is the server's workspace, as a URI."""
    opened: list[Connected] = []

    async def take_message(message: IncomingMessage) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            for one in opened:
                one.fresh = False

    async def sample(
        context: ClientRequestContext, params: mcp_types.CreateMessageRequestParams
    ) -> mcp_types.CreateMessageResult | mcp_types.ErrorData:
        try:
            sampled = await requests.sample(describe_sampling(params))
        except CallError as error:
            return refuse(error)
        reason = "maxTokens" if sampled.finish_reason == "length" else "endTurn"
        content = mcp_types.TextContent(type="text", text=sampled.text)
        return mcp_types.CreateMessageResult(role="assistant", content=content, model=sampled.model, stop_reason=reason)

    async def elicit(
        context: ClientRequestContext, params: mcp_types.ElicitRequestParams
    ) -> mcp_types.ElicitResult | mcp_types.ErrorData:
        if isinstance(params, mcp_types.ElicitRequestURLParams):
            return mcp_types.ElicitResult(action="decline")  # no person here has a browser
        try:
            filled = await requests.elicit(params.message, params.requested_schema)
        except CallError as error:
            return refuse(error)
        if filled is None:
            return mcp_types.ElicitResult(action="decline")
        return mcp_types.ElicitResult(action="accept", content=dict(filled))

    async def list_roots(context: ClientRequestContext) -> mcp_types.ListRootsResult:
        roots = [mcp_types.Root.model_validate({"uri": root, "name": "workspace"})] if root is not None else []
        return mcp_types.ListRootsResult(roots=roots)

    client = Client(
        cast(Transport, transport),
        mode="auto",
        client_info=INFO,
        cache=None,
        message_handler=take_message,
        sampling_callback=sample if sampling else None,
        elicitation_callback=elicit,
        list_roots_callback=list_roots,
        input_required_max_rounds=MAX_ROUNDS,
    )
    async with client:
        connected = Connected(client, server)
        opened.append(connected)
        yield connected


def refuse(error: CallError) -> mcp_types.ErrorData:
    return mcp_types.ErrorData(code=mcp_types.INVALID_REQUEST, message=f"{error.code}: {error}")


def describe_sampling(params: mcp_types.CreateMessageRequestParams) -> Mapping[str, Any]:
    """The fields of the THINK that a server asks for; raises ``BadRequest`` for what isn't text."""
    messages = []
    for message in params.messages:
        parts = message.content if isinstance(message.content, list) else [message.content]
        texts = [part.text for part in parts if isinstance(part, mcp_types.TextContent)]
        if len(texts) < len(parts):
            raise BadRequest("expected messages of text")
        messages.append({"role": message.role, "content": "\n".join(texts)})
    given = {
        "messages": messages,
        "system_instruction": params.system_prompt,
        "temperature": params.temperature,
        "max_tokens": params.max_tokens,
        "stop": params.stop_sequences,
    }
    return {name: value for name, value in given.items() if value is not None}


def convert_tools(tools: Sequence[mcp_types.Tool]) -> Sequence[Tool]:
    """Blocks: schemas may be large. Of several tools with one name the first counts."""
    found: dict[str, Tool] = {}
    for tool in tools:
        found.setdefault(tool.name, make_tool(tool.model_dump(mode="json", by_alias=True, exclude_none=True)))
    return list(found.values())


def convert_result(result: mcp_types.CallToolResult) -> CallResult:
    """Blocks: it may be large."""
    given = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    truncated = TRUNCATED in (given.get("_meta") or {})
    return CallResult(given.get("content") or (), given.get("structuredContent"), bool(given.get("isError")), truncated)


def describe_failure(error: BaseException, connected: bool) -> str:
    """Why a connection failed, or its handshake did, for the operator."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MCPError) and (error.code, error.message) == CLOSED:
        return "it ended its output before MCP's handshake was done"
    what = "the connection" if connected else "MCP's handshake"
    return f"{what} failed: {quote_server(f'{type(error).__name__}: {error}')}"
