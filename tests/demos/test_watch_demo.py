"""watch: an agent, a person and a program read what happens to a worker, in order and without its values."""

import re

from tests.demos.conftest import Run


def test_a_worker_is_watched_by_an_agent_a_person_and_a_program(run: Run) -> None:
    shown = run("watch")

    told = re.findall(r"watcher \| the worker (.*)", shown)
    assert [line for line in told if line != "begins again"] == [
        *["has ended: exit status 1"] * 2,
        *(f"has done step {number}" for number in (1, 2, 3)),
        "was refused READ",
    ]
    assert re.search(r"SYSCALL_BLOCKED +worker: READ /etc/shadow: refused by the rule", shown)
    assert re.findall(r"seq \d+: .*'version': (\d)", shown) == ["1", "2", "3"]
    assert "it is {'step': 3} now" in shown
