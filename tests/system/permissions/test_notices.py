"""``[notify]``: the operator's command is told of failures, give-ups, budgets, a killed kernel, and calls that wait."""

import json
from pathlib import Path
from typing import Any

from tests.conftest import OwnKernel
from tests.support.askers import Asker
from tests.support.kernel import running, until
from tests.support.wire import EXEC, SPAWN
from tests.system.lives.test_containers import BAD, child

NOTIFY = '[notify]\ncommand = ["sh", "-c", "cat >> notices"]\n'
QUICK = 'max_restarts = 1\nrestart_window = "60s"\nbackoff = { first = 0.1, min = 0.1, max = 0.2 }'


def read_notices(place: Path) -> list[dict[str, Any]]:
    file = place / "notices"
    lines = file.read_text().splitlines() if file.exists() else []
    return [notice for line in lines for notice in json.loads(line)["notices"]]


def test_failures_calls_that_wait_and_a_killed_kernel_are_told(own_kernel: OwnKernel) -> None:
    notified = own_kernel(NOTIFY + child("weak", BAD, "sandboxed = false", QUICK))
    until(lambda: len(read_notices(notified.place)) == 2, "both are told")

    first, last = read_notices(notified.place)
    assert (first["type"], first["severity"]) == ("AGENT_RESTARTING", "warning")
    assert first["text"].startswith("weak: will be restarted in ")
    assert (last["type"], last["severity"]) == ("AGENT_FAILED", "error")
    assert last["text"].startswith("weak: given up: ")
    assert "exit status 5" in last["text"]
    assert last["data"]["name"] == "weak"
    assert last["at"] > first["at"] - 1

    asker = Asker(notified, "pusher", {"commands": ["*"]})

    with asker.begin(EXEC, {"command": "git push"}):
        until(lambda: any(one["type"] == "APPROVAL_REQUESTED" for one in read_notices(notified.place)), "it is told")

    [request] = [one for one in read_notices(notified.place) if one["type"] == "APPROVAL_REQUESTED"]
    assert "pusher waits with EXEC for a person" in request["text"]
    assert request["data"]["name"] == "pusher"
    assert ["git push" in part for words in request["data"]["lines"] for part in words].count(True) == 1

    rules = {"level": "sandboxed", "ask": {"commands": ["*"]}}
    deputy = asker.call(SPAWN, {"name": "deputy", "command": ["sleep", "1000"], "permissions": rules})["id"]
    with notified.connect_as(deputy) as wire:
        wire.send(EXEC, {"command": "true"})
        told = "pusher/deputy waits with EXEC"  # an agent that has ended may have had the name
        until(lambda: any(told in one["text"] for one in read_notices(notified.place)), "its parent is told, too")

    record = notified.state_dir / "last-run.json"
    until(lambda: '"ended":false' in record.read_text(), "the run is recorded")
    notified.kill()
    notified.start_again()
    until(lambda: any(one["type"] == "KERNEL_KILLED" for one in read_notices(notified.place)), "it is told")

    [killed] = [one for one in read_notices(notified.place) if one["type"] == "KERNEL_KILLED"]
    assert "the last kernel was killed" in killed["text"]


def test_requests_go_to_their_own_command_where_there_is_one(kernels: None) -> None:
    own = '[approvals]\nnotify = ["sh", "-c", "cat >> requests"]\n'
    with running(NOTIFY + own + child("weak", BAD, "sandboxed = false", QUICK)) as kernel:
        asker = Asker(kernel, "pusher", {"commands": ["*"]})
        with asker.begin(EXEC, {"command": "git push"}):
            until(lambda: (kernel.place / "requests").exists(), "it is told")
        until(lambda: any(one["type"] == "AGENT_FAILED" for one in read_notices(kernel.place)), "a failure is told")

        assert not [one for one in read_notices(kernel.place) if one["type"] == "APPROVAL_REQUESTED"]
