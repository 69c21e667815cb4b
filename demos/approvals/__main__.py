"""``python -m demos.approvals``: an agent asks for four things; a person sees them, and answers from a terminal."""

import json
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import click

from agentos_sdk import AgentOSClient
from demos import stage
from demos.stage import notice, say

HERE = stage.HERE / "approvals"
TIMEOUT = 30.0  # seconds that a step of the agent may take; it takes less than one

RECEIVED: list[bytes] = []  # by the server


def approvals() -> None:
    stage.title("Approvals")
    say(
        "An agent in a jail makes a release. By its permissions, in demos/approvals/agentos.toml, it may do what a "
        "jailed agent may by default; but before it changes release.txt, runs a script or pushes, a person has to "
        "agree. Until then the call waits, and holds nothing."
    )
    with (
        serve_releases() as server,
        write_config(server.server_port) as config,
        stage.kernel(config) as running,
        AgentOSClient(running.socket) as client,
    ):
        port = str(server.server_port)
        spawned = client.spawn("releaser", str(HERE / "releaser.py"), args=[port], permissions="releaser")
        if spawned.get("code") == "isolation_unavailable":
            raise stage.DemoError(f"THIS HOST CAN'T ISOLATE, and nothing is started without it.\n{spawned['error']}")
        stage.check(spawned["success"], "the agent starts")

        stage.heading("It replaces a file: the person sees what changes")
        answer(client, running.socket, "WRITE", "approve")
        stage.heading("It runs a script of its own: the text says that it can change that script")
        answer(client, running.socket, "EXEC", "approve", "--remember", "agent", "--for", "1h")
        say("The same command a second time: no person is asked, because the answer is remembered.")
        stage.heading("It pushes, and tries to hide what: nothing of an agent's text reaches the terminal as it is")
        answer(client, running.socket, "EXEC", "deny", "--reason", "no pushes by force")
        stage.heading("It sends a request: nothing leaves before a person has agreed")
        stage.check(not RECEIVED, "nothing was sent before")
        answer(client, running.socket, "HTTP", "approve")

        codes = read_codes(client, 5)
        stage.check(codes == ["ok", "ok", "ok", "approval_refused", "ok"], "the agent is told what was decided")
        stage.check(RECEIVED == [b'{"version": "1.0"}'], "the server gets what was shown")
        stage.heading("What is remembered, and what it could be allowed for good")
        run_command("permissions", "get", "releaser", f"--socket={running.socket}")
        state = f"--state-dir={Path(running.socket).parent / 'state'}"
        run_command("permissions", "suggest", "releaser", state)
        stage.heading("What is written down")
        run_command("audit", "-n", "4", state)
        running.stop()
    notice("Three calls were allowed once, one more by a remembered answer, and one was refused with a reason.")


@contextmanager
def serve_releases() -> Iterator[HTTPServer]:
    """A server on loopback that keeps the bodies that it receives."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            RECEIVED.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(201)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the terminal is the person's."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


@contextmanager
def write_config(port: int) -> Iterator[Path]:
    """The demo's configuration with the port of the server."""
    with tempfile.TemporaryDirectory(prefix="aos-demo-") as directory:
        config = Path(directory, "agentos.toml")
        config.write_text((HERE / "agentos.toml").read_text().replace(":8000/", f":{port}/"))
        yield config


def answer(client: AgentOSClient, socket: str, call: str, *words: str) -> None:
    """Show the request that comes next, which has to be this call, and answer it."""
    request = wait_for_request(client)
    stage.check(request["call"] == call, f"it asks for {call} now")
    run_command("approvals", str(request["id"]), f"--socket={socket}")
    run_command(words[0], str(request["id"]), *words[1:], f"--socket={socket}")


def wait_for_request(client: AgentOSClient) -> Mapping[str, Any]:
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        if pending := client.approvals()["pending"]:
            request: Mapping[str, Any] = pending[0]
            return request
        time.sleep(0.05)
    raise stage.DemoError("the agent asked for nothing")


def read_codes(client: AgentOSClient, count: int) -> list[str]:
    """What the agent was told to each of its steps."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        lines = [line["text"] for line in client.logs("releaser")["lines"] if line["stream"] == "stdout"]
        if len(lines) == count:
            return [json.loads(line)["code"] for line in lines]
        time.sleep(0.05)
    raise stage.DemoError("the agent ended early")


def run_command(*words: str) -> None:
    """Run an ``agentos`` command and print it with all that it writes; options of place are left out."""
    shown = [word for word in words if not word.startswith(("--socket=", "--state-dir="))]
    click.secho(f"$ agentos {shlex.join(shown)}", bold=True)
    command = [sys.executable, "-P", "-m", "agentos", *words]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    click.echo(done.stdout, nl=False)
    stage.check(done.returncode == 0, f"agentos {words[0]} succeeds")


stage.run_demo(approvals)
