"""The five permission levels, from the narrowest to the widest, and the default denials for every caller."""

from typing import Final

from .patterns.secret_paths import SECRETS
from .rule import Kind, PermissionSet, Rule

NARROWEST_FIRST: Final = ("minimal", "readonly", "sandboxed", "standard", "unrestricted")

# What each level adds to the one before it.
_LEVEL_RULES: Final[dict[str, dict[Kind, tuple[str, ...]]]] = {
    "minimal": {
        "calls": ("NOOP", "HELLO", "CANCEL", "EXIT", "RECV", "ACK", "GET_PERMS", "NOW", "SLEEP", "RANDOM"),
        "send": ("${parent}",),
    },
    "readonly": {
        "calls": ("READ", "LIST", "TREE", "FETCH", "SUBSCRIBE", "UNSUBSCRIBE", "POLL_EVENTS"),
        "read": ("${workspace}/**", "${code}/**"),
    },
    "sandboxed": {
        "calls": (
            *(
                "WRITE",
                "EXEC",
                "THINK",
                "ASYNC_POLL",
                "LLM_REPORT",
                "STORE",
                "DELETE",
                "KEYS",
                "EMIT",
                "SEND",
                "BROADCAST",
                "REGISTER",
            ),
            *("SPAWN", "KILL", "WAIT", "PAUSE", "RESUME", "LOGS", "INSPECT", "MAIL", "SET_PERMS", "EXPLAIN"),
            *("METRICS_AGENT", "METRICS_ALL_AGENTS", "METRICS_CGROUP", "DIFF", "SNAPSHOT", "ROLLBACK", "FORK"),
        ),
        "write": ("${workspace}/**",),
        "commands": ("*",),
        "models": ("*",),
        "send": ("${own}", "${group}"),
        "agents": ("${own}",),
    },
    "standard": {
        "calls": ("HTTP",),
        "read": ("${config}/**",),
        "send": ("*",),
    },
}


def _levels() -> dict[str, PermissionSet]:
    levels: dict[str, PermissionSet] = {}
    rules: tuple[Rule, ...] = ()
    for name, added in _LEVEL_RULES.items():
        source = f"level {name}"
        rules += tuple(Rule("allow", kind, text, source) for kind, texts in added.items() for text in texts)
        if name == "standard":
            rules += (Rule("ask", "domains", "*:*", source, fallback=True),)
        levels[name] = PermissionSet(source, rules, level=name)
    everything: dict[Kind, str] = {
        **dict.fromkeys(("calls", "commands", "models", "tools", "send", "agents", "events"), "*"),
        "domains": "*:*",
        **dict.fromkeys(("state_read", "state_write"), "*"),
        **dict.fromkeys(("read", "write"), "/**"),
    }
    source = "level unrestricted"
    whole = tuple(Rule("allow", kind, text, source) for kind, text in everything.items())
    levels["unrestricted"] = PermissionSet(source, whole, level="unrestricted")
    return levels


LEVELS: Final = _levels()

BASE_RULES: Final = tuple(rule for rule in LEVELS["minimal"].rules if rule.kind == "calls")
"""The first rules of a set that extends no level."""

DENIALS: Final = PermissionSet(
    "default denials",
    tuple(Rule("deny", kind, text, "default denials") for kind in ("read", "write") for text in SECRETS),
)
"""The default denials. They hold for every caller, also the operator. Commands: :mod:`agentos.shell.dangerous`."""


def default(jailed: bool) -> PermissionSet:
    """The default level of an agent; a guest is treated like an agent without a jail."""
    return LEVELS["sandboxed" if jailed else "standard"]


def is_trusted(given: PermissionSet) -> bool:
    """Whether a set extends a level above sandboxed: its holder uses the model without a default budget."""
    return given.level in NARROWEST_FIRST[3:]


def is_wider(one: PermissionSet, other: PermissionSet) -> bool:
    """Whether ``one`` is a level that is wider than the level of ``other``, to which ``other`` adds no grant."""
    if one.level is None or LEVELS[one.level] is not one:
        return False
    basis = BASE_RULES if other.level is None else LEVELS[other.level].rules
    if any(rule.effect == "allow" and rule not in basis for rule in other.rules):
        return False
    return other.level is None or NARROWEST_FIRST.index(one.level) > NARROWEST_FIRST.index(other.level)
