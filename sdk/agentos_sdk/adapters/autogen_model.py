"""A model client of AutoGen whose questions are THINK: the kernel queues, charges, retries and audits them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, TypeVar

from autogen_core import CancellationToken, Component, FunctionCall
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    CreateResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    ModelFamily,
    ModelInfo,
    RequestUsage,
    SystemMessage,
    UserMessage,
)
from autogen_core.tools import Tool, ToolSchema
from pydantic import BaseModel

from agentos_sdk.adapters.connection import KernelConnection
from agentos_sdk.adapters.questions import (
    Signatures,
    check_settings,
    choose_tool,
    read_arguments,
    write_arguments,
)
from agentos_sdk.opcodes import Op

CHARACTERS_PER_TOKEN = 4  # in count_tokens, an estimate: models differ
DEFAULT_CONTEXT = 128_000  # tokens, until an answer says how many fit
ENDS = {"stop": "stop", "length": "length", "tool_calls": "function_calls", "content_filter": "content_filter"}
T = TypeVar("T")


class AgentOSModelConfig(BaseModel):
    """The settings of the client as a component."""

    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    timeout: float | None = None
    thinking_level: Literal["low", "medium", "high"] | None = None
    socket_path: str | None = None


class AgentOSChatCompletionClient(ChatCompletionClient, Component[AgentOSModelConfig]):
    """The kernel's model. Without ``model`` it is the default of ``[llm]``; the other settings are those of THINK.

    A failed question raises the ``CallError`` that the kernel answered, such as ``QuotaExceeded``. ``model_info`` says
    what the model can do; what it can't is refused by the kernel. ``connection``, instead of ``socket_path``, says
    where the questions are asked and as whom.
    """

    component_type = "model"
    component_config_schema = AgentOSModelConfig
    component_provider_override = "agentos_sdk.adapters.autogen.AgentOSChatCompletionClient"

    def __init__(
        self,
        *,
        model: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        timeout: float | None = None,
        thinking_level: Literal["low", "medium", "high"] | None = None,
        socket_path: str | None = None,
        connection: KernelConnection | None = None,
        model_info: ModelInfo | None = None,
    ) -> None:
        self._config = AgentOSModelConfig(
            model=model,
            temperature=temperature,
            max_tokens=max_tokens,
            timeout=timeout,
            thinking_level=thinking_level,
            socket_path=socket_path,
        )
        self._kernel = connection or KernelConnection(socket_path)
        self._info = model_info or _all_abilities()
        self._actual, self._total = RequestUsage(0, 0), RequestUsage(0, 0)
        self._context = DEFAULT_CONTEXT
        self._signatures = Signatures()

    # -- Questions -----------------------------------------------------------------------------------------------------

    async def create(
        self,
        messages: Sequence[LLMMessage],
        *,
        tools: Sequence[Tool | ToolSchema] = (),
        tool_choice: Tool | Literal["auto", "required", "none"] = "auto",
        json_output: bool | type[BaseModel] | None = None,
        extra_create_args: Mapping[str, Any] = {},
        cancellation_token: CancellationToken | None = None,
    ) -> CreateResult:
        """Ask; withdrawn when ``cancellation_token`` is cancelled. ``extra_create_args`` are settings of THINK."""
        fields = self._fields(messages, tools, tool_choice, json_output, extra_create_args)
        asking = asyncio.ensure_future(self._kernel.acall(Op.THINK, fields))
        if cancellation_token is not None:
            cancellation_token.link_future(asking)
        return self._result(await asking)

    async def create_stream(
        self,
        messages: Sequence[LLMMessage],
        *,
        tools: Sequence[Tool | ToolSchema] = (),
        tool_choice: Tool | Literal["auto", "required", "none"] = "auto",
        json_output: bool | type[BaseModel] | None = None,
        extra_create_args: Mapping[str, Any] = {},
        cancellation_token: CancellationToken | None = None,
    ) -> AsyncGenerator[str | CreateResult, None]:
        """As :meth:`create`, with the text as it comes; the result is last."""
        fields = self._fields(messages, tools, tool_choice, json_output, extra_create_args)
        async with aclosing(self._kernel.astream(Op.THINK, fields)) as parts:
            async for is_last, body in _until_cancelled(parts, cancellation_token):
                yield self._result(body) if is_last else body["delta"]

    def _fields(
        self,
        messages: Sequence[LLMMessage],
        tools: Sequence[Tool | ToolSchema],
        tool_choice: Tool | Literal["auto", "required", "none"],
        json_output: bool | type[BaseModel] | None,
        extra: Mapping[str, Any],
    ) -> dict[str, Any]:
        check_settings(extra)
        described: Sequence[dict[str, Any]] = [_described(tool) for tool in tools]
        choice = tool_choice
        if isinstance(tool_choice, Tool):
            described, choice = choose_tool(described, tool_choice.name), "required"
        fields = {
            **self._config.model_dump(exclude={"socket_path"}),
            "messages": [each for message in messages for each in self._message_fields(message)],
            "tools": described,
            "tool_choice": choice if described else "auto",
        }
        if isinstance(json_output, type):
            fields["response_schema"] = json_output.model_json_schema()
        elif json_output:
            fields["response_schema"] = {"type": "object"}
        return {**fields, **extra}

    def _message_fields(self, message: LLMMessage) -> list[dict[str, Any]]:
        match message:
            case SystemMessage():
                return [{"role": "system", "content": message.content}]
            case UserMessage():
                return [{"role": "user", "content": _user_content(message)}]
            case AssistantMessage() if isinstance(message.content, str):
                return [{"role": "assistant", "content": message.content}]
            case AssistantMessage():
                calls = [self._signatures.sign(_call_fields(call)) for call in message.content]
                return [{"role": "assistant", "content": message.thought or "", "tool_calls": calls}]
            case FunctionExecutionResultMessage():
                results = message.content
                return [{"role": "tool", "tool_call_id": each.call_id, "content": each.content} for each in results]
        raise ValueError(f"expected a message of AutoGen, got {type(message).__name__}")

    def _result(self, thought: Mapping[str, Any]) -> CreateResult:
        used, calls = thought["usage"], thought["tool_calls"]
        self._signatures.keep(calls)
        self._context = thought["context"] or DEFAULT_CONTEXT
        self._actual = RequestUsage(used["input"], used["output"] + used["thinking"])
        self._total = RequestUsage(
            self._total.prompt_tokens + self._actual.prompt_tokens,
            self._total.completion_tokens + self._actual.completion_tokens,
        )
        return CreateResult(
            finish_reason=ENDS.get(thought["finish_reason"], "unknown"),
            content=[FunctionCall(each["id"], write_arguments(each["arguments"]), each["name"]) for each in calls]
            or thought["content"],
            thought=thought["content"] or None if calls else None,
            usage=self._actual,
            cached=thought["cached"],
        )

    # -- What AutoGen asks of a client ---------------------------------------------------------------------------------

    async def close(self) -> None:
        """Nothing to close: each question has a connection of its own."""

    def actual_usage(self) -> RequestUsage:
        """The tokens of the last question."""
        return self._actual

    def total_usage(self) -> RequestUsage:
        """The tokens of all questions of this client."""
        return self._total

    def count_tokens(self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = ()) -> int:
        """An estimate, at four characters per token."""
        texts = [message.model_dump_json() for message in messages] + [json.dumps(_described(tool)) for tool in tools]
        return sum(len(text) for text in texts) // CHARACTERS_PER_TOKEN

    def remaining_tokens(self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = ()) -> int:
        """An estimate of what still fits into the model's context, as ``[llm.context]`` says."""
        return self._context - self.count_tokens(messages, tools=tools)

    @property
    def model_info(self) -> ModelInfo:
        return self._info

    @property
    def capabilities(self) -> ModelInfo:
        return self._info

    def _to_config(self) -> AgentOSModelConfig:
        return self._config

    @classmethod
    def _from_config(cls, config: AgentOSModelConfig) -> AgentOSChatCompletionClient:
        return cls(**config.model_dump())


def _all_abilities() -> ModelInfo:
    return ModelInfo(
        vision=True,
        function_calling=True,
        json_output=True,
        structured_output=True,
        multiple_system_messages=True,
        family=ModelFamily.UNKNOWN,
    )


def _described(tool: Tool | ToolSchema) -> dict[str, Any]:
    schema = tool.schema if isinstance(tool, Tool) else tool
    parameters = schema.get("parameters") or {"type": "object", "properties": {}}
    return {"name": schema["name"], "description": schema.get("description") or "", "parameters": parameters}


def _user_content(message: UserMessage) -> str | list[dict[str, Any]]:
    if isinstance(message.content, str):
        return message.content
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image", "data": part.to_base64(), "mime_type": "image/png"}
        for part in message.content
    ]


def _call_fields(call: FunctionCall) -> dict[str, Any]:
    return {"id": call.id, "name": call.name, "arguments": read_arguments(call.arguments)}


async def _until_cancelled(parts: AsyncIterator[T], token: CancellationToken | None) -> AsyncIterator[T]:
    """The parts of a stream; raises ``CancelledError`` once ``token`` is cancelled."""
    stop = asyncio.get_running_loop().create_future()
    if token is not None:
        token.link_future(stop)
    while True:
        following = asyncio.ensure_future(anext(parts, None))
        try:
            await asyncio.wait({following, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not following.done():
                following.cancel()
                await asyncio.wait({following})
        if stop.cancelled():
            raise asyncio.CancelledError
        if (part := following.result()) is None:
            return
        yield part
