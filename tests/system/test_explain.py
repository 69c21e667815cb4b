"""EXPLAIN says what is decided: asked first, and then tried."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentos_sdk import AgentOSClient
from agentos_sdk.opcodes import Op
from tests.permissions.tables import tables
from tests.support.kernel import Kernel
from tests.support.rounds import rounds
from tests.system.agents import as_agent, up

SLEEP = ["sleep", "1000"]
REFUSED = {"permission_denied": "deny", "approval_required": "ask"}


@pytest.fixture(scope="module")
def pair(kernel: Kernel) -> Iterator[tuple[AgentOSClient, AgentOSClient, int]]:
    """The operator, an agent called ``subject`` as whom one can call, and its id; there is an agent ``other``, too."""
    with kernel.client() as operator:
        number = up(operator.spawn("subject", command=SLEEP))["id"]
        up(operator.spawn("other", command=SLEEP))
        with as_agent(kernel, number) as subject:
            yield operator, subject, number


def test_explain_says_the_rule_and_does_nothing(pair: tuple[AgentOSClient, AgentOSClient, int]) -> None:
    operator, subject, number = pair
    up(operator.set_permissions(level="sandboxed", agent_id=number))

    told = up(operator.explain("subject", "kill", {"name": "subject"}))

    assert told["decision"] == "allow"
    assert told["rule"] == "allow calls KILL (level sandboxed)"
    assert told["reason"].endswith("allowed by the rule allow calls KILL (level sandboxed)")
    assert subject.list_agents()
    told = up(operator.explain(number, "KILL", {"name": "other"}))
    assert (told["decision"], told["reason"]) == (
        "deny",
        "KILL other: no rule of level sandboxed allows it; it is neither you nor an agent that you spawned",
    )


WANTED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("NOOP", {}),
    ("LIST", {}),
    ("TREE", {}),
    ("GET_PERMS", {}),
    ("METRICS_SYSTEM", {}),
    ("RECV", {"max": 1}),
    ("SEND", {"to_name": "other", "message": "hi"}),
    ("SEND", {"to_name": "subject", "message": "hi"}),
    ("BROADCAST", {"message": "hi"}),
    ("LOGS", {"name": "subject"}),
    ("LOGS", {"name": "other"}),
    ("INSPECT", {"name": "other"}),
    ("PAUSE", {"name": "other"}),
    ("RESUME", {"name": "other"}),
    ("WAIT", {"name": "other", "timeout": 0}),
    ("SET_PERMS", {"level": "minimal"}),
    ("EXPLAIN", {"agent": "other", "call": "LIST"}),
    ("EXPLAIN", {"agent": "subject", "call": "LIST"}),
    ("THINK", {"prompt": "?", "model": "gemini-2"}),
    ("THINK", {"prompt": "?", "model": "llama"}),
    ("READ", {"path": "notes.md"}),
    ("READ", {"path": "/etc/hostname"}),
    ("READ", {"path": "/workspace/.env"}),
    ("READ", {"path": "~/.ssh/id_rsa"}),
    ("WRITE", {"path": "notes.md", "content": "x"}),
    ("WRITE", {"path": "/workspace/run.log", "content": "x"}),
    ("WRITE", {"path": "/agent/x", "content": "x"}),
    ("EXEC", {"command": "true"}),
    ("EXEC", {"command": "echo a; ls"}),
    ("EXEC", {"command": ["git", "status"]}),
    ("EXEC", {"command": "git status > /workspace/o"}),
    ("EXEC", {"command": "sudo true"}),
    ("EXEC", {"command": "echo $(("}),
)


@settings(max_examples=rounds(80))
@given(tables, st.lists(st.sampled_from(WANTED), min_size=5, max_size=5))
def test_explain_agrees_with_what_is_decided(
    pair: tuple[AgentOSClient, AgentOSClient, int], table: dict[str, Any], wanted: list[tuple[str, dict[str, Any]]]
) -> None:
    operator, subject, number = pair
    assume(operator.set_permissions(table, agent_id=number)["success"])  # otherwise it has rules without effect

    for call, args in wanted:
        told = operator.explain("subject", call, args)
        done = subject.request(Op[call], args)

        by_rule = isinstance(done, dict) and "rule" in done  # and not, say, by a file system that is read-only
        code = done.get("code") if by_rule or not told["success"] else None
        if not told["success"]:
            assert code == told["code"], (call, args, told, done)
            continue
        assert REFUSED.get(str(code), "allow") == told["decision"], (call, args, told, done)
        if code in REFUSED:
            assert (done["rule"], done["error"]) == (told["rule"], told["reason"])
