"""The MCP server: tools and resources of AgentOS for the session of each request."""

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, Signature, signature
from secrets import token_bytes
from typing import Annotated, Any, get_type_hints
from weakref import WeakKeyDictionary

from mcp.server.mcpserver import Context, Elicit, ElicitationResult, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.request_state import RequestStateSecurity
from mcp.types import CallToolResult, InputRequiredResult, Resource
from mcp.types import Tool as ListedTool

from agentos import __version__
from agentos_sdk.client import Kernel
from agentos_sdk.clients.suggestions import suggest_name

from .approval import Answer, Filed, Made, ask, decide, file
from .changes import Changes
from .listing import find_possible
from .performing import Report, perform, reporting, request_errors, tool_errors
from .resources import add_resources, list_logs
from .tools import TOOLS, Tool
from .transports.session import Session

INSTRUCTIONS = (
    "AgentOS runs agents as supervised processes in jails and decides each call by the permissions of this client. "
    "An error begins with its code; approval_required means that a person has to allow the call first."
)
STATE_SECONDS = 600.0  # that a question to a person may take; as long as approvals are kept by default

FindSession = Callable[[], Session]


class Server(MCPServer[Any]):
    """Shows each client only the tools that its rights may allow, and the logs of the agents that it may see."""

    find_session: FindSession
    possible: WeakKeyDictionary[Kernel, frozenset[str]]  # names of tools; a guest's rights never become more

    async def list_tools(self) -> list[ListedTool]:
        session = self.find_session()
        async with request_errors():
            guest = await session.guest()
            if guest not in self.possible:
                self.possible[guest] = await find_possible(session, TOOLS)
            possible = self.possible[guest]
        return [_close(tool) for tool in await super().list_tools() if tool.name in possible]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool; refuses an argument that it hasn't, which the SDK would drop: it may have been a restriction."""
        known = [each for tool in TOOLS if tool.name == name for each in signature(tool.plan).parameters]
        if known and (wrong := [each for each in arguments if each not in known]):  # without any, clients make one up
            raise ToolError(f"bad_request: {name} has no argument {wrong[0][:80]!r}{suggest_name(wrong[0], known)}")
        return await super().call_tool(name, arguments, context)

    async def list_resources(self) -> list[Resource]:
        async with request_errors():
            return [*await super().list_resources(), *await list_logs(self.find_session())]


def _close(tool: ListedTool) -> ListedTool:
    """The tool with a schema that says that it has no other arguments."""
    return tool.model_copy(update={"input_schema": {**tool.input_schema, "additionalProperties": False}})


def build_server(find_session: FindSession, state_key: bytes | None = None) -> Server:
    """The server of one session, which ``find_session`` gives.

    ``state_key``, 32 bytes that only this user knows, seals what a client of 2026-07-28 sends back with an answer. With
    the same key a server that was started anew understands it; without one it refuses it.
    """
    changes = Changes(find_session)
    server = Server(
        "agentos",
        title="AgentOS",
        version=__version__,
        instructions=INSTRUCTIONS,
        log_level="WARNING",
        subscriptions=changes.bus,
        middleware=[changes.note_client],
        request_state_security=RequestStateSecurity(
            keys=[state_key or token_bytes(32)],
            ttl=STATE_SECONDS,
            bind_principal=lambda _: find_session().entry.guest,
        ),
    )
    server.find_session, server.possible = find_session, WeakKeyDictionary()
    for tool in TOOLS:
        function = build_function(tool, find_session)
        server.add_tool(function, tool.name, description=tool.plan.__doc__, annotations=tool.hints)
    add_resources(server, find_session)
    return server


def build_function(tool: Tool, find_session: FindSession) -> Callable[..., Any]:
    """The function of a tool as the SDK takes it: with the tool's own parameters, and two that resolvers fill."""
    hints = {name: hint for name, hint in get_type_hints(tool.plan, include_extras=True).items() if name != "return"}

    async def filed(context: Context[Any, Any], **arguments: Any) -> Filed | Made | None:
        session = find_session()
        async with tool_errors(), reporting(_report(context)) as progress:
            return await file(session, context, tool.plan(**arguments), progress)

    async def answer(filed: Filed | Made | None) -> Elicit[Answer] | None:
        return ask(filed)

    async def run(context: Context[Any, Any], filed: Any, answer: Any, **arguments: Any) -> Any:
        if isinstance(filed, Made):
            return tool.result.of(filed.reply)
        session = find_session()
        async with tool_errors(), reporting(_report(context)) as progress:
            if isinstance(filed, Filed):
                await decide(session, filed, answer)
            return tool.result.of(await perform(session, tool.plan(**arguments), progress))

    parameters = signature(tool.plan).parameters.values()
    _declare(filed, parameters, hints, {"context": Context[Any, Any]}, Any)
    to_file = Annotated[Any, Resolve(filed)]
    _declare(answer, (), {}, {"filed": to_file}, Elicit[Answer] | None)
    to_ask = Annotated[ElicitationResult[Answer], Resolve(answer)]
    run.__name__ = tool.name
    _declare(run, parameters, hints, {"context": Context[Any, Any], "filed": to_file, "answer": to_ask}, tool.result)
    return run


def _declare(
    function: Callable[..., Any],
    parameters: Iterable[Parameter],
    hints: Mapping[str, Any],
    more: Mapping[str, Any],
    result: Any,
) -> None:
    """Give a function that takes ``**arguments`` the signature of these parameters, and of ``more`` by name."""
    own = [one.replace(annotation=hints[one.name]) for one in parameters]
    added = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=hint) for name, hint in more.items()]
    function.__signature__ = Signature([*own, *added], return_annotation=result)  # type: ignore[attr-defined]
    function.__annotations__ = {**hints, **more, "return": result}


def _report(context: Context[Any, Any]) -> Report:
    async def report(progress: float, message: str) -> None:
        await context.report_progress(progress, None, message)

    return report
