"""The methods of both clients: as their calls' requests, alike in both, and those of the original SDK."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from inspect import Parameter
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NewType, Union, assert_type, get_args, get_origin, get_type_hints

import attrs
import pytest
import trio

from agentos_sdk import AgentOSClient, Kernel, connect
from agentos_sdk.calls.agents import AgentInfo, Killed, LogsReply
from agentos_sdk.calls.usage import DayUsage
from agentos_sdk.clients import streams
from agentos_sdk.clients.client_calls import Calls
from agentos_sdk.encoding import chunks
from agentos_sdk.encoding.strict import wire_name
from agentos_sdk.errors import NotFound
from agentos_sdk.opcodes import Op
from agentos_sdk.testing import FakeKernel, replies
from agentos_sdk.testing.fake_server import Server
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


HIDDEN = {"stream", "follow", "wait", "tty", "async_", "request_id"}  # fields that are no parameters
SHOWN, UNSENT = {("logs", "stream"), ("follow_logs", "stream")}, {("emit_event", "event")}  # but for these
OWN_TYPES = {  # parameters that take more than their field, or are none
    *("think image", "think images", "think image_mime_type", "think messages", "think tools"),
    *("write_file content", "set_permissions permissions"),
}
METHODS = sorted(name for name in vars(Calls) if not name.startswith("_"))


class Noting(Calls):
    """Returns opcode, fields and parameters' other names instead of making a call."""

    def _make_call(self, op: int, given: dict[str, Any], named: Mapping[str, str] = {}, *_: Any, **__: Any) -> Any:
        return op, given, named

    _open_stream = _make_call


def request_of(name: str) -> tuple[type, Mapping[str, str]]:
    """The request of a method, and the fields of the parameters that have other names."""
    op, _, named = getattr(Noting(), name)(**arguments(name, every=False))
    return requests()[Op(op)], named


def is_stream(name: str) -> bool:
    return hasattr(streams, str(inspect.signature(getattr(Calls, name)).return_annotation))


def shown_fields(name: str, request: type) -> dict[str, Any]:
    """The fields of a method's request that are parameters, by their names on the wire."""
    fields = (each for each in attrs.fields(request) if (name, each.name) not in UNSENT)
    return {wire_name(each.name): each for each in fields if each.name not in HIDDEN or (name, each.name) in SHOWN}


def type_text(hint: Any) -> str:
    """A type as a method writes it; classes of ``calls`` are accepted as mappings."""
    if isinstance(hint, NewType):
        return type_text(hint.__supertype__)
    if isinstance(hint, type) and attrs.has(hint):
        return "Mapping[str, Any]"
    origin, args = get_origin(hint), get_args(hint)
    if origin is None:
        return "None" if hint is NoneType else str(hint.__name__)
    if origin is Literal:
        return f"Literal{list(args)}"
    texts = [type_text(arg) for arg in args]
    return " | ".join(texts) if origin in (Union, UnionType) else f"{origin.__name__}[{', '.join(texts)}]"


def test_every_call_has_a_method() -> None:
    assert {request_of(name)[0] for name in METHODS} == {
        request for op, request in requests().items() if op not in WITHOUT_A_METHOD
    }


@each_row("name", METHODS)
def test_a_parameter_has_the_type_and_the_default_of_its_field(name: str) -> None:
    request, named = request_of(name)
    fields, hints = shown_fields(name, request), get_type_hints(request)
    _, *parameters = inspect.signature(getattr(Calls, name)).parameters.values()

    for each in parameters:
        if f"{name.removesuffix('_stream')} {each.name}" in OWN_TYPES:
            continue
        field = fields[named.get(each.name, each.name)]
        expected = type_text(hints[field.name])
        assert each.annotation in (expected, f"{expected} | None")
        if field.default is attrs.NOTHING:
            assert each.default is each.empty
        else:  # not sent unless it is given: the kernel's default holds
            assert each.default in (None, field.default)


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


@each_row(("name", "every"), [(name, every) for name in METHODS for every in (False, True)])
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


@each_row("name", METHODS)
def test_each_argument_is_sent_as_a_field_of_the_request(recorder: tuple[str, Recorder], name: str) -> None:
    path, recorded = recorder

    with suppress(NotFound), AgentOSClient(path) as client:
        made = getattr(client, name)(**arguments(name, every=True))
        if hasattr(made, "__next__"):
            next(made)

    sent = recorded.calls[-1][1]
    assert isinstance(sent, dict)
    streamed_by = {"follow" if name in ("follow_logs", "follow_approvals") else "stream"} if is_stream(name) else set()
    assert sent.keys() == shown_fields(name, request_of(name)[0]).keys() | streamed_by


@each_row("name", METHODS)
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


@each_row("name", METHODS)
def test_help_shows_the_result_and_the_same_text_for_both_clients(name: str) -> None:
    by_trio, by_blocking = getattr(Kernel, name), getattr(AgentOSClient, name)

    assert by_blocking.__doc__
    assert inspect.getdoc(by_trio) == inspect.getdoc(by_blocking)
    assert inspect.iscoroutinefunction(by_trio) is not is_stream(name)
    if is_stream(name):
        kind = getattr(streams, inspect.signature(by_blocking).return_annotation)
        assert inspect.signature(by_trio).return_annotation is kind


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
