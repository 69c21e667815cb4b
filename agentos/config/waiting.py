"""Agents that wait: checks that their other settings make sense for an agent that isn't always there."""

from collections.abc import Iterator

from agentos.agents.spec import AgentSpec, GroupSpec
from agentos.agents.waking.schedule import OnEvent
from agentos_sdk.calls.events import is_type_pattern

AGAIN = (
    "an agent that waits ends when its work is done, and permanent would start it again at once: "
    'use "transient", the default, or "temporary"'
)
ONLY_STARTED = 'only an agent with a start, such as start = "on_message", ends when nothing comes: leave it out'
NEVER_UP = "the kernel would end, because an agent that waits isn't up from the beginning: leave it out"
ENDS_GROUP = "the supervisor would end with its first run: leave it out"


def find_waiting_mistakes(spec: AgentSpec, group: GroupSpec) -> Iterator[tuple[str, str]]:
    """The mistakes in the settings of an agent in this group: the key and the message."""
    if spec.start is None and spec.idle_stop is not None:
        yield "idle_stop", ONLY_STARTED
    if isinstance(spec.start, OnEvent):
        yield from _find_event_mistakes(spec.start)
    if not spec.waits:
        return
    if group.strategy != "one_for_one":
        apart = f"members of a {group.strategy} supervisor run together: put it into one_for_one"
        key = "schedule" if spec.schedule is not None else "start"
        yield key, f"{apart}, or leave it out"
    if spec.restart == "permanent":
        yield "restart", AGAIN
    if spec.required:
        yield "required", NEVER_UP
    if spec.significant:
        yield "significant", ENDS_GROUP


def _find_event_mistakes(start: OnEvent) -> Iterator[tuple[str, str]]:
    if not is_type_pattern(start.on_event):
        known = 'a type of the events that the kernel tells of, custom.NAME, or the beginning of some and "*"'
        yield "start", f"on_event: expected {known}, got {start.on_event!r}"
    elif start.prefix is not None and start.on_event != "STATE_CHANGED":
        yield "start", "prefix: only the keys of STATE_CHANGED have one: leave it out"
