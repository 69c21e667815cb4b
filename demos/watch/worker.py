"""Fails in its first two lives; in the third it works, and says which step it has done."""

from agentos import AgentOSClient

with AgentOSClient() as kernel:
    own = kernel.state.agent
    own["lives"] = own.get("lives", 0) + 1
    if own["lives"] < 3:
        raise SystemExit("not today")
    for step in range(1, 4):
        kernel.state["plan"] = {"step": step}
        kernel.emit_event("custom.step", {"step": step})
    kernel.read_file("/etc/shadow")
    kernel.recv_messages(timeout=3600)
