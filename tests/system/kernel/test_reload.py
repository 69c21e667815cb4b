"""RELOAD: what goes on, what starts, stops and restarts, what changes as it runs, and what a wrong file does."""

import os
import random
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from agentos_sdk.opcodes import Op
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, until
from tests.support.runs.rounds import is_night, some
from tests.system.agents import RELAY, as_agent, ask, in_state, info, up, written
from tests.system.conftest import Declare
from tests.system.jails import crippled, group_of, need_cgroups
from tests.system.lives.test_containers import BAD, IN_ORDER, SLEEPS, child, group, member, states
from tests.system.lives.test_start_stop import TOGETHER, pids

OTHER = '["sleep", "1001"]'
Changes = dict[str, tuple[str, list[str]]]


def reload(kernel: Kernel, client: AgentOSClient, toml: str, dry_run: bool = False) -> Changes:
    """Write the file and reload it; the changes by name."""
    (kernel.place / "agentos.toml").write_text(toml)
    reply = up(client.reload(dry_run))
    return {one["agent"]: (one["change"], one["fields"]) for one in reply["changes"]}


def kept(before: dict[str, int], after: dict[str, int], *names: str) -> None:
    """These agents have the process that they had."""
    assert {name: after[name] for name in names} == {name: before[name] for name in names}


def test_only_what_differs_is_touched(declare: Declare) -> None:
    kernel = declare(child("stays") + child("goes") + child("other") + child("patient"))
    with kernel.client() as client:
        before, removed = pids(client), info(client, "goes")["id"]
        text = child("stays") + child("other", OTHER) + child("patient", SLEEPS, 'shutdown = "1s"') + child("comes")

        changes = reload(kernel, client, text)

        assert changes == {
            "other": ("restarted", ["command"]),
            "patient": ("updated", ["shutdown"]),
            "comes": ("added", []),
            "goes": ("removed", []),
        }
        in_state(client, "comes", "running")
        in_state(client, "other", "running")
        after = pids(client)
        kept(before, after, "stays", "patient")
        assert after["other"] != before["other"]
        assert (info(client, "goes")["state"], info(client, "goes")["id"]) == ("exited", removed)
        assert client.send_message("hi", to_name="goes")["code"] == "not_found"
        assert client.start("goes")["code"] in ("bad_request", "not_found")
        assert up(client.spawn("goes", command=["sleep", "1000"]))["id"] != removed  # the name is free
        assert reload(kernel, client, text) == {}
    kernel.wait_line("removed goes")


STRANGER = 54321  # a uid


def chown(file: Path) -> None:
    os.chown(file, STRANGER, -1)


def replace_file(file: Path) -> None:
    """As the owner of the directory can, whatever the file's owner."""
    new = file.with_name("new")
    new.write_text(child("a") + child("evil"))
    chown(new)
    new.rename(file)


def replace_by_symlink(file: Path) -> None:
    """To a file of root's."""
    file.rename(file.with_name("roots"))
    file.symlink_to("roots")
    os.lchown(file, STRANGER, -1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("change", [chown, replace_file, replace_by_symlink])
def test_a_file_that_became_another_users_is_not_obeyed(declare: Declare, change: Callable[[Path], None]) -> None:
    kernel = declare(child("a"))
    with kernel.client() as client:
        before = pids(client)
        file = kernel.place / "agentos.toml"
        change(file)

        for dry_run in (True, False):
            reply = client.reload(dry_run)
            assert (reply["code"], f"agentos.toml: belongs to uid {STRANGER}" in reply["error"]) == (
                "bad_request",
                True,
            )

        assert pids(client) == before
        os.lchown(file, 0, -1)
        up(client.reload())
        text = file.read_bytes()
        file.unlink()  # for other tests it is a file of ours, and no link
        file.write_bytes(text)


def test_a_file_with_mistakes_changes_nothing_and_all_are_told(declare: Declare) -> None:
    kernel = declare(child("a") + child("b"))
    with kernel.client() as client:
        before = pids(client)
        (kernel.place / "agentos.toml").write_text(child("a", OTHER, "colour = 3") + child("c", SLEEPS, "args = 5"))

        reply = client.reload()

        assert reply["code"] == "bad_request"
        assert "agentos.toml:4: supervisor.children[0].colour: unknown field" in reply["error"]
        assert "agentos.toml:8: supervisor.children[1].args: expected an array" in reply["error"]
        assert pids(client) == before
        (kernel.place / "agentos.toml").unlink()
        assert "can't be read" in client.reload()["error"]


def test_a_dry_run_says_the_same_and_changes_nothing(declare: Declare) -> None:
    kernel = declare(child("a") + child("b"))
    with kernel.client() as client:
        before, text = pids(client), child("a", OTHER) + child("c")

        told = reload(kernel, client, text, dry_run=True)

        assert pids(client) == before
        assert reload(kernel, client, text) == told


def test_settings_that_need_a_new_kernel_are_told_each_time(declare: Declare) -> None:
    kernel = declare(child("a"))
    with kernel.client() as client:
        changed = (
            '[kernel]\nmax_children = 5\n[logs]\nmax_age = "1d"\n[storage]\nmax_total = "1G"\n[llm]\nconcurrency = 3\n'
        )
        (kernel.place / "agentos.toml").write_text(changed + child("a"))
        keys = ["kernel.max_children", "logs.max_age", "storage.max_total", "llm.concurrency"]
        for _ in range(2):
            reply = up(client.reload())
            assert (reply["changes"], reply["kernel_restart"]) == ([], keys)


def test_a_stopped_agent_stays_stopped_and_has_its_new_program_when_it_is_started(declare: Declare) -> None:
    kernel = declare(child("a") + child("b"))
    with kernel.client() as client:
        up(client.stop("a"))

        assert reload(kernel, client, child("a", '["echo", "new"]', 'restart = "temporary"') + child("b"))

        assert (info(client, "a")["state"], info(client, "a")["stopped_by"]) == ("stopped", "operator")
        client.start("a")
        written(client, "a", "new")


def test_an_agent_that_failed_is_started_by_the_file_that_repairs_it(declare: Declare) -> None:
    kernel = declare(child("bad", BAD, "max_restarts = 0") + child("idle") + group("g", member("m", BAD)))
    with kernel.client() as client:
        in_state(client, "bad", "failed")

        reload(kernel, client, child("bad") + child("idle") + group("g", member("m")))

        assert {in_state(client, name, "running")["state"] for name in ("bad", "m")} == {"running"}


def test_an_added_agent_that_cannot_start_fails_alone(declare: Declare) -> None:
    kernel = declare(child("a") + group("team", member("m"), TOGETHER))
    with kernel.client() as client:
        before = pids(client)
        text = child("a") + child("bad", BAD, "max_restarts = 0")
        text += group("team", member("m") + member("worse", BAD), TOGETHER)

        assert reload(kernel, client, text) == {"bad": ("added", []), "worse": ("added", [])}

        in_state(client, "bad", "failed")
        in_state(client, "worse", "failed")
        kept(before, pids(client), "a", "m")


@pytest.mark.parametrize("strategy", [TOGETHER, IN_ORDER])
def test_members_of_a_group_come_go_and_change_without_their_siblings(declare: Declare, strategy: str) -> None:
    kernel = declare(group("team", member("a") + member("b") + member("c"), strategy))
    with kernel.client() as client:
        before = pids(client)

        changes = reload(kernel, client, group("team", member("d") + member("c") + member("a", OTHER), strategy))

        assert changes == {
            "team": ("updated", ["children"]),
            "d": ("added", []),
            "a": ("restarted", ["command"]),
            "b": ("removed", []),
        }
        assert states(client, *"abcd") == {"a": "running", "b": "exited", "c": "running", "d": "running"}
        kept(before, pids(client), "c")
        before = pids(client)
        up(client.restart("team"))
        assert all(pids(client)[name] != before[name] for name in "acd")


def test_groups_come_and_go_and_change_their_strategy(declare: Declare) -> None:
    kernel = declare(child("a") + group("team", member("b") + member("c")) + group("gone", member("d")))
    with kernel.client() as client:
        before = pids(client)
        text = child("a") + group("team", member("b") + member("c"), TOGETHER) + group("new", member("e"))

        changes = reload(kernel, client, text)

        assert changes["team"] == ("updated", ["strategy"])
        assert {changes[name][0] for name in "bc"} == {"restarted"}
        assert {changes[name][0] for name in ("gone", "d")} == {"removed"}
        assert {changes[name][0] for name in ("new", "e")} == {"added"}
        for name in "bce":
            in_state(client, name, "running")
        kept(before, pids(client), "a")
        assert {info(client, name)["supervisor"] for name in "bc"} == {"root/team"}
        after = pids(client)
        up(client.restart("team"))
        assert all(pids(client)[name] != after[name] for name in "bc")
        assert reload(kernel, client, child("a")).keys() == {"team", "b", "c", "new", "e"}
        kept(before, pids(client), "a")


def test_an_agent_that_moves_to_another_group_keeps_its_id_and_its_mail(declare: Declare) -> None:
    kernel = declare(child("a") + group("team", member("b"), TOGETHER))
    with kernel.client() as client:
        number = info(client, "a")["id"]
        up(client.send_message("kept", to_name="a"))

        assert reload(kernel, client, group("team", member("b") + member("a"), TOGETHER))["a"] == (
            "restarted",
            ["supervisor"],
        )

        in_state(client, "a", "running")
        assert (info(client, "a")["id"], info(client, "a")["supervisor"]) == (number, "root/team")
        with as_agent(kernel, number) as agent:
            assert [message["message"] for message in agent.recv_messages(timeout=0)["messages"]] == ["kept"]


def test_a_name_goes_from_an_agent_to_a_group_and_back(declare: Declare) -> None:
    first, second = child("a") + child("x"), child("a") + group("x", member("b"), TOGETHER)
    kernel = declare(first)
    with kernel.client() as client:
        before = pids(client)
        assert set(reload(kernel, client, second)) == {"x", "b"}
        pid = in_state(client, "b", "running")["pid"]
        up(client.restart("x"))
        assert in_state(client, "b", "running")["pid"] != pid, "the name is the group's, and no more the ended agent's"

        assert set(reload(kernel, client, first)) == {"x", "b"}

        in_state(client, "x", "running")
        assert info(client, "b")["state"] == "exited"
        kept(before, pids(client), "a")


def test_permissions_and_shares_change_as_it_runs(declare: Declare, tmp_path: Path) -> None:
    (tmp_path / "relay.py").write_text(RELAY)
    script = f'script = "{tmp_path}/relay.py"'
    first = child("a", None, script, 'ready = "hello"')
    kernel = declare(first)
    with kernel.client() as client:
        number, before = info(client, "a")["id"], pids(client)
        assert ask(client, number, "tree")["success"]
        up(client.set_permissions(level="standard", agent_id=number))

        assert reload(kernel, client, first + 'shutdown = "2s"\n') == {"a": ("updated", ["shutdown"])}
        assert client.get_permissions(number)["permissions"]["level"] == "standard"  # SET_PERMS holds on
        share = 'llm = { weight = 3, budget = [{ tokens = 50, per = "1h" }] }\n'
        rules = '[permissions.blind]\nlevel = "sandboxed"\ndeny = { calls = ["TREE"] }\n'
        text = first + share + 'permissions = "blind"\n' + rules
        assert reload(kernel, client, text) == {"a": ("updated", ["shutdown", "llm", "permissions"])}

        assert ask(client, number, "tree")["code"] == "permission_denied"
        assert [one["most"] for one in up(client.inspect("a"))["llm"]["budgets"]] == [50]
        assert pids(client) == before


def test_a_set_that_was_given_by_its_name_changes_with_the_file(declare: Declare) -> None:
    sets = '[permissions.wide]\nlevel = "standard"\n'
    kernel = declare(sets)
    with kernel.client() as client:
        ids = [up(client.spawn(name, command=["sleep", "1000"], permissions="wide"))["id"] for name in ("one", "two")]
        with as_agent(kernel, ids[1]) as two:
            up(two.set_permissions({"level": "standard", "deny": {"calls": ["USAGE"]}}))
        reload(kernel, client, sets + child("c"))

        reload(kernel, client, sets + 'deny = { calls = ["TREE"] }\n' + child("c"))

        for number in ids:
            with as_agent(kernel, number) as agent:
                assert agent.tree()["code"] == "permission_denied"
                assert agent.now()


def test_rights_go_at_once_and_come_with_the_next_program(declare: Declare, tmp_path: Path) -> None:
    """Each program here ignores SIGTERM: what the file takes away doesn't wait for the end of any."""
    (tmp_path / "relay.py").write_text(RELAY)
    (tmp_path / "deaf.py").write_text(f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{RELAY}")

    def agent(name: str, program: str, permissions: str, *more: str) -> str:
        patient = 'shutdown = "100s"'
        rights = f'permissions = "{permissions}"'
        return child(name, None, f'script = "{tmp_path}/{program}.py"', 'ready = "hello"', rights, patient, *more)

    narrow = '[permissions.narrow]\nlevel = "standard"\ndeny = { calls = ["TREE"] }\n'
    sets = f'[permissions.wide]\nlevel = "standard"\n{narrow}'
    kernel = declare(
        agent("leaves", "deaf", "wide")
        + agent("same", "deaf", "wide")
        + agent("less", "deaf", "wide", 'isolation = "none"')
        + agent("more", "deaf", "narrow")
        + f'{sets}[mcp.servers.notes]\ncommand = ["cat"]\n'
    )
    share = "llm = { budget = [{ tokens = 50, per = '1h' }] }"
    text = (
        agent("same", "deaf", "narrow", share)
        + agent("less", "relay", "narrow")
        + agent("more", "relay", "wide")
        + sets
    )
    with kernel.client() as client, kernel.connect() as wire:
        ids = {name: info(client, name)["id"] for name in ("same", "less", "more")}
        (kernel.place / "agentos.toml").write_text(text)
        wire.send(Op.RELOAD, {})
        in_state(client, "leaves", "stopping")

        assert {ask(client, number, "tree").get("code") for number in ids.values()} == {"permission_denied"}
        assert [one["most"] for one in up(client.inspect("same"))["llm"]["budgets"]] == [50]
        assert client.tools("notes")["code"] == "not_found"
        os.kill(info(client, "leaves")["pid"], signal.SIGKILL)
        in_state(client, "less", "stopping")
        assert ask(client, ids["less"], "tree")["code"] == "permission_denied"
        os.kill(info(client, "less")["pid"], signal.SIGKILL)
        in_state(client, "more", "stopping")
        assert ask(client, ids["more"], "tree")["code"] == "permission_denied"
        os.kill(info(client, "more")["pid"], signal.SIGKILL)
        in_state(client, "more", "running")
        assert ask(client, ids["more"], "tree")["success"]


def test_limits_of_a_cgroup_change_as_it_runs(declare: Declare) -> None:
    kernel = declare(child("a", SLEEPS, 'limits = { memory = "64M", disk = "10M" }'))
    version = need_cgroups(kernel)
    with kernel.client() as client:
        before = pids(client)
        limits = 'limits = { memory = "200M", disk = "10M", max_pids = 20, cpu_quota = "50%" }'

        changes = reload(kernel, client, child("a", SLEEPS, limits))

        assert changes == {"a": ("updated", ["limits.memory", "limits.max_pids", "limits.cpu_quota"])}
        assert pids(client) == before
        file = {1: "memory.limit_in_bytes", 2: "memory.max"}[version]
        assert (group_of(before["a"], "memory") / file).read_text().strip() == str(200 << 20)
        found = up(client.inspect("a"))
        assert (found["limits"]["memory"], found["isolation"]["layers"]["memory"]["asked"]) == (200 << 20, 200 << 20)
        assert str(200 << 20) in found["isolation"]["layers"]["memory"]["evidence"]
        more = child("a", SLEEPS, limits.replace("10M", "20M"))
        assert reload(kernel, client, more) == {"a": ("restarted", ["limits.disk"])}


def test_a_memory_limit_below_what_is_in_use_restarts_the_agent(declare: Declare) -> None:
    holds = (
        """["python3", "-c", "held = b'x' * (100 << 20); print('has it', flush=True); import time; time.sleep(1000)"]"""
    )
    kernel = declare(child("a", holds))
    need_cgroups(kernel)
    with kernel.client() as client:
        written(client, "a", "has it")
        before = pids(client)

        changes = reload(kernel, client, child("a", holds, 'limits = { memory = "32M" }'))

        assert changes == {"a": ("restarted", ["limits.memory"])}
        until(lambda: "memory limit 32M reached" in kernel.said, "its new life has the limit")
        assert pids(client) != before


@pytest.mark.usefixtures("kernels")
def test_a_watched_memory_limit_changes_as_it_runs(tmp_path: Path) -> None:
    grows = tmp_path / "grows.py"
    grows.write_text(
        "import signal\nheld = b'x' * (50 << 20)\nprint('has it', flush=True)\nsignal.sigwait([signal.SIGUSR1])\n"
    )
    first = child("a", None, f'script = "{grows}"', 'limits = { memory = "100M" }', 'restart = "temporary"')
    with crippled("--hide", "/sys/fs/cgroup", toml=first) as kernel, kernel.client() as client:
        written(client, "a", "has it")

        assert reload(kernel, client, first.replace("100M", "150M")) == {"a": ("updated", ["limits.memory"])}
        assert info(client, "a")["restarts"] == 0
        assert reload(kernel, client, first.replace("100M", "30M")) == {"a": ("updated", ["limits.memory"])}

        until(lambda: "memory limit 30M reached (watched" in kernel.said, "the watcher has the new figure")
        assert reload(kernel, client, first.replace("100M", "900M")) == {"a": ("updated", ["limits.memory"])}


def test_restart_limits_change_as_it_runs(declare: Declare) -> None:
    crash = '["sh", "-c", "sleep 1; exit 1"]'
    kernel = declare(child("a", crash, 'max_restarts = "unlimited"', "backoff = { first = 1, max = 1 }"))
    with kernel.client() as client:
        until(lambda: info(client, "a")["restarts"] >= 1, "it was restarted")

        assert reload(kernel, client, child("a", crash, "max_restarts = 1"))["a"][0] == "updated"

        in_state(client, "a", "failed")


def test_the_order_of_the_file_holds_for_agents_that_a_reload_starts(declare: Declare, tmp_path: Path) -> None:
    kernel = declare(child("db", SLEEPS, "sandboxed = false") + child("web"))
    with kernel.client() as client:
        script = tmp_path / "db.py"
        script.write_text(
            f"import os, time\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.05)\n"
            "from agentos_sdk import AgentOSClient\nAgentOSClient().hello()\ntime.sleep(1000)\n"
        )
        slow = child("db", None, f'script = "{script}"', 'ready = "hello"', "sandboxed = false")

        reload(kernel, client, slow + child("web", OTHER, 'after = ["db"]'))

        assert info(client, "web")["pid"] is None
        (tmp_path / "go").touch()
        in_state(client, "web", "running")
        assert info(client, "db")["state"] == "running"


def test_a_required_agent_that_is_added_and_does_not_come_up_ends_the_kernel(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(child("a"))
    with kernel.client() as client:
        reload(kernel, client, child("a") + child("bad", BAD, "required = true", "max_restarts = 0"))
    kernel.wait_line("bad is required, and it was given up")
    assert kernel.wait_end() == 1


@pytest.mark.usefixtures("kernels")
def test_a_start_that_waits_for_what_the_file_no_longer_says_begins_anew() -> None:
    """And the kernel waits for no required agent that is removed."""
    first = child("a", SLEEPS, 'ready = "hello"', "required = true") + child("b", SLEEPS, 'after = ["a"]')
    kernel = Kernel(first + child("c") + child("gone", SLEEPS, 'ready = "hello"', "required = true"))
    try:
        kernel.wait_line("c: running")
        with kernel.client() as client:
            text = child("a", SLEEPS, 'ready = "hello"') + child("b") + child("c")
            assert reload(kernel, client, text) == {
                "a": ("updated", ["required"]),
                "b": ("restarted", ["after"]),
                "gone": ("removed", []),
            }
            in_state(client, "b", "running")
            assert reload(kernel, client, child("a") + child("b") + child("c")) == {"a": ("restarted", ["ready"])}
        kernel.wait_ready()
        kernel.stop()
    finally:
        kernel.clean_up()


def test_sighup_reloads_where_there_is_no_terminal(declare: Declare) -> None:
    kernel = declare(child("a"))
    (kernel.place / "agentos.toml").write_text(child("a") + child("hup", SLEEPS, "colour = 3"))
    kernel.process.send_signal(signal.SIGHUP)
    kernel.wait_line("nothing was reloaded: .*agentos.toml:7: supervisor.children.1..colour: unknown field")
    (kernel.place / "agentos.toml").write_text(child("a") + child("hup"))

    kernel.process.send_signal(signal.SIGHUP)

    kernel.wait_line("added hup")
    with kernel.client() as client:
        in_state(client, "hup", "running")

        def outcomes() -> list[str]:
            entries = client.get_audit_log("agents", limit=1000)["entries"]
            found = [one for one in entries if (one["call"], one["about"]) == ("CONFIG_RELOADED", "hup added")]
            return [one["outcome"] for one in found]

        until(lambda: outcomes() == ["ok"], "the reload is in the audit", show=outcomes)


def test_a_name_that_a_spawned_agent_has_is_a_mistake(declare: Declare) -> None:
    kernel = declare(child("a"))
    with kernel.client() as client:
        number = up(client.spawn("b", command=["sleep", "1000"]))["id"]
        (kernel.place / "agentos.toml").write_text(child("b") + child("c"))

        reply = client.reload()

        assert (reply["code"], f"the name 'b' is taken by a caller with the id {number}" in reply["error"]) == (
            "bad_request",
            True,
        )
        assert states(client, *"ab") == {"a": "running", "b": "running"}


def test_without_a_file_there_is_nothing_to_reload(own_kernel: OwnKernel) -> None:
    with own_kernel(None).client() as client:
        assert "without a configuration file" in client.reload()["error"]


def test_an_agent_that_is_restarted_by_its_own_request_ends_well(declare: Declare, tmp_path: Path) -> None:
    (tmp_path / "relay.py").write_text(RELAY)
    mine = child("a", None, f'script = "{tmp_path}/relay.py"', 'permissions = "unrestricted"', 'ready = "hello"')
    kernel = declare(mine + child("b"))
    with kernel.client() as client:
        (kernel.place / "agentos.toml").write_text(mine + 'env = { X = "1" }\n' + child("b", OTHER))
        before = pids(client)

        up(client.send_message({"method": "reload", "with": {}}, to_name="a"))

        until(lambda: "restarted a (env)" in kernel.said, "it has reloaded")
        in_state(client, "a", "running")
        in_state(client, "b", "running")
        after = pids(client)
        assert not {after[name] for name in "ab"} & {before[name] for name in "ab"}


def test_a_client_that_goes_away_leaves_nothing_half_done(declare: Declare) -> None:
    deaf = '["sh", "-c", "trap : TERM; while :; do sleep 0.1; done"]'
    kernel = declare(child("deaf", deaf, 'shutdown = "2s"') + child("b"))
    with kernel.client() as client:
        (kernel.place / "agentos.toml").write_text(child("b", OTHER) + child("c"))
        with kernel.connect() as wire:
            wire.send(Op.RELOAD, {})
            until(lambda: info(client, "deaf")["state"] == "stopping", "the reload has begun")

        in_state(client, "c", "running")
        in_state(client, "b", "running")
        assert info(client, "deaf")["state"] == "exited"


ORDERED = '[supervisor]\nstrategy = "rest_for_one"\nintensity = 1000\n'
FILES = (
    child("a") + group("team", member("b") + member("c"), TOGETHER, "intensity = 1000") + child("d"),
    child("a", OTHER) + group("team", member("c") + member("b", OTHER), TOGETHER, "intensity = 1000") + child("e"),
    child("b") + group("team", member("a") + member("c")) + child("d", SLEEPS, 'shutdown = "1s"'),
    group("team", member("c"), IN_ORDER, "intensity = 1000") + child("a", SLEEPS, "max_restarts = 7"),
    ORDERED + child("c") + group("team", member("a") + member("b"), TOGETHER, "intensity = 1000") + child("d", OTHER),
)


@pytest.mark.parametrize("seed", some(range(3), 1))
def test_a_storm_of_reloads_and_requests_ends_well(own_kernel: OwnKernel, seed: int) -> None:
    """Each request is answered, and the tree is that of the last file, with all agents in it startable."""
    kernel, file = own_kernel(FILES[0]), threading.Lock()
    allowed = {None, "unavailable", "bad_request", "not_found"}

    def work(number: int) -> set[Any]:
        chance, codes = random.Random(f"{seed} {number}"), set[Any]()
        with kernel.client() as client:
            for _ in range(8 if is_night() else 5):
                if number < 2:
                    with file:
                        (kernel.place / "agentos.toml").write_text(chance.choice(FILES))
                        codes.add(client.reload().get("code"))
                else:
                    op = chance.choice([Op.START, Op.STOP, Op.RESTART, Op.KILL])
                    name = chance.choice(["a", "b", "c", "d", "e"] + ["team"] * (op is not Op.KILL))
                    codes.add(client.request(op, {"name": name}).get("code"))
        return codes

    with ThreadPoolExecutor(6) as threads:
        found = set[Any]().union(*threads.map(work, range(6)))

    assert found <= allowed
    with kernel.client() as client:
        reload(kernel, client, FILES[1])
        up(client.start(names=["a", "e", "team"]))
        for name in "abce":
            in_state(client, name, "running")
        assert info(client, "d")["state"] in ("exited", "stopped")
        assert reload(kernel, client, FILES[0])
        up(client.start(names=["a", "d", "team"]))
        for name in "abcd":
            in_state(client, name, "running")
    assert "bug " not in kernel.said
