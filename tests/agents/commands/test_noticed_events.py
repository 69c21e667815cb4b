"""The sentence of a notice: agents choose parts of it, and a terminal or a mail may show it."""

import json
from typing import Any

import pytest

from agentos.agents.commands.noticed_events import describe_notice
from agentos.agents.registry import Registry
from agentos.permissions.approvals.approvals import Approvals, ApprovalSettings
from agentos.services.events import (
    AgentEscalated,
    AgentFailed,
    AgentUnhealthy,
    ApprovalRequested,
    BudgetExhausted,
    Event,
    KernelKilled,
    MailDead,
)
from tests.agents.test_registry import agent

CHOSEN = "a\x1b]0;title\x07\nkernel: all is well \u202e\udcff"


def budget(name: str) -> BudgetExhausted:
    return BudgetExhausted(name, "tokens", 1.0, 1.0, 60.0, 0.0)


@pytest.mark.parametrize(
    "event",
    [
        AgentUnhealthy(1, "a", CHOSEN),
        AgentFailed(1, "a", CHOSEN),
        AgentEscalated("root", CHOSEN),
        budget(CHOSEN),
        KernelKilled(CHOSEN, 0.0, (), 0, 0, 0, 0),
        MailDead(1, "worker", 7, 2, CHOSEN, 5),
    ],
    ids=lambda event: type(event).__name__,
)
def test_the_sentence_is_one_line_of_visible_characters(event: Event) -> None:
    approvals: Any = None  # it isn't asked about these events

    described = describe_notice(approvals, Registry(), requests=False)(event)

    assert described is not None
    text = json.loads(described[1])["text"]
    assert text.isprintable()
    assert "a\\u{1b}]0;title\\u{7}\\u{a}kernel: all is well \\u{202e}\\u{dcff}" in text


def test_requests_failures_and_budgets_of_an_agent_and_its_children_have_the_same_places() -> None:
    """Else it would have eight places for each kind, and what others have to tell would be dropped."""
    nothing: Any = None
    approvals = Approvals(ApprovalSettings(), nothing, nothing, nothing, nothing, nothing)
    registry, top = Registry(), agent("top")
    child = agent("child", top)
    registry.add(top)
    registry.add(child)
    describe = describe_notice(approvals, registry, requests=True)

    told = [
        describe(event)
        for one in (top, child)
        for event in (
            ApprovalRequested(1, one.id, one.name, "EXEC", "$ true", "ask", "0", 0.0, 1.0),
            AgentFailed(one.id, one.name, "exit status 1"),
            MailDead(one.id, one.name, 7, 2, "ann", 5),
        )
    ]

    assert {notice and notice[0] for notice in [*told, describe(budget("top")), describe(budget("top/child"))]} == {
        "top"
    }
