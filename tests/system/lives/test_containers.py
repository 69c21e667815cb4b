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
from tests.system.conftest import Declare

SLEEPS = '["sleep", "1000"]'
BAD = '["sh", "-c", "echo why >&2; exit 5"]'
IN_ORDER = 'strategy = "rest_for_one"'
QUICK = 'max_restarts = 1\nrestart_window = "60s"\nbackoff = { max = 0.2 }'

COUNT = 4
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


def states(client: AgentOSClient, *names: str) -> dict[str, str]:
    """Of all agents, or of these: in a kernel of several tests the list has theirs too."""
    found = {agent["name"]: agent["state"] for agent in client.list_agents(all=True)}
    return {name: found[name] for name in names or found}


def shape(node: dict[str, Any]) -> Any:
    """A tree's names and what is below them."""
    return {below["name"]: shape(below) for below in node["children"]}


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
        + group("ordered", member("before") + member("broken", BAD), IN_ORDER, QUICK)
        + group("once", member("sound") + member("never", BAD), IN_ORDER, 'restart = "temporary"')
        + child("last")
    )
    with kernel.client() as client:
        failed = ("bad", "worse", "broken", "never")
        until(lambda: {*states(client, *failed).values()} == {"failed"}, "each was given up, and their groups")

        others = {"first", "good", "last"}
        until(lambda: {name for name, state in states(client).items() if state == "running"} == others, "they run")
        assert {*states(client, "nameless", "before", "sound").values()} == {"exited"}
        assert {name: info(client, name)["restarts"] for name in ("first", "good", "last", "bad", "worse")} == {
            **dict.fromkeys(("first", "good", "last"), 0),
            **dict.fromkeys(("bad", "worse"), 1),
        }
        assert client.wait("bad", timeout=PATIENCE)["exit_code"] == 5
        assert not client.kill("bad")
        for name in ("bad", "broken"):
            last = client.logs(name)["lines"][-1]["text"]
            assert last.startswith("given up: 2 restarts in 60 s were needed; the last ")
        assert client.logs("never")["lines"][-1]["text"].startswith("given up: never did not start")
        assert client.wait("before", timeout=PATIENCE)["reason"] == "stopped: killed by SIGTERM"
    kernel.wait_line("root/bad: given up: ")
    kernel.wait_line("root/team/worse: given up: ")
    kernel.wait_line("root/ordered: given up: 2 restarts in 60 s were needed; the last time: broken: exit status 5")
    kernel.wait_line("root/once: given up: never did not start")


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


def test_the_tree_shows_no_containers(declare: Declare) -> None:
    kernel = declare(
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
        supervisors = [info(client, name)["supervisor"] for name in ("one", "two", "three", "four")]
        assert supervisors == ["root", "root/team", "root/team", "root"]
        assert client.inspect("two")["supervisor"] == "root/team"

        assert (four["intensity"], four["period"], four["restarts_in_period"]) == (5, 60, 0)
        for name in ("three", "four"):
            os.kill(info(client, name)["pid"], signal.SIGKILL)

        def used() -> Sequence[int]:
            _, _, team, four = client.tree()["tree"]["children"]
            return team["restarts_in_period"], four["restarts_in_period"]

        until(lambda: used() == (1, 1), "each restart is counted where its limit is")


def test_an_escalation_ends_the_group_and_its_container_starts_it_again(declare: Declare) -> None:
    weak = member("weak", SLEEPS, "max_restarts = 0", 'on_give_up = "escalate"')
    kernel = declare(group("team", weak + member("sound"), "intensity = 0") + child("beside"))
    with kernel.client() as client:
        os.kill(known(client, "weak"), signal.SIGKILL)

        until(lambda: info(client, "sound")["restarts"] == 1, "the group is back")
        in_state(client, "weak", "running")
        assert info(client, "beside")["restarts"] == 0
    kernel.wait_line("sound: stopped")


def test_a_significant_agent_that_was_given_up_ends_its_group(declare: Declare) -> None:
    job = member("job", '["sh", "-c", "sleep 1; exit 5"]', 'restart = "transient"', "significant = true", QUICK)
    kernel = declare(
        group("team", member("helper") + job, 'auto_shutdown = "any_significant"', 'restart = "transient"')
        + child("beside")
    )
    with kernel.client() as client:
        assert client.wait("helper", timeout=PATIENCE)["reason"] == "stopped: killed by SIGTERM"

        names = ("helper", "job", "beside")
        assert states(client, *names) == {"helper": "exited", "job": "failed", "beside": "running"}


def test_a_group_restart_above_starts_again_what_was_given_up_and_not_what_was_killed(own_kernel: OwnKernel) -> None:
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
