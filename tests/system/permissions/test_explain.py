"""EXPLAIN says what is decided: asked first, and then tried."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentos_sdk import AgentOSClient
from agentos_sdk.opcodes import Op
from tests.permissions.tables import tables
from tests.support.calls import syscalls
from tests.support.kernel import Kernel, running
from tests.support.runs.rounds import rounds
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
            up(subject.hello(approval_timeout=0))
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


def test_a_tunnel_is_explained_by_the_rules_of_domains(pair: tuple[AgentOSClient, AgentOSClient, int]) -> None:
    operator, _, number = pair
    given = {"level": "sandboxed", "allow": {"domains": ["a.test", "GET b.test/x/**"]}}
    up(operator.set_permissions(given, agent_id=number))

    def told(url: str) -> tuple[str, str]:
        reply = up(operator.explain("subject", "HTTP", {"method": "CONNECT", "url": url}))
        return reply["decision"], reply["reason"]

    assert told("a.test:443")[0] == "allow"
    assert told("a.test:443")[1].startswith("HTTP CONNECT a.test:443: allowed by the rule allow domains a.test (")
    assert told("a.test:22")[0] == "deny"
    assert told("b.test:443")[1].endswith(
        "; 'GET b.test/x/**' allows no tunnel, which hides methods and paths: only a rule without them does."
        ' This rule would: domains = ["b.test"]'
    )
    refused = operator.explain("subject", "HTTP", {"method": "CONNECT", "url": "0x7f.1:1"})
    assert "four decimal numbers" in refused["error"]


WANTED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("NOOP", {}),
    ("LIST", {}),
    ("TREE", {}),
    ("GET_PERMS", {}),
    ("METRICS_SYSTEM", {}),
    ("METRICS_AGENT", {}),
    ("METRICS_AGENT", {"agent_id": 2}),
    ("METRICS_ALL_AGENTS", {}),
    ("METRICS_CGROUP", {"agent_id": 2}),
    ("RECV", {"max": 1}),
    ("SEND", {"to_name": "other", "message": "hi"}),
    ("SEND", {"to_name": "subject", "message": "hi"}),
    ("BROADCAST", {"message": "hi"}),
    ("LOGS", {"name": "subject"}),
    ("LOGS", {"name": "other"}),
    ("LOGS", {"names": ["subject", "other"]}),
    ("LOGS", {"grep": "x"}),
    ("STATUS", {}),
    ("USAGE", {}),
    ("USAGE", {"name": "other", "reset": True}),
    ("GET_CONTENTS", {"name": "other"}),
    ("INSPECT", {"name": "other"}),
    ("MAIL", {"name": "other"}),
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
    ("STORE", {"key": "plan.a", "value": 1}),
    ("STORE", {"key": "plan.b", "value": 1, "scope": "agent"}),
    ("FETCH", {"key": "plan.a"}),
    ("FETCH", {"key": "plan.b"}),
    ("FETCH", {"key": "nothing", "scope": "session"}),
    ("DELETE", {"key": "plan.a"}),
    ("KEYS", {}),
    ("SUBSCRIBE", {"event_types": ["*"]}),
    ("SUBSCRIBE", {"event_types": ["*"], "agents": ["other"]}),
    ("UNSUBSCRIBE", {"all": True}),
    ("POLL_EVENTS", {}),
    ("EMIT", {"event_type": "CUSTOM"}),
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
            assert done["rule"] == told["rule"]
            assert done["error"].startswith(told["reason"])  # an approval that is missing has a number behind that


SCRIPT = "import time; time.sleep(1000)"
DONE: tuple[tuple[str, dict[str, Any]], ...] = (  # each would change something, or use up what is counted
    ("READ", {"path": "script.py"}),
    ("WRITE", {"path": "made", "content": "x"}),
    ("WRITE", {"path": "script.py", "mode": "append"}),
    ("EXEC", {"command": "touch made"}),
    ("EXEC", {"command": "touch made", "tty": {}}),
    ("SPAWN", {"name": "made", "command": ["true"]}),
    ("SPAWN", {"name": "made", "script": "script.py"}),
    ("SPAWN", {"name": "made", "script": "none.py"}),
    ("KILL", {"name": "subject"}),
    ("START", {"name": "subject"}),
    ("STOP", {"name": "subject"}),
    ("STOP", {"name": "subject", "keep": True}),
    ("RESTART", {"name": "subject"}),
    ("RELOAD", {}),
    ("SHUTDOWN", {}),
    ("STATUS", {}),
    ("USAGE", {}),
    ("USAGE", {"name": "subject", "reset": True}),
    ("GET_CONTENTS", {"name": "subject"}),
    ("PAUSE", {"name": "subject"}),
    ("RESUME", {"name": "subject"}),
    ("WAIT", {"name": "subject"}),
    ("LOGS", {"name": "subject"}),
    ("LOGS", {"names": ["subject"], "since": 0, "grep": "x", "run": 0}),
    ("LIST", {}),
    ("TREE", {}),
    ("INSPECT", {"name": "subject"}),
    ("MAIL", {"name": "subject"}),
    ("DIFF", {"name": "subject"}),
    ("APPLY", {"name": "subject", "digest": "x"}),
    ("UNDO", {"name": "subject"}),
    ("ROLLBACK", {"name": "subject", "snapshot": "start"}),
    ("SNAPSHOT", {"name": "subject"}),
    ("REPLAY_START", {}),
    ("REPLAY_STATUS", {}),
    ("REPLAY_STOP", {}),
    ("SNAPSHOTS", {}),
    ("IMAGES", {}),
    ("FORK", {"name": "subject"}),
    ("RECORD_START", {"agents": ["subject"]}),
    ("RECORD_STATUS", {}),
    ("RECORD_STOP", {}),
    ("EXPORT", {"name": "subject"}),
    ("IMPORT", {"path": "nowhere.tar"}),
    ("SEND", {"to_name": "subject", "message": "hi"}),
    ("BROADCAST", {"message": "hi", "include_self": True}),
    ("STORE", {"key": "made", "value": 1}),
    ("STORE", {"key": "made", "value": 1, "scope": "agent"}),
    ("FETCH", {"key": "made"}),
    ("DELETE", {"key": "kept"}),
    ("KEYS", {}),
    ("SUBSCRIBE", {"event_types": ["*"]}),
    ("UNSUBSCRIBE", {"all": True}),
    ("POLL_EVENTS", {}),
    ("EMIT", {"event_type": "CUSTOM"}),
    ("THINK", {"prompt": "?"}),
    ("HTTP", {"url": "http://127.0.0.1:9/"}),
    ("TOOLS", {}),
    ("TOOL_CALL", {"tool": "none.none"}),
    ("LLM_REPORT", {}),
    ("GET_PERMS", {}),
    ("SET_PERMS", {"level": "minimal"}),
    ("EXPLAIN", {"agent": "subject", "call": "KILL", "args": {"name": "subject"}}),
    ("APPROVALS", {}),
    ("DECIDE", {"id": 1, "allow": True}),
    ("METRICS_SYSTEM", {}),
    ("METRICS_AGENT", {}),
    ("METRICS_ALL_AGENTS", {}),
    ("METRICS_CGROUP", {}),
    ("GET_AUDIT_LOG", {}),
    ("SET_AUDIT_CONFIG", {"log_model": False}),
)
ONE_SPAWN = """
[kernel]
max_children = 1
spawn_rate = 0.001
"""


def test_these_are_all_calls_that_need_rights() -> None:
    assert {call for call, _ in DONE} == {syscall.op.name for syscall in syscalls() if syscall.prepare is not None}


@pytest.mark.usefixtures("kernels")
def test_to_explain_any_call_changes_nothing_and_uses_up_nothing() -> None:
    with running(ONE_SPAWN) as kernel, kernel.client() as operator:
        number = up(operator.spawn("subject", command=SLEEP, permissions="unrestricted"))["id"]
        with as_agent(kernel, number) as subject:
            up(subject.write_file("/workspace/script.py", SCRIPT))
            up(operator.store("kept", 1))
            up(subject.subscribe(["CUSTOM"]))
            before = state(kernel, operator, subject, number)

            for call, args in DONE:
                for _ in range(3):
                    operator.explain("subject", call, args)

            assert state(kernel, operator, subject, number) == before
            up(subject.spawn("made", script="/workspace/script.py"))  # the one that its rate allows
            assert subject.spawn("more", script="/workspace/script.py")["code"] == "quota_exceeded"


def state(kernel: Kernel, operator: AgentOSClient, subject: AgentOSClient, number: int) -> dict[str, object]:
    """What calls change, and what is counted of them."""
    entries = operator.get_audit_log(limit=1000)["entries"]
    return {
        "agents": [(agent["name"], agent["state"]) for agent in operator.list_agents(all=True)],
        "files": up(subject.exec("ls -l /workspace; cat /workspace/*"))["stdout"],
        "messages": subject.recv_messages(timeout=0.0),
        "keys": operator.keys("", "global"),
        "events": subject.poll_events(),
        "permissions": subject.get_permissions(),
        "model": subject.request(Op.LLM_REPORT, {}),
        "copies": sorted(path.name for path in kernel.runtime.iterdir()),
        "recorded": sorted({entry["call"] for entry in entries if entry["agent_id"] == number} - {"EXEC"}),
    }
