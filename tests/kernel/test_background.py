"""Calls with ``"async": true``: accepted at once, bounded, collected by ASYNC_POLL, and gone with their caller."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from attrs import frozen
from trio.testing import MockClock, wait_all_tasks_blocked

from agentos.kernel import background as module
from agentos.kernel.background import KEEP_SECONDS, MAX_CALLS, MAX_HELD_BYTES, MAX_ID_CHARS, MAX_TAKEN_BYTES, Background
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.syscall import Syscall
from agentos.kernel.table import Table
from agentos.syscalls import background as syscalls
from agentos_sdk.errors import BadRequest, Busy
from agentos_sdk.opcodes import Op
from tests.support.rights import Grants, Notebook


@frozen(kw_only=True)
class Sleep:
    seconds: float = 0
    size: int = 0
    async_: bool = False
    request_id: int | str | None = None


@frozen
class Client:
    """Makes calls as one connection of a caller; ``acts`` are those whose act has ended."""

    background: Background
    table: Table
    caller: Caller
    acts: list[float]

    async def ask(self, op: Op, fields: Mapping[str, object], streams: bool = False) -> Any:
        later = self.table.entries[op].later
        assert later is not None
        return json.loads(await later(Call(self.caller, streams, unused), json.dumps(fields).encode()))

    async def start(self, **fields: object) -> Any:
        return await self.ask(Op.EXEC, {"async": True, **fields})

    async def poll(self, **fields: object) -> Any:
        return await self.ask(Op.ASYNC_POLL, fields)


async def unused(chunk: bytes) -> None:
    raise AssertionError("nothing is streamed")


@asynccontextmanager
async def clients() -> AsyncIterator[Callable[[int], Client]]:
    background, acts = Background(), list[float]()

    async def sleep(call: Call, request: Sleep) -> object:
        await trio.sleep(request.seconds)
        acts.append(request.seconds)
        if request.seconds == 13:
            raise Busy("unlucky")
        return {"slept": request.seconds, "filler": "x" * request.size}

    table = Table((Syscall(Op.EXEC, Sleep, sleep, background=background), *syscalls.syscalls(background)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(background.serve)
        await wait_all_tasks_blocked()
        yield lambda number: Client(
            background, table, Caller(number, "agent", "tester", table, Grants(), Notebook()), acts
        )
        nursery.cancel_scope.cancel()


async def test_a_call_is_accepted_before_it_is_done_and_its_reply_is_collected_once(autojump_clock: MockClock) -> None:
    async with clients() as client:
        one = client(1)

        accepted = await one.start(seconds=5, request_id="a")
        assert accepted == {"success": True, "async": True, "request_id": "a", "status": "accepted"}
        assert await one.poll() == {"success": True, "results": [], "count": 0}
        await trio.sleep(6)
        found = await one.poll()

        assert found == {
            "success": True,
            "results": [
                {"request_id": "a", "opcode": 4, "opcode_name": "EXEC", "payload": '{"slept":5.0,"filler":""}'}
            ],
            "count": 1,
        }
        assert (await one.poll())["count"] == 0


async def test_replies_come_in_the_order_of_the_calls_and_a_failure_is_one(autojump_clock: MockClock) -> None:
    async with clients() as client:
        one = client(1)
        numbers = [(await one.start(seconds=seconds))["request_id"] for seconds in (13, 2, 1)]
        assert len(set(numbers)) == 3

        await trio.sleep(2.5)
        assert [each["request_id"] for each in (await one.poll(max=1))["results"]] == numbers[1:2]
        await trio.sleep(20)
        results = (await one.poll())["results"]

        assert [each["request_id"] for each in results] == [numbers[0], numbers[2]]
        assert json.loads(results[0]["payload"]) == {"success": False, "error": "unlucky", "code": "busy"}


async def test_a_reply_is_not_given_to_another_caller(autojump_clock: MockClock) -> None:
    async with clients() as client:
        await client(1).start(request_id=1)
        await trio.sleep(1)

        assert (await client(2).poll())["count"] == 0
        assert (await client(1).poll())["count"] == 1


async def test_at_most_64_run_or_wait_and_the_next_is_refused_before_it_begins(autojump_clock: MockClock) -> None:
    async with clients() as client:
        one = client(1)
        for number in range(MAX_CALLS):
            assert (await one.start(request_id=number, seconds=number % 2 * 100))["success"]
        await trio.sleep(1)

        refused = await one.start(seconds=7)
        assert (refused["success"], refused["code"]) == (False, "busy")
        assert "ASYNC_POLL" in refused["error"]
        assert (await client(2).start())["success"], "another caller has room"
        assert (await one.poll(max=1))["count"] == 1
        assert (await one.start(seconds=8))["success"]
        await trio.sleep(200)
        assert 7 not in one.acts
        assert 8 in one.acts


async def test_large_replies_that_are_not_collected_stop_further_calls(autojump_clock: MockClock) -> None:
    async with clients() as client:
        one, size = client(1), 2 << 20

        for _ in range(MAX_HELD_BYTES // size):
            assert (await one.start(size=size))["success"]
            await trio.sleep(1)
        assert (await one.start())["code"] == "busy"
        assert (await one.poll())["count"] == 1, "a large reply is alone in its poll"
        assert (await one.start())["success"]
        assert size > MAX_TAKEN_BYTES


async def test_calls_that_run_at_once_hold_no_more_replies_than_calls_one_after_the_other(
    autojump_clock: MockClock,
) -> None:
    async with clients() as client:
        one, size = client(1), 4 << 20
        for _ in range(MAX_CALLS):
            assert (await one.start(seconds=1, size=size))["success"]
        await trio.sleep(2)

        assert one.caller.allowance.replies < MAX_HELD_BYTES + size
        replies: list[Any] = []
        while found := (await one.poll())["results"]:
            replies += [json.loads(each["payload"]) for each in found]

        dropped = [each for each in replies if not each.get("success", True)]
        assert (len(replies), len(dropped)) == (MAX_CALLS, MAX_CALLS - MAX_HELD_BYTES // size)
        assert {each["code"] for each in dropped} == {"too_large"}
        assert "the call is done, but its reply of" in dropped[0]["error"]
        assert one.caller.allowance.replies == 0


async def test_held_replies_count_towards_their_callers_allowance_until_they_are_gone(
    autojump_clock: MockClock,
) -> None:
    async with clients() as client:
        one = client(1)
        await one.start(size=1000)
        await trio.sleep(1)
        allowance = one.caller.allowance.replies
        assert allowance > 1000

        taken = one.background.take(1, 10)
        assert one.caller.allowance.replies == 0
        one.background.put_back(1, taken)
        assert one.caller.allowance.replies == allowance
        await trio.sleep(KEEP_SECONDS + 2 * module.SWEEP_SECONDS)
        assert one.caller.allowance.replies == 0

        await one.start(size=1000)
        await trio.sleep(1)
        one.background.drop(1)
        assert one.caller.allowance.replies == 0


async def test_an_id_has_at_most_so_many_characters() -> None:
    async with clients() as client:
        assert (await client(1).start(request_id="a" * MAX_ID_CHARS))["success"]
        refused = await client(1).start(request_id="a" * (MAX_ID_CHARS + 1))
        assert f"at most {MAX_ID_CHARS} characters" in refused["error"]


async def test_a_reply_is_kept_for_ten_minutes_and_no_longer(autojump_clock: MockClock) -> None:
    async with clients() as client:
        one = client(1)
        await one.start(request_id=1)
        await trio.sleep(300)
        await one.start(request_id=2)
        await trio.sleep(KEEP_SECONDS - 299)

        assert [each["request_id"] for each in (await one.poll())["results"]] == [2]
        await one.start(request_id=3)
        await trio.sleep(KEEP_SECONDS + 2 * module.SWEEP_SECONDS)
        assert not one.background._calls, "nothing is left of callers that never come back"


async def test_a_caller_that_ends_takes_its_calls_with_it(autojump_clock: MockClock) -> None:
    async with clients() as client:
        one = client(1)
        await one.start(seconds=50)
        await one.start(seconds=0)
        await trio.sleep(1)

        one.background.drop(1)
        await trio.sleep(100)

        assert one.acts == [0]
        assert (await one.poll())["count"] == 0
        assert one.caller.allowance.calls == one.caller.allowance.requests == 0


async def test_a_reply_that_could_not_be_delivered_is_collected_again(autojump_clock: MockClock) -> None:
    async with clients() as client:
        one = client(1)
        await one.start(request_id=1)
        await one.start(request_id=2)
        await trio.sleep(1)
        call = Call(one.caller, False, unused)
        later = one.table.entries[Op.ASYNC_POLL].later
        assert later is not None
        await later(call, b'{"max": 1}')
        assert call.undelivered is not None

        call.undelivered()

        assert [each["request_id"] for each in (await one.poll())["results"]] == [1, 2]


async def test_a_call_under_way_counts_among_its_callers_calls(autojump_clock: MockClock) -> None:
    async with clients() as client:
        one = client(1)
        await one.start(seconds=5)
        await trio.sleep(1)
        assert one.caller.allowance.calls == 1
        await trio.sleep(5)
        assert one.caller.allowance.calls == 0


@pytest.mark.parametrize(
    ("fields", "streams", "named"),
    [({}, True, "async"), ({"request_id": "x" * 101}, False, "request_id"), ({"request_id": 1.5}, False, "request_id")],
)
async def test_what_cannot_run_in_the_background_is_refused_by_name(
    fields: dict[str, object], streams: bool, named: str
) -> None:
    async with clients() as client:
        reply = await client(1).ask(Op.EXEC, {"async": True, **fields}, streams)

        assert (reply["code"], reply["error"].partition(":")[0]) == (BadRequest.code, named)
