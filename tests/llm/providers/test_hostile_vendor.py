"""What a server can do to whoever listens, over real sockets: too much, too often, too deep, and plain lies."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from agentos.llm.answers.called_tools import MAX_ARGUMENT_DEPTH, MAX_CALLS
from agentos.llm.answers.malformed import MAX_CONTAINERS, MAX_EVENT
from agentos.llm.providers.account import ProviderAccount
from agentos.llm.providers.provider import MAX_MODEL, Delta, Failing, Message, Question, Rejected
from agentos.llm.settings import Timeouts
from agentos_sdk.values import Usage
from tests.contracts.worlds import VENDORS, VendorWorld, openai
from tests.llm.vendors.script import Raw, Refuses, Says, Text
from tests.support.clients import transport
from tests.support.wire import PATIENCE

QUESTION = Question("a-model", [Message("user", "What is 6 times 7?")])


@pytest.fixture(params=VENDORS, ids=lambda make: make.__name__)
async def world(request: pytest.FixtureRequest, nursery: trio.Nursery) -> AsyncIterator[VendorWorld]:
    made: VendorWorld = await request.param(nursery)
    yield made
    await made.aclose()


@pytest.fixture
async def imitator(nursery: trio.Nursery) -> AsyncIterator[VendorWorld]:
    made = await openai(nursery)
    yield made
    await made.aclose()


def deaf(delta: Delta) -> None:
    pass


def events(*pieces: str) -> Says:
    """A stream of these, as they are, and then the vendor's own end."""
    return Says([Raw(f"data: {piece}\n\n".encode()) for piece in pieces], usage=None)


def whole_call(world: VendorWorld, name: str = '"now"', id_: str = '"c1"', arguments: str = "{}") -> str:
    """An event with a call, of which every part is JSON."""
    if world.name == "gemini":
        call = f'{{"functionCall": {{"id": {id_}, "name": {name}, "args": {arguments}}}}}'
        return f'{{"candidates": [{{"content": {{"parts": [{call}]}}}}]}}'
    if world.name == "anthropic":
        block = f'{{"type": "tool_use", "id": {id_}, "name": {name}, "input": {arguments}}}'
        return f'{{"type": "content_block_start", "index": 0, "content_block": {block}}}'
    function = f'{{"name": {name}, "arguments": {json.dumps(arguments)}}}'
    return f'{{"choices": [{{"delta": {{"tool_calls": [{{"id": {id_}, "function": {function}}}]}}}}]}}'


def nested(depth: int) -> str:
    """An object of that depth."""
    return '{"a": ' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


@pytest.mark.parametrize("what", ["name", "id_"])
@pytest.mark.parametrize("lie", ["5.5", '["x"]', '{"a": 1}', "true"])
async def test_ids_and_names_are_text(world: VendorWorld, what: str, lie: str) -> None:
    provider = await world.meet(events(whole_call(world, **{what: lie})))

    with pytest.raises(Failing, match="that is no text"):
        await provider.answer(QUESTION, deaf)


async def test_the_name_of_a_model_is_text(world: VendorWorld) -> None:
    model = '"model": {"a": [1]}'
    provider = await world.meet(
        events(f'{{"modelVersion": {{"a": [1]}}, {model}, "type": "message_start", "message": {{{model}}}}}')
    )

    with pytest.raises(Failing, match="the name of a model that is no text"):
        await provider.answer(QUESTION, deaf)


@pytest.mark.parametrize(
    "arguments", ['{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', nested(65), nested(900), "[1]", '"x"', '{"a": "']
)
async def test_arguments_that_no_reply_can_hold_are_passed_on_as_text(imitator: VendorWorld, arguments: str) -> None:
    provider = await imitator.meet(events(whole_call(imitator, arguments=arguments)))

    [call] = (await provider.answer(QUESTION, deaf)).calls

    assert (call.name, call.arguments) == ("now", arguments)


@pytest.mark.parametrize("arguments", ["[1]", '"x"'])
async def test_arguments_that_are_no_object_are_passed_on_as_text(world: VendorWorld, arguments: str) -> None:
    provider = await world.meet(events(whole_call(world, arguments=arguments)))

    [call] = (await provider.answer(QUESTION, deaf)).calls

    assert call.arguments in (arguments, json.loads(arguments))


async def test_arguments_may_be_as_deep_as_a_question_can_hold_them(imitator: VendorWorld) -> None:
    deep, deeper = (
        events(whole_call(imitator, arguments=nested(depth))) for depth in (MAX_ARGUMENT_DEPTH, MAX_ARGUMENT_DEPTH + 1)
    )
    provider = await imitator.meet(deep, deeper)

    assert (await provider.answer(QUESTION, deaf)).calls[0].arguments == json.loads(nested(MAX_ARGUMENT_DEPTH))
    assert (await provider.answer(QUESTION, deaf)).calls[0].arguments == nested(MAX_ARGUMENT_DEPTH + 1)


def usage(world: VendorWorld, lie: str) -> str:
    if world.name == "gemini":
        counted = f'"promptTokenCount": 9, "candidatesTokenCount": {lie}, "thoughtsTokenCount": {lie}'
        return f'{{"usageMetadata": {{{counted}}}}}'
    if world.name == "anthropic":
        counted = f'"input_tokens": 9, "output_tokens": {lie}, "output_tokens_details": {{"thinking_tokens": {lie}}}'
        return f'{{"type": "message_delta", "delta": {{}}, "usage": {{{counted}}}}}'
    details = f'"completion_tokens_details": {{"reasoning_tokens": {lie}}}'
    return f'{{"usage": {{"prompt_tokens": 9, "completion_tokens": {lie}, {details}}}}}'


@pytest.mark.parametrize("lie", ["-5", "1.5", "1e30", "9000000000000000000", '"7"', "{}", "[7]", "true"])
async def test_usage_that_can_not_be_is_not_counted(world: VendorWorld, lie: str) -> None:
    provider = await world.meet(events(usage(world, lie)))

    assert (await provider.answer(QUESTION, deaf)).usage == Usage(9, 0, 0)


async def test_usage_that_is_no_number_in_json_is_a_failure(world: VendorWorld) -> None:
    provider = await world.meet(events('{"usage": {"prompt_tokens": NaN}, "usageMetadata": {"promptTokenCount": NaN}}'))

    with pytest.raises(Failing, match="NaN is not a number"):
        await provider.answer(QUESTION, deaf)


async def test_only_so_many_tools_are_called_at_once(world: VendorWorld) -> None:
    calls = [whole_call(world, id_=f'"c{number}"') for number in range(MAX_CALLS + 1)]
    provider = await world.meet(events(*calls[1:]), events(*calls))

    assert len((await provider.answer(QUESTION, deaf)).calls) == MAX_CALLS
    with pytest.raises(Failing, match="more than 1000 tools"):
        await provider.answer(QUESTION, deaf)


def dripped(index: int, arguments: str, **more: str) -> Mapping[str, Any]:
    return {"index": index, "function": {"arguments": arguments, **more}}


async def test_arguments_may_drip(imitator: VendorWorld) -> None:
    first = [dripped(number, '{"a": "', name="now") for number in range(100)]
    drops = [[dripped(number, "x") for number in range(100)] for _ in range(50)]
    last = [dripped(number, '"}') for number in range(100)]
    provider = await imitator.meet(
        events(*(json.dumps({"choices": [{"delta": {"tool_calls": calls}}]}) for calls in (first, *drops, last)))
    )

    calls = (await provider.answer(QUESTION, deaf)).calls

    assert [call.arguments for call in calls] == [{"a": "x" * 50}] * 100


async def test_arguments_have_an_end(imitator: VendorWorld) -> None:
    drop = json.dumps({"choices": [{"delta": {"tool_calls": [dripped(0, "x" * 100_000, name="now")]}}]})
    provider = await imitator.meet(events(*[drop] * (MAX_EVENT // 100_000 + 1)))

    with pytest.raises(Failing, match="more than 1 MiB of arguments"):
        await provider.answer(QUESTION, deaf)


@pytest.mark.parametrize("what", ["id_", "name"])
async def test_ids_and_names_have_an_end(world: VendorWorld, what: str) -> None:
    long = [whole_call(world, **{what: json.dumps(f"{number}{'x' * 1_000_000}")}) for number in range(5)]
    if world.name == "anthropic":
        long = [each.replace('"index": 0', f'"index": {number}') for number, each in enumerate(long)]
    provider = await world.meet(events(*long))

    with pytest.raises(Failing, match="more than 4 MiB of ids, names and signatures"):
        await provider.answer(QUESTION, deaf)


async def test_the_name_of_a_model_has_an_end(world: VendorWorld) -> None:
    provider = await world.meet(Says([Text("42")], model="m" * 100_000))

    assert (await provider.answer(QUESTION, deaf)).model == "m" * MAX_MODEL


async def test_an_event_holds_so_much_and_text_as_if_it_held_more(world: VendorWorld) -> None:
    crowd = "[" + "[]," * MAX_CONTAINERS + "[]]"
    text = json.dumps({"a": crowd})
    provider = await world.meet(
        events(whole_call(world, arguments=text)),
        events(f'{{"a": {crowd}}}'),
        events(whole_call(world, arguments=crowd)),
    )

    assert (await provider.answer(QUESTION, deaf)).calls[0].arguments == {"a": crowd}
    with pytest.raises(Failing):
        await provider.answer(QUESTION, deaf)
    if world.name == "openai":  # there the arguments are text
        assert (await provider.answer(QUESTION, deaf)).calls[0].arguments == crowd
    else:
        with pytest.raises(Failing):
            await provider.answer(QUESTION, deaf)


async def test_a_line_without_an_end_is_left(world: VendorWorld) -> None:
    provider = await world.meet(Says([Raw(b"data: "), *[Raw(b"x" * (1 << 20))] * 64]))

    with pytest.raises(Failing, match="an event of more than 1 MiB"):
        await provider.answer(QUESTION, deaf)

    with trio.fail_after(PATIENCE):
        await world.vendor.exchanges[0].left.wait()


@pytest.mark.parametrize(("status", "error"), [(400, Rejected), (503, Failing)])
async def test_a_refusal_without_an_end_is_cut_off(world: VendorWorld, status: int, error: type[Exception]) -> None:
    body = b'{"error": {"message": "' + b"because " * (64 * transport.MAX_ERROR_BODY // 8)
    provider = await world.meet(Refuses(status, body=body), Says([Text("42")]))

    with pytest.raises(error, match="because because"):
        await provider.answer(QUESTION, deaf)

    with trio.fail_after(PATIENCE):
        await world.vendor.exchanges[0].left.wait()
    assert (await provider.answer(QUESTION, deaf)).text == "42"


async def test_a_compressed_answer_is_not_read(world: VendorWorld) -> None:
    bomb = gzip.compress(b"data: " + b"x" * (1 << 20))
    headers = {"content-encoding": "gzip"}
    provider = await world.meet(*(Refuses(status, body=bomb, headers=headers) for status in (200, 503)))

    with pytest.raises(Failing, match="compresses its answer"):
        await provider.answer(QUESTION, deaf)
    with pytest.raises(Failing, match=r"no reason given \(503\)"):
        await provider.answer(QUESTION, deaf)

    assert [exchange.headers["accept-encoding"] for exchange in world.vendor.exchanges] == ["identity"] * 2


@pytest.fixture
async def exchange(imitator: VendorWorld) -> AsyncIterator[transport.Transport]:
    account = ProviderAccount("somebody", imitator.vendor.key, "KEY")
    made = await trio.to_thread.run_sync(transport.Transport, account, imitator.vendor.base_url, Timeouts())
    yield made
    await made.aclose()


def request(world: VendorWorld) -> Mapping[str, Any]:
    body = {"model": "a-model", "messages": [], "stream": True}
    headers = {"authorization": f"Bearer {world.vendor.key}"}
    return {"url": f"{world.vendor.base_url}/chat/completions", "json": body, "headers": headers}


async def test_no_cookie_is_taken(imitator: VendorWorld, exchange: transport.Transport) -> None:
    imitator.vendor.will(Refuses(503, headers={"set-cookie": "a=b"}))

    await exchange.http.post(**request(imitator))

    assert not exchange.http.cookies


async def test_little_is_read_without_a_pause(imitator: VendorWorld, exchange: transport.Transport) -> None:
    """Interim replies, headers and chunks of a byte each are all parsed before anybody else has a turn."""
    imitator.vendor.will(Says([Raw(b"x" * (1 << 20))]))

    async with exchange.http.stream("POST", **request(imitator)) as response:
        sizes = [len(chunk) async for chunk in response.aiter_raw()]

    assert sum(sizes) > 1 << 20
    assert max(sizes) <= 4 << 10


class Turns:
    """How often everybody had a turn."""

    def __init__(self) -> None:
        self.taken = 0

    async def count(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            self.taken += 1


@pytest.fixture
def turns(nursery: trio.Nursery) -> Turns:
    made = Turns()
    nursery.start_soon(made.count)
    return made


async def test_others_have_their_turn_after_each_of_many_tiny_events(world: VendorWorld, turns: Turns) -> None:
    provider = await world.meet(Says([Raw(b"data: {}\n\n" * 1000), Text("42")]))
    heard: list[int] = []

    await provider.answer(QUESTION, lambda delta: heard.append(turns.taken))

    assert len(heard) > 1000
    assert len(set(heard)) > len(heard) * 0.99


class Watched(list[Message]):
    """A conversation that knows who reads it."""

    def __init__(self, *messages: Message) -> None:
        super().__init__(messages)
        self.readers: set[int] = set()

    def __iter__(self) -> Iterator[Message]:
        self.readers.add(threading.get_ident())
        return super().__iter__()


async def test_a_question_is_composed_beside_the_event_loop(world: VendorWorld) -> None:
    messages = Watched(Message("user", "What is 6 times 7?"))
    question = replace(QUESTION, messages=messages)
    messages.readers.clear()  # it is measured where it is made

    await (await world.meet()).answer(question, deaf)

    assert messages.readers
    assert threading.get_ident() not in messages.readers


async def test_a_question_that_can_not_be_composed_is_rejected_and_not_sent(world: VendorWorld) -> None:
    provider = await world.meet()

    with pytest.raises(Rejected, match="can't be asked this"):
        await provider.answer(replace(QUESTION, response_schema={"enum": {1, 2}}), deaf)

    assert not world.vendor.exchanges
    assert (await provider.answer(QUESTION, deaf)).finish_reason == "stop"
