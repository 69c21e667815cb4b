"""What is decided of a call, and what is written down of it."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from attrs import define, frozen

from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Effect, Entry, Right
from agentos.kernel.prepared import NO_RULE, Prepared, Refused
from agentos.kernel.syscall import Syscall
from agentos.kernel.table import Table
from agentos_sdk.errors import ApprovalRequired, Busy, PermissionDenied, QuotaExceeded
from agentos_sdk.opcodes import Op
from tests.support.rights import Grants, Notebook, require_right


@frozen
class Path:
    path: str


@define
class Opened:
    """What a prepared call holds: how many times it was opened, and whether it is open now."""

    times: int = 0
    now: bool = False


async def never(call: object) -> object:
    raise AssertionError("done")


def prepared(
    op: Op, act: Callable[[Call], Awaitable[object]], *rights: Right, opened: Opened | None = None, **more: Any
) -> Syscall:
    """A call that may wait, of any request."""
    held = opened or Opened()

    @asynccontextmanager
    async def prepare(caller: Caller, request: object) -> AsyncIterator[Prepared]:
        held.times, held.now = held.times + 1, True
        try:
            yield Prepared(rights, act)
        finally:
            held.now = False

    return Syscall(op, None, prepare=prepare, **more)


async def answered(syscall: Syscall, caller: Caller, body: bytes = b"") -> Any:
    table = Table((syscall,))
    now, turns, later = table.entries[syscall.op].now, table.entries[syscall.op].turns, table.entries[syscall.op].later
    if now is not None:
        return json.loads(now(caller, body))
    if turns is not None:
        return json.loads(await turns(caller, body))
    assert later is not None
    return json.loads(await later(Call(caller, True, trio.lowlevel.checkpoint), body))  # type: ignore[arg-type]


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
def test_a_refused_caller_is_told_the_rule_and_it_is_written_down(
    grants: Any, error: type[Exception], code: str
) -> None:
    notebook = Notebook()

    with pytest.raises(error) as caught:
        require_right(caller(notebook, **grants), Right("read", "/etc/shadow"))

    assert caught.value.details == {"rule": "the rule"}  # type: ignore[attr-defined]
    [entry] = notebook.entries
    assert (entry.name, entry.call, entry.about, entry.outcome) == ("tester", "READ", "/etc/shadow", code)


async def test_what_changes_something_is_announced_before_it_is_done() -> None:
    notebook = Notebook()

    async def write(call: Call) -> object:
        assert phases(notebook) == [("intent", "")]
        return {}

    await answered(prepared(Op.WRITE, write, Right("write", "/a"), audit="intent"), caller(notebook))

    announced, came_out = notebook.entries
    assert (came_out.phase, came_out.outcome, came_out.intent) == ("outcome", "ok", 1)
    assert announced.about == came_out.about == "/a"


async def test_what_cannot_be_announced_is_not_done() -> None:
    notebook = Notebook(full=True)

    reply = await answered(prepared(Op.WRITE, never, Right("write", "/a"), audit="intent"), caller(notebook))

    assert reply["code"] == "unavailable"
    assert notebook.entries == []


async def test_all_rights_are_needed_before_anything_is_announced() -> None:
    notebook = Notebook()
    syscall = prepared(Op.WRITE, never, Right("write", "/a"), Right("read", "/b"), audit="intent")

    await answered(syscall, caller(notebook, denied=["read"]))

    assert [(entry.call, entry.outcome) for entry in notebook.entries] == [("READ", "permission_denied")]


async def test_a_right_that_is_revoked_while_the_intent_is_written_is_not_used() -> None:
    grants = Grants()

    class Slow(Notebook):
        async def intend(self, entry: Entry) -> int:
            grants.denied = ["write"]
            return await super().intend(entry)

    notebook = Slow()
    reply = await answered(
        prepared(Op.WRITE, never, Right("write", "/a"), audit="intent"),
        Caller(7, "agent", "tester", Table(()), grants, notebook),
    )

    assert reply["code"] == "permission_denied"
    assert phases(notebook) == [("intent", ""), ("outcome", "permission_denied")]
    announced, came_out = notebook.entries
    assert (announced.decision, announced.intent) == ("allow", None)
    assert (came_out.call, came_out.decision, came_out.rule, came_out.intent) == ("WRITE", "deny", "the rule", 1)


@pytest.mark.parametrize("grants", [{"denied": ["read"]}, {"asked": ["read"]}])
async def test_nothing_is_held_and_nothing_done_once_a_call_is_refused(grants: Any) -> None:
    notebook, opened = Notebook(), Opened()

    await answered(
        prepared(Op.READ, never, Right("read", "/a"), opened=opened, audit="outcome"), caller(notebook, **grants)
    )

    assert (opened.times, opened.now) == (1, False)


async def test_nothing_is_held_once_a_call_is_withdrawn(autojump_clock: object) -> None:
    opened = Opened()

    async def act(call: Call) -> object:
        assert opened.now
        await trio.sleep_forever()

    with trio.move_on_after(0.01):
        await answered(prepared(Op.READ, act, Right("read", "/a"), opened=opened), caller(Notebook()))

    assert (opened.times, opened.now) == (1, False)


async def test_what_is_held_is_released_before_the_reply_is_encoded() -> None:
    opened = Opened()

    async def act(call: Call) -> object:
        return {}

    async def encode(caller: Caller, reply: object) -> bytes:
        return b"true" if opened.now else b"false"

    assert (
        await answered(prepared(Op.READ, act, Right("read", "/a"), opened=opened, encode=encode), caller(Notebook()))
        is False
    )


@pytest.mark.parametrize(
    ("error", "about", "rule"),
    [
        (Refused(PermissionDenied("no"), "notes", "a rule"), "notes", "a rule"),
        (PermissionDenied("no", rule="its own"), "", "its own"),
        (PermissionDenied("no"), "", NO_RULE),
    ],
)
async def test_a_refusal_while_preparing_is_recorded_once(error: PermissionDenied, about: str, rule: str) -> None:
    @asynccontextmanager
    async def prepare(caller: Caller, body: bytes) -> AsyncIterator[Prepared]:
        raise error
        yield

    def prepare_now(caller: Caller, body: Path) -> Prepared:
        raise error

    for syscall in (
        Syscall(Op.READ, None, prepare=prepare, audit="intent"),
        Syscall(Op.READ, Path, prepare=prepare_now),
    ):
        notebook = Notebook()
        reply = await answered(syscall, caller(notebook), b'{"path": "notes"}')

        assert (reply["code"], reply["error"]) == ("permission_denied", "no")
        [entry] = notebook.entries
        assert (entry.call, entry.about, entry.decision, entry.rule) == ("READ", about, "deny", rule)
        assert (entry.phase, entry.outcome) == ("outcome", "permission_denied")


async def test_an_act_that_is_denied_by_something_else_is_no_refusal() -> None:
    notebook = Notebook()

    async def act(call: Call) -> object:
        raise PermissionDenied("the file's mode")

    await answered(prepared(Op.READ, act, Right("read", "/a"), audit="outcome"), caller(notebook))

    [entry] = notebook.entries
    assert (entry.decision, entry.outcome) == ("allow", "permission_denied")


async def test_a_call_that_cannot_be_done_is_charged_and_recorded_without_an_intent() -> None:
    notebook, charged = Notebook(), []

    @asynccontextmanager
    async def prepare(caller: Caller, body: bytes) -> AsyncIterator[Prepared]:
        yield Prepared((Right("spawn"),), never, error=Busy("full"))

    syscall = Syscall(Op.SPAWN, None, prepare=prepare, audit="intent", charge=lambda caller: charged.append(caller.id))

    assert (await answered(syscall, caller(notebook, denied=["spawn"])))["code"] == "permission_denied"
    assert (await answered(syscall, caller(notebook)))["code"] == "busy"
    assert phases(notebook) == [("outcome", "permission_denied"), ("outcome", "busy")]
    assert charged == [7, 7]


async def test_a_call_is_charged_before_it_is_prepared_and_recorded() -> None:
    notebook, opened, charged = Notebook(), Opened(), []

    def charge(caller: Caller) -> None:
        charged.append(caller.id)
        raise QuotaExceeded("too many")

    syscall = prepared(Op.SPAWN, never, Right("spawn"), opened=opened, audit="intent", charge=charge)
    reply = await answered(syscall, caller(notebook))

    assert (reply["code"], charged) == ("quota_exceeded", [7])
    assert (opened.times, notebook.entries) == (0, [])


async def test_how_a_call_came_out_is_written_down_whatever_it_was() -> None:
    notebook = Notebook()

    async def read(call: Call) -> object:
        call.remark = "half of it"
        raise Busy("later")

    await answered(prepared(Op.READ, read, Right("read", "/a"), audit="outcome"), caller(notebook))

    assert phases(notebook) == [("outcome", "busy")]
    assert notebook.entries[0].about == "/a (half of it)"


async def test_of_a_withdrawn_call_it_is_written_that_it_was() -> None:
    notebook = Notebook()

    async def read(call: Call) -> object:
        await trio.sleep_forever()

    with trio.move_on_after(0):
        await answered(prepared(Op.READ, read, Right("read", "/a"), audit="outcome"), caller(notebook))

    assert phases(notebook) == [("outcome", "cancelled")]


async def test_a_call_that_needs_no_record_is_not_written_down() -> None:
    notebook = Notebook()

    async def wait(call: Call) -> object:
        return {}

    await answered(prepared(Op.WAIT, wait, Right("wait")), caller(notebook))

    assert notebook.entries == []


async def test_rights_are_read_without_doing_anything() -> None:
    notebook, opened, right = Notebook(), Opened(), Right("read", "/a")

    def prepare(caller: Caller, request: Path) -> Prepared:
        return Prepared((right,), never)

    for syscall in (
        prepared(Op.READ, never, right, opened=opened, audit="intent"),
        Syscall(Op.READ, Path, prepare=prepare),
    ):
        async with syscall.preview(caller(notebook, denied=["read"]), Path("x")) as found:
            assert found.rights == (right,)

    assert (opened.times, opened.now, notebook.entries) == (1, False, [])


async def test_a_call_that_answers_now_is_checked_first() -> None:
    notebook = Notebook()

    def prepare(caller: Caller, request: Path) -> Prepared:
        return Prepared((Right("keys", request.path),), lambda caller: {"path": request.path})

    async def act(caller: Caller) -> object:
        return {"path": "in order"}

    def prepare_in_order(caller: Caller, request: Path) -> Prepared:
        return Prepared((Right("keys", request.path),), act)

    for syscall in (
        Syscall(Op.KEYS, Path, prepare=prepare),
        Syscall(Op.KEYS, Path, prepare=prepare_in_order, in_order=True),
    ):
        assert "path" in await answered(syscall, caller(notebook), b'{"path": "a"}')
        for grants, code in (({"denied": ["keys"]}, "permission_denied"), ({"asked": ["keys"]}, "approval_required")):
            reply = await answered(syscall, caller(notebook, **grants), b'{"path": "a"}')
            assert reply["code"] == code
            assert notebook.entries.pop().about == "a"

    assert notebook.entries == []


def test_a_table_refuses_at_once_and_its_original_does_not() -> None:
    notebook = Notebook()
    table = Table((Syscall(Op.KEYS, None, lambda caller, body: b"{}"),))
    refusing = table.with_refusals({Op.KEYS: Decision("deny", "the rule", "no keys for you")})

    refuse, grant = refusing.entries[Op.KEYS].now, table.entries[Op.KEYS].now

    assert refuse is not None
    assert grant is not None
    reply = json.loads(refuse(caller(notebook), b""))
    assert (reply["code"], reply["error"], reply["rule"]) == ("permission_denied", "no keys for you", "the rule")
    assert phases(notebook) == [("outcome", "permission_denied")]
    assert grant(caller(notebook), b"") == b"{}"


@pytest.mark.parametrize(("effect", "code"), [("deny", "permission_denied"), ("ask", "approval_required")])
def test_a_call_without_rights_is_refused_by_its_entry(effect: Effect, code: str) -> None:
    notebook = Notebook()
    table = Table((Syscall(Op.KEYS, None, lambda caller, body: b"{}"),))

    refuse = table.with_refusals({Op.KEYS: Decision(effect, "the rule", "no keys for you")}).entries[Op.KEYS].now

    assert refuse is not None
    assert json.loads(refuse(caller(notebook), b""))["code"] == code
    assert phases(notebook) == [("outcome", code)]


def test_a_question_about_a_call_with_rights_is_left_to_its_entry() -> None:
    def prepare(caller: Caller, request: Path) -> Prepared:
        return Prepared((Right("keys"),), lambda caller: {})

    table = Table((Syscall(Op.KEYS, Path, prepare=prepare),))

    assert table.with_refusals({Op.KEYS: Decision("ask", "the rule", "somebody has to agree")}) is table
    assert table.with_refusals({Op.KEYS: Decision("deny", "the rule", "no keys for you")}).entries != table.entries
