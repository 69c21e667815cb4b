"""Agents with a schedule: when they run, what they are meanwhile, and what START, STOP, a reload and a kill do."""

import os
import signal
import sqlite3
import time

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, until
from tests.system.agents import in_state, info, known, lines, up
from tests.system.conftest import Declare
from tests.system.lives.test_containers import SLEEPS, child, group, member, states
from tests.system.lives.test_start_stop import changed

NIGHTLY = 'schedule = { cron = "0 3 * * *", timezone = "Europe/Berlin" }'
OFTEN = 'schedule = { every = "1s" }'
CAUGHT_UP = 'schedule = { cron = "0 3 * * *", catch_up = true }'
COUNTS = '["sh", "-c", "echo here"]'


def make_due(kernel: Kernel, name: str, days: float) -> None:
    """Have the state directory of a kernel that doesn't run say that the last run was so many days ago."""
    with sqlite3.connect(kernel.state_dir / "agentos.db") as database:
        changed = database.execute("UPDATE last_runs SET last = ? WHERE name = ?", (time.time() - days * 86400, name))
        assert changed.rowcount == 1


def lives(client: AgentOSClient, name: str) -> int:
    return int(up(client.inspect(name))["lives"])


def test_an_agent_with_a_schedule_waits_between_its_runs(declare: Declare) -> None:
    kernel = declare(
        child("often", COUNTS, OFTEN) + child("nightly", SLEEPS, NIGHTLY) + child("last", SLEEPS, 'after = ["nightly"]')
    )
    with kernel.client() as client:
        until(lambda: lines(client, "often").count("here") >= 3, "three runs")

        waiting = info(client, "nightly")
        assert (waiting["state"], waiting["pid"]) == ("waiting", None)
        assert time.time() < waiting["next_at"] < time.time() + 86400 + 3600
        assert waiting["wakes_on"] == "cron 0 3 * * * Europe/Berlin"
        assert "nightly" in {agent["name"] for agent in client.list_agents()}
        inspected = up(client.inspect("nightly"))
        assert (inspected["state"], inspected["next_at"]) == ("waiting", waiting["next_at"])
        [node] = [each for each in up(client.tree())["tree"]["children"] if each["name"] == "nightly"]
        assert (node["state"], node["next_at"], node["wakes_on"]) == (
            "waiting",
            waiting["next_at"],
            waiting["wakes_on"],
        )
        assert info(client, "last")["state"] == "running"  # a waiting agent holds up none that is after it
        assert info(client, "often")["restarts"] == 0
        event = next(iter(client.follow_events(["AGENT_WOKEN"], agents=["often"], since=0)))
        assert event["data"]["reason"] == "schedule"
    kernel.wait_line("often: started by schedule")


def test_start_has_it_wait_and_start_now_runs_it(declare: Declare) -> None:
    members = child("nightly", SLEEPS, NIGHTLY) + group(
        "team", child("weekly", SLEEPS, NIGHTLY).replace("[[supervisor.children]]", "[[supervisor.children.children]]")
    )
    with declare(members).client() as client:
        assert changed(client.stop(names=["nightly", "team"])) == {"nightly": "stopped", "weekly": "stopped"}
        assert info(client, "nightly")["next_at"] is None

        assert changed(client.start(names=["nightly", "team"])) == {"nightly": "waiting", "weekly": "waiting"}
        assert info(client, "nightly")["next_at"] > time.time()

        assert changed(client.start(names=["nightly", "team"], now=True)) == {"nightly": "running", "weekly": "running"}
        assert lives(client, "nightly") == 1
        assert changed(client.stop("nightly")) == {"nightly": "stopped"}


def test_a_run_that_crashes_is_tried_again_and_its_schedule_goes_on(declare: Declare) -> None:
    crashes = '["sh", "-c", "exit 7"]'
    limits = 'max_restarts = 1\nrestart_window = "60s"\nbackoff = { min = 0, max = 0 }'
    kernel = declare(child("bad", crashes, OFTEN, limits) + child("once", crashes, OFTEN, 'restart = "temporary"'))
    with kernel.client() as client:
        until(lambda: lives(client, "bad") >= 4, "the next time begins with new limits")
        until(lambda: lives(client, "once") >= 2, "so does that of one that isn't tried again")
        in_state(client, "bad", "failed")
        assert info(client, "bad")["next_at"] > 0
        assert "bad" in {agent["name"] for agent in client.list_agents()}


def test_a_run_is_left_out_and_said_while_the_last_one_works(declare: Declare) -> None:
    kernel = declare(child("slow", SLEEPS, OFTEN))
    with kernel.client() as client:
        pid = known(client, "slow")
        event = next(iter(client.follow_events(["RUN_SKIPPED"], agents=["slow"], since=0)))
        assert event["data"]["next_at"] > event["data"]["due_at"]
        assert info(client, "slow")["pid"] == pid
    kernel.wait_line("slow: its run of .* is left out, because the last one still works")


def test_a_time_that_passed_over_a_kill_9_runs_once(own_kernel: OwnKernel) -> None:
    """Also in a group that starts with the kernel; and a schedule that was stopped for good stays so until START."""
    kernel = own_kernel(
        child("nightly", SLEEPS, CAUGHT_UP)
        + child("calm", SLEEPS, NIGHTLY)
        + child("often", SLEEPS, OFTEN)
        + group("team", member("slow", SLEEPS, CAUGHT_UP))
    )
    with kernel.client() as client:
        changed(client.stop("often", keep=True))
    kernel.kill()
    for name in ("nightly", "calm", "slow"):
        make_due(kernel, name, days=3)

    kernel.start_again()
    with kernel.client() as client:
        for name in ("nightly", "slow"):
            known(client, name)
        assert info(client, "nightly")["next_at"] > time.time()
        assert lives(client, "slow") == 1
        assert (info(client, "calm")["state"], lives(client, "calm")) == ("waiting", 0)
        stopped = info(client, "often")
        assert (stopped["state"], stopped["stopped_by"], stopped["kept"]) == ("stopped", "operator", True)
        assert changed(client.start("often")) == {"often": "waiting"}
        known(client, "often")
    kernel.wait_line("nightly: started by schedule")
    kernel.kill()  # in its run

    kernel.start_again()
    with kernel.client() as client:
        until(lambda: info(client, "nightly")["next_at"], "its next time is known")
        assert info(client, "nightly")["next_at"] > time.time()
        assert (info(client, "nightly")["state"], lives(client, "nightly")) == ("waiting", 0)


def test_an_agent_that_a_reload_moves_waits_in_its_new_group_as_in_its_old_one(declare: Declare) -> None:
    kernel = declare(child("resting", SLEEPS, NIGHTLY) + child("working", SLEEPS, NIGHTLY))
    with kernel.client() as client:
        changed(client.start("working", now=True))
        moved = group("team", member("resting", SLEEPS, NIGHTLY) + member("working", SLEEPS, NIGHTLY))
        (kernel.place / "agentos.toml").write_text(moved)

        reply = up(client.reload())

        kinds = {change["agent"]: change["change"] for change in reply["changes"] if change["agent"]}
        assert (kinds["resting"], kinds["working"]) == ("restarted", "restarted")
        until(lambda: states(client, "resting", "working") == {"resting": "waiting", "working": "waiting"}, "both wait")
        assert (lives(client, "resting"), lives(client, "working")) == (0, 1)
        assert changed(client.start("resting", now=True)) == {"resting": "running"}


def test_a_reload_gives_and_takes_a_schedule(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(
        child("a") + child("b", SLEEPS, NIGHTLY) + child("c", SLEEPS, NIGHTLY) + child("d", SLEEPS, NIGHTLY)
    )
    with kernel.client() as client:
        changed(client.start("d", now=True))
        pid = known(client, "d")
        text = child("a", SLEEPS, NIGHTLY) + child("b") + child("d", SLEEPS, OFTEN)
        (kernel.place / "agentos.toml").write_text(text)

        reply = up(client.reload())

        kinds = {change["agent"]: change["change"] for change in reply["changes"]}
        assert kinds == {"a": "restarted", "b": "restarted", "c": "removed", "d": "updated"}
        in_state(client, "a", "waiting")
        in_state(client, "b", "running")
        until(lambda: info(client, "a")["next_at"], "a is due")
        assert (info(client, "b")["next_at"], info(client, "d")["pid"]) == (None, pid)
        os.kill(pid, signal.SIGKILL)
        until(lambda: lives(client, "d") >= 2, "d comes back")
        (kernel.place / "agentos.toml").write_text(text.replace(child("b"), child("b", SLEEPS, NIGHTLY)))
        up(client.reload())
        in_state(client, "b", "waiting")  # whose life a reload had begun
    assert "c" not in states_of(kernel)


def states_of(kernel: Kernel) -> dict[str, str]:
    with kernel.client() as client:
        return {name: state for name, state in states(client).items() if state != "exited"}


def test_a_group_that_is_started_again_leaves_alone_what_waits(declare: Declare) -> None:
    member = '\n[[supervisor.children.children]]\nname = "{}"\ncommand = ["sleep", "1000"]\n{}\n'
    kernel = declare(group("team", member.format("web", "") + member.format("nightly", NIGHTLY)))
    with kernel.client() as client:
        in_state(client, "web", "running")

        assert changed(client.restart("team")) == {"web": "running", "nightly": "waiting"}
        assert changed(client.restart("nightly")) == {"nightly": "running"}
        assert changed(client.restart("team")) == {"web": "running", "nightly": "running"}  # it works, so it goes on
