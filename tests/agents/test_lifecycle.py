"""The table of states and events: complete, and the same in the documentation."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.agents.life.lifecycle import ALIVE, NEXT, State
from agentos.services import events
from agentos.services.events import (
    AgentEvent,
    AgentExited,
    AgentOutput,
    AgentOver,
    AgentSpawned,
    AgentState,
    AgentWoken,
    ResourceWarning,
    RunSkipped,
)
from tests.support.runs.rows import each_row

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "life-of-an-agent.md"
CLASSES = {each for each in vars(events).values() if isinstance(each, type) and issubclass(each, AgentEvent)}
CHANGE_NOTHING = {AgentOutput, AgentState, AgentWoken, ResourceWarning, RunSkipped}
EVENTS = CLASSES - {AgentEvent, *CHANGE_NOTHING}


def test_every_state_has_its_events() -> None:
    assert set(NEXT) == set(State)


def test_every_event_but_output_and_warnings_leads_to_some_state() -> None:
    assert set().union(*NEXT.values()) == EVENTS


@each_row("state", State)
def test_every_state_can_reach_the_end_and_a_new_life(state: State) -> None:
    reached: set[State] = set()
    ahead = {state}
    while ahead:
        reached |= ahead
        ahead = {after for one in ahead for after in NEXT[one].values()} - reached

    assert {State.EXITED, State.STARTING} <= reached


@pytest.mark.parametrize("state", sorted(ALIVE))
def test_an_agent_with_a_process_leaves_these_states_by_its_end_only(state: State) -> None:
    left = {event: after for event, after in NEXT[state].items() if after not in ALIVE}

    assert left == {AgentExited: State.EXITED, AgentOver: State.EXITED}


@given(st.lists(st.sampled_from(sorted(EVENTS, key=lambda event: event.__name__)), max_size=30))
def test_only_a_new_life_follows_the_end_of_a_process(events: list[type[AgentEvent]]) -> None:
    state, has_process = State.STARTING, True
    for event in events:
        if event in NEXT[state]:
            state = NEXT[state][event]
            has_process = event is AgentSpawned or (has_process and event not in (AgentExited, AgentOver))

        assert (state in ALIVE) == has_process


def test_the_page_shows_this_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)

    assert rows == [
        (str(state), event.__name__, str(after)) for state, events in NEXT.items() for event, after in events.items()
    ]
