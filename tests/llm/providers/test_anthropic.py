"""What is Anthropic's own: blocks of thoughts, levels and budgets of thinking, schemas, cached input, its errors."""

import json
import warnings
from collections.abc import AsyncIterator, Mapping
from itertools import pairwise
from typing import Any

import pytest
import trio
from attrs import evolve
from msgspec.structs import replace

from agentos.llm.answers.sampling import Effort, Sampling
from agentos.llm.providers.choose import connect
from agentos.llm.providers.provider import Delta, Denied, Failing, Image, Message, Question, RateLimited, Rejected
from agentos.llm.settings import LLMSettings
from agentos_sdk.values import Tool, ToolCall, Usage
from tests.contracts.worlds import VendorWorld, anthropic, gemini
from tests.llm.vendors.anthropic_wire import SIGNATURE
from tests.llm.vendors.script import Called, Raw, Refuses, Says, Text, Thoughts, Trouble

QUESTION = Question("claude-haiku-4-5", (Message("user", "What is 6 times 7?"),))
NOW = Tool("now")
THOUGHT = {"type": "thinking", "thinking": "Which time zone?", "signature": SIGNATURE}


@pytest.fixture
async def world(nursery: trio.Nursery) -> AsyncIterator[VendorWorld]:
    made = await anthropic(nursery)
    yield made
    await made.aclose()


def deaf(delta: object) -> None:
    pass


def raw(*events: Mapping[str, Any]) -> Says:
    return Says([Raw(f"data: {json.dumps(event)}\n\n".encode()) for event in events], finish=None)


def block(index: int, **fields: Any) -> Mapping[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": fields}


def ended(reason: str = "end_turn", **counted: Any) -> Mapping[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, **({"usage": counted} if counted else {})}


async def asked(world: VendorWorld, question: Question) -> Mapping[str, Any]:
    """The body of the request for a question."""
    await (await world.meet()).answer(question, deaf)
    return world.vendor.exchanges[-1].body


async def test_thoughts_go_back_with_the_calls_that_followed_them(world: VendorWorld) -> None:
    calls = [Called(ToolCall("c1", "now", {})), Called(ToolCall("c2", "now", {"in": "UTC"}))]
    provider = await world.meet(Says([Thoughts("Which time zone?"), *calls]))
    question = replace(QUESTION, tools=(NOW,), thinking_level="low")

    answered = (await provider.answer(question, deaf)).calls
    turns = (Message("assistant", "Well.", calls=answered), Message("tool", "noon", answers="c1"))
    body = await asked(world, replace(question, messages=(*QUESTION.messages, *turns)))

    assert [block["type"] for block in body["messages"][1]["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert body["messages"][1]["content"][0] == THOUGHT


async def test_thoughts_that_are_hidden_go_back_as_they_came(world: VendorWorld) -> None:
    hidden = {"type": "redacted_thinking", "data": "aGlkZGVu"}
    call = block(1, type="tool_use", id="c1", name="now", input={})
    provider = await world.meet(raw(block(0, **hidden), call, ended("tool_use")))

    calls = (await provider.answer(replace(QUESTION, tools=(NOW,)), deaf)).calls
    body = await asked(world, replace(QUESTION, tools=(NOW,), messages=(Message("assistant", calls=calls),)))

    assert body["messages"][0]["content"][0] == hidden


@pytest.mark.parametrize("kind", ["thinking", "redacted_thinking"])
async def test_thoughts_that_are_withheld_are_a_piece_of_the_answer(world: VendorWorld, kind: str) -> None:
    heard: list[Delta] = []
    provider = await world.meet(raw(block(0, type=kind), {"type": "ping"}, block(1, type="text", text="42"), ended()))

    await provider.answer(QUESTION, heard.append)

    pieces = [(delta.begun, delta.text) for delta in heard if delta.begun or delta.text]
    assert pieces == [(True, ""), (False, "42")]


@pytest.mark.parametrize("kind", ["thinking", "signature", "redacted"])
async def test_thoughts_have_an_end(world: VendorWorld, kind: str) -> None:
    piece = "x" * (1 << 19)
    pieces = {
        "thinking": {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": piece}},
        "signature": {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "signature_delta", "signature": piece},
        },
        "redacted": block(0, type="redacted_thinking", data=piece),
    }
    provider = await world.meet(raw(block(0, type="thinking", thinking=""), *[pieces[kind]] * 9, ended()))

    with pytest.raises(Failing, match="thinks more than 4 MiB"):
        await provider.answer(QUESTION, deaf)


@pytest.mark.parametrize("signature", ["[", "[1]", '[{"type": []}]', "[" * 3000 + "]" * 3000, f"[{'9' * 5000}]"])
async def test_a_signature_that_was_changed_is_refused(world: VendorWorld, signature: str) -> None:
    provider = await world.meet()
    message = Message("assistant", calls=[ToolCall("c1", "now", {}, signature)])

    with pytest.raises(Rejected, match="can't be asked this: the signature of a tool call is not the one that came"):
        await provider.answer(replace(QUESTION, messages=[*QUESTION.messages, message]), deaf)


async def test_a_schema_that_the_package_fails_on_is_refused_without_its_words(world: VendorWorld) -> None:
    provider = await world.meet()

    with pytest.raises(Rejected, match="its package fails on a schema"):
        await provider.answer(replace(QUESTION, response_schema={"type": "object", "properties": {"a": []}}), deaf)


async def test_a_signature_of_another_vendor_is_left_out(world: VendorWorld, nursery: trio.Nursery) -> None:
    google = await gemini(nursery)
    ours = ToolCall("c1", "now", {}, signature=json.dumps([THOUGHT]))
    theirs = ToolCall("c1", "now", {}, signature="c2lnbmVk")

    body = await asked(world, replace(QUESTION, tools=(NOW,), messages=(Message("assistant", calls=(theirs,)),)))
    await (await google.meet()).answer(replace(QUESTION, messages=(Message("assistant", calls=(ours,)),)), deaf)

    assert [block["type"] for block in body["messages"][0]["content"]] == ["tool_use"]
    assert google.vendor.exchanges[0].question.messages[0].calls[0].signature is None
    await google.aclose()


@pytest.mark.parametrize(
    "signature",
    ['[{"type": "document", "source": {"type": "url", "url": "http://10.0.0.1/"}}]', '[{"type": "thinking"}]', "[["],
)
async def test_a_signature_holds_nothing_but_thoughts(world: VendorWorld, signature: str) -> None:
    call = ToolCall("c1", "now", {}, signature=signature)
    provider = await world.meet()

    with pytest.raises(Rejected, match="can't be asked this"):
        await provider.answer(replace(QUESTION, messages=(Message("assistant", calls=(call,)),)), deaf)

    assert not world.vendor.exchanges


@pytest.mark.parametrize(
    ("model", "level", "max_tokens", "thinking", "effort"),
    [
        ("claude-sonnet-5-5", "low", None, {"type": "adaptive"}, "low"),
        ("claude-opus-4-6", "high", 500, {"type": "adaptive"}, "high"),
        ("a-model-of-ones-own", "medium", None, {"type": "adaptive"}, "medium"),
        ("claude-haiku-4-5-20251001", "low", None, {"type": "enabled", "budget_tokens": 1024}, None),
        ("claude-opus-4-20250514", "high", None, {"type": "enabled", "budget_tokens": 24576}, None),
        ("claude-haiku-4-5", "high", 5000, {"type": "enabled", "budget_tokens": 2500}, None),
        ("claude-haiku-4-5", "low", 2000, None, None),
        ("claude-haiku-4-5", "none", 2000, {"type": "disabled"}, None),
        ("claude-opus-4-6", "none", None, {"type": "disabled"}, None),
        ("claude-opus-4-6", "minimal", None, {"type": "adaptive"}, "low"),
        ("claude-opus-4-6", "xhigh", None, {"type": "adaptive"}, "high"),
        ("claude-3-5-haiku-20241022", "none", None, None, None),
        ("claude-3-5-haiku-20241022", "high", None, None, None),
        ("claude-sonnet-5-5", None, None, None, None),
    ],
)
async def test_models_think_by_levels_or_budgets(
    world: VendorWorld,
    model: str,
    level: Effort | None,
    max_tokens: int | None,
    thinking: Mapping[str, Any] | None,
    effort: str | None,
) -> None:
    question = replace(QUESTION, model=model, thinking_level=level, max_tokens=max_tokens)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The model", DeprecationWarning)  # the SDK's, for models that end soon
        body = await asked(world, question)

    assert body.get("thinking") == thinking
    assert body.get("output_config", {}).get("effort") == effort
    assert body["max_tokens"] > (thinking or {}).get("budget_tokens", 0)
    assert max_tokens in (None, body["max_tokens"])


async def test_sampling_is_asked_for_in_the_version_of_the_protocol_that_has_it(world: VendorWorld) -> None:
    await asked(world, QUESTION)
    body = await asked(world, replace(QUESTION, temperature=0.5, sampling=Sampling(top_p=0.9, seed=7)))

    plain, sampled = (exchange.headers["anthropic-version"] for exchange in world.vendor.exchanges)
    assert (body["temperature"], body["top_p"]) == (0.5, 0.9)
    assert "seed" not in body
    assert sampled == "2023-06-01" < plain


async def test_images_of_tools_stay_with_their_results(world: VendorWorld) -> None:
    image = Image(b"\x89PNG", "image/png")
    calls = (ToolCall("c1", "see", {}), ToolCall("c2", "see", {}))
    messages = (
        Message("assistant", calls=calls),
        Message("tool", "this", images=(image,), answers="c1"),
        Message("tool", "", images=(image,), answers="c2"),
        Message("assistant"),
        Message("user", "Well?"),
    )

    body = await asked(world, replace(QUESTION, messages=messages, tools=(Tool("see"),)))

    assert world.vendor.exchanges[0].question.messages == (*messages[:3], messages[4])
    assert [turn["role"] for turn in body["messages"]] == ["assistant", "user", "user"]


async def test_calls_are_made_one_by_one_if_asked(world: VendorWorld) -> None:
    body = await asked(world, replace(QUESTION, tools=(NOW,), sampling=Sampling(parallel_tool_calls=False)))

    assert body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}


async def test_a_schema_is_closed_and_its_limits_are_described(world: VendorWorld) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}

    body = await asked(world, replace(QUESTION, response_schema=schema))

    assert body["output_config"]["format"] == {
        "type": "json_schema",
        "schema": {
            "type": "object",
            "properties": {"n": {"type": "integer", "description": "{minimum: 1}"}},
            "required": ["n"],
            "additionalProperties": False,
        },
    }
    assert schema["properties"] == {"n": {"type": "integer", "minimum": 1}}


async def test_cached_input_counts_and_there_are_no_more_thoughts_than_were_generated(world: VendorWorld) -> None:
    cached: dict[str, Any] = {"cache_creation_input_tokens": 3, "cache_read_input_tokens": 20, "input_tokens": 5}
    details: dict[str, Any] = {"output_tokens_details": {"thinking_tokens": 8}}
    began = {"type": "message_start", "message": {"usage": {**cached, "output_tokens": 1}}}
    provider = await world.meet(
        raw(began, ended(output_tokens=7, **details)), raw(ended(output_tokens=7, **cached)), raw(began, ended())
    )

    usages = [(await provider.answer(QUESTION, deaf)).usage for _ in range(3)]

    assert usages == [Usage(28, 0, 7, 20, 3), Usage(28, 7, 0, 20, 3), Usage(28, 0, 0, 20, 3)]


async def test_counts_at_the_end_replace_those_of_the_beginning_where_there_are_any(world: VendorWorld) -> None:
    kept = {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 30}
    first = {
        "input_tokens": 5,
        "cache_read_input_tokens": 20,
        "cache_creation_input_tokens": 40,
        "cache_creation": kept,
    }
    began = {"type": "message_start", "message": {"usage": {**first, "output_tokens": 1}}}
    provider = await world.meet(
        raw(began, ended(input_tokens=6, cache_read_input_tokens=None, output_tokens=7)),
        raw(began, ended(input_tokens=5, cache_creation_input_tokens=25, output_tokens=7)),
    )
    heard: list[Delta] = []

    usages = [(await provider.answer(QUESTION, heard.append)).usage for _ in range(2)]

    assert usages == [Usage(66, 7, 0, 20, 40, 30), Usage(50, 7, 0, 20, 25, 25)]
    known = [delta.usage for delta in heard if delta.usage]
    assert known[1] == Usage(65, 0, 0, 20, 40, 30), "before the end, for an answer that is cut off"


@pytest.mark.parametrize(
    ("word", "reason"),
    [("stop_sequence", "stop"), ("model_context_window_exceeded", "length"), ("refusal", "content_filter")],
)
async def test_every_end_has_a_reason(world: VendorWorld, word: str, reason: str) -> None:
    provider = await world.meet(Says([Text("It is")], finish=word))

    assert (await provider.answer(QUESTION, deaf)).finish_reason == reason


@pytest.mark.parametrize(
    ("kind", "error"),
    [("overloaded_error", Failing), ("rate_limit_error", RateLimited), ("billing_error", Denied), ("new", Failing)],
)
async def test_errors_within_a_stream_have_names(world: VendorWorld, kind: str, error: type[Exception]) -> None:
    provider = await world.meet(raw({"type": "error", "error": {"type": kind, "message": "no"}}))

    with pytest.raises(error):
        await provider.answer(QUESTION, deaf)


async def test_an_overload_is_a_failure_that_says_how_long_to_wait(world: VendorWorld) -> None:
    provider = await world.meet(Refuses(529, "Overloaded", after=3.5), Says([Trouble(529, "Overloaded")]))

    with pytest.raises(Failing, match="Overloaded") as caught:
        await provider.answer(QUESTION, deaf)
    assert caught.value.after == 3.5
    with pytest.raises(Failing, match="Overloaded"):
        await provider.answer(QUESTION, deaf)


async def test_an_account_that_is_used_up_is_the_operators_to_fill(world: VendorWorld) -> None:
    provider = await world.meet(Refuses(400, "Your credit balance is too low to access the Anthropic API."))

    with pytest.raises(Denied, match="used up") as caught:
        await provider.answer(QUESTION, deaf)
    assert caught.value.status == 402


async def test_a_server_of_ones_own_needs_no_key(world: VendorWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "not-for-this-server")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    world.vendor.key = "none"
    provider = await connect(evolve(world.choice, key=None), LLMSettings())
    world.vendor.will(Says([Text("none of it")]), Refuses(401))

    assert (await provider.answer(QUESTION, deaf)).text == "none of it"
    with pytest.raises(Denied, match="set ANTHROPIC_API_KEY"):
        await provider.answer(QUESTION, deaf)
    await provider.aclose()


def prefixes(body: Mapping[str, Any]) -> tuple[list[Any], list[int]]:
    """The blocks of a prompt as Anthropic's cache compares them, and the places of those that are marked."""
    turns = [(turn["role"], turn["content"]) for turn in body["messages"]]
    blocks = [(role, block) for role, content in turns for block in as_list(content)]
    everything = [*body.get("tools", ()), *as_list(body.get("system") or []), *blocks]
    marked = [place for place, each in enumerate(everything) if "cache_control" in str(each)]
    return [str(each).replace(f", 'cache_control': {KEPT}", "") for each in everything], marked


def as_list(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


KEPT = {"type": "ephemeral"}


async def test_each_step_of_a_loop_finds_what_the_one_before_has_written(world: VendorWorld) -> None:
    calls = [ToolCall(f"c{number}", "now", {}) for number in range(15)]
    say = Says([Thoughts("Which time zone?"), Text("Well."), *map(Called, calls)])
    provider = await world.meet(say, say, say)
    asked = replace(QUESTION, system="Be exact.", tools=(NOW,), thinking_level="low")
    for _ in range(3):
        answer = await provider.answer(asked, deaf)
        results = [Message("tool", "noon", answers=call.id) for call in answer.calls]
        turn = Message("assistant", answer.text, calls=answer.calls)
        asked = replace(asked, messages=[*asked.messages, turn, *results])

    steps = [prefixes(exchange.body) for exchange in world.vendor.exchanges]
    for (earlier, ends), (later, reached) in pairwise(steps):
        assert later[: ends[-1] + 1] == earlier[: ends[-1] + 1]
        assert ends[-1] in reached, "however many blocks were added"
    assert [len(marked) for _, marked in steps] == [3, 4, 4]


async def test_a_server_that_refuses_marks_is_asked_without(world: VendorWorld) -> None:
    provider = await world.meet()
    asked = replace(QUESTION, system="Be exact.")
    refused = Refuses(400, "system.0.cache_control: Extra inputs are not permitted")

    world.vendor.will(refused, Refuses(400, "max_tokens: too many"))
    with pytest.raises(Rejected, match="max_tokens"):
        await provider.answer(asked, deaf)
    world.vendor.will(refused, Says([Text("42")]), Says([Text("43")]))
    answers = [(await provider.answer(asked, deaf)).text for _ in range(2)]

    assert answers == ["42", "43"]
    marked = ["cache_control" in str(exchange.body) for exchange in world.vendor.exchanges]
    assert marked == [True, False, True, False, False]


STRICT = [  # what servers say that know no marks, or no blocks
    {"detail": [{"type": "string_type", "loc": ["body", "system"], "msg": "Input should be a valid string"}]},
    {"error": "json: cannot unmarshal array into Go struct field MessagesRequest.system of type string"},
    {"detail": [{"type": "extra_forbidden", "loc": ["body", "tools", 0, "cache_control"], "msg": "Extra inputs"}]},
    {},
]


@pytest.mark.parametrize("said", STRICT)
async def test_a_server_that_refuses_marks_in_other_words_is_asked_without(world: VendorWorld, said: object) -> None:
    refused = Refuses(422, body=json.dumps(said).encode())
    provider = await world.meet(refused, Says([Text("42")]), Says([Text("43")]))

    answers = [(await provider.answer(replace(QUESTION, system="Be exact."), deaf)).text for _ in range(2)]

    assert answers == ["42", "43"]
    assert ["cache_control" in str(each.body) for each in world.vendor.exchanges] == [True, False, False]


async def test_a_refusal_that_is_not_for_marks_is_asked_once_where_they_are_taken(world: VendorWorld) -> None:
    asked, refused = replace(QUESTION, system="Be exact."), Refuses(400, "prompt is too long")
    provider = await world.meet(Says([Text("42")]), refused, refused)
    await provider.answer(asked, deaf)

    for question in (asked, QUESTION):  # the second has nothing to mark
        with pytest.raises(Rejected, match="prompt is too long"):
            await provider.answer(question, deaf)

    assert len(world.vendor.exchanges) == 3


async def test_an_answer_that_has_begun_is_not_asked_for_without_marks(world: VendorWorld) -> None:
    provider = await world.meet(Says([Text("4"), Trouble(400, "cache_control: what is that?")]), Says([Text("42")]))
    heard: list[str] = []

    with pytest.raises(Rejected, match="what is that"):
        await provider.answer(replace(QUESTION, system="Be exact."), lambda delta: heard.append(delta.text))

    assert "".join(heard) == "4"


async def test_a_programs_own_marks_are_not_taken_away(world: VendorWorld) -> None:
    provider = await world.meet(*[Refuses(400, "cache_control: a maximum of 4 blocks")] * 2)

    with pytest.raises(Rejected, match="cache_control"):
        await provider.answer(replace(QUESTION, cache_mark="1h"), deaf)

    assert [exchange.body["cache_control"] for exchange in world.vendor.exchanges] == [
        {"type": "ephemeral", "ttl": "1h"}
    ]
