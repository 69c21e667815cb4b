"""Agents that go on after a crash: what makes that impossible is refused, with the key and the fix."""

from pathlib import Path

import pytest

from agentos.agents.spec import AgentSpec
from tests.config.saying import loaded, said
from tests.system.lives.test_containers import SLEEPS, child

RESUME = 'on_crash = "resume"'


@pytest.fixture(autouse=True)
def in_a_directory(home: Path) -> None:
    """Files are written into the working directory."""


def test_an_agent_that_resumes_is_recorded() -> None:
    [spec] = loaded(child("a", SLEEPS, RESUME)).root.children
    assert isinstance(spec, AgentSpec)
    assert (spec.on_crash, spec.record) == ("resume", True)
    assert spec.as_spawned("b").on_crash == "restart"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["record = false"], 'record: on_crash = "resume" needs the recording of its lives: leave record out'),
        (['isolation = "none"'], "on_crash: only a jail keeps an agent to calls that are recorded: give it a jail"),
        (['network = "host"'], "on_crash: the host's network isn't recorded: set network = \"filtered\""),
        (['restart = "temporary"'], 'on_crash: a temporary agent has no next life: set restart = "transient"'),
    ],
)
def test_what_keeps_an_agent_from_resuming_is_refused(lines: list[str], message: str) -> None:
    [found] = said(child("a", SLEEPS, RESUME, *lines))

    assert message in found
