"""What the console shows of agents that write without end."""

import json

import pytest

from agentos.userland.cli.console import Console
from agentos.userland.cli.console_limit import BURST_BYTES, BYTES_PER_SECOND, LINE_COST, ConsoleLimit

LINE = "x" * 36
MOST = BURST_BYTES // (len(LINE) + LINE_COST) + 1  # lines at once


def test_an_agent_that_floods_is_limited_and_counted_and_others_are_not() -> None:
    limit = ConsoleLimit(lambda: 0.0)

    shown = [limit.admit("flood", [LINE] * 1000) for _ in range(10)]

    assert sum(map(len, shown)) == MOST
    assert limit.admit("quiet", ["a", "b"]) == ["a", "b"]
    assert limit.take_withheld() == {"flood": 10_000 - MOST}
    assert limit.take_withheld() == {}


def test_one_that_pauses_is_shown_again_and_long_lines_count_as_such() -> None:
    now = 0.0
    limit = ConsoleLimit(lambda: now)
    assert len(limit.admit("flood", ["x" * (BURST_BYTES // 2)] * 5)) == 2

    now = 1.0

    assert len(limit.admit("flood", ["x" * BYTES_PER_SECOND] * 5)) == 1
    now += 2 * BURST_BYTES / BYTES_PER_SECOND
    assert len(limit.admit("flood", [LINE] * 2 * MOST)) == MOST


def test_many_agents_that_have_been_quiet_leave_nothing() -> None:
    now = 0.0
    limit = ConsoleLimit(lambda: now)
    for number in range(3000):
        limit.admit(str(number), ["x"])
        now += 1

    assert len(limit._used) <= 1001


@pytest.mark.parametrize("as_json", [False, True])
def test_the_count_is_a_line_of_the_agent(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    with Console("info", as_json) as console:
        console.show("flood", "stdout", "\n".join([LINE] * (MOST + 12_034)))

    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == MOST
    text = json.loads(last)["text"] if as_json else last.partition("flood | ")[2]
    assert text == "… 12,034 lines more: agentos logs flood"
    if as_json:
        assert json.loads(last)["missed"] == 12_034


@pytest.mark.parametrize(("only", "shown"), [(None, ["a", "b"]), (["b"], ["b"]), ([], [])])
def test_only_the_agents_that_were_named_are_shown(
    capsys: pytest.CaptureFixture[str], only: list[str] | None, shown: list[str]
) -> None:
    with Console("info", only=only) as console:
        console.show("a", "stdout", "a")
        console.show("b", "stderr", "b")
        console.say("ready")

    assert [line.partition(" | ")[2] for line in capsys.readouterr().out.splitlines()] == [*shown, "ready"]
