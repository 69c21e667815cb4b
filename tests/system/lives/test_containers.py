"""Declared agents under ``one_for_one``: what happens to one is not seen by the others."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, listens, until
from tests.support.wire import PATIENCE
from tests.system.agents import in_state, info, known, up

SLEEPS = '["sleep", "1000"]'
BAD = '["sh", "-c", "echo why >&2; exit 5"]'
IN_ORDER = 'strategy = "rest_for_one"'
OFTEN = "max_restarts = 1000\nrestart_window = 1\nbackoff = { min = 0, max = 0 }"
QUICK = 'max_restarts = 1\nrestart_window = "60s"\nbackoff = { max = 0.2 }'

LATE = """
import time

from agentos_sdk import AgentOSClient

me = AgentOSClient()
while not any(agent["name"] == "beside" and agent["state"] == "running" for agent in me.list_agents()):
    time.sleep(0.05)
me.hello()
time.sleep(1000)
"""

ONCE = """
import os, time

from agentos_sdk import AgentOSClient

me = AgentOSClient()
if os.environ["AGENTOS_LIFE"].endswith("0001"):
    me.hello()
time.sleep(1000)
"""

COUNT = 12
TOGETHER = f"""
import time

from agentos_sdk import AgentOSClient

me = AgentOSClient()
while sum(agent["running"] for agent in me.list_agents()) < {COUNT}:
    time.sleep(0.05)
me.hello()
time.sleep(1000)
"""


def child(name: str, command: str | None = SLEEPS, *lines: str) -> str:
    program = [f"command = {command}"] if command is not None else []
    if command == BAD:
        program.append('ready = "hello"')  # which it never says, however long it takes to fail
    return "\n".join(["[[supervisor.children]]", f'name = "{name}"', *program, *lines, ""])


def member(name: str, command: str | None = SLEEPS, *lines: str) -> str:
    """A child of the group before it."""
    return child(name, command, *lines).replace("[[supervisor.children]]", "[[supervisor.children.children]]")


def group(name: str, members: str, *lines: str) -> str:
    return child(name, None, 'type = "supervisor"', *lines) + members


def states(client: AgentOSClient) -> dict[str, str]:
    return {agent["name"]: agent["state"] for agent in client.list_agents(all=True)}


def shape(node: dict[str, Any]) -> Any:
    """A tree's names and what is below them."""
    return {below["name"]: shape(below) for below in node["children"]}


def test_a_healthy_child_comes_back_beside_others_that_take_long_to_start(
    own_kernel: OwnKernel, tmp_path: Path
) -> None:
    """Its supervisor doesn't wait for their starts, of which each fails after 30 s."""
    (tmp_path / "once.py").write_text(ONCE)
    lines = (f'script = "{tmp_path}/once.py"', 'ready = "hello"', OFTEN)
    names = [f"slow{number}" for number in range(COUNT)]
    kernel = own_kernel(child("healthy", SLEEPS, OFTEN) + "".join(child(name, None, *lines) for name in names))

    def starts() -> Sequence[int]:
        """The processes of all others, or none if one of them doesn't start just now."""
        found = [info(client, name) for name in names]
        return [agent["pid"] for agent in found] if all(agent["state"] == "starting" for agent in found) else []

    def comes_back() -> bool:
        """Whether the healthy one does within one start of all the others."""
        before, lives = starts(), info(client, "healthy")["restarts"]
        os.kill(known(client, "healthy"), signal.SIGKILL)
        until(lambda: info(client, "healthy")["restarts"] > lives, "it is back")
        in_state(client, "healthy", "running")
        return before != [] and before == starts()

    with kernel.client() as client:
        for name in names:
            os.kill(known(client, name), signal.SIGKILL)
        until(comes_back, "it comes back in the time of their starts")


def test_agents_start_at_the_same_time(own_kernel: OwnKernel, tmp_path: Path) -> None:
    """None of them is up before all of them run: one after the other they would wait in vain."""
    (tmp_path / "together.py").write_text(TOGETHER)
    lines = (f'script = "{tmp_path}/together.py"', 'ready = "hello"')

    kernel = own_kernel("".join(child(f"a{number}", None, *lines) for number in range(COUNT)))

    with kernel.client() as client:
        assert states(client) == {f"a{number}": "running" for number in range(COUNT)}
        assert {agent["restarts"] for agent in client.list_agents()} == {0}


def test_an_agent_that_cannot_start_leaves_the_others_untouched(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(
        child("first")
        + child("bad", BAD, QUICK)
        + child("nameless", '["nosuchprogram"]', 'restart = "temporary"')
        + group("team", member("good") + member("worse", BAD, QUICK))
        + child("last")
    )
    with kernel.client() as client:
        until(lambda: {"failed"} == {states(client)[name] for name in ("bad", "worse")}, "both were given up")

        others = {"first", "good", "last"}
        until(lambda: {name for name, state in states(client).items() if state == "running"} == others, "they run")
        assert states(client)["nameless"] == "exited"
        assert {name: info(client, name)["restarts"] for name in ("first", "good", "last", "bad", "worse")} == {
            **dict.fromkeys(("first", "good", "last"), 0),
            **dict.fromkeys(("bad", "worse"), 1),
        }
        assert client.wait("bad", timeout=PATIENCE)["exit_code"] == 5
        assert not client.kill("bad")
        assert client.logs("bad")["lines"][-1]["text"].startswith("given up: 2 restarts in 60 s were needed; the last ")
    kernel.wait_line("root/bad: given up: ")
    kernel.wait_line("root/team/worse: given up: ")


def test_a_failed_start_waits_for_its_backoff_and_ready_does_not_wait_for_it(own_kernel: OwnKernel) -> None:
    slow = 'backoff = { first = "1000s", min = "1000s", max = "1000s", max_failures = 9 }'
    kernel = own_kernel(child("late", BAD, slow) + child("last"))
    with kernel.client() as client:
        assert states(client) == {"late": "backing_off", "last": "running"}
        assert (info(client, "late")["restarts"], info(client, "late")["end"]) == (0, "exit status 5")

        assert client.kill("late")

        assert states(client) == {"late": "stopped", "last": "running"}
        assert client.wait("late", timeout=PATIENCE)["exit_code"] == 5


@pytest.mark.usefixtures("kernels")
def test_the_kernel_is_ready_at_once_and_lists_what_is_not_up_yet(tmp_path: Path) -> None:
    slow = f'["sh", "-c", "until test -e {tmp_path}/fail; do sleep 0.05; done; exit 5"]'
    lines = ('ready = "hello"', "sandboxed = false")
    team = group("team", member("bad", slow, *lines) + member("never"), IN_ORDER)
    kernel = Kernel(child("slow", slow, *lines) + team)
    try:
        kernel.wait_line("ready, listening")
        (tmp_path / "fail").touch()
        kernel.wait_line("slow: exit status 5")

        [ready] = [number for number, line in enumerate(kernel.lines) if "| ready, listening" in line]
        assert kernel.lines[ready + 1].endswith("| not up yet: slow, bad, never")
        assert not any(": exit status 5" in line for line in kernel.lines[:ready])
        assert "never: running" not in kernel.said
        kernel.stop()
    finally:
        kernel.clean_up()


def test_members_of_a_group_start_in_order_beside_others(own_kernel: OwnKernel, tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    late = (f'script = "{tmp_path}/late.py"', 'ready = "hello"')
    kernel = own_kernel(group("team", member("a", None, *late) + member("b"), IN_ORDER) + child("beside"))
    kernel.wait_line("b: running")

    order = [line.split("| ")[1].split(":")[0] for line in kernel.lines if ": running" in line]

    assert order == ["beside", "a", "b"]


def test_a_group_whose_member_cannot_start_is_given_up_alone(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(group("team", member("good") + member("bad", BAD), IN_ORDER, QUICK) + child("beside"))
    with kernel.client() as client:
        until(lambda: client.tree()["tree"]["children"][1].get("state") == "stopped", "the group was given up")

        assert states(client) == {"good": "exited", "bad": "failed", "beside": "running"}
        assert client.logs("bad")["lines"][-1]["text"].startswith("given up: 2 restarts in 60 s were needed; the last ")
        assert client.wait("good", timeout=PATIENCE)["reason"] == "stopped: killed by SIGTERM"
        assert info(client, "beside")["restarts"] == 0
    kernel.wait_line("root/team: given up: 2 restarts in 60 s were needed; the last time: bad: exit status 5")


def test_a_temporary_group_whose_member_cannot_start_does_not_end_silently(own_kernel: OwnKernel) -> None:
    team = group("team", member("good") + member("bad", BAD), IN_ORDER, 'restart = "temporary"')
    kernel = own_kernel(team + child("beside"))
    with kernel.client() as client:
        in_state(client, "bad", "failed")

        assert states(client) == {"good": "exited", "bad": "failed", "beside": "running"}
        assert client.logs("bad")["lines"][-1]["text"].startswith("given up: bad did not start")
    kernel.wait_line("root/team: given up: bad did not start")


def test_the_tree_shows_no_containers(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(
        child("one", BAD, 'restart = "temporary"')
        + group("team", member("two") + member("three"), IN_ORDER)
        + child("four")
    )
    with kernel.client() as client:
        root = client.tree()["tree"]

        assert shape(root) == {"spawned": {}, "one": {}, "team": {"two": {}, "three": {}}, "four": {}}
        _, one, team, four = root["children"]
        assert (one["type"], one["restart"], one["state"]) == ("agent", "temporary", "exited")
        assert (team["type"], team["restart"], team["strategy"]) == ("supervisor", "permanent", "rest_for_one")
        assert (four["type"], four["restart"], four["state"]) == ("agent", "permanent", "running")
        assert [agent["supervisor"] for agent in client.list_agents(all=True)] == [
            "root",
            "root/team",
            "root/team",
            "root",
        ]
        assert client.inspect("two")["supervisor"] == "root/team"

        assert (four["intensity"], four["period"], four["restarts_in_period"]) == (5, 60, 0)
        for name in ("three", "four"):
            os.kill(info(client, name)["pid"], signal.SIGKILL)

        def used() -> Sequence[int]:
            _, _, team, four = client.tree()["tree"]["children"]
            return team["restarts_in_period"], four["restarts_in_period"]

        until(lambda: used() == (1, 1), "each restart is counted where its limit is")


def test_an_escalation_ends_the_group_and_its_container_starts_it_again(own_kernel: OwnKernel) -> None:
    weak = member("weak", SLEEPS, "max_restarts = 0", 'on_give_up = "escalate"')
    kernel = own_kernel(group("team", weak + member("sound"), "intensity = 0") + child("beside"))
    with kernel.client() as client:
        os.kill(known(client, "weak"), signal.SIGKILL)

        until(lambda: info(client, "sound")["restarts"] == 1, "the group is back")
        in_state(client, "weak", "running")
        assert info(client, "beside")["restarts"] == 0
    kernel.wait_line("sound: stopped")


def test_a_significant_agent_that_was_given_up_ends_its_group(own_kernel: OwnKernel) -> None:
    job = member("job", '["sh", "-c", "sleep 1; exit 5"]', 'restart = "transient"', "significant = true", QUICK)
    kernel = own_kernel(
        group("team", member("helper") + job, 'auto_shutdown = "any_significant"', 'restart = "transient"')
        + child("beside")
    )
    with kernel.client() as client:
        assert client.wait("helper", timeout=PATIENCE)["reason"] == "stopped: killed by SIGTERM"

        assert states(client) == {"helper": "exited", "job": "failed", "beside": "running"}


def test_a_group_restart_above_starts_again_what_was_given_up_and_not_what_was_killed(
    own_kernel: OwnKernel,
) -> None:
    team = group("team", member("bad", BAD, "max_restarts = 0") + member("killed") + member("well"))
    kernel = own_kernel('[supervisor]\nstrategy = "one_for_all"\n' + child("key") + team)
    with kernel.client() as client:
        in_state(client, "bad", "failed")
        assert client.kill("killed")
        up(client.send_message("kept", to_name="well"))
        number = info(client, "bad")["id"]

        os.kill(known(client, "key"), signal.SIGKILL)

        for name in ("key", "well"):
            until(lambda n=name: info(client, n)["restarts"] == 1, f"{name} is back")  # type: ignore[misc]
            in_state(client, name, "running")
        until(lambda: info(client, "bad")["restarts"] == 1, "it was tried again")
        assert in_state(client, "bad", "failed")["id"] == number
        assert (info(client, "killed")["state"], info(client, "killed")["restarts"]) == ("stopped", 0)


@pytest.mark.usefixtures("kernels")
def test_a_stop_during_the_start_ends_the_kernel_at_once() -> None:
    never = (child(f"a{number}", SLEEPS, 'ready = "hello"', "required = true") for number in range(5))
    kernel = Kernel("".join(never) + group("team", member("b", SLEEPS, 'ready = "hello"'), IN_ORDER))
    try:
        until(lambda: listens(kernel.socket), "the door is open")
        with kernel.client() as client:
            for name in ("a0", "a4", "b"):
                known(client, name)
        kernel.process.send_signal(signal.SIGTERM)

        assert kernel.wait_end() == 0

        assert "HELLO" not in kernel.said  # for which it would wait 30 s
        assert "ready, listening" not in kernel.said
        assert "Traceback" not in kernel.said
    finally:
        kernel.clean_up()
