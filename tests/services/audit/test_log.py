"""The audit log as a service: intents are there before anybody acts, notes cost nothing, and nothing is lost unsaid."""

import os
import re
import threading
from pathlib import Path

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from agentos.database import DatabaseError
from agentos.services.audit import log as service
from agentos.services.audit.chain import MAX_ABOUT_CHARS
from agentos.services.audit.log import Audit, open_audit
from agentos.services.audit.pace import IntentPacer
from agentos.services.audit.query import Query
from agentos.services.audit.verify import verify_log
from agentos.services.events import Event, SyscallBlocked
from agentos_sdk.errors import Unavailable
from tests.support.wire import PATIENCE

from .audited import DENIED, READ, WRITE, entry, found, sound, told, written


async def test_an_intent_is_in_the_file_when_its_number_is_known(tmp_path: Path) -> None:
    async with open_audit(tmp_path / "audit", "1.0") as audit:
        number = await audit.intend(WRITE)

        [row] = found(tmp_path / "audit", Query(calls=["WRITE"]))
        assert row.seq == number
        assert (row.agent, row.name, row.kind, row.call) == (7, "worker", "agent", "WRITE")
        assert (row.about, row.decision, row.rule) == ("/workspace/out.txt", "allow", "sandboxed: write")
        assert (row.phase, row.outcome, row.duration, row.intent) == ("intent", "", None, None)


async def test_a_kernels_beginning_and_end_are_entries(tmp_path: Path) -> None:
    await written(tmp_path / "audit", 1)
    await written(tmp_path / "audit", 0)

    rows = found(tmp_path / "audit")

    assert [row.call for row in rows] == ["KERNEL_START", "WRITE", "KERNEL_STOP", "KERNEL_START", "KERNEL_STOP"]
    assert (rows[0].about, rows[0].kind, rows[0].agent) == ("agentos 1.0", "kernel", 0)
    assert sound(tmp_path / "audit")


async def test_a_kernel_that_fails_says_so_at_its_end(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_audit(tmp_path / "audit", "1.0"):
            raise ZeroDivisionError

    assert found(tmp_path / "audit")[-1].outcome == "ZeroDivisionError"


async def test_notes_are_written_soon_and_in_the_order_of_all(tmp_path: Path) -> None:
    async with open_audit(tmp_path / "audit", "1.0") as audit:
        audit.note(DENIED)
        number = await audit.intend(entry("the act"))
        audit.note(entry("the outcome", phase="outcome", outcome="ok", duration=0.25, intent=number))
        audit.note(READ)
        with trio.fail_after(PATIENCE):
            while len(told(tmp_path / "audit")) < 4:
                await trio.sleep(0.01)

    assert told(tmp_path / "audit") == ["/etc/shadow", "the act", "the outcome", "/workspace/in.txt"]
    outcome = found(tmp_path / "audit")[3]
    assert (outcome.outcome, outcome.duration, outcome.intent) == ("ok", 0.25, number)


async def test_what_was_noted_before_the_end_is_written(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with open_audit(tmp_path / "audit", "1.0") as audit:
            for number in range(2500):
                audit.note(entry(f"number {number}", agent=number))
            scope.cancel()
            await trio.sleep_forever()

    assert told(tmp_path / "audit") == [f"number {number}" for number in range(2500)]
    assert sound(tmp_path / "audit")


async def test_many_callers_that_wait_at_once_get_numbers_of_their_own(tmp_path: Path) -> None:
    numbers: dict[str, int | None] = {}

    async with open_audit(tmp_path / "audit", "1.0") as audit, trio.open_nursery() as nursery:

        async def one(about: str) -> None:
            numbers[about] = await audit.intend(entry(about, kind="operator"))

        for each in range(2500):  # more than may wait, and more than one commit takes
            nursery.start_soon(one, f"number {each}")

    assert {row.about: row.seq for row in found(tmp_path / "audit") if row.call == "WRITE"} == numbers
    assert sound(tmp_path / "audit")


async def test_an_intent_that_is_withdrawn_before_it_was_begun_is_not_written(tmp_path: Path) -> None:
    async with open_audit(tmp_path / "audit", "1.0") as audit:
        with trio.CancelScope() as scope:
            scope.cancel()
            await audit.intend(entry("never"))
        await audit.intend(entry("yes"))

    assert told(tmp_path / "audit") == ["yes"]


async def test_an_intent_that_is_being_written_can_not_be_cancelled_any_more(tmp_path: Path) -> None:
    outcomes: list[tuple[str, int | None]] = []

    async with open_audit(tmp_path / "audit", "1.0") as audit:
        for patience in (0.0, 1e-5, 1e-4, 3e-4, 1e-3):
            for _ in range(20):
                number = None
                with trio.move_on_after(patience):
                    number = await audit.intend(entry(f"act {len(outcomes)}"))
                outcomes.append((f"act {len(outcomes)}", number))

    rows = {row.about: row.seq for row in found(tmp_path / "audit") if row.call == "WRITE"}
    assert rows == {about: number for about, number in outcomes if number is not None}


async def test_a_flood_is_counted_and_delays_no_other_entry(tmp_path: Path) -> None:
    async with open_audit(tmp_path / "audit", "1.0") as audit:
        for _ in range(20_000):
            audit.note(DENIED)
        audit.note(replace(DENIED, agent=8, name="other"))
        await audit.intend(WRITE)

    rows = found(tmp_path / "audit", Query(decision="deny"))
    flooder = [row for row in rows if row.agent == 7]
    assert len(rows) < 1000
    assert sum(row.repeated for row in flooder) == 20_000
    assert re.search(r" more of READ denied within \d+ s$", next(row.about for row in flooder if row.repeated > 1))
    assert [row.about for row in rows if row.agent == 8] == ["/etc/shadow"]


async def test_refusals_are_published_and_of_a_flood_their_number(tmp_path: Path) -> None:
    published = list[Event]()
    asked = entry("x", decision="ask", phase="outcome")
    async with open_audit(tmp_path / "audit", "1.0", published.append) as audit:
        audit.note(READ)
        audit.note(replace(asked, outcome="requested"))
        audit.note(replace(asked, outcome="approval_refused", reason="a person said no to password=hunter2"))
        for _ in range(10_000):
            audit.note(replace(DENIED, reason="READ /etc/shadow: denied"))

    refused, *denied, counted = published
    assert refused == SyscallBlocked(7, "worker", "WRITE", asked.rule, "a person said no to password=[redacted]")
    assert isinstance(counted, SyscallBlocked)
    assert set(denied) == {SyscallBlocked(7, "worker", "READ", DENIED.rule, "READ /etc/shadow: denied")}
    assert (counted.call, counted.rule) == ("READ", None)
    assert re.fullmatch(rf"and {10_000 - len(denied)} more of READ denied within \d+ s", counted.reason)


async def test_more_than_can_wait_is_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_QUEUED_NOTES", 50)

    async with open_audit(tmp_path / "audit", "1.0") as audit:
        for agent in range(200):
            audit.note(replace(DENIED, agent=agent))

    assert sum(row.repeated for row in found(tmp_path / "audit", Query(calls=["READ"]))) == 200


async def test_secrets_and_control_characters_stay_out_and_text_is_bounded(tmp_path: Path) -> None:
    async with open_audit(tmp_path / "audit", "1.0") as audit:
        await audit.intend(entry("curl -H 'Authorization: Bearer abcdef0123456789'\n\x1b[2J\u202e\ud800"))
        await audit.intend(entry("x" * 1_000_000, name="n" * 1000, rule="r\n" * 1000, outcome="\x00"))

    first, second = found(tmp_path / "audit", Query(calls=["WRITE"]))
    assert first.about == r"curl -H 'Authorization: [redacted] [redacted]'\n\x1b[2J\u202e\ud800"
    assert len(second.about) == MAX_ABOUT_CHARS
    assert all(text.isprintable() and len(text) <= MAX_ABOUT_CHARS for text in second if isinstance(text, str))
    assert sound(tmp_path / "audit")


async def test_only_allowed_calls_without_an_announcement_may_be_switched_off(tmp_path: Path) -> None:
    async with open_audit(tmp_path / "audit", "1.0") as audit:
        audit.configure(dict.fromkeys(audit.config, False))
        audit.note(READ)
        audit.note(DENIED)
        number = await audit.intend(WRITE)
        audit.note(replace(WRITE, phase="outcome", outcome="ok", intent=number))
        audit.configure({"files": True})
        audit.note(READ)
        assert [category for category, on in audit.config.items() if on] == ["files"]

    rows = [row for row in found(tmp_path / "audit") if row.kind != "kernel"]
    assert [(row.call, row.decision, row.phase) for row in rows] == [
        ("READ", "deny", "outcome"),
        ("WRITE", "allow", "intent"),
        ("WRITE", "allow", "outcome"),
        ("READ", "allow", "outcome"),
    ]


async def test_entries_can_be_asked_for_by_page(tmp_path: Path) -> None:
    async with open_audit(tmp_path / "audit", "1.0", segment_size=32 << 10) as audit:
        for number in range(300):
            await audit.intend(entry(f"number {number}", agent=number % 2))

        async def about(after: int | None, limit: int, agent: int | None = None) -> list[str]:
            find = audit.newest if after is None else audit.oldest
            return [row.about for row in await find(Query(agent=agent, calls=["WRITE"], after=after), limit)]

        assert len(list((tmp_path / "audit").glob("*.db"))) > 2
        assert await about(None, 3) == ["number 297", "number 298", "number 299"]
        assert await about(None, 2, agent=0) == ["number 296", "number 298"]
        page, pages = await audit.oldest(Query(after=0), 100), 0
        while page:
            pages += len(page)
            page = await audit.oldest(Query(after=page[-1].seq), 100)
        assert pages == len(found(tmp_path / "audit"))
        assert await about(290, 1000, agent=0) == [f"number {number}" for number in range(290, 300, 2)]


async def test_no_other_user_can_read_the_files(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    directory.mkdir(0o755)

    async with open_audit(directory, "1.0") as audit:
        await audit.intend(WRITE)
        modes = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}

    assert directory.stat().st_mode & 0o777 == 0o700
    assert set(modes.values()) == {0o600}
    assert {"000001.db", "000001.head"} <= set(modes)


async def test_a_place_where_no_log_can_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "audit").touch()

    with pytest.raises(DatabaseError, match=f"{tmp_path}/audit: File exists: choose another directory"):
        async with open_audit(tmp_path / "audit", "1.0"):
            pass


async def test_an_agent_that_announces_acts_in_a_loop_waits_and_no_other_caller_waits_behind_it(tmp_path: Path) -> None:
    async with open_audit(tmp_path / "audit", "1.0") as audit:
        audit._pacer = IntentPacer(burst=3, rate=1e-9)
        with trio.move_on_after(PATIENCE) as patience:
            async with trio.open_nursery() as nursery:
                for number in range(2000):  # more than may be about to be written at once
                    nursery.start_soon(audit.intend, entry(f"loop {number}"))
                await trio.testing.wait_all_tasks_blocked()
                for number in range(50):
                    await audit.intend(entry(f"operator {number}", kind="operator"))
                await audit.intend(entry("another", agent=8))
                nursery.cancel_scope.cancel()

    assert not patience.cancelled_caught
    written = told(tmp_path / "audit")
    assert len([about for about in written if about.startswith("loop")]) == 3
    assert written[-51:] == [*(f"operator {number}" for number in range(50)), "another"]


async def idle(audit: Audit) -> None:
    """Return when the head file is synced, for which the last caller didn't wait."""
    await trio.to_thread.run_sync(audit._files.sync_head)


async def test_a_head_file_that_cannot_be_synced_keeps_further_rows_from_being_written(tmp_path: Path) -> None:
    directory = tmp_path / "audit"

    async with open_audit(directory, "1.0") as audit:
        await audit.intend(entry("before"))
        await idle(audit)
        head = audit._files._segment._head
        kept = os.dup(head)
        reading, pipe = os.pipe()  # takes the line, and fdatasync(2) refuses it
        os.dup2(pipe, head)
        await audit.intend(entry("told, as its rows are on disk"))
        with pytest.raises(Unavailable, match=r"000001\.head: Invalid argument"):
            await audit.intend(entry("not written", kind="operator"))
        os.write(kept, os.read(reading, 200))
        os.dup2(kept, head)
        await audit.intend(entry("after"))
        for fd in (kept, reading, pipe):
            os.close(fd)

    assert told(directory) == ["before", "told, as its rows are on disk", "after"]
    assert sound(directory)


async def test_the_head_file_is_synced_while_further_rows_are_made_and_before_they_are_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, inserted, fdatasync = list[str](), threading.Event(), os.fdatasync

    def trace(statement: str) -> None:
        steps.append(statement.split()[0])
        if steps.count("INSERT") == 2:
            inserted.set()

    def sync(fd: int) -> None:
        assert inserted.wait(PATIENCE), "the next rows wait for the head file before they are made"
        fdatasync(fd)
        steps.append("sync")

    async with open_audit(tmp_path / "audit", "1.0") as audit:
        await audit.intend(entry("before"))
        await idle(audit)
        audit._files._segment._connection.set_trace_callback(trace)
        monkeypatch.setattr(os, "fdatasync", sync)
        await audit.intend(entry("first"))
        await audit.intend(entry("second"))
        await idle(audit)
        audit._files._segment._connection.set_trace_callback(None)
        monkeypatch.undo()

    two = ["INSERT", "COMMIT", "INSERT", "sync", "COMMIT", "sync"]
    assert [step for step in steps if step in two] == two


async def test_a_head_file_without_room_is_made_good_before_anything_else(tmp_path: Path) -> None:
    directory = tmp_path / "audit"

    async with open_audit(directory, "1.0") as audit:
        await audit.intend(entry("before"))
        await idle(audit)
        head = audit._files._segment._head
        kept = os.dup(head)
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, head)
        for about in ("written", "not written"):
            with pytest.raises(Unavailable, match=r"000001\.head: No space left on device"):
                await audit.intend(entry(about, kind="operator"))
        report = verify_log(directory)
        os.dup2(kept, head)
        await audit.intend(entry("after", kind="operator"))
        for fd in (kept, full):
            os.close(fd)

    assert (report.faults, report.unheaded) == ((), 1)
    assert told(directory) == ["before", "written", "after"]
    assert sound(directory)
