"""The events on disk: what the next kernel knows of the last one's, and what it says about the rest."""

import errno
import os
from pathlib import Path

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.services.event_log import file
from agentos.services.event_log.file import BOOT_STEP, KEPT_FILES, EventFiles, choose_first, open_event_log
from agentos.services.event_log.ring import MAX_RECORDS, Boot, EventLog
from agentos.services.events import AgentReady, CustomEvent, StateChanged
from tests.services.event_log.test_ring import Rules, agent, read, watch


def publish(log: EventLog, count: int, name: str = "w") -> None:
    for number in range(count):
        log.take_event(AgentReady(3, name, number))


async def test_events_survive_an_orderly_end(tmp_path: Path) -> None:
    async with open_event_log(tmp_path / "events") as first:
        publish(first, 3)
        first.take_event(CustomEvent(5, "é", "custom.x", msgspec.Raw(b'{"a":\n",\\"agent_ids\\":["}')))
        first.take_event(StateChanged("global", 'plan,"agent_ids":[', 1, None, False))
    async with open_event_log(tmp_path / "events") as second:
        second.take_event(AgentReady(3, "w", 9))
        everything = watch(second)
        start = second.locate(2, first.boot)
        everything.move(start.place)

        events, missed = await read(second, everything)

    assert (start.boot_changed, start.cut_off, start.missed, missed) == (True, False, 0, 0)
    assert [event["seq"] for event in events] == [3, 4, 5, BOOT_STEP + 1]
    assert [event["boot"] for event in events] == [first.boot] * 3 + [second.boot]
    assert events[1]["data"] == {"a": ',"agent_ids":['}
    assert events[2]["data"]["key"] == 'plan,"agent_ids":['


async def test_events_are_written_also_if_the_kernel_is_cancelled(tmp_path: Path) -> None:
    with trio.CancelScope() as kernel:
        async with open_event_log(tmp_path) as log:
            publish(log, 3)
            kernel.cancel()

    boots, records = EventFiles(tmp_path).load()
    assert ([record.seq for record in records], [boot.last for boot in boots]) == ([1, 2, 3], [3])


async def test_agents_do_not_see_events_of_those_that_had_their_ids(tmp_path: Path) -> None:
    async with open_event_log(tmp_path / "events") as first:
        publish(first, 3)
    async with open_event_log(tmp_path / "events") as second:
        namesake = watch(second, rules=Rules(agent(3), names={"w"}))
        namesake.move(second.locate(0, None).place)

        assert await read(second, namesake) == ([], 0)


async def test_a_run_that_was_killed_is_cut_off(tmp_path: Path) -> None:
    files, log = EventFiles(tmp_path), EventLog(boot="b0")
    publish(log, 5)
    files.append(log.boots[-1], log.list_from(0, 5))
    async with open_event_log(tmp_path) as later:
        start = later.locate(3, "b0")
        assert (start.boot_changed, start.cut_off, start.missed) == (True, True, 0)
        assert later.locate(3, None) == start
    async with open_event_log(tmp_path) as latest:
        assert latest.locate(3, "b0").cut_off
        assert not latest.locate(later.next - 1, later.boot).cut_off


async def test_the_number_before_the_first_event_of_a_run_is_of_this_run(tmp_path: Path) -> None:
    async with open_event_log(tmp_path / "events") as first:
        publish(first, 3)
    async with open_event_log(tmp_path / "events") as second:
        before = second.next - 1
        publish(second, 2)

        start = second.locate(before, None)

    assert (start.place, start.boot_changed, start.missed) == (before + 1, False, 0)


@pytest.mark.parametrize("since", [5, 700, BOOT_STEP + 7])
async def test_a_number_from_a_forgotten_run_is_not_taken_for_one_of_this(tmp_path: Path, since: int) -> None:
    log = EventLog(boot="b9")
    publish(log, 10)

    start = log.locate(since, "b1")
    assert (start.boot_changed, start.cut_off) == (True, True)
    assert log.locate(since, None).boot_changed == (since > 10)


async def test_a_torn_line_and_rubbish_are_skipped(tmp_path: Path) -> None:
    async with open_event_log(tmp_path) as first:
        publish(first, 3)
    path = tmp_path / "1.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"\xff{]\n", b"7\n", b'{"seq":5}\n', lines[3], lines[4][:40]]))

    boots, records = EventFiles(tmp_path).load()

    assert [record.seq for record in records] == [1, 2]
    async with open_event_log(tmp_path) as second:
        publish(second, 1)
    assert [record.boot for record in EventFiles(tmp_path).load()[1]] == [first.boot, first.boot, second.boot]
    assert boots == [Boot(first.boot, 1, None)]


async def test_files_are_bounded_and_have_the_last_events(tmp_path: Path) -> None:
    async with open_event_log(tmp_path) as first:
        for _ in range(10):
            publish(first, 3000)
            await trio.testing.wait_all_tasks_blocked()
    assert sum(name.endswith(".jsonl") for name in os.listdir(tmp_path)) <= KEPT_FILES
    async with open_event_log(tmp_path) as second:
        records = second.list_from(0, 1 << 30)
        assert [record.seq for record in records] == list(range(30_001 - MAX_RECORDS, 30_001))
        start = second.locate(1, None)
        assert (start.place, start.missed, start.cut_off) == (2, 30_000 - MAX_RECORDS - 1, False)


async def test_the_files_lose_no_event_of_others_in_a_flood_either(tmp_path: Path) -> None:
    async with open_event_log(tmp_path) as first:
        publish(first, 100, "quiet")
        for _ in range(12):
            for number in range(2500):
                first.take_event(StateChanged("agent", "x", number, 7, deleted=False))
            await trio.testing.wait_all_tasks_blocked(0.01)
        publish(first, 1, "quiet")
    assert sum(name.endswith(".jsonl") for name in os.listdir(tmp_path)) <= KEPT_FILES
    async with open_event_log(tmp_path) as second:
        records = second.list_from(0, 1 << 30)
        for _ in range(2):
            for number in range(MAX_RECORDS):
                second.take_event(StateChanged("agent", "x", number, 7, deleted=False))
        later = second.list_from(0, 1 << 30)

    for found in (records, later):
        assert [record.seq for record in found if record.names == ("quiet",)] == [*range(1, 101), 30_101]
    assert {record.boot for record in later} == {first.boot, second.boot}


async def test_a_full_disk_loses_no_event_while_the_ring_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full, write = [True], os.write

    def write_if_room(fd: int, data: bytes) -> int:
        if full[0] and len(data) > 10:
            write(fd, data[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    monkeypatch.setattr(os, "write", write_if_room)
    monkeypatch.setattr(file, "RETRY_DELAY", 0.01)
    async with open_event_log(tmp_path) as first:
        publish(first, 4)
        while not any(line.startswith(f"{tmp_path}: events can't be written") for line in caplog.messages):
            await trio.sleep(0.01)
        full[0] = False

    _, records = EventFiles(tmp_path).load()
    assert [record.seq for record in records] == [1, 2, 3, 4]


def test_a_disk_that_stays_full_removes_no_earlier_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, log = EventFiles(tmp_path), EventLog()
    publish(log, 5)
    files.append(log.boots[-1], log.list_from(0, 5))

    def refuse(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", refuse)
    files = EventFiles(tmp_path)
    files.load()
    for _ in range(3 * KEPT_FILES):
        with pytest.raises(OSError, match="No space"):
            files.append(Boot("b1", 7), [])

    assert [record.seq for record in EventFiles(tmp_path).load()[1]] == [1, 2, 3, 4, 5]


Ends = st.lists(st.tuples(st.integers(0, 60), st.booleans()), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(Ends, st.integers(1, 50))
def test_numbers_grow_over_any_number_of_runs_and_have_no_gaps_in_one(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int, bool]], batch: int
) -> None:
    place, published = tmp_path_factory.mktemp("events"), list[tuple[str, int]]()
    boot_ends = list[tuple[str, bool]]()
    for count, orderly in runs:
        files = EventFiles(place)
        boots, records = files.load()
        log = EventLog(first=choose_first(boots, records), earlier=boots, records=records)
        begin = log.next
        publish(log, count)
        published += [(log.boot, number) for number in range(log.next - count, log.next)]
        for at in range(begin, log.next, batch):
            files.append(log.boots[-1], log.list_from(at, batch))
        if orderly:
            files.append(log.boots[-1], [], log.next - 1)
        boot_ends.append((log.boot, orderly))

    boots, records = EventFiles(place).load()
    assert [(record.boot, record.seq) for record in records] == published[-MAX_RECORDS:]
    assert [number for _, number in published] == sorted({number for _, number in published})
    after = EventLog(first=choose_first(boots, records), earlier=boots, records=records)
    for boot, number in published[::7]:
        start = after.locate(number, boot)
        assert start.boot_changed
        assert start.missed == 0
        ends = dict(boot_ends[[each for each, _ in boot_ends].index(boot) :])
        assert start.cut_off == (not all(ends[each.id] for each in boots if each.id in ends))


def write_runs(place: Path, *counts: int) -> EventFiles:
    """Files of runs with so many events, each run after the last; returns those of the last one."""
    first = 1
    for number, count in enumerate(counts):
        files, log = EventFiles(place), EventLog(boot=f"b{number}", first=first)
        files.load()
        publish(log, count)
        for begin in range(0, count, file.BATCH):
            files.append(log.boots[-1], log.list_from(first + begin, file.BATCH))
        first += BOOT_STEP
    return files


def test_files_of_former_runs_may_go_and_no_event_of_this_one(tmp_path: Path) -> None:
    files = write_runs(tmp_path, 6000, 10, 4000)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["1.jsonl", "2.jsonl", "3.jsonl", "4.jsonl"]

    assert files.drop_former(1) >= 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["2.jsonl", "3.jsonl", "4.jsonl"]
    assert files.drop_former(1 << 40) > 0
    assert files.drop_former(1 << 40) == 0

    boots, records = EventFiles(tmp_path).load()
    assert [boot.id for boot in boots][-1] == "b2"
    assert sum(record.boot == "b2" for record in records) == 4000


async def test_the_log_goes_on_after_files_have_gone(tmp_path: Path) -> None:
    write_runs(tmp_path, 6000)
    async with open_event_log(tmp_path) as log:
        assert await log.free(1 << 40) > 0
        assert len(log.list_from(0, MAX_RECORDS)) == 6000  # this kernel shows them still
        publish(log, 3)

    _, records = EventFiles(tmp_path).load()
    assert [record.boot for record in records[-3:]] == [log.boot] * 3
    assert len(records) == 1000 + 3
