"""What the life after a crash is answered, when it goes live, and which life it goes on with."""

import json
from base64 import b64encode
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve

from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.table import Table
from agentos.recordings.format import Life, write_body
from agentos.recordings.own import Marks
from agentos.recordings.reader import RecordedCall, Recording, read_recording
from agentos.recordings.replay.life import load_calls
from agentos.recordings.replay.progress import ReplayFailed
from agentos.recordings.replay.resume import find_last, find_leased, has_crashed, renumber
from agentos.recordings.replay.switch import Switch
from agentos_sdk.calls.state import Store
from agentos_sdk.errors import Unavailable
from agentos_sdk.opcodes import Op
from agentos_sdk.values import End
from tests.recordings.replay.test_switch import STORES, ask, call, load, stored
from tests.recordings.written import line, write_recording
from tests.support.rights import Grants, Notebook

RESUMED = Switch(live=True)
OVERLAPPING = [STORES[0], evolve(STORES[1], end=6), STORES[2], stored(7, "d", None)]


async def test_it_is_live_when_all_that_has_an_answer_was_made_again() -> None:
    life = load([*STORES[:2], stored(5, "c", None)], RESUMED)

    assert life.left == 2
    assert [await ask(life, key) for key in ("a", "b")] == STORES[:2]
    assert not life.live.is_set()
    assert [await ask(life, key) for key in ("c", "a")] == [None] * 2
    assert life.live.is_set()


async def test_the_call_under_way_at_the_crash_is_made_when_all_others_were() -> None:
    life, done = load([*STORES[:2], stored(5, "c", None)], RESUMED), trio.Event()
    async with trio.open_nursery() as nursery:

        async def under_way() -> None:
            assert await ask(life, "c") is None
            done.set()

        nursery.start_soon(under_way)
        assert await ask(life, "a") == STORES[0]
        assert not done.is_set()
        assert await ask(life, "b") == STORES[1]
        await done.wait()


@pytest.mark.parametrize("switch", [RESUMED, Switch(7, live=True)])
async def test_a_stream_in_which_other_calls_were_made_is_told_as_far_as_it_came_and_breaks_off(switch: Switch) -> None:
    life = load([evolve(stored(1, "open", None), end=9, chunks=({"delta": "a"},)), *STORES[1:3]], switch)
    told, broken = trio.Event(), trio.Event()

    async def take(chunk: bytes) -> None:
        assert json.loads(chunk) == {"delta": "a"}
        told.set()

    async def read() -> None:
        asked = Call(Caller(9, "agent", "coder", Table([]), Grants(), Notebook()), streams=True, send=take)
        with pytest.raises(Unavailable, match="breaks off"):
            await life.answer(Op.STORE, asked, Store(key="open", value=1, scope="global"), None)
        broken.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await told.wait()
        assert await ask(life, "b") == STORES[1]
        assert not broken.is_set()
        assert await ask(life, "c") == STORES[2]

    assert await ask(life, "open") is None
    assert life.live.is_set()


async def test_a_call_that_was_not_made_before_ends_it_at_once() -> None:
    life = load(STORES, RESUMED)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, life, "another")
        await life.over.wait()
        nursery.cancel_scope.cancel()

    assert (life.progress.verdict, life.live.is_set()) == ("diverged", False)


async def test_a_thread_that_is_ahead_waits_for_those_behind() -> None:
    life, found = load(OVERLAPPING, RESUMED), list[str]()
    async with trio.open_nursery() as nursery:

        async def run(*keys: str) -> None:
            for key in keys:
                await ask(life, key)
                found.append(key)

        nursery.start_soon(run, "a", "new")
        nursery.start_soon(run, "b", "c")

    assert found[-1] == "new"
    assert life.live.is_set()
    assert life.progress.verdict is None


async def test_a_thread_that_no_other_one_follows_has_left_the_recorded_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentos.recordings.replay.life.HELD", 0.0)
    life = load(OVERLAPPING, RESUMED)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, life, "new")
        await life.over.wait()
        nursery.cancel_scope.cancel()

    assert life.progress.verdict == "diverged"


async def test_the_call_under_way_is_not_made_where_no_other_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentos.recordings.replay.life.HELD", 0.0)
    life = load([*STORES[:2], stored(5, "c", None)], RESUMED)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, life, "c")
        await life.over.wait()
        nursery.cancel_scope.cancel()

    assert (life.progress.verdict, life.live.is_set()) == ("diverged", False)


def test_what_was_leased_and_not_acknowledged_is_leased_again() -> None:
    def receive(number: int, *ids: int, **request: object) -> RecordedCall:
        return call(number, "RECV", {"success": True, "messages": [{"id": each} for each in ids]}, **request)

    acked, late = {"success": True, "acked": 1}, {"success": False, "code": "not_found"}
    calls = [receive(1, 5), receive(3, 6, 7, lease=30), call(5, "ACK", acked, ids=[6]), call(7, "ACK", late, ids=[7])]

    assert find_leased(calls) == {7: 30}
    assert find_leased([*calls, receive(9, lease=5), call(11, "RECV", None, lease=5)]) == {7: 30}


def test_the_next_kernels_id_stands_in_the_place_of_the_former_one() -> None:
    listed = b64encode(b'[{"id":2,"parent":null,"pid":2},{"id":3,"parent":2}]').decode()
    change = partial(renumber, former=2, present=9)

    explained = change(call(1, "EXPLAIN", {"success": True, "agent": {"id": 2}, "count": 2}, agent=2, args={"id": 5}))
    assert explained.request == {"agent": 9, "args": {"id": 5}}
    assert explained.reply == {"success": True, "agent": {"id": 9}, "count": 2}
    found = change(call(1, "LIST", {"base64": listed})).reply
    assert json.loads(write_body(found or {})) == [{"id": 9, "parent": None, "pid": 2}, {"id": 3, "parent": 9}]
    mail = call(1, "MAIL", {"success": True, "messages": [{"id": 2}]}, id=2)
    assert [change(same) for same in (mail, CUT, THOUGHT)] == [mail, CUT, THOUGHT]


CUT = call(1, "LIST", {"base64": b64encode(b"[{").decode()})
THOUGHT = call(1, "THINK", agent_id=2)


@pytest.mark.parametrize(
    ("life", "ended", "end", "crashed"),
    [
        ({"ended": 2.0, "failed": True}, 2.0, None, True),
        ({"ended": 2.0}, 2.0, End(1, None, "exit status 1"), False),
        ({}, None, None, True),  # the kernel was killed
        ({}, 2.0, None, False),  # the recording ended first, and the kernel in good order
        ({}, 2.0, End(0, None, "exit status 0"), False),
        ({}, 2.0, End(None, 9, "killed by SIGKILL"), True),
        ({}, 2.0, End(None, 15, "stopped: by the operator"), False),
    ],
)
def test_a_life_that_failed_or_ended_with_the_kernel_has_crashed(
    tmp_path: Path, life: dict[str, Any], ended: float | None, end: End | None, crashed: bool
) -> None:
    made = [("coder", 1, True), ("coder", 3, True), ("coder", 5, False), ("b", 7, True)]
    for number, (name, began, automatic) in enumerate(made, 1):
        lives, own = [Life(f"{name}/1", name, 1.0, **life)], f"{name}-{number}"
        facts: dict[str, Any] = {"name": own, "began": began, "ended": ended, "automatic": automatic, "lives": lives}
        write_recording(tmp_path / f"{own}.recording", [], Marks(b"key"), **facts)

    found = find_last(tmp_path, Marks(b"key"), "coder")
    assert isinstance(found, Recording)
    assert found.manifest.name == "coder-2"
    assert has_crashed(found, end) == crashed
    assert find_last(tmp_path, Marks(b"key"), "another") is None


def test_a_life_whose_short_lines_are_long_questions_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "text": "x"}] * 2000}
    lines = [line(1, request=asked)]
    lines += [line(n, request={"as": 2 * n - 3, "first": 2000, "messages": []}) for n in range(2, 3000)]
    found = read_recording(write_recording(tmp_path / "coder-1.recording", lines))

    with pytest.raises(ReplayFailed, match=r"after 2,0\d\d of them, each whole, more than 4 GiB"):
        load_calls(found, found.manifest.lives[0])
