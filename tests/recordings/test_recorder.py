"""The recorder: what it takes from the event loop, what it writes, and how a recording ends."""

import errno
import json
import os
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import Factory, frozen

from agentos.agents.registry import Agent
from agentos.agents.spec import AgentSpec
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.syscall import Syscall
from agentos.kernel.table import Table
from agentos.recordings.format import SUFFIX, encode_line
from agentos.recordings.reader import RecordedCall, Recording, read_recording
from agentos.recordings.recorder import queue, writer
from agentos.recordings.recorder import recorder as recorder_module
from agentos.recordings.recorder.active import Active
from agentos.recordings.recorder.lines import LineMaker, Seen
from agentos.recordings.recorder.recorder import Recorder, open_recorder
from agentos.recordings.recorder.selection import RecordingSettings, Selection
from agentos.services.events import AgentExited, AgentSpawned
from agentos.services.rate_limit import Rate
from agentos_sdk.errors import Busy
from agentos_sdk.opcodes import Op
from tests.support.rights import Grants, Notebook
from tests.support.wire import PATIENCE

KEY = "sk-canary-0123456789"
MAX_LINE = 1 << 20


@frozen
class What:
    what: str = ""


async def _send(chunk: bytes) -> None: ...


@asynccontextmanager
async def recording(
    place: Path, max_bytes: int | None = None, max_entries: int | None = None
) -> AsyncIterator[tuple[Recorder, Active]]:
    async with open_recorder(place, RecordingSettings()) as recorder:
        recorder.maker.list_secrets = lambda: [("vendor", KEY), ("short", KEY[:12])]
        yield recorder, recorder.start("coder", Selection([7]), max_bytes, max_entries)


def make_caller(recorder: Recorder, number: int = 7) -> Caller:
    async def wait(call: Call, request: What) -> object:
        if request.what == "stream":
            await call.send(b'{"delta": "a"}')
            await call.send(b'{"delta": "b"}')
        if request.what == "forever":
            await trio.sleep_forever()
        return {"success": True, "said": request.what}

    def refuse(caller: Caller, request: What) -> object:
        raise Busy("full")

    calls = (
        Syscall(Op.NOOP, None, lambda caller, body: body, limit=64 << 20),
        Syscall(Op.KEYS, What, refuse),
        Syscall(Op.WAIT, What, wait),
    )
    return Caller(number, "guest", "tester", Table(calls, recorder), Grants(), Notebook())


def noop(caller: Caller, body: bytes = b"{}") -> None:
    now = caller.table.entries[Op.NOOP].now
    assert now is not None
    now(caller, body)


async def ask(caller: Caller, what: str) -> None:
    later = caller.table.entries[Op.WAIT].later
    assert later is not None
    await later(Call(caller, streams=True, send=_send), json.dumps({"what": what}).encode())


def read(active: Active, place: Path) -> tuple[Recording, Sequence[RecordedCall]]:
    found = read_recording(place / f"{active.manifest.name}{SUFFIX}")
    return found, [*found.calls()]


async def test_each_call_is_a_line_in_the_order_of_the_ends(tmp_path: Path) -> None:
    async with recording(tmp_path) as (recorder, active):
        caller = make_caller(recorder)
        noop(caller, b"\xff")
        keys = caller.table.entries[Op.KEYS].now
        assert keys is not None
        keys(caller, b'{"what": "x"}')
        keys(caller, b"{")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, caller, "forever")
            await trio.testing.wait_all_tasks_blocked()
            await ask(caller, "stream")
            nursery.cancel_scope.cancel()
        recorder.stop(active)
        await recorder.queue.flush()

        _, calls = read(active, tmp_path)

    assert [(each.call, each.outcome) for each in calls] == [
        *(("NOOP", None), ("KEYS", None), ("KEYS", None)),
        *(("WAIT", None), ("WAIT", "cancelled")),
    ]
    raw, full, unread, streamed, cancelled = calls
    assert (raw.request, raw.reply) == ({"base64": "/w=="}, {"base64": "/w=="})
    assert full.request == {"what": "x"}
    assert full.reply is not None
    assert full.reply["code"] == "busy"
    assert unread.request == {"base64": "ew=="}
    assert unread.reply is not None
    assert unread.reply["code"] == "bad_request"
    assert streamed.chunks == ({"delta": "a"}, {"delta": "b"})
    assert (cancelled.request, cancelled.reply) == ({"what": "forever"}, None)
    assert cancelled.begin < streamed.begin < streamed.end < cancelled.end
    assert len({number for each in calls for number in (each.begin, each.end)}) == 2 * len(calls)


async def test_a_caller_that_is_not_chosen_is_not_recorded(tmp_path: Path) -> None:
    async with recording(tmp_path) as (recorder, active):
        noop(make_caller(recorder, 8))
        assert (recorder.wants(7), recorder.wants(8)) == (True, False)
        recorder.stop(active)
        noop(make_caller(recorder, 7))
        assert not recorder.wants(7)

    assert read(active, tmp_path)[1] == []


async def test_what_the_kernel_holds_is_never_written(tmp_path: Path) -> None:
    async with recording(tmp_path) as (recorder, active):
        caller = make_caller(recorder)
        await ask(caller, f"a {KEY} and {KEY[:12]}")
        noop(caller, json.dumps({"deep": [{KEY: KEY}]}).encode())

    [told, noted] = read(active, tmp_path)[1]
    assert told.request["what"] == "a ⟦secret 1 vendor⟧ and ⟦secret 2 short⟧"
    assert noted.request == {"deep": [{"⟦secret 1 vendor⟧": "⟦secret 1 vendor⟧"}]}
    assert KEY[:12].encode() not in (tmp_path / "coder-1.recording" / "calls.jsonl").read_bytes()


@pytest.mark.parametrize("value", [KEY, 'sk-"quoted"\\canary/0123~~~>>>'])
def test_what_the_kernel_holds_is_found_within_base64_and_json_texts(value: str) -> None:
    maker = LineMaker(lambda result: result, lambda: [("vendor", value)])
    for before in range(4):
        data = b"\xff" * before + value.encode() + b"\xfe"
        for encode, decode in ((b64encode, b64decode), (urlsafe_b64encode, urlsafe_b64decode)):
            line = json.loads(maker.mark_secrets(encode_line({"body": encode(data).decode()})))
            found = decode(line["body"])
            assert len(found) == len(data), "it stays base64"
            assert found[before + 1 : -2].strip(b"\0") == b"", before

    line = json.loads(maker.mark_secrets(encode_line({"text": json.dumps({"key": value})})))
    assert json.loads(line["text"]) == {"key": "⟦secret 1 vendor⟧"}
    assert maker.mark_secrets(b'{"call":"QUFB"}') == b'{"call":"QUFB"}'


async def fill_entries(caller: Caller) -> None:
    for _ in range(5):
        noop(caller)


async def fill_queue(caller: Caller) -> None:
    for _ in range(3):
        noop(caller, b"x" * (queue.MAX_WAITING_BYTES // 5))


async def make_a_long_line(caller: Caller) -> None:
    noop(caller)
    noop(caller, b"x" * (MAX_LINE))


ENDS: dict[str, tuple[Callable[[Caller], Any], dict[str, int], int, str]] = {
    "entries": (fill_entries, {"max_entries": 3}, 3, "the recording is full: it has 3 calls"),
    "bytes": (fill_entries, {"max_bytes": 350}, 3, "the recording is full: its calls took 350 bytes"),
    "waiting": (fill_queue, {}, 2, "calls came faster than they could be written"),
    "line": (make_a_long_line, {}, 1, "a call took more than 1 MiB"),
}


@pytest.mark.parametrize("case", ENDS)
async def test_a_recording_that_is_full_ends_and_says_why(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((queue, "MAX_WAITING_BYTES"), (writer, "MAX_LINE_BYTES")):
        if case in name.lower():
            monkeypatch.setattr(module, name, MAX_LINE)
    fill, bounds, written, reason = ENDS[case]
    async with recording(tmp_path, **bounds) as (recorder, active):
        caller = make_caller(recorder)
        await fill(caller)
        await recorder.queue.flush()
        await recorder.queue.flush()
        assert active not in recorder.active
        noop(caller)  # the caller goes on

    found, calls = read(active, tmp_path)
    assert len(calls) == written
    assert found.manifest.reason == reason
    assert found.manifest.ended is not None
    assert [(life.replayable, life.reason) for life in found.manifest.lives] == [(False, "its caller is no agent")]


@pytest.mark.parametrize("size", [0, MAX_LINE // 10], ids=["calls", "bytes"])
async def test_an_agent_that_floods_ends_its_own_recording_and_no_other(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "MAX_WAITING_BYTES", MAX_LINE)
    monkeypatch.setattr(queue, "MAX_WAITING", 10)
    async with recording(tmp_path) as (recorder, flooded):
        other = recorder.start("calm", Selection([8]))
        flooding, calm = make_caller(recorder), make_caller(recorder, 8)
        for _ in range(50):
            noop(flooding, b"x" * size)
        noop(calm, b"x" * size)
        assert recorder.active == [other]
        await recorder.queue.flush()
        for _ in range(50):
            noop(calm, b"x" * size)
        await recorder.queue.flush()

    assert read(other, tmp_path)[0].manifest.reason == "calls came faster than they could be written"
    assert 0 < len(read(flooded, tmp_path)[1]) <= 10
    assert 1 < len(read(other, tmp_path)[1]) <= 11, "alone it has all room again"


async def test_a_full_disk_ends_the_recording_and_leaves_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, room = os.write, 500

    def write_while_there_is_room(fd: int, data: Any) -> int:
        nonlocal room
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real(fd, bytes(data)[:room])
        room -= done
        return done

    async with recording(tmp_path) as (recorder, active):
        caller = make_caller(recorder)
        noop(caller)
        await recorder.queue.flush()
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write_while_there_is_room)
            for _ in range(20):
                noop(caller)
            await recorder.queue.flush()
        assert active not in recorder.active

    found, calls = read(active, tmp_path)
    assert len(calls) == 1
    assert found.manifest.reason == "it can't be written: No space left on device"


async def test_a_recording_that_is_removed_ends(tmp_path: Path) -> None:
    async with recording(tmp_path) as (recorder, active):
        caller = make_caller(recorder)
        noop(caller)
        await recorder.queue.flush()
        os.unlink(tmp_path / "coder-1.recording" / "calls.jsonl")
        os.unlink(tmp_path / "coder-1.recording" / "recording.json")
        os.rmdir(tmp_path / "coder-1.recording")
        noop(caller)
        await recorder.queue.flush()

        assert active not in recorder.active
        assert recorder.start("coder", Selection([7])).manifest.name == "coder-2"


async def test_a_flush_during_the_last_write_ends_with_it(tmp_path: Path) -> None:
    async with recording(tmp_path) as (recorder, active), trio.open_nursery() as nursery:
        nursery.start_soon(recorder.queue.flush)
        while recorder.queue._under_way is None:
            await trio.lowlevel.checkpoint()

        with trio.fail_after(PATIENCE):
            await recorder.queue.flush()

        assert (tmp_path / f"{active.manifest.name}{SUFFIX}" / "recording.json").exists()


async def test_what_is_queued_at_the_end_is_written(tmp_path: Path) -> None:
    async with recording(tmp_path) as (recorder, active):
        for _ in range(100):
            noop(make_caller(recorder))

    assert len(read(active, tmp_path)[1]) == 100


async def test_a_bug_in_the_recorder_is_no_failure_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with recording(tmp_path) as (recorder, _):
        caller = make_caller(recorder)
        monkeypatch.setattr(recorder_module, "measure", lambda request: 1 / 0)

        noop(caller)

    assert "the recording of a call" in caplog.text


def test_a_batch_that_cannot_be_described_ends_no_thread(tmp_path: Path) -> None:
    maker = LineMaker(lambda result: result, tuple)
    target = writer.Target(tmp_path / "a.recording", 1000)
    seen = Seen("coder/1", Op.WAIT, (1, 2), 0, 0, object(), None, b"{}")

    writer.write(maker, writer.Batch([(seen, [target])]))

    assert target.ended == "the call WAIT could not be written: NotAnAttrsClassError"


@frozen
class Below:
    """An observer of all calls."""

    told: list[str] = Factory(list)

    def begin(self, call: Call | None) -> str:
        return "began"

    def end(self, caller: Caller, op: int, request: Any, outcome: object, answer: bytes | None, began: Any) -> None:
        self.told.append(f"{Op(op).name} {began}")

    def pass_by(self, caller: Caller, op: int, body: bytes, answer: bytes) -> None:
        self.told.append(f"{Op(op).name} passed")

    def miss(self, caller: Caller, what: str) -> None:
        raise AssertionError(what)


async def test_an_observer_of_all_calls_is_told_of_recorded_ones_as_well(tmp_path: Path) -> None:
    async with recording(tmp_path) as (recorder, active):
        recorder.below = below = Below()
        caller = make_caller(recorder)
        noop(caller)
        keys = caller.table.entries[Op.KEYS].now
        assert keys is not None
        keys(caller, b"{")

        assert below.told == ["NOOP began", "KEYS passed"]
        assert active.entries == 2


def add_spawned(recorder: Recorder, number: int, name: str, parent: Agent | None = None) -> Agent:
    caller = Caller(number, "agent", name, Table((), None), Grants(), Notebook())
    agent = Agent(AgentSpec(name), caller, ("root",), parent, 1, None, (), Rate(1, 1))
    recorder.registry.add(agent)
    return agent


async def test_a_tree_covers_what_was_spawned_below_it_and_nothing_else(tmp_path: Path) -> None:
    async with open_recorder(tmp_path, RecordingSettings()) as recorder:
        chief = add_spawned(recorder, 1, "chief")
        child = add_spawned(recorder, 2, "child", chief)
        add_spawned(recorder, 3, "grandchild", child)
        add_spawned(recorder, 4, "other")
        recorder.start("chief", Selection((), frozenset(["chief"]), tree=True))

        assert [recorder.wants(number) for number in (1, 2, 3, 4)] == [True, True, True, False]
        assert not Selection((), frozenset(["chief"])).covers_agent(child)


async def test_an_agent_that_is_spawned_anew_goes_on_with_the_numbers_of_the_former_ones_lives(tmp_path: Path) -> None:
    async with open_recorder(tmp_path, RecordingSettings()) as recorder:
        active = recorder.start("all", Selection())
        for number in (5, 6):
            agent = add_spawned(recorder, number, "child")
            for _ in range(2):
                recorder.take_event(AgentSpawned(number, "child"))
                agent.lives += 1
                recorder.take_event(AgentExited(number, "child", "exit status 0"))
            agent.over.set()

        assert [life.life for life in active.manifest.lives] == [f"child/{number}" for number in range(1, 5)]
        assert all(life.ended is not None for life in active.manifest.lives)
