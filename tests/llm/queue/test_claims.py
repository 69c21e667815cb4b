"""What is charged where a provider's own count can't be true."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentos.llm.providers.provider import Image, Message, Question, counted_usage, estimate_input_tokens
from agentos.llm.queue.claims import ENVELOPE_BYTES, MAX_TOKENS_PER_IMAGE, RequestSize, limit_claim, measure_request
from agentos_sdk.encoding.codec import Text
from agentos_sdk.values import Tool, ToolCall, Usage
from tests.support.runs.rows import each_row

COUNTS = st.integers(0, 10**9)


@each_row(
    ("claim", "charged", "bound"),
    [
        (Usage(5280, 20, 0), Usage(5280, 20, 0), None),
        (Usage(1, 0, 0), Usage(1320, 5, 0), "least"),
        (Usage(0, 1324, 0), Usage(1320, 1324, 0), "least"),
        (Usage(9 * 10**8, 20, 0), Usage(22180, 20, 0), "most"),
        (Usage(100, 9 * 10**8, 0), Usage(21120, 1080, 0), "most"),
        (Usage(100, 10, 9 * 10**8), Usage(21120, 10, 1070), "most"),
        (Usage(1, 0, 0, 1), Usage(1320, 5, 0, 1), "least"),
        (Usage(5280, 20, 0, 3000, 2000, 500), Usage(5280, 20, 0, 3000, 2000, 500), None),
        (Usage(9 * 10**8, 20, 0, 22000, 9 * 10**7, 300), Usage(22180, 20, 0, 22000, 180, 180), "most"),
    ],
)
def test_a_claim_that_cant_be_true_is_charged_as_the_nearest_that_can(
    claim: Usage, charged: Usage, bound: str | None
) -> None:
    assert limit_claim(claim, RequestSize(21120, 0), 80, 1000) == (charged, bound)


@given(
    st.builds(counted_usage, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS),
    st.integers(0, 10**7),
    st.integers(0, 9),
    st.integers(0, 10**7),
)
def test_what_is_charged_is_within_the_bounds_and_else_the_claim(
    claim: Usage, size: int, images: int, received: int
) -> None:
    charged, bound = limit_claim(claim, RequestSize(size, images), received, 100)

    assert (size + received) / 16 <= charged.total <= size + received + images * MAX_TOKENS_PER_IMAGE + 100
    assert (charged == claim) == (bound is None)
    assert charged.cache_read + charged.cache_creation <= charged.input
    assert charged.cache_creation_1h <= charged.cache_creation


def test_bytes_of_all_that_is_sent_are_counted() -> None:
    question = Question(
        "m",
        [
            Message("user", "für", [Image(b"x" * 1000, "image/png")]),
            Message("assistant", "", calls=[ToolCall("c", "add", {"a": "é"})]),
        ],
        system="abc",
        tools=[Tool("add", Text("of two"), {"type": "object"})],
        response_schema={"type": "integer"},
    )

    arguments, parameters, schema = (
        len(each.encode()) for each in ('{"a":"é"}', '{"type":"object"}', '{"type":"integer"}')
    )
    texts = len("abc") + len("für".encode()) + len("add") + len("add") + len("of two")
    assert measure_request(question) == RequestSize(texts + arguments + parameters + schema + 5 * ENVELOPE_BYTES, 1)


def test_the_envelope_covers_what_vendors_count_for_a_short_question() -> None:
    assert limit_claim(Usage(9, 1), measure_request(Question("m", [Message("user", "hi")])), 2, 1) == (
        Usage(9, 1),
        None,
    )


@pytest.mark.parametrize("where", ["tools", "schema", "arguments"])
def test_json_counts_towards_the_size_of_a_question(where: str) -> None:
    large = {"enum": ["x" * 100_000], "maximum": 10**30}
    plain = Question("m", [Message("user", "why?")])
    question = {
        "tools": replace(plain, tools=[Tool("add", Text(""), large)]),
        "schema": replace(plain, response_schema=large),
        "arguments": replace(plain, messages=[Message("assistant", calls=[ToolCall("c", "add", large)])]),
    }[where]

    assert question.size > 100_000
    assert estimate_input_tokens(question) > 25_000 or where == "schema"
    assert measure_request(question).size > 100_000
