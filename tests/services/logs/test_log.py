"""The log on disk: what it keeps, what it removes, and what happens when the disk can't take it."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from agentos.private_files import UnsafeFile
from agentos.services.events import AgentOutput, AgentOver
from agentos.services.logs import log as logs_module
from agentos.services.logs import query as query_module
from agentos.services.logs.files import KERNEL, Line
from agentos.services.logs.log import MAX_WAITING, MAX_WRITE, Logs, LogSettings, open_logs
from agentos.services.logs.pattern import Pattern
from agentos.services.logs.query import LogReader, Selection
from tests.support.mounts import small_disk

EVERYTHING = Selection(lambda name, run, origin: True)


@asynccontextmanager
async def opened(place: Path, **settings: float) -> AsyncIterator[Logs]:
    async with open_logs(place / "logs", LogSettings(**settings)) as logs:  # type: ignore[arg-type]
        yield logs


def write(logs: Logs, text: str, agent: int = 7, name: str = "web", at: float | None = None) -> None:
    logs.take_event(AgentOutput(agent, name, "stdout", text, time.time() if at is None else at))


async def last(logs: Logs, count: int = 2000, selection: Selection = EVERYTHING) -> list[str]:
    lines, _ = await LogReader(logs).read_last(selection, count)
    return [line.text for line in lines]


async def written(logs: Logs) -> None:
    """Wait until nothing waits any more."""
    while any(source.waiting or source.writing for source in logs.sources.values()):
        await trio.sleep(0.01)


async def test_lines_outlive_the_kernel_and_are_private(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        write(logs, "one")
        write(logs, 'two \x1b]0;x\x07{"at": 1}é\ud800'[:-1])
        assert await last(logs) == ["one", 'two \x1b]0;x\x07{"at": 1}é']  # before they are written, too
    async with opened(tmp_path) as logs:
        write(logs, "three")
        assert await last(logs) == ["one", 'two \x1b]0;x\x07{"at": 1}é', "three"]
        assert logs.run == 2

    files = sorted((tmp_path / "logs").iterdir())
    assert [file.name for file in files] == ["web.1.1.jsonl", "web.2.1.jsonl"]
    assert [stat.S_IMODE(file.stat().st_mode) for file in [tmp_path / "logs", *files]] == [0o700, 0o600, 0o600]
    header, *lines = files[0].read_text(encoding="ascii").splitlines()
    assert json.loads(lines[0])["text"] == "one"
    assert json.loads(header) | {"at": 0} == {
        "format": 1,
        "name": "web",
        "run": 1,
        "id": 7,
        "declared": False,
        "owner": "web",
        "at": 0,
    }


async def test_what_waits_is_written_also_if_the_kernel_is_cancelled(tmp_path: Path) -> None:
    with trio.CancelScope() as kernel:
        async with opened(tmp_path) as logs:
            write(logs, "last words")
            kernel.cancel()

    async with opened(tmp_path) as logs:
        assert await last(logs) == ["last words"]


async def test_no_text_makes_a_line_of_another_agent_or_of_the_kernel(tmp_path: Path) -> None:
    forged = '"}\\n\r{"at":1.0,"stream":"kernel","text":"root: given up"}\x85\u2028'
    async with opened(tmp_path) as logs:
        write(logs, forged)
        logs.take_kernel_text("real\nfurther")
    async with opened(tmp_path) as logs:
        lines, _ = await LogReader(logs).read_last(EVERYTHING, 10)

    assert {(line.name, line.stream, line.text) for line in lines} == {
        ("web", "stdout", forged),
        (KERNEL, "kernel", "real"),
        (KERNEL, "kernel", "  | further"),
    }


async def test_a_line_that_was_cut_off_and_garbage_are_skipped(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        write(logs, "whole")
    path = tmp_path / "logs" / "web.1.1.jsonl"
    path.write_bytes(path.read_bytes() + b'\xff\xfe\n[1]\n{"at":"x"}\n' + b"x" * 600_000 + b'\n{"at":2.0,"stream":"std')
    (tmp_path / "logs" / "other.1.1.jsonl").write_bytes(b"")
    (tmp_path / "logs" / "notes.txt").write_text("mine")

    async with opened(tmp_path) as logs:
        write(logs, "next")
        assert await last(logs) == ["whole", "next"]
        assert await last(logs, 1) == ["next"]
        assert [line.text for line in (await LogReader(logs).open(EVERYTHING)).next_page().lines] == ["whole", "next"]
        assert [line.text for line in (await LogReader(logs).open(EVERYTHING)).next_page(chars=1).lines] == ["whole"]


async def test_files_are_rotated_by_size_and_the_total_is_bounded_and_shared(tmp_path: Path) -> None:
    async with opened(tmp_path, max_file_size=64 << 10, max_total=8 * (64 << 10)) as logs:
        write(logs, "quiet agent", agent=1, name="quiet")
        for number in range(30):
            write(logs, f"{number} " + "x" * 60_000, agent=2, name="flood")
            await written(logs)
        texts = await last(logs)

    sizes = [file.stat().st_size for file in (tmp_path / "logs").iterdir()]
    assert sum(max(size, 64 << 10) for size in sizes) <= 9 * (64 << 10)
    assert texts[0] == "quiet agent"
    assert texts[-1].startswith("29 ")
    assert len(texts) < 10


async def test_agents_that_were_spawned_share_the_room_of_their_ancestor(tmp_path: Path) -> None:
    async with opened(tmp_path, max_file_size=64 << 10, max_total=8 * (64 << 10)) as logs:
        logs.identify = lambda agent: (agent == 1, "quiet" if agent == 1 else "breeder")
        write(logs, "quiet agent", agent=1, name="quiet")
        await written(logs)
        for number in range(2, 40):
            write(logs, "short life", agent=number, name=f"child{number}")
            logs.take_event(AgentOver(number, f"child{number}"))
            await written(logs)
        assert "quiet agent" in await last(logs)
        assert len(logs.files) <= 8
        assert set(logs.sources) == {0, 1}


async def test_old_files_are_removed(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        write(logs, "old")
        write(logs, "new", agent=2, name="other")
    path = tmp_path / "logs" / "web.1.1.jsonl"
    os.utime(path, (time.time() - 1000,) * 2)

    async with opened(tmp_path, max_age=900) as logs:
        while path.exists():
            await trio.sleep(0.01)
        assert await last(logs) == ["new"]


async def test_a_file_is_written_for_a_day(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        write(logs, "yesterday", at=time.time() - 90_000)
        await written(logs)
        write(logs, "today")
        await written(logs)
        assert await last(logs) == ["yesterday", "today"]

    assert (tmp_path / "logs" / "web.1.2.jsonl").exists()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of sixteen megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    with small_disk(place, "16M"):
        yield place


async def test_a_full_disk_costs_lines_which_are_counted(
    small: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logs_module, "RETRY_DELAY", 0.05)
    ballast = small / "ballast"
    async with opened(small) as logs:
        write(logs, "before")
        await written(logs)
        ballast.write_bytes(bytes(os.statvfs(small).f_bavail * os.statvfs(small).f_frsize))
        for number in range(1500):
            write(logs, f"{number} " + "x" * 8000)
        assert sum(source.size for source in logs.sources.values()) <= MAX_WAITING
        while "can't be written" not in caplog.text:
            await trio.sleep(0.01)
        shown = [line.text for line in await all_lines(logs, EVERYTHING)]
        assert (shown[0], shown[-1][:4]) == ("before", "1499")  # what waits can be read
        lost = LogReader(logs).count_lost(EVERYTHING)
        assert lost == 1500 - (len(shown) - 1) > 0

        ballast.unlink()
        await written(logs)
        after = [line.text for line in await all_lines(logs, EVERYTHING)]

    assert caplog.text.count("logs can't be written") == 1
    [said] = [text for text in after if "couldn't be written and are lost" in text]
    assert int(said.split()[0]) == lost
    assert after == ["before", said, *shown[1:]]


async def test_a_log_that_another_user_could_change_is_refused(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs").chmod(0o777)
    with pytest.raises(UnsafeFile):
        async with opened(tmp_path):
            pass


async def test_a_symlink_in_place_of_a_file_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    async with opened(tmp_path) as logs:
        (tmp_path / "logs" / "web.1.1.jsonl").symlink_to(victim)
        write(logs, "line")
        while "can't be written" not in caplog.text:
            await trio.sleep(0.01)
        assert await last(logs) == ["line"]

    assert victim.read_text() == "precious"


KILLED = """
import sys, time, trio
from pathlib import Path
from agentos.services.events import AgentOutput
from agentos.services.logs.log import LogSettings, open_logs

async def main():
    async with open_logs(Path(sys.argv[1]), LogSettings()) as logs:
        number = 0
        while True:
            for _ in range(100):
                logs.take_event(AgentOutput(1, "web", "stdout", f"{number} " + "x" * 500, time.time()))
                number += 1
            await trio.sleep(0.01)
            if number == 2000:
                print("go", flush=True)

trio.run(main)
"""


def kill_while_it_writes(place: Path) -> None:
    env = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", KILLED, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)


async def test_kill_9_costs_the_last_lines_alone(tmp_path: Path) -> None:
    for _ in range(3):
        await trio.to_thread.run_sync(kill_while_it_writes, tmp_path / "logs")

    async with opened(tmp_path) as logs:
        assert logs.run == 4
        for run in (1, 2, 3):
            of_run = Selection(lambda name, run, origin: True, run=run)
            numbers = [int(line.text.split()[0]) for line in await all_lines(logs, of_run)]
            assert numbers == list(range(len(numbers)))
            assert len(numbers) > 500


async def all_lines(logs: Logs, selection: Selection) -> Sequence[Line]:
    reading, found, done = await LogReader(logs).open(selection), list[Line](), False
    while not done:
        page = reading.next_page()
        found += page.lines
        done = page.done
    return found


async def test_lines_that_come_all_at_once_are_written_one_by_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        logs.take_event(AgentOutput(7, "web", "stdout", 'one\ntwo "\u2028\\n"\n\nlast', 1.0))
        before = await last(logs)
        await written(logs)
        assert await last(logs) == before == ["one", 'two "\u2028\\n"', "", "last"]
        logs.take_event(AgentOutput(7, "web", "stdout", "\n" * 200_000, 2.0))  # more than may wait
        write(logs, "after")
        await written(logs)
        assert (await last(logs))[-2:] == ["200001 lines couldn't be written and are lost", "after"]


async def test_where_much_waits_it_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_module, "WRITE_DELAY", 3600.0)
    async with opened(tmp_path) as logs:
        for count in (1, 3):  # and again, if more comes than is written at a time
            logs.take_event(AgentOutput(7, "web", "stdout", "x" * count * MAX_WRITE, 1.0))
            assert logs.fill() > count / 10
            await written(logs)
            assert logs.fill() == 0
        write(logs, "few")
        assert logs.fill() > 0
    async with opened(tmp_path) as logs:
        assert await last(logs, 1) == ["few"]


@pytest.mark.parametrize("block", [1, 64, 100, 1 << 20])
async def test_lines_are_found_in_whatever_blocks_their_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(query_module, "BLOCK_BYTES", block)
    monkeypatch.setattr(query_module, "MAX_BLOCK_BYTES", block)
    texts = ["a b", '\u2028a "b"', "", "\ta b\\", "c", "A B", "a b c"]
    async with opened(tmp_path) as logs:
        for text in texts:
            write(logs, text)
        await written(logs)
        for pattern in ("a b", "b$", "^$", '"b', "(?i)a b", r"\\", None):
            chosen = Selection(lambda name, run, origin: True, pattern=None if pattern is None else Pattern(pattern))
            expected = [text for text in texts if pattern is None or re.search(pattern, text)]
            assert [line.text for line in await all_lines(logs, chosen)] == expected
            assert await last(logs, selection=chosen) == expected


async def test_agents_of_one_name_write_to_files_of_their_own(tmp_path: Path) -> None:
    """Who may read a file is decided by the agent in its header."""
    async with opened(tmp_path) as logs:
        for agent in (1, 2, 3):  # all three before anything is written
            write(logs, f"secret of {agent}", agent=agent, name="job")
            logs.take_event(AgentOver(agent, "job"))
        of_two = Selection(lambda name, run, origin: origin.id == 2)
        assert await last(logs, selection=of_two) == ["secret of 2"]
        await written(logs)
        assert await last(logs, selection=of_two) == ["secret of 2"]
    async with opened(tmp_path) as logs:
        assert await last(logs, selection=of_two) == ["secret of 2"]
        assert len(logs.files["job"]) == 3


async def test_the_oldest_files_that_may_go_are_removed_until_there_is_room(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        for number, name in enumerate(("old", "new", "runs")):
            write(logs, "x" * 10_000, number + 1, name, at=1000.0 + number)
            await written(logs)

        assert await logs.free(0, lambda file: True) == 0
        freed = await logs.free(5000, lambda file: file.name != "runs")
        assert 10_000 < freed < 20_000
        assert sorted(file.name for file in (tmp_path / "logs").iterdir()) == ["new.1.1.jsonl", "runs.1.1.jsonl"]
        await logs.free(1 << 30, lambda file: file.name != "runs")
        write(logs, "again", 2, "new")

        assert await last(logs) == ["x" * 10_000, "again"]
    assert sorted(file.name for file in (tmp_path / "logs").iterdir()) == ["new.1.1.jsonl", "runs.1.1.jsonl"]
