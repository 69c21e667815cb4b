"""A chat model of LangChain whose questions are THINK: the kernel queues, charges, retries and audits them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.language_models.chat_models import LangSmithParams
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import ConfigDict, Field

from agentos_sdk.adapters.connection import KernelConnection
from agentos_sdk.adapters.langchain_messages import message_fields, response_metadata, signatures, usage_metadata
from agentos_sdk.adapters.questions import check_settings, choose_tool, write_arguments
from agentos_sdk.opcodes import Op

FOR_OTHERS = {"strict", "response_format", "ls_structured_output_format"}  # read here, or for tracing only


class ChatAgentOS(BaseChatModel):
    """The kernel's model. Without ``model`` it is the default of ``[llm]``; the other fields are those of THINK.

    The API key and the retries are the kernel's: ``api_key`` and ``max_retries``, which other chat models have, do
    nothing here. ``timeout`` is in seconds and includes the time in the queue. A failed question raises the
    ``CallError`` that the kernel answered, such as ``QuotaExceeded``.
    """

    model_config = ConfigDict(populate_by_name=True, arbitrary_types_allowed=True)

    model: str | None = Field(default=None, alias="model_name")
    temperature: float | None = None
    max_tokens: int | None = None
    stop: list[str] | None = Field(default=None, alias="stop_sequences")
    timeout: float | None = None
    thinking_level: Literal["low", "medium", "high"] | None = None
    streaming: bool = False
    socket_path: str | None = Field(default_factory=lambda: os.environ.get("AGENTOS_SOCKET"))
    connection: KernelConnection | None = Field(default=None, exclude=True)
    """Where the questions are asked and as whom; instead of ``socket_path``."""

    @property
    def _llm_type(self) -> str:
        return "agentos"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.model, "temperature": self.temperature, "max_tokens": self.max_tokens}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "agentos"
        params["ls_model_name"] = kwargs.get("model") or self.model or "default of the kernel"
        return params

    # -- Questions -----------------------------------------------------------------------------------------------------

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        return _result(self._kernel.call(Op.THINK, self._fields(messages, stop, kwargs)))

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return _result(await self._kernel.acall(Op.THINK, self._fields(messages, stop, kwargs)))

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        for is_last, body in self._kernel.stream(Op.THINK, self._fields(messages, stop, kwargs)):
            chunk = _chunk(is_last, body)
            if run_manager is not None:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        async for is_last, body in self._kernel.astream(Op.THINK, self._fields(messages, stop, kwargs)):
            chunk = _chunk(is_last, body)
            if run_manager is not None:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    @property
    def _kernel(self) -> KernelConnection:
        return self.connection or KernelConnection(self.socket_path)

    def _fields(self, messages: list[BaseMessage], stop: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of THINK; raises ``TypeError`` for an argument that THINK doesn't have."""
        fields = {name: value for name, value in given.items() if name not in FOR_OTHERS}
        if (wanted := _response_schema(given.get("response_format"))) is not None:
            fields["response_schema"] = wanted
        check_settings(fields)
        own = {name: getattr(self, name) for name in ("model", "temperature", "max_tokens", "timeout")}
        return {
            **own,
            "thinking_level": self.thinking_level,
            "messages": [message_fields(message) for message in messages],
            **fields,
            "stop": list(stop if stop is not None else self.stop or ()),
        }

    # -- Tools and structured output -----------------------------------------------------------------------------------

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | dict[str, Any] | bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """This model with tools. ``tool_choice`` is auto, none, any (or required, True), or the name of one tool."""
        described = [_described(tool) for tool in tools]
        if isinstance(tool_choice, dict):
            tool_choice = str(tool_choice.get("function", tool_choice).get("name"))
        if tool_choice in ("any", "required", True):
            choice = "required" if described else "auto"
        elif tool_choice in ("auto", "none", None, False):
            choice = str(tool_choice or "auto")
        else:  # one tool: only that is offered
            described, choice = choose_tool(described, str(tool_choice)), "required"
        return self.bind(tools=described, tool_choice=choice, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        method: Literal["json_schema", "function_calling", "json_mode"] = "json_schema",
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """This model with answers of a form: a pydantic class's instances, or dicts if ``schema`` is none.

        ``json_schema``: the answer's text has to match the schema. ``function_calling``: the answer is the call of a
        tool with it. ``json_mode``: the answer is JSON, and the question says of which form.
        """
        is_class = isinstance(schema, type) and is_basemodel_subclass(schema)
        parser: Any
        if method == "function_calling":
            name = _described(schema)["name"]
            model = self.bind_tools([schema], tool_choice=name, **kwargs)
            parser = (
                PydanticToolsParser(tools=[schema], first_tool_only=True)
                if is_class
                else JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)
            )
        elif method in ("json_schema", "json_mode"):
            wanted = {"type": "object"} if method == "json_mode" else convert_to_json_schema(schema)
            model = self.bind(response_schema=wanted, **kwargs)
            parser = PydanticOutputParser(pydantic_object=schema) if is_class else JsonOutputParser()
        else:
            raise ValueError(f"method: expected json_schema, function_calling or json_mode, got {method!r}")
        if not include_raw:
            return model | parser
        parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
        failed = RunnablePassthrough.assign(parsed=lambda _: None)
        return RunnableMap(raw=model) | parsed.with_fallbacks([failed], exception_key="parsing_error")


def _described(tool: Any) -> dict[str, Any]:
    function = convert_to_openai_tool(tool)["function"]
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return {"name": function["name"], "description": function.get("description") or "", "parameters": schema}


def _response_schema(wanted: Any) -> dict[str, Any] | None:
    """The schema in a ``response_format`` of OpenAI, as ``create_agent`` gives it."""
    if wanted is None:
        return None
    if isinstance(wanted, dict) and wanted.get("type") == "json_schema":
        return dict(wanted["json_schema"]["schema"])
    if isinstance(wanted, dict) and wanted.get("type") == "json_object":
        return {"type": "object"}
    return dict(convert_to_json_schema(wanted))


def _result(thought: Mapping[str, Any]) -> ChatResult:
    calls = thought["tool_calls"]
    message = AIMessage(
        content=thought["content"],
        tool_calls=[
            tool_call(name=call["name"], args=call["arguments"], id=call["id"])
            for call in calls
            if isinstance(call["arguments"], dict)
        ],
        invalid_tool_calls=[
            invalid_tool_call(name=call["name"], args=call["arguments"], id=call["id"], error="no JSON object")
            for call in calls
            if isinstance(call["arguments"], str)
        ],
        usage_metadata=usage_metadata(thought["usage"]),
        response_metadata=response_metadata(thought),
        additional_kwargs=signatures(calls),
    )
    return ChatResult(generations=[ChatGeneration(message=message)])


def _chunk(is_last: bool, body: Mapping[str, Any]) -> ChatGenerationChunk:
    if not is_last:
        return ChatGenerationChunk(message=AIMessageChunk(content=body["delta"]))
    pieces = [
        tool_call_chunk(name=call["name"], args=write_arguments(call["arguments"]), id=call["id"], index=place)
        for place, call in enumerate(body["tool_calls"])
    ]
    message = AIMessageChunk(
        content="",
        tool_call_chunks=pieces,
        usage_metadata=usage_metadata(body["usage"]),
        response_metadata=response_metadata(body),
        additional_kwargs=signatures(body["tool_calls"]),
        chunk_position="last",
    )
    return ChatGenerationChunk(message=message)
