"""The methods of both clients: generated from the calls, alike in both, and those of the original SDK."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from inspect import Parameter
from pathlib import Path
from typing import Any, assert_type

import attrs
import pytest
import trio

import generate_clients
from agentos_sdk import AgentOSClient, Kernel, connect
from agentos_sdk.calls.agents import AgentInfo, Killed, LogsReply
from agentos_sdk.calls.usage import DayUsage
from agentos_sdk.clients import streams
from agentos_sdk.encoding import chunks
from agentos_sdk.errors import NotFound
from agentos_sdk.opcodes import Op
from agentos_sdk.testing import FakeKernel, replies
from agentos_sdk.testing.fake_server import Server
from client_methods import HIDDEN, METHODS, Method
from tests.architecture.test_calls import requests
from tests.support.runs.rows import each_row

WITHOUT_A_METHOD = {Op.HELLO, Op.CANCEL, Op.LLM_REPORT, Op.ASYNC_POLL}  # the connection's; the original's clients'
OF_THE_CONNECTION = {
    *("connect", "disconnect", "is_connected", "wait_disconnected", "hello", "exit"),
    *("call", "make_call", "request", "noop", "exchange", "messages"),
}

ORIGINAL: dict[str, dict[str, Any]] = {  # method -> its parameters in the original SDK, with their defaults
    "connect": {},
    "disconnect": {},
    "echo": {"message": ...},
    "exit": {},
    "spawn": {"name": ..., "script": ..., "sandboxed": True, "network": False, "limits": None},
    "kill": {"name": None, "agent_id": None},
    "list_agents": {},
    "think": {
        "prompt": ...,
        "image": None,
        "image_mime_type": "image/jpeg",
        "system_instruction": None,
        "thinking_level": None,
        "temperature": None,
        "model": None,
    },
    "exec": {"command": ..., "cwd": None, "timeout": 30},
    "read_file": {"path": ...},
    "write_file": {"path": ..., "content": ..., "mode": "write"},
    "register_name": {"name": ...},
    "send_message": {"message": ..., "to": None, "to_name": None},
    "recv_messages": {"max_messages": 10},
    "broadcast": {"message": ..., "include_self": False},
    "subscribe": {"event_types": ...},
    "unsubscribe": {"event_types": ...},
    "poll_events": {"max_events": 10},
    "emit_event": {"event_type": ..., "data": None},
    "get_permissions": {},
    "set_permissions": {"permissions": None, "level": None, "agent_id": None},
    "get_audit_log": {"category": None, "agent_id": None, "since_id": None, "limit": 100},
}
# Optional here; the type of an image follows from the image; and there may be more events, or any data.
WIDER = {"prompt", "script", "image_mime_type", "event_types", "max_events", "event_type"}


def test_the_generated_methods_are_up_to_date() -> None:
    assert generate_clients.FILE.read_text() == generate_clients.generate(), "run `make generate`"


def test_every_call_has_a_method() -> None:
    assert {method.request.op for method in METHODS} == set(requests()) - WITHOUT_A_METHOD


def methods(client: type) -> dict[str, Callable[..., Any]]:
    found = inspect.getmembers(client, inspect.isfunction)
    return {name: method for name, method in found if not name.startswith("_")}


def signature(method: Callable[..., Any]) -> list[tuple[str, object, object, str]]:
    parameters = inspect.signature(method).parameters.values()
    return [(each.name, each.kind, each.default, str(each.annotation)) for each in parameters]


def test_both_clients_have_the_same_methods() -> None:
    assert set(methods(AgentOSClient)) - OF_THE_CONNECTION == set(methods(Kernel)) - OF_THE_CONNECTION


@each_row("name", sorted(set(methods(AgentOSClient)) & set(methods(Kernel)) - OF_THE_CONNECTION))
def test_a_method_has_the_same_parameters_in_both_clients(name: str) -> None:
    assert signature(getattr(Kernel, name)) == signature(getattr(AgentOSClient, name))


class Recorder:
    """Notes the calls that a client makes, and refuses them."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, object]] = []

    def answer(self, op: int, body: bytes, *_: object) -> bytes:
        self.calls.append((op, json.loads(body)))
        return replies.encode_failure(op, NotFound("nothing is here"))

    def wake(self) -> None:
        pass


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[tuple[str, Recorder]]:
    server = Server(str(tmp_path / "s"), found := Recorder(), 1, "test")
    yield str(tmp_path / "s"), found
    server.close()


def arguments(name: str, every: bool) -> dict[str, Any]:
    """Arguments for a method: only those that it needs, or one for each of its parameters."""
    _, *parameters = inspect.signature(getattr(AgentOSClient, name)).parameters.values()
    known = {"timeout": 5.0, "image": "tiny" if name == "spawn" else b"\x89PNG", "images": [b"GIF8"], "body": b"\xff"}
    known["content"] = b"\xff" if name == "write_file" else "content"
    return {each.name: known.get(each.name, each.name) for each in parameters if every or each.default is each.empty}


@each_row(("name", "every"), [(method.name, every) for method in METHODS for every in (False, True)])
def test_a_method_makes_the_same_call_by_both_clients(recorder: tuple[str, Recorder], name: str, every: bool) -> None:
    path, recorded = recorder
    recorded.calls.clear()
    given = arguments(name, every)

    with suppress(NotFound), AgentOSClient(path) as client:
        made = getattr(client, name)(**given)
        if hasattr(made, "__next__"):
            next(made)

    async def main() -> None:
        with suppress(NotFound):
            async with connect(path) as kernel:
                made = getattr(kernel, name)(**given)
                await (anext(made) if hasattr(made, "__anext__") else made)

    trio.run(main)
    [by_blocking, by_trio] = recorded.calls
    assert by_blocking == by_trio
    assert by_trio[0] == next(method.request.op for method in METHODS if method.name == name)


@each_row("method", METHODS)
def test_each_argument_is_sent_as_a_field_of_the_request(recorder: tuple[str, Recorder], method: Method) -> None:
    path, recorded = recorder

    with suppress(NotFound), AgentOSClient(path) as client:
        made = getattr(client, method.name)(**arguments(method.name, every=True))
        if hasattr(made, "__next__"):
            next(made)

    hidden = (HIDDEN - {*method.shown}) | {*method.unsent}
    fields = {each.name.rstrip("_") for each in attrs.fields(method.request) if each.name not in hidden}
    sent = recorded.calls[-1][1]
    assert isinstance(sent, dict)
    assert sent.keys() == fields | ({method.streamed_by} if method.stream else set())


@each_row("name", [method.name for method in METHODS])
def test_a_wrong_argument_is_a_type_error_in_both_clients(recorder: tuple[str, Recorder], name: str) -> None:
    path, recorded = recorder
    with pytest.raises(TypeError, match=rf"\b{name}\(\) got an unexpected keyword argument"):
        getattr(AgentOSClient(path), name)(nonsense=1)

    async def main() -> None:
        async with connect(path) as kernel:
            await getattr(kernel, name)(nonsense=1)

    with pytest.raises(TypeError, match=rf"\b{name}\(\) got an unexpected keyword argument"):
        trio.run(main)
    assert recorded.calls == []


@each_row("method", METHODS)
def test_help_shows_the_result_and_the_same_text_for_both_clients(method: Method) -> None:
    by_trio = getattr(Kernel, method.name)

    assert inspect.getdoc(by_trio) == inspect.getdoc(getattr(AgentOSClient, method.name))
    assert inspect.iscoroutinefunction(by_trio) is not bool(method.stream)
    if method.stream:
        assert inspect.signature(by_trio).return_annotation is getattr(streams, method.stream)


@each_row(
    ("name", "result"),
    [("kill", Killed), ("list_agents", Sequence[AgentInfo]), ("tree", Mapping[str, Any]), ("logs", LogsReply)],
)
def test_the_trio_clients_signature_has_its_own_result(name: str, result: object) -> None:
    assert inspect.signature(getattr(Kernel, name)).return_annotation == result


def test_results_are_typed_in_both_clients() -> None:
    with FakeKernel() as fake:
        fake.reply("kill", {"killed": True})
        fake.reply("usage", {"usage": []})
        fake.reply("think", {"content": "Because."})

        with AgentOSClient(fake.socket) as client:
            assert assert_type(client.kill("worker"), bool) is True
            assert assert_type(client.usage(), dict[str, Any])["usage"] == []
            with assert_type(client.think_stream("Why?"), chunks.Thoughts) as answer:
                assert list(answer) == ["Because."]

        async def main() -> None:
            async with connect(fake.socket) as kernel:
                assert assert_type(await kernel.kill("worker"), Killed).killed
                assert assert_type(await kernel.usage(), Sequence[DayUsage]) == ()
                async with assert_type(kernel.think_stream("Why?"), streams.Thoughts) as answer:
                    assert [assert_type(piece, str) async for piece in answer] == ["Because."]

        trio.run(main)


@each_row("name", ORIGINAL)
def test_arguments_for_the_original_mean_the_same_here(name: str) -> None:
    _, *found = inspect.signature(getattr(AgentOSClient, name)).parameters.values()

    assert [each.name for each in found[: len(ORIGINAL[name])]] == list(ORIGINAL[name])
    for each in found:
        assert each.kind is Parameter.KEYWORD_ONLY or each.name in ORIGINAL[name] or each.default is not Parameter.empty
        if each.name in ORIGINAL[name] and each.name not in WIDER:
            expected = ORIGINAL[name][each.name]
            assert each.default == (Parameter.empty if expected is ... else expected)
