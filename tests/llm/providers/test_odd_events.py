"""Whatever a server puts in the place of whatever field, an agent gets an answer of the right types, or an error."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import pytest
import trio

from agentos.llm.providers.provider import Answer, Delta, Message, ProviderError, Question
from agentos_sdk.encoding import codec
from tests.contracts.worlds import VENDORS, VendorWorld
from tests.llm.vendors.script import Raw, Says
from tests.support.runs.rounds import some

QUESTION = Question("a-model", [Message("user", "What is 6 times 7?")])
ERROR = {"message": "no", "code": 400, "type": "not_found_error", "details": [{"reason": "r", "retryDelay": "3s"}]}
COUNTED = {"promptTokenCount": 5, "candidatesTokenCount": 5, "thoughtsTokenCount": 1, "toolUsePromptTokenCount": 1}
PARTS = [
    {"text": "well", "thought": True},
    {"text": "42"},
    {"functionCall": {"id": "c1", "name": "now", "args": {"a": 1}}, "thoughtSignature": "cw=="},
]
CALL = {"index": 0, "id": "c1", "function": {"name": "now", "arguments": "{}"}}
BLOCKS = [
    {"type": "thinking", "thinking": "well", "signature": "cw=="},
    {"type": "tool_use", "id": "c1", "name": "now", "input": {}},
]
DELTAS = [
    (0, {"type": "thinking_delta", "thinking": "hm"}),
    (1, {"type": "input_json_delta", "partial_json": "{}"}),
    (2, {"type": "text_delta", "text": "42"}),
]
TOKENS = {"input_tokens": 5, "output_tokens": 5, "output_tokens_details": {"thinking_tokens": 2}}
DELTA = {"content": "42", "refusal": None, "reasoning_content": "well", "tool_calls": [CALL]}
WHOLE: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "gemini": [
        {
            "candidates": [{"content": {"role": "model", "parts": PARTS}, "finishReason": "STOP"}],
            "promptFeedback": {"blockReason": None},
            "usageMetadata": COUNTED,
            "modelVersion": "a-model",
        }
    ],
    "openai": [
        {
            "choices": [{"delta": DELTA, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 2}},
            "model": "a-model",
        }
    ],
    "anthropic": [
        {"type": "message_start", "message": {"model": "a-model", "usage": TOKENS}},
        *({"type": "content_block_start", "index": at, "content_block": block} for at, block in enumerate(BLOCKS)),
        *({"type": "content_block_delta", "index": at, "delta": delta} for at, delta in DELTAS),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": TOKENS},
    ],
}
ODD: Sequence[Any] = [None, -1, "\ud800", [None], {"a": 1}, 10**40, 0, 1.5, True, "", "x", [], [1], [{}], [[]], {}]


@pytest.fixture(params=VENDORS, ids=lambda make: make.__name__)
async def world(request: pytest.FixtureRequest, nursery: trio.Nursery) -> AsyncIterator[VendorWorld]:
    made: VendorWorld = await request.param(nursery)
    yield made
    await made.aclose()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*path, key)
        yield from places(each, (*path, key))


def with_odd(events: Sequence[Mapping[str, Any]], odd: Any) -> Iterator[Sequence[Mapping[str, Any]]]:
    """The events, each time with this in another place."""
    for *path, last in places(events):
        changed = deepcopy(events)
        parent: Any = changed
        for key in path:
            parent = parent[key]
        parent[last] = odd
        yield changed


def check(answer: Answer) -> None:
    assert isinstance(answer.text, str)
    assert isinstance(answer.model, str)
    for call in answer.calls:
        assert isinstance(call.id, str)
        assert isinstance(call.name, str)
        assert isinstance(call.arguments, dict | str)
        assert isinstance(call.signature, str | None)
    usage = answer.usage
    assert all(type(each) is int and each >= 0 for each in (usage.input, usage.output, usage.thinking))
    assert codec.encode(answer)


def hear(delta: Delta) -> None:
    assert isinstance(delta.text, str)
    assert isinstance(delta.unseen, int)


@pytest.mark.parametrize("odd", some(ODD, 6), ids=repr)
async def test_whatever_stands_in_any_place_ends_in_an_answer_or_an_error(world: VendorWorld, odd: Any) -> None:
    whole = WHOLE[world.name]
    odd_ones = [*with_odd(whole, odd), *with_odd([{"type": "error", "error": ERROR}], odd)]
    provider = await world.meet(
        *(
            Says([Raw("".join(f"data: {json.dumps(event)}\n\n" for event in events).encode())], finish=None)
            for events in [whole, *odd_ones]
        )
    )

    check(await provider.answer(QUESTION, hear))
    for _ in odd_ones:
        try:
            check(await provider.answer(QUESTION, hear))
        except ProviderError as error:
            assert world.name in str(error)
