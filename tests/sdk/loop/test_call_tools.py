"""The requests that tools of the loop make of the kernel."""

import time
from typing import Any

import pytest

from agentos_sdk.adapters.tools import RECEIVE_MESSAGES
from agentos_sdk.loop.engine.budget import Budget, Spent
from agentos_sdk.loop.engine.effects import Work
from agentos_sdk.loop.tools.call_tools import EXEC
from agentos_sdk.loop.tools.tools import Context, Tool
from tests.support.runs.rows import each_row

HUGE = 10**400  # no float


def short(value: object) -> str:
    return str(value)[:10]


def request(tool: Tool, budget: Budget, **arguments: Any) -> dict[str, Any]:
    """The fields of the first call that a tool makes."""

    def save(name: str, value: object) -> Work[None]:
        yield from ()

    context = Context("t", "agent", 0, None, None, save, Spent(budget, time.time()))
    return dict(next(tool.act(context, arguments, "0001/00")).fields)  # type: ignore[union-attr]


@each_row(
    ("wanted", "timeout"),
    [(0, 120), (-1, 120), (-0.0, 120), (0.5, 0.5), (600, 600), (7200, 3600), (HUGE, 3600)],
    ids=short,
)
def test_a_command_always_has_a_timeout_that_exec_takes(wanted: float, timeout: float) -> None:
    assert request(EXEC, Budget(), command="true", timeout=wanted)["timeout"] == timeout
    assert request(EXEC, Budget(), command="true")["timeout"] == 120


@pytest.mark.parametrize("wanted", [0, -1, 60, 7200])
def test_no_timeout_of_a_command_exceeds_the_time_of_the_budget(wanted: float) -> None:
    assert 0 < request(EXEC, Budget(time=5), command="sleep 60", timeout=wanted)["timeout"] <= 5


@pytest.mark.parametrize(("wanted", "timeout"), [(-1, 0), (3, 3), (HUGE, 600)], ids=short)
def test_a_wait_for_messages_is_bounded(wanted: float, timeout: float) -> None:
    assert request(RECEIVE_MESSAGES, Budget(), timeout=wanted)["timeout"] == timeout
