"""``agentos task --attempts``: several agents work on one task at once, each is checked, and one is taken."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.userland.cli.task.attempts import Row, describe_choice, table_row
from agentos.userland.task.attempts import Size, measure_diff, share
from agentos_sdk.loop import Budget
from tests.cli.conftest import Agentos
from tests.cli.task.test_task import configure, tree
from tests.cli.terminal import Terminal
from tests.support.kernel import Kernel, shared, until

WRONG, RIGHT = "print(2 - 2)\n", "print(2 + 2)\n"
CHECK = "echo built > built.txt && python3 add.py && test $(python3 add.py) = 4"


def write(content: str) -> list[tuple[str, dict[str, Any]]]:
    return [("write_file", {"path": "add.py", "content": content})]


RULES: list[dict[str, Any]] = [
    {"match": "^Repair", "times": 1, "tool_calls": write(WRONG)},
    {"match": "^Repair", "times": 1, "tool_calls": [("done", {"summary": "I can't.", "success": False})]},
    {"match": "^Repair", "tool_calls": write(RIGHT)},
    {"match": "^Sleep", "tool_calls": [("exec", {"command": "sleep 1000"})]},
    {"match": "^Spend", "tool_calls": [("exec", {"command": "echo more"})]},
    {"tool": "write_file", "match": "wrote", "tool_calls": [("done", {"summary": "It adds."})]},
    {"tool": "exec", "match": "more", "tool_calls": [("exec", {"command": "echo more"})]},
]  # fmt: skip


@pytest.fixture(scope="module")
def kernel(kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with shared(configure(RULES, tmp_path_factory.mktemp("rules"))) as started:
        yield started


@pytest.fixture
def directory(entered: Path) -> Path:
    place = entered / "work"
    place.mkdir()
    (place / "add.py").write_text("print(2)\n")
    place.chmod(0o755)
    return place


def test_attempts_are_checked_in_their_overlays_and_one_is_taken(agentos: Agentos, directory: Path) -> None:
    before = tree(directory)

    done = agentos("task", "--attempts", "4", "--check", CHECK, "Repair add.py", "--dir", str(directory), "--json")

    *steps, last = map(json.loads, done.stdout.splitlines())
    rows = last["attempts"]
    assert done.returncode == 0, done
    assert sorted(row["verdict"] for row in rows) == ["exit 1", "exit 1, failed", "passed", "passed"]
    assert {step["task"] for step in steps} == {row["attempt"] for row in rows}
    assert tree(directory) == before
    taken = next(row["attempt"] for row in rows if row["solved"])
    paths = {row["attempt"]: row["size"]["paths"] for row in rows}
    assert paths[taken] == 1, "what the check writes is thrown away"
    assert agentos("apply", taken, "--yes").returncode == 0
    assert tree(directory) == {"add.py": (before["add.py"][0], RIGHT)}
    others = [f"{row['attempt']}@start" for row in rows if row["attempt"] != taken]
    assert agentos("rollback", *others).returncode == 0
    assert [agentos("diff", each.split("@")[0]).stdout for each in others] == ["no changes\n"] * 3


def test_an_attempt_ends_alone_and_ctrl_c_ends_the_others(kernel: Kernel, directory: Path) -> None:
    terminal = Terminal(kernel, "task", "--attempts", "3", "--check", "true", "Sleep", "--dir", str(directory))
    until(lambda: len(running(terminal)) == 3, "all three sleep")
    sleepers = sorted(running(terminal))
    with kernel.client() as client:
        assert client.kill(name=sleepers[0])
    terminal.wait_for(f"{sleepers[0]} │   exit status 0")
    terminal.type("\x03")
    terminal.wait_for("Ctrl-C again ends")
    terminal.type("\x03")

    assert terminal.end() == 0, "the first one has passed the check"
    shown = terminal.shown
    assert re.search(rf"^{sleepers[0]}  +loop +passed, failed ", shown, re.M), shown
    assert [re.search(rf"^{name}  +loop +stopped ", shown, re.M) is not None for name in sleepers[1:]] == [True, True]
    assert "no file was changed" in shown
    terminal.close()


def running(terminal: Terminal) -> set[str]:
    """The attempts of which a command is shown."""
    return set(re.findall(r"(task-\d+) +│ ● exec sleep", terminal.shown))


def test_tokens_and_money_are_for_all_attempts_together(agentos: Agentos, directory: Path) -> None:
    budget = Budget(iterations=7, tokens=901, money=0.5, time=60.0)
    assert share(budget, 2) == Budget(iterations=7, tokens=450, money=0.25, time=60.0)

    done = agentos("task", "--attempts", "2", "Spend", "--dir", str(directory), "--budget", "tokens=4000")

    assert done.returncode == 1, done
    rows = [line.split() for line in done.stdout.splitlines() if re.match(r"task-\d+ +loop +budget ", line)]
    assert len(rows) == 2, done.stdout
    assert 0 < sum(int(row[4].replace(",", "")) for row in rows) <= 4000


def test_the_cheapest_attempt_that_has_solved_the_task_is_advised() -> None:
    row = Row("task-1", "loop", True, "passed", "done", 0, "", 0.5, 9000, Size(2, 10, 1))
    none = row._replace(attempt="task-4", size=Size())
    rows = [row, row._replace(attempt="task-2", cost=0.2), row._replace(attempt="task-3", cost=0.1, solved=False), none]

    assert "`agentos apply task-2` takes it" in describe_choice(rows)
    assert describe_choice(rows).endswith("`agentos rollback task-1@start task-3@start` throws the others away")
    assert describe_choice(rows[2:]).startswith("none has solved it: `agentos diff task-3` shows one")
    assert table_row(row) == ["task-1", "loop", "passed", "0.5", "9,000", "2 paths +10 -1"]
    assert table_row(none._replace(cost=None))[3:] == ["?", "9,000", "none"]


def test_the_size_of_a_diff_has_no_files_of_git() -> None:
    changes = [
        {"path": "a.py", "diff": "@@ -1,2 +1,2 @@\n a\n-b\n+c\n+d\n"},
        {"path": "image.png", "diff": None},
        {"path": ".git/HEAD", "diff": "@@ -1 +1 @@\n-x\n+y\n"},
        {"path": ".gitignore", "diff": "@@ -0,0 +1 @@\n+*.pyc\n"},
    ]

    assert measure_diff({"changes": changes, "more": 5}) == Size(8, 3, 1)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--attempts", "2", "x"], "give --dir"),
        (["--attempts", "2", "x", "--dir", ".", "--in-place"], "without --in-place"),
        (["--attempts", "1", "x", "--dir", "."], "not in the range"),
        (["--check", "true", "x", "--dir", "."], "--check judges the attempts"),
        (["--attempts", "2", "x", "--dir", ".", "--level", "unheard-of"], "unheard-of"),
    ],
)
def test_what_attempts_lack_is_said(agentos: Agentos, arguments: list[str], error: str) -> None:
    done = agentos("task", *arguments)

    assert done.returncode in (1, 2)
    assert error in " ".join(f"{done.stdout} {done.stderr}".split())


def test_a_program_is_refused_where_agents_find_no_endpoint(agentos: Agentos, kernel: Kernel) -> None:
    (kernel.place / "presets").mkdir()
    (kernel.place / "presets" / "shell.toml").write_text('about = "a shell"\ntask = ["sh", "-c", "{task}"]\n')

    done = agentos("task", "--with", "shell", "true")

    assert done.returncode == 1
    assert "set [llm] openai_endpoint = true" in done.stderr
