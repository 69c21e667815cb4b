"""The demo of a framework's program that misbehaves, plainly and as an agent."""

import re

import pytest

from tests.demos.conftest import Run

pytestmark = pytest.mark.usefixtures("long")


def test_each_fault_is_shown_plainly_and_as_an_agent(run: Run) -> None:
    shown = run("framework_faults")

    assert [line for line in shown.splitlines() if len(line) > 100] == []
    found = dict(re.findall(r"── It (\w+)\n   plain +(.*(?:\n {11}.*)*\n   agent +.*(?:\n {11}.*)*)", shown))
    assert list(found) == ["loops", "leaks", "forks", "crashes"]
    assert re.search(r"agent +(throttled: takes \d+% of a CPU|not limited here: )", found["loops"])
    assert "agent   restarted: ended: killed: memory limit 300M reached" in found["leaks"]
    assert "agent   held at 40 processes and threads, and restarted: no more helpers" in found["forks"]
    assert re.search(r"ended by SIGSEGV, and stays away\s+agent +restarted: ended: killed by SIGSEGV", found["crashes"])


def test_without_the_package_it_says_what_to_install(run: Run) -> None:
    with pytest.raises(AssertionError, match="lacks the package openai-agents: pip install openai-agents"):
        run("framework_faults", "--python", "/bin/false")
