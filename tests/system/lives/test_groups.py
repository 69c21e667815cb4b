"""Groups of real processes: who is restarted with whom, and what a supervisor further up makes of it."""

import os
import signal
from collections.abc import Sequence

from agentos_sdk import AgentOSClient
from agentos_sdk.opcodes import Op
from tests.conftest import OwnKernel
from tests.support.kernel import until
from tests.support.wire import PATIENCE
from tests.system.agents import in_state, info, known, up
from tests.system.conftest import Declare
from tests.system.lives.test_containers import child, group, member
from tests.system.lives.test_start_stop import TOGETHER

STRATEGIES = {"one_for_one": [0, 1, 0], "rest_for_one": [0, 1, 1], "one_for_all": [1, 1, 1]}
"""What a crash of the second of three restarts."""


def restarts(client: AgentOSClient, names: Sequence[str]) -> list[int]:
    return [info(client, name)["restarts"] for name in names]


def test_a_crash_restarts_the_siblings_that_the_strategy_names(declare: Declare) -> None:
    names = {strategy: [f"{strategy}-{number}" for number in range(3)] for strategy in STRATEGIES}
    kernel = declare(
        "".join(group(one, "".join(map(member, names[one])), f'strategy = "{one}"', "intensity = 10") for one in names)
    )
    with kernel.client() as client:
        before = {name: info(client, name) for found in names.values() for name in found}

        for _, second, _ in names.values():
            os.kill(known(client, second), signal.SIGKILL)

        for strategy, expected in STRATEGIES.items():
            group_names = names[strategy]
            until(lambda n=group_names, e=expected: restarts(client, n) == e, f"{strategy}: {expected}")  # type: ignore[misc]
        for name, former in before.items():
            now = in_state(client, name, "running")
            assert now["id"] == former["id"]
            assert (now["pid"] == former["pid"]) == (now["restarts"] == 0)


def test_a_root_of_one_for_all_starts_in_order_is_restarted_whole_and_stops_in_reverse(own_kernel: OwnKernel) -> None:
    """What was spawned by hand ends with a crash in it."""
    names = ("a", "b", "c")
    kernel = own_kernel('[supervisor]\nstrategy = "one_for_all"\nintensity = 10\n' + "".join(map(child, names)))
    with kernel.client() as client:
        up(client.spawn("by-hand", command=["sleep", "1000"], restart="permanent"))
        os.kill(known(client, "b"), signal.SIGKILL)

        assert client.wait("by-hand", timeout=PATIENCE)["reason"] == "stopped: killed by SIGTERM"
        until(lambda: restarts(client, names) == [1, 1, 1], "the group is restarted")
        in_state(client, "by-hand", "exited")
        for name in names:
            in_state(client, name, "running")
    since = len(kernel.lines)
    kernel.process.send_signal(signal.SIGTERM)
    assert kernel.wait_end() == 0

    def order(event: str, lines: Sequence[str]) -> list[str]:
        found = [line.split("| ")[1].split(":")[0] for line in lines if event in line]
        return [name for name in found if name in names]

    assert order(": running", kernel.lines) == ["a", "b", "c"] * 2
    assert order(": stopped", kernel.lines[since:]) == ["c", "b", "a"]


def test_a_group_that_gave_up_comes_back_by_the_supervisor_above(declare: Declare) -> None:
    kernel = declare(
        group("inner", member("weak") + member("sound"), TOGETHER, "intensity = 1", "period = 60") + child("aside")
    )
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


def test_what_orphans_a_life_leaves_are_not_taken_for_the_next_life(declare: Declare) -> None:
    """A sweep after one life must spare the one that begins at the same time."""
    names = ("first", "second", "third")
    kernel = declare(group("swept", "".join(map(member, names)), TOGETHER, "intensity = 50"))
    with kernel.client() as client:
        for lives in range(1, 9):
            os.kill(known(client, "first"), signal.SIGKILL)
            until(lambda n=lives: restarts(client, names) == [n] * 3, "all are back")  # type: ignore[misc]

        assert restarts(client, names) == [8] * 3
        for name in names:
            in_state(client, name, "running")


def test_a_transient_group_that_gave_up_is_over_for_good(declare: Declare) -> None:
    lines = (TOGETHER, "intensity = 1", "period = 60", 'restart = "transient"')
    kernel = declare(group("over", member("frail") + member("whole"), *lines) + child("alone"))
    with kernel.client() as client:
        for lives in (1, 2):
            os.kill(known(client, "frail"), signal.SIGKILL)
            until(lambda n=lives: info(client, "frail")["restarts"] >= n or n == 2, "it is back")  # type: ignore[misc]
            until(lambda: info(client, "frail")["state"] in ("running", "failed"), "it has settled")

        assert client.wait("frail", timeout=PATIENCE)["signal"] == signal.SIGKILL
        assert client.wait("whole", timeout=PATIENCE)["success"]
        assert info(client, "frail")["state"] == "failed"
        assert info(client, "alone")["state"] == "running"
        assert client.request(Op.KILL, {"name": "frail"})["code"] == "not_found"


def test_a_significant_child_takes_its_group_along(declare: Declare) -> None:
    job = member("job", '["sleep", "1"]', 'restart = "transient"', "significant = true")
    lines = (TOGETHER, 'auto_shutdown = "any_significant"', 'restart = "transient"')
    kernel = declare(group("team", job + member("helper"), *lines) + child("apart"))
    with kernel.client() as client:
        assert client.wait("job", timeout=PATIENCE)["exit_code"] == 0
        assert client.wait("helper", timeout=PATIENCE)["reason"] == "stopped: killed by SIGTERM"
        assert info(client, "apart")["state"] == "running"
