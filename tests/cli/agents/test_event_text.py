"""Events as lines: each type has one, of 80 columns, and nothing that an agent wrote reaches the terminal as it is."""

import json
import re
import time
import unicodedata
from typing import Any

from agentos.services.event_log.records import PLAIN, SPECIAL
from agentos.services.event_log.records import describe as draft_of
from agentos.userland.cli.agents.event_text import DESCRIPTIONS, describe_event, find_caller, find_named, format_event
from tests.docs.reference.test_events_page import example
from tests.support.runs.rows import each_row

LONG = "worker-" + "9" * 100
HOSTILE = "\x1b]52;c;cm0gLXJm\x07\nwith a second line\u202e and more of it " + "y" * 200
WIDE = "你好\U0001f468" * 60


def as_sent(kind: type[Any], text: str) -> dict[str, Any]:
    """An event as a client gets it, with this text in each field that is a text."""
    draft = draft_of(example(kind))
    assert draft is not None
    data = {name: text if value == "x" else value for name, value in json.loads(draft.data).items()}
    if draft.type == "CONFIG_RELOADED":
        data |= {"changes": [["added", text, []]], "settings": [text], "kernel_restart": [text]}
    return {"type": draft.type, "data": data, "source_agent_id": 7, "severity": draft.severity, "at": time.time()}


def test_each_type_has_a_description() -> None:
    types = {as_sent(kind, "x")["type"] for kind in (*PLAIN, *SPECIAL)}

    assert set(DESCRIPTIONS) == types - {"CUSTOM", "STATE_CHANGED"}


@each_row("kind", [*PLAIN, *SPECIAL])
@each_row("text", [LONG, HOSTILE, WIDE])
def test_no_text_of_an_agent_makes_a_line_longer_or_gets_to_the_terminal_as_it_is(kind: type[Any], text: str) -> None:
    line = format_event(as_sent(kind, text), 80, coloured=False)

    assert len(line) + sum(unicodedata.east_asian_width(char) == "W" for char in line) <= 80
    assert line.isprintable()
    whole = format_event(as_sent(kind, text), None, coloured=True)
    assert re.sub(r"\x1b\[[0-9;]+m", "", whole).isprintable()


def describe(kind: str, data: dict[str, Any]) -> str:
    return describe_event({"type": kind, "data": data}, None)


@each_row("kind", ["CUSTOM", "TASK_STEP", "custom.x"])
@each_row("data", [{"name": "kernel", "agent_id": 1}, ["a"], "text", None], ids=str)
def test_what_an_agent_emits_is_shown_by_the_agents_own_name(kind: str, data: object) -> None:
    event = {"type": kind, "data": data, "source_agent_id": 7, "severity": "info", "at": time.time()}

    assert format_event(event, 80, coloured=False, caller="writer")[9:].split()[:2] == [kind, "writer:"]
    assert (find_caller(event), find_named(event)) == (7, None)


def test_lines_say_what_has_happened() -> None:
    def line(kind: str, data: object, caller: str | None = None) -> str:
        event = {"type": kind, "data": data, "source_agent_id": 7, "severity": "info", "at": time.time()}
        return format_event(event, 80, coloured=False, caller=caller)[9:]

    assert line("AGENT_EXITED", {"name": "a", "reason": "exit status 3"}) == "AGENT_EXITED       a: exit status 3"
    assert line("AGENT_WOKEN", {"name": "a", "reason": "schedule"}) == "AGENT_WOKEN        a: started by schedule"
    assert line("AGENT_RESTARTING", {"name": "a", "delay": 0.5, "failures": 2}) == (
        "AGENT_RESTARTING   a: in 0.5 s (failure 2 in a row)"
    )
    changed = {"scope": "global", "key": "plan", "version": 3, "owner_id": None, "deleted": False}
    assert line("STATE_CHANGED", changed) == "STATE_CHANGED      plan: version 3"
    private = changed | {"scope": "agent", "owner_id": 7, "deleted": True}
    assert line("STATE_CHANGED", private) == "STATE_CHANGED      plan: deleted, scope agent of caller 7"
    assert line("STATE_CHANGED", private, caller="a") == "STATE_CHANGED      plan: deleted, scope agent of a"
    earlier = private | {"owner_id": None}
    assert line("STATE_CHANGED", earlier) == "STATE_CHANGED      plan: deleted, scope agent of an earlier caller"
    assert line("custom.done", {"rows": 3}) == 'custom.done        caller 7: {"rows": 3}'
    assert line("custom.done", 5, caller="a") == "custom.done        a: 5"


def test_a_line_names_the_unit_of_what_is_used() -> None:
    full = {"name": "a", "resource": "memory", "used": 430 << 20, "limit": 512 << 20}
    assert describe("RESOURCE_WARNING", full) == "memory 430.0M of 512.0M"
    assert describe("RESOURCE_WARNING", full | {"resource": "disk", "limit": 12 << 30}) == "disk 0.4G of 12.0G"
    pids = {"name": "a", "resource": "pids", "used": 52.0, "limit": 64.0}
    assert describe("RESOURCE_WARNING", pids) == "52 of 64 processes and threads"
    budget = {"name": "a", "what": "tokens", "used": 10000, "most": 10000, "per": 86400.0}
    renewed = time.mktime((2030, 1, 31, 18, 0, 0, 0, 0, -1))
    assert describe("BUDGET_EXHAUSTED", budget | {"renews_at": renewed}) == (
        "10,000 of 10,000 tokens per 1d, renewed 01-31 18:00"
    )


def test_a_severity_has_a_colour() -> None:
    failed = {"type": "AGENT_FAILED", "data": {"name": "a", "reason": "x"}, "severity": "error", "at": time.time()}

    assert "\x1b[31mAGENT_FAILED      \x1b[0m" in format_event(failed, 80, coloured=True)
