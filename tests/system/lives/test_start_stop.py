"""START, STOP and RESTART of agents and groups: what is touched, what stays, and what a group's restart does then."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from agentos_sdk.opcodes import Op
from tests.conftest import OwnKernel
from tests.support.kernel import until
from tests.support.runs.rows import each_row
from tests.support.wire import STOP
from tests.system.agents import ask, in_state, info, known, relay, up, written
from tests.system.conftest import Declare
from tests.system.lives.test_containers import BAD, IN_ORDER, QUICK, SLEEPS, child, group, member, states

TOGETHER = 'strategy = "one_for_all"'
STUBBORN = '["sh", "-c", "trap : TERM; while :; do sleep 1000; done"]'

LATER = """
import os, time
from agentos_sdk import AgentOSClient

if os.environ["AGENTOS_LIFE"].endswith("0001"):
    time.sleep(1000)
for message in AgentOSClient().recv_messages(timeout=300)["messages"]:
    print("got", message["message"], flush=True)
time.sleep(1000)
"""
"""Leaves its mail alone in its first life."""


def changed(reply: dict[str, Any]) -> dict[str, str]:
    return {agent["name"]: agent["state"] for agent in up(reply)["agents"]}


def pids(client: AgentOSClient) -> dict[str, int]:
    return {agent["name"]: agent["pid"] for agent in client.list_agents(all=True)}


def lives(client: AgentOSClient, name: str) -> int:
    return int(up(client.inspect(name))["lives"])


def crash(client: AgentOSClient, name: str) -> None:
    """Kill an agent's process, and wait until the agent is back."""
    before = info(client, name)["restarts"]
    os.kill(known(client, name), signal.SIGKILL)
    until(lambda: info(client, name)["restarts"] == before + 1, f"{name} is back")
    in_state(client, name, "running")


def test_a_stopped_agent_keeps_its_id_its_name_and_its_mail(declare: Declare, tmp_path: Path) -> None:
    (tmp_path / "later.py").write_text(LATER)
    kernel = declare(child("later", None, f'script = "{tmp_path}/later.py"') + child("beside"))
    with kernel.client() as client:
        number = info(client, "later")["id"]
        up(client.send_message("kept", to_name="later"))

        assert changed(client.stop("later")) == {"later": "stopped"}
        assert (info(client, "later")["stopped_by"], info(client, "later")["pid"]) == ("operator", None)
        assert client.spawn("later", command=["sleep", "1000"])["code"] == "already_exists"
        assert changed(client.start("later")) == {"later": "running"}

        assert (info(client, "later")["id"], info(client, "later")["stopped_by"]) == (number, None)
        written(client, "later", "got kept")
        assert info(client, "beside")["restarts"] == 0
    kernel.wait_line("later: stopped by operator, until it is started")


@pytest.mark.parametrize("strategy", ["one_for_all", "rest_for_one"])
def test_a_stopped_member_stays_stopped_when_its_group_is_restarted(declare: Declare, strategy: str) -> None:
    members = member("a") + member("b", SLEEPS, 'restart = "temporary"') + member("c") + member("d")
    kernel = declare(group("team", members, f'strategy = "{strategy}"', "intensity = 5"))
    with kernel.client() as client:
        assert changed(client.stop(names=["b", "c"])) == {"b": "stopped", "c": "stopped"}

        crash(client, "a")

        in_state(client, "d", "running")
        assert states(client, *"abcd") == {"a": "running", "b": "stopped", "c": "stopped", "d": "running"}
        before = pids(client)
        assert changed(client.start(names=["b", "c"])) == {"b": "running", "c": "running"}
        assert {name: pids(client)[name] for name in "ad"} == {name: before[name] for name in "ad"}
        crash(client, "a")
        until(lambda: lives(client, "c") == 3, "it takes part in the restart of its group again")


def test_a_restart_of_a_member_touches_that_member_alone(declare: Declare) -> None:
    kernel = declare(group("team", member("a") + member("b") + member("c"), TOGETHER))
    with kernel.client() as client:
        before = pids(client)

        assert changed(client.restart("b")) == {"b": "running"}

        after = pids(client)
        assert (after["a"], after["c"]) == (before["a"], before["c"])
        assert (after["b"] != before["b"], lives(client, "b")) == (True, 2)


@pytest.mark.parametrize("strategy", ["one_for_all", "one_for_one"])
def test_restarts_at_once_of_a_group_and_its_members_all_come_to_an_end(declare: Declare, strategy: str) -> None:
    members = member("a") + member("b", SLEEPS, 'restart = "temporary"')
    kernel = declare(group("team", members, f'strategy = "{strategy}"', "intensity = 500"))

    def restart(name: str) -> list[Any]:
        with kernel.client() as client:
            return [client.request(op, {"name": name}).get("code") for op in [Op.RESTART, Op.START] * 3]

    with ThreadPoolExecutor(6) as threads:
        codes = {code for found in threads.map(restart, ["b", "team", "a"] * 2) for code in found}

    assert codes <= {None, "unavailable", "bad_request"}
    with kernel.client() as client:
        up(client.start("team"))
        assert states(client, *"ab") == {"a": "running", "b": "running"}


def test_an_agent_that_is_named_in_many_ways_is_restarted_once(declare: Declare) -> None:
    kernel = declare(child("a"))
    with kernel.client() as client:
        number = str(info(client, "a")["id"])

        assert changed(client.restart(names=["a", number, number.zfill(5), "a"])) == {"a": "running"}

        assert lives(client, "a") == 2


def test_a_group_is_stopped_in_reverse_and_started_in_order(declare: Declare) -> None:
    inner = group("inner", member("c") + member("d"), TOGETHER)
    kernel = declare(group("team", member("a") + member("b"), IN_ORDER) + inner + child("beside"))
    with kernel.client() as client:
        since = len(kernel.lines)
        assert changed(client.stop("team")) == {"a": "stopped", "b": "stopped"}
        assert changed(client.restart("inner")) == {"c": "running", "d": "running"}
        assert changed(client.start("team")) == {"a": "running", "b": "running"}

        assert [lives(client, name) for name in ("a", "b", "c", "d", "beside")] == [2, 2, 2, 2, 1]

    def order(event: str) -> list[str]:
        return [line.split("| ")[1].split(":")[0] for line in kernel.lines[since:] if event in line]

    # What was printed before may arrive after the kernel is ready.
    until(lambda: order(": running")[-4:] == ["c", "d", "a", "b"], "they were started in this order")
    assert order(": stopped by") == ["b", "a"]


def test_what_was_given_up_can_be_started_again_with_new_limits(declare: Declare, tmp_path: Path) -> None:
    fine = tmp_path / "fine"
    program = f'["sh", "-c", "test -e {fine} && exec sleep 1000"]'
    kernel = declare(
        child("alone", program, "sandboxed = false", QUICK)
        + group("team", member("first") + member("second", program, "sandboxed = false"), IN_ORDER, QUICK)
    )
    with kernel.client() as client:
        in_state(client, "alone", "failed")
        in_state(client, "second", "failed")
        in_state(client, "first", "exited")
        refused = client.start("first")
        assert (refused["code"], "start the group" in refused["error"]) == ("bad_request", True)

        fine.touch()

        assert changed(client.start("alone")) == {"alone": "running"}
        assert changed(client.start("team")) == {"first": "running", "second": "running"}
        crash(client, "alone")


def test_a_stop_does_not_wait_for_a_group_that_waits_for_its_restart(declare: Declare) -> None:
    slow = 'backoff = { first = "1000s", min = "1000s", max = "1000s", max_failures = 9 }'
    kernel = declare(group("team", member("good") + member("bad", BAD), IN_ORDER, slow))
    with kernel.client() as client:
        kernel.wait_line("bad: exit status 5")

        assert changed(client.stop("good")) == {"good": "stopped"}
        assert client.kill("bad")
        assert states(client, "good", "bad") == {"good": "stopped", "bad": "stopped"}


def test_a_member_that_does_not_start_again_is_failed_and_its_siblings_go_on(declare: Declare, tmp_path: Path) -> None:
    fine = tmp_path / "fine"
    fine.touch()
    program = f'["sh", "-c", "test -e {fine} && exec sleep 1000"]'
    kernel = declare(group("team", member("a") + member("b", program, "sandboxed = false"), TOGETHER))
    with kernel.client() as client:
        fine.unlink()

        refused = client.restart("b")

        assert (refused["code"], refused["error"]) == (
            "unavailable",
            "b did not start: exit status 1 before it was ready",
        )
        assert states(client, *"ab") == {"a": "running", "b": "failed"}
        fine.touch()
        assert changed(client.start("b")) == {"b": "running"}
        assert info(client, "a")["restarts"] == 0


@pytest.mark.parametrize("restart", ["permanent", "temporary"])
def test_a_spawned_agent_can_be_restarted_but_not_stopped_until_a_start(declare: Declare, restart: Any) -> None:
    kernel = declare("")
    with kernel.client() as client:
        up(client.spawn("one", command=["sleep", "1000"], restart=restart))

        assert changed(client.restart("one")) == {"one": "running"}

        assert lives(client, "one") == 2
        for refused in (client.stop("one"), client.start("one")):
            assert (refused["code"], "was spawned" in refused["error"]) == ("bad_request", True)
        assert client.kill("one")
        assert client.restart("one")["code"] == "not_found"


@pytest.mark.parametrize("lines", [(), (TOGETHER,)], ids=["alone", "in a group"])
def test_a_declared_agent_may_end_itself_by_kill(declare: Declare, tmp_path: Path, lines: tuple[str, ...]) -> None:
    (tmp_path / "ends.py").write_text(
        "from agentos_sdk import AgentOSClient\nme = AgentOSClient()\nme.kill(agent_id=me.hello()['agent_id'])\n"
    )
    ends = (None, f'script = "{tmp_path}/ends.py"')
    kernel = declare(group("team", member("ends", *ends) + member("other"), *lines))
    with kernel.client() as client:
        assert in_state(client, "ends", "stopped")["stopped_by"] == "ends"
        assert in_state(client, "other", "running")["restarts"] == 0


def test_an_agent_restarts_neither_itself_nor_what_is_above_it(declare: Declare) -> None:
    kernel = declare("")
    with kernel.client() as client:
        me = relay(kernel, client, "self", permissions="unrestricted")

        refused = ask(client, me, "restart", name="self")

        assert (refused["code"], "can't restart itself" in refused["error"]) == ("bad_request", True)
        assert up(ask(client, me, "hello"))["name"] == "self"


@each_row(
    ("fields", "code"),
    [
        ({"name": "nobody"}, "not_found"),
        ({"names": ["a", "nobody"]}, "not_found"),
        ({}, "bad_request"),
        ({"name": "a", "names": ["a"]}, "bad_request"),
        ({"names": []}, "bad_request"),
        ({"name": "root"}, "not_found"),
        ({"name": "\u00b2"}, "not_found"),
        ({"name": "9" * 5000}, "not_found"),
    ],
    ids=str,
)
@each_row("op", [Op.START, Op.STOP, Op.RESTART])
def test_a_wrong_name_changes_nothing(stoppable: AgentOSClient, op: Op, fields: dict[str, Any], code: str) -> None:
    assert stoppable.request(op, fields)["code"] == code
    assert info(stoppable, "a")["state"] == "running"


@pytest.fixture
def stoppable(declare: Declare) -> Iterator[AgentOSClient]:
    with declare(child("a")).client() as client:
        yield client


def test_a_kept_stop_outlasts_the_kernel_until_start(own_kernel: OwnKernel) -> None:
    """Or until the agent is declared no more, by a reload or in the next kernel."""
    members, gone = member("m") + member("n"), child("gone")
    text = (
        child("kept", SLEEPS, "required = true")
        + child("plain")
        + child("next", SLEEPS, 'after = ["kept"]')
        + group("team", members, TOGETHER)
    )
    kernel = own_kernel(text + gone)
    file = kernel.place / "agentos.toml"
    with kernel.client() as client:
        up(client.stop("gone", keep=True))
        for changed_text in (text, text + gone):
            file.write_text(changed_text)
            up(client.reload())
        in_state(client, "gone", "running")
        names = ["kept", "m", "gone"]
        assert changed(client.stop(names=names, keep=True)) == dict.fromkeys(names, "stopped")
        assert changed(client.stop("plain")) == {"plain": "stopped"}
        assert (info(client, "kept")["kept"], info(client, "plain")["kept"]) == (True, False)
    kernel.kill()
    file.write_text(text)
    kernel.start_again()

    with kernel.client() as client:
        in_state(client, "n", "running")
        in_state(client, "next", "running")
        assert states(client) == {
            "kept": "stopped",
            "plain": "running",
            "next": "running",
            "m": "stopped",
            "n": "running",
        }
        assert (info(client, "kept")["stopped_by"], info(client, "kept")["kept"]) == ("operator", True)
        kernel.wait_line("kept: stopped by operator, until it is started")
        assert changed(client.start("kept")) == {"kept": "running"}
        assert changed(client.restart("m")) == {"m": "running"}
        crash(client, "kept")
    kernel.kill()
    file.write_text(text + gone)
    kernel.start_again()

    with kernel.client() as client:
        assert set(states(client).values()) == {"running"}


def test_starts_by_request_are_no_restarts(declare: Declare) -> None:
    kernel = declare(child("a") + group("team", member("m"), TOGETHER))
    with kernel.client() as client:
        up(client.stop("a"))
        up(client.start("a"))
        up(client.restart(names=["a", "m", "team"]))
        assert [info(client, name)["restarts"] for name in "am"] == [0, 0]

        crash(client, "a")

        assert info(client, "a")["restarts"] == 1


def test_a_stop_that_is_cancelled_beside_another_changes_nothing_of_that(declare: Declare) -> None:
    kernel = declare(child("a") + child("stubborn", STUBBORN, "shutdown = 1000") + group("team", member("z")))
    with kernel.client() as client, kernel.connect() as other:
        in_state(client, "stubborn", "running")
        with kernel.connect() as cancelled:
            cancelled.send(STOP, {"names": ["a", "stubborn"]})
            in_state(client, "stubborn", "stopping")
            other.send(STOP, {"names": ["a", "stubborn", "z"]})
            in_state(client, "z", "stopped")
        until(lambda: kernel.connections == 2, "the first stop is cancelled")
        os.kill(known(client, "stubborn"), signal.SIGKILL)

        assert changed(other.receive().json) == {"a": "stopped", "stubborn": "stopped", "z": "stopped"}
        assert changed(client.start("a")) == {"a": "running"}


def test_a_start_of_what_waits_for_its_restart_does_not_hide_that_restart(declare: Declare) -> None:
    slow = 'backoff = { first = "3s", min = "3s", max = "3s", max_failures = 9 }'
    kernel = declare(group("slow", member("m"), TOGETHER, "intensity = 0", slow))
    with kernel.client() as client:
        os.kill(known(client, "m"), signal.SIGKILL)
        kernel.wait_line("root/slow: given up")
        up(client.start("slow"))
        in_state(client, "m", "running")

        assert info(client, "m")["restarts"] == 1
