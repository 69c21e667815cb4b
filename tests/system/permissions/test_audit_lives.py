"""Lives of agents in the audit log: starts, ends, restarts, giving up, failed checks; and messages as counts."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from agentos.agents.life.entries import ENTRIES_PER_SECOND, MAX_BURST
from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, shared, until
from tests.support.runs.enter import let_in
from tests.support.wire import PATIENCE
from tests.system.agents import in_state, info, known, relay, up
from tests.system.lives.test_containers import child
from tests.system.lives.test_health import BACKOFF, HANGS, HELLO, WATCHED, script

LIVES = ("AGENT_READY", "AGENT_UNHEALTHY", "AGENT_EXITED", "AGENT_RESTARTING", "AGENT_FAILED", "AGENT_STOPPED")


def lives(client: AgentOSClient, name: str) -> list[dict[str, Any]]:
    """The entries about an agent's lives, oldest first."""
    entries = client.get_audit_log("agents", limit=1000)["entries"]
    return [entry for entry in entries if entry["name"] == name and entry["call"] in LIVES]


def wait_for_life(client: AgentOSClient, name: str, call: str) -> list[dict[str, Any]]:
    until(lambda: any(entry["call"] == call for entry in lives(client, name)), f"{call} of {name} is written")
    return lives(client, name)


@pytest.fixture(scope="module")
def kernel(kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    crashes = child("crashes", '["sh", "-c", "sleep 1; exit 3"]', "backoff = { first = 0.1 }", "max_restarts = 1")
    code = tmp_path_factory.mktemp("code")
    let_in(code, tmp_path_factory.getbasetemp())
    hangs = child("hangs", None, script(code, "hangs", HANGS), HELLO, WATCHED, "max_restarts = 0")
    with shared(crashes + hangs + child("sleeps")) as started:
        yield started


def test_a_declared_agent_is_followed_from_its_start_until_it_is_given_up(kernel: Kernel) -> None:
    with kernel.client() as client:
        number = in_state(client, "crashes", "failed")["id"]
        found = wait_for_life(client, "crashes", "AGENT_FAILED")

    assert [(entry["call"], entry["outcome"]) for entry in found] == [
        ("AGENT_READY", "ok"),
        ("AGENT_EXITED", "failed"),
        ("AGENT_RESTARTING", "ok"),
        ("AGENT_READY", "ok"),
        ("AGENT_EXITED", "failed"),
        ("AGENT_FAILED", "failed"),
    ]
    first, end, restart, second, *_, given_up = found
    assert {(entry["agent_id"], entry["kind"], entry["category"]) for entry in found} == {(number, "agent", "agents")}
    assert first["about"].startswith("life 1, pid ")
    assert second["about"].startswith("life 2, pid ")
    assert (end["about"], end["duration"] >= 1) == ("exit status 3", True)
    assert restart["about"].endswith("s, failure 1 in a row")
    assert "2 restarts in 60 s were needed" in given_up["about"]


def test_a_hung_agent_and_one_stopped_by_the_operator_are_in_it(kernel: Kernel) -> None:
    with kernel.client() as client:
        up(client.stop("sleeps"))
        stopped = [(entry["call"], entry["about"]) for entry in wait_for_life(client, "sleeps", "AGENT_STOPPED")]
        assert stopped[1:] == [("AGENT_EXITED", "stopped: killed by SIGTERM"), ("AGENT_STOPPED", "by operator")]

        found = {entry["call"]: entry for entry in wait_for_life(client, "hangs", "AGENT_FAILED")}
        assert found["AGENT_UNHEALTHY"]["about"] == "watchdog: no call for 1 s"
        assert found["AGENT_EXITED"]["about"] == "killed: watchdog: no call for 1 s"


def test_an_agent_that_reaches_a_limit_is_noted_with_it(kernel: Kernel) -> None:
    leaks = "kept = []\nwhile True: kept.append(bytearray(b'x' * (1 << 20)))\n"
    (kernel.place / "leaks.py").write_text("import time\ntime.sleep(1)\n" + leaks)
    with kernel.client() as client:
        up(client.spawn("leaks", str(kernel.place / "leaks.py"), limits={"memory": "64M"}))
        client.wait("leaks", timeout=PATIENCE)
        end = wait_for_life(client, "leaks", "AGENT_EXITED")[-1]
        assert end["outcome"] == "failed"
        assert end["about"] == info(client, "leaks")["end"]


def test_a_crash_loop_does_not_flood_the_log(own_kernel: OwnKernel) -> None:
    """Hundreds of lives a minute, of which the first are written and the rest counted."""
    often = ('max_restarts = "unlimited"', "backoff = { min = 0.01, factor = 1.001, max = 1 }")
    fast = child("loop", '["false"]', 'isolation = "none"', 'ready = "hello"', *often)
    began, kernel = time.monotonic(), own_kernel(fast)
    with kernel.client() as client:
        until(lambda: info(client, "loop")["restarts"] > 130, "it has crashed often")
        written = len([entry for entry in lives(client, "loop") if entry["call"] == "AGENT_EXITED"])
        restarts, took = info(client, "loop")["restarts"], time.monotonic() - began
    kernel.stop()
    kernel.start_again()
    kernel.wait_ready()

    assert written <= MAX_BURST + ENTRIES_PER_SECOND * took + 1
    with kernel.client() as client:
        ends = [entry for entry in lives(client, "loop") if entry["call"] == "AGENT_EXITED"]
        assert sum(entry["repeated"] for entry in ends) >= restarts
        assert max(entry["repeated"] for entry in ends) > 1


def test_a_program_that_ran_is_noted_as_such_and_one_that_did_not_is_not(kernel: Kernel) -> None:
    with kernel.client() as client:
        assert client.spawn("short", command=["sh", "-c", "exit 3"])["code"] == "unavailable"
        assert client.spawn("absent", command=["nosuchprog"])["code"] == "not_found"

        def outcomes() -> list[dict[str, Any]]:
            entries = client.get_audit_log("agents", client.hello()["agent_id"])["entries"]
            return [entry for entry in entries if (entry["call"], entry["phase"]) == ("SPAWN", "outcome")]

        until(lambda: len(outcomes()) == 2, "both outcomes are written")
        ran, absent = outcomes()
        assert ran["outcome"] == "ended"
        assert ran["about"] == "short: sh -c exit 3 (it ran: exit status 3 before it was ready)"
        assert (absent["outcome"], absent["about"]) == ("not_found", "absent: nosuchprog")


def test_messages_are_counted_by_peer_and_written_when_the_kernel_ends(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    with kernel.client() as client:
        agent = relay(kernel, client, "echo")
        for _ in range(5):
            up(client.send_message({"method": "hello"}, to=agent))
            client.recv_messages(1, timeout=PATIENCE)
    kernel.stop()
    kernel.start_again()
    kernel.wait_ready()

    with kernel.client() as client:
        entries = client.get_audit_log("messages")["entries"]
    assert {(entry["name"], entry["call"], entry["about"], entry["repeated"]) for entry in entries} == {
        ("operator", "SEND", "to echo", 5),
        ("operator", "RECV", "from echo", 5),
        ("echo", "SEND", "to operator", 5),
        ("echo", "RECV", "from operator", 5),
    }


def test_agents_live_on_while_the_log_is_gone(own_kernel: OwnKernel) -> None:
    """Notes never hold up what they are about."""
    kernel = own_kernel(child("comes", '["sleep", "1000"]', BACKOFF))
    with kernel.client() as client:
        for segment in (kernel.state_dir / "audit").iterdir():
            segment.unlink()
        os.kill(known(client, "comes"), signal.SIGKILL)
        until(lambda: info(client, "comes")["restarts"] == 1, "it comes back")
