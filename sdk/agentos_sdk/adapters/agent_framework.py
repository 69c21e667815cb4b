"""Microsoft's Agent Framework on AgentOS: a chat client that is THINK, and tools that are system calls.

``Agent(AgentOSChatClient(), tools=agentos_tools())``. Needs ``agent-framework-core``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from functools import partial
from typing import Any

from agent_framework import (
    BaseChatClient,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    FunctionTool,
    Message,
    ResponseStream,
    UsageDetails,
)
from pydantic import BaseModel

from agentos_sdk.adapters.connection import KernelConnection
from agentos_sdk.adapters.questions import choose_tool, read_arguments, write_arguments
from agentos_sdk.adapters.tools import ALL, Tool, ToolError, run_tool
from agentos_sdk.errors import CallError
from agentos_sdk.opcodes import Op

SIGNATURE = "agentos_signature"  # in a call's additional_properties: a provider's own data, to be sent back with it
PASSED = ("model", "temperature", "max_tokens")  # options that THINK has under the same name
READ = {*PASSED, "stop", "tools", "tool_choice", "instructions", "response_format"}
FOR_OTHERS = {"metadata", "user", "store", "conversation_id", "allow_multiple_tool_calls"}  # of no meaning for THINK


class AgentOSChatClient(FunctionInvocationLayer, BaseChatClient):
    """The kernel's model. Without ``model`` it is the default of ``[llm]``.

    A failed question raises the ``CallError`` that the kernel answered. ``connection`` says at which kernel and as
    whom; ``settings`` are those of the framework's clients, such as ``middleware``.
    """

    OTEL_PROVIDER_NAME = "agentos"

    def __init__(
        self, *, model: str | None = None, connection: KernelConnection | None = None, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.model = model
        self._connection = connection or KernelConnection()

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Awaitable[ChatResponse] | ResponseStream[ChatResponseUpdate, ChatResponse]:
        if stream:
            wanted = options.get("response_format")
            return self._build_response_stream(self._stream(messages, options), response_format=wanted)
        return self._ask(messages, options)

    async def _ask(self, messages: Sequence[Message], options: Mapping[str, Any]) -> ChatResponse:
        fields = self._fields(messages, await self._validate_options(options))
        thought = await self._connection.acall(Op.THINK, fields)
        contents = [Content.from_text(thought["content"])] if thought["content"] else []
        return ChatResponse(
            messages=[Message("assistant", [*contents, *map(_call_content, thought["tool_calls"])])],
            model=thought["model"],
            finish_reason=thought["finish_reason"],
            usage_details=_usage(thought["usage"]),
            response_format=options.get("response_format"),
            additional_properties={name: thought[name] for name in ("cost", "cached", "queued_ms", "latency_ms")},
        )

    async def _stream(
        self, messages: Sequence[Message], options: Mapping[str, Any]
    ) -> AsyncIterator[ChatResponseUpdate]:
        fields = self._fields(messages, await self._validate_options(options))
        async for is_last, body in self._connection.astream(Op.THINK, fields):
            if not is_last:
                yield ChatResponseUpdate(role="assistant", contents=[Content.from_text(body["delta"])])
                continue
            contents = [*map(_call_content, body["tool_calls"]), Content.from_usage(_usage(body["usage"]))]
            yield ChatResponseUpdate(
                role="assistant", contents=contents, model=body["model"], finish_reason=body["finish_reason"]
            )

    def _fields(self, messages: Sequence[Message], options: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in options.items() if value is not None}
        if unknown := given.keys() - READ - FOR_OTHERS:
            raise TypeError(f"{', '.join(sorted(unknown))}: the kernel's model has no such setting")
        stop = given.get("stop", ())
        fields: dict[str, Any] = {
            "model": self.model,
            **{name: given[name] for name in PASSED if name in given},
            "system_instruction": given.get("instructions"),
            "messages": [each for message in messages for each in _message_fields(message)],
            "stop": [stop] if isinstance(stop, str) else list(stop),
            "response_schema": _schema(given.get("response_format")),
        }
        tools = [_described(tool) for tool in given.get("tools", ())]
        if tools:
            fields["tools"], fields["tool_choice"] = _chosen(tools, given.get("tool_choice"))
        return fields


class AgentOSTool(FunctionTool):
    """A tool that makes system calls. What the kernel denies, and what fails, is a result that the model reads."""

    def __init__(self, source: Tool, connection: KernelConnection | None = None) -> None:
        super().__init__(
            name=source.name,
            description=source.description,
            func=partial(_run, source, connection or KernelConnection()),
            input_model=dict(source.parameters),
        )


def agentos_tools(connection: KernelConnection | None = None, names: Sequence[str] | None = None) -> list[AgentOSTool]:
    """All tools of AgentOS, or those of these ``names``; which of their calls succeed is up to the permissions."""
    known = {tool.name: tool for tool in ALL}
    if unknown := set(names or ()) - known.keys():
        raise ValueError(f"names: expected some of {', '.join(known)}, got {', '.join(sorted(unknown))}")
    return [AgentOSTool(tool, connection) for name, tool in known.items() if names is None or name in names]


async def _run(source: Tool, connection: KernelConnection, **arguments: Any) -> str:
    try:
        return await connection.arun(run_tool(source, arguments))
    except (ToolError, CallError) as error:  # the framework hides an exception's text from the model
        return f"error: {error}"


def _message_fields(message: Message) -> list[dict[str, Any]]:
    """A message as THINK takes it: several if it has the results of several tools."""
    role = str(message.role)
    if role == "tool":
        results = [content for content in message.contents if content.type == "function_result"]
        return [{"role": "tool", "tool_call_id": each.call_id, "content": str(each.result)} for each in results]
    if role == "assistant":
        calls = [_call_fields(content) for content in message.contents if content.type == "function_call"]
        fields: dict[str, Any] = {"role": "assistant", "content": message.text}
        return [{**fields, "tool_calls": calls} if calls else fields]
    if role == "user":
        return [{"role": "user", "content": [_part(content) for content in message.contents]}]
    return [{"role": "system", "content": message.text}]


def _part(content: Content) -> dict[str, Any]:
    if content.type == "text":
        return {"type": "text", "text": content.text}
    if content.type == "data" and (content.media_type or "").startswith("image/"):
        _, _, data = (content.uri or "").partition("base64,")
        return {"type": "image", "data": data, "mime_type": content.media_type}
    raise ValueError(f"contents: expected text or an image with its data, got content of type {content.type!r}")


def _call_fields(content: Content) -> dict[str, Any]:
    arguments = content.arguments or {}
    return {
        "id": content.call_id,
        "name": content.name,
        "arguments": read_arguments(arguments),
        "signature": (content.additional_properties or {}).get(SIGNATURE),
    }


def _call_content(call: Mapping[str, Any]) -> Content:
    signed = {SIGNATURE: call["signature"]} if call.get("signature") else None
    arguments = write_arguments(call["arguments"])
    return Content.from_function_call(call["id"], call["name"], arguments=arguments, additional_properties=signed)


def _described(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, FunctionTool):
        raise ValueError(f"tools: expected functions, got {tool!r}")
    return {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters()}


def _chosen(tools: list[dict[str, Any]], choice: Any) -> tuple[list[dict[str, Any]], str]:
    mode = choice if isinstance(choice, Mapping) else {"mode": choice or "auto"}
    if (name := mode.get("required_function_name")) is not None:
        return choose_tool(tools, name), "required"
    if (names := mode.get("allowed_tools")) is not None:
        tools = [tool for tool in tools if tool["name"] in names]
    return tools, str(mode["mode"])


def _schema(wanted: type[BaseModel] | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The JSON schema of a ``response_format``: a pydantic class, a schema, or one in OpenAI's wrapping."""
    if wanted is None:
        return None
    if isinstance(wanted, type):
        return wanted.model_json_schema()
    schema = wanted.get("json_schema", wanted)
    return dict(schema.get("schema", schema))


def _usage(used: Mapping[str, int]) -> UsageDetails:
    output = used["output"] + used["thinking"]
    return UsageDetails(
        input_token_count=used["input"],
        output_token_count=output,
        total_token_count=used["input"] + output,
        cache_read_input_token_count=used.get("cache_read", 0),
        cache_creation_input_token_count=used.get("cache_creation", 0),
        reasoning_output_token_count=used["thinking"],
    )


__all__ = ["AgentOSChatClient", "AgentOSTool", "agentos_tools"]
