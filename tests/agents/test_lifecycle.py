"""The table of states and events: complete, and the same in the documentation."""

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.agents.life.lifecycle import ALIVE, AT_END, AT_START, NEXT, State, Wanted
from agentos.agents.waking.schedule import Schedule
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
from tests.agents.test_registry import agent
from tests.support.runs.rows import each_row

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "life-of-an-agent.md"
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


def test_every_state_in_which_an_agent_is_over_has_what_follows_each_wish() -> None:
    assert set(AT_END) == {after[AgentOver] for after in NEXT.values()}
    assert set(AT_START) == set(Wanted)
    for state, follows in AT_END.items():
        assert {event for event in follows.values() if event not in NEXT[state]} == set()


@each_row(
    ("stopped", "dismissed", "waits", "woken", "wanted"),
    [
        (False, False, False, False, Wanted.RUN),
        (False, False, True, True, Wanted.RUN),
        (False, False, True, False, Wanted.WAIT),
        (False, True, True, False, Wanted.END),  # a reload removes it
        (True, True, True, True, Wanted.STOP),  # whatever else is wanted
    ],
)
def test_what_is_wanted_of_an_agent(stopped: bool, dismissed: bool, waits: bool, woken: bool, wanted: Wanted) -> None:
    one = agent("a", schedule=Schedule(cron="0 3 * * *") if waits else None)
    one.wish.wake(woken)
    if stopped:
        one.wish.stop("operator")
    if dismissed:
        one.wish.dismiss()

    assert one.wanted is wanted


def test_a_stop_that_is_cancelled_leaves_another_one_in_force() -> None:
    one, stop, other = agent("a"), object(), object()
    for each in (stop, other):
        one.wish.stop("operator", each)
        one.wish.dismiss()

    wanted = []
    for each in (stop, other):
        one.wish.cancel_stop(each, over=False)
        wanted.append(one.wanted)

    assert wanted == [Wanted.STOP, Wanted.RUN]


def test_only_methods_of_a_wish_change_it_and_only_the_registry_changes_a_state() -> None:
    changed = {
        (path.name, name)
        for path in (ROOT / "agentos").rglob("*.py")
        if ".wish" in (text := path.read_text()) or "agent.state" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assign | ast.AugAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for one in ast.walk(target)
        if isinstance(one, ast.Attribute) and (".wish" in (name := ast.unparse(one)) or name == "agent.state")
    }

    assert changed == {("registry.py", "agent.state")}


def test_the_page_shows_the_table_of_wishes() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    columns = (State.EXITED, State.FAILED, State.STOPPED)

    assert rows == [
        (
            str(wanted),
            str(AT_START[wanted]),
            *(f"`{AT_END[state][wanted].__name__}`" if wanted in AT_END[state] else "-" for state in columns),
        )
        for wanted in Wanted
    ]


def test_the_page_shows_this_table() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (`Agent.+) \|$", PAGE.read_text(), re.MULTILINE))
    shown = {state: re.findall(r"`(\w+)` → `(\w+)`", row) for state, row in rows.items()}

    assert shown == {
        str(state): [(event.__name__, str(after)) for event, after in events.items()] for state, events in NEXT.items()
    }
