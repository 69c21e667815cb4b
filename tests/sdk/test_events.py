"""Events by both clients: followed one after the other, and polled."""

import pytest
import trio

from agentos_sdk import AgentOSClient, connect
from agentos_sdk.calls.events import Event
from agentos_sdk.errors import BadRequest, ConnectionFailed, PermissionDenied
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel


def test_events_are_followed_one_after_the_other(kernel: Kernel) -> None:
    with kernel.client() as client:
        before = client.subscribe(["*"])["seq"]
        for step in range(3):
            client.emit_event("custom.step", {"step": step})
        client.store("plan", 1)

        with client.follow_events(["custom.*", "STATE_CHANGED"], since=before) as events:
            found = [next(events) for _ in range(4)]
            client.emit_event("custom.later")
            found.append(next(events))

    assert [event["type"] for event in found] == [*["custom.step"] * 3, "STATE_CHANGED", "custom.later"]
    assert [event["data"].get("step") for event in found[:3]] == [0, 1, 2]
    assert {event["boot"] for event in found} == {found[0]["boot"]}
    assert [event["seq"] for event in found] == list(range(before + 1, before + 6))
    assert (events.missed, events.boot_changed, events.cut_off) == (0, False, False)


def test_events_are_polled_until_they_are_unsubscribed(kernel: Kernel) -> None:
    with kernel.client() as client:
        assert client.subscribe(["custom.a", "custom.b*"])["subscribed"] == ["custom.a", "custom.b*"]
        client.emit_event("custom.a", [1])
        client.emit_event("custom.bc")

        page = client.poll_events(max_events=1, timeout=10)
        assert [(event["type"], event["data"]) for event in page["events"]] == [("custom.a", [1])]
        assert client.unsubscribe(["custom.b*"])["unsubscribed"] == ["custom.b*"]
        client.emit_event("custom.bc")
        client.emit_event("custom.a")
        assert [event["type"] for event in client.poll_events(timeout=10)["events"]] == ["custom.a"]
        assert client.unsubscribe(all=True)["unsubscribed"] == ["custom.a"]


async def test_the_trio_client_iterates_over_values(kernel: Kernel) -> None:
    async with connect(kernel.socket) as client:
        before = (await client.subscribe(["custom.*"])).seq
        await client.emit_event("custom.early", {"n": 1})
        async with client.follow_events(["custom.*"], since=before) as events:
            first = await anext(events)
            with trio.move_on_after(0.05):
                await anext(events)  # cancelled while it waits: nothing is lost by that
            for number in range(300):
                await client.emit_event("custom.many", number)
            rest = [await anext(events) for _ in range(300)]

        assert isinstance(first, Event)
        assert (first.type, first.data, first.severity) == ("custom.early", {"n": 1}, "info")
        assert first.source_agent_id == client.agent_id
        assert [event.data for event in rest] == list(range(300))
        page = await client.poll_events(1000)
        assert (len(page.events), page.missed) == (301, 0)


def test_a_mistake_and_a_refusal_are_raised_with_the_first_event(kernel: Kernel) -> None:
    number = kernel.spawn("another")
    with kernel.client() as client, pytest.raises(BadRequest, match="event_types"):
        next(client.follow_events(["AGENT_EXPLODED"]))
    with AgentOSClient(kernel.socket, level="sandboxed") as guest, pytest.raises(PermissionDenied):
        next(guest.follow_events(["AGENT_*"], agents=[number]))


def test_after_a_restart_of_the_kernel_since_says_that_it_was_of_another_boot(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    with kernel.client() as client:
        events = client.follow_events(["KERNEL_STARTED", "custom.*"], since=0)
        last = next(events)
        kernel.kill()
        with pytest.raises(ConnectionFailed):
            next(events)
    kernel.start_again()
    kernel.wait_ready()
    with (
        kernel.client() as client,
        client.follow_events(["custom.*"], since=last["seq"], boot=last["boot"]) as events,
    ):
        for _ in range(last["seq"]):
            client.emit_event("custom.now")
        event = next(events)

    assert events.boot_changed
    assert event["boot"] != last["boot"]
