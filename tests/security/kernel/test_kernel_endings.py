"""An agent ends at the worst moment, or doesn't want to; or ends again and again."""

import os

import pytest

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.security.hostile import attack, begin, told
from tests.support.kernel import Kernel, until
from tests.support.wire import PATIENCE
from tests.system.agents import info, up
from tests.system.jails import groups_left

QUICK = {
    "at once": ["true"],
    "by SIGKILL": ["sh", "-c", "kill -9 $$"],
    "by SIGSEGV": ["sh", "-c", "kill -11 $$"],
    "killing all": ["sh", "-c", "kill -9 -1"],
    "stopped": ["sh", "-c", "kill -STOP $$"],
    "nowhere": ["/workspace/no-such-program"],
}


@pytest.mark.parametrize("ending", QUICK)
def test_an_agent_that_ends_while_it_is_made_leaves_nothing(kernel: Kernel, client: AgentOSClient, ending: str) -> None:
    files, groups = kernel.open_files, groups_left(kernel.pid)

    for _ in range(10):
        client.spawn("brief", command=QUICK[ending])
        client.kill("brief", grace=0)

    until(lambda: kernel.family == [], f"nobody is left: {kernel.family}")
    until(lambda: kernel.open_files - files < 4, "its files are closed, but for connections")
    until(lambda: groups_left(kernel.pid) == groups, "its control groups are removed")
    assert kernel.answers()


DEAF = {
    "ignores SIGTERM": "for number in set(range(1, 32)) - {9, 19}: signal.signal(number, signal.SIG_IGN)",
    "stops itself": "say([]); os.kill(os.getpid(), signal.SIGSTOP)",
    "stops its children and itself": "os.fork(); say([]); os.kill(0, signal.SIGSTOP)",
    "forks as it dies": "signal.signal(15, lambda *_: [os.fork() for _ in range(3)])",
    "blocks all": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
}


@pytest.mark.parametrize("how", DEAF)
def test_an_agent_that_will_not_end_is_ended(kernel: Kernel, client: AgentOSClient, how: str) -> None:
    begin(kernel, client, "deaf", f"{DEAF[how]}\nsay([])", shutdown=3600)
    told(client, "deaf")

    assert client.kill("deaf", grace=0.3)

    assert info(client, "deaf")["state"] == "exited"
    assert kernel.family == []


def test_an_agent_that_dies_with_its_pipe_open_is_over_and_takes_its_children_along(
    kernel: Kernel, client: AgentOSClient
) -> None:
    code = """
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True: time.sleep(1); print("still here", flush=True)
        os._exit(0)
say([]); time.sleep(1); os._exit(7)
"""
    begin(kernel, client, "parent", code)

    end = client.wait("parent", timeout=PATIENCE)

    assert end["exit_code"] == 7
    assert kernel.family == []


@pytest.mark.usefixtures("any_user")
def test_restarts_without_end_come_to_an_end(kernel: Kernel, client: AgentOSClient) -> None:
    up(client.spawn("phoenix", command=["sh", "-c", "sleep 1; exit 1"], restart="permanent", max_restarts=3))

    end = client.wait("phoenix", timeout=PATIENCE)

    assert end["success"]
    assert info(client, "phoenix")["state"] == "failed"
    assert info(client, "phoenix")["restarts"] <= 3


@pytest.mark.usefixtures("any_user")
def test_no_agent_spawns_faster_than_the_kernel_allows(own_kernel: OwnKernel) -> None:
    kernel = own_kernel("[kernel]\nspawn_rate = 5\nmax_children = 8\n")
    code = """
counts, began, codes = [0, 0], time.monotonic(), set()
for number in range(10000):
    reply = ask(SPAWN, dict(name=f"child-{number}", command=["true"] if number % 2 else ["sleep", "1000"]))
    started = reply["success"] or reply.get("exit_code") is not None
    counts[started] += 1
    if not started: codes.add(reply["code"])
    if time.monotonic() - began > 3 and counts[0] >= 10: break
say([counts, time.monotonic() - began, sorted(codes)])
"""
    with kernel.client() as client:
        begin(kernel, client, "breeder", code)
        (refused, started), seconds, codes = told(client, "breeder")

        assert codes == ["quota_exceeded"]
        assert refused >= 10
        assert started <= 5 * seconds + 5 + 1
        assert len([one for one in client.list_agents() if one["running"]]) <= 1 + 8
        assert kernel.answers()


def test_the_pid_of_an_agent_that_has_ended_is_not_used_any_more(kernel: Kernel, client: AgentOSClient) -> None:
    """Whoever has it now isn't signalled, whatever is asked of the agent that had it."""
    agent = up(client.spawn("gone", command=["sleep", "1"]))
    client.wait("gone", timeout=PATIENCE)

    assert not client.kill(agent_id=agent["id"], grace=0)
    assert not client.pause(agent_id=agent["id"])["success"]
    assert not client.exec("id", agent_id=agent["id"])["success"]
    assert [one["pid"] for one in client.list_agents(all=True) if one["id"] == agent["id"]] == [None]


def test_an_agents_own_numbers_mean_nothing_outside(kernel: Kernel, client: AgentOSClient) -> None:
    reply = attack(
        kernel, client, "forger", f"say([ask(KILL, dict(id={os.getpid()})), ask(KILL, dict(id={kernel.pid}))])"
    )

    assert [one["killed"] for one in reply] == [False, False]
