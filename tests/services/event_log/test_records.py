"""The agents and owners that each fact concerns, as the event log keeps them."""

from typing import Any

from msgspec import Raw

from agentos.services.event_log.record import KERNEL
from agentos.services.event_log.records import describe
from agentos.services.events import (
    AgentEscalated,
    AgentReady,
    BudgetExhausted,
    CustomEvent,
    Event,
    MessageReceived,
    ModelAvailable,
    StateChanged,
)
from tests.support.runs.rows import each_row


@each_row(
    ("event", "source", "concerned", "parties"),
    [
        (AgentReady(3, "w", 9), 3, ((3,), ("w",)), ()),
        (ModelAvailable("offline", "m"), 0, ((), (KERNEL,)), ()),
        (AgentEscalated("tree", "gave up"), 0, ((), (KERNEL,)), ()),
        (AgentEscalated("tree", "gave up", 3, "w", 2), 3, ((3, 2), ("w",)), ()),
        (MessageReceived(3, "w", 4, "sender", 100), 4, ((3,), ("w",)), ()),
        (StateChanged("agent", "k", 1, 3, False, None, "boss/w"), 3, ((3,), ("w",)), ()),
        (StateChanged("session", "k", 1, None, True, None, "guest ada"), 0, ((), ("ada",)), ()),
        (StateChanged("global", "k", 1, None, False, 5, "boss"), 0, ((), ()), ()),
        (
            BudgetExhausted("boss/w", "tokens", 1, 1, 60, 0),
            *(0, ((), ("w",)), ("account boss/w", "account boss")),
        ),
        (CustomEvent(3, "w", "custom.x", Raw(b"{}"), "guest w"), 3, ((3,), ("w",)), ("guest w",)),
    ],
)
def test_an_event_has_its_source_and_those_that_it_concerns(
    event: Event, source: int, concerned: Any, parties: tuple[str, ...]
) -> None:
    found = describe(event)

    assert found is not None
    assert (found.source_agent_id, (found.agent_ids, found.names), found.parties) == (source, concerned, parties)
