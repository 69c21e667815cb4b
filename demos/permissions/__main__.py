"""``python -m demos.permissions``: an agent tries ten things; what was decided, by which rule, and where it says so."""

import json
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from attrs import frozen

from agentos_sdk import AgentOSClient
from demos import stage
from demos.printing_client import PrintingClient
from demos.stage import notice, say

HERE = stage.HERE / "permissions"
TIMEOUT = 30.0  # seconds that the agent may take; it takes less than one
ROW = "{:>2}  {:<33}{:<10}{:<48}{:>5}"
COLOURS = {"allow": "green", "ask": "yellow", "deny": "red"}

Entry = dict[str, Any]


@frozen
class Attempt:
    """``code`` is what the agent is told."""

    what: str
    decision: str
    code: str


ATTEMPTS = (
    Attempt("WRITE notes.md", "allow", "ok"),
    Attempt("READ notes.md", "allow", "ok"),
    Attempt("READ /etc/passwd", "deny", "permission_denied"),
    Attempt("READ readme.md, a link to .env", "deny", "permission_denied"),
    Attempt("EXEC ls", "allow", "ok"),
    Attempt("EXEC ls; rm -rf /", "deny", "permission_denied"),
    Attempt("EXEC sudo id", "deny", "permission_denied"),
    Attempt("EXEC git push origin main", "ask", "approval_required"),
    Attempt("SPAWN of an unrestricted child", "deny", "permission_denied"),
    Attempt("SET_PERMS: itself, unrestricted", "deny", "permission_denied"),
)


def permissions() -> None:
    stage.title("Permissions")
    say(
        "An agent in a jail tries ten things. The permission set that it was started with stands in "
        "demos/permissions/agentos.toml: what a jailed agent may by default; a push needs the operator's approval."
    )
    with stage.kernel(HERE / "agentos.toml") as running, AgentOSClient(running.socket) as client:
        kernel = PrintingClient(client)
        stage.heading("The agent")
        spawned = kernel("spawn", "clerk", str(HERE / "clerk.py"), permissions="clerk")
        if spawned.get("code") == "isolation_unavailable":
            raise stage.DemoError(f"THIS HOST CAN'T ISOLATE, and nothing is started without it.\n{spawned['error']}")
        stage.check(spawned["success"], "the agent starts")
        told = answers(client)
        entries = written(client, spawned["id"])

        stage.heading("What was decided, by which rule, and under which number that is written down")
        table(entries)
        judge(entries, told)
        stage.heading("To ask without doing")
        stage.agentos(running.socket, "permissions", "explain", "clerk", "READ", "/etc/shadow")
        running.stop()
        stage.heading("Is the log whole?")
        state = Path(running.socket).parent / "state"
        verify(state)
        stage.heading("And if one word in it is changed?")
        forge(state, entries[2]["id"])


def answers(client: AgentOSClient) -> Sequence[str]:
    """What it was told to each of its attempts."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        lines = [line for line in client.logs("clerk")["lines"] if line["stream"] != "kernel"]
        if len(lines) == len(ATTEMPTS):
            return [json.loads(line["text"])["code"] for line in lines]
        time.sleep(0.05)
    raise stage.DemoError(f"the agent ended early: {[line['text'] for line in lines[-5:]]}")


def written(client: AgentOSClient, agent: int) -> Sequence[Entry]:
    """The first entry of each call, soon; one that was announced has a second, its outcome."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        entries = client.get_audit_log(agent_id=agent)["entries"]
        calls = [entry for entry in entries if not entry["call"].startswith(("AGENT_", "APPROVAL_"))]  # only its own
        first = [entry for entry in calls if entry["intent"] is None]
        if len(first) == len(ATTEMPTS):
            return first
        time.sleep(0.05)
    raise stage.DemoError(f"of {len(ATTEMPTS)} attempts the log knows {len(first)}")


def table(entries: Sequence[Entry]) -> None:
    click.secho(ROW.format("", "TRIED", "DECISION", "RULE", "ENTRY"), bold=True)
    for number, (attempt, entry) in enumerate(zip(ATTEMPTS, entries, strict=False), 1):
        line = ROW.format(number, attempt.what, entry["decision"].upper(), entry["rule"], entry["id"])
        click.echo(line.replace(*coloured(entry["decision"]), 1))


def coloured(decision: str) -> tuple[str, str]:
    """The word as it stands in the table, and what it is shown as."""
    word = f"{decision.upper():<10}"
    return word, click.style(word, fg=COLOURS[decision])


def judge(entries: Sequence[Entry], told: Sequence[str]) -> None:
    stage.check(
        [entry["decision"] for entry in entries] == [attempt.decision for attempt in ATTEMPTS], "all is decided so"
    )
    stage.check(list(told) == [attempt.code for attempt in ATTEMPTS], "the agent is told what was decided")
    count = {decision: sum(attempt.decision == decision for attempt in ATTEMPTS) for decision in COLOURS}
    click.echo()
    notice(
        f"{count['allow']} were done, {count['deny']} were refused, and {count['ask']} needs a person to agree. "
        "All ten are written down."
    )


# -- The log -----------------------------------------------------------------------------------------------------------


def verify(state: Path) -> int:
    """What `agentos audit verify` says; its status."""
    click.secho("$ agentos audit verify", bold=True)
    command = [sys.executable, "-P", "-m", "agentos", "audit", "verify", "--state-dir", str(state)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    click.echo(done.stdout + done.stderr, nl=False)
    return done.returncode


def forge(state: Path, number: int) -> None:
    """Let an entry say in a copy of the log that what was denied had been allowed."""
    copy = state.parent / "forged"
    shutil.copytree(state / "audit", copy / "audit")
    rows = next(copy.glob("audit/*.db"))
    with closing(sqlite3.connect(rows, isolation_level=None)) as connection:
        connection.execute("UPDATE entries SET decision = 'allow' WHERE seq = ?", (number,))
    say(f"In a copy, entry {number} now says that /etc/passwd was allowed.")
    stage.check(verify(copy) != 0, "a changed entry is found")


stage.run_demo(permissions)
