"""Lives and their calls out of audit entries, and the waterfall that shows them."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.userland.cli.top.trace_lives import Life, Trace, find_lives
from agentos.userland.cli.top.trace_table import BAR_WIDTH, Scale, draw_bar, format_offset, total_lines, waterfall
from tests.support.runs.rows import each_row

DIGEST = "9a2d" * 16
START = 1000.0


def entry(number: int, at: float, call: str, about: str = "", **more: Any) -> dict[str, Any]:
    return {
        "id": number, "at": at, "agent_id": 7, "name": "writer", "call": call, "about": about, "decision": "allow",
        "rule": "", "phase": "outcome", "outcome": "ok", "duration": None, "intent": None, "repeated": 1, **more,
    }  # fmt: skip


def ready(number: int, at: float, took: float, **more: Any) -> dict[str, Any]:
    return entry(number, at, "AGENT_READY", "life 1, pid 7", duration=took, **more)


def exited(number: int, at: float, reason: str, lived: float, **more: Any) -> dict[str, Any]:
    return entry(number, at, "AGENT_EXITED", reason, duration=lived, **more)


def traced(*entries: dict[str, Any], most: int = 100) -> Trace:
    trace = Trace(START, most)
    for each in entries:
        trace.add(each)
    return trace


def shown(trace: Trace, width: int = 80, contents: bool = False) -> list[str]:
    lines = waterfall(trace.in_order(), Scale(0.0, trace.seen_until - START), width, contents)
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]


def test_a_life_begins_before_it_was_ready_and_ends_with_its_exit() -> None:
    lives = find_lives([ready(1, 10.5, 0.5), exited(2, 20.0, "exit status 1", 10.0), ready(3, 22.2, 0.2)])

    assert lives == [Life(7, 10.0, 20.0, "exit status 1", 22.0), Life(7, 22.0)]


def test_a_life_that_was_never_ready_one_of_a_killed_kernel_and_of_a_namesake_are_found() -> None:
    lives = find_lives(
        [
            exited(1, 5.0, "exit status 1", 1.0),
            ready(2, 10.5, 0.5),
            ready(3, 20.5, 0.5),
            exited(4, 31.0, "exit status 2", 1.0, agent_id=9),
            exited(5, 40.0, "and 3 more", 0.0, repeated=3),
        ]
    )

    assert [(life.agent_id, life.began, life.ended) for life in lives] == [
        (7, 4.0, 5.0),
        (7, 10.0, None),
        (7, 20.0, None),
        (9, 30.0, 31.0),
    ]


def test_an_outcome_takes_the_place_of_its_intent_and_one_without_is_said() -> None:
    trace = traced(
        entry(1, 1001, "WRITE", "a", phase="intent", outcome=""),
        entry(2, 1002, "WRITE", "a", intent=1, duration=1.0),
        entry(3, 1003, "EXEC", "make", phase="intent", outcome=""),
    )

    assert [(call.call, call.start, call.is_unfinished) for call in trace.in_order()] == [
        ("WRITE", 1.0, False),
        ("EXEC", 3.0, True),
    ]
    assert shown(trace)[2].endswith("no outcome: make")


def test_a_question_shows_its_wait_in_the_line_tokens_and_cost() -> None:
    about = f"gpt (in 9, out 20, cost 0.25 EUR, question sha256:{DIGEST}, queued 1.000 s)"
    trace = traced(entry(1, 1004, "THINK", about, duration=4.0))

    _, line = shown(trace, 110)
    assert re.search(r"THINK +(░+)(█+)  waited 1.0s, 9 tokens in, 20 out, cost 0.25 EUR", line)
    assert (line.count("░"), line.count("█")) == (round(BAR_WIDTH / 4), BAR_WIDTH - round(BAR_WIDTH / 4))
    assert list(total_lines(trace.in_order(), 100)) == [
        "1 call",
        "1 question: 1.0s in the queue, 3.0s at the model, 9 tokens in, 20 out, cost 0.25 EUR",
    ]


@pytest.mark.parametrize("more", ["", ", queued 0.001 s", ", queued 0.001 s; fast was gpt"])
def test_a_question_shows_what_its_program_asked_for_in_vain(more: str) -> None:
    about = f"gpt (in 9, out 20, cost null, question sha256:{DIGEST}{more}; left out: web_search, mcp)"

    assert shown(traced(entry(1, 1004, "THINK", about)), 160)[1].endswith("gpt, left out: web_search, mcp")


def test_questions_are_given_to_their_calls_the_newest_to_the_last() -> None:
    about = f"gpt (question sha256:{DIGEST})"
    trace = traced(
        *(entry(number, 1000 + number, "THINK", about, outcome="timeout", duration=0.5) for number in (1, 2, 3))
    )
    usage = {"input": 3, "output": 0, "thinking": 0}
    kept: dict[str, Any] = {
        "digest": DIGEST, "system": None, "left_out": 2, "tool_calls": [], "answer": "", "queued_ms": 250.0,
        "usage": usage, "cost": None, "error": "too \x1b[2Jlate",
    }  # fmt: skip
    turns = [
        {"role": role, "text": text, "images": 0, "tool_calls": []}
        for role, text in (("user", "old"), ("assistant", "so"), ("user", "new\n" * 30))
    ]

    trace.add_contents([{**kept, "messages": turns, "id": 8}, {**kept, "messages": turns, "id": 9}])

    first, second, third = trace.in_order()
    assert (first.kept, second.kept and second.kept["id"], third.kept and third.kept["id"]) == (None, 8, 9)
    assert third.think is not None
    assert (third.think.queued, third.think.tokens_in) == (0.25, 3)
    lines = "\n".join(shown(trace, contents=True))
    assert lines.count("(not kept:") == 1
    assert lines.count("(4 earlier turns)") == lines.count("(18 more lines; --json has all)") == 2
    assert "too \\x1b[2Jlate" in lines
    assert "| old" not in lines


def test_only_the_last_calls_are_kept_and_the_others_counted() -> None:
    trace = traced(*(entry(number, 1000 + number, "READ", duration=0.0) for number in range(10)), most=3)

    assert [call.entry["id"] for call in trace.in_order()] == [7, 8, 9]
    assert trace.left_out == 7


def test_counts_refusals_and_failures_are_told() -> None:
    trace = traced(
        entry(1, 1001, "READ", "/etc/shadow", decision="deny", rule="deny read x", outcome="permission_denied"),
        entry(2, 1002, "HTTP", "GET https://a.test/", decision="ask", rule="ask", outcome="approval_required"),
        entry(3, 1003, "READ", "a", outcome="not_found", duration=0.1),
        entry(4, 1004, "SEND", "to bob", repeated=12),
    )

    ends = [line[51:] for line in shown(trace, 100)[1:]]
    assert ends == [
        "denied: /etc/shadow [deny read x]",
        "must ask: GET https://a.test/ [ask]",
        "not_found: a",
        "12 times: to bob",
    ]
    assert list(total_lines(trace.in_order(), 80, running=True)) == ["15 calls, 2 refused, 1 failed"]


@each_row(("running", "text"), [(True, "1 call (and messages: they are counted, "), (False, "1 call")])
def test_a_running_life_says_that_messages_are_noted_later(running: bool, text: str) -> None:
    [total] = total_lines(traced(entry(1, 1001, "READ", "a")).in_order(), 80, running)

    assert total.startswith(text)
    assert ("each full hour" in total) is running


@each_row(
    ("seconds", "text"),
    [(0, "0.000s"), (59.9994, "59.999s"), (65.06, "1m05.1s"), (3725, "1h02m05s"), (999 * 3600.0, "999h")],
)
def test_an_offset_fits_its_column(seconds: float, text: str) -> None:
    assert format_offset(seconds) == text
    assert len(text) <= 8


TEXT = st.text(max_size=200)
ENTRIES = st.builds(
    entry,
    st.integers(1, 50),
    st.floats(START, START + 1e7),
    st.sampled_from(["READ", "THINK", "EXEC", "AGENT_READY", "AGENT_EXITED", "A_CALL_WITH_A_VERY_LONG_NAME\n"]),
    TEXT | TEXT.map(lambda text: f"{text} (in 1, out 2, cost 0.5, question sha256:{DIGEST}, queued 9.5 s)"),
    decision=st.sampled_from(["allow", "ask", "deny"]),
    rule=TEXT,
    outcome=st.sampled_from(["ok", "timeout", ""]),
    phase=st.sampled_from(["intent", "outcome"]),
    duration=st.none() | st.floats(0, 1e7),
    intent=st.none() | st.integers(1, 50),
    repeated=st.sampled_from([1, 1, 7]),
)


@given(st.lists(ENTRIES, min_size=1, max_size=20), st.integers(80, 140))
def test_every_line_fits_and_no_text_moves_the_cursor(entries: list[dict[str, Any]], width: int) -> None:
    trace = traced(*entries, most=10)

    for line in shown(trace, width):
        assert len(line) <= width
        assert line.replace("\t", "").isprintable()
    scale = Scale(0.0, trace.seen_until - START)
    assert {len(draw_bar(call, scale)) for call in trace.in_order()} == {BAR_WIDTH}
