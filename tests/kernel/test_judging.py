"""What is decided of a call, and what is written down of it."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Right
from agentos.kernel.table import Syscall, Table
from agentos_sdk.errors import ApprovalRequired, Busy, PermissionDenied
from agentos_sdk.opcodes import Op
from tests.support.rights import Grants, Notebook

Handler = Callable[[Call, bytes], Awaitable[object]]


async def answered(syscall: Syscall, caller: Caller) -> Any:
    later = Table((syscall,)).later[syscall.op]
    assert later is not None
    return json.loads(await later(Call(caller, True, trio.lowlevel.checkpoint), b""))  # type: ignore[arg-type]


def caller(notebook: Notebook, **grants: Any) -> Caller:
    return Caller(7, "agent", "tester", Table(()), Grants(**grants), notebook)


def phases(notebook: Notebook) -> list[tuple[str, str]]:
    return [(entry.phase, entry.outcome) for entry in notebook.entries]


@pytest.mark.parametrize(
    ("grants", "error", "code"),
    [
        ({"denied": ["read"]}, PermissionDenied, "permission_denied"),
        ({"asked": ["read"]}, ApprovalRequired, "approval_required"),
    ],
)
def test_who_is_refused_hears_the_rule_and_it_is_written_down(grants: Any, error: type[Exception], code: str) -> None:
    notebook = Notebook()

    with pytest.raises(error) as caught:
        caller(notebook, **grants).check(Right("read", "/etc/shadow"))

    assert caught.value.details == {"rule": "the rule"}  # type: ignore[attr-defined]
    [entry] = notebook.entries
    assert (entry.name, entry.call, entry.about, entry.outcome) == ("tester", "READ", "/etc/shadow", code)


async def test_what_changes_something_is_announced_before_it_is_done() -> None:
    notebook = Notebook()

    async def write(call: Call, body: bytes) -> object:
        await call.require(Right("write", "/a"))
        assert phases(notebook) == [("intent", "")]
        return {}

    await answered(Syscall(Op.WRITE, None, write, audit="intent"), caller(notebook))

    announced, came_out = notebook.entries
    assert (came_out.phase, came_out.outcome, came_out.intent) == ("outcome", "ok", 1)
    assert announced.about == came_out.about == "/a"


async def test_what_cannot_be_announced_is_not_done() -> None:
    notebook = Notebook(full=True)

    async def write(call: Call, body: bytes) -> object:
        await call.require(Right("write", "/a"))
        raise AssertionError("done")

    reply = await answered(Syscall(Op.WRITE, None, write, audit="intent"), caller(notebook))

    assert reply["code"] == "unavailable"


async def test_all_rights_are_needed_before_anything_is_announced() -> None:
    notebook = Notebook()

    async def write(call: Call, body: bytes) -> object:
        await call.require(Right("write", "/a"), Right("read", "/b"))
        raise AssertionError("done")

    await answered(Syscall(Op.WRITE, None, write, audit="intent"), caller(notebook, denied=["read"]))

    assert [(entry.call, entry.outcome) for entry in notebook.entries] == [("READ", "permission_denied")]


async def test_how_a_call_came_out_is_written_down_whatever_it_was() -> None:
    notebook = Notebook()

    async def read(call: Call, body: bytes) -> object:
        await call.require(Right("read", "/a"))
        raise Busy("later")

    await answered(Syscall(Op.READ, None, read, audit="outcome"), caller(notebook))

    assert phases(notebook) == [("outcome", "busy")]


async def test_of_a_withdrawn_call_it_is_written_that_it_was() -> None:
    notebook = Notebook()

    async def read(call: Call, body: bytes) -> object:
        await call.require(Right("read", "/a"))
        await trio.sleep_forever()

    with trio.move_on_after(0):
        await answered(Syscall(Op.READ, None, read, audit="outcome"), caller(notebook))

    assert phases(notebook) == [("outcome", "cancelled")]


async def test_a_call_that_nobody_wants_written_down_is_not() -> None:
    notebook = Notebook()

    async def recv(call: Call, body: bytes) -> object:
        await call.require(Right("recv"))
        return {}

    await answered(Syscall(Op.RECV, None, recv), caller(notebook))

    assert notebook.entries == []


def test_a_table_refuses_at_once_and_its_original_does_not() -> None:
    notebook = Notebook()
    table = Table((Syscall(Op.KEYS, None, lambda caller, body: b"{}"),))
    refusing = table.refusing({Op.KEYS: Decision("deny", "the rule", "no keys for you")})

    refuse, grant = refusing.now[Op.KEYS], table.now[Op.KEYS]

    assert refuse is not None
    assert grant is not None
    reply = json.loads(refuse(caller(notebook), b""))
    assert (reply["code"], reply["error"], reply["rule"]) == ("permission_denied", "no keys for you", "the rule")
    assert phases(notebook) == [("outcome", "permission_denied")]
    assert grant(caller(notebook), b"") == b"{}"
