"""Groups of real processes: who is restarted with whom, and what a supervisor further up makes of it."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentos_sdk import AgentOSClient
from agentos_sdk.opcodes import Op
from tests.conftest import OwnKernel
from tests.support.kernel import until
from tests.support.wire import PATIENCE
from tests.system.agents import in_state, info, known, up

NAMES = ("a", "b", "c")


def group(strategy: str, **more: str) -> str:
    """Three agents under one supervisor of that strategy."""
    head = "".join(f"{key} = {value}\n" for key, value in more.items())
    children = "".join(f'[[supervisor.children]]\nname = "{name}"\ncommand = ["sleep", "1000"]\n' for name in NAMES)
    return f'[supervisor]\nstrategy = "{strategy}"\nintensity = 10\nperiod = 60\n{head}{children}'


def restarts(client: AgentOSClient, names: Sequence[str] = NAMES) -> list[int]:
    return [info(client, name)["restarts"] for name in names]


@pytest.mark.parametrize(
    ("strategy", "expected"), [("one_for_one", [0, 1, 0]), ("rest_for_one", [0, 1, 1]), ("one_for_all", [1, 1, 1])]
)
def test_a_crash_restarts_the_siblings_that_the_strategy_names(
    own_kernel: OwnKernel, strategy: str, expected: list[int]
) -> None:
    kernel = own_kernel(group(strategy))
    with kernel.client() as client:
        before = {name: info(client, name) for name in NAMES}

        os.kill(known(client, "b"), signal.SIGKILL)

        until(lambda: restarts(client) == expected, f"restarts are {expected}")
        for name in NAMES:
            in_state(client, name, "running")
            assert info(client, name)["id"] == before[name]["id"]
            assert (info(client, name)["pid"] == before[name]["pid"]) == (info(client, name)["restarts"] == 0)


def test_a_crash_in_a_root_of_one_for_all_ends_what_was_spawned_by_hand(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(group("one_for_all"))
    with kernel.client() as client:
        up(client.spawn("by-hand", command=["sleep", "1000"], restart="permanent"))

        os.kill(known(client, "b"), signal.SIGKILL)

        assert client.wait("by-hand", timeout=PATIENCE)["reason"] == "stopped: killed by SIGTERM"
        until(lambda: restarts(client) == [1, 1, 1], "the group is restarted")
        in_state(client, "by-hand", "exited")


def test_groups_start_in_order_and_stop_in_reverse(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(group("one_for_all"))

    kernel.process.send_signal(signal.SIGTERM)
    assert kernel.wait_end() == 0

    def order(event: str) -> list[str]:
        return [line.split("| ")[1].split(":")[0] for line in kernel.lines if event in line]

    assert order(": running") == ["a", "b", "c"]
    assert order(": stopped") == ["c", "b", "a"]


NESTED = """
[supervisor]
intensity = 3
period = 60
[[supervisor.children]]
name = "inner"
type = "supervisor"
strategy = "one_for_all"
intensity = 1
period = 60
[[supervisor.children.children]]
name = "weak"
command = ["sleep", "1000"]
{weak}
[[supervisor.children.children]]
name = "sound"
command = ["sleep", "1000"]
[[supervisor.children]]
name = "aside"
command = ["sleep", "1000"]
"""


def test_a_group_that_gave_up_comes_back_by_the_supervisor_above(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(NESTED.format(weak=""))
    with kernel.client() as client, kernel.connect() as waiting:
        weak = info(client, "weak")["id"]
        up(client.send_message("kept", to_name="weak"))
        waiting.send(0x13, {"name": "weak"})

        for lives in range(1, 4):
            os.kill(known(client, "weak"), signal.SIGKILL)
            until(lambda n=lives: info(client, "weak")["restarts"] == n, "it is back")  # type: ignore[misc]
            in_state(client, "sound", "running")

        kernel.wait_line("inner: given up")
        assert info(client, "weak")["id"] == weak
        assert restarts(client, ("weak", "sound", "aside")) == [3, 3, 0]
        assert waiting.is_silent()  # WAIT is for an end for good, and it has come back
        assert "'kept'" not in kernel.said
        assert up(client.send_message("more", to_name="weak"))["delivered_to"] == weak
        client.kill("weak")
        assert waiting.receive().json["signal"] == signal.SIGTERM


def test_what_orphans_a_life_leaves_are_not_taken_for_the_next_life(own_kernel: OwnKernel) -> None:
    """A sweep after one life must spare the one that begins at the same time."""
    kernel = own_kernel(group("one_for_all", intensity="50").replace("intensity = 10\n", ""))
    with kernel.client() as client:
        for lives in range(1, 9):
            os.kill(known(client, "a"), signal.SIGKILL)
            until(lambda n=lives: restarts(client) == [n] * 3, "all are back")  # type: ignore[misc]

        assert restarts(client) == [8] * 3
        for name in NAMES:
            in_state(client, name, "running")


def test_a_transient_group_that_gave_up_is_over_for_good(own_kernel: OwnKernel) -> None:
    tree = NESTED.format(weak="").replace('type = "supervisor"', 'type = "supervisor"\nrestart = "transient"')
    kernel = own_kernel(tree)
    with kernel.client() as client:
        for lives in (1, 2):
            os.kill(known(client, "weak"), signal.SIGKILL)
            until(lambda n=lives: info(client, "weak")["restarts"] >= n or n == 2, "it is back")  # type: ignore[misc]
            until(lambda: info(client, "weak")["state"] in ("running", "failed"), "it has settled")

        assert client.wait("weak", timeout=PATIENCE)["signal"] == signal.SIGKILL
        assert client.wait("sound", timeout=PATIENCE)["success"]
        assert info(client, "weak")["state"] == "failed"
        assert info(client, "aside")["state"] == "running"
        assert client.request(Op.KILL, {"name": "weak"})["code"] == "not_found"


def test_a_significant_child_takes_its_group_along(own_kernel: OwnKernel) -> None:
    weak = 'restart = "transient"\nsignificant = true'
    tree = NESTED.format(weak=weak).replace('= "one_for_all"', '= "one_for_all"\nauto_shutdown = "any_significant"')
    tree = tree.replace('"sleep", "1000"', '"sleep", "1"', 1).replace(
        'type = "supervisor"', 'type = "supervisor"\nrestart = "transient"'
    )
    kernel = own_kernel(tree)
    with kernel.client() as client:
        assert client.wait("weak", timeout=PATIENCE)["exit_code"] == 0
        assert client.wait("sound", timeout=PATIENCE)["reason"] == "stopped: killed by SIGTERM"
        assert info(client, "aside")["state"] == "running"


def test_a_restart_that_fails_is_tried_again_within_the_budget(own_kernel: OwnKernel, tmp_path: Path) -> None:
    fine = tmp_path / "fine"
    fine.touch()
    kernel = own_kernel(f"""
        [[supervisor.children]]
        name = "a"
        max_restarts = 100
        restart_window = 1000
        command = ["sh", "-c", "test -e {fine} && exec sleep 1000"]
        sandboxed = false
        backoff = {{ max_failures = 99 }}
        """)
    with kernel.client() as client:
        fine.unlink()
        os.kill(known(client, "a"), signal.SIGKILL)
        kernel.wait_line("a: exit status 1")
        in_state(client, "a", "backing_off")

        fine.touch()

        in_state(client, "a", "running")
