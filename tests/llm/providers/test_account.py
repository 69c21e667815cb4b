"""What holds for all SDKs, over real sockets: what goes over the wire, and all the ways in which it breaks."""

import base64
import contextlib
import email.utils
import gc
import io
import logging
import socket
import time
import traceback
import warnings
from collections.abc import AsyncIterator, Iterator
from functools import partial
from urllib.parse import quote

import pytest
import trio
from attrs import evolve
from msgspec.structs import replace

from agentos.llm.providers.account import MAX_MESSAGE, ProviderAccount, retry_after_of
from agentos.llm.providers.choose import connect
from agentos.llm.providers.provider import (
    Delta,
    Denied,
    Failing,
    Image,
    Message,
    Provider,
    ProviderError,
    Question,
    RateLimited,
    Rejected,
)
from agentos.llm.settings import LLMSettings, Timeouts
from agentos_sdk.encoding import codec
from agentos_sdk.values import Tool, ToolCall, ToolChoice, Usage
from tests.contracts.worlds import VENDORS, VendorWorld
from tests.llm.vendors.script import Break, Called, Raw, Refuses, Says, Script, Silent, Text, Thoughts, Trouble, Until
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE

QUESTION = Question("a-model", [Message("user", "What is 6 times 7?")])


@pytest.fixture(params=VENDORS, ids=lambda make: make.__name__)
async def world(request: pytest.FixtureRequest, nursery: trio.Nursery) -> AsyncIterator[VendorWorld]:
    made: VendorWorld = await request.param(nursery)
    yield made
    await made.aclose()


def deaf(delta: Delta) -> None:
    pass


async def fails(provider: Provider, question: Question = QUESTION) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await provider.answer(question, deaf)
    return caught.value


async def test_the_question_arrives_as_it_was_put(world: VendorWorld) -> None:
    question = Question(
        model="a-model",
        messages=(
            Message("user", "What is this\u2028times 7? \U0001f600", images=(Image(bytes(range(256)), "image/png"),)),
            Message("assistant", "Let me see.", calls=(ToolCall("c1", "multiply", {"a": 6, "b": {"c": [None, "ü"]}}),)),
            Message("tool", "42, I believe", answers="c1"),
        ),
        system="Be exact.",
        temperature=0.0,
        max_tokens=100,
        thinking_level="medium",
        tools=(
            Tool(
                "multiply", codec.Text("of two"), {"type": "object", "properties": {"inlineData": {"type": "integer"}}}
            ),
            Tool("now"),
        ),
        tool_choice="required",
        stop=("STOP", "\n\n"),
        response_schema={
            "type": "object",
            "properties": {"maxTokens": {"type": "integer"}},
            "additionalProperties": False,
        },
    )

    await (await world.meet()).answer(question, deaf)

    assert world.vendor.exchanges[0].question == question


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
async def test_each_choice_of_tools_arrives(world: VendorWorld, choice: ToolChoice) -> None:
    question = replace(
        QUESTION,
        messages=(Message("user", "?"),),
        max_tokens=100,
        tools=(Tool("now", codec.Text("o'clock")),),
        tool_choice=choice,
    )

    await (await world.meet()).answer(question, deaf)

    assert world.vendor.exchanges[0].question == question


async def test_what_is_not_asked_for_is_not_sent(world: VendorWorld) -> None:
    await (await world.meet()).answer(QUESTION, deaf)

    body = world.vendor.exchanges[0].body
    assert ("max_tokens" in body) == (world.name == "anthropic")  # which requires it
    expected = {"contents", "generationConfig", "model", "messages", "stream", "stream_options", "max_tokens"}
    assert not body.keys() - expected
    assert not body.get("generationConfig")


async def test_usage_is_what_the_vendor_counted_thoughts_apart(world: VendorWorld) -> None:
    cached = Usage(20, 1, 300, 12, 5 if world.name != "gemini" else 0, 2 if world.name == "anthropic" else 0)
    provider = await world.meet(Says([Thoughts("well"), Text("42")], usage=cached))
    heard: list[Delta] = []

    answer = await provider.answer(QUESTION, heard.append)

    assert answer.usage == cached
    assert [delta.usage for delta in heard if delta.usage][-1] == cached
    assert answer.text == "42"
    assert sum(delta.unseen for delta in heard) == len("well")


async def test_usage_is_guessed_where_the_vendor_counts_nothing(world: VendorWorld) -> None:
    provider = await world.meet(Says([Thoughts("x" * 40), Text("y" * 40)], usage=None))

    usage = (await provider.answer(QUESTION, deaf)).usage

    assert usage.input > 0
    assert usage.generated == 20


async def test_the_model_that_answered_is_named(world: VendorWorld) -> None:
    provider = await world.meet(Says([Text("42")], model="a-model-0815"))

    assert (await provider.answer(QUESTION, deaf)).model == "a-model-0815"


async def test_calls_that_the_vendor_gives_no_ids_get_some(world: VendorWorld) -> None:
    provider = await world.meet(Says([Called(ToolCall("", "now", {})), Called(ToolCall("", "now", {"in": "UTC"}))]))

    calls = (await provider.answer(replace(QUESTION, tools=[Tool("now")]), deaf)).calls

    assert [call.arguments for call in calls] == [{}, {"in": "UTC"}]
    assert len({call.id for call in calls}) == 2
    assert all(call.id for call in calls)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        *((status, Rejected) for status in (301, 400, 404, 405, 413, 422)),
        *((status, Denied) for status in (401, 402, 403)),
        (429, RateLimited),
        *((status, Failing) for status in (408, 500, 502, 503, 504, 529)),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else value.__name__,
)
async def test_every_status_is_an_error_of_ours_and_is_not_retried(
    world: VendorWorld, status: int, error: type[ProviderError]
) -> None:
    provider = await world.meet(Refuses(status, "no, because", headers={"location": world.vendor.base_url}))

    told = await fails(provider)

    assert type(told) is error
    assert str(status) in str(told)
    assert ("because" in str(told)) == (error is not Denied)
    assert len(world.vendor.exchanges) == 1


@pytest.mark.parametrize(
    ("headers", "after"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "3"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_headers_say_when_to_come_back(
    world: VendorWorld, headers: dict[str, str], after: float | None, status: int
) -> None:
    told = await fails(await world.meet(Refuses(status, headers=headers)))

    assert isinstance(told, RateLimited | Failing)
    assert told.after == after


def test_a_date_says_when_to_come_back() -> None:
    at = email.utils.formatdate(time.time() + 100, usegmt=True)
    past = email.utils.formatdate(time.time() - 100, usegmt=True)

    assert 90 < (retry_after_of({"retry-after": at}) or 0) <= 100
    assert retry_after_of({"retry-after": past}) == 0


BROKEN: dict[str, Script] = {
    "reset before a word": Says([Break("reset")]),
    "reset": Says([Text("It is"), Break("reset")]),
    "cut": Says([Text("It is"), Break("cut")]),
    "no finish": Says([Text("It is")], finish=None),
    "nothing at all": Says(finish=None),
    "an error within": Says([Text("It is"), Trouble(503, "overloaded")]),
    "no JSON": Says([Text("It is"), Raw(b"data: {oops\n\n")]),
    "other JSON": Says([Text("It is"), Raw(b"data: [5]\n\n")]),
    "no UTF-8": Says([Text("It is"), Raw(b'data: {"a": "\xff"}\n\n')], finish=None),
    "a line without an end": Says([Raw(b"data: " + b"x" * (1 << 20)), *[Raw(b"x" * (1 << 20))] * 16]),
    "a page": Says([Raw(b"<html>Welcome to our router</html>")], finish=None),
    "an unknown end": Says([Text("It is")], finish="MALFORMED_FUNCTION_CALL"),
}  # fmt: skip


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN.keys())
async def test_a_stream_that_breaks_is_a_failure(world: VendorWorld, script: Script) -> None:
    provider = await world.meet(script, Says([Text("again")]))

    assert isinstance(await fails(provider), Failing)
    assert len(world.vendor.exchanges) == 1
    assert (await provider.answer(QUESTION, deaf)).text == "again"


async def test_trouble_within_a_stream_has_a_status_too(world: VendorWorld) -> None:
    provider = await world.meet(Says([Text("It"), Trouble(429, "slowly")]), Says([Text("It"), Trouble(400, "no")]))

    assert isinstance(await fails(provider), RateLimited)
    assert isinstance(await fails(provider), Rejected)


async def test_an_answer_that_is_whole_counts_though_the_farewell_is_missing(world: VendorWorld) -> None:
    provider = await world.meet(Says([Text("42"), Raw(_finish(world)), Break("cut")], finish=None))

    assert (await provider.answer(QUESTION, deaf)).text == "42"


def _finish(world: VendorWorld) -> bytes:
    if world.name == "gemini":
        return b'data: {"candidates": [{"finishReason": "STOP"}]}\n\n'
    if world.name == "anthropic":
        return b'data: {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}\n\n'
    return b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'


async def test_a_provider_that_cant_be_reached_is_a_failure(world: VendorWorld) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        choice = evolve(world.choice, base_url=f"http://127.0.0.1:{unused.getsockname()[1]}/v1")
        provider = await connect(choice, LLMSettings())

        told = await fails(provider)

        assert isinstance(told, Failing)
        assert "can't be reached" in str(told)
        await provider.aclose()


async def test_a_host_that_does_not_take_the_connection_is_given_up(world: VendorWorld) -> None:
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)  # and nobody accepts: what comes behind the first is not answered
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        choice = evolve(world.choice, base_url=f"http://127.0.0.1:{full.getsockname()[1]}/v1")
        provider = await connect(choice, LLMSettings(timeouts=Timeouts(connect=0.2)))

        assert "no connection in time" in str(await fails(provider))
        await provider.aclose()


async def test_an_answer_may_take_its_time(world: VendorWorld, nursery: trio.Nursery) -> None:
    """Only connecting has a deadline here: the others are the line's."""
    first, second = Until(), Until()
    provider = await world.meet(
        Says([first, Text("4"), second, Text("2")]), settings=LLMSettings(timeouts=Timeouts(connect=1))
    )

    async def later() -> None:
        await trio.sleep(1.2)
        first.event.set()
        await trio.sleep(1.2)
        second.event.set()

    nursery.start_soon(later)
    assert (await provider.answer(QUESTION, deaf)).text == "42"


STALLED: dict[str, Script] = {"silent": Silent(), "first token": Says([Until()]), "within": Says([Text("4"), Until()])}


@pytest.mark.parametrize("script", STALLED.values(), ids=STALLED.keys())
async def test_cancelling_closes_the_connection_at_once(world: VendorWorld, script: Script) -> None:
    provider = await world.meet(script, Says([Text("42")]))

    async with trio.open_nursery() as asking:
        asking.start_soon(provider.answer, QUESTION, deaf)
        with trio.fail_after(PATIENCE):
            while not world.vendor.exchanges:
                await trio.sleep(0.01)
            await world.vendor.exchanges[0].began.wait()
        asking.cancel_scope.cancel()

    with trio.fail_after(PATIENCE):
        await world.vendor.exchanges[0].left.wait()
    assert (await provider.answer(QUESTION, deaf)).text == "42"


@pytest.mark.parametrize("how", ["whole", "cancelled", "broken", "unheard"])
async def test_nothing_is_left_for_the_garbage_collector(world: VendorWorld, how: str) -> None:
    end = Break("cut") if how == "broken" else Text("2")
    provider = await world.meet(Says([Text("4"), *([Until()] if how in ("cancelled", "unheard") else []), end]))

    def hear(delta: Delta) -> None:
        if delta.text and how == "cancelled":
            scope.cancel()
        if delta.text and how == "unheard":
            raise LookupError

    gc.collect()
    gc.freeze()  # the second collection, and that of the next row, goes through what was made since
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with trio.CancelScope() as scope, contextlib.suppress(LookupError, Failing):
            await provider.answer(QUESTION, hear)
        await provider.aclose()
        gc.collect()
        await trio.lowlevel.checkpoint()

    assert not [str(warning.message) for warning in caught]


async def test_a_listener_may_fail_and_the_connection_is_closed(world: VendorWorld) -> None:
    provider = await world.meet(Says([Text("4"), Until()]), Says([Text("42")]))

    def hear(delta: Delta) -> None:
        if delta.text:
            raise LookupError("not for the provider to know")

    with pytest.raises(LookupError):
        await provider.answer(QUESTION, hear)

    with trio.fail_after(PATIENCE):
        await world.vendor.exchanges[0].left.wait()
    assert (await provider.answer(QUESTION, deaf)).text == "42"


async def test_connections_are_used_again(world: VendorWorld) -> None:
    provider = await world.meet()

    for _ in range(3):
        await provider.answer(QUESTION, deaf)

    assert world.vendor.connections == 1


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """All that anybody logs, however small."""
    text = io.StringIO()
    handler, root = logging.StreamHandler(text), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield text
    root.setLevel(level)
    root.removeHandler(handler)


@pytest.mark.parametrize("status", [400, 401, 429, 503])
@pytest.mark.parametrize("how", ["header", "body", "stream"])
async def test_a_key_is_never_told(world: VendorWorld, logged: io.StringIO, status: int, how: str) -> None:
    key = world.vendor.key
    said = f"the key {key}, yes {key} " + "x" * (MAX_MESSAGE - len(key) - 40) + key
    script: dict[str, Script] = {
        "header": Refuses(status, said, headers={"x-key": key}),
        "body": Refuses(status, body=said.encode()),
        "stream": Says([Text("It"), Trouble(status, said)]),
    }
    provider = await world.meet(script[how])

    told = await fails(provider)

    everything = "".join([str(told), repr(told), repr(provider), repr(world.choice), *traceback.format_exception(told)])
    assert key[:10] not in everything + logged.getvalue()
    assert len(str(told)) < MAX_MESSAGE + 100
    assert "\n" not in str(told)


async def test_a_vendor_that_repeats_the_key_in_an_answer_tells_no_agent(world: VendorWorld) -> None:
    key, heard = world.vendor.key, list[str]()
    cut = Raw(f": {key[:5]}".encode()), Raw(f"{key[5:]}\n\n".encode())  # a comment, in two chunks
    call = ToolCall("c1", "now", {"to": "x", key: [f"Bearer {key}"]})  # its arguments come in two pieces
    provider = await world.meet(Says([Text(f"You sent {key}, {key}"), *cut, Text("."), Called(call)], model=f"m-{key}"))

    answer = await provider.answer(QUESTION, lambda delta: heard.append(delta.text))

    assert answer.text == "".join(heard) == "You sent •••, •••."
    assert (answer.calls[0].arguments, answer.model) == ({"to": "x", "•••": ["Bearer •••"]}, "m-•••")


@pytest.mark.parametrize("key", ["none", "sk-no-key-required", "not-needed"])
async def test_a_key_that_is_a_word_stays_in_answers(key: str) -> None:
    redactor = ProviderAccount("vendor", key, "KEY").make_redactor()

    assert redactor.feed(f"data: {key}\n\n".encode()) + redactor.end() == f"data: {key}\n\n".encode()


async def test_a_key_in_an_answer_that_is_no_http_is_never_told(world: VendorWorld, nursery: trio.Nursery) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(f"HTTP/1.1 {world.vendor.key}\r\n\r\n".encode())
        await stream.aclose()

    [listener] = await nursery.start(partial(trio.serve_tcp, host="127.0.0.1"), answer, 0)
    choice = evolve(world.choice, base_url=f"http://127.0.0.1:{listener.socket.getsockname()[1]}/v1")
    provider = await connect(choice, LLMSettings())

    assert str(await fails(provider)).endswith("broke the connection: message withheld, it contains the key")
    await provider.aclose()


async def test_a_wrong_key_is_denied_in_our_words(world: VendorWorld) -> None:
    provider = await world.meet()
    world.vendor.key = "another-key-than-before"

    told = await fails(provider)

    assert isinstance(told, Denied)
    assert world.choice.variable in str(told)
    assert "canary" not in str(told)  # not even the beginning
    assert "*" not in str(told)


KEY = "sk-Canary4711/Never+Show=this~Key"
SHOWN = {
    "as it is": KEY,
    "in a host name": KEY.lower(),
    "masked": f"{KEY[:15]}***{KEY[-4:]}",
    "in base64": base64.b64encode(KEY.encode()).decode(),
    "as a password": base64.b64encode(f"user:{KEY}".encode()).decode(),
    "in base64 of URLs": base64.urlsafe_b64encode(f"Bearer {KEY}".encode()).decode(),
    "in hexadecimal digits": KEY.encode().hex().upper(),
    "in a URL": quote(quote(KEY, safe=""), safe=""),
    "as character references": "".join(f"&#x{ord(each):x};" for each in KEY),
    "escaped": "".join(f"\\u{ord(each):04x}" for each in KEY),
    "in short lines": "\n".join(KEY[at : at + 5] for at in range(0, len(KEY), 5)),
    "with markup in it": "<b/>".join(KEY),
    "with invisible characters": "\u200b".join(KEY),
}


@each_row("shown", SHOWN.values(), ids=SHOWN.keys())
def test_a_message_with_the_key_is_withheld_however_it_is_written(shown: str) -> None:
    account = ProviderAccount("openai", KEY, "OPENAI_API_KEY")

    assert account.clean_message(f"Authorization: Bearer {shown}, and more") == "message withheld, it contains the key"


GUESSED = {  # how keys begin, which is known, and eight characters more
    "sk-Canary471": KEY,
    "sk-proj-Abcdefgh": "sk-proj-Abcdefghijklmnopqrst",
    "sk-ant-api03-Abcdefgh": "sk-ant-api03-Abcdefghijklmnopqrst",
    "AIzaSyAbcdefgh": "AIzaSyAbcdefghijklmnopqrst",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.Abcdefgh": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.Abcdefghijklmnopqrst",
}


@each_row("guess, key", GUESSED.items(), ids=GUESSED)
def test_no_message_tells_whether_a_guess_at_a_few_characters_of_the_key_is_right(guess: str, key: str) -> None:
    account = ProviderAccount("openai", key, "OPENAI_API_KEY")

    for written in (guess, guess.upper(), guess.encode().hex(), base64.b64encode(guess.encode()).decode()):
        said = f"the model {written} doesn't exist"
        assert account.clean_message(said) == said


@each_row("key, said", [(KEY, "no sk-, no Key, no Show"), ("abc", "a model of YWJj 616263"), ("a", "61"), (None, "x")])
def test_a_message_without_the_key_is_shown(key: str | None, said: str) -> None:
    assert ProviderAccount("openai", key, "OPENAI_API_KEY").clean_message(said) == said
