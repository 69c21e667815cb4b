"""A quota of the model belongs to a name: neither a new connection nor a new life, a new set nor a child renews it."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kernel import Kernel, until
from tests.support.offline import thinking
from tests.support.wire import HELLO, INSPECT, KILL, SPAWN, THINK, Wire

pytestmark = pytest.mark.usefixtures("any_user")

SLEEP = ["sleep", "1000"]
TWO = {"quotas": [{"calls": 2, "per": "1d"}]}


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with thinking() as started:
        yield started


@pytest.fixture
def operator(kernel: Kernel) -> Iterator[Wire]:
    with kernel.connect() as wire:
        yield wire


def think(wire: Wire) -> str:
    """The code of what THINK came to."""
    reply = wire.call(THINK, {"prompt": "a question"})
    return "ok" if reply["success"] else str(reply["code"])


def guest(wire: Wire, **kept: Any) -> None:
    reply = wire.call(HELLO, kept)
    assert reply["success"], reply


def spawn(wire: Wire, name: str, **more: Any) -> int:
    reply = wire.call(SPAWN, {"name": name, "command": SLEEP, **more})
    assert reply["success"], reply
    return int(reply["id"])


def use_up(wire: Wire) -> None:
    assert [think(wire) for _ in range(3)] == ["ok", "ok", "quota_exceeded"]


def test_a_guest_that_comes_again_has_used_up_what_it_had(kernel: Kernel) -> None:
    kept = {"as": "visitor", "permissions": {"level": "standard", **TWO}}
    with kernel.connect() as wire:
        guest(wire, **kept)
        use_up(wire)

    with kernel.connect() as wire:
        guest(wire, **kept)
        assert think(wire) == "quota_exceeded"


@pytest.mark.parametrize(
    "again", [{"level": "standard"}, {"permissions": {"level": "standard", "quotas": [{"calls": 9, "per": "1d"}]}}]
)
def test_a_guest_that_gives_more_away_doesnt_give_its_quota_away(kernel: Kernel, again: dict[str, Any]) -> None:
    with kernel.connect() as wire:
        guest(wire, **{"as": f"giver-{len(str(again))}", "permissions": {"level": "standard", **TWO}})
        use_up(wire)

        guest(wire, **again)

        assert think(wire) == "quota_exceeded"


def test_an_agent_that_is_restarted_has_used_up_what_it_had(kernel: Kernel, operator: Wire) -> None:
    agent = spawn(operator, "restarts", restart="permanent", permissions={"level": "sandboxed", **TWO})
    with kernel.connect_as(agent) as wire:
        use_up(wire)

    operator.call(KILL, {"id": agent, "grace": 0})
    again = spawn(operator, "restarts", permissions={"level": "sandboxed", **TWO})

    with kernel.connect_as(again) as wire:
        assert think(wire) == "quota_exceeded"


def test_a_new_life_renews_nothing(kernel: Kernel, operator: Wire) -> None:
    agent = spawn(operator, "mortal", permissions={"level": "sandboxed", **TWO}, restart="permanent", max_restarts=1000)
    with kernel.connect_as(agent) as wire:
        use_up(wire)

    def life() -> tuple[int, str]:
        found = operator.call(INSPECT, {"id": agent})
        return found["restarts"], found["state"]

    for restarts in (1, 2):
        os.kill(operator.call(INSPECT, {"id": agent})["pid"], signal.SIGKILL)
        until(lambda n=restarts: life() == (n, "running"), "it has come back")  # type: ignore[misc]

    with kernel.connect_as(agent) as wire:
        assert think(wire) == "quota_exceeded"


def test_a_child_draws_on_what_its_parent_has(kernel: Kernel, operator: Wire) -> None:
    parent = spawn(operator, "parent", permissions={"level": "sandboxed", **TWO})
    with kernel.connect_as(parent) as wire:
        rich = {"level": "sandboxed", "quotas": [{"calls": 1000, "per": "1d"}]}
        child = spawn(wire, "child", permissions=rich)
        with kernel.connect_as(child) as below:
            use_up(below)

        assert think(wire) == "quota_exceeded"
        with kernel.connect_as(spawn(wire, "another-child")) as other:
            assert think(other) == "quota_exceeded"


def test_what_an_agent_of_a_guests_uses_is_the_guests(kernel: Kernel) -> None:
    with kernel.connect() as wire:
        guest(wire, **{"as": "employer", "permissions": {"level": "standard", **TWO}})
        with kernel.connect_as(spawn(wire, "employee")) as below:
            use_up(below)

        assert think(wire) == "quota_exceeded"


@pytest.mark.usefixtures("kernels")
def test_nor_does_a_new_kernel() -> None:
    kept = {"as": "visitor", "permissions": {"level": "standard", **TWO}}
    with thinking() as kernel:
        with kernel.connect() as wire:
            guest(wire, **kept)
            use_up(wire)

        kernel.kill()
        kernel.start_again()

        with kernel.connect() as wire:
            guest(wire, **kept)
            assert think(wire) == "quota_exceeded"
