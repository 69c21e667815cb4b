"""The demo of a framework's program that misbehaves, plainly and as an agent."""

import re
import sys

import pytest

from tests.demos.conftest import Run
from tests.support.runs.rounds import some

pytestmark = pytest.mark.usefixtures("long")


FAULTS = {  # what is said of each
    "leak": ("leaks", "agent   restarted: ended: killed: memory limit 300M reached"),
    "fork": ("forks", "agent   held at 40 processes and threads, and restarted: no more helpers"),
    "loop": ("loops", r"agent +(throttled: takes \d+% of a CPU|not limited here: )"),
    "crash": ("crashes", r"ended by SIGSEGV, and stays away\s+agent +restarted: ended: killed by SIGSEGV"),
}


def test_each_fault_is_shown_plainly_and_as_an_agent(run: Run) -> None:
    chosen = some(FAULTS, 1)
    shown = run("framework_faults", "--python", sys.executable, *chosen)

    assert [line for line in shown.splitlines() if len(line) > 100] == []
    found = dict(re.findall(r"── It (\w+)\n   plain +(.*(?:\n {11}.*)*\n   agent +.*(?:\n {11}.*)*)", shown))
    assert list(found) == [FAULTS[fault][0] for fault in chosen]
    for verb, said in (FAULTS[fault] for fault in chosen):
        assert re.search(said, found[verb])


def test_without_the_package_it_says_what_to_install(run: Run) -> None:
    said = run("framework_faults", "--python", "/bin/false", fails=True)

    assert "/bin/false lacks the package openai-agents: pip install openai-agents" in said
