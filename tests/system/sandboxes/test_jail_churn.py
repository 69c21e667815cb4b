"""Scores of jails, one after the other and many at once: afterwards everything is as it was."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, proc_status, until
from tests.support.runs.rounds import is_night
from tests.support.wire import KILL, Wire
from tests.system.agents import up, write
from tests.system.jails import groups_left, loops_in
from tests.system.lives.test_death import children_of

SPAWN = 0x10
BATCH, BATCHES = 20, 50 if is_night() else 2  # 40 jails after the first 20, and 1,000 at night
ARRIVES = "from agentos_sdk import AgentOSClient\nwith AgentOSClient() as me:\n    me.recv_messages(timeout=1000)\n"


def churn(kernel: Kernel, wires: Sequence[Wire], script: str) -> None:
    """One agent for each of the connections, killed as soon as it is there."""
    for number, wire in enumerate(wires):
        wire.send(SPAWN, {"name": f"brief-{number}", "script": script, "runtime": "fast"})
    replies = [up(wire.receive().json) for wire in wires]
    for wire, reply in zip(wires, replies, strict=True):
        wire.send(KILL, {"id": reply["id"], "grace": 0})
    assert all(wire.receive().json["killed"] for wire in wires)


def belongings(kernel: Kernel) -> dict[str, Any]:
    runtime = next(kernel.place / name for name in os.listdir(kernel.place) if name.startswith("agentos-"))
    names = kernel.state_dir / "outer-ids.json"
    return {
        "children": len(children_of(kernel.pid)),
        "groups": [os.listdir(group) for group in groups_left(kernel.pid) if nested(group)],
        "files": kernel.open_files,
        "sockets": sorted(os.listdir(runtime)),
        "mounts": Path("/proc/mounts").read_text().count(str(kernel.place)),
        "loops": loops_in(kernel.place),
        "namespaces": proc_status(kernel.pid, "Threads") < 60,
        "ids": len(names.read_text().splitlines()) if names.exists() else 0,
    }


def same(now: dict[str, Any], before: dict[str, Any]) -> bool:
    """All that is counted; open files may be fewer by what had not been collected before."""
    return {**now, "files": 0} == {**before, "files": 0} and bool(now["files"] <= before["files"])


def nested(group: str) -> list[str]:
    return [name for name in os.listdir(group) if os.path.isdir(os.path.join(group, name))]


@pytest.mark.usefixtures("long")
def test_scores_of_jails_leave_nothing(own_kernel: OwnKernel) -> None:
    kernel = own_kernel("[kernel]\nspawn_rate = 10000\n")
    script = write(kernel, "arrives.py", ARRIVES)
    wires = [kernel.connect(60) for _ in range(BATCH)]
    churn(kernel, wires, script)  # what is made once is there now
    until(lambda: not children_of(kernel.pid)[1:], "all have ended")  # but the zygote
    until(lambda: kernel.answers() and kernel.open_files < BATCH + 50, "what is garbage is collected")
    had, rss = belongings(kernel), kernel.rss

    for _ in range(BATCHES):
        churn(kernel, wires, script)

    until(
        lambda: kernel.answers() and same(belongings(kernel), had),
        f"{json.dumps(belongings(kernel))} is {json.dumps(had)} again",
    )
    assert had["ids"] in (0, BATCH)
    assert had["groups"] == []
    # A thousand ended agents at most are remembered, with what their walls were: less than 256 KiB of each.
    assert kernel.rss - rss < BATCH * BATCHES << 18
    for wire in wires:
        wire.close()
