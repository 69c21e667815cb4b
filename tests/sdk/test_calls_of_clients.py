"""The methods of both clients: generated from the calls, alike in both, and those of the original SDK."""

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any

import pytest

import generate_clients
from agentos_sdk import AgentOSClient, Kernel
from agentos_sdk.opcodes import Op
from client_methods import METHODS
from tests.architecture.test_calls import requests
from tests.support.rows import each_row

WITHOUT_A_METHOD = {Op.HELLO, Op.CANCEL, Op.LLM_REPORT, Op.ASYNC_POLL}  # the connection's; the original's clients'
OF_THE_CONNECTION = {
    *("connect", "disconnect", "is_connected", "wait_disconnected", "hello", "exit"),
    *("call", "make_call", "request", "noop", "exchange"),
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


@pytest.mark.parametrize("name", generate_clients.FILES)
def test_the_generated_methods_are_up_to_date(name: str) -> None:
    written = (generate_clients.PACKAGE / name).read_text()

    assert written == generate_clients.generate(trio=generate_clients.FILES[name]), "run `make generate`"


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


@each_row("name", ORIGINAL)
def test_arguments_for_the_original_mean_the_same_here(name: str) -> None:
    _, *found = inspect.signature(getattr(AgentOSClient, name)).parameters.values()

    assert [each.name for each in found[: len(ORIGINAL[name])]] == list(ORIGINAL[name])
    for each in found:
        assert each.kind is Parameter.KEYWORD_ONLY or each.name in ORIGINAL[name] or each.default is not Parameter.empty
        if each.name in ORIGINAL[name] and each.name not in WIDER:
            expected = ORIGINAL[name][each.name]
            assert each.default == (Parameter.empty if expected is ... else expected)
