"""Lists the tools that it may call, and calls one."""

from agentos_sdk import AgentOSClient

with AgentOSClient() as kernel:
    tools = kernel.tools()["tools"]
    print("my tools:", ", ".join(f"{tool['name']} ({tool['description']})" for tool in tools) or "none")
    reply = kernel.tool_call("notes.add", {"text": "buy milk"})
    print("notes.add:", reply["content"][0]["text"] if reply["success"] else reply["error"])
