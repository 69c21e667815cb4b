"""A provider that answers 429 for one model, through a whole kernel: who goes on, and who can see it."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agentos_sdk.opcodes import Op
from tests.llm.vendors.script import Refuses, Says, Text
from tests.llm.vendors.server import Vendor
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, running, until
from tests.support.servers.vendor import vendor
from tests.system.agents import info

OPENAI = """
[llm]
provider = "openai"
model = "honest"
base_url = "{url}"
"""
ANSWERS = 10  # for each honest agent


@pytest.fixture(scope="module")
def limiting() -> Iterator[Vendor]:
    with vendor() as met:
        met.models = {
            "honest": Says([Text("yes")]),
            "limited": Refuses(429, "slow down", after=60),
            "slowed": Refuses(429, "slow down", after=60),
            "closed": Refuses(429, "come back tomorrow", after=3600),
        }
        yield met


@pytest.fixture(scope="module")
def kernel(kernels: None, limiting: Vendor) -> Iterator[Kernel]:
    toml = OPENAI.format(url=limiting.base_url)
    with running(toml, {"OPENAI_API_KEY": limiting.key}) as started:
        yield started


def models_asked(vendor: Vendor) -> list[str]:
    return [exchange.question.model for exchange in vendor.exchanges]


def begin(kernel: Kernel, agent: int, model: str, count: int = 1) -> list[dict[str, Any]]:
    """Ask in a thread, one question after the other; the replies, as they come."""
    replies: list[dict[str, Any]] = []

    def ask() -> None:
        with contextlib.suppress(OSError, AssertionError), kernel.connect_as(agent, 100) as wire:  # until it is killed
            for _ in range(count):
                replies.append(wire.call(Op.THINK, {"prompt": "?", "model": model, "timeout": 100}))

    threading.Thread(target=ask, daemon=True).start()
    return replies


def agentos(kernel: Kernel, *arguments: str) -> str:
    given = {**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket}
    done = run_agentos(arguments, kernel.place, given)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_agents_are_answered_beside_one_whose_model_is_paused(kernel: Kernel, limiting: Vendor) -> None:
    attacker = kernel.spawn("attacker")
    for _ in range(3):
        begin(kernel, attacker, "limited")
    until(lambda: "limited" in models_asked(limiting), "the attacker was answered 429")

    honest = [begin(kernel, kernel.spawn(f"honest-{number}"), "honest", ANSWERS) for number in range(4)]
    until(lambda: sum(map(len, honest)) == 4 * ANSWERS, "the others are answered", 60)

    assert all(reply["success"] for replies in honest for reply in replies)
    assert models_asked(limiting).count("limited") == 1  # so it was within the pause of a minute
    with kernel.client() as client:
        client.kill(name="attacker", grace=0)
        used = client.metrics()["metrics"]["llm"]
    assert (used["waiting"], used["in_flight"]) == ([], [])


def test_a_pause_can_be_seen(kernel: Kernel) -> None:
    attacker = kernel.spawn("attacker")
    begin(kernel, attacker, "slowed")

    with kernel.client() as client:
        until(lambda: info(client, "attacker")["llm"]["paused"] == 1, "its question waits for the end of the pause")
        metrics = client.metrics()["metrics"]["llm"]
        inspected = client.inspect("attacker")["llm"]

        ok, paused = (
            next(one for one in metrics["providers"] if one["model"] == name) for name in ("honest", "slowed")
        )
        assert ok == {"name": "openai", "model": "honest", "state": "ok", "until": None, "reason": None}
        assert (paused["name"], paused["model"], paused["state"]) == ("openai", "slowed", "paused")
        assert "slow down" in paused["reason"]
        assert paused["until"] > 1e9
        [waiting] = metrics["waiting"]
        assert (waiting["agent"], waiting["state"], waiting["position"]) == ("attacker", "paused", None)
        assert waiting["class"] == "normal"
        assert metrics["in_flight"] == []
        assert [state["model"] for state in inspected["providers"]] == ["slowed"]
        shown = agentos(kernel, "ps")
        assert "1 waits, 1 for a paused model" in shown
        assert "slowed by openai is paused until" in shown
        assert "slowed by openai is paused until" in " ".join(agentos(kernel, "inspect", "attacker").split())
        client.kill(name="attacker", grace=0)


def test_a_pause_of_an_hour_fails_at_once_and_says_until_when(kernel: Kernel, limiting: Vendor) -> None:
    before = len(limiting.exchanges)
    with kernel.client() as client:
        replies = [client.think("?", model="closed") for _ in range(2)]

    assert [reply["code"] for reply in replies] == ["unavailable"] * 2
    assert all("until 20" in reply["error"] and "UTC" in reply["error"] for reply in replies)
    assert models_asked(limiting)[before:] == ["closed"]
