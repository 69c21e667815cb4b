"""NOW, SLEEP and RANDOM: what they answer, how long a sleep lasts, and how many there can be."""

import base64
import json
import math
import time
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from agentos.kernel.call import Call
from agentos.kernel.caller import MAX_CALLS, Caller
from agentos.kernel.table import Table
from agentos.syscalls.clock import LONGEST_LOOK, Clock
from agentos_sdk.opcodes import Op
from tests.support.kernel import Kernel
from tests.support.rights import Grants, Notebook
from tests.support.runs.rows import each_row
from tests.support.wire import CANCEL, HELLO, NOW, RANDOM, SLEEP, Wire

EPOCH = 1_000_000.0


class Host:
    """A host's clock that goes with Trio's, and can be set."""

    def __init__(self) -> None:
        self.ahead = EPOCH

    def now(self) -> float:
        return trio.current_time() + self.ahead


async def ask(table: Table, op: Op, request: object, caller: Caller | None = None) -> Any:
    caller = caller or make_caller(table)
    body, entry = json.dumps(request).encode(), table.entries[op]
    if entry.now is not None:
        return json.loads(entry.now(caller, body))
    assert entry.later is not None
    return json.loads(await entry.later(Call(caller, streams=False), body))


def make_caller(table: Table, family: str = "agent 1", number: int = 1) -> Caller:
    return Caller(number, "agent", f"a{number}", table, Grants(), Notebook(), family=family)


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def table(host: Host) -> Table:
    return Table(Clock(host.now, lambda count: b"\xff" * count).syscalls())


async def test_now_is_the_hosts_time(autojump_clock: MockClock, host: Host, table: Table) -> None:
    assert await ask(table, Op.NOW, {}) == {"success": True, "now": host.now(), "rate": 1.0}


@each_row("request_", [{"seconds": 90}, {"seconds": "90s"}, {"until": EPOCH + 90}, {"seconds": 86400}])
async def test_a_sleep_ends_at_its_time_and_tells_it(
    autojump_clock: MockClock, host: Host, table: Table, request_: dict[str, Any]
) -> None:
    host.ahead = EPOCH - trio.current_time()
    lasts = 86400 if request_.get("seconds") == 86400 else 90

    reply = await ask(table, Op.SLEEP, request_)

    assert reply["success"]
    assert reply["now"] == pytest.approx(EPOCH + lasts)
    assert host.now() == reply["now"]


@each_row("request_", [{"seconds": 0}, {"until": EPOCH}, {"until": 0}])
async def test_a_sleep_until_now_or_before_ends_at_once(
    autojump_clock: MockClock, host: Host, table: Table, request_: dict[str, Any]
) -> None:
    host.ahead = EPOCH - trio.current_time()

    assert (await ask(table, Op.SLEEP, request_))["now"] == EPOCH


@each_row("ahead", [3000.0, -3000.0, 3900.5])
async def test_a_sleep_until_an_instant_sees_that_the_clock_was_set(
    autojump_clock: MockClock, host: Host, table: Table, ahead: float
) -> None:
    until = host.now() + 4000
    replies = list[Any]()

    async def sleep() -> None:
        replies.append(await ask(table, Op.SLEEP, {"until": until}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleep)
        await trio.sleep(100)
        host.ahead += ahead

    assert until <= replies[0]["now"] < until + LONGEST_LOOK


@each_row(
    ("body", "field"),
    [
        ({}, "seconds"),
        ({"seconds": 1, "until": 1}, "seconds"),
        ({"seconds": -1}, "seconds"),
        ({"seconds": 86401}, "seconds"),
        ({"seconds": math.nan}, "NaN"),
        ({"seconds": True}, "seconds"),
        ({"until": -1}, "until"),
        ({"until": "tomorrow"}, "until"),
        ({"until": 1e300}, "until"),
        ({"until": math.inf}, "Infinity"),
    ],
)
async def test_a_sleep_that_can_not_be_is_refused_by_its_field(
    autojump_clock: MockClock, table: Table, body: object, field: str
) -> None:
    reply = await ask(table, Op.SLEEP, body)

    assert reply["code"] == "bad_request"
    assert field in reply["error"]


@each_row("count", [-1, 0, 65537, 1 << 70, 1.5, "8", None])
async def test_random_bytes_are_bounded(autojump_clock: MockClock, table: Table, count: object) -> None:
    reply = await ask(table, Op.RANDOM, {"bytes": count})

    assert (reply["code"], "bytes" in reply["error"]) == ("bad_request", True)


@each_row("count", [1, 2, 65536])
async def test_random_bytes_are_as_many_as_asked_for(autojump_clock: MockClock, table: Table, count: int) -> None:
    assert base64.b64decode((await ask(table, Op.RANDOM, {"bytes": count}))["data"]) == b"\xff" * count


async def test_a_family_has_no_more_sleeps_than_one_caller_has_calls(autojump_clock: MockClock, table: Table) -> None:
    family = [make_caller(table, number=number) for number in (1, 2)]
    other, operator = make_caller(table, "agent 3", 3), make_caller(table, "", 4)

    async with trio.open_nursery() as nursery:
        for number in range(MAX_CALLS):
            nursery.start_soon(ask, table, Op.SLEEP, {"seconds": 1000}, family[number % 2])
        await wait_all_tasks_blocked()

        for caller in family:
            assert (await ask(table, Op.SLEEP, {"seconds": 1}, caller))["code"] == "quota_exceeded"
        for caller in (other, operator):
            assert (await ask(table, Op.SLEEP, {"seconds": 1}, caller))["success"]
        nursery.cancel_scope.cancel()

    assert (await ask(table, Op.SLEEP, {"seconds": 1}, family[0]))["success"], "what was cancelled gives its place back"


def test_a_guest_of_the_narrowest_level_may_make_these_calls(kernel: Kernel, wire: Wire) -> None:
    assert wire.call(HELLO, {"as": "guest", "level": "minimal"})["success"]

    before = time.time()
    now = wire.call(NOW)
    assert (before <= now["now"] <= time.time(), now["rate"]) == (True, 1.0)
    assert wire.call(SLEEP, {"until": before})["now"] >= now["now"]
    assert len({wire.call(RANDOM, {"bytes": 16})["data"] for _ in range(50)}) == 50


@pytest.mark.usefixtures("unharmed")
def test_a_sleep_ends_with_its_connection_or_when_it_is_withdrawn(kernel: Kernel) -> None:
    with kernel.connect() as wire:
        wire.hello()
        wire.send(SLEEP, {"seconds": 80000}, 7)
        wire.send(SLEEP, {"seconds": 80000}, 8)
        wire.send(CANCEL, {"id": 7}, 9)
        replies = {reply.id: reply.json for reply in (wire.receive(), wire.receive())}

        assert (replies[7]["code"], replies[9]["cancelled"]) == ("cancelled", True)
