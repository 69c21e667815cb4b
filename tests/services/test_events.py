"""Delivery of events to subscribers."""

import pytest

from agentos.services.events import AgentPaused, AgentResumed, Event, KernelStarted, MessageReceived
from agentos.services.publisher import Events

PAUSED, RESUMED = AgentPaused(1, "a"), AgentResumed(1, "a")


def test_every_subscriber_gets_every_event_in_the_order_of_publication() -> None:
    first, second = list[Event](), list[Event]()
    events = Events([first.append, second.append])

    events.publish(PAUSED)
    events.publish(RESUMED)

    assert first == second == [PAUSED, RESUMED]


def test_a_failing_subscriber_harms_neither_the_publisher_nor_other_subscribers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    got = list[Event]()

    def fail(event: Event) -> None:
        raise OSError("disk full")

    events = Events([got.append, fail, got.append])
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

    events.subscribers = [answer, late.append]
    events.publish(PAUSED)

    assert late == [PAUSED, RESUMED]


def test_what_happens_often_is_delivered_to_the_log_alone_and_everything_to_the_log_first() -> None:
    seen, logged = list[Event](), list[Event]()
    events = Events([seen.append, lambda event: seen.append(logged[-1])], logged.append)
    received, started = MessageReceived(1, "a", 2, "b", 5), KernelStarted(None)

    events.publish(received)
    events.publish(started)

    assert logged == [received, started]
    assert seen == [started, started]
