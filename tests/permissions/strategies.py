"""Permission sets, rights and families of callers, for properties."""

from hypothesis import strategies as st

from agentos.kernel.ports import Right
from agentos.permissions.exec_request import ExecRequest
from agentos.permissions.levels import BASE_RULES, LEVELS
from agentos.permissions.patterns.base import Names
from agentos.permissions.rule import EFFECTS, Kind, PermissionSet, Rule
from agentos.services.http.destination import parse_destination
from agentos.shell.reader import parse_text

NAMES = Names("/home/ada", "/etc/agentos", "/workspace", "/agent")

TEXTS: dict[Kind, tuple[str, ...]] = {
    "calls": ("*", "READ", "WRITE", "EXEC", "THINK", "SEND", "KILL", "SET_PERMS", "EXPLAIN", "HTTP", "LIST", "S*"),
    "read": ("/**", "/data/**", "/data/x", "/data/*.txt", "${workspace}/**", "~/notes/", "**/secret/"),
    "write": ("/**", "/data/**", "/data/x", "${workspace}/**", "*.log"),
    "commands": ("*", "git *", "git status", "ls", "cat *", "echo ? *"),
    "domains": (
        *("*", "*:*", "*.example.com", "api.example.com", "127.0.0.1:443"),
        *("GET api.example.com/x/**", "*/x/y", "*.example.com/%78/y"),
    ),
    "models": ("*", "gemini-*", "gemini-2"),
    "send": ("*", "${parent}", "${own}", "${group}", "bob", "w-*"),
    "agents": ("*", "${own}", "bob", "w-*"),
    "state_read": ("*", "plan.*", "plan.a"),
    "events": ("*", "w-*", "w-1"),
    "state_write": ("*", "plan.*", "plan.b"),
}
PATHS = ("/data/x", "/data/a.txt", "/data/secret/y", "/workspace/run.log", "/home/ada/notes/a", "/home/ada/.ssh/id_rsa")
LINES = (
    "git status",
    "git push",
    "ls",
    "ls; cat a",
    "cat < /data/x",
    "ls > /workspace/o",
    "echo $(git status)",
    "sudo ls",
)
DESTINATIONS = (
    "api.example.com/x/y",
    "POST https://api.example.com",
    "CONNECT api.example.com:443",
    "api.example.com/%78/Y/",
    "api.example.com/x/../z",
    "www.example.com:8080",
    "example.org",
    "127.0.0.1",
)
BARE = ("noop", "list", "spawn", "broadcast", "metrics_system", "get_audit_log")
ABOUT_AGENTS = ("kill", "inspect", "get_perms", "set_perms", "explain", "send", "subscribe")

rules = st.sampled_from(tuple(TEXTS)).flatmap(
    lambda kind: st.builds(
        Rule, st.sampled_from(EFFECTS), st.just(kind), st.sampled_from(TEXTS[kind]), st.just("the test's")
    )
)


def _made(level: str | None, own: list[Rule]) -> PermissionSet:
    basis = BASE_RULES if level is None else LEVELS[level].rules
    return PermissionSet("the test's", (*own, *basis), level)


sets = st.one_of(
    st.sampled_from(list(LEVELS.values())),
    st.builds(_made, st.none() | st.sampled_from(list(LEVELS)), st.lists(rules, max_size=12)),
)
objects = st.one_of(
    st.builds(Right, st.sampled_from(("read", "write")), st.sampled_from(PATHS)),
    st.builds(
        Right, st.just("exec"), st.sampled_from([ExecRequest(parse_text(line), "/workspace", True) for line in LINES])
    ),
    st.builds(Right, st.just("http"), st.sampled_from([parse_destination(text) for text in DESTINATIONS])),
    st.builds(Right, st.just("think"), st.sampled_from(("gemini-2", "gemini-3", "llama"))),
    st.builds(Right, st.sampled_from(("fetch", "keys", "store", "delete")), st.sampled_from((None, "plan.a", "x"))),
    st.builds(Right, st.sampled_from(BARE)),
)
