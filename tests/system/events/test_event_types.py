"""Each event is published by a real kernel in which the real thing happens, at the right moment."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.llm.vendors.script import Refuses, Says, Text
from tests.support.kernel import Kernel, running, shared, until
from tests.support.servers.vendor import vendor
from tests.support.wire import (
    DELETE,
    EMIT,
    POLL_EVENTS,
    READ,
    SEND,
    STORE,
    SUBSCRIBE,
    THINK,
    Wire,
    frame,
)
from tests.system.agents import in_state, info, up
from tests.system.lives.test_containers import child

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "events.md"
TYPES = set(re.findall(r"^\| `([A-Z_]+)`", PAGE.read_text(), re.MULTILINE))
SLEEPS = '["sleep", "1000"]'
EATS = "import time; kept = bytearray(82 << 20); time.sleep(1000)"
SOON_FAILS = ["sh", "-c", "sleep 1; exit 3"]
BACKOFF = "backoff = { first = 0.1 }"
UNHEALTHY = 'health = { command = ["sh", "-c", "test ! -e sick"], interval = "1s", failures = 1 }'
EACH_SECOND = 'schedule = { every = "1s" }'
LLM = """
[llm]
provider = "openai"
model = "honest"
base_url = "{url}"
retry = {{ attempts = 1, patience = "1s" }}
"""


class Watcher:
    """A connection of the operator's that has subscribed to all events; ``seen`` are those that it has read."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.seen: list[dict[str, Any]] = []
        up(wire.call(SUBSCRIBE, {"event_types": ["*"]}))

    def read(self) -> list[dict[str, Any]]:
        """What is new."""
        reply = up(self._wire.call(POLL_EVENTS, {"max": 1000, "timeout": 0}))
        assert reply["missed"] == 0
        self.seen += reply["events"]
        found: list[dict[str, Any]] = reply["events"]
        return found

    def wait(self, kind: str, **data: object) -> dict[str, Any]:
        """The first event of this type with this data."""

        def find() -> dict[str, Any] | None:
            self.read()
            matching = (event for event in self.seen if event["type"] == kind and data.items() <= event["data"].items())
            return next(matching, None)

        until(find, f"{kind} with {data} is published")
        found = find()
        assert found is not None
        return found

    def of(self, name: str) -> list[str]:
        """The types of what was read about the agent, a state with its name."""
        about = [event for event in self.seen if event["data"].get("name") == name]
        return [event["data"].get("state", event["type"]) for event in about]


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with shared(child("stable")) as started:
        yield started


@pytest.fixture
def watcher(wire: Wire) -> Watcher:
    return Watcher(wire)


@pytest.mark.usefixtures("kernels")
def test_each_type_of_the_reference_is_published_when_it_happens() -> None:
    with vendor() as met:
        met.models = {"honest": Says([Text("yes")]), "limited": Refuses(429, "slow down", after=0.5)}
        asks = 'permissions = { level = "sandboxed", ask = { send = ["*"] } }'
        budget = 'llm = { budget = [{ calls = 1, per = "1h" }] }'
        toml = LLM.format(url=met.base_url) + child("a", SLEEPS, BACKOFF, UNHEALTHY, asks, budget) + child("b")
        with running(toml, {"OPENAI_API_KEY": met.key}) as kernel, kernel.client() as client, kernel.connect() as wire:
            watcher = Watcher(wire)
            number = info(client, "a")["id"]
            start = up(wire.call(SUBSCRIBE, {"event_types": ["KERNEL_STARTED"], "since": 0}))
            assert "KERNEL_STARTED" in start["subscribed"]
            up(client.spawn("fat", command=["python3", "-c", EATS], limits={"memory": "100M"}))
            client.pause("a")
            client.resume("a")
            client.exec("touch sick", name="a")
            watcher.wait("AGENT_UNHEALTHY", name="a")
            until(lambda: info(client, "a")["restarts"] == 1, "it is restarted")
            in_state(client, "a", "running")
            up(client.spawn("hopeless", command=SOON_FAILS, restart="permanent", max_restarts=0))
            watcher.wait("AGENT_ESCALATED", name="hopeless")
            with kernel.connect_as(number) as agent:
                assert not agent.call(READ, {"path": "/etc/shadow"})["success"]
                up(agent.call(STORE, {"key": "x", "value": 1, "scope": "agent"}))
                up(agent.call(EMIT, {"event_type": "custom.hello", "data": {}}))
                up(agent.call(EMIT, {"event_type": "CUSTOM", "data": {}}))
                agent.send(SEND, {"to_name": "b", "message": 1})
                entry = watcher.wait("APPROVAL_REQUESTED", name="a")["data"]["id"]
                client.decide(entry, False)
                agent.receive()
                up(agent.call(THINK, {"prompt": "?"}))
                assert agent.call(THINK, {"prompt": "?"})["code"] == "quota_exceeded"
            client.send_message("hello", to=number)
            client.think("?", model="limited")
            (kernel.place / "agentos.toml").write_text(toml + child("c", SLEEPS, EACH_SECOND))
            up(client.reload())
            watcher.wait("MODEL_AVAILABLE", model="limited")
            watcher.wait("RESOURCE_WARNING", name="fat", resource="memory")
            watcher.wait("RUN_SKIPPED", name="c")

            # test_last_run, test_kept, test_snapshots, test_replays, test_resumes
            elsewhere = {"KERNEL_KILLED", "MAIL_DEAD", "SNAPSHOT_MADE", "REPLAY_DIVERGED"}
            elsewhere |= {"LIFE_RESUMED", "RESUME_FAILED"}
            assert TYPES - {event["type"] for event in watcher.seen} == elsewhere


def test_the_events_of_an_agent_are_in_the_order_in_which_they_happened(kernel: Kernel) -> None:
    with kernel.client() as client, kernel.connect() as wire:
        watcher = Watcher(wire)
        up(client.spawn("a", command=SOON_FAILS, restart="permanent", max_restarts=1, backoff={"first": 0.1}))
        watcher.wait("AGENT_ESCALATED", name="a")
        up(client.stop("stable"))
        up(client.start("stable"))
        watcher.wait("AGENT_READY", name="stable")

    begin, end = ["AGENT_SPAWNED", "starting", "AGENT_READY", "running"], ["AGENT_EXITED", "exited"]
    again = ["AGENT_RESTARTING", "backing_off"]
    assert watcher.of("a") == [*begin, *end, *again, *begin, *end, "AGENT_FAILED", "failed", "AGENT_ESCALATED"]
    assert watcher.of("stable") == ["stopping", *end, "stopped", *begin]
    numbers = [event["seq"] for event in watcher.seen]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_an_event_is_there_when_the_reply_to_its_call_is(kernel: Kernel, watcher: Watcher) -> None:
    """Also where many calls are answered in one write to the disk."""
    number = kernel.spawn("storing")
    watcher.read()
    with kernel.connect_as(number) as agent:
        agent.hello()
        for version in range(1, 101):
            agent.send(STORE, {"key": "x", "value": version, "scope": "agent"}, version)
        agent.receive()
        answered = 1
        for _ in range(99):
            stored = [event["data"]["version"] for event in watcher.seen if event["type"] == "STATE_CHANGED"]
            assert stored == list(range(1, len(stored) + 1))
            watcher.read()
            answered += agent.receive().json["success"]
        watcher.read()
        up(agent.call(DELETE, {"key": "x", "scope": "agent"}, 200))
        [deleted] = watcher.read()
        up(agent.call(STORE, {"key": "y", "value": 1, "scope": "agent", "ttl": 0.5}, 201))
        expiring = watcher.wait("STATE_CHANGED", key="y", deleted=True)

    stored = [event["data"]["version"] for event in watcher.seen if event["data"].get("key") == "x"]
    assert stored == [*range(1, 101), 100]
    assert deleted["data"] == {"scope": "agent", "key": "x", "version": 100, "owner_id": number, "deleted": True}
    assert expiring["data"]["version"] == 101


def test_no_event_has_a_value_or_the_text_of_a_message(kernel: Kernel, watcher: Watcher) -> None:
    with kernel.client() as client:
        number = kernel.spawn("secretive")
        client.store("k", "s3cret-value")
        client.send_message("s3cret-text", to=number)
        client.broadcast("s3cret-text")
        with kernel.connect_as(number) as agent:
            assert not agent.call(STORE, {"key": "k", "value": "s3cret-value"})["success"]
            assert not agent.call(SEND, {"to_name": "nobody-there", "message": "s3cret-text"})["success"]

    kinds = [event["type"] for event in watcher.read()]
    assert {"STATE_CHANGED", "MESSAGE_RECEIVED", "SYSCALL_BLOCKED"} <= set(kinds)
    assert "s3cret" not in str(watcher.seen)


def test_an_agent_that_is_refused_in_a_loop_gets_few_events_and_a_count(kernel: Kernel, watcher: Watcher) -> None:
    number = kernel.spawn("stubborn")
    with kernel.connect_as(number) as agent:
        agent.write(frame(READ, {"path": "/etc/shadow"}) * 1000)
        assert {reply.json["code"] for reply in agent.replies(1000)} == {"permission_denied"}
    counted = watcher.wait("SYSCALL_BLOCKED", rule=None)

    alone = [event for event in watcher.seen if event["type"] == "SYSCALL_BLOCKED" and event["data"]["rule"]]
    assert 200 <= len(alone) < 1000
    assert re.fullmatch(r"and \d+ more of READ denied within \d+ s", counted["data"]["reason"])
