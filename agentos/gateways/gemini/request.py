"""Parser of Gemini's requests to generate content into :class:`~agentos.llm.providers.provider.Question`.

Unknown fields are left out and named; those that name an account are ignored. A field without which the answer would be
another is refused by name. No I/O.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentos.gateways.left_out import known, list_left_out
from agentos.gateways.request_fields import Asked, Mistake, check_stops, check_supported, read_fields, refuse_fields
from agentos.llm.answers.sampling import Effort, Sampling
from agentos.llm.providers.provider import Message, Question
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.strict import Unexpected
from agentos_sdk.values import LLMClass, Tool, ToolChoice

from .contents import Conversation, texts_of
from .fields import GoogleFields, json_schema

REFUSED = {  # fields and what to do instead
    "cachedContent": "no contents are kept here: send them",
    "continuationToken": "send the contents",
}
REFUSED_SETTINGS = {
    "audioTranscriptionConfig": "answers are text",
    "imageConfig": "answers are text",
    "logprobs": "ask at /v1/chat/completions",
    "modelSelectionConfig": "name the model in the path",
    "responseFormat": "use responseMimeType and responseJsonSchema",
    "responseLogprobs": "ask at /v1/chat/completions",
    "routingConfig": "name the model in the path",
    "speechConfig": "answers are text",
    "translationConfig": "answers are text",
}
KNOWN = known(
    *("serviceTier", "model", "store", "labels", "enableEnhancedCivicAnswers", *REFUSED),
    contents=known(
        "role",
        parts=known(
            *("text", "functionResponse", "thought", "thoughtSignature", "partMetadata"),
            inlineData=known("data", "mimeType", "displayName"),
            functionCall=known("id", "name", "args", "willContinue"),
        ),
    ),
    systemInstruction=known("role", parts=known("text", "partMetadata")),
    tools=known(functionDeclarations=known("name", "description", "parameters", "parametersJsonSchema")),
    toolConfig=known("retrievalConfig", functionCallingConfig=known("mode", "allowedFunctionNames")),
    generationConfig=known(
        *("temperature", "topP", "seed", "presencePenalty", "frequencyPenalty", "maxOutputTokens", "stopSequences"),
        *("candidateCount", "responseModalities", "responseMimeType", "responseSchema", "responseJsonSchema"),
        *REFUSED_SETTINGS,
        thinkingConfig=known("thinkingLevel", "thinkingBudget", "includeThoughts"),
    ),
)
SAMPLING = {  # by the parameter's name
    "top_p": "generationConfig.topP",
    "seed": "generationConfig.seed",
    "presence_penalty": "generationConfig.presencePenalty",
    "frequency_penalty": "generationConfig.frequencyPenalty",
}
MEDIUM_BUDGET, HIGH_BUDGET = 4096, 16384  # thinkingBudget from which on the level is medium, and high
LEVELS: Mapping[str, Effort | None] = {
    "THINKING_LEVEL_UNSPECIFIED": None,
    "MINIMAL": "minimal",
    "LOW": "low",
    "MEDIUM": "medium",
    "HIGH": "high",
    "XHIGH": "xhigh",
}
MODES: Mapping[str, ToolChoice] = {
    "MODE_UNSPECIFIED": "auto",
    "AUTO": "auto",
    "VALIDATED": "auto",
    "ANY": "required",
    "NONE": "none",
}


def parse_request(body: bytes, model: str, provider: str) -> Asked:
    """Parse a request to a model. Slow if ``body`` is large.

    Raises :class:`BadRequest`, also for parameters that ``provider`` doesn't support.
    """
    request = GoogleFields(read_fields(body).data)
    asked = _question(request, model)
    if asked.messages[-1].role == "assistant":
        raise Mistake("contents", "expected the user's content last: an answer can't be begun for the model (prefill)")
    check_supported(asked.sampling, provider, SAMPLING)
    class_: LLMClass | None = "batch" if (request.text("serviceTier") or "").lower() == "flex" else None
    return Asked(asked, class_=class_, left_out=list_left_out(request, KNOWN))


def parse_count(body: bytes, model: str, provider: str) -> Question:
    """Parse a request to count tokens: the contents alone, or a whole request."""
    request = GoogleFields(read_fields(body).data)
    return _question(request.object("generateContentRequest") or request, model)


def _question(request: GoogleFields, model: str) -> Question:
    config = request.object("generationConfig") or GoogleFields({}, request.place("generationConfig"))
    refuse_fields(request, REFUSED)
    refuse_fields(config, REFUSED_SETTINGS)
    if (wanted := config.whole("candidateCount")) not in (None, 1):
        raise Mistake(config.place("candidateCount"), str(Unexpected(wanted, "1: one answer is all that can be had")))
    for index, modality in enumerate(config.array("responseModalities")):
        if str(modality).upper() not in ("TEXT", "MODALITY_UNSPECIFIED"):
            raise Mistake(config.place(f"responseModalities[{index}]"), str(Unexpected(modality, "TEXT")))
    system = request.object("systemInstruction")
    tools, choice = _tools(request)
    return Question(
        model=model,
        messages=_messages(request),
        system=texts_of(system) or None if system is not None else None,
        temperature=config.number("temperature", 2),
        max_tokens=config.whole("maxOutputTokens"),
        thinking_level=_thinking(config),
        tools=tools,
        tool_choice=choice,
        stop=check_stops(config.given("stopSequences"), config.place("stopSequences")),
        response_schema=_schema(config),
        sampling=Sampling(
            top_p=config.number("topP", 1),
            seed=config.integer("seed", -(1 << 63), (1 << 63) - 1),
            presence_penalty=config.number("presencePenalty", 2, -2),
            frequency_penalty=config.number("frequencyPenalty", 2, -2),
        ),
    )


def _messages(request: GoogleFields) -> Sequence[Message]:
    conversation = Conversation()
    for content in request.objects("contents"):
        conversation.add(content)
    messages = conversation.finish()
    if not messages:
        raise Mistake(request.place("contents"), "expected at least one content")
    return messages


def _tools(request: GoogleFields) -> tuple[Sequence[Tool], ToolChoice]:
    tools = []
    for tool in request.objects("tools"):
        for name in tool.names:
            if name != "functionDeclarations":
                raise Mistake(tool.place(name), "not supported: functionDeclarations are the only tools")
        tools += [_tool(each) for each in tool.objects("functionDeclarations")]
    config = request.object("toolConfig")
    calling = config.object("functionCallingConfig") if config is not None else None
    if calling is None:
        return tools, "auto"
    choice: ToolChoice = calling.named("mode", MODES) or "auto"
    if allowed := {name for name in calling.array("allowedFunctionNames") if isinstance(name, str)}:
        tools = [tool for tool in tools if tool.name in allowed]
    if choice == "required" and not tools:
        raise Mistake(calling.place("mode"), "expected a function that is in tools, and allowed, for ANY")
    return tools, choice


def _tool(declaration: GoogleFields) -> Tool:
    schema, own = declaration.object("parametersJsonSchema"), declaration.object("parameters")
    parameters = schema.data if schema is not None else json_schema(own.data) if own is not None else {}
    description = codec.Text(declaration.text("description") or "")
    return Tool(declaration.required_text("name"), description, parameters)


def _thinking(config: GoogleFields) -> Effort | None:
    """The level that is named, or that of the budget, of which -1 leaves it to the model."""
    thinking = config.object("thinkingConfig")
    if thinking is None:
        return None
    level, budget = thinking.text("thinkingLevel"), thinking.integer("thinkingBudget", -1, 1 << 30)
    if level is not None:
        if level.upper() not in LEVELS:
            raise Mistake(thinking.place("thinkingLevel"), str(Unexpected(level, *LEVELS)))
        return LEVELS[level.upper()]
    if budget is None or budget < 0:
        return None
    if budget == 0:
        return "none"
    return "low" if budget < MEDIUM_BUDGET else "medium" if budget < HIGH_BUDGET else "high"


def _schema(config: GoogleFields) -> Mapping[str, Any] | None:
    kind = config.text("responseMimeType") or ""
    if kind not in ("", "text/plain", "application/json"):
        raise Mistake(config.place("responseMimeType"), str(Unexpected(kind, "text/plain", "application/json")))
    schema, own = config.object("responseJsonSchema"), config.object("responseSchema")
    if schema is not None:
        return schema.data
    if own is not None:
        return json_schema(own.data)
    return {"type": "object"} if kind == "application/json" else None
