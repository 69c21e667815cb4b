"""A complete answer is kept whatever its wrapping; what can't be understood fails at once, in the server's words."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from agentos.llm.providers.provider import (
    Delta,
    Denied,
    Failing,
    Message,
    ProviderError,
    Question,
    RateLimited,
    Rejected,
    Unforeseen,
)
from agentos_sdk.encoding import codec
from agentos_sdk.values import Tool
from tests.contracts.worlds import VendorWorld, anthropic, gemini, openai
from tests.llm.vendors.script import Raw, Refuses, Says, Text, Until
from tests.support.wire import PATIENCE

QUESTION = Question("a-model", [Message("user", "What is 6 times 7?")], tools=[Tool("now")])
MAKE = {"openai": openai, "anthropic": anthropic, "gemini": gemini}
STOP = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
DONE = b"data: [DONE]\n\n"


def deaf(delta: Delta) -> None:
    pass


@pytest.fixture
async def worlds(nursery: trio.Nursery) -> AsyncIterator[Mapping[str, VendorWorld]]:
    made = {name: await make(nursery) for name, make in MAKE.items()}
    yield made
    for world in made.values():
        await world.aclose()


def sse(*events: Any, end: bytes = b"\n\n") -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + end for event in events)


def delta(finish: str | None = None, **fields: Any) -> Mapping[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def named(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


FINE = delta(content="fine")
WHOLE = {"model": "m", "choices": [{"message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}]}
MESSAGE = {"type": "message", "content": [{"type": "text", "text": "fine"}], "stop_reason": "end_turn"}
START = named("message_start", message={"model": "m", "content": []})
SAID = named("content_block_delta", index=0, delta={"type": "text_delta", "text": "fine"})
CANDIDATE = {"candidates": [{"content": {"parts": [{"text": "fine"}]}, "finishReason": "STOP"}]}
THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "mm"}]}
ANSWERS = {
    "openai": {
        "two events in one": b"data: %s\ndata: [DONE]\n\n"
        % b"\ndata: ".join(json.dumps(each).encode() for each in (FINE, STOP)),
        "no end before [DONE]": sse(FINE) + DONE,
        "an end of no meaning": sse(delta("null", content="fine"), STOP) + DONE,
        "content in parts": sse(delta(content=[THOUGHT]), delta(content=[{"type": "text", "text": "fine"}]), STOP),
        "content as one part": sse(delta(content={"type": "text", "text": "fine"}), STOP),
        "parts that are text": sse(delta(content=["fi", {"type": "output_text", "text": "ne"}]), STOP),
        "a whole message": sse(WHOLE) + DONE,
        "a whole message after its pieces": sse(FINE, WHOLE) + DONE,
        "text beside no delta": sse({"choices": [{"text": "fine", "finish_reason": "stop"}]}),
        "a body": json.dumps(WHOLE).encode(),
        "an indented body": b"\r\n" + json.dumps(WHOLE, indent=2).encode(),
        "a body of lines": b"\n".join(json.dumps(each).encode() for each in (FINE, STOP)),
        "a body after a comment": b": PROCESSING\n\n" + json.dumps(WHOLE).encode(),
        "carriage returns": sse(FINE, STOP, end=b"\r\r"),
        "a byte order mark": b"\xef\xbb\xbf" + sse(FINE, STOP),
        "a heartbeat": b"event: heartbeat\ndata: heartbeat\n\ndata: ping\n\n" + sse(FINE, STOP) + DONE,
        "null and numbers": sse(None, 1, FINE, None, "x", STOP) + DONE,
        "text behind [DONE]": sse(FINE, STOP) + DONE + b"data: {oops\n\nbye\n",
        "an error behind the end": sse(FINE, STOP, {"error": {"message": "no usage", "code": 400}}) + DONE,
        "parts of no delta": sse(FINE, {"choices": [{"delta": None, "finish_reason": None}]}, STOP),
    },
    "anthropic": {
        "a body": json.dumps(MESSAGE).encode(),
        "a body with plain text": json.dumps({**MESSAGE, "content": "fine"}).encode(),
        "a whole message": named("message_start", message={**MESSAGE, "stop_reason": None}) + named("message_stop"),
        "no end": START + SAID + named("message_stop"),
        "pause_turn": START + SAID + named("message_delta", delta={"stop_reason": "pause_turn"}),
        "types beside the data": b"event: message_start\ndata: {}\n\nevent: ping\ndata: ping\n\n"
        b'event: content_block_delta\ndata: {"delta": {"type": "text_delta", "text": "fine"}}\n\n'
        b"event: message_stop\ndata: {}\n\n",
    },
    "gemini": {
        "a body": json.dumps(CANDIDATE).encode(),
        "an array": json.dumps([CANDIDATE], indent=1).encode(),
        "OTHER": sse({"candidates": [{"content": {"parts": [{"text": "fine"}]}, "finishReason": "OTHER"}]}),
        "an end in each piece": sse(
            {"candidates": [{"content": {"parts": [{"text": "fi"}]}, "finishReason": "FINISH_REASON_UNSPECIFIED"}]},
            {"candidates": [{"content": {"parts": [{"text": "ne"}]}, "finishReason": "STOP"}]},
        ),
    },
}


@pytest.mark.parametrize(
    ("name", "body"),
    [pytest.param(name, body, id=f"{name}: {what}") for name, each in ANSWERS.items() for what, body in each.items()],
)
async def test_a_complete_answer_is_kept(worlds: Mapping[str, VendorWorld], name: str, body: bytes) -> None:
    pieces = Says([Raw(body[:40]), Raw(body[40:])], finish=None)
    provider = await worlds[name].meet(Refuses(200, body=body), Says([Raw(body)], finish=None), pieces)

    for _ in range(3):
        answer = await provider.answer(QUESTION, deaf)

        assert (answer.text, answer.finish_reason, answer.calls) == ("fine", "stop", ())


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        *((word, "stop") for word in ("eos", "end_turn", "eos_token", "STOP", "COMPLETE", "something_new", "OTHER")),
        *((word, "length") for word in ("model_length", "MAX_TOKENS", "max_output_tokens")),
        *((word, "content_filter") for word in ("sensitive", "SAFETY", "content_filter: RECITATION")),
    ],
)
async def test_an_end_in_the_words_of_any_vendor_is_an_end(
    worlds: Mapping[str, VendorWorld], word: str, reason: str
) -> None:
    provider = await worlds["openai"].meet(Says([Text("fine")], finish=word))

    answer = await provider.answer(QUESTION, deaf)

    assert (answer.text, answer.finish_reason) == ("fine", reason)


async def test_an_end_that_says_that_it_broke_off_may_pass(worlds: Mapping[str, VendorWorld]) -> None:
    provider = await worlds["openai"].meet(Says([Text("fi")], finish="insufficient_system_resource"))

    with pytest.raises(Failing, match="insufficient_system_resource") as caught:
        await provider.answer(QUESTION, deaf)
    assert type(caught.value) is Failing


async def test_a_connection_that_stays_open_after_the_end_is_left(worlds: Mapping[str, VendorWorld]) -> None:
    provider = await worlds["openai"].meet(Says([Raw(sse(FINE, STOP) + DONE), Until()], finish=None))

    with trio.fail_after(PATIENCE):
        assert (await provider.answer(QUESTION, deaf)).text == "fine"


PAGE = b"""<!DOCTYPE html>
<html><head><title>Sign in</title><style>
data: 5
</style><script>if (1 < 2) {}</script></head><body><h1>Sign&nbsp;in first</h1></body></html>"""
BODIES: Mapping[str, tuple[str, bytes, type[ProviderError], str]] = {
    "an error": ("openai", b'{"error": {"message": "No endpoints", "code": 404}}', Rejected, "No endpoints"),
    "a kind": ("openai", b'{"error": {"message": "too long", "type": "invalid_request_error"}}', Rejected, "too long"),
    "a text": ("openai", b'{"error": "model x isn\'t there"}', Unforeseen, "model x isn't there"),
    "an object that is one": (
        "openai",
        b'{"object": "error", "message": "bad tool", "type": "BadRequestError", "code": 40001}',
        Rejected,
        "bad tool",
    ),
    "a detail": ("openai", b'{"detail": [{"loc": ["body"], "msg": "field required"}]}', Unforeseen, "field required"),
    "a list of errors": (
        "openai",
        b'{"success": false, "errors": [{"code": 7003, "message": "no route"}]}',
        Unforeseen,
        "no route",
    ),
    "a base_resp": (
        "openai",
        b'{"base_resp": {"status_code": 1004, "status_msg": "no such group"}}',
        Unforeseen,
        "group",
    ),
    "that of a vendor behind it": (
        "openai",
        b'{"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": "tools: too many"}}}',
        Rejected,
        "tools: too many",
    ),
    "one that passes": ("openai", b'{"error": {"message": "We are overloaded"}}', Failing, "overloaded"),
    "a limit": ("openai", b'{"error": {"message": "slowly", "type": "rate_limit_error"}}', RateLimited, "slowly"),
    "a key": ("openai", b'{"code": "InvalidApiKey", "message": "Invalid API-key"}', Denied, "does not accept the key"),
    "an event": ("openai", b'event: error\ndata: {"message": "no such template"}\n\n', Unforeseen, "no such template"),
    "an event of text": ("openai", b"event: error\ndata: out of cheese\n\n", Unforeseen, "out of cheese"),
    "within a choice": (
        "openai",
        sse({"choices": [{"delta": {}, "finish_reason": "error", "error": {"code": 502, "message": "it left"}}]}),
        Failing,
        "it left",
    ),
    "a page": ("openai", PAGE, Unforeseen, "Sign in Sign in first"),
    "plain text": ("openai", b"upstream says no\n", Unforeseen, "upstream says no"),
    "an event that can't be read": ("openai", b'data: {"a": oops}\n\n', Unforeseen, "oops"),
    "Anthropic's": (
        "anthropic",
        b'{"type": "error", "error": {"type": "invalid_request_error", "message": "too many images"}}',
        Rejected,
        "too many images",
    ),
    "an event of an imitator": ("anthropic", b'event: error\ndata: {"message": "no"}\n\n', Unforeseen, "error: no"),
    "a page of another": ("anthropic", PAGE, Unforeseen, "Sign in first"),
    "Gemini's in a list": (
        "gemini",
        b'[{"error": {"code": 400, "message": "bad schema", "status": "INVALID_ARGUMENT"}}]',
        Rejected,
        "bad schema",
    ),
    "Gemini's without a number": ("gemini", b'{"error": {"message": "no", "status": "NOT_FOUND"}}', Rejected, "no"),
}


@pytest.mark.parametrize("case", BODIES.values(), ids=BODIES.keys())
async def test_an_error_with_status_200_keeps_its_message(
    worlds: Mapping[str, VendorWorld], case: tuple[str, bytes, type[ProviderError], str]
) -> None:
    name, body, kind, message = case
    always = Says([Raw(body)], finish=None)  # also without marks of the prompt cache
    provider = await worlds[name].meet(always, always)

    with pytest.raises(ProviderError) as caught:
        await provider.answer(QUESTION, deaf)

    assert type(caught.value) is kind
    assert message in str(caught.value)


CHOICES = [
    {"index": 1, "delta": {"content": "no"}},
    {"index": 0, "delta": {"role": "assistant", "content": "fi"}},
    {"index": 1, "delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "now", "arguments": "{}"}}]}},
    {"index": 2, "delta": {"content": "t"}, "finish_reason": "length"},
    {"index": 1, "delta": {"reasoning_content": "hm"}, "finish_reason": "content_filter"},
    {"index": 0, "delta": {"content": "ne"}},
    {"index": 2, "error": {"message": "no", "code": 400}},
    {"index": 0, "delta": {}, "finish_reason": "stop"},
]
CANDIDATES = [
    {"index": 1, "content": {"parts": [{"text": "no"}, {"functionCall": {"name": "now"}}]}, "finishReason": "SAFETY"},
    {"content": {"parts": [{"text": "fine"}]}, "finishReason": "STOP"},
]
BODY_OF_TWO = [{"index": at, "message": {"content": ["fine", "no"][at]}, "finish_reason": "stop"} for at in (1, 0)]
SEVERAL = {
    "openai": {
        "events of one choice": sse(*({"choices": [each]} for each in CHOICES)) + DONE,
        "events of two choices": sse(*({"choices": CHOICES[at : at + 2]} for at in range(0, 8, 2))) + DONE,
        "numbers as text": sse(*({"choices": [{**each, "index": str(each["index"])}]} for each in CHOICES)),
        "a body": json.dumps({"choices": BODY_OF_TWO}).encode(),
    },
    "gemini": {
        "candidates in events": sse(*({"candidates": [each]} for each in CANDIDATES)),
        "candidates in a body": json.dumps({"candidates": CANDIDATES}).encode(),
    },
}


@pytest.mark.parametrize("name", SEVERAL)
async def test_of_several_choices_the_first_is_the_answer(worlds: Mapping[str, VendorWorld], name: str) -> None:
    provider = await worlds[name].meet(*(Says([Raw(body)], finish=None) for body in SEVERAL[name].values()))

    for what in SEVERAL[name]:
        heard: list[Delta] = []
        answer = await provider.answer(QUESTION, heard.append)
        told = ("".join(delta.text for delta in heard), answer.text, answer.calls, answer.finish_reason)
        assert told == ("fine", "fine", (), "stop"), what


EMPTY = {
    "openai": {
        "{}": '"choices": {}',
        "null": '"choices": null',
        "[]": '"choices": []',
        "42": '"choices": 42',
        '"fine"': '"choices": "fine"',
        '{"choices": []}': '"choices": {"choices": []}',
        '{"choices": null, "usage": {"prompt_tokens": 5}}': '"choices": {"choices": null, "usage',
        '{"choices": [{"index": 0}]}': '"choices": {"choices": [{',
        '{"choices": [{"index": 1, "message": {"content": "x"}}]}': '"choices" with index 0: {',
        "data: [DONE]\n\n": '"choices"',
        'data: {"choices": []}\n\ndata: [DONE]\n\n': '"choices"',
    },
    "gemini": {"{}": '"candidates": {}', "null": '"candidates": null', '[{"candidates": []}]': '"candidates": [{'},
    "anthropic": {"{}": '"content": {}', '{"type": "message"}': '"content": {', "[]": '"content": []'},
}


@pytest.mark.parametrize("name", EMPTY)
async def test_a_whole_response_without_an_answer_is_said_with_what_is_missing_and_not_asked_for_again(
    worlds: Mapping[str, VendorWorld], name: str
) -> None:
    provider = await worlds[name].meet(*(Says([Raw(body.encode())], finish=None) for body in EMPTY[name]))

    for body, missing in EMPTY[name].items():
        with pytest.raises(Unforeseen) as caught:
            await provider.answer(QUESTION, deaf)
        assert str(caught.value).startswith(f"{name} answered without a text, a call or an end in {missing}"), body


IMAGE = {"inlineData": {"data": "aGk=", "mimeType": "image/png"}}
OTHERS = {
    "openai": {
        "image_url": sse(delta(content=[{"type": "image_url", "image_url": {"url": "data:,"}}]), STOP),
        "images": sse(delta(content="", images=[{"type": "image_url"}]), STOP) + DONE,
        "audio": sse(delta(audio={"id": "a", "data": "aGk="}), STOP),
    },
    "anthropic": {
        "web_search_tool_result": START
        + named("content_block_start", index=0, content_block={"type": "web_search_tool_result", "content": []})
        + named("message_delta", delta={"stop_reason": "end_turn"}),
    },
    "gemini": {"inlineData": sse({"candidates": [{"content": {"parts": [IMAGE]}, "finishReason": "STOP"}]})},
}


@pytest.mark.parametrize("name", OTHERS)
async def test_an_answer_of_nothing_that_an_agent_can_be_given_is_no_empty_one(
    worlds: Mapping[str, VendorWorld], name: str
) -> None:
    provider = await worlds[name].meet(*(Says([Raw(body)], finish=None) for body in OTHERS[name].values()))

    for kind in OTHERS[name]:
        with pytest.raises(Unforeseen, match=f"{name} answered with nothing but {kind}, which"):
            await provider.answer(QUESTION, deaf)


async def test_what_an_answer_has_beside_its_text_undoes_nothing(worlds: Mapping[str, VendorWorld]) -> None:
    empty = [{"type": "text", "text": ""}, {"type": "thinking", "thinking": ""}]
    bodies = sse(delta(content="fine", images=[{}]), STOP), sse(delta(content=empty), STOP)
    provider = await worlds["openai"].meet(*(Says([Raw(body)], finish=None) for body in bodies))

    assert [(await provider.answer(QUESTION, deaf)).text for _ in bodies] == ["fine", ""]


@pytest.mark.parametrize("status", [400, 502])
async def test_a_page_is_told_by_its_text(worlds: Mapping[str, VendorWorld], status: int) -> None:
    page = PAGE.replace(b"first", b"f\xefrst")  # of ISO 8859-1
    provider = await worlds["openai"].meet(Refuses(status, body=page, headers={"content-type": "text/html"}))

    with pytest.raises(ProviderError, match=rf"openai: Sign in Sign in f\ufffdrst \({status}\)"):
        await provider.answer(QUESTION, deaf)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_told_with_its_target(worlds: Mapping[str, VendorWorld], status: int) -> None:
    target = {"location": "https://u:pass@other.invalid/v2/chat?key=secret"}
    provider = await worlds["openai"].meet(Refuses(status, body=b"", headers=target))

    with pytest.raises(Rejected, match=rf"redirects to https://other.invalid/v2/chat \({status}\)") as caught:
        await provider.answer(QUESTION, deaf)
    assert "pass" not in str(caught.value)


def call(arguments: Any = "{}", **more: Any) -> Mapping[str, Any]:
    return {"function": {"name": more.pop("name", "now"), "arguments": arguments}, **more}


CALLS: Mapping[str, tuple[list[Any], list[Any]]] = {
    "an object": ([[call({"a": 1}, index=0, id="a")]], [{"a": 1}]),
    "an object without ids": ([[call({"a": 1}), call({"a": 2})]], [{"a": 1}, {"a": 2}]),
    "text of text": ([[call(json.dumps('{"a": 1}'), index=0)]], [{"a": 1}]),
    "null": ([[call("null", index=0, id="a")]], [{}]),
    "white space": ([[call(" \n", index=0, id="a")]], [{}]),
    "raw line breaks": ([[call('{"a": "x\n\ty"}', index=0)]], [{"a": "x\n\ty"}]),
    "a name in pieces": (
        [[call("", index=0, id="a", name="no")], [call("", index=0, name="w")], [call("{}", index=0, name="")]],
        [{}],
    ),
    "numeric ids": ([[call(index=0, id=1), call(index=1, id=2)]], [{}, {}]),
    "indices as text": ([[call("{", index="0", id="a")], [{"index": "0", "function": {"arguments": "}"}}]], [{}]),
    "one id twice": ([[call(id="a"), call('{"b": 1}', id="a")]], [{}, {"b": 1}]),
    "one id twice, apart": ([[call('{"a": 1}', id="a")], [call('{"b": 1}', id="a")]], [{"a": 1}, {"b": 1}]),
    "pieces that repeat the id": ([[call('{"a"', id="a")], [call(": 1}", id="a")]], [{"a": 1}]),
    "one number, no ids": ([[call('{"a": 1}', index=0)], [call('{"b": 1}', index=0)]], [{"a": 1}, {"b": 1}]),
    "half a character": ([[call('{"a\\ud83d": ["\\ud83d x", "\\ud83d\\ude00"]}', index=0)]], [{"a�": ["� x", "😀"]}]),
    "half a character in a piece": (
        [[call('{"a": "\ud83d', index=0, id="a")], [call('\ude00"}', index=0, id="a", name="")]],
        [{"a": "😀"}],
    ),
}


@pytest.mark.parametrize("case", CALLS.values(), ids=CALLS.keys())
async def test_calls_are_understood_however_they_are_written(
    worlds: Mapping[str, VendorWorld], case: tuple[list[Any], list[Any]]
) -> None:
    pieces, expected = case
    provider = await worlds["openai"].meet(
        Says([Raw(sse(*(delta(tool_calls=piece) for piece in pieces), STOP) + DONE)], finish=None)
    )

    answer = await provider.answer(QUESTION, deaf)

    assert [(each.name, each.arguments) for each in answer.calls] == [("now", each) for each in expected]
    assert len({each.id for each in answer.calls}) == len(expected)
    assert all(isinstance(each.id, str) for each in answer.calls)
    codec.encode(answer).decode().encode()


async def test_a_call_as_it_was_sent_before_there_were_several(worlds: Mapping[str, VendorWorld]) -> None:
    old = {"name": "now", "arguments": '{"a": 1}'}
    provider = await worlds["openai"].meet(Says([Raw(sse(delta("function_call", function_call=old)))], finish=None))

    answer = await provider.answer(QUESTION, deaf)

    assert [(each.name, each.arguments) for each in answer.calls] == [("now", {"a": 1})]


async def test_arguments_of_other_vendors_may_be_text_or_objects_too(worlds: Mapping[str, VendorWorld]) -> None:
    block = {"type": "tool_use", "id": 7, "name": "now", "input": '{"a": 1}'}
    part = {"functionCall": {"id": 7, "name": "now", "args": '{"a": "\ud83d"}'}}
    claude = await worlds["anthropic"].meet(
        Says(
            [Raw(START + named("content_block_start", index="0", content_block=block) + named("message_stop"))],
            finish=None,
        )
    )
    google = await worlds["gemini"].meet(
        Says([Raw(sse({"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]}))], finish=None)
    )

    for provider, arguments in ((claude, {"a": 1}), (google, {"a": "�"})):
        [made] = (await provider.answer(QUESTION, deaf)).calls
        assert (made.id, made.arguments) == ("7", arguments)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["half \ud83d x"], "half � x"),
        (["a\ud83d", "\ude00b"], "a😀b"),
        (["a\ud83d", "\ud83d", "\ude00"], "a�😀"),
        (["last \ud83d"], "last �"),
        (["\ude00"], "�"),
    ],
)
async def test_halves_of_a_character_are_joined_or_replaced(
    worlds: Mapping[str, VendorWorld], pieces: list[str], text: str
) -> None:
    bodies = {
        "openai": sse(*(delta(content=piece) for piece in pieces), STOP),
        "anthropic": START
        + b"".join(
            named("content_block_delta", index=0, delta={"type": "text_delta", "text": piece}) for piece in pieces
        )
        + named("message_delta", delta={"stop_reason": "end_turn"}),
        "gemini": sse(
            *({"candidates": [{"content": {"parts": [{"text": piece}]}}]} for piece in pieces),
            {"candidates": [{"finishReason": "STOP"}]},
        ),
    }
    for name, body in bodies.items():
        provider = await worlds[name].meet(Says([Raw(body)], finish=None))
        heard: list[str] = []

        answer = await provider.answer(QUESTION, lambda delta, heard=heard: heard.append(delta.text))  # type: ignore[misc]

        assert answer.text == "".join(heard) == text


async def test_names_and_ids_have_no_halves_either(worlds: Mapping[str, VendorWorld]) -> None:
    piece = {**delta("stop", tool_calls=[call(index=0, id="c\ud83d", name="no\ud83dw")]), "model": "m\ud83d"}
    provider = await worlds["openai"].meet(Says([Raw(sse(piece))], finish=None))

    answer = await provider.answer(replace(QUESTION, tools=()), deaf)

    assert (answer.calls[0].id, answer.calls[0].name, answer.model) == ("c�", "no�w", "m�")
