"""A stream that ends in the middle of an event: a complete answer is kept, any other one may be asked for again."""

from collections.abc import AsyncIterator, Sequence

import pytest
import trio

from agentos.llm.providers.provider import Answer, Delta, Failing, Message, Question, Unforeseen
from agentos_sdk.values import ToolCall
from tests.contracts.worlds import VENDORS, VendorWorld
from tests.llm.vendors.script import Called, Raw, Says, Text
from tests.support.runs.rows import each_row

QUESTION = Question("a-model", [Message("user", "What is 6 times 7?")])
SAYS = Says([Text("42"), Called(ToolCall("c1", "now", {"a": "b"}))], finish="tool_calls")
STEP = 41  # bytes between two cuts, but for those in the first bytes of an event


@pytest.fixture(params=VENDORS, ids=lambda make: make.__name__)
async def world(request: pytest.FixtureRequest, nursery: trio.Nursery) -> AsyncIterator[VendorWorld]:
    made: VendorWorld = await request.param(nursery)
    yield made
    await made.aclose()


def deaf(delta: Delta) -> None:
    pass


def events_of(world: VendorWorld) -> Sequence[bytes]:
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    return [each for each in world.vendor.wire.events(SAYS, asked) if isinstance(each, bytes)]


async def answers_of(world: VendorWorld, *bodies: bytes) -> list[Answer | Failing]:
    """What comes of streams that end in good order behind these bytes."""
    provider = await world.meet(*(Says([Raw(body)], finish=None) for body in bodies))
    found: list[Answer | Failing] = []
    for _ in bodies:
        try:
            found.append(await provider.answer(QUESTION, deaf))
        except Failing as error:
            found.append(error)
    return found


async def test_from_the_byte_on_that_ends_an_answer_it_is_kept_and_before_it_may_be_asked_for_again(
    world: VendorWorld,
) -> None:
    body, sizes = b"", set[int]()
    for event in events_of(world):
        sizes |= {len(body) + size for size in (*range(1, 8), *range(STEP, len(event), STEP), len(event) - 1)}
        body += event
    *cut, whole = await answers_of(world, *(body[:size] for size in sorted(sizes)), body)

    assert isinstance(whole, Answer)
    first = [isinstance(each, Answer) for each in cut].index(True)
    assert not [each for each in cut[:first] if isinstance(each, Unforeseen)]
    for each in cut[first:]:
        assert isinstance(each, Answer), "a complete answer is kept wherever the rest is cut"
        assert (each.text, each.finish_reason, each.calls) == (whole.text, whole.finish_reason, whole.calls)


@each_row("rest", [b"{'a': 1}", b'{"usage": NaN}', b"[[1]]", b"{", b"[" * 100_000])
async def test_what_cant_be_read_behind_a_complete_answer_does_not_undo_it(world: VendorWorld, rest: bytes) -> None:
    events = [each for each in events_of(world) if b"[DONE]" not in each and b"message_stop" not in each]

    [answer] = await answers_of(world, b"".join(events) + b"data: " + rest + b"\n\n")

    assert isinstance(answer, Answer)
    assert answer.text == "42"


@each_row("body", [b"{'error': 'no such model'}", b"data: {'error': 'no such model'}\n\n", b"no such [model"])
async def test_what_is_whole_and_cant_be_read_is_not_asked_for_again(world: VendorWorld, body: bytes) -> None:
    [error] = await answers_of(world, body)

    assert isinstance(error, Unforeseen)
    assert "no such" in str(error)
