"""An observer of calls: it is told of each one that ends, however it is answered."""

import time

import pytest
import trio
from attrs import frozen

from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Right
from agentos.kernel.syscall import Syscall
from agentos.kernel.table import Table
from agentos_sdk.errors import Busy
from agentos_sdk.opcodes import Op
from tests.support.rights import Grants, Notebook, require_right

Seen = list[tuple[str, object]]


@frozen
class What:
    what: str = ""


def observed_table(seen: Seen) -> Table:
    def observe(caller: Caller, op: int, request: object, outcome: object, began: int) -> None:
        assert 0 <= time.time_ns() - began < 60e9
        seen.append((Op(op).name, type(outcome).__name__ if isinstance(outcome, BaseException) else outcome))

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
        observe,
    )


async def _send(chunk: bytes) -> None: ...


async def test_each_way_to_answer_tells_of_the_end() -> None:
    seen: Seen = []
    table = observed_table(seen)
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


def test_a_call_that_is_always_refused_is_told_of_without_its_request() -> None:
    seen: Seen = []
    table = observed_table(seen).with_refusals({Op.WAIT: Decision("deny", "the rule", "no")})
    caller = Caller(7, "agent", "tester", table, Grants(), Notebook())
    refuse = table.entries[Op.WAIT].now
    assert refuse is not None

    refuse(caller, b"{}")

    assert seen == [("WAIT", "PermissionDenied")]


@pytest.mark.parametrize("body", [b"{", b"[]"])
def test_a_request_that_cannot_be_read_is_no_call(body: bytes) -> None:
    seen: Seen = []
    table = observed_table(seen)
    answer = table.entries[Op.KEYS].now
    assert answer is not None

    answer(Caller(7, "agent", "tester", table, Grants(), Notebook()), body)

    assert seen == []
