"""An observer of calls: it is told of each one that ends, however it is answered."""

import time

import pytest
import trio
from attrs import Factory, frozen

from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Right
from agentos.kernel.syscall import Syscall
from agentos.kernel.table import Table
from agentos.kernel.wire import connection_calls
from agentos.kernel.wire.replies import encode_error
from agentos_sdk.errors import Busy, Cancelled
from agentos_sdk.opcodes import Op, op_name
from tests.support.rights import Grants, Notebook, require_right

Seen = list[tuple[str, object]]


@frozen
class What:
    what: str = ""


@frozen
class Watching:
    """Notes what ends, with its answer, and what passes by."""

    seen: Seen
    answers: list[bytes | None] = Factory(list)
    passed: list[tuple[str, bytes, bytes]] = Factory(list)

    def begin(self, call: Call | None) -> int:
        return time.time_ns()

    def end(self, caller: Caller, op: int, request: object, outcome: object, answer: bytes | None, began: int) -> None:
        assert 0 <= time.time_ns() - began < 60e9
        self.seen.append((Op(op).name, type(outcome).__name__ if isinstance(outcome, BaseException) else outcome))
        self.answers.append(answer)

    def pass_by(self, caller: Caller, op: int, body: bytes, answer: bytes) -> None:
        self.passed.append((op_name(op), body, answer))

    def miss(self, caller: Caller, what: str) -> None:
        raise AssertionError(what)


def observed_table(watching: Watching) -> Table:
    def refuse(caller: Caller, request: What) -> object:
        raise Busy("full")

    async def in_order(caller: Caller, request: What) -> object:
        await trio.lowlevel.checkpoint()
        return "list"

    async def wait(call: Call, request: What) -> object:
        await trio.sleep_forever() if request.what else await trio.lowlevel.checkpoint()
        return "waited"

    return Table(
        (
            Syscall(Op.NOOP, None, lambda caller, body: body),
            Syscall(Op.KEYS, What, refuse),
            Syscall(Op.TREE, What, lambda caller, request: require_right(caller, Right("dubious"))),
            Syscall(Op.LIST, What, in_order, in_order=True),
            Syscall(Op.WAIT, What, wait),
        ),
        watching,
    )


async def _send(chunk: bytes) -> None: ...


async def test_each_way_to_answer_tells_of_the_end(autojump_clock: object) -> None:
    watching = Watching(seen := Seen())
    table = observed_table(watching)
    caller = Caller(7, "agent", "tester", table, Grants(asked=["dubious"]), Notebook())
    now, turn, later = table.entries, table.entries[Op.LIST].turns, table.entries[Op.WAIT].later
    assert turn is not None
    assert later is not None

    for op, body in ((Op.NOOP, b"x"), (Op.KEYS, b"{}")):
        answer = now[op].now
        assert answer is not None
        answer(caller, body)
    await turn(caller, b"{}")
    await later(Call(caller, streams=True, send=_send), b"{}")
    call = Call(caller, streams=True, send=_send)
    with trio.move_on_after(0.01), call.scope:
        await later(call, b'{"what": "for ever"}')
    await table.perform(Op.WAIT, Call(caller, streams=True, send=_send), What())

    assert seen == [
        ("NOOP", b"x"),
        ("KEYS", "Busy"),
        ("LIST", "list"),
        ("WAIT", "waited"),
        ("WAIT", "Cancelled"),
        ("WAIT", "waited"),
    ]
    refusal = encode_error(Busy("full"))
    assert watching.answers == [b"x", refusal, b'"list"', b'"waited"', None, None]  # none: cancelled, or a gateway's


def test_a_call_that_is_always_refused_is_told_of_without_its_request() -> None:
    table = observed_table(Watching(seen := Seen())).with_refusals({Op.WAIT: Decision("deny", "the rule", "no")})
    caller = Caller(7, "agent", "tester", table, Grants(), Notebook())
    refuse = table.entries[Op.WAIT].now
    assert refuse is not None

    refuse(caller, b"{}")

    assert seen == [("WAIT", "PermissionDenied")]


@pytest.mark.parametrize("body", [b"{", b"[]"])
def test_a_request_that_cannot_be_read_passes_by(body: bytes) -> None:
    watching = Watching(seen := Seen())
    table = observed_table(watching)
    answer = table.entries[Op.KEYS].now
    assert answer is not None

    reply = answer(Caller(7, "agent", "tester", table, Grants(), Notebook()), body)

    assert seen == []
    assert watching.passed == [("KEYS", body, reply)]


async def test_what_never_comes_to_its_steps_passes_by() -> None:
    watching = Watching([])
    table = observed_table(watching)
    caller = Caller(7, "agent", "tester", table, Grants(), Notebook())
    unknown, later = table.entries[0x99].now, table.entries[Op.WAIT].later
    assert unknown is not None
    assert later is not None

    answers = [
        unknown(caller, b"?"),
        await later(Call(caller, streams=True, send=_send), b"{"),
        table.withdraw(caller, Op.LIST, b"{}", Cancelled("withdrawn")),
        await connection_calls.cancel(caller, {}, b'{"id": 9}'),
        connection_calls.leave(caller, b""),
    ]

    assert [op for op, _, _ in watching.passed] == ["0x99", "WAIT", "LIST", "CANCEL", "EXIT"]
    assert [answer for _, _, answer in watching.passed] == answers


async def test_chunks_are_seen_before_they_are_sent() -> None:
    seen = list[tuple[str, bytes]]()

    async def send(chunk: bytes) -> None:
        seen.append(("sent", chunk))

    call = Call(Caller(7, "agent", "tester", Table(()), Grants(), Notebook()), streams=True, send=send)
    call.tee(lambda chunk: seen.append(("seen", chunk)))

    await call.send(b"a")

    assert seen == [("seen", b"a"), ("sent", b"a")]
