"""Categories of calls in the audit log, for filtering entries and for switching categories off."""

from collections.abc import Mapping

CATEGORIES: Mapping[str, frozenset[str]] = {
    name: frozenset(calls.split())
    for name, calls in {
        "files": "READ WRITE DIFF APPLY UNDO ROLLBACK SNAPSHOT SNAPSHOTS FORK IMAGES",
        "commands": "EXEC",
        "model": "THINK LLM_REPORT",
        "agents": "SPAWN KILL START STOP RESTART LIST WAIT PAUSE RESUME TREE LOGS INSPECT RELOAD USAGE METRICS_SYSTEM"
        " METRICS_AGENT METRICS_ALL_AGENTS METRICS_CGROUP"
        " AGENT_READY AGENT_UNHEALTHY AGENT_EXITED AGENT_RESTARTING AGENT_FAILED AGENT_STOPPED AGENT_ESCALATED"
        " CONFIG_RELOADED NOW SLEEP RANDOM",
        "messages": "SEND RECV BROADCAST REGISTER ACK MAIL",
        "state": "STORE FETCH DELETE KEYS EXPORT IMPORT",
        "permissions": "GET_PERMS SET_PERMS APPROVALS DECIDE APPROVAL_REQUESTED APPROVAL_DECIDED EXPLAIN HELLO",
        "network": "HTTP",
        "tools": "TOOLS TOOL_CALL",
        "audit": "GET_AUDIT_LOG SET_AUDIT_CONFIG GET_CONTENTS RECORD_START RECORD_STOP RECORD_STATUS"
        " REPLAY_START REPLAY_STATUS REPLAY_STOP",
        "kernel": "KERNEL_START KERNEL_STOP KERNEL_KILLED AUDIT_CUT AUDIT_REMOVED AUDIT_LOST",
    }.items()
}
OTHER_CATEGORY = "other"
_BY_CALL = {call: category for category, calls in CATEGORIES.items() for call in calls}


def category_of(call: str) -> str:
    return _BY_CALL.get(call, OTHER_CATEGORY)
