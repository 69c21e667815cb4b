"""``agentos approvals``, ``approve``, ``deny`` and ``permissions forget`` with a real kernel, also in a terminal."""

import itertools
import json
import re
import signal
import subprocess
import termios
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.permissions.sets.files import read_set
from agentos.userland.cli.approvals.desk import SETTLE_SECONDS
from tests.cli.conftest import Agentos
from tests.cli.terminal import Terminal
from tests.permissions.strategies import NAMES
from tests.support.askers import Asker, list_pending
from tests.support.kernel import Kernel, until
from tests.support.servers.http_server import http_server, response
from tests.support.wire import EXEC, HTTP, PATIENCE, READ, WRITE, Wire

QUIET = SETTLE_SECONDS + 0.3  # seconds after which a key counts
COUNT = itertools.count(1)
ASK = {"commands": ["echo *", "sh *"], "write": ["${workspace}/**"]}


@pytest.fixture
def watch(kernel: Kernel, agentos: Agentos) -> Iterator[Callable[[], Terminal]]:
    opened: list[Terminal] = []

    def start() -> Terminal:
        opened.append(Terminal(kernel, "approvals", "--watch"))
        opened[-1].wait_for("q quit")
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


@pytest.fixture
def asker(kernel: Kernel, agentos: Agentos) -> Iterator[Asker]:
    asker = Asker(kernel, f"asker-{next(COUNT)}", ASK)
    yield asker
    asker.close()
    for number in ids_of(kernel, asker.name):
        agentos("deny", str(number))


def ids_of(kernel: Kernel, name: str) -> list[int]:
    return [one["id"] for one in list_pending(kernel) if one["agent"] == name]


def reply_to(wire: Wire) -> Any:
    with wire:
        return wire.receive().json


def test_a_call_that_waits_is_listed_shown_and_approved(kernel: Kernel, agentos: Agentos, asker: Asker) -> None:
    wire = asker.begin(EXEC, {"command": "echo one; echo '\x1b]0;title\x07\u202e'"})
    [number] = ids_of(kernel, asker.name)

    listed, shown = agentos("approvals"), agentos("approvals", str(number))
    approved = agentos("approve", str(number))

    assert reply_to(wire)["stdout"].startswith("one\n")
    assert all(len(line) <= 80 for line in agentos("approvals", COLUMNS="80").stdout.splitlines())
    assert any(line.split()[:3] == [str(number), asker.name, "EXEC"] for line in listed.stdout.splitlines())
    assert "asked by │ ask commands echo * (" in shown.stdout
    assert r"echo '\u{1b}]0;title\u{7}\u{202e}'" in shown.stdout
    assert approved.stdout.startswith("allowed: EXEC echo one; ")
    assert "\x1b" not in listed.stdout + shown.stdout + approved.stdout
    assert ids_of(kernel, asker.name) == []


def test_a_refusal_gives_the_agent_its_reason(kernel: Kernel, agentos: Agentos, asker: Asker) -> None:
    wire = asker.begin(WRITE, {"path": "notes.md", "content": "x"})
    [number] = ids_of(kernel, asker.name)

    denied = agentos("deny", str(number), "--reason", "not today")

    reply = reply_to(wire)
    assert denied.stdout == f"denied: WRITE /workspace/notes.md, by {asker.name}\n"
    assert (reply["code"], reply["reason"]) == ("approval_refused", "not today")


def test_a_remembered_answer_is_shown_and_forgotten(kernel: Kernel, agentos: Agentos, asker: Asker) -> None:
    wire = asker.begin(WRITE, {"path": "notes.md", "content": "x"})
    [number] = ids_of(kernel, asker.name)

    assert agentos("approve", str(number), "--remember", "agent", "--for", "1h").returncode == 0
    assert reply_to(wire)["success"]
    assert asker.call(WRITE, {"path": "notes.md", "content": "y"})["success"]
    shown = agentos("permissions", "get", asker.name).stdout
    assert f"  {number}  allow WRITE /workspace/notes.md" in shown
    assert f"for the agent with the id {asker.id}, until " in shown
    assert agentos("permissions", "forget", str(number)).stdout == "1 answer forgotten\n"

    assert "remembered" not in agentos("permissions", "get", asker.name).stdout
    asker.begin(WRITE, {"path": "notes.md", "content": "z"}).close()


def test_remembering_a_command_whose_files_the_agent_can_change_is_warned_about(
    kernel: Kernel, agentos: Agentos, asker: Asker
) -> None:
    wire = asker.begin(WRITE, {"path": "build.sh", "content": "echo built"})
    agentos("approve", *map(str, ids_of(kernel, asker.name)))
    reply_to(wire)
    wire = asker.begin(EXEC, {"command": "sh build.sh"})
    [number] = ids_of(kernel, asker.name)

    approved = agentos("approve", str(number), "--remember", "always")

    assert reply_to(wire)["stdout"] == "built\n"
    assert approved.stderr.startswith("agentos: the agent can change before it runs: │ build.sh\nagentos: ")
    assert "agentos: remembered for EXEC, " in approved.stderr
    agentos("permissions", "forget", str(number))


@pytest.mark.parametrize("command", ["approve", "deny", "approvals"])
def test_an_id_that_does_not_wait_is_an_error(agentos: Agentos, command: str) -> None:
    said, asked = agentos(command, "999999"), agentos(command, "--json", "999999")

    assert (said.returncode, said.stderr) == (1, "agentos: no call with the id 999999 waits for approval\n")
    assert json.loads(asked.stdout)["code"] == "not_found"


def test_keys_answer_the_request_that_is_shown(kernel: Kernel, asker: Asker, watch: Callable[[], Terminal]) -> None:
    terminal = watch()
    terminal.wait_for("no call waits for approval")
    wires = []
    for key, word in (("y", "allowed"), ("n", "denied"), ("a", "allowed always")):
        wires.append(asker.begin(EXEC, {"command": f"echo {key}"}))
        since = terminal.wait_for(f"echo {key}")
        time.sleep(QUIET)
        terminal.type(key)
        terminal.wait_for(f"{word}: EXEC echo {key}", since - 200)
    terminal.type("q")

    assert terminal.end() == 0
    replies = [reply_to(wire) for wire in wires]
    assert [reply.get("code", "ok") for reply in replies] == ["ok", "approval_refused", "ok"]
    assert asker.call(EXEC, {"command": "echo a"})["stdout"] == "a\n"


def test_no_terminal_breaks_a_row_however_narrow_it_is_or_becomes(
    kernel: Kernel, asker: Asker, watch: Callable[[], Terminal]
) -> None:
    """What an agent wrote would stand in the first column."""
    asker.begin(EXEC, {"command": f"echo {'y' * 300}"})
    [number] = ids_of(kernel, asker.name)
    terminal = watch()
    since = terminal.wait_for("remembered answer")

    terminal.resize(24, 50)
    terminal.wait_for(f"request {number}: ", since)
    terminal.type("q")
    assert terminal.end() == 0
    alone = Terminal(kernel, "approvals", str(number), columns=50)
    assert alone.end() == 0
    alone.close()

    rows = [row for row in re.split("[\r\n]+", terminal.shown[since:] + alone.shown) if "y" * 8 in row]
    assert len(rows) > 2 * 5
    assert [row for row in rows if len(row) > 50 or "y" * 8 in row.partition("│")[0]] == []


def test_a_request_that_arrives_never_takes_the_key_for_another(
    kernel: Kernel, asker: Asker, watch: Callable[[], Terminal]
) -> None:
    first = asker.begin(EXEC, {"command": "echo first"})
    terminal = watch()
    terminal.wait_for("echo first")
    time.sleep(QUIET)
    second = asker.begin(EXEC, {"command": "echo second"})
    terminal.wait_for("(1 more)")
    assert "echo second" not in terminal.shown

    terminal.type("yy")  # the second key was on its way when the next request appeared
    terminal.wait_for("allowed: EXEC echo first")
    terminal.wait_for("echo second")
    assert reply_to(first)["success"]
    assert len(ids_of(kernel, asker.name)) == 1

    time.sleep(QUIET)
    terminal.type("y")
    terminal.wait_for("allowed: EXEC echo second")
    assert reply_to(second)["success"]


def test_a_request_that_is_answered_elsewhere_takes_its_key_with_it(
    kernel: Kernel, agentos: Agentos, asker: Asker, watch: Callable[[], Terminal]
) -> None:
    first, second = (asker.begin(EXEC, {"command": f"echo {name}"}) for name in ("first", "second"))
    terminal = watch()
    terminal.wait_for("echo first")
    time.sleep(QUIET)

    terminal.process.send_signal(signal.SIGSTOP)
    agentos("deny", str(ids_of(kernel, asker.name)[0]))
    terminal.type("y")  # was meant for the first one
    terminal.process.send_signal(signal.SIGCONT)
    terminal.wait_for("echo second")

    assert reply_to(first)["code"] == "approval_refused"
    [left] = ids_of(kernel, asker.name)
    agentos("deny", str(left))
    terminal.wait_for(f"request {left} waits no more")
    assert reply_to(second)["code"] == "approval_refused"


def test_a_key_that_the_kernel_does_not_answer_decides_nothing(
    kernel: Kernel, asker: Asker, watch: Callable[[], Terminal]
) -> None:
    wire = asker.begin(EXEC, {"command": "echo first"})
    terminal = watch()
    terminal.wait_for("echo first")
    time.sleep(QUIET)
    held, place = Path(kernel.socket), Path(f"{kernel.socket}.held")
    held.rename(place)
    try:
        terminal.type("y")
        terminal.wait_for("no kernel")
    finally:
        place.rename(held)
    time.sleep(QUIET)
    terminal.type("y")

    terminal.wait_for("allowed: EXEC echo first")
    assert reply_to(wire)["success"]


@pytest.mark.parametrize(("how", "status"), [("ctrl-c", 0), ("term", 143), ("hangup", 129)])
def test_the_terminal_is_restored_however_it_ends(watch: Callable[[], Terminal], how: str, status: int) -> None:
    terminal = watch()
    if how == "ctrl-c":
        terminal.type("\x03")
    else:
        terminal.process.send_signal(signal.SIGTERM if how == "term" else signal.SIGHUP)

    assert terminal.end() == status


def test_while_it_is_stopped_the_terminal_is_as_before(watch: Callable[[], Terminal]) -> None:
    terminal = watch()
    status = Path(f"/proc/{terminal.process.pid}/stat")

    def state() -> str:
        return status.read_text().rpartition(")")[2].split()[0]

    terminal.process.send_signal(signal.SIGTSTP)
    until(lambda: state() == "T", "it is stopped")
    assert termios.tcgetattr(terminal.slave) == terminal.before

    terminal.process.send_signal(signal.SIGCONT)
    until(lambda: termios.tcgetattr(terminal.slave) != terminal.before, "it takes single keys")
    terminal.type("q")
    assert terminal.end() == 0


def test_watching_as_json_prints_each_request_once(kernel: Kernel, asker: Asker, program: str) -> None:
    command = [program, "approvals", "--watch", "--json", "--socket", kernel.socket]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        wires = [asker.begin(EXEC, {"command": f"echo {number}"}) for number in range(2)]
        shown = [json.loads(process.stdout.readline())["shown"] for _ in wires]
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == ""
        assert process.wait(PATIENCE) == 130

    assert ["echo 0" in shown[0], "echo 1" in shown[1]] == [True, True]
    for wire in wires:
        wire.close()


def test_watching_needs_a_terminal(agentos: Agentos) -> None:
    assert agentos("approvals", "--watch").stderr == (
        "agentos: --watch needs a terminal, as it takes keys: use `agentos approvals`, or --watch --json\n"
    )


def test_a_request_over_http_shows_query_headers_and_body_and_its_rule_is_suggested(
    kernel: Kernel, agentos: Agentos
) -> None:
    with http_server() as server:
        server.answers["/items?of=clay"] = response(b"made")
        poster = Asker(kernel, "poster", {"domains": [f"POST 127.0.0.1:{server.port}/**"]})
        fields = {"url": server.url("/items?of=clay"), "method": "POST", "headers": {"X-Two": "b"}, "body": "a\nb"}
        wire = poster.begin(HTTP, fields)
        [number] = ids_of(kernel, "poster")
        shown = agentos("approvals", str(number)).stdout.splitlines()
        assert server.connections == 0
        agentos("approve", str(number))
        assert reply_to(wire)["success"]

    assert shown[3:] == [
        f"  HTTP │ POST {server.url('/items?of=clay')}",
        "  header that the agent wrote: │ X-Two: b",
        "  body of 3 bytes:",
        "  | │ a",
        "  | │ b",
        "a remembered answer is for HTTP, whatever its query, headers and body:",
        f"      │ POST {server.url('/items')}",
    ]
    rule = f"POST 127.0.0.1:{server.port}/items"
    command = ("permissions", "suggest", "poster", "--state-dir", str(kernel.state_dir), "--json")
    until(lambda: json.loads(agentos(*command).stdout).get("allow") == {"domains": [rule]}, "the rule is suggested")


def test_rules_are_suggested_for_what_was_approved_and_done(kernel: Kernel, agentos: Agentos, asker: Asker) -> None:
    for op, fields, decide in (
        (WRITE, {"path": "notes.md", "content": "x"}, "approve"),
        (EXEC, {"command": "echo done && echo 'a b'"}, "approve"),
        (EXEC, {"command": "echo never"}, "deny"),
    ):
        wire = asker.begin(op, fields)
        agentos(decide, *map(str, ids_of(kernel, asker.name)))
        reply_to(wire)
    asker.call(READ, {"path": "notes.md"})

    def suggest(*options: str) -> str:
        return agentos("permissions", "suggest", asker.name, "--state-dir", str(kernel.state_dir), *options).stdout

    until(lambda: "echo done" in suggest(), "the outcomes are written")
    [(name, given)] = tomllib.loads(suggest())["permissions"].items()
    assert name == asker.name
    assert given == {
        "allow": {"write": ["/workspace/notes.md"], "commands": ["echo done", "echo 'a b'"]},
    }
    assert read_set(given, "pasted", {}, NAMES)
    assert json.loads(suggest("--json"))["allow"] == given["allow"]
    assert "#   ask commands echo * (" in suggest()
    assert Path(kernel.state_dir, "audit").is_dir()
