"""The end of a kernel, and STOP of several names: agents that don't depend on each other stop at the same time."""

import signal
from pathlib import Path

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, until
from tests.system.agents import in_state, up
from tests.system.lives.test_containers import IN_ORDER, child, group, member

NAMES = [f"a{number}" for number in range(4)]

MEET = f"""
trap 'touch asked-$AGENTOS_AGENT_NAME' TERM
touch up-$AGENTOS_AGENT_NAME
while [ "$(ls asked-* 2>/dev/null | wc -l)" -lt {len(NAMES)} ]; do sleep 0.05; done
echo met
"""
"""Ends by SIGTERM only when each of them has got one; stopped one by one, the first would be killed."""


def all_that_meet(place: Path) -> str:
    (place / "meet.sh").write_text(MEET)
    lines = ("sandboxed = false", f'cwd = "{place}"', 'shutdown = "60s"')
    return "".join(child(name, f'["sh", "{place}/meet.sh"]', *lines) for name in NAMES)


def wait_until_up(place: Path) -> None:
    until(lambda: len([*place.glob("up-*")]) == len(NAMES), "all have set their traps")


def count_met(kernel: Kernel) -> int:
    return sum("met" in line for line in kernel.lines)


def stops(kernel: Kernel, since: int = 0) -> dict[str, None]:
    """The names of the agents that have stopped, in order."""
    return {line.split("| ")[1].split(":")[0]: None for line in kernel.lines[since:] if ": stopped" in line}


def test_agents_without_an_order_stop_at_the_same_time_by_name_and_with_the_kernel(
    own_kernel: OwnKernel, tmp_path: Path
) -> None:
    kernel = own_kernel(all_that_meet(tmp_path) + child("beside"))
    wait_until_up(tmp_path)
    with kernel.client() as client:
        stopped = up(client.stop(names=NAMES))

        assert {agent["state"] for agent in stopped["agents"]} == {"stopped"}
        in_state(client, "beside", "running")
        until(lambda: count_met(kernel) == len(NAMES), "each ended by itself")
        for file in (*tmp_path.glob("up-*"), *tmp_path.glob("asked-*")):
            file.unlink()
        up(client.start(names=NAMES))
    wait_until_up(tmp_path)

    kernel.process.send_signal(signal.SIGTERM)

    assert kernel.wait_end() == 0
    assert count_met(kernel) == 2 * len(NAMES)


def test_what_depends_on_an_agent_has_ended_before_it_is_stopped(own_kernel: OwnKernel) -> None:
    """By name, and with the kernel."""

    def wait_until_running(client: AgentOSClient) -> None:
        for name in ("db", "web", "first", "second", "api"):
            in_state(client, name, "running")

    team = group("team", member("first") + member("second"), IN_ORDER)
    kernel = own_kernel(
        child("db") + child("web", '["sleep", "1000"]', 'after = ["team"]') + team
        + child("api", '["sleep", "1000"]', 'after = ["db", "web"]')
    )  # fmt: skip
    with kernel.client() as client:
        wait_until_running(client)
        up(client.stop(names=["db", "team", "web", "api"]))
        until(lambda: stops(kernel).keys() >= {"db", "first"}, "all have stopped")
        orders, since = [[*stops(kernel)]], len(kernel.lines)
        up(client.start(names=["db", "team", "web", "api"]))
        wait_until_running(client)
    kernel.process.send_signal(signal.SIGTERM)
    assert kernel.wait_end() == 0

    for order in (*orders, [*stops(kernel, since)]):
        assert order[0] == "api"
        assert order.index("web") < order.index("second") < order.index("first")


def test_a_kernel_ends_when_its_time_is_over_whatever_an_agent_does(own_kernel: OwnKernel, tmp_path: Path) -> None:
    deaf = f"trap '' TERM; touch {tmp_path}/up; while :; do sleep 1; done"
    kernel = own_kernel(
        '[kernel]\nstop_timeout = "500ms"\n'
        + child("deaf", f'["sh", "-c", "{deaf}"]', "sandboxed = false", 'shutdown = "infinity"')
    )
    until((tmp_path / "up").exists, "it has set its trap")

    kernel.process.send_signal(signal.SIGTERM)

    assert kernel.wait_end() == 0
    assert any("after kernel.stop_timeout (0.5 s), killing what still runs" in line for line in kernel.lines)
