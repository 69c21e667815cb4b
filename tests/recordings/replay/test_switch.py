"""Where a replay goes over to live, which answers may be edited, and what is refused."""

from functools import partial
from typing import Any

import pytest
import trio

from agentos.agents.spec import AgentSpec
from agentos.kernel.caller import Caller
from agentos.kernel.table import Table
from agentos.recordings.format import Json, Life
from agentos.recordings.reader import RecordedCall
from agentos.recordings.replay.agent import choose_name, describe_files, describe_replay, find_directory
from agentos.recordings.replay.life import LifeReplay
from agentos.recordings.replay.sealed import name_itself
from agentos.recordings.replay.switch import Switch, list_losses, plan_switch
from agentos_sdk.calls.inspect import Inspect
from agentos_sdk.calls.messages import Register, Send
from agentos_sdk.calls.operator.permissions import Explain
from agentos_sdk.calls.state import Store
from agentos_sdk.errors import BadRequest
from agentos_sdk.opcodes import Op
from tests.support.rights import Grants, Notebook
from tests.support.runs.rows import each_row

ANSWER: Json = {
    "success": True,
    "content": "recorded",
    "tokens": 3,
    "model": "wise",
    "usage": {"input": 1, "output": 2},
    "finish_reason": "stop",
    "queued_ms": 0.0,
    "latency_ms": 5.0,
}
NONE = object()


def call(number: int, name: str = "THINK", reply: Any = ANSWER, **request: object) -> RecordedCall:
    return RecordedCall(number, number + 1, "coder/1", name, 1000.0, 1.0, request, None if reply is NONE else reply)


def stored(number: int, key: str, reply: Any = NONE) -> RecordedCall:
    done = {"success": True, "key": key, "version": 1} if reply is NONE else reply
    return call(number, "STORE", done, key=key, value=1, scope="global")


CALLS = [call(1), stored(3, "a"), call(5), call(7, "EXEC", {"success": True}), call(9, reply=NONE)]


@pytest.mark.parametrize(
    ("until", "then", "edits", "said"),
    [
        (None, "live", {}, "then: expected only with until"),
        (0, None, {}, "until: the last call of the life is number 9: expected 1 to 10, got 0"),
        (11, "live", {}, "until: .* expected 1 to 10, got 11"),
        (None, None, {"2": {"content": "x"}}, "edits.2: the life has no call with this number"),
        (None, None, {"first": {}}, "edits.first: the life has no call"),
        (None, None, {"9" * 5000: {}}, "edits.9{40}: the life has no call"),
        (None, None, {"9": {"content": "x"}}, "edits.9: the recorded question has no answer"),
        (None, None, {"3": {"content": "x"}}, "edits.3: only answers of THINK can be edited, and the call is STORE"),
        (5, "live", {"5": {"content": "x"}}, "edits.5: only calls before 5, which is until, are answered"),
        (None, None, {"5": {"content": 5}}, "edits.5.content: "),
        (None, None, {"5": {"tool_calls": [{"name": 3}]}}, r"edits\.5\.tool_calls\[0\]"),
        (None, None, {"5": {"answer": "x"}}, "edits.5.answer: expected one of content, "),
    ],
)
def test_what_is_wrong_is_refused_by_its_field(until: Any, then: Any, edits: Json, said: str) -> None:
    with pytest.raises(BadRequest, match=f"^{said}"):
        plan_switch(CALLS, until, then, edits)


@each_row("then", ["stop", None])
def test_a_model_is_expected_only_where_the_life_goes_on_live(then: str | None) -> None:
    with pytest.raises(BadRequest, match=r"^model: expected only with"):
        plan_switch(CALLS, 5 if then is not None else None, then, {}, "wise")


def test_an_edited_answer_keeps_what_is_not_given_and_all_others_are_as_recorded() -> None:
    streamed = call(11, stream=True)
    failed = call(13, reply={"success": False, "code": "model_error", "error": "down"}, model="wise")
    edits = {number: {"content": "no"} for number in ("5", "11", "13")}
    switch, found = plan_switch([*CALLS, streamed, failed], 14, "live", edits)

    assert switch == Switch(14, True, frozenset({5, 11, 13}))
    assert found[2].reply == {**ANSWER, "content": "no"}
    assert found[5].chunks == ({"delta": "no"},)
    assert found[6].reply is not None
    assert (found[6].reply["success"], found[6].reply["model"]) == (True, "wise")
    assert [*found[:2], *found[3:5]] == [*CALLS[:2], *CALLS[3:]]


def test_what_the_live_part_does_not_find_is_said() -> None:
    bare, kept = Life("coder/1", "coder", 1.0), Life("coder/1", "coder", 1.0, start="empty")
    live, stopped = (list_losses(CALLS, Switch(9, live), bare) for live in (True, False))

    assert live == [
        "commands of EXEC that aren't run: 1; files that they changed aren't there: the recording has none of them",
        "answered and not done, so that the live part finds the state of today: STORE (1)",
    ]
    assert stopped == live[:1]
    assert list_losses(CALLS, Switch(9, True), kept) == live[1:]
    assert list_losses(CALLS, Switch(3, True), bare) == []


def load(calls: list[RecordedCall], switch: Switch) -> LifeReplay:
    life = LifeReplay(1, "coder", "coder/1", lambda data: data, switch=switch)
    life.load(calls)
    return life


async def ask(life: LifeReplay, key: str) -> RecordedCall | None:
    return await life.find(Op.STORE, Store(key=key, value=1, scope="global"))


STORES = [stored(1, "a"), stored(3, "b"), stored(5, "c"), stored(7, "d")]


@pytest.mark.parametrize("following", ["c", "another"])
async def test_from_the_switch_on_all_is_live(following: str) -> None:
    life = load(STORES, Switch(5, live=True))

    assert [await ask(life, key) for key in ("a", "b")] == STORES[:2]
    assert not life.live.is_set()
    assert [await ask(life, key) for key in (following, "a", "d")] == [None] * 3
    assert life.live.is_set()
    life.judge("exit status 1")
    assert (life.progress.verdict, life.progress.replayed, life.progress.total) == ("identical", 2, 2)


async def test_a_call_without_an_answer_before_the_switch_ends_the_fork_and_nothing_is_live() -> None:
    life = load(STORES, Switch(5, live=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, life, "another")
        await life.over.wait()
        nursery.cancel_scope.cancel()

    assert (life.progress.verdict, life.live.is_set()) == ("diverged", False)


async def test_calls_of_other_threads_before_the_switch_are_still_answered_after_it() -> None:
    life = load(STORES, Switch(5, live=True))

    assert [await ask(life, key) for key in ("a", "c", "b", "b")] == [STORES[0], None, STORES[1], None]


async def test_a_call_that_was_never_answered_waits_for_the_switch_and_is_live() -> None:
    life, found = load([STORES[0], stored(3, "b", None), STORES[2]], Switch(5, live=True)), list[object]()
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            found.append(await ask(life, "b"))

        nursery.start_soon(wait)
        assert await ask(life, "a") == STORES[0]
        assert found == []
        assert await ask(life, "c") is None

    assert found == [None]


@pytest.mark.parametrize("following", ["c", "another"])
async def test_a_replay_that_stops_there_has_its_verdict(following: str) -> None:
    life = load(STORES, Switch(5))
    async with trio.open_nursery() as nursery:
        assert [await ask(life, key) for key in ("a", "b")] == STORES[:2]
        nursery.start_soon(partial(ask, life, following))
        await life.over.wait()
        nursery.cancel_scope.cancel()
    life.judge(None)

    assert life.progress.verdict == "identical"


async def test_what_follows_an_edited_answer_is_live_where_it_is_another_call() -> None:
    life = load(STORES, Switch(7, live=True, edited=frozenset({1})))

    assert [await ask(life, key) for key in ("a", "b", "another", "c")] == [STORES[0], STORES[1], None, STORES[2]]


@pytest.mark.parametrize(
    ("op", "request_", "own"),
    [
        (Op.SEND, Send(to_name="coder", message=1), Send(to_name="coder-fork", message=1)),
        (Op.INSPECT, Inspect(id=7), Inspect(id=9)),
        (Op.EXPLAIN, Explain(agent="coder", call="READ"), Explain(agent="coder-fork", call="READ")),
        (Op.INSPECT, Inspect(name="other"), Inspect(name="other")),
        (Op.REGISTER, Register(name="coder"), Register(name="coder")),
    ],
)
def test_what_an_agent_asks_about_itself_is_about_the_fork(op: Op, request_: object, own: object) -> None:
    life = LifeReplay(7, "coder", "coder/1", lambda data: data)

    assert name_itself(op, Caller(9, "agent", "coder-fork", Table(()), Grants(), Notebook()), request_, life) == own


@pytest.mark.parametrize(
    ("workspace", "is_fork", "empty", "found", "said"),
    [
        ("/srv/shop", True, None, ("/srv/shop", "overlay"), "is an overlay of /srv/shop as it is now"),
        ("/srv/shop", True, "/state/empty", ("/srv/shop", "overlay"), "is an overlay of /srv/shop as it is now"),
        ("/srv/shop", False, None, ("tmp", "direct"), "was empty at the begin"),
        ("keep", True, None, ("tmp", "direct"), "was empty at the begin"),
        ("tmp", True, "/state/empty", ("/state/empty", "overlay"), "was empty at the begin"),
    ],
)
def test_a_fork_never_changes_the_directory_of_the_agent(
    workspace: str, is_fork: bool, empty: str | None, found: tuple[str, str], said: str
) -> None:
    own = AgentSpec(name="coder", command=["x"], workspace=workspace)
    directory = find_directory(own, is_fork)
    spec = describe_replay(own, None, is_fork, directory or empty)

    assert (spec.workspace, spec.workspace_mode, spec.record) == (*found, is_fork)
    assert describe_files(directory) == f"the workspace {said}"


def test_a_fork_has_the_first_free_name() -> None:
    spec = AgentSpec(name="coder-fork", command=["x"])

    assert choose_name(spec, lambda name: False).name == "coder-fork"
    assert choose_name(spec, {"coder-fork", "coder-fork-2"}.__contains__).name == "coder-fork-3"
