"""Writes a state directory with something of every kind, as a release leaves it.

Run it once for each release, with a checkout TREE of its commit, as root::

    PYTHONPATH=TREE:TREE/sdk python tests/system/former/make_state.py tests/system/former/state-DATE.tar.xz

The kernel, agents and commands are those of TREE. Of a kind that is new since the last archive, add something here.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from agentos_sdk import AgentOSClient

CONFIG = """
[kernel]
socket = "s"
state_dir = "state"

[logs]
max_age = "36500d"

[approvals]
timeout = "1h"
keep = "1h"

[llm]
provider = "offline"
model = "parrot"

[mcp.servers.notes]
script = "server.py"

[[supervisor.children]]
name = "worker"
script = "agent.py"
workspace = "keep"
llm = { budget = [{ tokens = 100000, per = "1d" }] }
permissions = { level = "sandboxed", ask = { commands = ["*"] } }

[[supervisor.children]]
name = "halted"
command = ["sleep", "1000"]
"""

AGENT = """
from pathlib import Path
from agentos_sdk import AgentOSClient

notes = Path("/workspace/notes.txt")
print("notes:", notes.read_text() if notes.exists() else "none", flush=True)
if not notes.exists():
    notes.write_text("kept")
with AgentOSClient() as kernel:
    kernel.state.agent["count"] = kernel.state.agent.get("count", 0) + 1
    assert kernel.think("hello")["success"]
    kernel.exec(["true", "first"])
    kernel.exec(["true", "second"])
"""

SERVER = """
import json, sys

RESULTS = {
    "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                   "serverInfo": {"name": "notes", "version": "1"}},
    "tools/list": {"tools": [{"name": "add", "description": "Adds a note.", "inputSchema": {"type": "object"}}]},
}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = RESULTS.get(message["method"], {})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


def write_programs(place: Path) -> None:
    """The configuration and its programs."""
    for name, text in (("agentos.toml", CONFIG), ("agent.py", AGENT), ("server.py", SERVER)):
        (place / name).write_text(text)


def make_archive(archive: str) -> None:
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as made:
        place = Path(made)
        place.chmod(0o755)  # the agent's script is read by its uid
        write_programs(place)
        (place / "state" / "workspaces" / "worker").mkdir(parents=True)  # otherwise it would be an image, of 8 MB
        for path in (place / "state", place / "state" / "workspaces"):
            path.chmod(0o700)
        env = {**os.environ, "HOME": made, "XDG_RUNTIME_DIR": made, "XDG_STATE_HOME": f"{made}/xdg"}

        def agentos(*words: str) -> str:
            command = [sys.executable, "-m", "agentos", *words]
            return subprocess.run(command, cwd=made, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout

        kernel = subprocess.Popen([sys.executable, "-m", "agentos", "run"], cwd=made, env=env)
        try:
            wait_for(lambda: (place / "s").exists() or kernel.poll() is not None)
            with AgentOSClient(str(place / "s"), 60) as client:
                use_kernel(client, agentos)
        finally:
            kernel.terminate()
            kernel.wait()
        log_in(place / "state")
        with tarfile.open(archive, "w:xz") as tar:
            for path in sorted((place / "state").rglob("*")):
                tar.add(path, path.relative_to(place / "state"), recursive=False)
        print(agentos("audit", "verify"), os.path.getsize(archive), "bytes")


def use_kernel(client: AgentOSClient, agentos: Callable[..., str]) -> None:
    """Approve a command of the agent's always, leave another waiting, and do what the operator can do."""

    def find_waiting(agent: str, about: str) -> list[int]:
        pending = client.approvals()["pending"]
        return [one["id"] for one in pending if one["agent"] == agent and about in one["shown"]]

    wait_for(lambda: find_waiting("worker", "first"))
    agentos("approve", str(find_waiting("worker", "first")[0]), "--remember", "always")
    agentos("tools", "notes")
    wait_for(lambda: find_waiting("mcp.notes", ""))
    agentos("approve", str(find_waiting("mcp.notes", "")[0]))
    wait_for(lambda: "add" in agentos("tools", "notes"))
    agentos("state", "set", "plan", '{"until": 100}')
    agentos("stop", "halted", "--keep")
    agentos("mcp", "token", "desk", "--level", "readonly")
    wait_for(lambda: find_waiting("worker", "second"))


def log_in(state_dir: Path) -> None:
    """A session of a browser, and the key of MCP servers: no command makes them by itself."""
    from agentos.userland.mcp.transports.state_key import load_state_key
    from agentos.userland.web.links import Link
    from agentos.userland.web.sessions import Sessions

    link = Link("viewer", "", None)
    load_state_key(state_dir)
    (state_dir / "dashboard").mkdir(mode=0o700, exist_ok=True)
    Sessions(state_dir / "dashboard", "run", "127.0.0.1:9000")._begin("0a1b2c3d", link, "Firefox")


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it took more than a minute"
        time.sleep(0.05)


if __name__ == "__main__":
    make_archive(*sys.argv[1:])
