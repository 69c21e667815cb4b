"""The prompt of a question as Anthropic's protocol has it: tools, system instructions and conversation.

Their blocks are as the program sent them, with its marks for Anthropic's prompt cache. Where it set none, marks are
placed: at the end of the tools and of the system instructions; and where the conversation is likely to go on, since the
model has answered or may call tools, at its end and at that of what the last answer was for, where the cache has an
entry. A single question pays for no more than what usually comes again. docs/decisions/0094.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from agentos.llm.answers.called_tools import object_of
from agentos.llm.answers.json_mode import has_free_object, instruct
from agentos.llm.answers.prompt_blocks import Block, CacheMark
from agentos.llm.providers.provider import Image, Message, Question
from agentos_sdk.values import Tool, ToolCall

from .base64_parts import Base64Parts
from .past_calls import accepted_messages, as_user
from .thoughts import WrongSignature, read_signature

THOUGHT_FIELDS = {"thinking": {"type", "thinking", "signature"}, "redacted_thinking": {"type", "data"}}

Json = dict[str, Any]


def compose_prompt(question: Question, parts: Base64Parts, places_marks: bool) -> Json:
    """The fields of a request that are the prompt; ``places_marks`` where :func:`gets_marks` is true."""
    tools = [_tool_declaration(tool, question.marked_tools.get(tool.name)) for tool in question.tools]
    system, turns = _system(question), [*_turns(question.messages, parts)]
    if places_marks:
        system = _place_marks(tools, system, turns, bool(tools) and question.tool_choice == "auto")
    whole = {"cache_control": _control(question.cache_mark)} if question.cache_mark is not None else {}
    return {"tools": tools or None, "system": system or None, "messages": turns, **whole}


def gets_marks(question: Question) -> bool:
    """Whether marks can be placed in a question: it has none of its program's, and parts that may come again."""
    has_answers = any(message.role == "assistant" for message in question.messages)
    return not question.cache_marks and bool(question.tools or _system(question) or has_answers)


def _place_marks(tools: list[Json], system: str | list[Json], turns: list[Json], may_call_tools: bool) -> list[Json]:
    """Mark the tools and turns; returns the system instructions with a mark."""
    marked = _as_blocks(system)
    for blocks in (tools, marked):
        _mark_last(blocks)
    answers = [place for place, turn in enumerate(turns) if turn["role"] == "assistant"]
    ends = [answers[-1] - 1] if answers else []
    for place in {*ends, len(turns) - 1} if answers or may_call_tools else ():
        if place >= 0 and turns[place]["role"] == "user":
            content = _as_blocks(turns[place]["content"])
            _mark_last(content)
            turns[place]["content"] = content or turns[place]["content"]
    return marked


def _as_blocks(content: str | list[Json]) -> list[Json]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    return content


def _mark_last(blocks: list[Json]) -> None:
    if blocks:
        blocks[-1]["cache_control"] = _control("default")


def _control(mark: CacheMark) -> Json:
    return {"type": "ephemeral"} if mark == "default" else {"type": "ephemeral", "ttl": mark}


def _marked(block: Json, mark: CacheMark | None) -> Json:
    return block if mark is None else {**block, "cache_control": _control(mark)}


def _system(question: Question) -> str | list[Json]:
    """The instructions, with one to answer in JSON where no schema says it."""
    told = question.system or ""
    whole = instruct(question) if has_free_object(question.response_schema) else told
    if not question.system_blocks:
        return whole
    blocks = [_text(told, block) for block in question.system_blocks]
    return [*blocks, *_as_blocks(whole[len(told) :].lstrip("\n"))]


def _turns(messages: Sequence[Message], parts: Base64Parts) -> Iterator[Json]:
    """Convert the conversation; the results of several tools go into one turn, as their calls came in one."""
    results: list[Json] = []
    for message in accepted_messages(messages):
        message = as_user(message) if message.role == "system" else message
        if message.role == "tool":
            content = _content(message, parts)
            result = {"type": "tool_result", "tool_use_id": message.answers or "", "content": content}
            results.append(_marked(result, message.mark))
            continue
        if results:
            yield {"role": "user", "content": results}
            results = []
        if message.calls:
            content = _as_blocks(_content(message, parts))
            yield {"role": "assistant", "content": [*_thoughts(message.calls), *content]}
        elif message.text or message.role == "user":  # an empty turn is rejected, and the model said nothing in it
            yield {"role": message.role, "content": _content(message, parts)}
    if results:
        yield {"role": "user", "content": results}


def _content(message: Message, parts: Base64Parts) -> str | list[Json]:
    """The blocks of a message, or its text where that is all."""
    images, calls = (_image(each, parts) for each in message.images), map(_call, message.calls)
    if not message.blocks:
        if not message.images and not message.calls:
            return message.text
        said: list[Json] = [{"type": "text", "text": message.text}] if message.text else []
        return [*said, *images, *calls]
    others = {"image": images, "call": calls}
    return [
        _text(message.text, block) if block.kind == "text" else _marked(next(others[block.kind]), block.mark)
        for block in message.blocks
    ]


def _text(text: str, block: Block) -> Json:
    return _marked({"type": "text", "text": text[block.begin : block.end]}, block.mark)


def _image(image: Image, parts: Base64Parts) -> Json:
    source = {"type": "base64", "media_type": image.mime_type, "data": parts.add(image.data)}
    return {"type": "image", "source": source}


def _call(call: ToolCall) -> Json:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": object_of(call.arguments)}


def _thoughts(calls: Sequence[ToolCall]) -> Iterator[dict[str, str]]:
    """The thoughts in the calls' signatures; a signature of another vendor is no JSON array and left out."""
    for call in calls:
        for block in read_signature(call.signature) if call.signature and call.signature.startswith("[") else ():
            kind = block.get("type") if isinstance(block, dict) else None
            if not isinstance(kind, str) or block.keys() != THOUGHT_FIELDS.get(kind):
                raise WrongSignature
            yield block


def _tool_declaration(tool: Tool, mark: CacheMark | None) -> Json:
    schema = dict(tool.parameters) or {"type": "object"}
    declared = {"name": tool.name, "description": tool.description, "input_schema": schema, "strict": tool.strict}
    return _marked({name: value for name, value in declared.items() if value}, mark)
