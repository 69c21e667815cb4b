"""Tool calls and answers between their records, with records that an earlier life of the agent has left."""

import time
from typing import Any

from agentos_sdk.loop.asking import MALFORMED_CALL, MAX_MALFORMED, PAUSES, Asker
from agentos_sdk.loop.engine.budget import Budget, Spent
from agentos_sdk.loop.engine.effects import Call, Sleep, Work
from agentos_sdk.loop.engine.engine import Task
from agentos_sdk.loop.engine.history import History
from agentos_sdk.loop.engine.records import Records
from agentos_sdk.loop.engine.steps import IN_DOUBT, Outcome, Steps
from agentos_sdk.loop.tools.tools import Context, Tool
from agentos_sdk.opcodes import Op
from tests.support.runs.rows import each_row


def run(work: Work[Any], state: dict[str, Any]) -> Any:
    """The result of work that only keeps records, which are in ``state``."""
    reply: dict[str, Any] | None = None
    while True:
        try:
            call = work.send(reply) if reply is not None else next(work)
        except StopIteration as end:
            return end.value
        assert isinstance(call, Call)
        if call.op == Op.KEYS:
            reply = {"success": True, "keys": list(state), "next": None}
        elif call.op == Op.FETCH:
            reply = {"success": True, "value": state[call.fields["key"]]}
        else:
            assert call.op == Op.STORE
            state[call.fields["key"]] = call.fields["value"]
            reply = {"success": True}


def report(step: dict[str, Any]) -> Work[None]:
    yield from ()


def make(state: dict[str, Any], *tools: Tool, spent: Spent | None = None) -> Outcome:
    """What comes of a call of the tool ``echo``; what it costs is added to ``spent``."""

    records = Records("t")
    run(records.open(), state)
    context = Context("t", "agent", 0, None, None, records.replace, spent or Spent(Budget(), time.time()))
    steps = Steps({tool.name: tool for tool in tools}, context, records, report)
    call = {"id": "1", "name": "echo", "arguments": {}}
    return run(steps.make("0001", [call]), state)["1"]  # type: ignore[no-any-return]


def test_a_begun_call_of_a_tool_that_is_gone_is_in_doubt() -> None:
    begun = {"task/t/0001/00/started": {"call": "echo", "arguments": {}}, "task/t/0001/00/output": {"text": "half"}}

    outcome = make(begun)

    assert not outcome.ok
    assert outcome.text == f"{IN_DOUBT}\nIts output so far:\nhalf"


def test_what_a_finished_call_has_spent_counts_in_the_next_life_too() -> None:
    finished = {"call": "echo", "arguments": {}, "result": "worked", "ok": True}
    spent = Spent(Budget(), time.time())

    outcome = make(
        {"task/t/0001/00/finished": finished, "task/t/0001/00/spent": {"tokens": 10, "cost": 0.5}}, spent=spent
    )

    assert outcome == Outcome("worked")
    assert (spent.tokens, spent.cost) == (10, 0.5)


def test_what_recorded_answers_and_summaries_have_cost_counts_in_the_next_life_too() -> None:
    answer: dict[str, Any] = {"content": "", "tool_calls": [], "usage": {}, "context": None, "uses_text": False}
    state = {
        "task/t/0001/asked": {"times": 2, "lost": 5},
        "task/t/0001/thought": {**answer, "tokens": 10, "cost": 0.5},
        "task/t/0001/trim": {"cut": 1, "summarised": 1, "summary": "", "tokens": 100, "cost": 0.25},
    }
    records, spent = Records("t"), Spent(Budget(), time.time())
    run(records.open(), state)

    run(Asker(Task("t", "", "agent", "", (), Budget()), records, History(), spent, report).ask("0001"), state)

    assert (spent.tokens, spent.cost) == (2 * 10 + 5 + 100, 2 * 0.5 + 0.25)


ANSWER = {"success": True, "content": "", "tool_calls": [], "usage": {}, "tokens": 1}
MALFORMED = {"success": False, "code": "unavailable", "error": MALFORMED_CALL, "tokens": 7}


def failed(code: str, **more: object) -> dict[str, Any]:
    return {"success": False, "code": code, "error": "no answer", **more}


@each_row(
    ("replies", "pauses", "tokens"),
    [
        ([ANSWER], (), 1),
        ([failed("busy"), failed("timeout"), failed("unavailable"), ANSWER], PAUSES, 1),
        ([failed("busy")] * (len(PAUSES) + 1), PAUSES, 0),
        ([failed("busy", retry=False)], (), 0),
        ([failed("permission_denied")], (), 0),
        ([*[MALFORMED] * MAX_MALFORMED, ANSWER], (), 7 * MAX_MALFORMED + 1),
        ([MALFORMED] * (MAX_MALFORMED + 1), (), 7 * (MAX_MALFORMED + 1)),
    ],
)
def test_the_model_is_asked_again_only_after_what_may_pass_and_so_many_times(
    replies: list[dict[str, Any]], pauses: tuple[float, ...], tokens: int
) -> None:
    state: dict[str, Any] = {}
    records, spent, left, paused = Records("t"), Spent(Budget(), time.time()), [*replies], list[float]()
    run(records.open(), state)
    asker = Asker(Task("t", "", "agent", "", (), Budget()), records, History(), spent, report)

    def ask() -> Work[Any]:
        """The step, with the model's replies and pauses taken out."""
        work, reply = asker.ask("0001"), None
        while True:
            try:
                effect = work.send(reply)
            except StopIteration as end:
                return end.value
            if isinstance(effect, Sleep):
                paused.append(effect.seconds)
                reply = None
            else:
                assert isinstance(effect, Call)
                reply = left.pop(0) if effect.op == Op.THINK else (yield effect)

    result = run(ask(), state)

    assert (result["success"], left, tuple(paused)) == (replies[-1]["success"], [], pauses)
    assert spent.tokens == tokens


def test_a_call_of_a_tool_that_is_missing_is_answered_with_the_tools_that_there_are() -> None:
    assert make({}) == Outcome("there is no tool 'echo'; the tools are done", ok=False)
