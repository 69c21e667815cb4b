"""Prints what happens to the worker, and what the worker does."""

from agentos import AgentOSClient

TYPES = ["AGENT_EXITED", "AGENT_RESTARTING", "STATE_CHANGED", "SYSCALL_BLOCKED", "custom.*"]

with AgentOSClient() as kernel, kernel.follow_events(TYPES, agents=["worker"], since=0) as events:
    for event in events:
        data = event["data"]
        match event["type"]:
            case "AGENT_EXITED":
                print("the worker has ended:", data["reason"], flush=True)
            case "AGENT_RESTARTING":
                print("the worker begins again", flush=True)
            case "SYSCALL_BLOCKED":
                print("the worker was refused", data["call"], flush=True)
            case "custom.step":
                print("the worker has done step", data["step"], flush=True)
