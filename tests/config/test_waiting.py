"""Agents that wait: what makes no sense together with a schedule or a start is refused, with the key and the fix."""

from pathlib import Path

import pytest

from agentos.agents.spec import AgentSpec
from agentos.agents.waking.schedule import OnEvent, Schedule
from agentos_sdk.encoding.codec import Seconds
from tests.config.saying import loaded, said
from tests.system.lives.test_containers import SLEEPS, child, group, member

HOURLY, ON_MESSAGE = 'schedule = { every = "1h" }', 'start = "on_message"'
STATE_CHANGED = 'start = { on_event = "STATE_CHANGED", prefix = "orders/" }'


@pytest.fixture(autouse=True)
def in_a_directory(home: Path) -> None:
    """Files are written into the working directory."""


def load_agent(*lines: str) -> AgentSpec:
    [spec] = loaded(child("a", SLEEPS, *lines)).root.children
    assert isinstance(spec, AgentSpec)
    return spec


def test_an_agent_that_waits_is_transient_unless_the_file_says_temporary() -> None:
    hourly = load_agent(HOURLY)

    assert (hourly.schedule, hourly.restart, hourly.waits) == (Schedule(every=Seconds(3600.0)), "transient", True)
    assert load_agent(ON_MESSAGE, 'restart = "temporary"').restart == "temporary"
    assert not load_agent().waits


def test_a_start_is_a_word_or_an_event() -> None:
    assert load_agent(ON_MESSAGE, 'idle_stop = "5m"').idle_stop == 300
    found = load_agent(STATE_CHANGED).start
    assert found == OnEvent(on_event="STATE_CHANGED", prefix="orders/")


@pytest.mark.parametrize(
    ("lines", "reasons"),
    [
        ([HOURLY], "every 1h"),
        ([ON_MESSAGE], "message"),
        ([HOURLY, ON_MESSAGE], "every 1h, message"),
        ([STATE_CHANGED], "event STATE_CHANGED orders/"),
        (['start = { on_event = "custom.*" }'], "event custom.*"),
        ([], None),
    ],
)
def test_what_starts_an_agent_is_shown(lines: list[str], reasons: str | None) -> None:
    assert load_agent(*lines).wakes_on == reasons


@pytest.mark.parametrize("waits", [HOURLY, ON_MESSAGE, STATE_CHANGED])
@pytest.mark.parametrize(
    ("line", "key", "message"),
    [
        ('restart = "permanent"', "restart", "an agent that waits ends when its work is done"),
        ("required = true", "required", "the kernel would end"),
        ("significant = true", "significant", "the supervisor would end with its first run"),
    ],
)
def test_a_setting_that_needs_an_agent_that_is_always_there(waits: str, line: str, key: str, message: str) -> None:
    [mistake] = said(child("a", SLEEPS, waits, line))

    assert f"children[0].{key}: {message}" in mistake


@pytest.mark.parametrize(("waits", "key"), [(HOURLY, "schedule"), (ON_MESSAGE, "start")])
@pytest.mark.parametrize("strategy", ["one_for_all", "rest_for_one"])
def test_a_member_of_a_group_that_runs_together(waits: str, key: str, strategy: str) -> None:
    [mistake] = said(group("team", member("a", SLEEPS, waits), f'strategy = "{strategy}"'))

    assert f"children[0].children[0].{key}: members of a {strategy} supervisor run together" in mistake


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('idle_stop = "5m"', "idle_stop: only an agent with a start"),
        ('start = "on_mail"', "start: expected"),
        ("start = {}", "start.on_event: required field missing"),
        ('start = { on_event = "SPAWNED" }', "start: on_event: expected a type of the events"),
        ('start = { on_event = "AGENT_EXITED", prefix = "a/" }', "start: prefix: only the keys of STATE_CHANGED"),
        ('schedule = { every = "1h", cron = "* * * * *" }', "schedule: expected exactly one of every and cron"),
        ('schedule = { cron = "0 3 * *" }', "schedule.cron: expected five fields"),
        ('schedule = { cron = "0 3 * * *", timezone = "Mars" }', "schedule.timezone: expected a time zone"),
        ('schedule = "1h"', "schedule: expected"),
    ],
)
def test_a_value_that_cannot_be(line: str, message: str) -> None:
    [mistake] = said(child("a", SLEEPS, line))

    assert f"children[0].{message}" in mistake
