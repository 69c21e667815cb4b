"""The offline provider: what rules say, what an echo says, how slow it is, and which requests fail."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from agentos.llm.providers.offline import LABEL, MAX_ECHO, Offline
from agentos.llm.providers.offline_rules import MAX_SEARCHED, BadRules, CallTemplate, Rule, read_rules
from agentos.llm.providers.provider import (
    Answer,
    Delta,
    Denied,
    Failing,
    Image,
    MalformedCall,
    Message,
    ProviderError,
    Question,
    RateLimited,
    Rejected,
    estimate_input_tokens,
)
from agentos.llm.settings import OfflineSettings
from agentos_sdk.encoding.codec import Text
from agentos_sdk.values import Tool, ToolCall, Usage
from tests.support.runs.rows import each_row


def question(text: str = "hello", **more: Any) -> Question:
    return Question("offline", [Message("user", text)], **more)


async def ask(provider: Offline, asked: Question) -> Answer:
    return await provider.answer(asked, lambda _: None)


async def said(rules: Sequence[Rule], asked: Question) -> str:
    return (await ask(Offline(rules=rules), asked)).text


# -- Rules -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ['{"command": "ls', "[1]", '"text"'])
async def test_arguments_that_are_no_json_object_stay_the_text_that_a_model_would_write(arguments: str) -> None:
    provider = Offline(rules=[Rule(tool_calls=[CallTemplate("exec", arguments)])])

    [call] = (await ask(provider, question())).calls

    assert call.arguments == arguments


async def test_a_rule_says_why_its_answer_ends() -> None:
    rules = [
        Rule(match="cut", reply="some", finish_reason="length"),
        Rule(match="filter", finish_reason="content_filter"),
    ]

    ends = [(await ask(Offline(rules=rules), question(text))).finish_reason for text in ("cut", "filter", "else")]

    assert ends == ["length", "content_filter", "stop"]


async def test_a_rule_can_withhold_a_call_as_gemini_does() -> None:
    with pytest.raises(MalformedCall, match="arguments that are no JSON object"):
        await ask(Offline(rules=[Rule(reply="I look.", fail="malformed_call")]), question())


async def test_arguments_may_be_written_as_json() -> None:
    provider = Offline(rules=[Rule(match=r"(\w+)", tool_calls=[CallTemplate("exec", r'{"command": "\1"}')])])

    [call] = (await ask(provider, question("ls"))).calls

    assert call.arguments == {"command": "ls"}


async def test_the_first_rule_that_fits_answers_with_what_its_groups_found() -> None:
    rules = [
        Rule(match="storm", reply="no"),
        Rule(match=r"weather in (?P<city>\w+)(, now)?", reply=r"It rains in \g<city>\2."),
        Rule(match="weather", reply="no"),
    ]

    assert await said(rules, question("How is the weather in Bern?")) == "It rains in Bern."


@each_row(
    ("rule", "fits"),
    [
        (Rule(system="pirate", reply="arr"), True),
        (Rule(system="poet", reply="arr"), False),
        (Rule(model="^off", reply="arr"), True),
        (Rule(model="^large", reply="arr"), False),
        (Rule(system="pirate", match="goodbye", reply="arr"), False),
    ],
)
async def test_all_that_a_rule_asks_for_has_to_be_so(rule: Rule, fits: bool) -> None:
    text = await said([rule], question("hello", system="You are a pirate."))

    assert (text == "arr") is fits


async def test_a_rule_applies_as_often_as_it_says() -> None:
    provider = Offline(rules=[Rule(reply="first", times=2), Rule(reply="later")])

    assert [(await ask(provider, question())).text for _ in range(4)] == ["first", "first", "later", "later"]


ADD = Tool("add", parameters={"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "number"}}})


async def test_a_rule_calls_a_tool_with_numbers_where_its_schema_wants_them() -> None:
    rule = Rule(match=r"(\S+) and (\S+)", tool_calls=[CallTemplate("add", {"a": r"\1", "b": r"\2", "why": [r"\1"]})])

    answer = await ask(Offline(rules=[rule]), question("add 17 and 2.5", tools=[ADD]))

    assert answer.calls == (ToolCall("call_1_0", "add", {"a": 17, "b": 2.5, "why": ["17"]}),)
    assert (answer.text, answer.finish_reason) == ("", "tool_calls")


@each_row("text", ["nan", "inf", "1e999", "9" * 5000, "1_000", "2.5", "ten"])
async def test_what_is_no_plain_whole_number_stays_a_text(text: str) -> None:
    rule = Rule(match=r"add (\S+)", tool_calls=[CallTemplate("add", {"a": r"\1"})])

    answer = await ask(Offline(rules=[rule]), question(f"add {text}", tools=[ADD]))

    assert answer.calls[0].arguments == {"a": text}


async def test_a_conversation_goes_on_with_what_the_tool_answered() -> None:
    rules = [Rule(tool="add", match=".+", reply=r"It is \g<0>."), Rule(match="add", tool_calls=[CallTemplate("add")])]
    provider = Offline(rules=rules)
    asked = question("add something", tools=[ADD])

    calls = (await ask(provider, asked)).calls
    turns = [*asked.messages, Message("assistant", calls=calls), Message("tool", "42", answers=calls[0].id)]

    assert (await ask(provider, Question("offline", turns, tools=[ADD]))).text == "It is 42."


async def test_calls_of_different_answers_have_different_ids() -> None:
    provider = Offline(rules=[Rule(tool_calls=[CallTemplate("add"), CallTemplate("add")])])

    ids = [call.id for _ in range(3) for call in (await ask(provider, question())).calls]

    assert len(set(ids)) == 6


@pytest.mark.parametrize(
    ("fail", "kind"), [("slow_down", RateLimited), ("failing", Failing), ("denied", Denied), ("rejected", Rejected)]
)
async def test_a_rule_fails_behind_what_it_has_said(fail: Any, kind: type[ProviderError]) -> None:
    heard: list[Delta] = []
    provider = Offline(rules=[Rule(reply="so far", fail=fail, times=1)])

    with pytest.raises(kind, match=r"as rule\[0\] says"):
        await provider.answer(question(), heard.append)

    assert [delta.text for delta in heard if not delta.accepted] == ["so ", "far"]
    assert LABEL in (await ask(provider, question())).text


async def test_a_rule_that_only_fails_accepts_no_question() -> None:
    heard: list[Delta] = []

    with pytest.raises(Failing):
        await Offline(rules=[Rule(fail="failing")]).answer(question(), heard.append)

    assert heard == []


async def test_a_caller_that_is_told_to_slow_down_is_told_for_how_long() -> None:
    rules = [Rule(fail="slow_down", after=2.0)]  # type: ignore[arg-type]

    with pytest.raises(RateLimited) as caught:
        await said(rules, question())

    assert caught.value.after == 2.0


async def test_what_stands_far_behind_in_a_long_text_is_not_looked_for() -> None:
    rules = [Rule(match="needle", reply="found")]

    texts = [await said(rules, question("x" * before + "needle")) for before in (MAX_SEARCHED - 6, MAX_SEARCHED - 5)]

    assert [text == "found" for text in texts] == [True, False]


# -- The echo ----------------------------------------------------------------------------------------------------------


async def test_an_echo_says_that_it_is_one() -> None:
    image = Image(b"...", "image/png")
    asked = Question("offline", [Message("user", "earlier"), Message("user", "what is this?", [image, image])])

    assert await said([], asked) == "[offline echo, no model was asked] what is this? [2 images]"


async def test_an_echo_of_something_long_is_short() -> None:
    text = await said([], question("x" * 10 * MAX_ECHO))

    assert len(text) < 2 * MAX_ECHO
    assert text.endswith("…")


async def test_a_question_without_a_word_is_answered_too() -> None:
    assert await said([], Question("offline", [])) == LABEL


async def test_an_echo_matches_the_schema_that_the_answer_has_to_have() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}

    text = await said([], question(response_schema=schema | {"required": ["name", "age"]}))

    assert json.loads(text) == {"name": LABEL, "age": 0}


async def test_a_schema_that_is_too_hard_is_rejected_by_its_place() -> None:
    schema = {"type": "object", "properties": {"zip": {"type": "string", "pattern": "[0-9]{5}"}}, "required": ["zip"]}

    with pytest.raises(Rejected, match=r"no answer for response_schema: zip: pattern is not supported"):
        await said([], question(response_schema=schema))


async def test_a_required_tool_call_gets_the_least_arguments_that_are_valid() -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]}

    answer = await ask(Offline(), question(tools=[Tool("add", Text(""), parameters), ADD], tool_choice="required"))

    assert answer.calls == (ToolCall("call_1_0", "add", {"a": 3}),)
    assert answer.finish_reason == "tool_calls"


@pytest.mark.parametrize("tools", [[], [Tool("odd", parameters={"type": "string"})]])
async def test_a_tool_call_that_is_required_but_impossible_is_rejected(tools: list[Tool]) -> None:
    with pytest.raises(Rejected, match="no answer for a tool call"):
        await said([], question(tools=tools, tool_choice="required"))


# -- Limits and usage --------------------------------------------------------------------------------------------------


@given(st.text(), st.integers(0, 30), st.lists(st.text(max_size=3), max_size=3))
async def test_no_answer_is_longer_than_allowed_nor_has_a_stop_word_in_it(
    text: str, most: int, stop: list[str]
) -> None:
    heard: list[Delta] = []

    answer = await Offline().answer(question(text, max_tokens=most, stop=stop), heard.append)

    assert answer.usage.output <= most
    assert not any(word in answer.text for word in stop if word)
    assert "".join(delta.text for delta in heard) == answer.text


async def test_an_answer_that_is_cut_off_says_so() -> None:
    answers = [await ask(Offline(rules=[Rule(reply="one two three")]), question(max_tokens=most)) for most in (2, 4)]

    assert [(answer.text, answer.finish_reason) for answer in answers] == [
        ("one two ", "length"),
        ("one two three", "stop"),
    ]


async def test_a_call_that_is_longer_than_allowed_is_not_made() -> None:
    rules = [Rule(tool_calls=[CallTemplate("add", {"text": "x" * 100})])]

    answer = await ask(Offline(rules=rules), question(max_tokens=5))

    assert (answer.calls, answer.finish_reason, answer.usage.output) == ((), "length", 0)


async def test_tokens_are_counted_as_the_estimate_says() -> None:
    asked = question("four" * 10, system="a pirate")

    answer = await ask(Offline(rules=[Rule(reply="arr" * 4)]), asked)

    assert answer.usage == Usage(estimate_input_tokens(asked), 3)


# -- Speed and faults --------------------------------------------------------------------------------------------------


async def test_it_is_as_slow_as_it_is_told_and_says_each_word_in_its_time(autojump_clock: MockClock) -> None:
    provider = Offline(OfflineSettings(base=1, per_input=0.1, per_output=4), [Rule(reply="four eight!")])
    asked = question("a" * 24)
    assert estimate_input_tokens(asked) == 10
    times: list[float] = []
    start = trio.current_time()

    await provider.answer(asked, lambda _: times.append(trio.current_time() - start))

    assert times == pytest.approx([0, 2 + 5, 2 + 11])  # accepted, and two words


async def test_an_answer_that_is_only_a_call_is_accepted_at_once_and_takes_the_time_of_its_question_and_call(
    autojump_clock: MockClock,
) -> None:
    rules = [Rule(tool_calls=[CallTemplate("exec")])]
    heard, start = list[tuple[float, Delta]](), trio.current_time()
    asked = question("a" * 24)
    assert estimate_input_tokens(asked) == 10

    provider = Offline(OfflineSettings(base=1, per_input=0.1, per_output=4), rules)
    await provider.answer(asked, lambda delta: heard.append((trio.current_time() - start, delta)))

    assert heard == [(0, Delta(accepted=True)), (pytest.approx(2 + 6), Delta(unseen=6))]


async def test_questions_are_answered_side_by_side(autojump_clock: MockClock) -> None:
    provider = Offline(OfflineSettings(base=10))

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(ask, provider, question())

    assert trio.current_time() == pytest.approx(10, abs=0.1)


async def test_an_answer_is_given_up_at_once(autojump_clock: MockClock) -> None:
    heard: list[Delta] = []

    with trio.move_on_after(9) as scope:
        await Offline(OfflineSettings(per_output=4), [Rule(reply="one two three four")]).answer(
            question(), heard.append
        )

    assert scope.cancelled_caught
    assert [delta.text for delta in heard if not delta.accepted] == ["one ", "two "]


async def failures(settings: OfflineSettings, count: int) -> list[str]:
    provider, seen = Offline(settings), []
    for _ in range(count):
        try:
            await ask(provider, question())
            seen.append("")
        except (RateLimited, Failing) as error:
            seen.append(type(error).__name__)
    return seen


async def test_the_same_seed_lets_the_same_requests_fail() -> None:
    first, again, other = [await failures(OfflineSettings(faults=0.3, seed=seed), 400) for seed in (1, 1, 2)]

    assert first == again != other
    assert 80 < 400 - first.count("") < 160
    assert set(first) == {"", "RateLimited", "Failing"}


@pytest.mark.parametrize(("share", "failed"), [(0.0, 0), (1.0, 50)])
async def test_none_fail_or_all(share: float, failed: int) -> None:
    assert 50 - (await failures(OfflineSettings(faults=share), 50)).count("") == failed


async def test_a_fault_does_not_use_up_a_rule() -> None:
    provider = Offline(OfflineSettings(faults=0.5, seed=3), [Rule(reply="once", times=1)])
    texts: list[str] = []

    while not texts:
        try:
            texts.append((await ask(provider, question())).text)
        except (RateLimited, Failing):
            continue

    assert texts == ["once"]


# -- The file ----------------------------------------------------------------------------------------------------------


def written(directory: Path, text: str) -> str:
    file = directory / "rules.toml"
    file.write_text(dedent(text))
    return str(file)


async def test_rules_come_from_a_file(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        r"""
        [[rule]]
        match = '(\d+) times (\d+)'
        tool_calls = [{ name = "multiply", arguments = { a = '\1', b = '\2' } }]

        [[rule]]
        match = "busy"
        fail = "slow_down"
        after = "2s"
        times = 1
        """,
    )

    provider = Offline(OfflineSettings(), read_rules(path))

    assert (await ask(provider, question("6 times 7"))).calls[0].arguments == {"a": "6", "b": "7"}
    with pytest.raises(RateLimited):
        await ask(provider, question("busy?"))


def test_all_that_is_wrong_with_a_file_is_said_at_once_with_its_place(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        r"""
        [[rule]]
        match = '('
        system = '*'
        reply = 'x'

        [[rule]]
        match = '(\d+)'
        reply = 'three: \3'
        tool_calls = [
            { name = "add", arguments = { list = ['\g<who>'] } },
            { name = "add", arguments = { at = 1979-05-27 } },
        ]

        [[rule]]
        reply = 5
        times = 0
        matches = "x"

        [[rule]]
        fail = "rejected"
        after = "2s"
        tool_calls = [{ name = "add" }]

        [[rule]]
        match = "silence"
        """,
    )

    with pytest.raises(BadRules) as caught:
        read_rules(path)

    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}: rule[") for line in lines)
    assert [line.removeprefix(f"{path}: ") for line in lines] == [
        "rule[0].match: not a regular expression: missing ), unterminated subpattern at position 0",
        "rule[0].system: not a regular expression: nothing to repeat at position 0",
        "rule[1].reply: invalid group reference 3 at position 8",
        "rule[1].tool_calls[0].arguments.list[0]: unknown group name 'who'",
        "rule[1].tool_calls[1].arguments: date can't be written as JSON",
        "rule[2].reply: expected a string, got 5",
        "rule[2].times: expected a whole number from 1, got 0",
        "rule[2].matches: unknown field, did you mean match?",
        "rule[3].tool_calls: an answer that fails calls no tool",
        'rule[3].after: only with fail = "slow_down" or "failing"',
        "rule[4]: says nothing: expected reply, tool_calls, fail or finish_reason",
    ]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[[rule]\n", "not TOML: "),
        (b"\xff", "not UTF-8"),
        (b"rules = []", "rules: unknown field, did you mean rule?"),
        (b"x = " + b"[" * 5000 + b"]" * 5000, "nested too deep"),
        (b"#" * ((4 << 20) + 1), "larger than 4 MiB"),
    ],
)
def test_a_file_that_is_no_such_file_is_refused_by_name(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "rules.toml"
    file.write_bytes(content)

    with pytest.raises(BadRules) as caught:
        read_rules(str(file))

    assert str(caught.value).startswith(f"{file}: ")
    assert why in str(caught.value)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadRules, match=r"nothing\.toml: No such file or directory"):
        read_rules(str(tmp_path / "nothing.toml"))


def test_a_fifo_in_the_place_of_the_file_keeps_nothing_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rules.toml")

    with pytest.raises(BadRules, match=r"rules\.toml: not a regular file"):
        read_rules(str(tmp_path / "rules.toml"))
