"""An agent that tries ten things, some of them none of its business, and says what it was told."""

import json
import os

from agentos_sdk import AgentOSClient

with open("/workspace/.env", "w") as secrets:
    secrets.write("API_KEY=hunter2\n")
os.symlink(".env", "/workspace/readme.md")

with AgentOSClient() as kernel:
    kernel.hello(approval_timeout=0)  # it doesn't wait until a person has decided
    replies = (
        kernel.write_file("notes.md", "Ten things to do today.\n"),
        kernel.read_file("notes.md"),
        kernel.read_file("/etc/passwd"),
        kernel.read_file("readme.md"),
        kernel.exec("ls"),
        kernel.exec("ls; rm -rf /"),
        kernel.exec("sudo id"),
        kernel.exec("git push origin main"),
        kernel.spawn("accomplice", command=["id"], permissions="unrestricted"),
        kernel.set_permissions(level="unrestricted"),
    )
    for reply in replies:
        print(json.dumps({"code": "ok" if reply["success"] else reply["code"]}), flush=True)
    kernel.recv_messages(timeout=60)  # stays alive, so that its permissions can be inspected
