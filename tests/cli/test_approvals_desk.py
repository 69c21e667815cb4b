"""Which request a key answers, whatever arrives meanwhile."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentos.userland.cli.approvals import request_lines, table_lines
from agentos.userland.cli.approvals_desk import SETTLE_SECONDS, Desk


def make_request(number: int, shown: str = "$ ls", **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "agent": "worker",
        "call": "EXEC",
        "shown": shown,
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
    desk.update([make_request(1, "$ ls")], 0.0)

    assert desk.update([make_request(1, "$ rm x")], 10.0)
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


def test_the_text_of_an_agent_never_begins_a_row() -> None:
    shown = "$ echo " + "x" * 500 + "\nin /workspace\n| 你好" + "你" * 100
    rows = list(request_lines(make_request(7, shown), 0.0, 80))

    assert rows[0] == "request 7: EXEC by worker"
    long = list(request_lines(make_request(7, rule="ask commands " + "x" * 200), 0.0, 80))
    assert [row[:6] for row in long[1:4]] == ["asked ", " " * 6, " " * 6]
    assert all(row.startswith("  ") for row in rows[3:])
    assert all(sum(1 if char.isascii() else 2 for char in row) <= 80 for row in rows[3:])
    assert "".join(row[2:] if row[2:3] != " " else row[6:] for row in rows[3:]) == shown.replace("\n", "")


def test_a_table_fits_80_columns_and_says_what_has_given_up() -> None:
    requests = [
        make_request(1, "$ " + "long " * 60, agent="a" * 60),
        make_request(2, "WRITE /x\na new file of 2 bytes\n+a", call="WRITE", caller_present=False),
    ]
    lines = list(table_lines(requests, 30.0, 80))

    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split() == ["ID", "AGENT", "CALL", "LEFT", "WHAT"]
    assert lines[2].split() == ["2", "worker", "WRITE", "1m10s,", "gone", "/x"]
    assert list(table_lines([], 0.0, 80)) == ["no call waits for approval"]
