"""The last questions and answers of each agent: what is kept, its bounds, and that no secret is in it."""

import json
import math
import sys
import tracemalloc
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace
from trio.testing import MockClock

from agentos.llm.answers import contents as module
from agentos.llm.answers.contents import MAX_AGENT_BYTES, MAX_ANSWER, MAX_MESSAGES, Asker, Contents
from agentos.llm.providers.provider import Answer, Failing, Image, Message, Question
from agentos.llm.queue.request import Request, ThinkResult
from agentos.llm.settings import LLMSettings, Retry
from agentos.syscalls.model.contents import build_reply
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.codec import Text
from agentos_sdk.errors import BadRequest, QuotaExceeded, Unavailable
from agentos_sdk.values import Tool, ToolCall, Usage
from tests.llm.scripted import Scripted, Step, question
from tests.llm.test_line import open_line, queue_path, work

KEY = "sk-" + "0123456789abcdef" * 2
ASKER = Asker(7, "writer", "agent 7", "9a2d")
PAGE = 1 << 30


def price(model: str, usage: Usage) -> float | None:
    return usage.total / 1000


def answered(text: str, calls: Sequence[ToolCall] = ()) -> ThinkResult:
    return ThinkResult(Answer(text, Usage(3, 4, 5), "stop", "gpt", calls), 0.0, 0.0)


async def ask(kept: Contents, asked: Question, answer: ThinkResult | None = None, asker: Asker = ASKER) -> None:
    request = Request(asked, queue_path("writer"))
    request.result = answer or answered("yes")
    kept.keep(asker, request, price)


def read(kept: Contents, agent_id: int | None = 7) -> list[dict[str, Any]]:
    found, more = kept.read(agent_id, None, None, 1000, PAGE)
    assert not more
    return [json.loads(each) for each in found]


async def test_a_question_is_kept_with_its_answer_tokens_and_cost() -> None:
    kept = Contents(50)
    asked = Question(
        "gpt",
        [
            Message("user", "how?", [Image(b"123", "image/png")]),
            Message(
                "assistant", "", calls=[ToolCall("1", "add", {"a": [1, 2.5, None, True, {"b": "c"}], "n": 1 << 70})]
            ),
            Message("tool", "3", answers="1"),
        ],
        system="be brief",
        tools=[Tool("add", Text("adds"), {})],
    )

    await ask(kept, asked, answered("so", [ToolCall("2", "save", {"text": "x"})]))

    [found] = read(kept)
    assert found["system"] == "be brief"
    assert found["messages"] == [
        {"role": "user", "text": "how?", "images": 1, "tool_calls": []},
        {
            "role": "assistant",
            "text": "",
            "images": 0,
            "tool_calls": [{"name": "add", "arguments": {"a": [1, 2.5, None, True, {"b": "c"}], "n": str(1 << 70)}}],
        },
        {"role": "tool", "text": "3", "images": 0, "tool_calls": []},
    ]
    assert (found["answer"], found["tool_calls"]) == ("so", [{"name": "save", "arguments": {"text": "x"}}])
    uncached = {"cache_read": 0, "cache_creation": 0, "cache_creation_1h": 0}
    assert (found["usage"], found["cost"]) == ({"input": 3, "output": 4, "thinking": 5, **uncached}, 0.012)
    assert (found["agent_id"], found["name"], found["digest"]) == (7, "writer", "9a2d")
    assert (found["outcome"], found["error"], found["left_out"], found["tools"]) == ("ok", None, 0, ["add"])


async def test_the_oldest_question_of_an_agent_is_dropped_first_and_zero_keeps_none() -> None:
    kept, none = Contents(3), Contents(0)
    for number in range(5):
        await ask(kept, question(f"question {number}"))
        await ask(none, question("x"))

    assert [each["messages"][0]["text"] for each in read(kept)] == ["question 2", "question 3", "question 4"]
    assert none.read(None, None, None, 10, PAGE) == ([], False)


async def test_pages_are_bounded_in_both_directions_and_never_empty() -> None:
    kept = Contents(10)
    for number in range(6):
        await ask(kept, question(f"{number}" * 1000))

    def ids(after: int | None, limit: int, most: int) -> tuple[list[int], bool]:
        found, more = kept.read(7, None, after, limit, most)
        return [json.loads(each)["id"] for each in found], more

    assert ids(None, 2, PAGE) == ([5, 6], True)
    assert ids(None, 6, PAGE) == ([1, 2, 3, 4, 5, 6], False)
    assert ids(None, 6, 4000) == ([5, 6], True)
    assert ids(None, 6, 1) == ([6], True)
    assert ids(0, 2, PAGE) == ([1, 2], True)
    assert ids(2, 9, 1) == ([3], True)
    assert ids(5, 9, PAGE) == ([6], False)
    assert ids(6, 9, PAGE) == ([], False)
    assert kept.read(8, None, None, 9, PAGE) == kept.read(None, "other", None, 9, PAGE) == ([], False)
    assert len(kept.read(None, "writer", None, 9, PAGE)[0]) == 6


# -- How it ended ------------------------------------------------------------------------------------------------------


async def test_waiting_first_token_and_total_are_measured(autojump_clock: MockClock) -> None:
    async with open_line(Scripted([[1.0, "so", 2.0, "it is"]])) as line, trio.open_nursery() as nursery:
        for number in (1, 2):
            asker = replace(ASKER, agent_id=number)
            nursery.start_soon(line.think, queue_path(f"agent {number}"), question("why?"), None, asker)
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(line.think, queue_path("the operator"), question("why?"))

    [first], [second] = read(line.contents, 1), read(line.contents, 2)
    assert [first[name] for name in ("queued_ms", "first_token_ms", "latency_ms")] == pytest.approx([0, 1000, 3000])
    assert [second[name] for name in ("queued_ms", "first_token_ms", "latency_ms")] == pytest.approx([3000, 4000, 6000])
    assert (second["answer"], second["attempts"], second["answered_by"]) == ("soit is", 1, "scripted")
    assert len(read(line.contents, None)) == 2


async def test_refused_failed_cancelled_and_late_questions_are_kept_with_their_error(autojump_clock: MockClock) -> None:
    async def late(line: Any) -> None:
        with trio.move_on_after(1):
            await line.think(queue_path("a"), question("late?"), None, ASKER)

    script: Sequence[Sequence[Step]] = [[Failing("the network")], work(1000.0)]
    async with open_line(Scripted(script), LLMSettings(retry=Retry(attempts=1))) as line:
        with pytest.raises(Unavailable):
            await line.think(queue_path("a"), question("fails?"), None, ASKER)
        with pytest.raises(BadRequest):
            await line.think(queue_path("a"), replace(question("name?"), model="no such name"), None, ASKER)
        await late(line)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(line.think, queue_path("a"), question("withdrawn?"), None, ASKER)
                await trio.sleep(2)
                scope.cancel()

    found = read(line.contents)
    assert [each["outcome"] for each in found] == ["unavailable", "bad_request", "timeout", "cancelled"]
    assert found[1]["error"].startswith("model: expected a name")
    assert (found[1]["attempts"], found[1]["latency_ms"]) == (0, 0)
    assert [each["latency_ms"] for each in found[2:]] == pytest.approx([1000, 2000])
    assert [each["attempts"] for each in found[2:]] == [1, 1]
    assert found[2]["answer"] == ""


# -- Secrets -----------------------------------------------------------------------------------------------------------


async def test_the_kernels_secrets_are_nowhere_in_what_is_kept() -> None:
    kept = Contents(50, [KEY], lambda: ["hunter2hunter2"])
    text = f"use {KEY} and hunter2hunter2."
    calls = [ToolCall("1", f"f{KEY}", {f"k {KEY}": [text, {"x": text}]})]
    asked = Question(
        KEY,
        [Message("user", text), Message("assistant", text, calls=calls)],
        system=text,
        tools=[Tool(KEY, Text(text), {"d": text})],
    )

    await ask(kept, asked, answered(text, calls))
    refused = Request(asked, queue_path("writer"))
    refused.end(QuotaExceeded(text))
    kept.keep(ASKER, refused, price)

    raw = b"".join(kept.read(None, None, None, 9, PAGE)[0]).decode()
    assert KEY not in raw
    assert "hunter2" not in raw
    assert raw.count("use ••• and •••.") == 14


async def test_a_cut_through_a_secret_leaves_no_part_of_it() -> None:
    for kept_part in range(len(KEY) + 1):
        kept = Contents(1, [KEY])
        before = "x" * (MAX_ANSWER - kept_part)

        await ask(kept, question("?"), answered(before + KEY + "y"))

        [found] = read(kept)
        left_out = len(KEY) + 1 - kept_part
        mark = "•••" * (kept_part == len(KEY))
        assert found["answer"] == f"{before}{mark}… ({left_out} characters more)"


async def test_a_cut_tells_of_no_text_whether_it_is_how_a_secret_begins() -> None:
    for guess in (KEY[:1], KEY[: len(KEY) // 2], KEY[:-1]):
        kept = Contents(1, [KEY])
        before = "x" * (MAX_ANSWER - len(guess))

        await ask(kept, question("?"), answered(before + guess + "?" * len(KEY)))

        [found] = read(kept)
        assert found["answer"] == f"{before}{guess}… ({len(KEY)} characters more)"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4),
    max_leaves=20,
)


@given(JSON, st.text(st.characters()), st.text(st.characters()))
async def test_whatever_was_asked_and_answered_can_be_read(value: Any, asked: str, answer: str) -> None:
    kept = Contents(1, [KEY])
    calls = [ToolCall("1", asked, {"x": value})]
    await ask(kept, Question("gpt", [Message("assistant", asked, calls=calls)], system=answer), answered(answer, calls))

    reply: Any = codec.parse(build_reply(kept.read(7, None, None, 1, PAGE)[0], False))
    assert reply["count"] == 1
    json.dumps(reply, allow_nan=False)


async def test_secrets_in_tool_calls_are_redacted_by_their_names_and_by_their_look() -> None:
    token = "sk-" + "a1" * 12
    arguments = {
        "password": "hunter2",
        "pin": {"api_key": [12345, {"of": "x", "valid": True}], "note": "", "auth": None},
        token: 1,
        "cmd": "login --password hunter2",
        "max_tokens": 5,
        "path": "/notes",
    }
    kept, calls = Contents(1), [ToolCall("1", f"login {token}", arguments)]
    await ask(kept, Question("gpt", [Message("assistant", calls=calls)]), answered("", calls))

    reply: Any = codec.parse(build_reply(kept.read(7, None, None, 1, PAGE)[0], False))

    [question] = reply["questions"]
    expected = {
        "name": "login [redacted]",
        "arguments": {
            "password": "[redacted]",
            "pin": {"api_key": ["[redacted]", {"of": "[redacted]", "valid": True}], "note": "", "auth": None},
            "[redacted]": 1,
            "cmd": "login --password [redacted]",
            "max_tokens": 5,
            "path": "/notes",
        },
    }
    assert question["tool_calls"] == [expected]
    assert question["messages"][0]["tool_calls"] == [expected]


# -- Bounds ------------------------------------------------------------------------------------------------------------


async def test_of_a_long_conversation_the_newest_messages_are_kept_and_long_texts_are_cut() -> None:
    kept = Contents(50)
    messages = [Message("user", f"{number} " + "a" * 1000) for number in range(1000)]

    await ask(kept, Question("gpt", messages, system="s" * 100_000), answered("b" * 200_000))

    [found] = read(kept)
    assert found["messages"][-1]["text"] == messages[-1].text
    assert found["left_out"] == 1000 - len(found["messages"]) > 900
    assert sum(len(each["text"]) for each in found["messages"]) < MAX_MESSAGES + 100
    assert found["answer"] == "b" * MAX_ANSWER + f"… ({200_000 - MAX_ANSWER} characters more)"
    assert len(found["system"]) < 17_000


DEEP: Any = "bottom"
for _ in range(60):
    DEEP = {"a": [DEEP]}
HOSTILE: Mapping[str, Question] = {
    "control characters": Question("gpt", [Message("user", "\0" * (1 << 20))], system="\0" * (1 << 20)),
    "wide characters": Question("gpt", [Message("user", "\U0001f600" * (1 << 20))]),
    "half pairs": Question("gpt", [Message("user", "\ud800" * (1 << 20))]),
    "many messages": Question("gpt", [Message("user", "")] * 2000),
    "many tools": Question("gpt", [Message("user", "x")], tools=[Tool("t" * 5000, Text(""), {})] * 1999),
    "many arguments": Question(
        "gpt", [Message("assistant", calls=[ToolCall("1", "f", {"a": [[]] * 100_000, "b": [1 << 70] * 100_000})])]
    ),
    "a large argument": Question(
        "gpt", [Message("assistant", calls=[ToolCall("1", "f", {"a" * 100: "\0" * (4 << 20)})])]
    ),
    "deep arguments": Question("gpt", [Message("assistant", calls=[ToolCall("1", "f", DEEP)])]),
    "unusual numbers": Question(
        "gpt", [Message("assistant", calls=[ToolCall("1", "f", {"a": [math.inf, math.nan, 1 << 4000, -(1 << 63)]})])]
    ),
    "many calls": Question("gpt", [Message("assistant", calls=[ToolCall("1", "f", {})] * 1999)]),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_no_question_takes_a_megabyte_and_no_agent_more_than_four(name: str) -> None:
    kept = Contents(1000)
    for _ in range(12):
        await ask(kept, HOSTILE[name], answered("\0" * (1 << 20)))

    found, _ = kept.read(7, None, None, 1000, PAGE)
    assert all(len(each) < 1 << 20 for each in found)
    assert sum(map(sys.getsizeof, found)) <= kept.size <= MAX_AGENT_BYTES
    assert len(found) >= 4
    reply = build_reply(found[:2], True)
    codec.parse(reply)
    assert len(reply) < 3 << 20


async def test_four_mebibytes_of_an_agent_take_no_more_memory_than_that() -> None:
    kept = Contents(1000)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(30):
            await ask(kept, HOSTILE["control characters"], answered("\0" * (1 << 20)))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert 3 << 20 < after - before < MAX_AGENT_BYTES + (64 << 10)


async def test_a_swarm_of_children_pushes_out_its_own_questions_and_not_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_TOTAL_BYTES", 1 << 20)
    kept = Contents(50)
    for number in range(5):
        await ask(kept, question(f"of the writer {number}" + "w" * 10_000))
    for number in range(100, 400):
        await ask(kept, question("?"), asker=Asker(number, f"child {number}", "agent 99", ""))

    assert len(read(kept)) == 5
    children = {each["agent_id"] for each in read(kept, None)} - {7}
    assert children == set(range(400 - len(children), 400))
    assert 40 < len(children) < 64


class Bounds(RuleBasedStateMachine):
    """Compared with a list of all questions: what is kept of an agent is the end of its list, within the bounds."""

    MOST, AGENT, TOTAL, LEAST = 5, 6000, 20_000, 1000

    def __init__(self) -> None:
        super().__init__()
        self.before = module.MAX_AGENT_BYTES, module.MAX_TOTAL_BYTES, module.MIN_AGENT_BYTES
        module.MAX_AGENT_BYTES, module.MAX_TOTAL_BYTES, module.MIN_AGENT_BYTES = self.AGENT, self.TOTAL, self.LEAST
        self.kept = Contents(self.MOST)
        self.all: dict[int, list[int]] = {}

    def teardown(self) -> None:
        module.MAX_AGENT_BYTES, module.MAX_TOTAL_BYTES, module.MIN_AGENT_BYTES = self.before

    @rule(agent=st.integers(1, 30), size=st.sampled_from([0, 10, 500, 3000]))
    def ask(self, agent: int, size: int) -> None:
        trio.run(ask, self.kept, question("q" * size + "?"), None, Asker(agent, "x", f"family {agent % 4}", ""))
        number = max((each for ids in self.all.values() for each in ids), default=0) + 1
        self.all.setdefault(agent, []).append(number)

    @invariant()
    def holds(self) -> None:
        found = {agent: [each["id"] for each in read(self.kept, agent)] for agent in self.all}
        assert all(ids == self.all[agent][len(self.all[agent]) - len(ids) :] for agent, ids in found.items())
        assert all(len(ids) <= self.MOST for ids in found.values())
        sizes = {agent: sum(map(len, self.kept.read(agent, None, None, 99, PAGE)[0])) for agent in self.all}
        assert max(sizes.values(), default=0) <= self.AGENT
        assert sum(max(size, self.LEAST) for size in sizes.values() if size) <= self.TOTAL
        assert sum(sizes.values()) <= self.kept.size <= self.TOTAL
        assert not self.all or any(found.values())


TestBounds = Bounds.TestCase
TestBounds.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
