"""The examples: each checks its claim by the kernel or the audit log, and ends with status 0 if it holds."""

import re

import pytest

from tests.demos.conftest import Run

CLAIMS = {
    "conversation_memory": (
        "restarted it 1 time",
        "agent: Your name is Ada.",
        "agent: You grow tulips.",
        "with 4 turns",
    ),
    "multi_agent_chat": ("sceptic: (killed by SIGSEGV; restarted as process", "sceptic: restarts 1, process"),
    "research_assistant": ("is 41 metres high [2].", "The pages do not say.", "the intranet 0 times"),
    "code_review": ("reviewer | line 7: SQL injection", "WRITE deny by: no rule"),
    "task_agent": ("It was interrupted. I look", "done: The journal has its three lines", "of them 1 call in doubt"),
    "coding_agent": ("coder | AssertionError: VIV", "READ deny /etc/profile.d/roman.sh", "tester | all tests pass"),
    "fibonacci": (
        "fib(5) = 5; the agents say that they have spawned 14 others",
        "15 agents; the audit log has 14 SPAWN",
    ),
    "research_pipeline": (
        "memory-1-0: killed: memory limit 64M",
        "exception-1-0: exit status 1",
        "exit-1-0: exit status 3",
        "timeout-1-0: stopped: killed by SIGTERM",
        "malformed-1-0: exit status 0",
    ),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_an_example_keeps_what_it_promises(name: str, run: Run) -> None:
    shown = re.sub(r"\s+", " ", run(name))

    assert [claim for claim in CLAIMS[name] if claim not in shown] == []


def test_a_real_model_needs_a_key(run: Run) -> None:
    with pytest.raises(AssertionError, match="--real asks a real model: set its key, GEMINI_API_KEY"):
        run("code_review", "--real")
