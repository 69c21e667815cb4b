"""AutoGen on AgentOS: agents, tools that are system calls, a model client that is THINK, code that runs in a jail.

Needs ``autogen-agentchat`` 0.7.5 or newer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autogen_agentchat.agents import ApprovalRequest, ApprovalResponse, AssistantAgent, CodeExecutorAgent
from autogen_core import CancellationToken, Component
from autogen_core.code_executor import CodeExecutor
from autogen_core.models import ChatCompletionClient
from autogen_core.tools import BaseTool, ParametersSchema, ToolSchema
from pydantic import BaseModel, ConfigDict

from agentos_sdk.adapters.autogen_code import AgentOSCodeExecutor
from agentos_sdk.adapters.autogen_model import AgentOSChatCompletionClient
from agentos_sdk.adapters.connection import KernelConnection
from agentos_sdk.adapters.tools import ALL, Tool, foreign_tool, run_tool
from agentos_sdk.opcodes import Op

MAX_TOOL_ITERATIONS = 10  # answers with tool calls that an assistant follows in one turn


class Arguments(BaseModel):
    """The arguments of a tool; they are checked against its JSON schema when it is called."""

    model_config = ConfigDict(extra="allow")


class AgentOSToolConfig(BaseModel):
    """The settings of a tool as a component."""

    name: str
    socket_path: str | None = None


class AgentOSTool(BaseTool[Arguments, str], Component[AgentOSToolConfig]):
    """A tool that makes system calls. What the kernel denies, and what fails, the model reads as the tool's error."""

    component_config_schema = AgentOSToolConfig
    component_provider_override = "agentos_sdk.adapters.autogen.AgentOSTool"

    def __init__(
        self, source: Tool, *, socket_path: str | None = None, connection: KernelConnection | None = None
    ) -> None:
        super().__init__(Arguments, str, source.name, source.description)
        self._source, self._socket_path = source, socket_path
        self._connection = connection or KernelConnection(socket_path)

    @property
    def schema(self) -> ToolSchema:
        """The tool as a model client takes it."""
        parameters = ParametersSchema(**{"additionalProperties": False, **self._source.parameters})
        return ToolSchema(name=self.name, description=self.description, parameters=parameters, strict=False)

    async def run(self, args: Arguments, cancellation_token: CancellationToken) -> str:
        """The tool's result; raises its failure, which a workbench gives to the model."""
        return await self._connection.arun(run_tool(self._source, args.model_dump()))

    def _to_config(self) -> AgentOSToolConfig:
        return AgentOSToolConfig(name=self.name, socket_path=self._socket_path)

    @classmethod
    def _from_config(cls, config: AgentOSToolConfig) -> AgentOSTool:
        found = [tool for tool in ALL if tool.name == config.name]
        if not found:
            raise ValueError(f"name: expected one of {', '.join(tool.name for tool in ALL)}, got {config.name!r}")
        return cls(found[0], socket_path=config.socket_path)


def agentos_tools(connection: KernelConnection | None = None, names: Sequence[str] | None = None) -> list[AgentOSTool]:
    """All tools of AgentOS, or those of these ``names``; which of their calls succeed is up to the permissions."""
    known = {tool.name: tool for tool in ALL}
    if unknown := set(names or ()) - known.keys():
        raise ValueError(f"names: expected some of {', '.join(known)}, got {', '.join(sorted(unknown))}")
    return [AgentOSTool(tool, connection=connection) for name, tool in known.items() if names is None or name in names]


async def agentos_mcp_tools(connection: KernelConnection | None = None) -> list[AgentOSTool]:
    """The tools of the kernel's MCP servers that this caller may use; raises the ``CallError`` if TOOLS is denied."""
    reply = await (connection or KernelConnection()).acall(Op.TOOLS, {})
    return [AgentOSTool(foreign_tool(each), connection=connection) for each in reply["tools"]]


class AgentOSAssistant(AssistantAgent):
    """An assistant with the kernel's model and all tools of AgentOS, unless others are given.

    ``settings`` are those of AutoGen's ``AssistantAgent``. It follows its own tool calls until it answers with text, at
    most ``max_tool_iterations`` times.
    """

    def __init__(
        self,
        name: str,
        model_client: ChatCompletionClient | None = None,
        *,
        connection: KernelConnection | None = None,
        **settings: Any,
    ) -> None:
        if "tools" not in settings and "workbench" not in settings:
            settings["tools"] = agentos_tools(connection)
        settings.setdefault("max_tool_iterations", MAX_TOOL_ITERATIONS)
        super().__init__(name, model_client or AgentOSChatCompletionClient(connection=connection), **settings)


class AgentOSUserProxy(CodeExecutorAgent):
    """Runs the code in the messages that it gets, in a jail, and answers with the output.

    ``settings`` are those of AutoGen's ``CodeExecutorAgent``. Without an ``approval_func`` the kernel's rules decide,
    which may let a person decide. Use it in ``async with``, or :meth:`close` it: that ends the jail.
    """

    def __init__(
        self,
        name: str = "user_proxy",
        code_executor: CodeExecutor | None = None,
        *,
        connection: KernelConnection | None = None,
        **settings: Any,
    ) -> None:
        settings.setdefault("approval_func", _leave_to_the_kernel)
        settings.setdefault("supported_languages", ["python", "bash", "sh"])
        self.executor = code_executor or AgentOSCodeExecutor(connection=connection)
        super().__init__(name, self.executor, **settings)

    async def close(self) -> None:
        """End the jail."""
        await self.executor.stop()

    async def __aenter__(self) -> AgentOSUserProxy:
        await self.executor.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()  # noqa: ASYNC102 - asyncio cancels an await only once


def _leave_to_the_kernel(request: ApprovalRequest) -> ApprovalResponse:
    return ApprovalResponse(approved=True, reason="the kernel's rules decide about each command")


__all__: Sequence[str] = [
    "AgentOSAssistant",
    "AgentOSChatCompletionClient",
    "AgentOSCodeExecutor",
    "AgentOSTool",
    "AgentOSUserProxy",
    "agentos_mcp_tools",
    "agentos_tools",
]
