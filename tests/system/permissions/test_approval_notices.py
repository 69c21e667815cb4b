"""``[approvals] notify``: the operator's command gets each request, and neither delays nor endangers anything."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.agents.commands.notices import MAX_WAITING, TIMEOUT
from tests.support.askers import Asker, list_pending
from tests.support.kernel import Kernel, killing_new_agents, running, shared, until
from tests.support.wire import DECIDE, EXEC, WRITE

NASTY = 'git push \'$(touch /tmp/x)\' "`id`" \x1b[2J\n{"requests":[]}'
NOTIFY = '[approvals]\nnotify = ["sh", "notify.sh", "an argument"]\n'
WRITTEN = ("notices", "arguments", "environment", "input", "pid", "child")


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with shared(NOTIFY, env={"GEMINI_API_KEY": "a-secret-of-the-kernel"}) as started:
        yield started


@pytest.fixture
def notified(kernel: Kernel) -> Iterator[Kernel]:
    """The module's kernel: what a test has asked is denied, its agents are killed, and its files removed."""
    with killing_new_agents(kernel):
        yield kernel
        with kernel.client() as client:
            for entry in client.approvals()["pending"]:
                client.decide(entry["id"], False)
    for name in WRITTEN:
        (kernel.place / name).unlink(missing_ok=True)


def set_command(kernel: Kernel, text: str) -> None:
    (kernel.place / "notify.sh").write_text(text)


def read_notices(kernel: Kernel) -> list[dict[str, Any]]:
    """The inputs of all commands that have ended, in order."""
    place = Path(kernel.place, "notices")
    return [json.loads(line) for line in place.read_text().splitlines()] if place.exists() else []


def test_a_notice_has_the_request_as_json_on_standard_input_and_no_text_of_an_agent_elsewhere(notified: Kernel) -> None:
    set_command(notified, 'printf "%s\\n" "$@" > arguments; env > environment; cat >> notices')
    asker = Asker(notified, "pusher", {"commands": ["*"]})

    with asker.begin(EXEC, {"command": NASTY}):
        until(lambda: len(read_notices(notified)) == 1, "the command has got it")
        [pending] = list_pending(notified)

    [notice] = read_notices(notified)
    assert notice["missed"] == 0
    [request] = notice["requests"]
    assert {name: request[name] for name in ("id", "call", "shown", "lines", "rule")} == {
        name: pending[name] for name in ("id", "call", "shown", "lines", "rule")
    }
    assert [words for words, *quoted in request["lines"] if quoted][:3] == ["$ ", "> ", "in "]
    assert request["name"] == "pusher"
    assert "\x1b" not in request["shown"]
    assert Path(notified.place, "arguments").read_text() == "an argument\n"
    environment = Path(notified.place, "environment").read_text()
    assert "pusher" not in environment
    assert "a-secret-of-the-kernel" not in environment


def test_many_requests_at_once_are_few_commands_and_none_is_lost(notified: Kernel) -> None:
    set_command(notified, "cat >> notices")
    askers = [Asker(notified, f"asker-{number}", {"write": ["${workspace}/**"]}) for number in range(3)]
    wires = [asker.begin(WRITE, {"path": f"file-{number}", "content": "x"}) for asker in askers for number in range(8)]
    wanted = {one["id"] for one in list_pending(notified)}
    assert len(wanted) == 24 < MAX_WAITING

    def notified_ids() -> list[int]:
        return [request["id"] for notice in read_notices(notified) for request in notice["requests"]]

    until(lambda: len(notified_ids()) == len(wanted), "all have been named")
    assert set(notified_ids()) == wanted
    assert len(read_notices(notified)) < len(wanted)
    for wire in wires:
        wire.close()


@pytest.mark.usefixtures("long")
def test_a_command_that_hangs_delays_nothing_and_is_killed_with_what_it_started(notified: Kernel) -> None:
    set_command(notified, "sleep 1000 & echo $! > child; echo $$ > pid; cat > input; sleep 1000")
    asker = Asker(notified, "hanging", {"write": ["${workspace}/**"]})
    wire = asker.begin(WRITE, {"path": "first", "content": "x"})
    until(lambda: Path(notified.place, "input").exists(), "the command runs")

    with notified.connect() as operator:  # while it hangs the request is listed, decided and done
        [pending] = list_pending(notified)
        assert operator.call(DECIDE, {"id": pending["id"], "allow": True})["success"]
    assert wire.receive().json["success"]
    wire.close()

    child = int(Path(notified.place, "child").read_text())
    notified.wait_line(rf"approvals.notify was killed: it didn't end within {TIMEOUT:g} s")
    until(lambda: not os.path.exists(f"/proc/{child}"), "what it started has ended, too")
    set_command(notified, "cat >> notices")
    with asker.begin(WRITE, {"path": "second", "content": "x"}):
        until(lambda: bool(read_notices(notified)), "the next command runs")


def test_a_command_that_fails_is_logged_with_its_last_words(notified: Kernel) -> None:
    set_command(notified, "cat > input; echo 'no such webhook' >&2; exit 3")
    asker = Asker(notified, "failing", {"write": ["${workspace}/**"]})

    with asker.begin(WRITE, {"path": "first", "content": "x"}):
        notified.wait_line("approvals.notify failed, exit status 3: no such webhook")


@pytest.mark.usefixtures("kernels")
def test_a_program_that_is_not_there_is_logged() -> None:
    with running('[approvals]\nnotify = ["./no-such-program"]\n') as kernel:
        asker = Asker(kernel, "asker", {"write": ["${workspace}/**"]})

        with asker.begin(WRITE, {"path": "first", "content": "x"}):
            kernel.wait_line("approvals.notify can't be run: .*no-such-program")
