"""Provider for Anthropic, through its SDK, and for servers that speak its protocol."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anthropic
from attrs import define, evolve, field

from agentos.llm.answers.called_tools import arguments_text, index_of
from agentos.llm.answers.json_mode import check_answer, has_free_object, hold_text
from agentos.llm.answers.malformed import MalformedResponse
from agentos.llm.answers.sampling import LEVELS, Effort
from agentos.llm.answers.vendor_errors import find_error, message_of
from agentos.llm.settings import Timeouts
from agentos.llm.stream import AnswerBuilder, compact_json, id_field, text_field
from agentos_sdk.encoding.characters import join_surrogates
from agentos_sdk.values import ToolChoice, Usage

from .account import ProviderAccount
from .prompts.anthropic_prompt import compose_prompt, gets_marks
from .prompts.base64_parts import Base64Parts
from .prompts.thoughts import MAX_THOUGHTS
from .provider import (
    Answer,
    Delta,
    Denied,
    Heard,
    OnDelta,
    Provider,
    ProviderError,
    Question,
    Rejected,
    counted_usage,
    details_of,
)
from .transport import Transport

BASE_URL = "https://api.anthropic.com"
MAX_TOKENS = 16_384  # what may be generated if the question doesn't say; the protocol requires a number
MIN_THINKING = 1024  # the smallest budget of thoughts that is accepted
THINKING_BUDGETS = {"low": 1024, "medium": 8192, "high": 24_576}  # tokens, for models without levels
FIRST_THINKING, FIRST_ADAPTIVE = (3, 7), (4, 6)  # versions of Claude: with a budget of thoughts; with levels
SAMPLING_VERSION = "2023-06-01"  # of the protocol, the last with temperature and top_p
CHOICES: Mapping[ToolChoice, str] = {"auto": "auto", "none": "none", "required": "any"}
INPUT_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation")


@define
class _Marks:
    """Marks of the prompt cache in one request; whether they are ``placed`` is known when it is composed."""

    wanted: bool
    placed: bool = False


class Anthropic(Provider):
    """A connection to Anthropic or a compatible server at ``base_url``. Make it in a thread: that takes 80 ms.

    ``places_marks``: it places marks for the prompt cache in questions without any.
    """

    def __init__(
        self, account: ProviderAccount, base_url: str | None, timeouts: Timeouts, places_marks: bool = True
    ) -> None:
        self._account, self._places_marks = account, places_marks
        self._takes_marks = False  # whether the server has answered a question with marks
        self._is_anthropic = urlsplit(base_url or BASE_URL).hostname == "api.anthropic.com"
        self._transport = Transport(account, base_url or BASE_URL, timeouts)
        client = anthropic.Anthropic(
            api_key=account.key or "none",
            base_url=base_url or BASE_URL,  # else the SDK would read it from the environment
            max_retries=0,
            http_client=self._transport.composing,
        )
        self._messages = client.messages

    async def answer(self, question: Question, on_delta: OnDelta) -> Answer:
        marks, heard = _Marks(self._places_marks), Heard(on_delta)
        try:
            answer = await self._answer(question, heard, marks)
        except Rejected as refusal:
            if not marks.placed or heard.any or not self._may_be_for_marks(refusal):
                raise
            answer = await self._answer(question, on_delta, _Marks(False))
            self._places_marks = False  # it was for them: the server knows none
        else:
            self._takes_marks = self._takes_marks or marks.placed
        return answer

    def _may_be_for_marks(self, refusal: Rejected) -> bool:
        """Whether a server may have refused a question for the marks in it, which not every server names."""
        if self._is_anthropic:
            return False
        return "cache_control" in str(refusal) or (not self._takes_marks and refusal.status in (400, 422))

    async def _answer(self, question: Question, on_delta: OnDelta, marks: _Marks) -> Answer:
        events, is_instructed = _Events(), has_free_object(question.response_schema)
        hear = hold_text(on_delta) if is_instructed else on_delta
        builder = AnswerBuilder(self._account, hear, events.parse, self._error_of_body, "content")
        parts = Base64Parts()
        compose = partial(self._compose, question, parts, marks)
        await self._transport.send(compose, builder, self._error_of_body, parts)
        answer = builder.answer(question)
        if is_instructed:
            answer = check_answer(answer, self._account.vendor, on_delta)
        if not (answer.calls and events.thoughts):
            return answer
        first, *others = answer.calls
        return evolve(answer, calls=(evolve(first, signature=events.join_thoughts()), *others))

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _compose(self, question: Question, parts: Base64Parts, marks: _Marks | None = None) -> None:
        marks = marks or _Marks(self._places_marks)
        marks.placed = marks.wanted and gets_marks(question)
        self._messages.create(stream=True, **_request(question, parts, marks.placed)).close()

    def _error_of_body(self, status: int, body: object, after: float | None) -> ProviderError:
        message = message_of(find_error(body) or body) if isinstance(body, dict) else body
        if status == 400 and "credit balance is too low" in str(message):  # waiting or another question won't help
            text = f"{self._account.vendor}: the account of the key in {self._account.variable} is used up"
            return Denied(text, status=402)
        return self._account.error_of_status(status, message, after)


@define(eq=False)
class _Events:
    """Parser of the events of one answer.

    ``thoughts`` are its blocks of thoughts by index: the model requires them back, unchanged, with the tool calls that
    it made after them. They travel as JSON in the signature of the first call.
    """

    thoughts: dict[int, dict[str, list[str]]] = field(factory=dict)  # the pieces of each field
    _thoughts_size: int = 0  # characters
    _latest: int = -1  # index of the block that began last
    _counted: dict[str, Any] = field(factory=dict)  # the counts of input so far: later ones may lack some

    def join_thoughts(self) -> str:
        """The blocks in their order, as JSON."""
        ordered = [self.thoughts[index] for index in sorted(self.thoughts)]
        return compact_json(
            [{name: join_surrogates("".join(pieces)) for name, pieces in block.items()} for block in ordered]
        )

    def parse(self, builder: AnswerBuilder, event: Mapping[str, Any]) -> Delta:
        match event.get("type"):
            case "message_start":
                return self._take_message(builder, event.get("message") or {})
            case "message":  # a server that doesn't stream
                return self._take_message(builder, event)
            case "content_block_start":
                index = _index(event, self._latest + 1)
                return self._start_block(builder, index, event.get("content_block") or {})
            case "content_block_delta":
                return self._continue_block(builder, _index(event, self._latest), event.get("delta") or {})
            case "message_delta":
                if finish := text_field((event.get("delta") or {}).get("stop_reason"), "an end"):
                    builder.end_with(finish)
                return Delta(usage=self._count(event.get("usage")))
            case "message_stop":
                builder.end_stream()
        return Delta()

    def _take_message(self, builder: AnswerBuilder, message: Mapping[str, Any]) -> Delta:
        """Take the beginning of a message, or a whole one."""
        builder.model = text_field(message.get("model"), "the name of a model") or builder.model
        content = message.get("content") or ()
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        pieces = [self._start_block(builder, number, block) for number, block in enumerate(blocks)]
        counted = self._count(message.get("usage"))
        if finish := text_field(message.get("stop_reason"), "an end"):
            builder.end_with(finish)
        elif counted:
            counted = evolve(counted, output=0, thinking=0)  # what is generated is counted at the end
        text, unseen = "".join(piece.text for piece in pieces), sum(piece.unseen for piece in pieces)
        return Delta(text, unseen, counted, begun=any(piece.begun for piece in pieces))

    def _count(self, counted: object) -> Usage | None:
        """Token counts; ``input_tokens`` is without what was cached, ``output_tokens`` with thoughts."""
        if not isinstance(counted, dict):
            return None
        self._counted |= {name: counted[name] for name in INPUT_COUNTS if counted.get(name)}
        hour = details_of(self._counted, "cache_creation").get("ephemeral_1h_input_tokens")
        fresh, read, written, hourly = (
            counted_usage(count).input for count in (*map(self._counted.get, INPUT_COUNTS[:3]), hour)
        )
        thinking = details_of(counted, "output_tokens_details").get("thinking_tokens")
        generated = counted_usage(0, counted.get("output_tokens"), thinking)
        thinking = min(generated.thinking, generated.output)
        usage = Usage(fresh + read + written, generated.output - thinking, thinking, read, written, hourly)
        return usage.with_input(usage.input)

    def _start_block(self, builder: AnswerBuilder, index: int, block: Mapping[str, Any]) -> Delta:
        self._latest = index
        match block.get("type"):
            case "text":
                return Delta(text_field(block.get("text"), "a text"))
            case "thinking":
                text = text_field(block.get("thinking"), "a thought")
                signature = text_field(block.get("signature"), "a signature")
                self._begin_thought(index, type="thinking", thinking=text, signature=signature)
                return Delta(unseen=len(text), begun=True)
            case "redacted_thinking":
                self._begin_thought(index, type="redacted_thinking", data=text_field(block.get("data"), "a thought"))
                return Delta(begun=True)
            case "tool_use":
                id_, name = id_field(block.get("id")), text_field(block.get("name"), "the name of a tool")
                given = block.get("input")
                arguments = arguments_text(given) if given else ""  # usually empty: the arguments come in pieces
                builder.calls.add_piece(index, id_, name, arguments)
                return Delta(unseen=len(name) + len(arguments))
            case kind:
                builder.pass_over(kind)
        return Delta()

    def _begin_thought(self, index: int, **fields: str) -> None:
        self.thoughts[index] = {name: [text] for name, text in fields.items()}
        self._count_thoughts(sum(map(len, [*fields, *fields.values()])))

    def _count_thoughts(self, more: int) -> None:
        self._thoughts_size += more
        if self._thoughts_size > MAX_THOUGHTS:
            raise MalformedResponse(f"thinks more than {MAX_THOUGHTS >> 20} MiB")

    def _continue_block(self, builder: AnswerBuilder, index: int, delta: Mapping[str, Any]) -> Delta:
        match delta.get("type"):
            case "text_delta":
                return Delta(text_field(delta.get("text"), "a text"))
            case "input_json_delta":
                arguments = arguments_text(delta.get("partial_json"))
                builder.calls.add_piece(index, "", "", arguments)
                return Delta(unseen=len(arguments))
            case "thinking_delta" | "signature_delta" as kind:
                name = kind.removesuffix("_delta")
                text = text_field(delta.get(name), f"a {name}")
                if "thinking" in (thought := self.thoughts.get(index, {})):
                    thought[name].append(text)
                    self._count_thoughts(len(text))
                return Delta(unseen=len(text) if name == "thinking" else 0)
        return Delta()


def _index(event: Mapping[str, Any], otherwise: int) -> int:
    index = index_of(event.get("index"))
    return otherwise if index is None else index


def _request(question: Question, parts: Base64Parts, places_marks: bool) -> dict[str, Any]:
    sampling = {"temperature": question.temperature, "top_p": question.sampling.top_p}
    sampling = {name: value for name, value in sampling.items() if value is not None}
    thinking, effort = _thinking(question)
    is_instructed = has_free_object(question.response_schema)
    output = {"effort": effort, "format": None if is_instructed else _format(question.response_schema)}
    request: dict[str, Any] = {
        "model": question.model,
        "max_tokens": question.max_tokens or MAX_TOKENS + _usual_thinking(question.thinking_level),
        **compose_prompt(question, parts, places_marks),
        "stop_sequences": list(question.stop) or None,
        "thinking": thinking,
        "output_config": {name: value for name, value in output.items() if value is not None} or None,
        "tool_choice": _tool_choice(question) if question.tools else None,
        # Newer models reject them, and say so: a question that names them isn't changed silently.
        "extra_body": sampling or None,
        "extra_headers": {"anthropic-version": SAMPLING_VERSION} if sampling else None,
    }
    return {name: value for name, value in request.items() if value is not None}


def _usual_thinking(effort: Effort | None) -> int:
    return 0 if effort in (None, "none") else THINKING_BUDGETS[LEVELS[effort]]


def _thinking(question: Question) -> tuple[dict[str, Any] | None, str | None]:
    """Claude 4.6 and later have levels, 3.7 and later budgets; older ones don't think and reject the option."""
    effort, version = question.thinking_level, _version(question.model)
    if effort is None or version < FIRST_THINKING:
        return None, None
    if effort == "none":
        return {"type": "disabled"}, None
    level = LEVELS[effort]
    if version >= FIRST_ADAPTIVE:
        return {"type": "adaptive"}, level
    budget = THINKING_BUDGETS[level]
    if question.max_tokens is not None:
        budget = min(budget, question.max_tokens // 2)  # the answer needs some as well
    return ({"type": "enabled", "budget_tokens": budget}, None) if budget >= MIN_THINKING else (None, None)


def _version(model: str) -> tuple[int, int]:
    """The version in names such as claude-3-7-sonnet-20250219 and claude-opus-4-20250514; other models are new ones."""
    found = re.match(r"claude-(?:[a-z]+-)?(\d{1,2})(?:-(\d{1,2}))?(?!\d)", model)
    return (int(found[1]), int(found[2] or 0)) if found else (99, 0)


def _tool_choice(question: Question) -> dict[str, Any]:
    choice: dict[str, Any] = {"type": CHOICES[question.tool_choice]}
    if question.sampling.parallel_tool_calls is False and question.tool_choice != "none":
        choice["disable_parallel_tool_use"] = True
    return choice


def _format(schema: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A JSON schema as it is accepted: objects without further properties, unsupported limits in the description."""
    return None if schema is None else {"type": "json_schema", "schema": anthropic.transform_schema(dict(schema))}
