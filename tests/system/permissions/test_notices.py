"""``[notify]``: the operator's command is told of failures, give-ups, budgets, a killed kernel, and calls that wait."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.agents.commands.notices import MAX_OF_FAMILY
from tests.support.askers import Asker
from tests.support.kernel import Kernel, running, until
from tests.support.wire import EXEC
from tests.system.agents import in_state, up
from tests.system.lives.test_containers import BAD, child

NOTIFY = '[notify]\ncommand = ["sh", "-c", "cat >> notices"]\n'
QUICK = 'max_restarts = 1\nrestart_window = "60s"\nbackoff = { first = 0.1, min = 0.1, max = 0.2 }'


@pytest.fixture
def notified(kernels: None) -> Iterator[Kernel]:
    text = NOTIFY + child("weak", BAD, "sandboxed = false", QUICK) + child("sound")
    with running(text, env={"GEMINI_API_KEY": "a-secret-of-the-kernel"}) as kernel:
        yield kernel


def read_notices(place: Path) -> list[dict[str, Any]]:
    file = place / "notices"
    lines = file.read_text().splitlines() if file.exists() else []
    return [notice for line in lines for notice in json.loads(line)["notices"]]


def test_an_agent_that_fails_and_is_given_up_is_told_once_each(notified: Kernel) -> None:
    until(lambda: len(read_notices(notified.place)) == 2, "both are told")

    first, last = read_notices(notified.place)
    assert (first["type"], first["severity"]) == ("AGENT_RESTARTING", "warning")
    assert first["text"].startswith("weak: will be restarted in ")
    assert (last["type"], last["severity"]) == ("AGENT_FAILED", "error")
    assert last["text"].startswith("weak: given up: ")
    assert "exit status 5" in last["text"]
    assert last["data"]["name"] == "weak"
    assert last["at"] > first["at"] - 1


def test_a_call_that_waits_for_a_person_is_told_by_the_same_command(notified: Kernel) -> None:
    asker = Asker(notified, "pusher", {"commands": ["*"]})

    with asker.begin(EXEC, {"command": "git push"}):
        until(lambda: any(one["type"] == "APPROVAL_REQUESTED" for one in read_notices(notified.place)), "it is told")

    [request] = [one for one in read_notices(notified.place) if one["type"] == "APPROVAL_REQUESTED"]
    assert "pusher waits with EXEC for a person" in request["text"]
    assert request["data"]["name"] == "pusher"
    assert ["git push" in part for words in request["data"]["lines"] for part in words].count(True) == 1


def test_requests_go_to_their_own_command_where_there_is_one(kernels: None) -> None:
    own = '[approvals]\nnotify = ["sh", "-c", "cat >> requests"]\n'
    with running(NOTIFY + own + child("weak", BAD, "sandboxed = false", QUICK)) as kernel:
        asker = Asker(kernel, "pusher", {"commands": ["*"]})
        with asker.begin(EXEC, {"command": "git push"}):
            until(lambda: (kernel.place / "requests").exists(), "it is told")
        until(lambda: any(one["type"] == "AGENT_FAILED" for one in read_notices(kernel.place)), "a failure is told")

        assert not [one for one in read_notices(kernel.place) if one["type"] == "APPROVAL_REQUESTED"]


def test_children_that_fail_do_not_hide_the_failure_of_another_agent(notified: Kernel) -> None:
    """The notices of a family share its places, however many names it uses."""
    until(lambda: len(read_notices(notified.place)) == 2, "those of the start are told")
    (notified.place / "notices").unlink()
    with notified.client() as client:
        in_state(client, "sound", "running")
        for number in range(3 * MAX_OF_FAMILY):
            up(client.spawn(f"child-{number}", command=["sh", "-c", "sleep 1; exit 5"], sandboxed=False))
        up(client.start("weak"))

    until(
        lambda: any(one["data"]["name"] == "weak" for one in read_notices(notified.place)),
        "the declared agent's failure is told",
    )


def test_the_next_kernel_tells_that_the_last_one_was_killed(kernels: None) -> None:
    with running(NOTIFY + child("sound")) as kernel:
        kernel.wait_line("sound: running")
        record = kernel.state_dir / "last-run.json"
        until(lambda: '"ended":false' in record.read_text(), "the run is recorded")
        kernel.kill()
        kernel.start_again()
        until(lambda: any(one["type"] == "KERNEL_KILLED" for one in read_notices(kernel.place)), "it is told")

        [killed] = [one for one in read_notices(kernel.place) if one["type"] == "KERNEL_KILLED"]
    assert "the last kernel was killed" in killed["text"]
