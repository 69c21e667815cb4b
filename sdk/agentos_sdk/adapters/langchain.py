"""LangChain and LangGraph on AgentOS: tools that are system calls, and a chat model that is THINK.

``create_agent(ChatAgentOS(), AgentOSToolkit().get_tools())`` is an agent whose files, commands, requests and questions
the kernel allows or denies, charges and audits. Needs ``langchain-core``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from langchain_core.tools import BaseTool, BaseToolkit, ToolException
from pydantic import ConfigDict, Field, PrivateAttr

from agentos_sdk.adapters.connection import KernelConnection
from agentos_sdk.adapters.langchain_model import ChatAgentOS
from agentos_sdk.adapters.tools import (
    EDIT_FILE,
    EXEC,
    HTTP,
    LIST_FILES,
    READ_FILE,
    RECEIVE_MESSAGES,
    SEARCH_FILES,
    SEND_MESSAGE,
    SPAWN,
    THINK,
    WRITE_FILE,
    Tool,
    ToolError,
    foreign_tool,
    run_tool,
)
from agentos_sdk.errors import CallError
from agentos_sdk.opcodes import Op


class AgentOSTool(BaseTool):
    """A tool that makes system calls over ``connection``, from any thread and event loop.

    What the kernel denies, and what fails, is the tool's result with status ``error``: the model reads why and may try
    something else. With ``handle_tool_error=False`` it is raised as ``ToolException``.
    """

    source: ClassVar[Tool]
    handle_tool_error: Any = True
    _connection: KernelConnection = PrivateAttr()
    _source: Tool = PrivateAttr()

    def __init__(
        self, connection: KernelConnection | None = None, *, source: Tool | None = None, **settings: Any
    ) -> None:
        tool = source or self.source
        described = {"name": tool.name, "description": tool.description, "args_schema": dict(tool.parameters)}
        super().__init__(**{**described, **settings})
        self._connection, self._source = connection or KernelConnection(), tool

    def _run(self, **arguments: Any) -> str:
        try:
            return self._connection.run(run_tool(self._source, arguments))
        except (ToolError, CallError) as error:
            raise ToolException(str(error)) from error

    async def _arun(self, **arguments: Any) -> str:
        try:
            return await self._connection.arun(run_tool(self._source, arguments))
        except (ToolError, CallError) as error:
            raise ToolException(str(error)) from error


class AgentOSReadTool(AgentOSTool):
    """Reads a file: READ."""

    source = READ_FILE


class AgentOSWriteTool(AgentOSTool):
    """Writes a file: WRITE."""

    source = WRITE_FILE


class AgentOSEditTool(AgentOSTool):
    """Replaces a piece of text in a file: READ and WRITE."""

    source = EDIT_FILE


class AgentOSListFilesTool(AgentOSTool):
    """Lists files: in a jail those that it shows, elsewhere those that READ allows."""

    source = LIST_FILES


class AgentOSSearchFilesTool(AgentOSTool):
    """Searches files: in a jail those that it shows, elsewhere those that READ allows."""

    source = SEARCH_FILES


class AgentOSExecTool(AgentOSTool):
    """Runs a command: EXEC."""

    source = EXEC


class AgentOSHttpTool(AgentOSTool):
    """Sends an HTTP request: HTTP."""

    source = HTTP


class AgentOSSpawnTool(AgentOSTool):
    """Lets a jailed agent of its own work on a part of the task: SPAWN."""

    source = SPAWN


class AgentOSThinkTool(AgentOSTool):
    """Asks the model: THINK."""

    source = THINK


class AgentOSSendTool(AgentOSTool):
    """Sends a message to an agent: SEND."""

    source = SEND_MESSAGE


class AgentOSReceiveTool(AgentOSTool):
    """Receives messages of agents: RECV."""

    source = RECEIVE_MESSAGES


TOOLS: tuple[type[AgentOSTool], ...] = (
    *(AgentOSReadTool, AgentOSWriteTool, AgentOSEditTool, AgentOSListFilesTool, AgentOSSearchFilesTool),
    *(AgentOSExecTool, AgentOSHttpTool, AgentOSSpawnTool, AgentOSThinkTool, AgentOSSendTool, AgentOSReceiveTool),
)


class AgentOSToolkit(BaseToolkit):
    """All tools of AgentOS. ``connection`` says at which kernel and as whom; the default is this process's own."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    connection: KernelConnection = Field(default_factory=KernelConnection)

    def get_tools(self) -> list[BaseTool]:
        """A tool for each kind of system call that an agent makes; which of them succeed is up to the permissions."""
        return [tool(self.connection) for tool in TOOLS]

    def get_mcp_tools(self) -> list[BaseTool]:
        """The tools of the kernel's MCP servers for this caller; raises the ``CallError`` that denies TOOLS."""
        return self._mcp_tools(self.connection.call(Op.TOOLS, {}))

    async def aget_mcp_tools(self) -> list[BaseTool]:
        """As :meth:`get_mcp_tools`."""
        return self._mcp_tools(await self.connection.acall(Op.TOOLS, {}))

    def _mcp_tools(self, reply: dict[str, Any]) -> list[BaseTool]:
        return [AgentOSTool(self.connection, source=foreign_tool(each)) for each in reply["tools"]]


__all__ = ["TOOLS", "AgentOSTool", "AgentOSToolkit", "ChatAgentOS", *(tool.__name__ for tool in TOOLS)]
