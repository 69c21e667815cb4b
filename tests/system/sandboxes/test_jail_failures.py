"""A SPAWN that fails in the middle says why and leaves nothing; agents that make trouble make it for themselves."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, until
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE
from tests.system.agents import SLEEPER, ask, in_state, info, known, relay, up, write
from tests.system.jails import crippled, groups_left, loops_in, need_cgroups, zygotes_of

SLEEP = ["sleep", "1000"]
TOO_LITTLE = {"memory": 4096, "open_files": 3, "inodes": 1}
NONSENSE = {"tmp": 0, "disk": 0, "memory": 1 << 63, "max_pids": 0, "cpu_quota": 0, "cpu_weight": 10**6}


def belongings(kernel: Kernel) -> dict[str, Any]:
    """What a kernel has, and should have again."""
    groups = [name for group in groups_left(kernel.pid) for _, names, _ in os.walk(group) for name in names]
    runtime = next(kernel.place / name for name in os.listdir(kernel.place) if name.startswith("agentos-"))
    return {
        "groups": sorted(groups),
        "loops": loops_in(kernel.place),
        "runtime": sorted(os.listdir(runtime)),
        "processes": len(kernel.processes()),
        "files": kernel.open_files,
    }


def nothing_more(now: dict[str, Any], had: dict[str, Any]) -> bool:
    """Whether there is nothing that wasn't there before; less there may be, where something was still being removed."""
    return all(
        value <= had[name] if isinstance(value, int) else set(value) <= set(had[name]) for name, value in now.items()
    )


@pytest.fixture
def as_before(kernel: Kernel, client: AgentOSClient) -> Any:
    """What the test does leaves nothing, and the next SPAWN works."""
    up(client.spawn("before", command=SLEEP))
    client.kill("before", grace=0)
    in_state(client, "before", "exited")
    had = belongings(kernel)
    yield
    until(lambda: nothing_more(belongings(kernel), had), f"nothing is left beside {had}")
    up(client.spawn("after", command=SLEEP))


@pytest.mark.usefixtures("as_before")
@each_row("limit", TOO_LITTLE)
def test_a_limit_that_is_too_low_to_begin_with_is_named(client: AgentOSClient, limit: str) -> None:
    reply = client.spawn("tiny", command=SLEEP, limits={limit: TOO_LITTLE[limit]})

    assert (reply["success"], reply["code"]) == (False, "bad_request"), reply
    assert f"limits.{limit}: " in reply["error"]


def test_a_share_of_the_cpu_that_is_too_low_is_named(kernel: Kernel, client: AgentOSClient) -> None:
    need_cgroups(kernel)

    reply = client.spawn("tiny", command=SLEEP, limits={"cpu_quota": 1})

    assert (reply["code"], "limits.cpu_quota: " in reply["error"]) == ("bad_request", True)


@pytest.mark.usefixtures("as_before")
@each_row("limit", NONSENSE)
def test_a_limit_that_is_none_is_named(client: AgentOSClient, limit: str) -> None:
    reply = client.spawn("absurd", command=SLEEP, limits={limit: NONSENSE[limit]})

    assert (reply["success"], reply["code"]) == (False, "bad_request"), reply
    assert reply["error"].startswith(f"limits.{limit}: ")


@pytest.mark.usefixtures("as_before")
def test_what_is_not_there_is_named(kernel: Kernel, client: AgentOSClient) -> None:
    script = write(kernel, "sleeper.py", SLEEPER)
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"script": "/no/such.py"}, "script"),
        ({"script": script, "python": "/no/such/python"}, "python"),
        ({"script": script, "code": "/no/such"}, "code"),
        ({"script": script, "workspace": "/no/such"}, "workspace"),
        ({"command": ["/no/such"]}, "/no/such"),
        ({"command": SLEEP, "cwd": "/workspace/none"}, "/workspace/none"),
        ({"command": SLEEP, "cwd": "/etc"}, "cwd"),
        ({"script": script, "args": ["x" * 140_000]}, "Argument list too long"),
    ]
    for fields, named in mistakes:
        reply = client.spawn("lost", **fields)
        assert not reply["success"]
        assert named in reply["error"], (fields, reply)


@pytest.mark.usefixtures("as_before")
@each_row("gone", ["script", "code", "python", "workspace"])
def test_what_was_removed_between_two_lives_is_named_and_ends_the_agent(
    kernel: Kernel, client: AgentOSClient, gone: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="aos-gone-", dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        place = Path(directory)
        for name in ("code", "work", "venv"):
            (place / name).mkdir()
        os.chmod(place / "work", 0o777)
        (place / "code" / "main.py").write_text(SLEEPER)
        shutil.copy(write(kernel, "sleeper.py", SLEEPER), place / "script.py")
        choices: dict[str, dict[str, Any]] = {
            "script": {"script": str(place / "script.py")},
            "code": {"script": str(place / "code" / "main.py"), "code": str(place / "code")},
            "python": {"script": str(place / "script.py"), "python": "/usr/bin/python3"},
            "workspace": {"command": SLEEP, "workspace": str(place / "work")},
        }
        fields = choices[gone]
        if gone == "python":
            venv = [sys.executable, "-m", "venv", "--without-pip", str(place / "venv")]
            subprocess.run(venv, check=True, timeout=PATIENCE)
            fields["python"] = str(place / "venv" / "bin" / "python")
        name = f"loser-{gone}"
        up(client.spawn(name, restart="permanent", max_restarts=2, **fields))
        pid = known(client, name)
        for entry in os.listdir(place):
            os.rename(place / entry, place / f"{entry}.away")

        os.kill(pid, signal.SIGKILL)

        reason = client.wait(name, timeout=PATIENCE)["reason"]
        assert str(place) in reason, reason


def test_without_its_runtime_directory_a_spawn_fails_and_says_so(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    runtime = next(kernel.place / name for name in os.listdir(kernel.place) if name.startswith("agentos-"))
    runtime.rename(kernel.place / "away")
    with kernel.client() as client:
        reply = client.spawn("homeless", command=SLEEP)
        assert not reply["success"]
        assert str(runtime) in reply["error"]

        (kernel.place / "away").rename(runtime)
        up(client.spawn("homeless", command=SLEEP))


def test_a_zygote_that_dies_in_the_middle_of_spawns_makes_no_difference_but_busy(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    with kernel.client() as client:
        wires = [kernel.connect() for _ in range(20)]
        for number, wire in enumerate(wires):
            wire.send(0x10, {"name": f"agent-{number}", "command": SLEEP})
        killed: set[int] = set()
        for _ in range(3):
            until(lambda: set(zygotes_of(kernel.pid)) - killed, "there is a new zygote")
            killed.add(max(set(zygotes_of(kernel.pid)) - killed))
            os.kill(max(killed), signal.SIGKILL)
        replies = [wire.receive().json for wire in wires]
        for wire in wires:
            wire.close()

        assert {reply.get("code", "up") for reply in replies} <= {"up", "busy"}, [one.get("error") for one in replies]
        up(client.spawn("after", command=SLEEP))
        alive = [agent for agent in client.list_agents() if agent["running"]]
        assert len(alive) == 1 + sum(reply["success"] for reply in replies)


DIES = """
import os, threading, time
from agentos_sdk import AgentOSClient
def ask(number):
    with AgentOSClient() as me:
        me.spawn("heir-%d" % number, command=["sleep", "1000"])
time.sleep(1)
for number in range(8):
    threading.Thread(target=ask, args=(number,)).start()
time.sleep({after})
os.kill(os.getpid(), 9)
"""


@pytest.mark.usefixtures("as_before")
@each_row("after", [0.01, 0.06, 0.2])
def test_an_agent_that_kills_itself_in_the_middle_of_spawning_leaves_no_child(
    kernel: Kernel, client: AgentOSClient, after: float
) -> None:
    number = up(client.spawn("mortal", write(kernel, "dies.py", DIES.replace("{after}", str(after)))))["id"]

    client.wait(agent_id=number, timeout=PATIENCE)

    def alive() -> list[str]:
        return [
            agent["name"] for agent in client.list_agents() if agent["name"].startswith("heir") and agent["running"]
        ]

    until(lambda: not alive(), "no heir lives")
    assert kernel.answers()


@each_row(
    "name", ["../x", "a/../../b", "/etc/passwd", "..", ".", "a\0b", "x" * 65, "a b", "a+b", "%2e%2e", "-x", "12", "~"]
)
def test_names_with_tricks_are_refused_to_agents_as_well(kernel: Kernel, client: AgentOSClient, name: str) -> None:
    if "tricky" not in {agent["name"] for agent in client.list_agents() if agent["running"]}:
        relay(kernel, client, "tricky")

    reply = ask(client, info(client, "tricky")["id"], "spawn", name=name, command=SLEEP)

    assert (reply["success"], reply["error"].partition(":")[0]) == (False, "name"), reply


def own_range() -> int:
    """The first uid of a range that no other kernel on this machine claims at the same time."""
    return 1700000000 + 64 * os.getpid()


def test_an_agent_cant_use_up_the_identities_of_others(own_kernel: OwnKernel) -> None:
    """The range is small here, so that a few names are as many as 65,536 are."""
    if os.geteuid() != 0:
        pytest.skip("without root there are no identities to use up")
    kernel = own_kernel(f"[kernel]\nuids = {{first = {own_range()}, count = 6}}\nspawn_rate = 1000\n")
    with kernel.client() as client:
        up(client.spawn("victim", command=SLEEP, workspace="keep"))
        victim = os.stat(f"/proc/{known(client, 'victim')}").st_uid
        greedy = relay(kernel, client, "greedy")
        for number in range(14):
            up(ask(client, greedy, "spawn", name=f"name-{number}", command=SLEEP))
            assert ask(client, greedy, "kill", name=f"name-{number}", grace=0)

        client.kill("victim", grace=0)
        until(lambda: not loops_in(kernel.place), "its files are let go")
        up(client.spawn("victim", command=SLEEP, workspace="keep"))
        assert os.stat(f"/proc/{known(client, 'victim')}").st_uid == victim
        given = [json.loads(line)["id"] for line in (kernel.state_dir / "outer-ids.json").read_text().splitlines()]
        assert len(given) == len(set(given)) <= 6


def test_what_names_it_asks_for_with_files_to_keep_use_up_is_said(own_kernel: OwnKernel) -> None:
    if os.geteuid() != 0:
        pytest.skip("without root there are no identities to use up")
    kernel = own_kernel(f"[kernel]\nuids = {{first = {own_range()}, count = 4}}\nspawn_rate = 1000\n")
    with kernel.client() as client:
        for number in range(4):
            up(client.spawn(f"kept-{number}", command=SLEEP, workspace="keep", limits={"disk": "1M", "inodes": 64}))
            client.kill(f"kept-{number}", grace=0)
        reply = client.spawn("one-more", command=SLEEP)

        assert (reply["success"], reply["code"]) == (False, "isolation_unavailable")
        assert "all 4 uids for agents are in use" in reply["error"]
        up(client.spawn("kept-1", command=SLEEP, workspace="keep", limits={"disk": "1M", "inodes": 64}))


@pytest.mark.usefixtures("kernels")
def test_a_host_without_namespaces_fails_every_time_and_leaves_nothing() -> None:
    options = ("--refuse", "pivot_root=EPERM")
    with crippled(*options) as kernel, kernel.client() as client:
        client.spawn("first", command=SLEEP)
        had = belongings(kernel)
        for number in range(5):
            reply = client.spawn(f"walled-{number}", command=SLEEP)
            assert (reply["success"], reply["code"]) == (False, "isolation_unavailable")
        until(lambda: nothing_more(belongings(kernel), had), f"nothing is left beside {had}")
