"""Settings of one MCP server, as ``[mcp.servers.NAME]`` says."""

import re
from collections.abc import Mapping
from typing import Final, Literal

from attrs import field, frozen

from agentos.agents.spec import AgentSpec
from agentos.permissions.rule import PermissionSet

Share = Literal["agent", "all"]

SERVER_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")  # without a dot: a tool is SERVER.TOOL
SERVER_NAME_RULE: Final = "a name of 1 to 32 lower-case letters, digits, '_' or '-', begun by a letter or digit"
TIMEOUT: Final = 60.0  # seconds


@frozen(kw_only=True)
class ServerSettings:
    """One MCP server: a program, which runs as the agent that ``spec`` describes, or one that is reached at ``url``.

    ``secrets`` are variables of the program's environment, each with its source, ``env:NAME`` or ``file:PATH``.
    ``share``: each agent that uses it has an instance of its own, or all have the same one. ``sampling``: whether it
    may ask the model, for the agent whose call it works on. ``timeout``: seconds that a call may take, and that it has
    to begin.
    """

    name: str
    spec: AgentSpec | None = None
    url: str | None = None
    permissions: PermissionSet
    secrets: Mapping[str, str] = field(factory=dict)
    share: Share = "agent"
    sampling: bool = False
    timeout: float = TIMEOUT

    @property
    def warning(self) -> str | None:
        """What the operator should know of it, if anything."""
        if self.share != "all":
            return None
        return f'mcp.servers.{self.name}: share = "all": what one agent gives to it another agent may get from it'
