"""Which request a key answers, whatever arrives meanwhile."""

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentos.userland.cli.approvals.approvals import line_rows, request_lines, table_lines
from agentos.userland.cli.approvals.desk import SETTLE_SECONDS, Desk
from tests.support.runs.rows import each_row


def make_request(number: int, *lines: list[str], **more: Any) -> dict[str, Any]:
    lines = lines or (["$ ", "ls"],)
    return {
        "id": number,
        "agent": "worker",
        "path": "worker",
        "call": "EXEC",
        "shown": "\n".join("".join(line) for line in lines),
        "lines": list(lines),
        "covers": [],
        "digest": "0123456789abcdef",
        "rule": "ask commands *",
        "asked_at": 0.0,
        "expires_at": 100.0,
        "caller_present": True,
        **more,
    }


lists = st.lists(st.integers(1, 5), unique=True, max_size=5).map(lambda ids: [make_request(number) for number in ids])
steps = st.lists(st.tuples(st.floats(0, 1), st.one_of(st.just("key"), st.just("skip"), lists)), max_size=40)


@given(steps)
def test_a_key_is_taken_only_for_a_request_that_was_shown_for_half_a_second_without_a_key(steps: Any) -> None:
    desk, now, quiet_since, shown = Desk(), 0.0, 0.0, None
    for pause, step in steps:
        now += pause
        if step == "key":
            taken = desk.takes_key(now)
            assert taken == (shown is not None and now - quiet_since >= SETTLE_SECONDS)
            quiet_since = quiet_since if now - quiet_since >= SETTLE_SECONDS else now
        elif step == "skip":
            desk.skip(now)
        else:
            desk.update(step, now)
        current = desk.current["id"] if desk.current is not None else None
        if current != shown or (step == "skip" and desk.pending):
            shown, quiet_since = current, now


@given(lists, lists)
def test_what_arrives_never_replaces_the_request_that_is_shown(before: Any, after: Any) -> None:
    desk = Desk()
    desk.update(before, 0.0)
    current = desk.current

    desk.update(after, 1.0)

    if current is not None and current in after:
        assert desk.current == current
        assert desk.since == 0.0
    else:
        assert desk.current == (after[0] if after else None)


def test_a_request_whose_text_has_changed_is_another_one() -> None:
    desk = Desk()
    desk.update([make_request(1, ["$ ", "ls"])], 0.0)

    assert desk.update([make_request(1, ["$ ", "rm x"])], 10.0)
    assert not desk.takes_key(10.1)


def test_skipping_goes_round_all_requests() -> None:
    desk = Desk()
    desk.update([make_request(1), make_request(2), make_request(3)], 0.0)

    seen = []
    for now in range(4):
        assert desk.current is not None
        seen.append(desk.current["id"])
        desk.skip(float(now))
    assert seen == [1, 2, 3, 1]


def test_the_text_of_an_agent_stands_behind_a_bar_in_every_row() -> None:
    foreign = "echo " + "x" * 500 + "in /workspace" + "你" * 100
    lines = [["$ ", foreign], ["in ", "/workspace"], ["a credential that the agent wrote, 9 characters: ", "X-Token"]]
    rows = list(request_lines(make_request(7, *lines), 0.0, 80))

    assert rows[0] == "request 7: EXEC by worker"
    assert "".join(row.partition("│ ")[2] for row in rows[3:-2]) == foreign
    assert all(row.partition("│")[0] in ("  $ ", "      ") for row in rows[3:-2])
    assert rows[-2:] == ["  in │ /workspace", "  a credential that the agent wrote, 9 characters: │ X-Token"]
    assert all(sum(1 if char.isascii() or char == "│" else 2 for char in row) <= 80 for row in rows[3:])
    long = list(request_lines(make_request(7, rule="ask commands " + "x" * 200, path="a/" * 60 + "b"), 0.0, 80))
    assert [row[:6] for row in long[:2]] == ["reques", " " * 6]
    assert [row.partition("│")[0] for row in long[2:5]] == ["asked by ", " " * 6, " " * 6]


@each_row("text", ["x" * 300, "你" * 300, "\u0301" * 300])
def test_a_request_in_the_list_is_a_row_of_the_terminal(text: str) -> None:
    _, row, _ = table_lines([make_request(7, ["$ ", text])], 0.0, 80)

    assert len(row) + row.count("你") <= 80
    assert row.endswith(" more")


@each_row("columns", [20, 40, 80, 200])
def test_no_width_lets_a_quoted_text_begin_a_row(columns: int) -> None:
    lines = [[words, "y" * 300] for words in ("+", "| ", "header that the agent wrote: ", "a" * 90 + ": ")]

    rows = [row for line in lines for row in line_rows(line, columns)]

    assert all("y" not in row.partition("│")[0] for row in rows)
    assert all(len(row) <= columns for row in rows)


def test_a_table_fits_80_columns_and_says_what_has_given_up() -> None:
    requests = [
        make_request(1, ["$ ", "long " * 60], path="a" * 60 + "/b"),
        make_request(2, ["WRITE ", "/x"], ["a new file"], ["+", "a"], call="WRITE", caller_present=False),
    ]
    lines = list(table_lines(requests, 30.0, 80))

    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split() == ["ID", "AGENT", "CALL", "LEFT", "LINES", "WHAT"]
    assert lines[2].split() == ["2", "worker", "WRITE", "1m10s,", "gone", "3", "/x"]
    assert re.search(r"… 2\d\d more$", lines[1]), "what is cut is counted"
    assert list(table_lines([], 0.0, 80)) == ["no call waits for approval"]
