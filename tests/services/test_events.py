"""Delivery of events to subscribers."""

import pytest

from agentos.services.events import (
    AgentPaused,
    AgentResumed,
    Event,
    KernelStarted,
    MessageReceived,
    Subscriber,
    discard,
)
from agentos.services.publisher import Events

PAUSED, RESUMED = AgentPaused(1, "a"), AgentResumed(1, "a")


def subscribed(*subscribers: Subscriber, log: Subscriber = discard) -> Events:
    events = Events(log)
    for subscriber in subscribers:
        events.subscribe(subscriber)
    return events


def test_a_subscriber_of_some_types_gets_these_alone_in_its_turn() -> None:
    got = list[str]()
    events = subscribed(lambda event: got.append(f"first {type(event).__name__}"))
    events.subscribe(lambda event: got.append(f"second {event.agent_id}"), AgentPaused)

    events.publish(PAUSED)
    events.publish(RESUMED)
    events.subscribe(lambda event: got.append("third"), AgentResumed)
    events.publish(RESUMED)

    assert got == ["first AgentPaused", "second 1", "first AgentResumed", "first AgentResumed", "third"]


def test_every_subscriber_gets_every_event_in_the_order_of_publication() -> None:
    first, second = list[Event](), list[Event]()
    events = subscribed(first.append, second.append)

    events.publish(PAUSED)
    events.publish(RESUMED)

    assert first == second == [PAUSED, RESUMED]


def test_a_failing_subscriber_harms_neither_the_publisher_nor_other_subscribers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    got = list[Event]()

    def fail(event: Event) -> None:
        raise OSError("disk full")

    events = subscribed(got.append, fail, got.append)
    events.publish(PAUSED)
    events.publish(RESUMED)

    assert got == [PAUSED, PAUSED, RESUMED, RESUMED]
    assert "a subscriber of AgentPaused: OSError: 'disk full'" in caplog.text


def test_an_event_published_by_a_subscriber_is_delivered_after_the_present_one_to_all() -> None:
    events, late = Events(), list[Event]()

    def answer(event: Event) -> None:
        if event is PAUSED:
            events.publish(RESUMED)
            assert late == []

    events.subscribe(answer)
    events.subscribe(late.append)
    events.publish(PAUSED)

    assert late == [PAUSED, RESUMED]


def test_what_happens_often_is_delivered_to_the_log_alone_and_everything_to_the_log_first() -> None:
    seen, logged = list[Event](), list[Event]()
    events = subscribed(seen.append, lambda event: seen.append(logged[-1]), log=logged.append)
    received, started = MessageReceived(1, "a", 2, "b", 5), KernelStarted(None)

    events.publish(received)
    events.publish(started)

    assert logged == [received, started]
    assert seen == [started, started]
