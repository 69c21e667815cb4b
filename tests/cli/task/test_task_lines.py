"""What a task shows, also of steps that a program in the agent's jail has made up."""

from typing import Any

import click
import pytest

from agentos.userland.cli.task.changes import change_lines
from agentos.userland.cli.task.lines import command_lines, find_commands, fold, result_lines, step_lines
from agentos.userland.task.running import is_step
from agentos_sdk.loop import TaskResult
from agentos_sdk.loop.engine.result import LoopError
from tests.support.runs.rows import each_row

HUGE = 10**309  # no float
THOUGHT = {"kind": "thought", "step": 1, "text": "hm", "tokens": 3, "cost": None}


def short(value: object) -> str:
    return str(value)[-60:]


@each_row(
    "step",
    [
        {},
        {"kind": "thought"},
        {**THOUGHT, "tokens": "many"},
        {**THOUGHT, "cost": []},
        {**THOUGHT, "cost": HUGE},
        {**THOUGHT, "tokens": -1},
        {"kind": "trimmed", "before": 1, "after": True},
        {**THOUGHT, "text": None},
        {"kind": "call", "call": ["exec"], "arguments": {}},
        {"kind": "result", "call": "exec", "ok": 1, "result": "x"},
        {"kind": "told", "text": {}},
    ],
    ids=short,
)
def test_a_step_without_what_its_kind_has_is_left_out(step: dict[str, object]) -> None:
    assert is_step(THOUGHT)
    assert not is_step(step)


@pytest.mark.parametrize(
    "step",
    [
        {**THOUGHT, "text": "\x1b[2Jgone\x9b"},
        {"kind": "call", "call": "exec", "arguments": {"command": "echo \x1b]0;title\x07"}},
        {"kind": "call", "call": "\x1b[H", "arguments": ["\x1b"]},
        {"kind": "result", "call": "exec", "ok": True, "result": "a\r\x1b[1A\x08b"},
    ],
    ids=str,
)
def test_control_characters_of_an_agent_are_escaped(step: dict[str, object]) -> None:
    shown = "".join(step_lines(step, 80)).replace("\x1b[36m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")

    assert shown.isprintable(), shown


@each_row("text", ["word " * 50, "漢字" * 80, "x" * 300, "request 7: EXEC ls by task-1\nand more"], ids=len)
@each_row("kind", ["thought", "call", "result", "output", "check"])
def test_no_text_of_an_agent_gets_into_the_first_column(kind: str, text: str) -> None:
    fields: dict[str, dict[str, object]] = {
        "thought": {**THOUGHT, "text": text},
        "call": {"kind": "call", "call": text, "arguments": {}},
        "result": {"kind": "result", "call": "exec", "ok": True, "result": text},
        "output": {"kind": "output", "stream": "stdout", "text": text},
        "check": {"kind": "check", "text": text},
    }

    for line in step_lines(fields[kind], 40):
        plain = line.replace("\x1b[36m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")
        assert plain[:2] in ("» ", "● ", "  "), plain
        assert len(plain) + sum(not char.isascii() for char in plain) - 1 <= 40


RESULT = TaskResult("done", "", "t", "task-1", 1, 3, 0.5)


def test_the_name_in_a_result_is_escaped() -> None:
    result = RESULT._replace(agent="x\n\x1b[31mFAKE approval: y", status="stopped")

    shown = [click.unstyle(line) for line in result_lines(result, 80)]

    assert shown == [
        "x\\n\\x1b[31mFAKE approval: y: stopped (1 step, 3 tokens, cost 0.5)",
        "`agentos task --resume x\\n\\x1b[31mFAKE approval: y` goes on with it",
    ]


@pytest.mark.parametrize("forged", [{"cost": HUGE}, {"cost": True}, {"tokens": -5}, {"steps": 1 << 63}], ids=short)
def test_a_result_with_amounts_that_cannot_be_shown_is_refused(forged: dict[str, object]) -> None:
    with pytest.raises(LoopError, match="something else has stored it"):
        TaskResult.from_record({**RESULT._asdict(), **forged})


def test_no_tab_lets_the_terminal_break_a_row() -> None:
    """It takes up to eight columns, and what follows would stand in the first one."""
    text = "\t" * 9 + "x" * 9 + "\u00e9" + "\t" * 9 + "x" * 9
    steps: list[dict[str, Any]] = [
        {"kind": "result", "ok": True, "result": text},
        {"kind": "output", "text": text},
        {"kind": "thought", "text": text},
        {"kind": "call", "call": "exec", "arguments": {"command": text}},
    ]

    rows = [click.unstyle(row) for step in steps for row in step_lines(step, 60)]

    assert len(rows) >= len(steps)
    assert [row for row in rows if "\t" in row or len(row) > 60] == []


def test_long_results_are_folded() -> None:
    assert list(fold("1\n2\n3\n4\n5\n6\n", 80)) == ["  1", "  2", "  3", "  4", "  … 2 more lines"]
    assert all(len(line) <= 40 for line in fold("x" * 500, 40))


@pytest.mark.parametrize("text", ["é" * 4_000_000, "e" * 4_000_000, "e界" * 2_000_000])
def test_a_long_line_is_cut_at_once_whatever_its_characters(text: str) -> None:
    [shown] = fold(text, 80)

    assert len(shown) + sum(not char.isascii() for char in shown) in (79, 80)
    assert "…" in shown


COMMITS = ["  2 commits on main (only with --also .git)", "  and 2 files in .git"]


def change(path: str, **more: object) -> dict[str, object]:
    return {"path": path, "change": "created", "obeyed": None, "conflict": None, "blocked": None, "root": None, **more}


def shown_changes(*changes: dict[str, object], more: int = 0) -> list[str]:
    commits = [{"repository": "", "branch": "main", "commits": 2, "dropped": 0}]
    return list(change_lines({"changes": changes, "commits": commits, "more": more}, "/d"))


def test_files_of_git_itself_are_counted() -> None:
    shown = shown_changes(change(".git/index", obeyed="git"), change(".git/objects/ab", obeyed="git"), change("a\nb"))

    assert shown == ["1 change waits, and /d is as it was:", "  A a\\nb", *COMMITS]


def test_changes_that_are_not_applied_with_the_others_come_first() -> None:
    others = [change(f"file{number}") for number in range(30)]
    obeyed = change("web/.npmrc", obeyed="npm obeys it", root="web/.npmrc")

    shown = shown_changes(*others, obeyed, change("a", conflict="changed"), change("b", blocked="a FIFO"), more=3)

    assert shown[:4] == [
        "36 changes wait, and /d is as it was:",
        "  A web/.npmrc  (only with --also web/.npmrc: npm obeys it)",
        "  A a  (changed)",
        "  A b  (never applied: a FIFO)",
    ]
    assert shown[-1] == "  … and 16 more"


def test_commands_are_found_whatever_else_is_recorded() -> None:
    lines: list[dict[str, object]] = [
        {"call": "exec", "arguments": {"command": "ls\x1b"}},
        {"call": "exec", "arguments": "x"},
        {"call": "exec", "arguments": {"command": "rm"}, "ok": False, "result": "permission_denied: EXEC rm"},
        {"call": "exec", "arguments": {"command": "false"}, "ok": False, "result": "exit status 1\n"},
        {"call": "exec", "arguments": {}},
        {"call": "http", "arguments": {"command": "no"}},
    ]

    assert list(command_lines(find_commands(lines), 80)) == ["2 commands run:", "  $ ls\\x1b", "  $ false"]
