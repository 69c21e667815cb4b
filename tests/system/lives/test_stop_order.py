"""The end of a kernel, and STOP of several names: agents that don't depend on each other stop at the same time."""

import signal
from pathlib import Path

import pytest

from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, until
from tests.system.agents import in_state, up
from tests.system.lives.test_containers import IN_ORDER, child, group, member

NAMES = [f"a{number}" for number in range(12)]

MEET = f"""
trap 'touch asked-$AGENTOS_AGENT_NAME' TERM
touch up-$AGENTOS_AGENT_NAME
while [ "$(ls asked-* 2>/dev/null | wc -l)" -lt {len(NAMES)} ]; do sleep 0.05; done
echo met
"""
"""Ends by SIGTERM only when each of the twelve has got one; stopped one by one, the first would be killed."""


def twelve(place: Path) -> str:
    (place / "meet.sh").write_text(MEET)
    lines = ("sandboxed = false", f'cwd = "{place}"', 'shutdown = "60s"')
    return "".join(child(name, f'["sh", "{place}/meet.sh"]', *lines) for name in NAMES)


def wait_until_up(place: Path) -> None:
    until(lambda: len([*place.glob("up-*")]) == len(NAMES), "all twelve have set their traps")


def stops(kernel: Kernel) -> list[str]:
    return [line.split("| ")[1].split(":")[0] for line in kernel.lines if ": stopped" in line]


def test_a_kernel_stops_independent_agents_at_the_same_time(own_kernel: OwnKernel, tmp_path: Path) -> None:
    kernel = own_kernel(twelve(tmp_path))
    wait_until_up(tmp_path)

    kernel.process.send_signal(signal.SIGTERM)

    assert kernel.wait_end() == 0
    assert sum("met" in line for line in kernel.lines) == len(NAMES)


def test_stop_of_several_names_stops_them_at_the_same_time(own_kernel: OwnKernel, tmp_path: Path) -> None:
    kernel = own_kernel(twelve(tmp_path) + child("beside"))
    wait_until_up(tmp_path)
    with kernel.client() as client:
        stopped = up(client.stop(names=NAMES))

        assert {agent["state"] for agent in stopped["agents"]} == {"stopped"}
        in_state(client, "beside", "running")
    until(lambda: sum("met" in line for line in kernel.lines) == len(NAMES), "each ended by itself")


@pytest.mark.parametrize("by_name", [False, True])
def test_what_depends_on_an_agent_has_ended_before_it_is_stopped(own_kernel: OwnKernel, by_name: bool) -> None:
    team = group("team", member("first") + member("second"), IN_ORDER)
    kernel = own_kernel(
        child("db") + child("web", '["sleep", "1000"]', 'after = ["team"]') + team
        + child("api", '["sleep", "1000"]', 'after = ["db", "web"]')
    )  # fmt: skip
    with kernel.client() as client:
        for name in ("db", "web", "first", "second", "api"):
            in_state(client, name, "running")
        if by_name:
            up(client.stop(names=["db", "team", "web", "api"]))
    if not by_name:
        kernel.process.send_signal(signal.SIGTERM)
        assert kernel.wait_end() == 0

    until(lambda: {"db", "first"} <= {*stops(kernel)}, "all have stopped")
    order = [*dict.fromkeys(stops(kernel))]
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
