"""An agent that lists the tools it may call, and makes the calls of its argument: a JSON list of tool and arguments."""

import json
import sys

from agentos_sdk import AgentOSClient

with AgentOSClient() as kernel:
    names = [tool["name"] for tool in kernel.tools()["tools"]]
    replies = [kernel.tool_call(tool, arguments) for tool, arguments in json.loads(sys.argv[1])]
    print("report", json.dumps({"tools": names, "replies": replies}), flush=True)
