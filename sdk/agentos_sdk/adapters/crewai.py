"""CrewAI on AgentOS: tools that are system calls, a model that is THINK, and ready-made members of a crew.

``Agent(llm=AgentOSLLM(), tools=AgentOSCrewTools().get_tools(), ...)`` is a member of a crew. The kernel allows or
denies, charges and audits its files, commands, requests and questions. Needs ``crewai``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from crewai import Agent, BaseLLM
from crewai.llms.base_llm import llm_call_context
from crewai.tools import BaseTool
from pydantic import BaseModel, PrivateAttr

from agentos_sdk.adapters.connection import KernelConnection
from agentos_sdk.adapters.crewai_schema import arguments_model
from agentos_sdk.adapters.questions import Signatures, read_arguments, write_arguments
from agentos_sdk.adapters.tools import ALL, Tool, ToolError, foreign_tool, run_subagent, run_tool
from agentos_sdk.errors import CallError
from agentos_sdk.opcodes import Op

DEFAULT_MODEL = "default"  # of the kernel's [llm]
CHARACTERS_PER_TOKEN = 4
DEFAULT_CONTEXT = 128_000  # tokens, until an answer says how many fit
READS = ("read_file", "list_files", "search_files", "http")
WRITES = ("read_file", "write_file", "edit_file", "list_files", "search_files", "exec")
LEADS = ("spawn_subagent", "send_message", "receive_messages", "read_file", "think")


class AgentOSLLM(BaseLLM):
    """The kernel's model. Without ``model`` it is the default of ``[llm]``.

    ``temperature``, ``max_tokens``, ``stop`` and ``stream`` are as with other models of CrewAI; keys and retries are
    the kernel's. A failed question raises the ``CallError`` that the kernel answered, such as ``QuotaExceeded``.
    """

    _kernel: KernelConnection = PrivateAttr()
    _signatures: Signatures = PrivateAttr(default_factory=Signatures)
    _context: int = PrivateAttr(default=DEFAULT_CONTEXT)

    def __init__(
        self, model: str = DEFAULT_MODEL, *, connection: KernelConnection | None = None, **settings: Any
    ) -> None:
        super().__init__(model=model, provider="agentos", **settings)
        self._kernel = connection or KernelConnection()

    def call(
        self,
        messages: Any,
        tools: list[dict[str, Any]] | None = None,
        callbacks: list[Any] | None = None,
        available_functions: dict[str, Any] | None = None,
        from_task: Any = None,
        from_agent: Any = None,
        response_model: type[BaseModel] | None = None,
    ) -> Any:
        """The answer's text, or the tool calls that the model wants; an instance of ``response_model`` if given."""
        fields = self._fields(messages, tools, response_model)
        with llm_call_context():
            reply = self._ask(fields, from_task, from_agent)
            return self._result(reply, available_functions, response_model, from_task, from_agent)

    def _ask(self, fields: Mapping[str, Any], from_task: Any, from_agent: Any) -> Mapping[str, Any]:
        if not self._effective_stream():
            return self._kernel.call(Op.THINK, fields)
        for is_last, body in self._kernel.stream(Op.THINK, fields):
            if is_last:
                return body
            self._emit_stream_chunk_event(body["delta"], from_task=from_task, from_agent=from_agent)
        raise AssertionError("a stream ends with its reply")

    async def acall(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        """As :meth:`call`, in a thread: tools that it calls may block."""
        return await asyncio.to_thread(self.call, messages, *args, **kwargs)

    def supports_function_calling(self) -> bool:
        """Tools are given to the model as such."""
        return True

    def supports_stop_words(self) -> bool:
        """Stop words are given to the model."""
        return True

    def get_input_tokens_count(self, messages: Any, tools: Any = None, response_model: Any = None) -> int:
        """An estimate; the kernel's model counts when it is asked."""
        given = [self._format_messages(messages), [_described(tool) for tool in tools or ()]]
        return len(json.dumps(given, default=str)) // CHARACTERS_PER_TOKEN

    def get_context_window_size(self) -> int:
        """Tokens that fit into a question, with the room that CrewAI leaves for the answer."""
        return int(self._context * 0.85)

    def _fields(
        self, messages: Any, tools: Sequence[Mapping[str, Any]] | None, response_model: type[BaseModel] | None
    ) -> dict[str, Any]:
        system, turns = [], []
        for message in self._format_messages(messages):
            if message["role"] == "system":
                system.append(str(message["content"]))
            else:
                turns.append(self._turn(message))
        return {
            "messages": turns,
            "system_instruction": "\n\n".join(system) or None,
            "model": None if self.model == DEFAULT_MODEL else self.model,
            "temperature": self.temperature,
            "max_tokens": None if self.max_tokens is None else int(self.max_tokens),
            "stop": list(self.stop_sequences) or None,
            "tools": [_described(tool) for tool in tools or ()],
            "response_schema": None if response_model is None else response_model.model_json_schema(),
        }

    def _turn(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message in OpenAI's form as one of THINK."""
        turn = {"role": message["role"], "content": message.get("content") or ""}
        if message.get("tool_calls"):
            turn["tool_calls"] = [
                self._signatures.sign(
                    {
                        "id": call["id"],
                        "name": call["function"]["name"],
                        "arguments": read_arguments(call["function"]["arguments"]),
                    }
                )
                for call in message["tool_calls"]
            ]
        if message["role"] == "tool":
            turn["tool_call_id"] = message["tool_call_id"]
        return turn

    def _result(
        self,
        reply: Mapping[str, Any],
        functions: Mapping[str, Any] | None,
        response_model: type[BaseModel] | None,
        from_task: Any,
        from_agent: Any,
    ) -> Any:
        usage, calls = reply["usage"], reply["tool_calls"]
        counted = {"prompt_tokens": usage["input"], "completion_tokens": usage["output"] + usage["thinking"]}
        cached = {"cached_prompt_tokens": usage.get("cache_read", 0)}
        self._track_token_usage_internal({**counted, **cached, "total_tokens": reply["tokens"]})
        self._context = reply.get("context") or self._context
        self._signatures.keep(calls)
        if calls and functions and isinstance(calls[0]["arguments"], dict):
            call = calls[0]
            return self._handle_tool_execution(
                call["name"], call["arguments"], dict(functions), from_task=from_task, from_agent=from_agent
            )
        if calls:
            return [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": write_arguments(call["arguments"])},
                }
                for call in calls
            ]
        return self._validate_structured_output(reply["content"], response_model)


class AgentOSCrewTool(BaseTool):
    """A tool that makes system calls over ``connection``. What the kernel denies is its result, which says why."""

    _connection: KernelConnection = PrivateAttr()
    _source: Tool = PrivateAttr()

    def __init__(self, source: Tool, connection: KernelConnection | None = None, **settings: Any) -> None:
        schema = arguments_model(source.name, source.parameters)
        super().__init__(**{"name": source.name, "description": source.description, "args_schema": schema, **settings})
        self._connection, self._source = connection or KernelConnection(), source

    def _run(self, **arguments: Any) -> str:
        given = {name: value for name, value in arguments.items() if value is not None}
        try:
            return self._connection.run(run_tool(self._source, given))
        except (ToolError, CallError) as error:
            return f"error: {error}"


class AgentOSCrewTools:
    """The tools of AgentOS for members of a crew."""

    def __init__(self, connection: KernelConnection | None = None) -> None:
        self._connection = connection or KernelConnection()

    def get_tools(self, *names: str) -> list[BaseTool]:
        """All tools, or those of these names; raises ``ValueError`` for an unknown one."""
        known = {tool.name: tool for tool in ALL}
        if unknown := set(names) - set(known):
            raise ValueError(f"{', '.join(sorted(unknown))}: no such tool; there are {', '.join(known)}")
        return [AgentOSCrewTool(known[name], self._connection) for name in names or known]

    def get_mcp_tools(self) -> list[BaseTool]:
        """The tools of the kernel's MCP servers."""
        found = self._connection.call(Op.TOOLS, {})["tools"]
        return [AgentOSCrewTool(foreign_tool(each), self._connection) for each in found]


class AgentOSCrewProcess(Agent):
    """A member that does no task in the crew's process: a new agent does each, in a jail of its own.

    The kernel supervises and limits that agent, and charges what it asks to the crew's. It has the tools of the loop, a
    workspace of its own, and what it is told: the member's role, goal and backstory, the task, and its context. A task
    that it can't do raises :class:`ToolError` with its reason.
    """

    _connection: KernelConnection = PrivateAttr()

    def __init__(self, connection: KernelConnection | None = None, **settings: Any) -> None:
        connection = connection or KernelConnection()
        super().__init__(**{"llm": AgentOSLLM(connection=connection), **settings})
        self._connection = connection

    def execute_task(self, task: Any, context: str | None = None, tools: list[BaseTool] | None = None) -> str:
        """The summary of the agent that has done the task; ``tools`` of this process are of no use to it."""
        told = [f"You are {self.role}. {self.backstory}", f"Your goal: {self.goal}", task.prompt()]
        if context:
            told.append(f"What is known from other tasks:\n{context}")
        return self._connection.run(run_subagent("\n\n".join(told))).summary

    async def aexecute_task(self, task: Any, context: str | None = None, tools: list[BaseTool] | None = None) -> str:
        """As :meth:`execute_task`, in a thread."""
        return await asyncio.to_thread(self.execute_task, task, context, tools)


class AgentOSCrewAgent:
    """Makes members of a crew that use the kernel's model and tools; ``settings`` are those of CrewAI's ``Agent``."""

    def __init__(self, connection: KernelConnection | None = None) -> None:
        self._connection = connection or KernelConnection()

    def researcher(self, **settings: Any) -> Agent:
        """Reads files, and pages that the rules allow; changes nothing."""
        goal = "Find out what is asked, from files and pages, and say where each fact is from"
        return self.create("Researcher", goal, READS, **settings)

    def developer(self, **settings: Any) -> Agent:
        """Reads and writes files, and runs commands."""
        return self.create(
            "Developer", "Write programs that work, and show by running them that they do", WRITES, **settings
        )

    def orchestrator(self, **settings: Any) -> Agent:
        """Gives parts of the work to agents in jails of their own, and puts their results together."""
        goal = "Divide the work, give each part to a subagent with all that it needs to know, and check the results"
        return self.create("Orchestrator", goal, LEADS, **settings)

    def process(self, role: str, goal: str, **settings: Any) -> Agent:
        """A member of any role, with a process of its own for each task; see :class:`AgentOSCrewProcess`."""
        given = {"role": role, "goal": goal, "backstory": "You work for a crew, alone, and report what you have found."}
        return AgentOSCrewProcess(self._connection, **{**given, **settings})

    def create(self, role: str, goal: str, tools: Sequence[str] = (), **settings: Any) -> Agent:
        """A member of any role; ``tools`` are names of tools of AgentOS, none for all."""
        given = {
            "role": role,
            "goal": goal,
            "backstory": f"You are the {role.lower()} of a crew. You work by tools, which may be refused; then say so.",
            "llm": AgentOSLLM(connection=self._connection),
            "tools": AgentOSCrewTools(self._connection).get_tools(*tools),
        }
        return Agent(**{**given, **settings})


def _described(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function", tool)
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return {"name": function["name"], "description": function.get("description") or "", "parameters": schema}


__all__ = ["AgentOSCrewAgent", "AgentOSCrewProcess", "AgentOSCrewTool", "AgentOSCrewTools", "AgentOSLLM"]
