"""What a caller gets for each opcode, and what it is told when a handler fails."""

import json
import logging
from typing import Any

import pytest
import trio
from attrs import frozen

from agentos.kernel.call import Call
from agentos.kernel.call_counts import CallCounts
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Right
from agentos.kernel.syscall import SMALL_BODY_BYTES, Syscall
from agentos.kernel.table import MAX_RECORDED_BYTES, Table
from agentos_sdk.errors import Busy, CallError, Cancelled, UnknownCall
from agentos_sdk.opcodes import Op
from tests.support.rights import Grants, Notebook, require_right


@frozen
class Repeat:
    what: str
    count: int = 1


def caller(table: Table) -> Caller:
    return Caller(7, "agent", "tester", table, Grants(denied=["forbidden"], asked=["dubious"]), Notebook())


def ask(table: Table, op: int, body: bytes) -> Any:
    now = table.entries[op].now
    assert now is not None
    return json.loads(now(caller(table), body))


def test_there_is_an_entry_for_every_opcode() -> None:
    table = Table(())

    assert len(table.entries) == len(table.limits) == 256
    for op in set(range(256)) - {Op.HELLO, Op.CANCEL, Op.EXIT}:
        assert ask(table, op, b"")["code"] == "unknown_call"
    assert set(table.limits) == {SMALL_BODY_BYTES}


async def test_a_call_that_is_not_served_is_unknown_to_a_gateway_as_well() -> None:
    table = Table(())

    with pytest.raises(UnknownCall, match="this kernel has no call READ"):
        await table.perform(Op.READ, Call(caller(table), streams=False), None)


def test_a_handler_gets_its_request_and_gives_its_reply() -> None:
    table = Table((Syscall(Op.KEYS, Repeat, lambda caller, request: {"got": request.what * request.count}, limit=5),))

    assert ask(table, Op.KEYS, b'{"what": "x", "count": 3}') == {"got": "xxx"}
    assert table.limits[Op.KEYS] == 5


def test_a_request_that_does_not_fit_never_reaches_the_handler() -> None:
    def handler(caller: Caller, request: Repeat) -> object:
        raise AssertionError("reached")

    table = Table((Syscall(Op.KEYS, Repeat, handler, failure={"keys": []}),))

    reply = ask(table, Op.KEYS, b'{"count": 1}')
    assert reply == {
        "success": False,
        "error": "what: required field missing",
        "code": "bad_request",
        "keys": [],
    }


def test_a_refused_right_is_a_reply() -> None:
    table = Table((Syscall(Op.KEYS, Repeat, lambda caller, request: require_right(caller, Right("forbidden"))),))

    assert ask(table, Op.KEYS, b'{"what": ""}')["code"] == "permission_denied"


@pytest.mark.parametrize("error", [Busy("full", room=3), CallError("odd", room=3)])
def test_what_else_an_error_carries_is_in_the_reply(error: CallError) -> None:
    def handler(caller: Caller, request: Repeat) -> object:
        raise error

    reply = ask(Table((Syscall(Op.KEYS, Repeat, handler),)), Op.KEYS, b'{"what": ""}')

    assert reply == {"success": False, "error": str(error), "code": error.code, "room": 3}


def test_a_bug_of_ours_is_logged_and_its_reference_is_all_that_gets_out(caplog: pytest.LogCaptureFixture) -> None:
    def handler(caller: Caller, request: Repeat) -> object:
        raise ZeroDivisionError("a secret path")

    reply = ask(Table((Syscall(Op.KEYS, Repeat, handler),)), Op.KEYS, b'{"what": ""}')

    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    reference = record.getMessage().split()[1]
    assert reply["code"] == "internal"
    assert reference in reply["error"]
    assert "secret" not in reply["error"]
    assert "ZeroDivisionError: 'a secret path' at kernel/test_table.py:" in record.getMessage()


def test_what_takes_bare_bytes_gets_them_as_they_came() -> None:
    table = Table((Syscall(Op.NOOP, None, lambda caller, body: body),))
    now = table.entries[Op.NOOP].now

    assert now is not None
    assert now(caller(table), b"\xff") == b"\xff"


def test_a_handler_that_may_wait_is_answered_later() -> None:
    async def handler(call: object, request: Repeat) -> object:
        await trio.lowlevel.checkpoint()
        return {}

    table = Table((Syscall(Op.KEYS, Repeat, handler),))

    assert table.entries[Op.KEYS].now is None
    assert table.entries[Op.KEYS].later is not None


def test_calls_are_counted_by_their_outcome() -> None:
    def refuse(caller: Caller, request: Repeat) -> object:
        raise Busy("full")

    table = Table(
        (
            Syscall(Op.KEYS, Repeat, lambda caller, request: {}),
            Syscall(Op.LIST, Repeat, refuse),
            Syscall(Op.STATUS, Repeat, lambda caller, request: 1 / 0),
            Syscall(Op.TREE, Repeat, lambda caller, request: require_right(caller, Right("dubious"))),
        )
    )
    one = caller(table)
    for op, body in ((Op.KEYS, b'{"what": ""}'), (Op.KEYS, b'{"what": ""}'), (Op.KEYS, b"{"), (Op.KILL, b"")):
        (table.entries[op].now or _missing)(one, body)
    for op in (Op.LIST, Op.STATUS, Op.TREE):
        (table.entries[op].now or _missing)(one, b'{"what": ""}')

    assert one.counts.own() == {
        (Op.KEYS, "ok"): 2,
        (Op.KEYS, "bad_request"): 1,
        (Op.KILL, "unknown_call"): 1,
        (Op.LIST, "busy"): 1,
        (Op.STATUS, "internal"): 1,
        (Op.TREE, "approval_required"): 1,
    }


async def test_a_denied_call_is_recorded_and_counted_and_never_reaches_its_handler() -> None:
    def reached(caller: Caller, request: Repeat) -> Any:
        raise AssertionError("reached")

    plain = Table((Syscall(Op.KEYS, Repeat, reached), Syscall(Op.READ, Repeat, prepare=reached)))
    ask_first, deny = (Decision(effect, "the rule", "not today") for effect in ("ask", "deny"))
    table = plain.with_refusals({Op.KEYS: deny, Op.READ: ask_first})
    one = caller(table)
    now, later = table.entries[Op.KEYS].now, table.entries[Op.KEYS].later
    assert now is not None
    assert later is not None

    replies = [now(one, b"x" * (MAX_RECORDED_BYTES + 1)), await later(Call(one, streams=False), b"y")]
    table.withdraw(one, Op.KEYS, b"", Cancelled("withdrawn"))

    assert [json.loads(reply)["error"] for reply in replies] == ["not today"] * 2
    assert one.counts.own() == {(Op.KEYS, "permission_denied"): 2, (Op.KEYS, "cancelled"): 1}
    assert isinstance(one.audit, Notebook)
    assert [(entry.about, entry.outcome) for entry in one.audit.entries] == [
        ("x" * MAX_RECORDED_BYTES, "permission_denied"),
        ("y", "permission_denied"),
    ]
    assert table.entries[Op.READ] is plain.entries[Op.READ], "it asks itself, about its object"
    assert plain.with_refusals({Op.READ: ask_first}) is plain


async def test_calls_that_wait_are_counted_when_they_have_ended(autojump_clock: object) -> None:
    async def wait(call: Call, request: Repeat) -> object:
        await trio.sleep_forever() if request.what == "wait" else await trio.lowlevel.checkpoint()
        return {}

    table = Table((Syscall(Op.WAIT, Repeat, wait),))
    one = caller(table)
    later = table.entries[Op.WAIT].later
    assert later is not None
    for what in ("", "wait"):
        call = Call(one, streams=True, send=_send)
        with trio.move_on_after(0.01), call.scope:
            await later(call, b'{"what": "%s"}' % what.encode())
    with trio.move_on_after(0.01):
        await table.perform(Op.WAIT, Call(one, streams=True, send=_send), Repeat("wait"))
    await table.perform(Op.WAIT, Call(one, streams=True, send=_send), Repeat(""))

    assert one.counts.own() == {(Op.WAIT, "ok"): 2, (Op.WAIT, "cancelled"): 2}


def test_counts_of_a_former_caller_of_the_same_name_are_kept_apart() -> None:
    first, second = CallCounts(), CallCounts()
    first.ok[Op.NOOP], second.ok[Op.NOOP] = 2, 3
    first.fail(Op.READ, Busy("full"))
    first.shrink()
    second.former = first.all()
    second.fail(Op.READ, Busy("full"))

    assert second.own() == {(Op.NOOP, "ok"): 3, (Op.READ, "busy"): 1}
    assert second.all() == {(Op.NOOP, "ok"): 5, (Op.READ, "busy"): 2}


async def _send(chunk: bytes) -> None: ...


def _missing(caller: Caller, body: bytes) -> bytes:
    raise AssertionError("not answered at once")
