"""The queue of calls that wait for a person: what an approval is worth, to which call, and for how long."""

import threading
import time
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from agentos.gateways.http_proxy.approval import Shown, require_or_ask
from agentos.kernel.asking import approve
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Entry, MustAsk, Right
from agentos.kernel.prepared import Prepared, require
from agentos.permissions.approvals import approvals
from agentos.permissions.approvals.room import KEPT_FOR_HEAD, MAX_OF_CALLER, MAX_OF_FAMILY
from agentos.services.events import AgentExited, AgentSpawned, Event
from agentos_sdk.errors import (
    ApprovalRefused,
    ApprovalRequired,
    CallError,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from tests.support.rights import Grants, Notebook
from tests.support.wire import PATIENCE

from .approval_desk import ANN, BOB, HOUR, RULE, Desk, caller, opened, question


class Slow(Notebook):
    """An audit log that writes nothing before it is told to."""

    go: trio.Event

    async def intend(self, entry: Entry) -> int:
        if entry.call == "APPROVAL_DECIDED":
            await self.go.wait()
        return await super().intend(entry)


async def test_a_call_goes_on_when_it_is_allowed(desk: Desk) -> None:
    desk.ask(ANN, question(), "ann")
    [entry] = await desk.listed()

    await desk.decide(entry.id)
    await wait_all_tasks_blocked()

    assert (entry.agent, entry.call, entry.shown, entry.rule) == ("ann", "READ", "READ /data/x", RULE)
    assert desk.results == ["ann: allowed"]
    assert desk.queue.pending() == []


async def test_it_is_in_the_audit_log_before_anyone_sees_it_and_the_decision_before_the_call_goes_on(
    desk: Desk,
) -> None:
    desk.ask(ANN, question(), "ann")
    [entry] = await desk.listed()
    await desk.decide(entry.id, reason="it is fine")

    requested, decided, came_out = desk.audit.entries
    assert (requested.name, requested.call, requested.decision) == ("ann", "APPROVAL_REQUESTED", "ask")
    assert "sha256 /data/x" in requested.about
    assert (decided.name, decided.call, decided.phase) == ("operator#1", "APPROVAL_DECIDED", "intent")
    for text in ("allowed", "uid 1000 on connection 1", "it is fine", "sha256 /data/x", "READ /data/x"):
        assert text in decided.about
    assert (came_out.phase, came_out.outcome) == ("outcome", "allowed")
    assert [type(event).__name__ for event in desk.events] == ["ApprovalRequested", "ApprovalDecided"]


async def test_a_refusal_reaches_each_identical_call_with_its_reason(desk: Desk) -> None:
    failures = list[CallError]()

    async def wait() -> None:
        with pytest.raises(ApprovalRefused, match="not today") as caught:
            await desk.queue.wait(ANN, question())
        failures.append(caught.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(wait)
        [entry] = await desk.listed()
        await desk.decide(entry.id, allow=False, reason="not today")

    assert [one.details["approval_id"] for one in failures] == [entry.id, entry.id]
    assert {one.details["reason"] for one in failures} == {"not today"}


async def test_of_two_identical_calls_an_approval_lets_one_act_and_the_other_is_asked_anew(desk: Desk) -> None:
    desk.ask(ANN, question(), "one")
    desk.ask(ANN, question(), "other")
    [entry] = await desk.listed()

    await desk.decide(entry.id)
    await wait_all_tasks_blocked()

    assert sorted(result.split(": ")[1] for result in desk.results) == ["allowed", "nothing"]


async def test_a_call_that_does_not_wait_learns_the_number_of_its_entry(desk: Desk) -> None:
    with pytest.raises(ApprovalRequired) as caught:
        await desk.queue.wait(ANN, question(), 0.0)

    [entry] = await desk.listed()
    assert caught.value.details == {"rule": RULE, "approval_id": entry.id, "reason": "no decision yet"}


async def test_a_ticket_is_used_once_by_the_same_call_of_the_same_life(desk: Desk) -> None:
    await desk.approve(ANN, question())

    assert desk.queue.take(BOB, question()) is None
    assert desk.queue.take(ANN, question("/data/y")) is None
    allowed = desk.queue.take(ANN, question())
    assert allowed == Decision("allow", f"approval 1: {RULE}", "")
    assert desk.queue.take(ANN, question()) is None


@pytest.mark.parametrize("event", [AgentExited(2, "ann", "exit code 0"), AgentSpawned(2, "ann")])
async def test_a_ticket_is_worth_nothing_to_the_next_life(desk: Desk, event: Event) -> None:
    await desk.approve(ANN, question())

    desk.queue.end_life(event)

    assert desk.queue.take(ANN, question()) is None


async def test_a_ticket_expires(desk: Desk, mock_clock: MockClock) -> None:
    await desk.approve(ANN, question())

    mock_clock.jump(601)

    assert desk.queue.take(ANN, question()) is None


async def test_a_ticket_lasts_no_longer_than_the_person_said(desk: Desk, mock_clock: MockClock) -> None:
    await desk.approve(ANN, question(), seconds=60.0)

    mock_clock.jump(61)

    assert desk.queue.take(ANN, question()) is None


async def test_a_ticket_for_a_changed_call_is_void_and_the_next_entry_says_so(desk: Desk) -> None:
    await desk.approve(ANN, question(digest="before"))

    with pytest.raises(ApprovalRequired):
        await desk.queue.wait(ANN, question(digest="after"), 0.0, former=question(digest="before"))

    [entry] = await desk.listed()
    assert entry.shown == "changed since approval 1 was given\nREAD /data/x"
    assert desk.queue.take(ANN, question(digest="before")) is None


async def test_an_entry_expires_and_takes_the_waiting_call_with_it(desk: Desk, mock_clock: MockClock) -> None:
    desk.ask(ANN, question(), "ann")
    [entry] = await desk.listed()

    mock_clock.jump(601)
    await desk.listed(0)
    await wait_all_tasks_blocked()

    assert desk.results == ["ann: approval_required"]
    with pytest.raises(NotFound, match="no approval 1 is pending"):
        await desk.decide(entry.id)


async def test_the_configured_timeout_ends_the_wait_and_not_the_entry(desk: Desk, mock_clock: MockClock) -> None:
    async def wait() -> None:
        with pytest.raises(ApprovalRequired, match="the same call may be made once"):
            await desk.queue.wait(ANN, question())
        desk.results.append("gave up")

    desk.nursery.start_soon(wait)
    [entry] = await desk.listed()
    await wait_all_tasks_blocked()
    mock_clock.jump(301)
    await wait_all_tasks_blocked()

    assert desk.results == ["gave up"]
    await desk.decide(entry.id)
    assert desk.queue.take(ANN, question()) is not None


async def test_an_entry_is_decided_once(tmp_path: Path, mock_clock: MockClock) -> None:
    slow = Slow()
    slow.go = trio.Event()
    outcomes = list[str]()

    async def decide(desk: Desk, allow: bool) -> None:
        try:
            await desk.decide(1, allow)
            outcomes.append("done")
        except NotFound:
            outcomes.append("not_found")

    async with opened(tmp_path, slow) as desk:
        desk.ask(ANN, question(), "ann")
        await desk.listed()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(decide, desk, True)
            nursery.start_soon(decide, desk, False)
            await wait_all_tasks_blocked()
            mock_clock.jump(601)  # it would expire now
            await wait_all_tasks_blocked()
            slow.go.set()
        await wait_all_tasks_blocked()

        assert sorted(outcomes) == ["done", "not_found"]
        assert len(desk.results) == 1
        assert [entry.call for entry in slow.entries].count("APPROVAL_DECIDED") == 2  # an intent and its outcome


async def test_nothing_is_decided_that_cannot_be_recorded(desk: Desk) -> None:
    desk.ask(ANN, question(), "ann")
    [entry] = await desk.listed()
    desk.audit.full = True

    with pytest.raises(Unavailable):
        await desk.decide(entry.id)

    assert (desk.results, list(desk.queue.pending())) == ([], [entry])


async def test_nothing_is_asked_that_cannot_be_recorded(desk: Desk) -> None:
    desk.audit.full = True

    with pytest.raises(Unavailable, match="no person can be asked"):
        await desk.queue.wait(ANN, question())

    assert desk.queue.pending() == []


async def test_a_life_that_ends_frees_its_calls_and_its_entry_cannot_be_allowed(desk: Desk) -> None:
    desk.ask(ANN, question(), "ann")
    [entry] = await desk.listed()

    desk.queue.end_life(AgentExited(2, "ann", "exit code 0"))
    await wait_all_tasks_blocked()

    assert desk.results == ["ann: approval_required"]
    [shown] = desk.queue.pending()
    assert (shown.id, shown.caller_present) == (entry.id, False)
    with pytest.raises(NotFound, match="ann, which asked for it, is gone"):
        await desk.decide(entry.id)
    await desk.decide(entry.id, allow=False)
    assert desk.queue.pending() == []


async def test_the_next_life_asks_anew_and_is_listed_before_what_cannot_be_allowed_any_more(desk: Desk) -> None:
    with pytest.raises(ApprovalRequired):
        await desk.queue.wait(ANN, question(), 0.0)
    desk.queue.end_life(AgentExited(2, "ann", "exit code 0"))

    with pytest.raises(ApprovalRequired):
        await desk.queue.wait(ANN, question(), 0.0)

    assert [entry.caller_present for entry in await desk.listed(2)] == [True, False]


async def test_a_flooding_agent_fills_its_own_part_and_hides_no_other(desk: Desk) -> None:
    for number in range(MAX_OF_CALLER):
        with pytest.raises(ApprovalRequired):
            await desk.queue.wait(ANN, question(f"/data/{number}"), 0.0)

    with pytest.raises(ApprovalRequired, match="16 calls of ann wait for a person already") as full:
        await desk.queue.wait(ANN, question("/data/more"))
    with pytest.raises(ApprovalRequired, match="the same call may be made once"):
        await desk.queue.wait(BOB, question("/data/b"), 0.0)

    assert full.value.details["reason"] == "full"
    assert [entry.agent for entry in desk.queue.pending()[:3]] == ["ann", "bob", "ann"]


async def test_the_queue_is_bounded_over_all_callers(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentos.permissions.approvals.room.MAX_ENTRIES", 2)
    for asker in (ANN, BOB):
        with pytest.raises(ApprovalRequired, match="the same call may be made once"):
            await desk.queue.wait(asker, question(), 0.0)

    with pytest.raises(ApprovalRequired, match="2 calls wait for a person already") as full:
        await desk.queue.wait(caller(4, "carl"), question(), 0.0)

    assert full.value.details["reason"] == "full"
    assert [entry.agent for entry in await desk.listed(2)] == ["ann", "bob"]


async def test_what_is_too_long_to_be_shown_whole_is_refused_at_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ApprovalRequired, match="the same call may be made once"):
        await desk.queue.wait(ANN, question(), 0.0)
    [first] = await desk.listed()
    monkeypatch.setattr(approvals, "MAX_SHOWN_CHARS", len(first.shown))
    with pytest.raises(ApprovalRequired, match="the same call may be made once"):
        await desk.queue.wait(BOB, question(), 0.0)

    with pytest.raises(ApprovalRequired, match="it is too long to be shown to a person") as refused:
        await desk.queue.wait(BOB, question("/data/xx"))

    assert refused.value.details["reason"] == "too long"
    assert len(await desk.listed(2)) == 2


async def test_what_ended_lives_asked_makes_room_for_the_present_one(desk: Desk) -> None:
    for number in range(MAX_OF_CALLER):
        with pytest.raises(ApprovalRequired):
            await desk.queue.wait(ANN, question(f"/data/{number}"), 0.0)
    desk.queue.end_life(AgentExited(2, "ann", "exit code 0"))

    with pytest.raises(ApprovalRequired, match="the same call may be made once"):
        await desk.queue.wait(ANN, question("/data/new"), 0.0)

    found = await desk.listed(MAX_OF_CALLER)
    assert (found[0].id, found[0].caller_present, found[1].id) == (MAX_OF_CALLER + 1, True, 2)


async def test_slow_files_of_one_caller_delay_no_question_and_no_thread_of_another(desk: Desk) -> None:
    """A caller has 256 calls in flight, and the kernel has 40 threads for all."""
    go, prepared_right = threading.Event(), (Right("read", "/data/x"),)
    slow = Prepared(prepared_right, print, shown=lambda: str(go.wait(PATIENCE)))
    slow_caller, other = caller(21, "slow"), caller(22, "other")
    slow_caller.approvals = other.approvals = desk.queue

    async def ask_for(asking: Caller, prepared: Prepared) -> None:
        record = require(asking, prepared)
        assert record is not None
        with pytest.raises(MustAsk):
            await approve(asking, "READ", b"{}", prepared, record)

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(ask_for, slow_caller, slow)
        try:
            with trio.fail_after(PATIENCE):
                await trio.to_thread.run_sync(int)
                await ask_for(other, Prepared(prepared_right, print))
        finally:
            go.set()


async def test_what_ended_relatives_asked_makes_room_for_their_parent(desk: Desk) -> None:
    children = [caller(number, f"child-{number}") for number in (11, 12)]
    for child in children:
        child.family = ANN.family
        for number in range((MAX_OF_FAMILY - KEPT_FOR_HEAD) // 2):
            with pytest.raises(ApprovalRequired, match="the same call may be made once"):
                await desk.queue.wait(child, question(f"/data/{number}"), 0.0)
    with pytest.raises(ApprovalRequired, match="24 calls of child-12 and its relatives wait"):
        await desk.queue.wait(child, question("/data/new"), 0.0)
    for number in range(KEPT_FOR_HEAD):
        with pytest.raises(ApprovalRequired, match="the same call may be made once"):
            await desk.queue.wait(ANN, question(f"/data/{number}"), 0.0)
    with pytest.raises(ApprovalRequired, match="32 calls of ann and its relatives wait"):
        await desk.queue.wait(ANN, question("/data/new"), 0.0)
    desk.queue.forget_caller(11)

    with pytest.raises(ApprovalRequired, match="the same call may be made once"):
        await desk.queue.wait(ANN, question("/data/new"), 0.0)

    assert len(await desk.listed(MAX_OF_FAMILY)) == MAX_OF_FAMILY


async def test_an_entry_holds_a_bounded_part_of_what_its_call_is_about(desk: Desk) -> None:
    desk.ask(ANN, replace(question(), about="\u202e" * 100_000))
    [entry] = await desk.listed()

    assert 1000 < len(entry.about) < 10_000


async def test_a_caller_that_gives_up_leaves_its_entry(desk: Desk) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.queue.wait, ANN, question())
        [entry] = await desk.listed()
        nursery.cancel_scope.cancel()

    assert list(desk.queue.pending()) == [entry]


async def test_the_next_kernel_shows_what_was_pending_and_allows_none_of_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        await desk.approve(ANN, question("/data/ticket"))
        for number in range(3):
            with pytest.raises(ApprovalRequired):
                await desk.queue.wait(ANN, question(f"/data/{number}"), 0.0)

    async with opened(tmp_path) as desk:
        found = await desk.listed(3)
        assert [(entry.id, entry.agent, entry.caller_present) for entry in found] == [
            (2, "ann", False),
            (3, "ann", False),
            (4, "ann", False),
        ]
        with pytest.raises(NotFound, match="can't be given any more"):
            await desk.decide(2)
        assert desk.queue.take(ANN, question("/data/ticket")) is None
        with pytest.raises(ApprovalRequired) as caught:
            await desk.queue.wait(ANN, question("/data/0"), 0.0)
        assert caught.value.details["approval_id"] == 5
        await desk.decide(3, allow=False)

    async with opened(tmp_path) as desk:
        assert [entry.id for entry in await desk.listed(3)] == [2, 4, 5]


async def test_a_flood_removes_nothing_that_an_earlier_kernel_was_asked(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        with pytest.raises(ApprovalRequired):
            await desk.queue.wait(BOB, question(), 0.0)

    async with opened(tmp_path) as desk:
        for number in range(MAX_OF_CALLER + 3):
            with pytest.raises(ApprovalRequired):
                await desk.queue.wait(ANN, question(f"/data/{number}"), 0.0)
        found = await desk.listed(MAX_OF_CALLER + 1)
        assert [entry.agent for entry in found].count("bob") == 1


async def leave_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """A request that waits since so many seconds, and whose kernel has ended."""
    async with opened(tmp_path) as desk:
        with pytest.raises(ApprovalRequired):
            await desk.queue.wait(ANN, question(), 0.0)

    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + seconds)


async def test_the_next_kernel_drops_what_has_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await leave_waiting(tmp_path, monkeypatch, 601)
    async with opened(tmp_path) as desk:
        assert desk.queue.pending() == []


async def test_an_entry_expires_at_its_time_also_in_the_next_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    await leave_waiting(tmp_path, monkeypatch, 500)
    async with opened(tmp_path) as desk:
        mock_clock.jump(90)
        await wait_all_tasks_blocked()
        assert len(desk.queue.pending()) == 1
        mock_clock.jump(20)
        await wait_all_tasks_blocked()
        assert desk.queue.pending() == []


# -- What is no call of the table --------------------------------------------------------------------------------------


async def test_a_tunnel_waits_like_a_call(desk: Desk) -> None:
    asking = caller(4, "tess")
    decisions = list[Decision]()

    async def tunnel(shown: Shown) -> None:
        right, ends = Right("read", "/data/x"), trio.current_time() + HOUR
        decisions.append(await require_or_ask(desk.queue, asking, right, shown, ends))

    desk.nursery.start_soon(tunnel, Shown("CONNECT x:443"))
    [entry] = await desk.listed()
    await desk.decide(entry.id)
    await wait_all_tasks_blocked()

    assert (entry.shown, [decision.effect for decision in decisions]) == ("CONNECT x:443", ["allow"])


async def test_a_tunnel_that_a_rule_denies_is_not_asked_about(desk: Desk) -> None:
    denied = caller(4, "tess")
    denied.authorizer = Grants(denied=["read"])

    with pytest.raises(PermissionDenied):
        await require_or_ask(desk.queue, denied, Right("read", "/data/x"), Shown(""), trio.current_time() + HOUR)

    assert desk.queue.pending() == []
