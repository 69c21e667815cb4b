"""A code executor of AutoGen: each has a jail of its own, in which the kernel runs the code."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

from autogen_core import CancellationToken, Component
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from pydantic import BaseModel

from agentos_sdk.adapters.connection import KernelConnection
from agentos_sdk.opcodes import Op

LANGUAGES = ("python", "py", "bash", "sh", "shell")
TIMED_OUT = 124  # the exit status, as that of timeout(1)
IDLE = ("sleep", "infinity")  # the program of the agent whose jail the code runs in


class AgentOSExecutorConfig(BaseModel):
    """The settings of the executor as a component."""

    timeout: float = 60.0
    workspace: str = "tmp"
    limits: dict[str, Any] | None = None
    socket_path: str | None = None


class AgentOSCodeExecutor(CodeExecutor, Component[AgentOSExecutorConfig]):
    """Runs Python and shell code in the jail of an agent that it spawns: no network, and ``workspace`` is all it has.

    The program that has the executor can't be harmed by the code, and the code can't see its files. ``timeout`` is in
    seconds, for each block. ``workspace`` and ``limits`` are those of SPAWN: a directory, or ``tmp``, which ends with
    the jail. The jail begins with :meth:`start`, or with the first code, and ends with :meth:`stop`, or with the agent
    that has the executor. Needs the right to SPAWN, KILL and EXEC, which every agent of level sandboxed has.
    """

    component_config_schema = AgentOSExecutorConfig
    component_provider_override = "agentos_sdk.adapters.autogen.AgentOSCodeExecutor"

    def __init__(
        self,
        *,
        timeout: float = 60.0,
        workspace: str = "tmp",
        limits: dict[str, Any] | None = None,
        socket_path: str | None = None,
        connection: KernelConnection | None = None,
    ) -> None:
        self._config = AgentOSExecutorConfig(
            timeout=timeout, workspace=workspace, limits=limits, socket_path=socket_path
        )
        self._kernel = connection or KernelConnection(socket_path)
        self._agent: int | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Spawn the agent with the jail; nothing if it is there."""
        async with self._starting:
            if self._agent is not None:
                return
            fields = {"workspace": self._config.workspace, "limits": self._config.limits, "restart": "temporary"}
            name = f"code-{uuid4().hex[:12]}"
            spawned = await self._kernel.acall(Op.SPAWN, {"name": name, "command": list(IDLE), **fields})
            self._agent = spawned["id"]

    async def stop(self) -> None:
        """Kill all that runs in the jail, and end it."""
        if self._agent is not None:
            agent, self._agent = self._agent, None
            await self._kernel.acall(Op.KILL, {"id": agent, "grace": 0})

    async def restart(self) -> None:
        """A new jail, with a new workspace unless that is a directory."""
        await self.stop()
        await self.start()

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        """Run the blocks in order, up to the first that fails; killed when ``cancellation_token`` is cancelled."""
        await self.start()
        output = ""
        for block in code_blocks:
            running = asyncio.ensure_future(self._run(block))
            cancellation_token.link_future(running)
            result = await running
            output += result.output
            if result.exit_code:
                return CodeResult(result.exit_code, output)
        return CodeResult(0, output)

    async def _run(self, block: CodeBlock) -> CodeResult:
        language = block.language.lower()
        if language not in LANGUAGES:
            return CodeResult(1, f"{block.language}: expected code in one of {', '.join(LANGUAGES)}")
        # A command line of the shell is a text: the rules of the caller judge each command in it.
        command = ["python3", "-c", block.code] if language in ("python", "py") else block.code
        timeout = self._config.timeout
        ran = await self._kernel.acall(Op.EXEC, {"id": self._agent, "command": command, "timeout": timeout})
        output = ran["stdout"] + ran["stderr"]
        if ran["timed_out"]:
            return CodeResult(TIMED_OUT, f"{output}\nstopped after {timeout:g} s")
        return CodeResult(ran["exit_code"], output)

    def _to_config(self) -> AgentOSExecutorConfig:
        return self._config

    @classmethod
    def _from_config(cls, config: AgentOSExecutorConfig) -> AgentOSCodeExecutor:
        return cls(**config.model_dump())
