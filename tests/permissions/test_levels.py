from itertools import pairwise

from agentos.kernel.ports import Right
from agentos.permissions.levels import LEVELS, NARROWEST_FIRST, default, is_wider
from agentos.permissions.patterns.base import Names
from agentos.permissions.rules import Rules
from agentos.permissions.sets.examples import decide_by_set, parse_example
from agentos_sdk.opcodes import Op
from tests.support.runs.rows import each_row

JAILED = Names("/home/ada", "/etc/agentos", "/workspace", "/agent")
HOST = Names("/home/ada", "/etc/agentos")


def effect(level: str, text: str, names: Names = JAILED) -> str:
    right, relation = parse_example(text, names)
    return decide_by_set(LEVELS[level], names, right, relation).effect


TABLE = {
    "NOOP": "aaaaa",
    "RECV": "aaaaa",
    "GET_PERMS": "aaaaa",
    "NOW": "aaaaa",
    "SLEEP": "aaaaa",
    "RANDOM": "aaaaa",
    "SEND ${parent}": "aaaaa",
    "SEND ${own}": "ddaaa",
    "SEND ${group}": "ddaaa",
    "SEND bob": "dddaa",
    "READ ${workspace}/notes.md": "daaaa",
    "READ ${code}/agent.py": "daaaa",
    "READ /etc/hostname": "dddda",
    "READ ${config}/agentos.toml": "dddaa",
    "LIST": "daaaa",
    "TREE": "daaaa",
    "FETCH": "daaaa",
    "SUBSCRIBE": "daaaa",
    "SUBSCRIBE ${own}": "daaaa",
    "SUBSCRIBE bob": "dddda",
    "UNSUBSCRIBE": "daaaa",
    "POLL_EVENTS": "daaaa",
    "EMIT": "ddaaa",
    "WRITE ${workspace}/out.txt": "ddaaa",
    "WRITE ${code}/agent.py": "dddda",
    "WRITE /srv/x": "dddda",
    "EXEC ls -l | wc": "ddaaa",
    "THINK gemini-2.0-flash": "ddaaa",
    "ASYNC_POLL": "ddaaa",
    "LLM_REPORT": "ddaaa",
    "STORE": "ddaaa",
    "DELETE": "ddaaa",
    "KEYS": "ddaaa",
    "STORE plan": "dddda",
    "DELETE plan": "dddda",
    "FETCH plan": "dddda",
    "KEYS plan": "dddda",
    "SPAWN": "ddaaa",
    "KILL ${own}": "ddaaa",
    "KILL bob": "dddda",
    "SET_PERMS ${own}": "ddaaa",
    "HTTP example.com": "dddka",
    "HTTP CONNECT example.com:22": "dddka",
    "HTTP http://127.0.0.1:8080": "ddddd",
    "TOOLS": "dddda",
    "TOOL_CALL github.search": "dddda",
    "METRICS_SYSTEM": "dddda",
    "METRICS_ALL_AGENTS": "ddaaa",
    "METRICS_AGENT ${own}": "ddaaa",
    "METRICS_AGENT bob": "dddda",
    "METRICS_CGROUP ${own}": "ddaaa",
    "METRICS_CGROUP bob": "dddda",
    "SET_AUDIT_CONFIG": "dddda",
    "GET_CONTENTS": "dddda",
    "REPLAY_START": "dddda",
    "READ /home/ada/.ssh/id_ed25519": "ddddd",
    "READ ${workspace}/.env": "ddddd",
    "EXEC sudo ls": "ddddd",
    "EXEC rm -rf /": "ddddd",
}


@each_row("text", TABLE)
def test_what_each_level_may(text: str) -> None:
    found = [effect(level, text) for level in NARROWEST_FIRST]

    assert found == [{"a": "allow", "k": "ask", "d": "deny"}[letter] for letter in TABLE[text]]


def test_without_a_jail_there_is_no_workspace() -> None:
    assert effect("sandboxed", "READ /workspace/notes.md", HOST) == "deny"
    assert effect("standard", "READ /etc/agentos/agentos.toml", HOST) == "allow"


@each_row("op", list(Op))
def test_each_level_may_make_every_call_of_the_one_before(op: Op) -> None:
    may = [Rules(LEVELS[level], JAILED).decide_call(op.name.lower()).effect == "allow" for level in NARROWEST_FIRST]

    assert all(narrow <= wide for narrow, wide in pairwise(may))


def test_each_level_is_wider_than_those_before_it() -> None:
    for narrow, wide in pairwise(NARROWEST_FIRST):
        assert is_wider(LEVELS[wide], LEVELS[narrow])
        assert not is_wider(LEVELS[narrow], LEVELS[wide])
        assert not is_wider(LEVELS[narrow], LEVELS[narrow])


def test_the_default_level_is_sandboxed_in_a_jail_and_standard_without() -> None:
    assert default(jailed=True) is LEVELS["sandboxed"]
    assert default(jailed=False) is LEVELS["standard"]


def test_a_denial_says_which_rules_were_looked_at() -> None:
    decision = Rules(LEVELS["readonly"], JAILED).decide(Right("write", "/workspace/x"))

    assert decision.rule == "no rule (level readonly)"
    assert decision.reason == "WRITE: no rule of level readonly allows it"
