"""Events as lines in the log and in an agent's output."""

import logging

import pytest

from agentos.agents.registry import Registry
from agentos.agents.tree.event_lines import add_to_output, log_event
from agentos.services.events import (
    AgentEscalated,
    AgentExited,
    AgentFailed,
    AgentPaused,
    AgentReady,
    AgentRestarting,
    AgentUnhealthy,
)
from tests.agents.test_registry import agent


def test_starts_ends_restarts_and_escalations_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "agentos.agents")

    for event in (
        AgentReady(1, "a", 77),
        AgentPaused(1, "a"),
        AgentUnhealthy(1, "a", "watchdog: no call for 30 s"),
        AgentExited(1, "a", "exit status 3"),
        AgentRestarting(1, "a", 0.25, 2),
        AgentEscalated("root/team", "1 restarts in 5 s were needed", 1, "a"),
        AgentEscalated("root", "too much"),
    ):
        log_event(event)

    assert [(record.levelname, record.getMessage().partition(". So")[0]) for record in caplog.records] == [
        ("INFO", "a: running (pid 77)"),
        ("WARNING", "a: unhealthy: watchdog: no call for 30 s"),
        ("INFO", "a: exit status 3"),
        ("INFO", "a: will be restarted in 0.2 s (failure 2 in a row)"),
        ("WARNING", "root/team: given up: 1 restarts in 5 s were needed"),
        ("WARNING", "root: given up: too much"),
    ]


def test_the_output_of_an_agent_says_that_it_ended_and_that_it_was_given_up() -> None:
    registry, one, other = Registry(), agent("a"), agent("b")
    registry.add(one)
    registry.add(other)

    for event in (
        AgentUnhealthy(one.id, "a", "watchdog: no call for 30 s"),
        AgentExited(one.id, "a", "exit status 3"),
        AgentFailed(one.id, "a", "x"),
    ):
        add_to_output(registry, event)

    assert [(line.stream, line.text) for line in one.output.last(10)] == [
        ("kernel", "unhealthy: watchdog: no call for 30 s"),
        ("kernel", "ended: exit status 3"),
        ("kernel", "given up: x"),
    ]
    assert other.output.last(10) == []
