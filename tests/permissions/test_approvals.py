"""The queue of calls that wait for a person: what an approval is worth, to which call, and for how long."""

import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from agentos.database import open_database
from agentos.gateways.http_proxy.approval import require_or_ask
from agentos.kernel.asking import approve
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Entry, MustAsk, Question, Right
from agentos.kernel.prepared import Prepared, require
from agentos.kernel.table import Table
from agentos.permissions import answers, approval_entries
from agentos.permissions.answers import Answers
from agentos.permissions.approval_entries import Pending
from agentos.permissions.approvals import (
    MAX_OF_CALLER,
    MAX_OF_FAMILY,
    Approvals,
    ApprovalSettings,
    Remember,
)
from agentos.services.events import AgentExited, AgentSpawned, Event
from agentos_sdk.errors import (
    ApprovalRefused,
    ApprovalRequired,
    BadRequest,
    CallError,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from tests.support.rights import Grants, Notebook

SCHEMAS = {"approvals": approval_entries.TABLES, "answers": answers.TABLES}
RULE = "ask read /data/** (here)"
HOUR = 3600.0


class Slow(Notebook):
    """An audit log that writes nothing before it is told to."""

    go: trio.Event

    async def intend(self, entry: Entry) -> int:
        if entry.call == "APPROVAL_DECIDED":
            await self.go.wait()
        return await super().intend(entry)


@define
class Desk:
    """A running queue, and the operator who decides."""

    queue: Approvals
    audit: Notebook
    events: list[Event]
    nursery: trio.Nursery
    results: list[str] = field(factory=list)

    def ask(self, caller: Caller, question: Question, name: str = "", timeout: float = HOUR) -> None:
        """Have a call wait; its outcome is added to ``results``: ``name: allowed``, or a code."""

        async def wait() -> None:
            try:
                await self.queue.wait(caller, question, timeout)
                allowed = self.queue.take(caller, question)
                self.results.append(f"{name}: {'allowed' if allowed else 'nothing'}")
            except CallError as error:
                self.results.append(f"{name}: {error.code}")

        self.nursery.start_soon(wait)

    async def listed(self, count: int = 1) -> list[Pending]:
        """The list once it has so many entries."""
        with trio.fail_after(10):
            while len(found := self.queue.pending()) != count:
                await self.queue.wait_for_news()
        return list(found)

    async def decide(
        self,
        number: int,
        allow: bool = True,
        remember: Remember = "once",
        seconds: float | None = None,
        reason: str | None = None,
    ) -> None:
        await self.queue.decide(OPERATOR, number, allow, remember, seconds, reason)

    async def approve(self, caller: Caller, question: Question, **more: object) -> None:
        """Allow a call that doesn't wait any more."""
        with pytest.raises(ApprovalRequired):
            await self.queue.wait(caller, question, 0.0)
        [entry] = await self.listed()
        await self.decide(entry.id, **more)  # type: ignore[arg-type]


def caller(number: int, name: str, kind: str = "agent") -> Caller:
    made = Caller(number, kind, name, Table(()), Grants(asked=["read"]), Notebook())  # type: ignore[arg-type]
    made.family = f"{kind} {name}"
    return made


OPERATOR = Caller(1, "operator", "operator#1", Table(()), Grants(), Notebook(), uid=1000)
ANN, BOB = caller(2, "ann"), caller(3, "bob")


def question(path: str = "/data/x", rule: str = RULE, digest: str = "", agent: int | None = None) -> Question:
    asked = (Right("read", path, agent), Decision("ask", rule, f"READ {path}: a person has to agree"))
    return Question("READ", path, (asked,), digest or path, f"READ {path}")


def lasting_name(caller: Caller) -> str | None:
    return None if caller.name.startswith("guest#") else caller.name


@asynccontextmanager
async def opened(place: Path, audit: Notebook | None = None, **settings: Any) -> AsyncIterator[Desk]:
    """A queue in a database, as it is after a start of the kernel."""
    log, events = audit or Notebook(), list[Event]()
    async with open_database(place / "db", SCHEMAS) as database, trio.open_nursery() as nursery:
        known = Answers(database, {2: "ann", 3: "bob"}.get)
        queue = Approvals(ApprovalSettings(**settings), database, log, known, events.append, lasting_name)
        await queue.load()
        nursery.start_soon(queue.serve)
        await wait_all_tasks_blocked()
        yield Desk(queue, log, events, nursery)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def desk(tmp_path: Path, mock_clock: MockClock) -> AsyncIterator[Desk]:
    async with opened(tmp_path) as made:
        yield made


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


async def test_the_next_life_asks_anew(desk: Desk) -> None:
    with pytest.raises(ApprovalRequired):
        await desk.queue.wait(ANN, question(), 0.0)
    desk.queue.end_life(AgentExited(2, "ann", "exit code 0"))

    with pytest.raises(ApprovalRequired):
        await desk.queue.wait(ANN, question(), 0.0)

    assert [entry.caller_present for entry in await desk.listed(2)] == [False, True]


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


async def test_what_ended_lives_asked_makes_room_for_the_present_one(desk: Desk) -> None:
    for number in range(MAX_OF_CALLER):
        with pytest.raises(ApprovalRequired):
            await desk.queue.wait(ANN, question(f"/data/{number}"), 0.0)
    desk.queue.end_life(AgentExited(2, "ann", "exit code 0"))

    with pytest.raises(ApprovalRequired, match="the same call may be made once"):
        await desk.queue.wait(ANN, question("/data/new"), 0.0)

    found = await desk.listed(MAX_OF_CALLER)
    assert (found[0].id, found[-1].id, found[-1].caller_present) == (2, MAX_OF_CALLER + 1, True)


async def test_slow_files_of_one_caller_delay_no_question_and_no_thread_of_another(desk: Desk) -> None:
    """A caller has 256 calls in flight, and the kernel has 40 threads for all."""
    go, prepared_right = threading.Event(), (Right("read", "/data/x"),)
    slow = Prepared(prepared_right, print, shown=lambda: str(go.wait(30)))
    slow_caller, other = caller(21, "slow"), caller(22, "other")
    slow_caller.approvals = other.approvals = desk.queue

    async def ask_for(asking: Caller, prepared: Prepared) -> None:
        with pytest.raises(MustAsk):
            await approve(asking, "READ", b"{}", prepared, require(asking, prepared))

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(ask_for, slow_caller, slow)
        try:
            with trio.fail_after(10):
                await trio.to_thread.run_sync(int)
                await ask_for(other, Prepared(prepared_right, print))
        finally:
            go.set()


async def test_what_ended_relatives_asked_makes_room_for_their_parent(desk: Desk) -> None:
    children = [caller(number, f"child-{number}") for number in (11, 12)]
    for child in children:
        child.family = ANN.family
        for number in range(MAX_OF_CALLER):
            with pytest.raises(ApprovalRequired, match="the same call may be made once"):
                await desk.queue.wait(child, question(f"/data/{number}"), 0.0)
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


async def test_the_next_kernel_drops_what_has_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as desk:
        with pytest.raises(ApprovalRequired):
            await desk.queue.wait(ANN, question(), 0.0)

    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 601)
    async with opened(tmp_path) as desk:
        assert desk.queue.pending() == []


# -- Remembered answers ------------------------------------------------------------------------------------------------


async def test_an_answer_holds_for_the_same_object_by_the_same_rule_of_the_same_agent(desk: Desk) -> None:
    await desk.approve(ANN, question(digest="1"), remember="always")
    assert desk.queue.take(ANN, question(digest="1")) is not None  # the ticket

    allowed = desk.queue.take(ANN, question(digest="2"))
    assert allowed == Decision("allow", f"answer 1: {RULE}", "")
    assert desk.queue.take(BOB, question()) is None
    assert desk.queue.take(ANN, question("/data/xy")) is None


async def test_an_answer_is_void_once_another_rule_asks_and_stays_so(desk: Desk) -> None:
    await desk.approve(ANN, question(digest="1"), remember="always")

    assert desk.queue.take(ANN, question(rule="ask read /data/x (there)", digest="2")) is None
    assert desk.queue.take(ANN, question(digest="3")) is None


async def test_an_answer_for_an_id_holds_for_it_alone_and_ends_with_the_kernel(tmp_path: Path) -> None:
    namesake = caller(9, "ann")
    async with opened(tmp_path) as desk:
        await desk.approve(ANN, question(digest="1"), remember="agent")
        assert desk.queue.take(namesake, question(digest="2")) is None
        assert desk.queue.take(ANN, question(digest="2")) is not None
    async with opened(tmp_path) as desk:
        assert desk.queue.take(ANN, question(digest="2")) is None


async def test_an_answer_for_a_name_outlasts_the_kernel(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        await desk.approve(ANN, question(digest="1"), remember="always")
    async with opened(tmp_path) as desk:
        [answer] = desk.queue.answers.list()
        assert (answer.subject, answer.action, answer.object, answer.by) == (
            *("ann", "read", "/data/x"),
            "uid 1000 on connection 1",
        )
        assert desk.queue.take(caller(7, "ann"), question(digest="2")) is not None


async def test_an_answer_ends_at_its_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await desk.approve(ANN, question(digest="1"), remember="always", seconds=60.0)
    assert desk.queue.take(ANN, question(digest="2")) is not None

    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 61)

    assert desk.queue.take(ANN, question(digest="2")) is None


async def test_an_answer_is_revoked(desk: Desk) -> None:
    await desk.approve(ANN, question(digest="1"), remember="always")

    await desk.queue.forget(OPERATOR, 1)

    assert desk.queue.take(ANN, question(digest="2")) is None
    assert desk.audit.entries[-1].outcome == "forgotten"
    with pytest.raises(NotFound, match="no remembered answer has the id 1"):
        await desk.queue.forget(OPERATOR, 1)


async def test_a_remembered_refusal_is_stronger_than_a_remembered_approval(desk: Desk) -> None:
    await desk.approve(ANN, question(digest="1"), remember="always")
    desk.ask(ANN, question(digest="2"), "ann")
    [entry] = await desk.listed()
    await desk.decide(entry.id, allow=False, remember="agent", reason="no more")

    with pytest.raises(ApprovalRefused, match="no more"):
        desk.queue.take(ANN, question(digest="3"))


async def test_a_call_without_an_object_is_remembered_as_a_whole(desk: Desk) -> None:
    def spawn(digest: str) -> Question:
        asked = (Right("spawn"), Decision("ask", RULE, "SPAWN: a person has to agree"))
        return Question("SPAWN", "w: work.py", (asked,), digest, "SPAWN w")

    await desk.approve(ANN, spawn("1"), remember="always")
    assert desk.queue.take(ANN, spawn("1")) is not None  # the ticket

    assert desk.queue.take(ANN, spawn("1")) is not None
    assert desk.queue.take(ANN, spawn("2")) is None


async def test_each_right_that_rules_ask_about_needs_an_answer(desk: Desk) -> None:
    def both(*paths: str) -> Question:
        asked = tuple((Right("read", path), Decision("ask", RULE, "a person has to agree")) for path in paths)
        return Question("READ", "", asked, "".join(paths), "READ")

    await desk.approve(ANN, question("/a"), remember="always")

    assert desk.queue.take(ANN, both("/a", "/b")) is None
    assert desk.queue.take(ANN, both("/a", "/a")) is not None


async def test_nothing_is_remembered_for_good_of_a_guest_without_a_name(desk: Desk) -> None:
    guest = caller(5, "guest#5", "guest")

    with pytest.raises(BadRequest, match="this guest has none"):
        await desk.approve(guest, question(), remember="always")

    [entry] = await desk.listed()
    await desk.decide(entry.id, remember="agent")
    assert desk.queue.take(guest, question(digest="2")) is not None


# -- What is no call of the table --------------------------------------------------------------------------------------


async def test_a_tunnel_waits_like_a_call(desk: Desk) -> None:
    asking = caller(4, "tess")
    asking.approvals = desk.queue
    decisions = list[Decision]()

    async def tunnel(shown: Callable[[], str]) -> None:
        decisions.append(await require_or_ask(asking, Right("read", "/data/x"), shown, trio.current_time() + HOUR))

    desk.nursery.start_soon(tunnel, lambda: "CONNECT x:443")
    [entry] = await desk.listed()
    await desk.decide(entry.id)
    await wait_all_tasks_blocked()

    assert (entry.shown, [decision.effect for decision in decisions]) == ("CONNECT x:443", ["allow"])


async def test_a_tunnel_that_a_rule_denies_is_not_asked_about(desk: Desk) -> None:
    denied = caller(4, "tess")
    denied.approvals, denied.authorizer = desk.queue, Grants(denied=["read"])

    with pytest.raises(PermissionDenied):
        await require_or_ask(denied, Right("read", "/data/x"), lambda: "", trio.current_time() + HOUR)

    assert desk.queue.pending() == []


async def test_an_answer_about_a_name_that_is_no_text_outlasts_the_kernel(tmp_path: Path) -> None:
    """A link may lead to any bytes."""
    strange = replace(question("/data/\udcff", digest="strange"), shown="READ /data/\\u{dcff}")
    async with opened(tmp_path) as desk:
        await desk.approve(ANN, strange, remember="always")
    async with opened(tmp_path) as desk:
        assert desk.queue.take(ANN, strange) is not None
        assert desk.queue.take(ANN, question("/data/\\udcff")) is None
